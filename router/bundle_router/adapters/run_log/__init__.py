"""The writer of run directories: what a decision rests on once `route()` has returned it.

Rules:
1. A record is acknowledged only when the operating system has all of its line: one `write()`, checked. What was
   acknowledged survives `kill -9` (durability `process`), and power loss once `sync()` has returned (`disk`).
2. A failed write is undone: the file ends at a record boundary, the caller gets a StorageError, and the next append
   may succeed. A file or directory that was deleted is never made again behind the caller's back.
3. One writer per run, kept by a kernel lock that dies with its owner; a second Router of one process is second too.
4. Only torn ends are repaired. What was cut off is kept beside the file and reported. Other damage is CorruptRun,
   found when the run is opened: anywhere in a run of up to a mebibyte, back to the last decision in a longer one.
5. `routing.jsonl` and `tool-calls.jsonl` share one sequence and one hash chain (see `core.records.chain`). With
   durability `disk`, no record goes to one file before the other's are on disk, so that power loss only ever takes
   the end of the run.
6. After a failed `fdatasync` the log acknowledges nothing more, and it is not tried again. Opening the run anew goes
   on from what is there then, which is written once more first.
7. An open run takes one descriptor (two with durability `disk`). When there is none left the error says so.
8. Directories are 0700, files 0600; what belongs to others, or others may write to, is refused.

Order is the sequence; wall-clock times in the records are for people. The modules: `store` opens runs, `log` appends,
`segment` looks at the ends of files and heals them, `directory` keeps things private, `storage` is the seam to the
operating system.
"""

from __future__ import annotations

from bundle_router.adapters.run_log.log import DiskRunLog
from bundle_router.adapters.run_log.storage import POSIX, Storage
from bundle_router.adapters.run_log.store import DiskRunStore

__all__ = ["POSIX", "DiskRunLog", "DiskRunStore", "Storage"]
