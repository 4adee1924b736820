"""The SQL index: a cache of the records of many runs as tables, which pages and commands query.

Rules:
1. The runs are the source of truth. The index is filled only from them, and can be deleted and
   rebuilt at any time.
2. Run and sequence number identify a row, so filling twice changes nothing.
3. The database may be shared. Every table is called `bundle_router_…`. Such a table is changed only
   if `bundle_router_index` says that this program made it; other tables are never changed.
4. A fill with `named` replaces only the given runs; without, the index then holds the given runs
   alone. `refresh` compares stamps, and of a run that only grew it reads the new end.
5. Tables of another version are created anew, not migrated. That takes a fill without `named`,
   which loses no run.
6. A fill is one transaction: if it fails, the rows stay as they were. A refresh commits every
   `RUNS_AT_ONCE` runs.
7. Values that follow from other rows are computed in SQL after a fill, for the changed runs.
8. Searching needs SQLite (FTS5). An index in PostgreSQL has only the tables.
"""

from bundle_router.adapters.index.database import dump, sqlite_url
from bundle_router.adapters.index.filling import IndexBuild, index_runs
from bundle_router.adapters.index.run_index import RunIndex, index_url

__all__ = [
    "IndexBuild",
    "RunIndex",
    "dump",
    "index_runs",
    "index_url",
    "sqlite_url",
]
