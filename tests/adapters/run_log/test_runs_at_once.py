"""Runs that several threads begin, copy and look at in the same moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bundle_router.adapters.archive import Archive
from bundle_router.adapters.archive.run_transfer import copy_run
from bundle_router.core.records.run_header import RunHeader
from bundle_router.errors import RequestError

from tests.adapters.run_log.conftest import CATALOG, REVISION, Runs
from tests.at_once import at_once

MANY = 4
ROUNDS = 25


def test_a_run_begun_by_many_where_a_folder_was_left_is_one_run(
    make_runs: Callable[[], Runs],
) -> None:
    for _ in range(ROUNDS):
        runs = make_runs()
        (runs.path / "r-1").mkdir(parents=True, mode=0o700)
        (runs.path / "r-1" / "catalog.json").write_text("left by an early version")
        stores = [runs.store() for _ in range(MANY)]

        def begin(number: int, runs: Runs = runs, stores: Any = stores) -> int | None:
            log = stores[number].create(
                "r-1", header=RunHeader({"catalog_revision": REVISION}), catalog=CATALOG
            )
            runs.opened.append(log)
            seq: int | None = log.append("routing", runs.record(number)).seq
            return seq

        assert sorted(at_once(MANY, begin), key=str) == [*range(MANY)]
        assert sorted(runs.numbers()) == [*range(MANY)]
        for store in stores:
            store.close()


def test_a_run_that_many_import_at_once_is_imported_whole(runs: Runs, tmp_path: Path) -> None:
    for number in range(8):
        runs.open().append("routing", runs.record(number))
    runs.release()
    for count in range(ROUNDS):
        target = Archive(tmp_path / str(count))
        done = at_once(MANY, lambda _, target=target: copy_run(runs.archive, "r-1", target))  # type: ignore[misc]
        assert sorted(map(type, done), key=str) == [type(None), *[RequestError] * (MANY - 1)]
        assert target.verify("r-1").ok
        assert [record["number"] for record in target.records("r-1")] == [*range(8)]
        assert [path.name for path in target.root.iterdir()] == ["r-1"]


LOOK = (
    "import sys; from bundle_router.adapters.archive import Archive; archive = Archive(sys.argv[1])"
)


def test_readers_do_not_take_each_other_for_a_writer(runs: Runs) -> None:
    runs.open().append("routing", runs.record(1))
    runs.release()
    again = f"{LOOK}; print(flush=True)\nwhile True: archive.summary('r-1')"
    command = [sys.executable, "-c", again, str(runs.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        seen = {runs.archive.summary("r-1").state for _ in range(2000)}
        other.kill()
    assert seen == {"ended"}
