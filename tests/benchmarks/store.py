"""What an append costs in each store, beside the floor: one INSERT of the same bytes and its
commit, same connection.

    python tests/benchmarks/store.py postgresql://… [--records 2000]

Prints, for 3 KB records, microseconds (median, 99th) of the floor, of the store alone, and of two
handles that take turns on one run. A directory's floor is one write() of the same bytes. All take
turns, in one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from bundle_router.adapters.postgres import PostgresRunStore
from bundle_router.adapters.system import SystemClock
from bundle_router.core.records.chain import encode_record, genesis, seal_text
from bundle_router.core.records.run_header import RunHeader

CATALOG = "{}"
HEADER = RunHeader({"catalog_revision": "sha256:" + "0" * 64})
RECORD: dict[str, Any] = {"type": "route.decided", "justification": "x" * 3000}


def timed(ways: dict[str, Callable[[int], object]], count: int) -> dict[str, float]:
    """Runs every way once in each of `count` rounds, so that a noisy machine moves them all; prints
    a line of each and returns their medians in microseconds.
    """
    took: dict[str, list[float]] = {what: [] for what in ways}
    for number in range(count + 50):
        for what, each in ways.items():
            began = time.perf_counter_ns()
            each(number)
            took[what].append((time.perf_counter_ns() - began) / 1000)
    medians = {}
    for what, all_of_it in took.items():
        kept = sorted(all_of_it[50:])
        medians[what] = statistics.median(kept)
        print(f"{what:40} median {medians[what]:8.1f} us  p99 {kept[int(count * 0.99)]:9.1f} us")
    return medians


def sealed() -> Iterator[bytes]:
    """Lines as a run has them, without end."""
    text, head, seq = encode_record(RECORD), genesis("floor"), 0
    while True:
        line, head = seal_text(text, seq, head)
        seq += 1
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--records", type=int, default=2000)
    arguments = parser.parse_args()
    url = arguments.url.replace("postgresql+psycopg://", "postgresql://", 1)
    schema = f"bench_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create schema {schema}")
        try:
            measure(
                f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{schema}",
                arguments.records,
            )
        finally:
            connection.execute(f"drop schema {schema} cascade")


def measure(url: str, count: int) -> None:
    stores = [PostgresRunStore(url, clock=SystemClock()) for _ in range(2)]
    alone = stores[0].create("alone", header=HEADER, catalog=CATALOG)
    turns = [stores[0].create("turns", header=HEADER, catalog=CATALOG), stores[1].open("turns")]
    lines = sealed()
    insert = "insert into floor values ('floor', %s, %s)"
    with stores[0].pool.lend(float("inf")) as connection, tempfile.NamedTemporaryFile() as file:
        connection.execute(
            "create table floor (run_id text, seq bigint, line text, primary key (run_id, seq))"
        )
        found = timed(
            {
                "floor: INSERT and commit": lambda at: connection.execute(
                    insert, (at, next(lines).decode())
                ),
                "PostgreSQL: append": lambda _: append_to(alone),
                "PostgreSQL: append, two take turns": lambda at: append_to(turns[at % 2]),
                "floor of a directory: write()": lambda _: os.write(file.fileno(), next(lines)),
            },
            count,
        )
    floor, own, shared, _ = found.values()
    print(f"{'against the floor':40} alone {own / floor:.2f}, in turns {shared / floor:.2f}")
    for store in stores:
        store.close()


def append_to(log: Any) -> None:
    log.append("routing", dict(RECORD))


if __name__ == "__main__":
    main()
