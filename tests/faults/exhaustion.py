"""F-21: no descriptor left for a tool server, and none for its connection: a typed result, and all
is well afterwards. (Processes and threads: `processes.py`; memory: `memory.py`.)

    python tests/faults/exhaustion.py [--quick]

The process may have 64 descriptors (as under `prlimit --nofile=64`) and takes all of them but a
few, so that starting a process, connecting, and opening files fail at every possible place: for
each number that is left. Holds when every call comes to a result or to one of the router's own
errors, and calls work once the descriptors are back. Prints a summary as JSON and exits with 1 when
something is broken.
"""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
from collections import Counter
from pathlib import Path

from bundle_router import Router, RouterError, Step
from oversized import elsewhere, write_config
from rig import Verdict, quick

LIMIT = 64


def take_all_but(left: int) -> list[int]:
    """Opens files until `left` more could be opened."""
    taken: list[int] = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for _ in range(min(left, len(taken))):
            os.close(taken.pop())
    return taken


async def call(router: Router, run_id: str, name: str) -> str:
    try:
        result = await router.call(run_id, name, {"text": "x"})
    except RouterError as refused:
        return type(refused).__name__
    return f"{result.outcome}/{result.code}" if result.code else result.outcome


async def trial(router: Router, verdict: Verdict, left: int) -> list[str]:
    run_id = f"r-{left}"
    await router.route(Step(run_id=run_id, workflow="w", role="r", step="s"))
    taken = take_all_but(left)
    try:
        said = [await call(router, run_id, name) for name in ("s.echo", "t.echo")]
    finally:
        for descriptor in taken:
            os.close(descriptor)
    for name in ("s.echo", "t.echo"):
        after = await call(router, run_id, name)
        verdict.check(after == "ok", f"with {left} left: {name} afterwards is {after}")
    await router.close_run(run_id)
    return said


async def run(config: Path, folder: Path, verdict: Verdict, numbers: range) -> Counter[str]:
    found: Counter[str] = Counter()
    for left in numbers:
        # A router each: a server that failed five times is left alone for a while, which is not
        # what is looked at here.
        opened = Router.open(
            config, runs=folder / f"runs-{left}", workspace=folder, development="unpinned"
        )
        async with opened as router:
            await router.route(Step(run_id="first", workflow="w", role="r", step="s"))
            verdict.check(await call(router, "first", "t.echo") == "ok", "before")
            found.update(await trial(router, verdict, left))
    return found


def main() -> None:
    short, verdict = quick(), Verdict()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryDirectory() as name, elsewhere() as url:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, hard))
        try:
            config = write_config(Path(name), url, url)
            found = asyncio.run(run(config, Path(name), verdict, range(0, 20, 4 if short else 1)))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    verdict.check(any(not said.startswith("ok") for said in found), "nothing was ever refused")
    verdict.end(came_to=dict(found))


if __name__ == "__main__":
    main()
