"""Twenty stdio servers behind one Router: time to the first list, to the next, what the router
weighs, and the end.

    python tests/benchmarks/twenty_servers.py [--servers 20] [--sdk] [--idle] [--rounds 1]

The servers are small ones: a Python script without libraries, ten tools each (`--sdk`: the SDK's
own server instead, each of which takes a core for most of a second to start). Nothing is pinned
(`development="unpinned"`), so that showing the tools has to start all of them: the worst case.
`cold` is from before `Router.open` to the list of all tools, the import of the SDK included; beside
it the CPU that the router and all it started used for it, which other load does not change. `again`
is the next step of the same run; `another run` is one that finds the lists in the cache, and starts
a process only for the server it calls. Memory is what the kernel says is resident; the servers and
their one supervisor, which are processes of their own, are counted apart. `--idle` also waits until
idle servers were stopped (five minutes). Beside it, in each round, stands the least that such a
list can cost: one process with the SDK's client of each server, and nothing else. Exits with 1 when
a goal is missed in the round of the least time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bundle_router import Router, Step
from bundle_router.adapters.processes.family import descendants

SMALL: Final = """
import json, sys
TOOLS = [{"name": f"tool_{n}", "description": f"Does the {n}th thing.", "inputSchema":
          {"type": "object", "properties": {"text": {"type": "string"}}}} for n in range(10)]
