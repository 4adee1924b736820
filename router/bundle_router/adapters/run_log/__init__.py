"""The directory store of runs, which keeps every record that `route()` and `call()` have returned.

Rules:
1. A record is acknowledged only when the operating system has its whole line: one `write()`,
   checked. An acknowledged record survives `kill -9` (durability `process`), and power loss once
   `sync()` has returned (`disk`).
2. A failed write is undone: the file ends at a record boundary, the caller gets a StorageError, and
   the next append may succeed. A file or directory that was deleted, moved or replaced is never
   silently created again.
3. No process owns a run. An append holds the run's lock for microseconds, reads what other
   processes wrote, and writes behind it. With `only_at` it writes nothing if there is anything new,
   and returns the new records. Readers take no lock. Waiting for a lock is bounded, and the error
   names the process that holds it.
4. Only torn ends are repaired, under the lock. The bytes cut off are kept beside the file and
   reported. Other damage raises CorruptRun when the run is read: every line is checked against its
   hash and the line before it.
5. `routing.jsonl` and `tool-calls.jsonl` share one sequence and one hash chain (see
   `core.records.chain`). With durability `disk`, no record is written to one file before the
   other's records are on disk, so that power loss only ever takes the end of the run.
6. After a failed `fdatasync` the log acknowledges nothing more and does not retry. Opening the run
   again continues from what is in the files then, and writes that again first.
7. A run that is being written takes one descriptor (two with durability `disk`), a run that is only
   read none. Of the runs that are not in use, the 256 written to last (fewer if the process's limit
   is low) keep it, and show others by its lock that they are being written; one that gave it up
   takes it again with its next record, or its end. The 64 written to last also keep their lock and
   their file of calls open. When no descriptor is left, these are closed; if that is not enough,
   the error says so.
8. Directories have mode 0700, files 0600. Files that belong to other users, or that others may
   write to, are refused, and so is a file system that does not honour locks.
9. `run.json` is written when a run begins, when its last writer closes it, when a closed run is
   written to again, and when its content changes (another catalog, a torn end).

The order of records is their sequence; wall-clock times are for people. Modules: `store` begins and
opens runs, and tells which writers are alive; `log` is one open run; `run_files` takes its lock,
follows its chain, appends, and repairs torn ends; `directory` keeps files private and wraps the
operating system's calls.
"""

from __future__ import annotations

from bundle_router.adapters.run_log.directory import POSIX, Storage
from bundle_router.adapters.run_log.log import DiskRunLog
from bundle_router.adapters.run_log.store import DiskRunStore

__all__ = ["POSIX", "DiskRunLog", "DiskRunStore", "Storage"]
