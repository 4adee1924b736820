"""F-16 for models: 1,000 steps ask at once, a tenth of the answers never come, and half of the
callers go away.

    python tests/faults/thousand_questions.py [--quick]

Holds when every step that was not given up got its own answer or the declared default, nobody was
asked more than twice for one step, nothing was recorded for a step that was given up, and
connections and descriptors are back where they were. Prints a summary as JSON and exits with 1 when
something is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bundle_router import Decision, Router, Step
from bundle_router.errors import UnknownRun
from bundle_router.testing.upstream import Exchange, ScriptedServer, choice, completion

BUNDLES = ("files.find", "files.read")


def config(folder: Path, url: str, deadline_s: float) -> Path:
    (folder / "router.toml").write_text(
        '[fallback]\norder = ["model", "default"]\ndefault = ["repo.readonly"]\n[model]\nnames ='
        f' ["openai/scripted"]\nbase_url = {json.dumps(url)}\nkey_env = "THOUSAND_KEY"\ndeadline_s'
        f' = {deadline_s}\n[log]\ndiagnostics = "error"\n'
    )
    (folder / "routes.toml").write_text("routes = []\n")
    (folder / "policy.toml").write_text('[[policies]]\nname = "everything"\nallow = ["*"]\n')
    (folder / "bundles.toml").write_text(
        "".join(
            f'[bundles."{id_}"]\ndescription = "{id_}"\ntools = ["repo.{tool}"]\neffects ='
            ' ["read"]\n'
            for id_, tool in zip(BUNDLES, ("ripgrep", "read_file"), strict=True)
        )
    )
    return folder


def hangs(number: int) -> bool:
    return number % 20 in (3, 4)  # one that is given up, one that is not


def is_given_up(number: int) -> bool:
    return number % 2 == 1


def act(exchange: Exchange) -> None:
    """Answers by what was asked, so that an answer that reaches another step shows."""
    number = int(json.loads(exchange.request.message("user"))["goal"].split()[1])
    if hangs(number):
        exchange.wait_for_close()
    exchange.reply(completion(choice(BUNDLES[number // 2 % 2])))


def descriptors() -> Counter[str]:
    """What is open, by kind: addresses and numbers of sockets and pipes are left out."""
    found = (
        str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()
    )
    return Counter(target.partition(":[")[0] for target in found)


async def ask_all(router: Router, count: int) -> list[Decision | BaseException]:
    rng = random.Random(16)

    async def one(number: int) -> Decision:
        step = Step(run_id=f"r-{number}", workflow="x", role="y", step="z", goal=f"goal {number}")
        asked = asyncio.create_task(router.route(step))
        if is_given_up(number):
            asyncio.get_running_loop().call_later(rng.uniform(0, 2), asked.cancel)
        return await asked

    return await asyncio.gather(*(one(number) for number in range(count)), return_exceptions=True)


def check(
    count: int, said: list[Decision | BaseException], asked: Counter[int], runs: Path
) -> list[str]:
    broken = [f"step {n} was put {times} times" for n, times in asked.items() if times > 2]
    for number, outcome in enumerate(said):
        lines = runs / f"r-{number}" / "routing.jsonl"
        recorded = lines.read_text().count("\n") if lines.exists() else 0
        if isinstance(outcome, Decision):
            first = outcome.bundle_ids[0] if outcome.bundle_ids else "nothing"
            wanted = {BUNDLES[number // 2 % 2]} if outcome.source == "model" else {"repo.readonly"}
            if (
                first not in wanted
                or (hangs(number) and outcome.source == "model")
                or recorded != 1
            ):
                broken.append(
                    f"step {number} got {first} from {outcome.source}, {recorded} records"
                )
        elif not isinstance(outcome, asyncio.CancelledError) or not is_given_up(number) or recorded:
            broken.append(f"step {number} ended with {outcome!r}, {recorded} records")
    return broken


async def run(folder: Path, count: int) -> dict[str, object]:
    with ScriptedServer([act]) as server:
        router = Router.open(
            config(folder, server.base_url, 10.0 if count <= 100 else 25.0),
            runs=folder / "runs",
            workspace=folder,
        )
        await router.warm_up()
        await router.route(Step(run_id="first", workflow="x", role="y", step="z", goal="goal 0"))
        await router.close_run("first")
        before, first = descriptors(), len(server.requests)
        said = await ask_all(router, count)
        goals = [json.loads(request.message("user"))["goal"] for request in server.requests[first:]]
        asked = Counter(int(goal.split()[1]) for goal in goals)
        broken = check(count, said, asked, folder / "runs")
        for number in range(count):
            with contextlib.suppress(UnknownRun):  # its step was given up before it began
                await router.close_run(f"r-{number}")
        await router.close()
        async with asyncio.timeout(300):
            # Its threads are in this process, and still have to hear that we are gone. They have no
            # loop to tell.
            while server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        after = descriptors()
    if after - before:
        broken.append(f"open since: {dict(after - before)}")
    sources = Counter(outcome.source for outcome in said if isinstance(outcome, Decision))
    return {
        "steps": count,
        "requests": len(goals),
        "given_up": sum(isinstance(outcome, asyncio.CancelledError) for outcome in said),
        "by": dict(sources),
        "descriptors": [before.total(), after.total()],
        "broken": broken,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = 100 if os.environ.get("BUNDLE_ROUTER_TESTS") == "all" else 40
    count = quick if parser.parse_args().quick else 1000
    if not all(importlib.util.find_spec(name) for name in ("litellm", "instructor")):
        print(
            json.dumps({"broken": [], "skipped": "the extra bundle-router[model] is not installed"})
        )
        return 0
    os.environ["THOUSAND_KEY"] = "sk-thousand-questions"
    with tempfile.TemporaryDirectory() as folder:
        summary = asyncio.run(run(Path(folder), count))
    print(json.dumps(summary))
    return 1 if summary["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
