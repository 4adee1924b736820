"""The directory store of runs: what a decision rests on once `route()` has returned it.

Rules:
1. A record is acknowledged only when the operating system has all of its line: one `write()`, checked. What was
   acknowledged survives `kill -9` (durability `process`), and power loss once `sync()` has returned (`disk`).
2. A failed write is undone: the file ends at a record boundary, the caller gets a StorageError, and the next append
   may succeed. A file or directory that was deleted, moved or replaced is never made again behind the caller's back.
3. No process holds a run. An append takes the run's lock for microseconds, takes in what others wrote, and writes
   behind it; or, where it was asked to write only if nothing came, writes nothing and gives what came. A reader takes
   no lock. Who waits for a lock, waits for a bounded time, and is told which process held it.
4. Only torn ends are repaired, under the lock. What was cut off is kept beside the file and reported. Other damage is
   CorruptRun, found when the run is read: every line is checked against its hash and the one before it.
5. `routing.jsonl` and `tool-calls.jsonl` share one sequence and one hash chain (see `core.records.chain`). With
   durability `disk`, no record goes to one file before the other's are on disk, so that power loss only ever takes
   the end of the run.
6. After a failed `fdatasync` the log acknowledges nothing more, and it is not tried again. Opening the run anew goes
   on from what is there then, which is written once more first.
7. A run that is written to here takes one descriptor (two with durability `disk`), one that is only read none. The 64
   runs written to last (fewer where a process may have few) keep their lock and their file of calls open besides. When
   there is none left these are closed, and then the error says so.
8. Directories are 0700, files 0600; what belongs to others, or others may write to, is refused; and so is a file
   system that does not honour locks.
9. `run.json` is written when a run begins, when who writes it last closes it, when a closed run is written to again,
   and when something else is to be said of the whole (another catalog, a torn end).

Order is the sequence; wall-clock times in the records are for people. The modules: `store` begins and opens runs, and
says who is alive, `log` follows the chain, appends and heals torn ends, `directory` keeps things private, over the seam
to the operating system.
"""

from __future__ import annotations

from bundle_router.adapters.run_log.directory import POSIX, Storage
from bundle_router.adapters.run_log.log import DiskRunLog
from bundle_router.adapters.run_log.store import DiskRunStore

__all__ = ["POSIX", "DiskRunLog", "DiskRunStore", "Storage"]
