"""The read model: queries over many runs, and the values that answer them.

Pages and verbs share it.

Times are RFC 3339 in UTC, as in the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args

Facet = Literal[
    "workflow",
    "role",
    "step",
    "principal",
    "source",
    "bundle",
    "tool",
    "mark",
    "code",
    "reason",
    "outcome",
    "model",
    "missing",
]
FACETS: Final[tuple[Facet, ...]] = get_args(Facet)
"""The facets that filter runs.

`bundle`: was shown; `tool`: was called, or asked for; `missing`: asked for, and unknown or not
shown; `code`: why a call was refused; `reason`: why a step was degraded; `mark`: see `MARKS`.
"""
FACET_RUNS: Final = 5_000
"""Of more runs that a query selects, the facets count the newest of these alone."""
NOBODY: Final = "(nobody named)"
"""The principal, in tables and as a facet, of runs whose steps named none."""
SEARCHED: Final = "searched steps"
"""The table of `Stats` of those who searched for tools, by workflow and role (a line each in the
name): steps with a search, all steps (`amount`), and searches (`detail`).
"""
MARKS: Final = (
    "denied",
    "failed",
    "degraded",
    "media",
    "tampered",
    "model failed",
    "searched at every step",
    "labelled",
    "sub-run",
    "open",
    "unreadable",
)
FILTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "steps": (
        "workflow",
        "role",
        "step",
        "principal",
        "source",
        "route",
        "bundle",
        "reason",
        "model",
        "degraded",
        "doubt",
        "during",
    ),
    "calls": (
        "tool",
        "bundle",
        "outcome",
        "code",
        "failed",
        "principal",
        "workflow",
        "role",
        "during",
    ),
}
"""The filters of lists of steps and of calls. `during` is a day or an hour (UTC) of the record:
`2026-01-31`, `2026-01-31T12`.
"""
SEARCHED_CHARACTERS: Final = 20_000
"""Characters of a goal, of arguments or of a result that are searched at most. The index grows by
1.8 times what is searched (measured over 15 MB of source text).
"""
Sort = Literal[
    "started",
    "took",
    "steps",
    "calls",
    "tokens",
    "saved",
    "results",
    "cost",
    "denied",
    "failed",
    "run",
]
SORTS: Final[tuple[Sort, ...]] = get_args(Sort)


@dataclass(frozen=True, slots=True)
class RunStamp:
    """A cheap fingerprint of a run.

    `length` grows with its records; `records` changes with them, also where they were edited in
    place; `rest` changes with anything else (its header, its labels).
    """

    length: int
    records: str
    rest: str

    def follows(self, length: int, records: str) -> bool:
        """Return whether the records may be those of an earlier stamp with more appended, rather
        than others.
        """
        return self.length > length or (self.length, self.records) == (length, records)


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A query for runs.

    Values of one facet are alternatives, except marks, which must all be present; facets narrow
    each other. `text` is searched in goals, arguments, results and artifacts; `since` and `until`
    bound the run's beginning.
    """

    facets: tuple[tuple[Facet, str], ...] = ()
    text: str = ""
    since: str = ""
    until: str = ""
    sort: Sort = "started"
    ascending: bool = False
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """A query for steps or calls of runs.

    `equal` filters by their own columns; `sort` is `started` or `slow`, for steps also `tokens` or
    `cost`.
    """

    of: Literal["steps", "calls"]
    runs: RunQuery = RunQuery()
    equal: tuple[tuple[str, str], ...] = ()
    sort: str = "started"
    offset: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of a list.

    Counts are of its records; `tokens` sums what its steps were shown, `all_tokens` what showing
    every tool of the catalog at each step would have cost. `problem` says why a run can't be
    read.
    """

    run_id: str
    state: str
    began: str = ""
    ended: str = ""
    opened: str = ""
    closed: str = ""
    took_ms: float = 0.0
    parent_run_id: str = ""
    parent_decision_id: str = ""
    workflow: str = ""
    principal: str = ""
    workspace: str = ""
    catalog_revision: str = ""
    records: int = 0
    bytes: int = 0
    decisions: int = 0
    calls: int = 0
    denied: int = 0
    failed: int = 0
    degraded: int = 0
    model_failures: int = 0
    searches: int = 0
    media: int = 0
    labels: int = 0
    tokens: int = 0
    all_tokens: int = 0
    result_tokens: int = 0
    """Tokens of the results of its calls, as the model saw them."""
    results_uncounted: int = 0
    """Results whose tokens were not counted: no tokenizer was installed when they were indexed."""
    cost_usd: float = 0.0
    problem: str = ""
    verified: int = 0
    """Its first records that were as they had been written when the run was indexed."""
    tampered: str = ""
    """What was not as it had been written then; empty if nothing was found."""

    @property
    def saved(self) -> int:
        """Tokens that were not shown."""
        return max(0, self.all_tokens - self.tokens)

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values."""
        return {**asdict(self), "saved": self.saved}


@dataclass(frozen=True, slots=True)
class FacetCount:
    """One value of a facet, and how many of the runs have it."""

    value: str
    runs: int


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of the runs that were asked for, their total number, and their facets: of a query that
    leaves runs out, those of the newest `FACET_RUNS` of them.
    """

    runs: tuple[RunRow, ...]
    total: int
    facets: Mapping[Facet, tuple[FacetCount, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values."""
        facets = {
            facet: [asdict(value) for value in values] for facet, values in self.facets.items()
        }
        return {"total": self.total, "runs": [run.to_json() for run in self.runs], "facets": facets}


