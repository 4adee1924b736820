"""Workers, branches, sub-runs, retries and crashes from a seed, over each store, against what must
hold (`schedules`).

A failing seed is named, and `BUNDLE_ROUTER_SEED=<seed>` runs it alone. `BUNDLE_ROUTER_LONG=1`:
100,000 schedules in memory and as many in a directory, 10,000 in a database (which takes 15 times
as long), in parts that run side by side. A schedule costs 9 ms of CPU in memory (100,000: 15
minutes), 25 ms in a directory (42 minutes).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from bundle_router.adapters.artifact_files import RunArtifacts
from bundle_router.adapters.run_log import DiskRunStore
from bundle_router.core.records.chain import FILES
from bundle_router.ports import RunLog, RunStore
from bundle_router.testing import FakeClock, MemoryRuns, MemoryRunStore

from tests.engine.schedules import simulate
from tests.engine.simulation import Place

LONG: Final = bool(os.environ.get("BUNDLE_ROUTER_LONG"))
SEED: Final = os.environ.get("BUNDLE_ROUTER_SEED")
PARTS: Final = 8 if LONG else 1
SCHEDULES: Final = int(os.environ.get("BUNDLE_ROUTER_SCHEDULES", "100000"))
POSTGRESQL: Final = os.environ.get("BUNDLE_ROUTER_TEST_POSTGRESQL", "").replace("+psycopg", "", 1)
NO_SERVER: Final = "BUNDLE_ROUTER_TEST_POSTGRESQL does not name a server; .ci/run starts one"
HALF_A_LINE: Final = b'{"schema":"bundle-router.call/1","type":"call.fini'


class MemoryPlace(Place):
    """Runs in memory."""

    def __init__(self) -> None:
        self._runs = MemoryRuns()

    def store(self) -> RunStore:
        return MemoryRunStore(self._runs)

    def kill(self, store: RunStore, logs: Sequence[RunLog], dice: random.Random | None) -> None:
        assert isinstance(store, MemoryRunStore)
        store.kill()

    def files(self, run_id: str) -> Mapping[str, list[bytes]] | None:
        run = self._runs.runs.get(run_id)
        return run.files() if run is not None else None


class DirectoryPlace(Place):
    """Runs in a directory. Who is killed in the midst of a write leaves half a line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self) -> RunStore:
        def artifacts(path: str) -> RunArtifacts:
            return RunArtifacts(path)

        return DiskRunStore(self._folder, clock=FakeClock(), artifacts=artifacts)

    def kill(self, store: RunStore, logs: Sequence[RunLog], dice: random.Random | None) -> None:
        for log in logs:
            log.release()  # type: ignore[attr-defined]  # as the kernel does
            if dice is not None and dice.random() < 0.3:
                with Path(log.path, dice.choice(list(FILES.values()))).open("ab") as file:
                    file.write(HALF_A_LINE)
        store.close()

    def files(self, run_id: str) -> Mapping[str, list[bytes]] | None:
        folder = self._folder / run_id
        if not folder.is_dir():
            return None
        lines = {
            name: (folder / name).read_bytes().splitlines(keepends=True) for name in FILES.values()
        }
        return {name: [line for line in own if line.endswith(b"\n")] for name, own in lines.items()}


class DatabasePlace(Place):
    """Runs in PostgreSQL, in a schema of this process's own.

    Commits are not waited for: the machine does not fail.
    """

    def __init__(self, url: str, connection: Any) -> None:
        self._url, self._connection = url, connection

    def store(self) -> RunStore:
        from bundle_router.adapters.postgres import PostgresRunStore

        return PostgresRunStore(self._url, clock=FakeClock(), dead_after_s=0.0)

    def kill(self, store: RunStore, logs: Sequence[RunLog], dice: random.Random | None) -> None:
        store.close()

    def files(self, run_id: str) -> Mapping[str, list[bytes]] | None:
        query = "select file, line from router_records where run_id = %s order by seq"
        rows = self._connection.execute(query, (run_id,)).fetchall()
        if not self._connection.execute(
            "select 1 from router_runs where run_id = %s", (run_id,)
        ).fetchall():
            return None
        return {
            name: [line.encode() + b"\n" for own, line in rows if own == file]
            for file, name in FILES.items()
        }

    def clear(self) -> None:
        self._connection.execute("delete from router_runs")


@pytest.fixture
def database() -> Iterator[Callable[[int], Place]]:
    if not POSTGRESQL:
        pytest.skip(NO_SERVER)
    import psycopg
    from bundle_router.adapters.postgres.schema import migrate

    name = f"simulated_{os.getpid()}"
    options = f"options=-csearch_path%3D{name}%20-csynchronous_commit%3Doff"
    with psycopg.connect(POSTGRESQL, autocommit=True) as connection:
        connection.execute(f"create schema {name}")
        connection.execute(f"set search_path to {name}")
        migrate(connection)
        try:
            url = f"{POSTGRESQL}{'&' if '?' in POSTGRESQL else '?'}{options}"
            place = DatabasePlace(url, connection)
            yield lambda _seed: place
        finally:
            connection.execute(f"drop schema {name} cascade")


def seeds(few: int, part: int, many: int = SCHEDULES) -> Sequence[int]:
    return [int(SEED)] if SEED else range(part, many if LONG else few, PARTS)


@pytest.mark.parametrize("part", range(PARTS))
def test_what_must_hold_holds_in_memory_whatever_the_schedule(part: int) -> None:
    assert simulate(seeds(60, part), lambda _seed: MemoryPlace())


@pytest.mark.parametrize("part", range(PARTS))
def test_what_must_hold_holds_in_a_directory_whatever_the_schedule(
    part: int, tmp_path: Path
) -> None:
    assert simulate(seeds(40, part), lambda seed: DirectoryPlace(tmp_path / str(seed)))


@pytest.mark.parametrize("part", range(PARTS))
def test_what_must_hold_holds_in_a_database_whatever_the_schedule(
    part: int, database: Callable[[int], Place]
) -> None:
    assert simulate(seeds(8, part, SCHEDULES // 10), database)
