"""Workers of a workflow engine, each a process of its own that is told what to do by lines of JSON.

Run as a program it starts a worker for each line `CONFIG RUNS STORE EFFECTS PIPE` (STORE: a URL, or
"-" for the directory; PIPE.in and PIPE.out are named pipes), and ends them with its own standard
input. Python and the package are loaded once: a worker is a fork of that, which opens a router of
its own. Its tools `s.once` and `s.again` have one effect: a line in the file EFFECTS. Told to, it
kills itself before or behind that line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from typing import IO, Any

from bundle_router import Router, Step
from bundle_router.errors import RouterError

dies = ""


def effect(path: str, key: str) -> str:
    if dies == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(path, "ab", buffering=0) as file:  # noqa: PTH123 - one write
        file.write(f"{key}\n".encode())
    if dies == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"did {key}"


class Worker:
    """What the lines ask for."""

    def __init__(self, router: Router) -> None:
        self.router = router

    def route(self, step: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter_ns()
        decision = self.router.route_sync(Step(**step))
        took = (time.perf_counter_ns() - began) / 1000
        return {
            "id": decision.decision_id,
            "seq": decision.seq,
            "bundles": decision.bundle_ids,
            "us": took,
        }

    def route_often(self, step: dict[str, Any], count: int) -> list[str]:
        return sorted({self.router.route_sync(Step(**step)).decision_id for _ in range(count)})

    def call(self, tool: str, key: str, run: str = "r", **more: Any) -> dict[str, Any]:
        global dies
        dies = more.pop("dies", "")
        result = self.router.call_sync(
            run, tool, {"key": more.pop("argument", key)}, key=key, **more
        )
        return {
            "id": result.call_id,
            "outcome": result.outcome,
            "text": result.text,
            "from": result.cached_from,
        }

    def workflow(self, steps: int) -> list[dict[str, Any]]:
        """Steps that are each routed and then call both tools, all under keys: what an engine
        carries on elsewhere.
        """
        done = []
        for number in range(steps):
            step = {
                "run_id": "r",
                "workflow": "w",
                "role": "wide",
                "step": f"s{number}",
                "key": f"step-{number}",
            }
            done.append(self.route(step))
            done += [self.call(tool, f"{tool}-{number}") for tool in ("s.once", "s.again")]
        return done

    def close(self, run: str = "r") -> dict[str, Any]:
        end = self.router.close_run_sync(run)
        return {"ended": end.ended, "others": [other.pid for other in end.others]}


def work(config: str, runs: str, store: str, effects: str, pipe: str) -> None:
    def once(key: str) -> str:
        """Do it once."""
        return effect(effects, key)

    def again(key: str) -> str:
        """Do it, once more if need be."""
        return effect(effects, key)

    with open(f"{pipe}.out", "w", buffering=1) as said:  # noqa: PTH123 - a pipe
        said.write(f"{os.getpid()}\n")
        with (
            open(f"{pipe}.in") as asked,  # noqa: PTH123
            Router.open(
                config, local={"s": [once, again]}, runs=runs, store=store if store != "-" else None
            ) as router,
        ):
            answer_all(Worker(router), asked, said)


def answer_all(worker: Worker, asked: Iterable[str], said: IO[str]) -> None:
    for line in asked:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except RouterError as error:
            pid = getattr(error, "pid", None)
            answer = {"error": type(error).__name__, "message": error.message, "pid": pid}
        said.write(json.dumps(answer) + "\n")


def main() -> None:
    with Router.open(None) as router:  # loads what workers need
        router.explain(Step(run_id="r", workflow="w", role="r", step="s"), "bundle:repo.readonly")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
    children = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            work(*line.split())
            os._exit(0)
        children.append(pid)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
