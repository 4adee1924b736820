"""Case files: steps and the bundles that they must get.

The golden-test format of this project and of its users.

    [[cases]]
    name = "a reviewer reads and can't run anything"
    capabilities = ["env:GITHUB_TOKEN"]        # what the machine has; it has nothing else
    workflow = "feature"
    role = "reviewer"
    step = "review"
    bundles = ["repo.readonly"]                # exactly these, in this order
    left_out = ["bundle:workspace.exec: not_allowed", "tool:repo.git_diff: policy_denied"]

A case may have several `[[cases.steps]]` instead; they are one run, so stickiness carries over.
`answer` is the reply of search or a model, if the step asks a question. Nothing is looked up: a
case file means the same everywhere. A name in `left_out` without `bundle:` or `tool:` may be
either; one without a code may have any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field, StrictInt, ValidationError

from bundle_router.core.catalog import Catalog
from bundle_router.core.catalog.step_address import address_from
from bundle_router.core.config.config_text import ConfigFile
from bundle_router.core.config.entries import parse
from bundle_router.core.config.positions import Path, locate
from bundle_router.core.config.problem_report import Report
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.decide.step_policy import check_step_policy
from bundle_router.core.records.replayed import conclude
from bundle_router.core.values import (
    CODES,
    Activation,
    Answer,
    Decision,
    Facts,
    Frozen,
    Grant,
    LeftOut,
    Reply,
    Source,
    Step,
    StepPolicy,
)
from bundle_router.core.values.form_errors import explain
from bundle_router.core.values.spelling import Suggester
from bundle_router.errors import RequestError


class CaseStep(Frozen):
    """One step and its expected bundles. Omitted fields are not checked."""

    workflow: str
    role: str
    step: str
    goal: str = ""
    constraints: tuple[str, ...] = ()
    policy: StepPolicy | None = None
    max_bundles: StrictInt | None = None
    max_tools: StrictInt | None = None
    max_tokens: StrictInt | None = None
    parents: tuple[CaseParent, ...] = ()
    answer: tuple[str, ...] | None = None
    bundles: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    route: str | None = None
    source: Source | None = None


class CaseParent(Frozen):
    """An ancestor's step, nearest first. Its limits apply to the step too."""

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
    """One difference from the case's expectation."""

    case: str
    step: int
    what: str
    expected: str
    got: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return (
            f"{self.case}, step {self.step}: {self.what}: expected {self.expected}, got"
            f" {self.got}{hint}"
        )


# --- reading: a case of one step may do without `steps`, so what is wrong in it is one level higher

_CASE_KEYS: Final = ("name", "capabilities")


def read_cases(file: ConfigFile) -> tuple[Case, ...]:
    """Return the cases of a file.

    Raises RequestError with all errors, by line, key path and nearest name.
    """
    report = Report([file])
    raw = parse(file, report)
    cases: tuple[Case, ...] = ()
    if raw is not None:
        listed = raw.get("cases")
        if isinstance(listed, list):
            with_steps = {**raw, "cases": [_with_steps(case) for case in listed]}
        else:
            with_steps = raw
        try:
            cases = CaseFile.model_validate(with_steps).cases
        except ValidationError as error:
            _report(error, file, raw, report)
        for path, row in _expected_codes(cases, raw):
            _check_code(row, file, path, report)
    problems = report.problems()
    if problems:
        summary = f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the cases"
        raise RequestError(
            "\n".join([summary, *(f"  {problem}" for problem in problems)]),
            advice="fix the lines named above",
        )
    return cases


def line_of(file: ConfigFile, case: int, step: int) -> int:
    """Return the line at which a step begins (both numbers from 0), in a file that could be
    read.
    """
    return locate(file.text).line(("cases", case, "steps", step))


def _with_steps(case: Any) -> Any:
    if not isinstance(case, dict) or "steps" in case:
        return case
    case_fields = {key: value for key, value in case.items() if key in _CASE_KEYS}
    return {
        **case_fields,
        "steps": [{key: value for key, value in case.items() if key not in case_fields}],
    }


def _is_short(raw: Any, path: Path) -> bool:
    """Return whether the path is in the step of a case that is written without `steps`."""
    if len(path) < 4 or path[0] != "cases" or path[2] != "steps":
        return False
    case = raw["cases"][path[1]]
    return isinstance(case, dict) and "steps" not in case


def _as_written(raw: Any, path: Path) -> Path:
    return (*path[:2], *path[4:]) if _is_short(raw, path) else path


def _report(error: ValidationError, file: ConfigFile, raw: Any, report: Report) -> None:
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and detail["input"]:
            continue  # its errors have been reported, and it counts as absent
        path, message, hint = explain(detail, CaseFile, report.suggester)
        if detail["type"] == "extra_forbidden" and _is_short(raw, path):
            keys = (*_CASE_KEYS, *CaseStep.model_fields)
            hint = (
                report.suggester.did_you_mean(str(path[-1]), keys)
                or f"known keys: {', '.join(keys)}"
            )
        report.add(file, _as_written(raw, path), message, hint)


