"""The SQL index: the records of many runs as tables, and what pages and verbs read from them. A cache.

Rules:
1. The runs are the truth. The index is only ever filled from them, and can be deleted and rebuilt at any time.
2. A row is identified by its run and sequence number, so filling twice changes nothing.
3. The database may be shared. Every table is called `bundle_router_…`; none is touched unless `bundle_router_index`
   says that this program made it, and no other table ever is.
4. A fill takes in what it is given: named runs are replaced one by one, and the rows of all others stay; without names
   the index holds the given runs alone. `refresh` compares stamps and reads, of runs that only grew, the new end.
5. Tables of another version are made anew, not migrated; that takes a fill without names, which loses no run.
6. A fill is one transaction: one that fails leaves the rows as they were. A refresh is one every `RUNS_AT_ONCE` runs.
7. What can be counted from other rows is counted in SQL, after a fill, for the runs that changed.
8. Searching needs SQLite (FTS5); an index in PostgreSQL has the tables alone.
"""

from bundle_router.adapters.index.database import VERSION, dump, open_engine, sqlite_url
from bundle_router.adapters.index.filling import IndexBuild, RefreshResult, index_runs, refresh
from bundle_router.adapters.index.run_index import RunIndex, index_url

__all__ = [
    "VERSION", "IndexBuild", "RefreshResult", "RunIndex", "dump", "index_runs", "index_url", "open_engine", "refresh",
    "sqlite_url",
]  # fmt: skip
