"""Deployments that leave real records: a router over fakes, scripted answers, and the runs of a
workflow engine.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Step
from bundle_router.core.catalog import Bundle, Card, Catalog, Policy, Server, Settings
from bundle_router.core.decide.decide import Question
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.review.learning.recorded_steps import PastStep, past_steps
from bundle_router.testing import fake_router, small_catalog

SAMPLE = Path(__file__).parents[1] / "data" / "routing" / "bfcl_sample"


@dataclass(frozen=True)
class Turn:
    """One step of an engine: what it wants, what search or a model answers, and the tools the agent
    then calls.
    """

    goal: str
    picks: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    address: tuple[str, str, str] = ("support", "agent", "act")


Runs = Mapping[str, Sequence[Turn]]
ARGUMENTS: Mapping[str, Mapping[str, str]] = {"docs.fetch": {"url": "https://docs.python.org/3/"}}
"""What a tool is called with, where it takes something."""


class Deployment:
    """A catalog, and what its runs leave behind."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.records: dict[str, list[dict[str, Any]]] = {}

    def play(self, runs: Runs) -> Deployment:
        """Plays the runs, one after the other, and keeps their records."""
        said: dict[str, tuple[str, ...]] = {}

        def script(question: Question) -> Iterable[str]:
            return said["now"]

        with fake_router(self.catalog, selector=script) as router:
            for run_id, turns in runs.items():
                for turn in turns:
                    said["now"] = turn.picks
                    workflow, role, step = turn.address
                    router.route_sync(
                        Step(run_id=run_id, workflow=workflow, role=role, step=step, goal=turn.goal)
                    )
                    for tool in turn.calls:
                        router.call_sync(run_id, tool, ARGUMENTS.get(tool, {}))
                self.records[run_id] = router.fakes.records(run_id)
        return self

    def past(self, corrections: Mapping[str, Sequence[StepLabel]] | None = None) -> list[PastStep]:
        said = corrections or {}
        return [
            step
            for run_id, records in sorted(self.records.items())
            for step in past_steps(records, said.get(run_id, ()))
        ]

    @property
    def catalogs(self) -> dict[str, Catalog]:
        return {self.catalog.revision: self.catalog}


def workshop(**changes: Any) -> Catalog:
    """A small deployment whose operators write plain English and whose engine speaks the house's
    jargon.
    """
    bundles = {
        "repo.readonly": Bundle("repo.readonly", "Read and search the source code", ("repo.grep", "repo.read"),
                                effects=("read",)),
        "issues.tracker": Bundle("issues.tracker", "Report and look up bugs", ("issues.create", "issues.list"),
                                 effects=("read", "write")),
        "workspace.exec": Bundle("workspace.exec", "Change files and run the tests",
                                 ("workspace.run", "workspace.write"), effects=("read", "write", "exec")),
        "weather": Bundle("weather", "What the weather will be", ("weather.forecast",), effects=("read", "network")),
        "docs.web": Bundle("docs.web", "Read documentation on the web", ("docs.fetch",), effects=("read", "network")),
        "mail": Bundle("mail", "Send letters to customers", ("mail.send",), effects=("write", "network")),
    }  # fmt: skip
    return small_catalog({**bundles, **changes.pop("bundles", {})}, **changes)


def sample() -> tuple[Catalog, dict[str, list[Turn]]]:
    """The labelled sample of tests/data/routing as a deployment and its runs: a conversation is a
    run.
    """

    def rows(name: str) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for line in (SAMPLE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        ]

    held: defaultdict[str, list[str]] = defaultdict(list)
    cards = {}
    for tool in rows("tools"):
        name = tool["id"].replace("::", ".")
        held[tool["server"]].append(name)
        schema = json.dumps(tool["inputSchema"], sort_keys=True)
        cards[name] = Card(
            tool["server"], tool["name"], tool["description"], schema, "sha256:0", tokens=50
        )
    catalog = Catalog(
        servers={row["id"]: Server(row["id"], "local", "trusted") for row in rows("servers")},
        bundles={
            row["id"]: Bundle(
                row["id"], row["description"], tuple(sorted(held[row["id"]])), effects=("read",)
            )
            for row in rows("servers")
        },
        policies=(Policy("everything", allow=("*",)),),
        settings=Settings(),
        cards=cards,
    )
    runs: defaultdict[str, list[Turn]] = defaultdict(list)
    for row in rows("queries"):
        calls = tuple(tool.replace("::", ".") for tool in row["tools"])
        runs[row["group"]].append(Turn(row["query"], tuple(row["servers"]), calls))
    return catalog, dict(runs)


JARGON = {
    "issues.tracker": ("log a snag about {}", "any known snags with {}"),
    "workspace.exec": ("spin the rig for {}", "patch up {} on the bench"),
    "repo.readonly": ("where does {} live", "walk me through the guts of {}"),
    "mail": ("drop the client a line about {}", "ping the account owner on {}"),
}
TOOL = {
    "issues.tracker": "issues.create",
    "workspace.exec": "workspace.run",
    "repo.readonly": "repo.read",
    "mail": "mail.send",
}
SUBJECTS = (
    "login",
    "billing",
    "the parser",
    "exports",
    "the cache",
    "search",
    "invoices",
    "uploads",
    "themes",
    "sync",
)


def jargon_runs(number: int, *, first: int = 0) -> dict[str, list[Turn]]:
    """Runs of four steps, each in jargon, exposed by a model and used."""
    runs = {}
    for at in range(first, first + number):
        subject = SUBJECTS[at % len(SUBJECTS)]
        runs[f"run-{at:04d}"] = [
            Turn(texts[(at + place) % 2].format(subject), (bundle,), (TOOL[bundle],))
            for place, (bundle, texts) in enumerate(JARGON.items())
        ]
    return runs


def mixed_runs(number: int) -> dict[str, list[Turn]]:
    """Runs whose wording mostly says what they need; one step in four could be either of two
    bundles.
    """
    runs = {}
    for at in range(number):
        subject = SUBJECTS[at % len(SUBJECTS)]
        unclear = (
            ("docs.web", "docs.fetch")
            if sha256(str(at).encode()).digest()[0] % 2
            else ("repo.readonly", "repo.grep")
        )
        runs[f"run-{at:04d}"] = [
            Turn(f"search the source code of {subject}", ("repo.readonly",), ("repo.grep",)),
            Turn(f"what will the weather be for {subject}", ("weather",), ("weather.forecast",)),
            Turn(f"read up on {subject}, part {at}", (unclear[0],), (unclear[1],)),
            Turn(f"report bugs in {subject}", ("issues.tracker",), ("issues.create",)),
        ]
    return runs


@pytest.fixture(scope="session")
def deployment() -> Deployment:
    """Twenty honest runs of the workshop."""
    return Deployment(workshop()).play(jargon_runs(20))


@pytest.fixture(scope="session")
def kit() -> Any:
    """This module, for tests that make their own deployments (test folders are no packages)."""
    import sys

    return sys.modules[__name__]