def _expected_codes(cases: tuple[Case, ...], raw: Any) -> Iterator[tuple[Path, str]]:
    for number, case in enumerate(cases):
        for at, step in enumerate(case.steps):
            for index, row in enumerate(step.left_out):
                yield _as_written(raw, ("cases", number, "steps", at, "left_out", index)), row


def _check_code(row: str, file: ConfigFile, path: Path, report: Report) -> None:
    _, name, code = _left_out(row)
    if not name:
        report.add(
            file, path, f"{row!r} names nothing", "write 'bundle:workspace.exec: not_allowed'"
        )
    elif code and code not in CODES:
        hint = report.suggester.did_you_mean(code, CODES) or f"codes: {', '.join(CODES)}"
        report.add(file, path, f"{code!r} is not a code", hint)


def _left_out(row: str) -> tuple[str, str, str]:
    """Return kind (`bundle`, `tool` or empty), name and code of
    `tool:repo.git_diff: policy_denied`.
    """
    kind, colon, rest = row.partition(":")
    if not colon or kind.strip() not in ("bundle", "tool"):
        kind = ""
        rest = row
    name, _, code = rest.partition(":")
    return kind.strip(), name.strip(), code.strip()


def run_case(case: Case, catalog: Catalog) -> tuple[Mismatch, ...]:
    """Take the case's decisions under `catalog`, and return the differences."""
    activation = Activation()
    wrong: list[Mismatch] = []
    for number, expected in enumerate(case.steps, start=1):
        policies = (expected.policy, *(parent.policy for parent in expected.parents))
        for problem in (
            problem
            for policy in policies
            if policy
            for problem in check_step_policy(catalog, policy)
        ):
            # A router refuses the step; here the decision is still taken, so that the rest of the
            # case is checked too.
            wrong.append(
                Mismatch(case.name, number, "policy", "names that the config knows", problem)
            )
        decision = _decide(case, expected, catalog, activation)
        activation = decision.after
        for subject, expectation, actual in _differences(expected, decision):
            hint = _unknown_name(expected, catalog) if subject == "bundles" else ""
            wrong.append(Mismatch(case.name, number, subject, expectation, actual, hint))
    return tuple(wrong)


def _unknown_name(expected: CaseStep, catalog: Catalog) -> str:
    """Return a hint if the step expects an unknown bundle, which no config could give."""
    for id_ in expected.bundles:
        if catalog.bundle(id_) is None:
            hint = Suggester().did_you_mean(id_, catalog.bundles)
            return f"no bundle is called {id_!r}{f'; {hint}' if hint else ''}"
    return ""


def _decide(case: Case, expected: CaseStep, catalog: Catalog, activation: Activation) -> Decision:
    step = Step(run_id="case", **{name: getattr(expected, name) for name in _OF_A_STEP})
    grants = tuple(Grant(address_from(vars(p), {}), p.policy) for p in expected.parents)
    facts = Facts(capabilities=frozenset(case.capabilities), grants=grants)
    outcome = decide(Plans(catalog), facts, activation, step)
    if not isinstance(outcome, Question):
        return outcome
    if expected.answer is None:
        answer = None
    else:
        answer = Answer(expected.answer, "model", "model", "as the case says")
    return conclude(outcome, Reply(outcome.key, answer))


_OF_A_STEP: Final = (
    "workflow",
    "role",
    "step",
    "goal",
    "constraints",
    "policy",
    "max_bundles",
    "max_tools",
    "max_tokens",
)


def _differences(expected: CaseStep, decision: Decision) -> Iterable[tuple[str, str, str]]:
    if tuple(decision.reachable_ids) != expected.bundles:
        yield "bundles", _list(expected.bundles), _list(decision.reachable_ids)
    if expected.route not in (None, decision.route):
        yield "route", str(expected.route), str(decision.route)
    if expected.source not in (None, decision.source):
        yield "source", str(expected.source), decision.source
    for row in expected.left_out:
        kind, name, code = _left_out(row)
        codes = [left.code for left in decision.left_out if _names(left, kind, name)]
        is_met = code in codes if code else bool(codes)
        if not is_met:
            yield f"left out {name!r}", code or "any code", ", ".join(codes) or "not left out"


def _names(left: LeftOut, kind: str, name: str) -> bool:
    """Return whether a row is about the bundle, or the tool, of that name.

    Both may have the same name.
    """
    return (kind != "tool" and left.tool is None and left.id == name) or (
        kind != "bundle" and left.tool == name
    )


def _list(ids: Iterable[str]) -> str:
    return "[" + ", ".join(ids) + "]"


CaseStep.model_rebuild()
