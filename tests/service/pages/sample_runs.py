"""Runs that tests and screenshots look at: two weeks of an invented team, written as run
directories.

python -m tests.service.pages.sample_runs FOLDER
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bundle_router import Step
from bundle_router.adapters.media import describe
from bundle_router.core.catalog import Bundle, Card, Catalog, Policy, Route
from bundle_router.core.records.chain import FILES, genesis, parse, seal
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.servers.transport.tool_servers import RawResult
from bundle_router.core.values import Answer, Media, ModelUse, Reply, Text
from bundle_router.core.values.canonical import digest
from bundle_router.testing import (
    FakeRouter,
    MemoryRuns,
    ScriptedSelector,
    fake_router,
    small_catalog,
)

TOOLS = {
    "repo.read_file": ("Read a file of the repository.", 174), "repo.list_dir": ("List a folder.", 141),
    "repo.ripgrep": ("Search the repository.", 288), "repo.git_log": ("Show what was committed.", 296),
    "docs.fetch": ("Read a page of the documentation.", 186), "docs.search": ("Search the documentation.", 157),
    "workspace.exec": ("Run a program that policy lists.", 202), "workspace.write_file": ("Write a file.", 206),
    "tickets.get": ("Read a ticket.", 96), "tickets.search": ("Find tickets.", 131),
    "tickets.close": ("Close a ticket.", 88), "browser.screenshot": ("Take a picture of a page.", 240),
    "browser.open": ("Open a page.", 160), "voice.say": ("Read a text aloud.", 110),
    "deploy.plan": ("Show what a deployment would change.", 260), "deploy.apply": ("Deploy.", 230),
    **{f"crm.tool_{at}": (f"Something the sales team needs, number {at}.", 220 + 7 * at) for at in range(24)},
}  # fmt: skip
BUNDLES: dict[str, tuple[str, list[str], tuple[str, ...]]] = {
    "repo.readonly": ("Read the repository: files, search, history.",
                      ["repo.read_file", "repo.list_dir", "repo.ripgrep", "repo.git_log"], ("read",)),
    "docs.fetch": ("Read the documentation of what we use.", ["docs.fetch", "docs.search"], ("read", "network")),
    "workspace.exec": ("Run tests and write files.", ["workspace.exec", "workspace.write_file"], ("write", "exec")),
    "tickets.read": ("Read and find tickets.", ["tickets.get", "tickets.search"], ("read",)),
    "tickets.write": ("Close tickets.", ["tickets.close"], ("write",)),
    "browser.look": ("Look at pages as a person would.", ["browser.open", "browser.screenshot"], ("read", "network")),
    "voice.out": ("Say something aloud.", ["voice.say"], ("write",)),
    "deploy.plan": ("See what a deployment would change.", ["deploy.plan"], ("read",)),
    "deploy.apply": ("Deploy to production.", ["deploy.apply"], ("exec", "network")),
    "crm.all": ("The sales team's tools.", [f"crm.tool_{at}" for at in range(24)], ("read", "write")),
}  # fmt: skip


def catalog() -> Catalog:
    """The team's config: most steps are mapped, `triage` asks, and nobody but the releaser
    deploys.
    """
    bundles: dict[str, Any] = {
        id_: Bundle(id_, text, tuple(sorted(tools)), effects=effects)  # type: ignore[arg-type]  # literals
        for id_, (text, tools, effects) in BUNDLES.items()
    }
    made = small_catalog(
        bundles,
        routes=[
            Route("plan from the repository", step=("plan",), bundles=("repo.readonly", "tickets.read")),
            Route("research", role=("researcher",), bundles=("docs.fetch", "repo.readonly", "browser.look")),
            Route("implement", step=("implement", "fix"), bundles=("repo.readonly", "workspace.exec")),
            Route("review reads", role=("reviewer",), bundles=("repo.readonly", "browser.look", "workspace.exec")),
            Route("release", workflow=("release",), bundles=("deploy.plan", "deploy.apply", "voice.out")),
        ],
        policies=[
            Policy("everybody", allow=tuple(f"bundle:{id_}" for id_ in BUNDLES)),
            Policy("reviewers read", role=("reviewer",), effects=("read", "network")),
            Policy("only releases deploy", workflow=("feature", "bugfix"), deny=("bundle:deploy.*", "bundle:crm.*")),
        ],
    )  # fmt: skip
    schema = '{"type":"object","properties":{"path":{"type":"string"}}}'
    cards = {}
    for name, (text, tokens) in TOOLS.items():
        server, _, tool = name.partition(".")
        cards[name] = Card(server, tool, text, schema, digest(name), tokens)
    return replace(made, cards=cards)


def picture(width: int = 160, height: int = 90, hue: int = 0) -> bytes:
    """A PNG of bars, as a page under test might look."""
    rows = bytearray()
    for y in range(height):
        rows.append(0)
        for x in range(width):
            bar = (x // 16) % 6
            high = (bar * 37 + hue * 23) % 70 + 12
            lit = height - y < high and x % 16 > 3
            rows += bytes((40, 120 + bar * 16, 110 + hue * 9) if lit else (244, 246, 248))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(rows), 9))
        + chunk(b"IEND", b"")
    )


def sound(seconds: float = 0.4) -> bytes:
    """A quiet WAV."""
    samples = bytes(int(8000 * seconds))
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVE", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8,
                       b"data", len(samples))  # fmt: skip
    return head + samples


class FailingModel(ScriptedSelector):
    """A scripted selector whose failures are those of a model, with what the question cost."""

    async def select(self, question: Any, recent: Any) -> Reply:
        reply = await super().select(question, recent)
        use = ModelUse(
            "openai/gpt-5-mini",
            "router-prompt/3",
            attempts=2,
            failure=reply.failure,
            elapsed_ms=2500.0,
        )
        return replace(reply, model=use) if reply.failure else reply


class Team:
    """Makes runs with a clock of its own, from two weeks before `END` on."""

    def __init__(self, seed: int = 7, start_s: float = 0.0, config: Catalog | None = None) -> None:
        self._random = random.Random(seed)
        self.runs = MemoryRuns()
        self._made = self._asks = 0
        results: Any = {name: self._answer(name) for name in TOOLS}
        self.router: FakeRouter = fake_router(
            config or catalog(), selector=FailingModel(self._asked), results=results, runs=self.runs
        )
        self.router.fakes.clock.advance(start_s)

    def _answer(self, name: str) -> Any:
        def answer(arguments: Mapping[str, Any]) -> Any:
            slow = {"workspace.exec": 2.4, "deploy.plan": 5.2, "browser.screenshot": 0.9}.get(
                name, 0.05
            )
            self.router.fakes.clock.advance(slow * self._random.uniform(0.4, 1.8))
            if name == "browser.screenshot":
                return RawResult(
                    (Media(picture(hue=self._made % 8), "image/png"), Text("The page, 160 × 90."))
                )
            if name == "voice.say":
                return RawResult((Media(sound(), "audio/wav"), Text("Said.")))
            if name == "workspace.exec" and "tests/test_retry.py" in arguments.get("args", ()):
                return RawResult(
                    (Text("1 failed, 41 passed in 2.31s\nAssertionError: 3 != 4"),),
                    "tool_error",
                    "exit_1",
                )
            found = "src/retry.py:31: limit = 3\nsrc/retry.py:40: sleep(limit)"
            return f"{name} of {next(iter(arguments.values()), '.')}: 14 entries\n{found}"

        return answer

    def _asked(self, question: Any) -> Any:
        self._asks += 1
        if self._asks % 5 in (0, 2):
            return "timeout" if self._asks % 5 else "rate_limited"
        ids = [
            id_ for id_ in question.candidates if id_ in ("tickets.read", "crm.all", "docs.fetch")
        ][:2]
        source: Any = "search" if self._asks % 5 == 3 else "model"
        return Answer(tuple(ids), source, source, "the goal speaks of tickets")

    def step(self, run_id: str, workflow: str, role: str, step: str, goal: str, **more: Any) -> str:
        self.router.fakes.clock.advance(self._random.uniform(2, 30))
        decision = self.router.route_sync(
            Step(run_id=run_id, workflow=workflow, role=role, step=step, goal=goal, **more)
        )
        return decision.decision_id

    def call(self, run_id: str, name: str, path: str = ".") -> None:
        self.router.fakes.clock.advance(self._random.uniform(0.2, 3))
        self.router.call_sync(run_id, name, _arguments(name, path))

    def feature(self, run_id: str, goal: str, principal: str, workflow: str = "feature") -> None:
        """A run of a planner, a researcher below it, an implementer and a reviewer."""
        self._made += 1
        decided = self.step(run_id, workflow, "planner", "plan", goal, principal=principal)
        self.call(run_id, "repo.list_dir")
        self.call(run_id, "repo.ripgrep", "retry")
        if self._made % 2:
            self.step(f"{run_id}-sub", workflow, "researcher", "look-up", f"what the docs say about: {goal}",
                      principal=principal, parent_run_id=run_id, parent_decision_id=decided)  # fmt: skip
            self.call(f"{run_id}-sub", "docs.search", "retry budget")
            self.call(f"{run_id}-sub", "browser.screenshot", "https://docs.example.com/retry")
            self.router.close_run_sync(f"{run_id}-sub")
        if self._made % 3 == 0:
            self.step(
                run_id,
                workflow,
                "planner",
                "triage",
                "which ticket is this about?",
                principal=principal,
            )
        self.step(run_id, workflow, "implementer", "implement", goal, principal=principal)
        self.call(run_id, "repo.read_file", "src/retry.py")
        self.call(run_id, "workspace.write_file", "src/retry.py")
        self.call(
            run_id, "workspace.exec", "tests/test_retry.py" if self._made % 4 == 0 else "tests"
        )
        if self._made % 5 == 0:
            self.call(run_id, "deploy.apply", "production")
        self.step(run_id, workflow, "reviewer", "review", f"check: {goal}", principal=principal)
        self.call(run_id, "repo.git_log", "src")
        if self._made % 2 == 0:
            self.call(run_id, "browser.screenshot", "http://127.0.0.1:8000/")
        if self._made % 3 == 1:
            self.call(run_id, "workspace.exec", "tests")
        self.router.close_run_sync(run_id)

    def release(self, run_id: str, version: str) -> None:
        """A run that deploys, and says so."""
        self._made += 1
        self.step(run_id, "release", "releaser", "deploy", f"release {version}", principal="ci")
        self.call(run_id, "deploy.plan", version)
        self.call(run_id, "deploy.apply", version)
        self.call(run_id, "voice.say", f"{version} is out")
        self.router.close_run_sync(run_id)


def _arguments(name: str, about: str) -> dict[str, Any]:
    """Arguments that the tool takes, about a path, a word or a version."""
    if name == "workspace.exec":
        return {"binary": "pytest", "args": ["-q", about]}
    if name == "workspace.write_file":
        return {"path": about, "content": "limit = max_attempts\n"}
    if name == "docs.search":
        return {"site": "https://docs.example.com", "query": about}
    return {{"repo.ripgrep": "pattern", "docs.fetch": "url"}.get(name, "path"): about}


GOALS = ("rename the retry limit to max_attempts", "make uploads resume after a lost connection",
         "show the receipt in the order's currency", "find out why the nightly import doubles rows",
         "let people sign in with a passkey", "cut the start page's bundle by half",
         "keep the calendar's zone when an event moves", "warn before a draft is thrown away")  # fmt: skip


def team(days: int = 14, per_day: int = 2, seed: int = 7) -> Team:
    """Make the runs of so many days."""
    made = Team(seed)
    clock = made.router.fakes.clock
    number = 0
    for day in range(days):
        clock.advance(max(0.0, day * 86_400 + 9 * 3600 - clock.ns / 1e9))
        for _ in range(1 + (day * 5 + 3) % (per_day * 2)):
            number += 1
            goal, principal = GOALS[number % len(GOALS)], ("ann", "ben", "chris")[number % 3]
            made.feature(f"{'bugfix' if number % 3 == 0 else 'feature'}-{number:03}", goal, principal,
                         "bugfix" if number % 3 == 0 else "feature")  # fmt: skip
            clock.advance(1800)
        if day % 5 == 4:
            made.release(f"release-{day:02}", f"v1.{day}")
    return made


def write(runs: MemoryRuns, folder: Path, only: Iterable[str] | None = None) -> Path:
    """Write runs as run directories, with their artifacts described by content."""
    for run_id, run in runs.runs.items():
        if only is not None and run_id not in only:
            continue
        place = folder / run_id
        place.mkdir(parents=True, mode=0o700)
        catalogs = [
            {"revision": revision, "file": f"catalog-{revision.rpartition(':')[2][:16]}.json"}
            for revision in run.catalogs
        ]
        for entry in catalogs:
            (place / entry["file"]).write_text(run.catalogs[entry["revision"]], encoding="ascii")
        for sha256, data in run.kept.bytes.items():
            (place / "artifacts" / "sha256" / sha256[:2]).mkdir(
                parents=True, exist_ok=True, mode=0o700
            )
            (place / "artifacts" / "sha256" / sha256[:2] / sha256).write_bytes(data)
        head, lines = genesis(run_id), {file: list[bytes]() for file in FILES}
        for seq, (file, line) in enumerate(run.sealed):
            record = {
                name: value
                for name, value in parse(line).items()
                if name not in ("seq", "prev", "hash")
            }
            for artifact in record.get("artifacts", ()):
                facts = describe(run.kept.bytes[artifact["sha256"]])
                artifact["mime_type"] = facts.mime_type
                sizes = {
                    "width": facts.width,
                    "height": facts.height,
                    "duration_s": facts.duration_s,
                }
                artifact.update({name: value for name, value in sizes.items() if value is not None})
            data, head = seal(record, seq, head)
            lines[file].append(data)
        for file, name in FILES.items():
            (place / name).write_bytes(b"".join(lines[file]))
        header = dict(run.header.fields)
        header["catalogs"] = catalogs
        if run.closed:
            header |= {
                "closed": parse(run.sealed[-1][1])["time"],
                "head": head,
                "count": len(run.sealed),
            }
        (place / "run.json").write_text(RunHeader(header).sealed().to_text(), encoding="ascii")
    return folder


if __name__ == "__main__":
    write(team().runs, Path(sys.argv[1]))
