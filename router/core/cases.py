"""Case files: steps and the bundles they must get. The golden-test format of this project and of its users.

    [[cases]]
    name = "a reviewer reads and can't run anything"
    capabilities = ["env:GITHUB_TOKEN"]        # what the machine has; nothing else counts as present
    workflow = "feature"
    role = "reviewer"
    step = "review"
    bundles = ["repo.readonly"]                # exactly these, in this order
    left_out = ["workspace.exec: policy_denied"]

A case may hold several `[[cases.steps]]` instead; they are one run, so stickiness carries over. `answer` is what search
or a model would say, where the step puts a question. Nothing is looked up: a case file means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from router.core.catalog import Catalog
from router.core.decide import Question, decide
from router.core.models import Activation, Answer, Code, Decision, Facts, Frozen, Grant, Reply, Source, Step, StepPolicy
from router.core.replay import conclude


class CaseStep(Frozen):
    """One step and what it must get. What is left out is not checked."""

    workflow: str
    role: str
    step: str
    goal: str = ""
    constraints: tuple[str, ...] = ()
    policy: StepPolicy | None = None
    max_bundles: int | None = None
    max_tools: int | None = None
    max_tokens: int | None = None
    parents: tuple[CaseParent, ...] = ()
    answer: tuple[str, ...] | None = None
    bundles: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    route: str | None = None
    source: Source | None = None


class CaseParent(Frozen):
    """An ancestor's step, nearest first: its ceiling is the step's too."""

    workflow: str
    role: str
    step: str
    policy: StepPolicy | None = None


class Case(Frozen):
    """A named run of one or more steps."""

    name: str = Field(min_length=1)
    capabilities: tuple[str, ...] = ()
    steps: tuple[CaseStep, ...] = Field(min_length=1)


class CaseFile(Frozen):
    cases: tuple[Case, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One thing that did not come out as the case says."""

    case: str
    step: int
    what: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.case}, step {self.step}: {self.what}: expected {self.expected}, got {self.got}"


def read_cases(raw: dict[str, Any]) -> tuple[Case, ...]:
    """The cases of a parsed case file. A case of one step may do without `steps`. Raises ValidationError."""
    cases = raw.get("cases")
    if isinstance(cases, list):
        raw = {**raw, "cases": [_with_steps(case) for case in cases]}
    return CaseFile.model_validate(raw).cases


def _with_steps(case: Any) -> Any:
    if not isinstance(case, dict) or "steps" in case:
        return case
    own = {key: value for key, value in case.items() if key in ("name", "capabilities")}
    return {**own, "steps": [{key: value for key, value in case.items() if key not in own}]}


def run_case(case: Case, catalog: Catalog) -> tuple[Mismatch, ...]:
    """Takes the case's decisions under `catalog` and says what came out otherwise."""
    activation = Activation()
    wrong: list[Mismatch] = []
    for number, expected in enumerate(case.steps, start=1):
        decision = _decide(case, expected, catalog, activation)
        activation = decision.after
        wrong += [Mismatch(case.name, number, *difference) for difference in _differences(expected, decision)]
    return tuple(wrong)


def _decide(case: Case, expected: CaseStep, catalog: Catalog, activation: Activation) -> Decision:
    step = Step(
        run_id="case",
        workflow=expected.workflow,
        role=expected.role,
        step=expected.step,
        goal=expected.goal,
        constraints=expected.constraints,
        policy=expected.policy,
        max_bundles=expected.max_bundles,
        max_tools=expected.max_tools,
        max_tokens=expected.max_tokens,
    )
    grants = tuple(Grant(p.workflow, p.role, p.step, p.policy) for p in expected.parents)
    taken = decide(catalog, Facts(capabilities=frozenset(case.capabilities), grants=grants), activation, step)
    if not isinstance(taken, Question):
        return taken
    answer = None if expected.answer is None else Answer(expected.answer, "model", "model", "as the case says")
    return conclude(taken, Reply(taken.key, answer))


def _differences(expected: CaseStep, decision: Decision) -> Iterable[tuple[str, str, str]]:
    if tuple(decision.bundle_ids) != expected.bundles:
        yield "bundles", _list(expected.bundles), _list(decision.bundle_ids)
    if expected.route is not None and decision.route != expected.route:
        yield "route", expected.route, str(decision.route)
    if expected.source is not None and decision.source != expected.source:
        yield "source", expected.source, decision.source
    codes: dict[str, Code] = {row.tool or row.id: row.code for row in decision.left_out}
    for row in expected.left_out:
        id_, _, code = (part.strip() for part in row.partition(":"))
        got = codes.get(id_)
        if got is None or (code and got != code):
            yield f"left out {id_!r}", code or "any code", got or "not left out"


def _list(ids: Iterable[str]) -> str:
    return "[" + ", ".join(ids) + "]"


CaseStep.model_rebuild()