for line in sys.stdin:
    message = json.loads(line)
    if message.get("id") is None:
        continue
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        reply["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                           "serverInfo": {"name": "small", "version": "1"}}
    elif message["method"] == "tools/list":
        reply["result"] = {"tools": TOOLS}
    elif message["method"] == "tools/call":
        reply["result"] = {"content": [{"type": "text", "text": message["params"]["arguments"].get("text", "")}]}
    else:
        reply["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(reply), flush=True)
"""
SDK: Final = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("small")
def thing(text: str = "") -> str:
    return text
for n in range(10):
    server.add_tool(thing, name=f"tool_{n}", description=f"Does the {n}th thing.")
server.run("stdio")
"""
MINIMAL: Final = """
import asyncio, json, os, sys, time
began = time.perf_counter()
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.benchmarks import twenty_servers as bench
async def main(count, arguments):
    ready, stop = [], asyncio.Event()
    async def connect():
        command = StdioServerParameters(command=sys.executable, args=arguments)
        async with Client(stdio_client(command)) as client:
            ready.append(await client.list_tools())
            await stop.wait()
    tasks = [asyncio.create_task(connect()) for _ in range(count)]
    while len(ready) < count:
        await asyncio.sleep(0.005)
    print(json.dumps(bench.weighed(began)))
    stop.set()
    await asyncio.gather(*tasks)
asyncio.run(main(int(sys.argv[1]), sys.argv[2:]))
"""
GOALS: Final = {"cold": 3.0, "again": 0.1}
GOAL_MIB: Final = 120
GOAL_RATIO: Final = 1.3
"""To the minimal gateway, in time and in the memory of everything."""
IDLE_S: Final = 300 + 15 + 10
"""How long an unused process may live, how often that is looked at, and how long ending one may
take.
"""


def arguments_of(folder: Path, sdk: bool) -> list[str]:
    return [*([] if sdk else ["-I", "-S"]), str(folder / "server.py")]


def write_config(folder: Path, count: int, sdk: bool) -> None:
    (folder / "server.py").write_text(SDK if sdk else SMALL, encoding="utf-8")
    arguments = json.dumps(arguments_of(folder, sdk))
    names = [f"s{number:02}" for number in range(count)]
    texts = {
        "servers": "".join(
            f'[servers.{name}]\ntransport = "stdio"\ntrust = "trusted"\ncommand ='
            f" {json.dumps(sys.executable)}\nargs = {arguments}\n"
            for name in names
        ),
        "bundles": "".join(
            f'[bundles."all.{name}"]\ndescription = "Things of {name}."\ntools ='
            f' ["{name}.*"]\neffects = ["read"]\n'
            for name in names
        ),
        "routes": (
            '[[routes]]\nname = "all"\nbundles = ['
            + ", ".join(f'"all.{name}"' for name in names)
            + "]\n"
        ),
        "policy": '[[policies]]\nname = "all"\nallow = ["*"]\n',
        "router": '[log]\ndiagnostics = "error"\n[activation]\nmax_tools = 1000\n',
    }
    (folder / "config").mkdir()
    for file, text in texts.items():
        (folder / "config" / f"{file}.toml").write_text(text, encoding="utf-8")


def resident_mib(pid: int | str = "self") -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # it ended meanwhile
        return 0.0
    return pages * resource.getpagesize() / 2**20


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def weighed(began: float) -> dict[str, float]:
    """What the list has cost until now."""
    below = descendants(os.getpid())
    return {
        "cold": time.perf_counter() - began,
        "cold, CPU of the router": time.process_time(),
        "cold, CPU of the rest": sum(cpu_s(pid) for pid in below),
        "router, MiB": resident_mib(),
        "processes below it": len(below),
        "those, MiB": sum(resident_mib(pid) for pid in below),
    }


def measure_apart(*words: str) -> dict[str, float]:
    """What another process says of itself on its last line."""
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, cwd=root, check=True
    )
    return {
        str(what): float(value) for what, value in json.loads(done.stdout.splitlines()[-1]).items()
    }


def step(run_id: str) -> Step:
    return Step(run_id=run_id, workflow="w", role="r", step="s")


async def until(condition: Callable[[], bool], timeout_s: float) -> float:
    """Seconds until it held. Raises TimeoutError."""
    began = time.perf_counter()
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for are other processes
            await asyncio.sleep(0.02)
    return time.perf_counter() - began


async def measure(folder: Path, count: int, began: float, idle: bool) -> dict[str, float]:
    found: dict[str, float] = {}
    opened = Router.open(
        folder / "config", runs=folder / "runs", workspace=folder, development="unpinned"
    )
    async with opened as router:
        await router.route(step("r"))
        while len((await router.tools("r")).active) < 10 * count:
            await asyncio.sleep(0.02)
            await router.route(step("r"))  # the next decision has a server that was late
        found.update(weighed(began))
        lap = time.perf_counter()
        await router.route(step("r"))
        assert len((await router.tools("r")).active) == 10 * count
        found["again"] = time.perf_counter() - lap
        lap = time.perf_counter()
        await router.route(step("other"))
        assert (await router.call("other", "s00.tool_0", {"text": "hello"})).text == "hello"
        found["another run, with a call"] = time.perf_counter() - lap
        if idle:  # all but the supervisor
            found["idle ones stopped after"] = await until(
                lambda: len(descendants(os.getpid())) <= 1, IDLE_S
            )
        lap = time.perf_counter()
    found["closed in"] = time.perf_counter() - lap
    found["processes left"] = len(descendants(os.getpid()))
    return found


def main() -> int:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=20)
    parser.add_argument("--sdk", action="store_true")
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--alone", help="measure the router in this folder and print it as JSON")
    arguments = parser.parse_args()
    if arguments.alone:
        print(
            json.dumps(
                asyncio.run(
                    measure(Path(arguments.alone), arguments.servers, began, arguments.idle)
                )
            )
        )
        return 0
    count = str(arguments.servers)
    rounds = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as name:
            write_config(Path(name), arguments.servers, arguments.sdk)
            idle = ["--idle"] if arguments.idle else []
            ours = measure_apart(__file__, "--alone", name, "--servers", count, *idle)
            least = measure_apart("-c", MINIMAL, count, *arguments_of(Path(name), arguments.sdk))
            rounds.append((ours, least))
    found, _ = min(rounds, key=lambda one: one[0]["cold"])
    _, least = min(rounds, key=lambda one: one[1]["cold"])
    print(f"{'':26}{'router':>9}{'minimal':>9}{'ratio':>9}")
    for what, value in found.items():
        beside = f"{least[what]:9.3f}{value / least[what]:9.2f}" if least.get(what) else ""
        print(f"{what:26}{value:9.3f}{beside}")
    weight = ("router, MiB", "those, MiB")
    memory = sum(found[what] for what in weight) / sum(least[what] for what in weight)
    print(f"{'memory of everything':44}{memory:9.2f}")
    missed = [what for what, goal in GOALS.items() if found[what] > goal]
    missed += ["router, MiB"] if found["router, MiB"] > GOAL_MIB else []
    missed += ["processes left"] if found["processes left"] else []
    missed += ["ratio in time"] if found["cold"] / least["cold"] > GOAL_RATIO else []
    missed += ["ratio in memory"] if memory > GOAL_RATIO else []
    print(f"missed: {', '.join(missed)}" if missed else "all goals met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
