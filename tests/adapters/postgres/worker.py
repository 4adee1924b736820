"""A worker as a process: appends numbered records to a run and says, line by line, which the store
acknowledged.

worker.py URL RUN FIRST COUNT [WAIT_S]
"""

from __future__ import annotations

import sys
import time

from bundle_router.adapters.postgres import PostgresRunStore
from bundle_router.adapters.system import SystemClock
from bundle_router.errors import CorruptRun, KeyConflict, RunBusy, StorageError


def work(url: str, run_id: str, first: int, count: int) -> None:
    store = PostgresRunStore(url, clock=SystemClock(), wait_s=2.0)
    log = None
    for number in range(first, first + count):
        for _ in range(3_000):
            try:
                if log is None:
                    log = store.open(run_id)
                    assert log is not None
                    list(log.news())
                record = {"type": "route.decided", "number": number, "key": f"k{number}"}
                done = log.append("routing", record, wait_s=2.0)
                print(f"{done.seq} {done.hash} {number}", flush=True)
                break
            except KeyConflict:  # an earlier attempt was written after all
                print(f"there - {number}", flush=True)
                break
            except (StorageError, RunBusy) as error:
                print(f"error {type(error).__name__} {getattr(error, 'kind', '')}", flush=True)
                time.sleep(0.1)
            except CorruptRun as error:
                print(f"history {error.message}", flush=True)
                return
    store.close()


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
