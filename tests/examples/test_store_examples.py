"""The set-ups of the stores run, and a keyed step is decided once in each."""

from __future__ import annotations

import asyncio
import os
import runpy
from pathlib import Path
from typing import Any

import pytest

STORES = Path(__file__).parent / "stores"
SERVER = os.environ.get("BUNDLE_ROUTER_TEST_POSTGRESQL", "").replace(
    "postgresql+psycopg://", "postgresql://", 1
)


def example(name: str) -> Any:
    return runpy.run_path(str(STORES / name))["main"]


def test_one_process() -> None:
    first, again = asyncio.run(example("one_process.py")())
    assert first == again


def test_several_workers_of_one_machine() -> None:
    one, other = example("several_workers.py")()
    assert one == other
    assert len(set(one.values())) == 3


@pytest.mark.skipif(
    not SERVER, reason="BUNDLE_ROUTER_TEST_POSTGRESQL does not name a server; .ci/run starts one"
)
def test_several_machines(tmp_path: Path) -> None:
    import psycopg

    schema = f"machines_{os.getpid()}"
    with psycopg.connect(SERVER, autocommit=True) as connection:
        connection.execute(f"create schema {schema}")
        try:
            where = f"{SERVER}{'&' if '?' in SERVER else '?'}options=-csearch_path%3D{schema}&objects=file://{tmp_path}"
            one, other = example("several_machines.py")(where)
            assert one == other
            assert len(set(one.values())) == 3
            connection.execute(f"set search_path to {schema}")
            assert connection.execute("select count(*) from router_records").fetchone() == (3,)
        finally:
            connection.execute(f"drop schema {schema} cascade")