@dataclass(frozen=True, slots=True)
class TextHit:
    """One place where the words occur."""

    run_id: str
    seq: int
    """The record: a decision for `goal`, a call for the others."""
    field: str
    """`goal`, `arguments`, `result` (as the model saw it) or `artifact`."""
    excerpt: str
    """The words with some text around them, without markup."""
    began: str = ""
    """When the run began."""
    about: str = ""
    """The tool of a call; the workflow, role and step of a decision."""


@dataclass(frozen=True, slots=True)
class ArtifactUse:
    """A record that made or took an artifact. `took`: its arguments name it."""

    run_id: str
    seq: int
    time: str
    kind: str
    tool: str
    mime_type: str = ""
    bytes: int = 0
    name: str = ""
    role: str = ""
    took: bool = False


@dataclass(frozen=True, slots=True)
class Tally:
    """One row of an overview: a name, a count, and a second measure where there is one."""

    name: str
    count: int
    amount: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Period:
    """What the records of one day or hour (UTC) come to."""

    time: str
    """The day, or day and hour: `2026-01-31`, `2026-01-31T12`."""
    decisions: int = 0
    tokens: int = 0
    """Tokens of the definitions that were shown."""
    all_tokens: int = 0
    """Tokens that showing every tool would have been."""
    result_tokens: int = 0
    """Tokens of the results of calls, as the model saw them, where they were counted."""
    degraded: int = 0
    """Decisions that fell back."""
    doubted: int = 0
    """Decisions with a `doubt`."""
    cost_usd: float = 0.0
    """What the router's model cost."""
    calls: int = 0
    denied: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """The overviews of the chosen runs, as tables."""

    runs: int
    counted_runs: int
    """How many of the runs, the newest, `tables`, `by_day` and `over_time` are about. The other
    figures are those of all.
    """
    decisions: int
    calls: int
    tokens: int
    all_tokens: int
    result_tokens: int
    """Tokens of the results of calls, as the model saw them, where they were counted."""
    results_uncounted: int
    """Results whose tokens were not counted: no tokenizer was installed when they were indexed."""
    cost_usd: float
    records: int
    verified: int
    """How many of the records were as they had been written when their runs were indexed."""
    tampered: int
    """Runs that were not."""
    by_day: tuple[tuple[str, int, int, int], ...]
    """Day (UTC), decisions, tokens shown, tokens of everything."""
    over_time: tuple[Period, ...]
    """The last days with records; their hours where there is one day."""
    tables: Mapping[str, tuple[Tally, ...]]

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values."""
        names = ("day", "decisions", "tokens", "all_tokens")
        return {
            **asdict(self),
            "by_day": [dict(zip(names, row, strict=True)) for row in self.by_day],
        }


@dataclass(frozen=True, slots=True)
class RunPart:
    """Consecutive records of a run, as many as a page shows: decisions, and calls at their end."""

    first_seq: int
    last_seq: int
    records: int
    steps: int
    denied: int
    """Refused calls; `first_denied` is the first of them, None where there is none."""
    failed: int
    """Calls that failed."""
    doubt: int
    """Decisions that may be wrong although nothing failed."""
    first_denied: int | None = None
    first_failed: int | None = None
    first_doubt: int | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """A part of a run's records as rows of the index, in order.

    `next_seq` is where the next part begins, if any. `earlier` are the decisions before it that its
    calls were made under. `sub_runs` are those whose parent's decision is in the part, and those
    that name none.
    """

    decisions: tuple[Mapping[str, Any], ...]
    bundles: Mapping[int, tuple[Mapping[str, Any], ...]]
    calls: tuple[Mapping[str, Any], ...]
    artifacts: Mapping[int, tuple[Mapping[str, Any], ...]]
    sub_runs: tuple[RunRow, ...]
    next_seq: int | None = None
    earlier: tuple[Mapping[str, Any], ...] = ()


def counted_tokens(tokens: int, uncounted: int) -> str:
    """Return the tokens of results in words: what was not counted is not zero.

    >>> counted_tokens(1200, 0), counted_tokens(0, 3), counted_tokens(1200, 3)
    ('1,200', 'not counted', '1,200 and 3 results not counted')
    """
    if not uncounted:
        return f"{tokens:,}"
    if not tokens:
        return "not counted"
    return f"{tokens:,} and {uncounted:,} result{'s' if uncounted != 1 else ''} not counted"


def cut_sentence(results: int, cut: int) -> str:
    """Return the sentence about results that are not searched as a whole; "" if all are.

    >>> cut_sentence(1200, 3)
    'Of 3 of 1,200 results, only the first 20,000 characters are searched.'
    """
    if not cut:
        return ""
    return (
        f"Of {cut:,} of {results:,} results, only the first {SEARCHED_CHARACTERS:,} characters are"
        " searched."
    )


def duration_text(ms: object) -> str:
    """Return a duration: 0.4 ms, 65 ms, 3.2 s, 3 min 12 s, 2 h 5 min."""
    if not isinstance(ms, int | float):
        return "–"
    if ms < 10:
        return f"{ms:.1f} ms"
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
