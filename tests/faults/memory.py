"""F-21: a server that has no memory left (as under `prlimit --as`): a typed result, and all is well
afterwards.

    python tests/faults/memory.py [--quick]

The server is asked for results that it has no memory to make, of sizes that it fails at in several
places, while another is called. Holds when every call comes to a result, the other's to its own,
and the next call works, or the one after it where the server was slow to end. What is not looked at
is a router that has no memory left itself: the JSON parser it is built on then ends the process, as
a kill does, and what was recorded stays (`kill9.py`). Prints a summary as JSON and exits with 1
when something is broken.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from bundle_router import Router, Step
from oversized import elsewhere, write_config
from rig import Ahead, Verdict, quick

SERVER_KIB: Final = 400_000
SIZES: Final = (1_000_000_000, 300_000_000, 150_000_000, 100_000_000, 50_000_000, 20_000_000)


async def call(router: Router, name: str, **given: object) -> str:
    result = await router.call("r", name, given)
    return f"{result.outcome}/{result.code}" if result.code else result.outcome


async def run(config: Path, folder: Path, verdict: Verdict, sizes: tuple[int, ...]) -> Counter[str]:
    found: Counter[str] = Counter()
    opened = Router.open(config, runs=folder / "runs", workspace=folder, development="unpinned")
    async with opened as router:
        await router.route(Step(run_id="r", workflow="w", role="r", step="s"))
        verdict.check(await call(router, "s.echo", text="x") == "ok", "before")
        for size in sizes:
            big = asyncio.create_task(call(router, "s.big", bytes=size))
            other = await call(router, "t.echo", text="x")
            if not (await asyncio.wait((big,), timeout=3))[0]:  # it has no memory for an answer
                Ahead.seconds += 61
                await call(router, "t.echo", text="x")  # which wakes the loop of the servers
            said = await big
            found[said] += 1
            verdict.check(
                said != "ok", f"{size:,} bytes: the server had more memory than it may have"
            )
            verdict.check(other == "ok", f"{size:,} bytes: another server's call came to {other}")
            after = await call(router, "s.echo", text="x")
            if (
                after == "unavailable/connection_lost"
            ):  # it was slow to die, and took this call with it
                after = await call(router, "s.echo", text="x")
            verdict.check(after == "ok", f"{size:,} bytes: the next call came to {after}")
    return found


def write_limited_config(folder: Path, url: str) -> Path:
    """With a server that may have so much memory, and its tool that takes some."""
    config: Path = write_config(folder, url, url)
    python = json.dumps(sys.executable)
    limited = json.dumps(f'ulimit -v {SERVER_KIB}; exec {sys.executable} "$@"')
    for name, old, new in (
        (
            "servers",
            f"command = {python}\nargs = [",
            f'command = "/bin/sh"\nargs = ["-c", {limited}, "sh", ',
        ),
        ("bundles", '"s.echo"', '"s.big", "s.echo"'),
    ):
        text = (config / f"{name}.toml").read_text(encoding="utf-8")
        (config / f"{name}.toml").write_text(text.replace(old, new), encoding="utf-8")
    return config


def main() -> None:
    short, verdict = quick(), Verdict()
    with tempfile.TemporaryDirectory() as name, elsewhere() as url:
        config = write_limited_config(Path(name), url)
        Ahead.begin()
        found = asyncio.run(run(config, Path(name), verdict, SIZES[:2] if short else SIZES))
    verdict.end(came_to=dict(found))


if __name__ == "__main__":
    main()
