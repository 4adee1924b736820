"""The stores of runs, by the scheme of their URLs: one table, which other distributions can extend.

A text without a scheme, or a path, is a folder. A scheme that is not in `KINDS` is looked for among
the entry points of the group `bundle_router_stores`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from bundle_router.errors import RequestError, needs_extra
from bundle_router.ports import Clock, RunStore, StoredRuns

if TYPE_CHECKING:
    from bundle_router.adapters.archive import RunArchive
    from bundle_router.core.catalog import Catalog, Durability, RecordSettings

RunPlace = str | Path | RunStore
"""Where runs are: a folder, the URL of a store, or a store itself."""
ENTRY_POINTS: Final = "bundle_router_stores"
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


class MakeStore(Protocol):
    """What an entry point of `bundle_router_stores` names: opens the store of a URL."""

    def __call__(self, url: str, *, clock: Clock) -> RunStore: ...


@dataclass(frozen=True, slots=True)
class StoreKind:
    """How the runs under one scheme are written, and how they are read."""

    open_store: Callable[[str, Clock, Durability], RunStore]
    """Open the store of a URL. Contacts nobody."""
    open_archive: Callable[[str], RunArchive]
    """Open the archive of the same runs, which is also where runs are copied to."""


def scheme_of(place: RunPlace) -> str:
    """Return the scheme of a URL, in lower case; empty for a folder and for a store."""
    match = _SCHEME.match(place) if isinstance(place, str) else None
    return match[1].lower() if match is not None else ""


def open_archive(place: RunPlace, *, present: bool = False) -> RunArchive:
    """Return the archive of a folder of runs, of a store's URL, or of a store.

    Raises RequestError for a store that can't be read; with `present` also for a folder that is not
    there, since its runs would seem to be none.
    """
    if not isinstance(place, str | Path):
        return _archive_of(place)
    scheme = scheme_of(place)
    if present and not scheme and not Path(place).is_dir():
        raise RequestError(
            f"there is no folder {place}",
            advice="name a folder of run directories, or postgresql://…",
        )
    return _kind_of(scheme).open_archive(str(place))


class RunStores:
    """The store of a router's runs, opened once whatever becomes of the config.

    A store that was passed stays its caller's: `close` closes only what was opened here.
    """

    def __init__(self, place: RunPlace, runs: str | Path) -> None:
        self._place = place
        self._runs = runs
        self._opened: dict[Durability, RunStore] = {}

    def under(self, catalog: Catalog, clock: Clock) -> RunStore:
        """Return the store as a config wants it, with run heads beside it where `[records]` says
        so.

        Raises RequestError for an unknown scheme, and for a key of `[records]` that is not set.
        """
        stored = self._store(catalog.settings.log.durability, clock)
        records = catalog.settings.records
        if records.heads is None and records.key is None:
            return stored  # without loading what keeps heads
        return _with_heads(stored, records, self._runs)

    def _store(self, durability: Durability, clock: Clock) -> RunStore:
        if not isinstance(self._place, str | Path):
            return self._place
        store = self._opened.get(durability)
        if store is None:
            kind = _kind_of(scheme_of(self._place))
            store = kind.open_store(str(self._place), clock, durability)
            self._opened[durability] = store
        return store

    def close(self) -> None:
        """Close the stores that were opened here. Blocks."""
        for store in self._opened.values():
            store.close()


def _with_heads(kept: RunStore, records: RecordSettings, runs: str | Path) -> RunStore:
    from bundle_router.adapters.archive import kept_heads
    from bundle_router.adapters.archive.head_files import HeadKeepingStore

    heads = kept_heads(records, runs)
    if heads is None:
        return kept
    return cast("RunStore", HeadKeepingStore(kept, heads))


def _archive_of(store: RunStore) -> RunArchive:
    """Return the archive of a store that somebody opened."""
    place = getattr(store, "place", None)
    if isinstance(place, str):
        return open_archive(place)
    return _read_by_port(store, is_shared=False)


def _read_by_port(store: RunStore, *, is_shared: bool) -> RunArchive:
    from bundle_router.adapters.archive.stored_runs import StoreArchive

    if not hasattr(store, "lines_of"):
        raise RequestError(
            f"the runs of a {type(store).__name__} can't be read",
            advice="give it the methods of bundle_router.ports.StoredRuns",
        )
    return StoreArchive(cast("StoredRuns", store), is_shared=is_shared)


# --- the kinds ------------------------------------------------------------------------------------


def _open_folder(place: str, clock: Clock, durability: Durability) -> RunStore:
    from bundle_router.adapters.artifact_files import RunArtifacts
    from bundle_router.adapters.run_log import DiskRunStore

    artifacts = partial(RunArtifacts, durable=durability == "disk")
    return DiskRunStore(place, clock=clock, artifacts=artifacts, durability=durability)


def _read_folder(place: str) -> RunArchive:
    from bundle_router.adapters.archive import Archive

    return Archive(place)


def _open_postgres(url: str, clock: Clock, _durability: Durability) -> RunStore:
    with needs_extra("a PostgreSQL store", "postgresql"):
        from bundle_router.adapters.postgres import PostgresRunStore

    return PostgresRunStore(url, clock=clock)


def _read_postgres(url: str) -> RunArchive:
    with needs_extra("a PostgreSQL store", "postgresql"):
        from bundle_router.adapters.archive.database import PostgresArchive

    return PostgresArchive(url)


_POSTGRES: Final = StoreKind(_open_postgres, _read_postgres)
KINDS: Final[Mapping[str, StoreKind]] = {
    "": StoreKind(_open_folder, _read_folder),
    "postgres": _POSTGRES,
    "postgresql": _POSTGRES,
    "postgresql+psycopg": _POSTGRES,
}
"""The kinds of stores that come with the router, by scheme; the empty one is a folder's."""


def _kind_of(scheme: str) -> StoreKind:
    return KINDS.get(scheme) or _installed_kind(scheme)


def _installed_kind(scheme: str) -> StoreKind:
    """Return the kind that an installed distribution has for a scheme. Raises RequestError."""
    from importlib.metadata import entry_points

    from bundle_router.adapters.system import SystemClock

    installed = entry_points(group=ENTRY_POINTS, name=scheme)
    if not installed:
        raise RequestError(
            f"{scheme!r} is not a store",
            advice=(
                "give a folder, or postgresql://…; a distribution adds a scheme by an entry point"
                f" of the group {ENTRY_POINTS}"
            ),
        )
    make: MakeStore = next(iter(installed)).load()
    return StoreKind(
        lambda url, clock, _durability: make(url, clock=clock),
        lambda url: _read_by_port(make(url, clock=SystemClock()), is_shared=True),
    )
