"""The SQL index: a cache of the records of many runs as tables, which pages and commands query.

Rules:
1. The runs are the source of truth. The index is filled only from them, and can be deleted and
   rebuilt at any time.
2. Run and sequence number identify a row, so filling twice changes nothing.
3. The database may be shared. Every table is called `bundle_router_…`. Such a table is changed only
   if `bundle_router_index` says that this program made it; other tables are never changed.
4. A fill with `named` reads the given runs anew; without, the index then holds the given runs
   alone. A refresh compares stamps, and of a run that only grew it reads the new end.
5. Tables of another version are created anew, not migrated. That takes a fill without `named`,
   which loses no run.
6. A refresh commits every `RUNS_AT_ONCE` runs; if it fails, the runs after that stay as they were.
7. Values that follow from other rows are computed in SQL after a fill, for the changed runs. What
   all runs come to is kept in `totals` and `hours`: what changed runs contributed is subtracted,
   and what they contribute now is added.
8. Writing goes through SQLAlchemy, in SQLite or PostgreSQL. Reading, searching and totals need
   SQLite, and the standard library alone. An index in PostgreSQL has only the tables.
9. A file that is no usable database is moved aside and made anew (see `index_file`).
"""

from bundle_router.adapters.index.database import dump
from bundle_router.adapters.index.filling import IndexBuild, RefreshResult, Report, index_runs
from bundle_router.adapters.index.index_file import index_url
from bundle_router.adapters.index.run_index import RunIndex

__all__ = [
    "IndexBuild",
    "RefreshResult",
    "Report",
    "RunIndex",
    "dump",
    "index_runs",
    "index_url",
]
