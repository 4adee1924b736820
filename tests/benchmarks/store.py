"""What an append costs in each store, beside the floor: one INSERT of the same bytes and its commit, same connection.

    python tests/benchmarks/store.py postgresql://… [--records 2000]

Prints, for 3 KB records: appends a second and microseconds (median, 99th) of the floor, of the store alone, and of two
handles that take turns on one run. A directory's floor is one write() of the same bytes.
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
from bundle_router.adapters.clock import SystemClock
from bundle_router.adapters.media import describe
from bundle_router.adapters.postgres import PostgresRunStore
from bundle_router.core.records.chain import encode_record, genesis, seal_text

CATALOG = "{}"
HEADER = {"catalog_revision": "sha256:" + "0" * 64}
RECORD: dict[str, Any] = {"type": "route.decided", "justification": "x" * 3000}


def timed(what: str, each: Callable[[int], object], count: int) -> float:
    """Prints the line of a measurement; returns its median in microseconds."""
    for number in range(50):
        each(number)
    took = []
    for number in range(50, 50 + count):
        began = time.perf_counter_ns()
        each(number)
        took.append((time.perf_counter_ns() - began) / 1000)
    took.sort()
    median = statistics.median(took)
    print(
        f"{what:44} {1e6 / (sum(took) / count):8,.0f}/s  median {median:8.1f} us  p99 {took[int(count * 0.99)]:8.1f} us"
    )
    return median


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
            measure(f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{schema}", arguments.records)
        finally:
            connection.execute(f"drop schema {schema} cascade")


def measure(url: str, count: int) -> None:
    store = PostgresRunStore(url, clock=SystemClock(), describe=describe)
    log = store.create("alone", header=HEADER, catalog=CATALOG)
    lines = sealed()
    with store.pool.lent(float("inf")) as connection:
        connection.execute("create table floor (run_id text, seq bigint, line text, primary key (run_id, seq))")
        insert = "insert into floor values ('floor', %s, %s)"
        floor = timed(
            "floor: INSERT and commit", lambda at: connection.execute(insert, (at, next(lines).decode())), count
        )
    alone = timed("PostgreSQL: append", lambda _: log.append("routing", dict(RECORD)), count)
    log.close()
    others = [PostgresRunStore(url, clock=SystemClock(), describe=describe) for _ in range(2)]
    created = others[0].create("turns", header=HEADER, catalog=CATALOG)
    handles = [created, others[1].open("turns")]
    turns = timed("PostgreSQL: append, two take turns", lambda at: append_to(handles[at % 2]), count)
    print(f"{'against the floor':44} alone {alone / floor:.2f}, in turns {turns / floor:.2f}")
    for other in (store, *others):
        other.close()
    with tempfile.NamedTemporaryFile() as file:
        fd = file.fileno()
        timed("floor of a directory: write()", lambda _: os.write(fd, next(lines)), count)


def append_to(log: Any) -> None:
    log.append("routing", dict(RECORD))


if __name__ == "__main__":
    main()
