"""F-14: a line of 200 MB, an answer of 300 MB in gzip, JSON 100,000 deep, while another server is
called all the time.

    python tests/faults/oversized.py [--quick]

Holds when each is cut at the cap or given up in time, the router's memory grows by at most 64 MiB,
and the calls to the other server are held up by at most 50 ms (99 of 100; on a loaded machine:
three times what they are without any fault; `--quick` only says how long they were). The servers
are processes of their own. Prints a summary as JSON and exits with 1 when something is broken.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bundle_router import Router, Step
from rig import ROOT, Ahead, Verdict, quick

SERVER: Final = ROOT / "tests" / "adapters" / "mcp" / "fault_server.py"
OTHER: Final = f"""
import sys
sys.path.insert(0, {str(SERVER.parent)!r})
import fault_server as f
with f.serving() as server:
    server.stateful = {{stateful}}
    server.faults.extra_tools.append(f.tool("bomb"))
    print(server.url, flush=True)
    sys.stdin.read()
"""
CAP_MIB: Final = 64
LAG_S: Final = 0.05
DEEP_S: Final = 50.0
"""Seconds that a call of the faulty process may take; less than those of a neighbour, whose calls
go on.
"""
TIMEOUT_S: Final = 60.0


@contextmanager
def elsewhere(*, stateful: bool = False) -> Iterator[str]:
    """The address of a tool server in a process of its own.

    `stateful`: it keeps a session for each connection.
    """
    code = OTHER.format(stateful=stateful)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def write_config(folder: Path, url: str, faulty_url: str, timeout_s: float = 60.0) -> Path:
    config = folder / "config"
    config.mkdir()
    arguments = json.dumps(["-S", str(SERVER), "--also=huge_line,deep,fork"])
    servers = f'transport = "stdio"\ncommand = {json.dumps(sys.executable)}\nargs = {arguments}\n'
    servers += f"timeout_s = {timeout_s}\n"
    texts = {
        "servers": (
            f'[servers.s]\ntrust = "trusted"\n{servers}[servers.t]\ntrust = "trusted"\nurl ='
            f' "{url}"\n[servers.u]\ntrust = "trusted"\nurl = "{faulty_url}"\ntimeout_s ='
            f" {TIMEOUT_S}\n"
        ),
        "bundles": (
            '[bundles.faults]\ndescription = "Tools that fail."\neffects = ["read"]\n'
            'tools = ["s.huge_line", "s.deep", "s.fork", "s.echo", "t.echo", "u.bomb", "u.echo"]\n'
        ),
        "routes": '[[routes]]\nname = "all"\nbundles = ["faults"]\n',
        "policy": '[[policies]]\nname = "all"\nallow = ["*"]\n',
        "router": (
            '[log]\ndiagnostics = "error"\n[limits]\ncalls_per_step = 1_000_000\nrepeated_calls ='
            " 1_000_000\n"
        ),
    }
    for name, text in texts.items():
        (config / f"{name}.toml").write_text(text, encoding="utf-8")
    return config


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Neighbour:
    """Calls the other server all the time, and knows how long each call took."""

    def __init__(self, router: Router, verdict: Verdict) -> None:
        self._router = router
        self._verdict = verdict
        self._times: list[float] = []

    async def call_for(self, work: asyncio.Task[Any]) -> float:
        """The 99th of 100 calls made until the work is done, in seconds."""
        self._times = []
        while not work.done():
            began = time.perf_counter()
            result = await self._router.call("r", "t.echo", {"text": str(began)})
            self._times.append(time.perf_counter() - began)
            self._verdict.check(result.text == str(began), f"another server's answer: {result}")
        return (
            statistics.quantiles(self._times, n=100, method="inclusive")[98]
            if len(self._times) > 1
            else 0.0
        )


async def run(config: Path, folder: Path, verdict: Verdict, short: bool) -> dict[str, object]:
    faults = {
        "s.huge_line": ({"megabytes": 60 if short else 200}, ("tool_error", "too_large")),
        "u.bomb": ({"megabytes": 100 if short else 300}, ("tool_error", "too_large")),
        "s.deep": ({}, ("unavailable", "protocol_error")),
    }
    rows: dict[str, object] = {}
    opened = Router.open(config, runs=folder / "runs", workspace=folder, development="unpinned")
    async with opened as router:
        await router.route(Step(run_id="r", workflow="w", role="r", step="s"))
        for name in ("t.echo", "u.echo", "s.echo"):
            verdict.check((await router.call("r", name, {"text": "x"})).ok, f"{name} before")
        before = peak_mib()
        await router.call("r", "u.bomb", faults["u.bomb"][0])  # from now on its server has it ready
        neighbour = Neighbour(router, verdict)
        quiet = await neighbour.call_for(asyncio.create_task(asyncio.sleep(1.0)))
        for name, (given, expected) in faults.items():

            async def several(
                name: str = name, given: dict[str, int] = given, expected: Any = expected
            ) -> float:
                longest = 0.0
                for _ in range(1 if short else 3):
                    began = time.perf_counter()
                    call = asyncio.create_task(router.call("r", name, given))
                    if expected[0] == "timeout":
                        await asyncio.sleep(3)  # beside others' calls
                        Ahead.seconds += DEEP_S + 1
                    result = await call
                    longest = max(longest, time.perf_counter() - began)
                    said = (result.outcome, result.code)
                    verdict.check(said == expected, f"{name}: {said}")
                return longest

            work = asyncio.create_task(several())
            lag = await neighbour.call_for(work)
            seconds, grown = work.result(), peak_mib() - before
            verdict.check(grown <= CAP_MIB, f"{name}: {grown:.0f} MiB more")
            slow = lag > max(LAG_S, 3 * quiet)
            verdict.check(short or not slow, f"{name}: calls of others took {lag * 1000:.0f} ms")
            verdict.check(
                (await router.call("r", f"{name[0]}.echo", {"text": "x"})).ok,
                f"{name}: the next call",
            )
            rows[name] = {
                "seconds": round(seconds, 2),
                "MiB": round(grown, 1),
                "lag_ms": round(lag * 1000, 1),
            }
    return {"quiet_ms": round(quiet * 1000, 1), **rows}


def main() -> None:
    short, verdict = quick(), Verdict()
    with tempfile.TemporaryDirectory() as name, elsewhere() as url, elsewhere() as faulty_url:
        config = write_config(Path(name), url, faulty_url, DEEP_S)
        Ahead.begin()
        summary = asyncio.run(run(config, Path(name), verdict, short))
    verdict.end(**summary)


if __name__ == "__main__":
    main()
