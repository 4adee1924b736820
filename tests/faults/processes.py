"""F-21: no process and no thread left to start, and a server that forks until it can't: a typed
result, and all is well afterwards.

    python tests/faults/processes.py [--quick]

The user may have so many tasks (RLIMIT_NPROC) and has all of them but a few, so that starting a
server, its supervisor and threads of our own fail at every possible place: for each number that is
left. Then a server takes all there are. Holds when every call comes to a result or to one of the
router's own errors, and calls work once the tasks are back. The limit does not hold for root, who
takes another user's place for it. Prints a summary as JSON and exits with 1 when something is
broken.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from bundle_router import Router, Step
from exhaustion import call
from oversized import elsewhere, write_config
from rig import Verdict, quick

NOBODY: Final = 54_321
"""A user that has no other processes."""
ROOM: Final = 60
AS_NOBODY: Final = (
    "setpriv", f"--reuid={NOBODY}", "--clear-groups", "--inh-caps=-all,+dac_override",
    "--ambient-caps=-all,+dac_override",
)  # fmt: skip


def tasks_of_user() -> int:
    """Processes and threads of this user, as the limit counts them."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid == os.getuid():
                count += sum(1 for _ in (folder / "task").iterdir())
        except OSError:
            continue  # it is gone by now
    return count


def take_all_but(left: int) -> list[int]:
    """Starts processes until `left` more could be started."""
    taken: list[int] = []
    try:
        while True:
            pid = os.fork()
            if pid == 0:
                while True:
                    signal.pause()
            taken.append(pid)
    except OSError:
        pass
    for _ in range(min(left, len(taken))):
        end(taken.pop())
    return taken


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def write_reachable_config(folder: Path, url: str) -> Path:
    """With a command that is found by who may not look into the folder that Python lies in."""
    config: Path = write_config(folder, url, url)
    python = json.dumps(sys.executable)
    servers = (config / "servers.toml").read_text(encoding="utf-8")
    servers = servers.replace(
        f"command = {python}\nargs = [", f'command = "/usr/bin/env"\nargs = [{python}, '
    )
    (config / "servers.toml").write_text(servers, encoding="utf-8")
    return config


def opened(config: Path, folder: Path, name: str) -> Router:
    return Router.open(
        config, runs=folder / f"runs-{name}", workspace=folder, development="unpinned"
    )


async def routed(router: Router, run_id: str) -> str:
    await router.route(Step(run_id=run_id, workflow="w", role="r", step="s"))
    return run_id


async def trial(config: Path, folder: Path, verdict: Verdict, left: int) -> list[str]:
    """Calls with so many tasks left."""
    async with opened(config, folder, str(left)) as router:
        run_id = await routed(router, "r")
        taken = take_all_but(left)
        try:
            said = [await call(router, run_id, name) for name in ("s.echo", "t.echo")]
        finally:
            for pid in taken:
                end(pid)
        for name in ("s.echo", "t.echo"):
            after = await call(router, run_id, name)
            verdict.check(after == "ok", f"with {left} left: {name} afterwards is {after}")
    return said


async def bombed(config: Path, folder: Path, verdict: Verdict) -> str:
    """A server takes all there is: another run's server can't be started until the first is
    gone.
    """
    async with opened(config, folder, "bombed") as router:
        for run_id in ("bomb", "other"):
            await routed(router, run_id)
        before = tasks_of_user()
        result = await router.call("bomb", "s.fork", {})
        verdict.check(result.ok and int(result.text) > 0, f"the bomb: {result}")
        said: str = await call(router, "other", "s.echo")
        verdict.check(said != "ok", "nothing was left, and yet a server was started")
        await router.close_run("bomb")
        verdict.check(tasks_of_user() <= before + 5, "what the server started is still there")
        after = await call(router, "other", "s.echo")
        verdict.check(after == "ok", f"after the bomb: {after}")
        return said


async def run(config: Path, folder: Path, verdict: Verdict, numbers: range) -> Counter[str]:
    found: Counter[str] = Counter()
    for left in numbers:
        found.update(await trial(config, folder, verdict, left))
    found["bombed: " + await bombed(config, folder, verdict)] += 1
    return found


def main() -> None:
    short, verdict = quick(), Verdict()
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            verdict.end(skipped="root has no limit, and there is no setpriv to be another user")
        os.execvp(AS_NOBODY[0], [*AS_NOBODY, sys.executable, *sys.argv])
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    with tempfile.TemporaryDirectory() as name, elsewhere() as url:
        resource.setrlimit(resource.RLIMIT_NPROC, (tasks_of_user() + ROOM, hard))
        try:
            config = write_reachable_config(Path(name), url)
            found = asyncio.run(run(config, Path(name), verdict, range(0, 16, 5 if short else 1)))
        finally:
            resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    verdict.check(any("/" in said or "Error" in said for said in found), "nothing was ever refused")
    verdict.end(came_to=dict(found))


if __name__ == "__main__":
    main()
