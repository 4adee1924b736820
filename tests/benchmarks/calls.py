"""What the library's own call costs beside an older checkout's:
`python tests/benchmarks/calls.py --before CHECKOUT`.

A process of each checkout, with the interpreter and the packages of this one, makes the same calls
in turn; the figures are the ratios of their CPU a call, each of a pair of neighbouring rounds. The
tool says what it was told: a function of the caller's, on a stdio server, on an HTTP server. A
caller is a task of a loop, or a thread without one. Records go to a run directory, as they do for
everybody.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.gateways import (
    BUNDLE,
    LIMITS,
    POLICY,
    ROOT,
    ROUTE,
    STDIO_SERVER,
    process,
    tool_server,
)

CALLER: Final = """
import asyncio, importlib, os, sys, time
folder, home, kind = sys.argv[1:]
name = "bundle_router" if os.path.isdir(home + "/router/bundle_router") else "router"
package = importlib.import_module(name)
assert package.__file__.startswith(home + "/"), package.__file__
from pydantic import BaseModel
Router, Step, SAID = package.Router, package.Step, {"text": "hi"}
tools = importlib.import_module("bundle_router.tool") if name == "bundle_router" else package
class Said(BaseModel):
    text: str
def echo(said, context):
    return tools.ToolOutput((tools.Text(said.text),))
local = {"own": [tools.LocalTool("echo", "Says what it was told.", Said, echo)]}
unpinned = {"development": True, "pins": "trusted-may-skip"} if name == "router" else {"development": "unpinned"}
places = {"runs": folder + "-runs-" + kind + os.path.basename(home), "workspace": folder, "local": local, **unpinned}

step, TRIES = Step(run_id="r", workflow="w", role="r", step="s"), 60

async def asynchronous():
    async with Router.open(folder + "/config", **places) as router:
        while line := sys.stdin.readline():
            tool, callers, each = line.split()
            for _ in range(TRIES):  # a loaded machine's servers list after the first decision
                await router.route(step)
                await router.tools("r")
                if (await router.call("r", tool, SAID)).ok:
                    break
            async def caller():
                for _ in range(int(each)):
                    result = await router.call("r", tool, SAID)
                    assert result.ok, result
            before = time.process_time()
            await asyncio.gather(*(caller() for _ in range(int(callers))))
            print(time.process_time() - before, flush=True)

def synchronous():
    with Router.open(folder + "/config", **places) as router:
        while line := sys.stdin.readline():
            tool, _, each = line.split()
            for _ in range(TRIES):
                router.route_sync(step)
                router.tools_sync("r")
                if router.call_sync("r", tool, SAID).ok:
                    break
            before = time.process_time()
            for _ in range(int(each)):
                result = router.call_sync("r", tool, SAID)
                assert result.ok, result
            print(time.process_time() - before, flush=True)

if kind == "sync":
    synchronous()
else:
    asyncio.run(asynchronous())
"""
WAYS: Final = (
    ("local, one task", "own.echo", 1, False),
    ("local, one thread", "own.echo", 1, True),
    ("stdio, one task", "pipe.echo", 1, False),
    ("HTTP, one task", "bench.echo", 1, False),
    ("HTTP, 16 tasks", "bench.echo", 16, False),
    ("HTTP, one thread", "bench.echo", 1, True),
)
TOOLS: Final = ["own.echo", "pipe.echo", "bench.echo"]


def write_config(folder: Path, url: str) -> None:
    (folder / "config").mkdir(parents=True)
    command = (
        f"command = {json.dumps(sys.executable)}\nargs = {json.dumps(['-c', STDIO_SERVER, '18'])}"
    )
    servers = (
        f'[servers.bench]\nurl = "{url}"\ntrust = "trusted"\n[servers.pipe]\ntransport ='
        f' "stdio"\n{command}\n'
    )
    servers += 'trust = "trusted"\n[servers.own]\ntransport = "local"\ntrust = "trusted"\n'
    files = {
        "servers": servers,
        "bundles": f"{BUNDLE}{json.dumps(TOOLS)}\n",
        "routes": ROUTE,
        "policy": POLICY,
        "router": LIMITS,
    }
    for file, text in files.items():
        (folder / "config" / f"{file}.toml").write_text(text, encoding="utf-8")


@contextlib.contextmanager
def caller(folder: Path, checkout: str, *, sync: bool) -> Iterator[subprocess.Popen[str]]:
    """A process of a checkout that makes calls when it is told to, and answers with seconds of
    CPU.
    """
    kind = "sync" if sync else "async"
    with process(
        sys.executable, "-c", CALLER, str(folder), checkout, kind, checkout=checkout
    ) as child:
        yield child


def used_s(child: subprocess.Popen[str], tool: str, callers: int, each: int) -> float:
    assert child.stdin is not None
    assert child.stdout is not None
    print(tool, callers, each, file=child.stdin, flush=True)
    return float(child.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, help="an older checkout")
    parser.add_argument("--calls", type=int, default=192, help="calls a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="a part of a way's name")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, url = stack.enter_context(tool_server(18))
        write_config(folder, url)
        before = str(Path(options.before).resolve())
        for name, tool, callers, sync in (way for way in WAYS if options.only in way[0]):
            with caller(folder, ROOT, sync=sync) as now, caller(folder, before, sync=sync) as then:
                rounds = []
                for _ in range(options.rounds + 1):
                    each = max(1, options.calls // callers)
                    rounds.append(
                        [
                            used_s(child, tool, callers, each) / each / callers
                            for child in (now, then)
                        ]
                    )
                ratios = sorted(one / other for one, other in rounds[1:])
                ours, theirs = (
                    statistics.median(column) * 1000 for column in zip(*rounds[1:], strict=True)
                )
                spread = f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
                print(
                    f"{name:28}{statistics.median(ratios):5.2f} {spread:16}{ours:7.3f} :"
                    f" {theirs:.3f} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
