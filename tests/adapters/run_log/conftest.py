"""A runs directory in a temporary folder, its writer and its reader."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.archive import Archive
from bundle_router.adapters.run_log import POSIX, DiskRunLog, DiskRunStore, Storage
from bundle_router.core.catalog import Durability
from bundle_router.core.records.chain import Record
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values.canonical import digest, encode, time_text
from bundle_router.ports import ArtifactStore

CATALOG = encode({"schema": "bundle-router.catalog/1", "bundles": []})
REVISION = digest(CATALOG)


class SetClock:
    """A clock that shows what it was set to."""

    def __init__(self) -> None:
        self.time = "2026-11-21T08:02:00Z"

    @property
    def time(self) -> str:
        return time_text(self._ns)

    @time.setter
    def time(self, text: str) -> None:
        self._ns = int(datetime.fromisoformat(text).timestamp()) * 1_000_000_000

    def time_ns(self) -> int:
        return self._ns

    def monotonic_ns(self) -> int:
        return 0


def no_artifacts(path: str) -> ArtifactStore:
    raise AssertionError(f"nobody asked for artifacts of {path}")


@dataclass
class Runs:
    """One runs directory. `opened` logs are let go of at the end of a test."""

    path: Path
    clock: SetClock = field(default_factory=SetClock)
    opened: list[DiskRunLog] = field(default_factory=list)
    seen: list[Record] = field(default_factory=list)
    """What the log that was opened last gave first."""

    @property
    def archive(self) -> Archive:
        return Archive(self.path)

    def store(
        self,
        *,
        durability: Durability = "process",
        storage: Storage = POSIX,
    ) -> DiskRunStore:
        return DiskRunStore(
            self.path,
            clock=self.clock,
            artifacts=no_artifacts,
            durability=durability,
            storage=storage,
        )

    def open(
        self,
        run_id: str = "r-1",
        *,
        durability: Durability = "process",
        storage: Storage = POSIX,
        catalog: str = CATALOG,
    ) -> DiskRunLog:
        store = self.store(durability=durability, storage=storage)
        log = store.create(
            run_id, header=RunHeader({"catalog_revision": digest(catalog)}), catalog=catalog
        )
        self.opened.append(log)
        self.seen = [*log.news()]
        log.put_catalog(digest(catalog), catalog)
        return log

    def record(self, number: int, **more: Any) -> dict[str, Any]:
        return {"type": "route.decided", "time": self.clock.time, "number": number, **more}

    def numbers(self, run_id: str = "r-1") -> list[int]:
        """The `number` of every record of a run, in order."""
        return [record["number"] for record in self.archive.records(run_id)]

    def bytes(self, name: str, run_id: str = "r-1") -> bytes:
        return (self.path / run_id / name).read_bytes()

    def release(self) -> None:
        for log in self.opened:
            log.release()


@pytest.fixture
def runs(tmp_path: Path) -> Any:
    made = Runs(tmp_path / "runs")
    yield made
    made.release()


@pytest.fixture
def make_runs(tmp_path: Path) -> Any:
    """A new, empty runs directory at each call: for properties, where one test is many examples."""
    made: list[Runs] = []

    def make() -> Runs:
        made.append(Runs(tmp_path / f"runs-{len(made)}"))
        return made[-1]

    yield make
    for one in made:
        one.release()


@pytest.fixture
def umask() -> Any:
    """Sets the umask for one test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)
