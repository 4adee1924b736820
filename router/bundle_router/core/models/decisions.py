"""What is sticky in a run, and what the router decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from pydantic import TypeAdapter

from bundle_router.core.models.evidence import Evidence
from bundle_router.core.models.words import Code, Failure, Hearing, Mode, Reason, Recall, Source, Verdict
from bundle_router.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class AskedTool:
    """A deferred tool (canonical name) that the run asked for: by search, by name or by calling it."""

    name: str
    place: int
    used: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One bundle of a run's activation. `used` is the sequence number of its last use, for least-recently-used order.

    `origin` is the reason that first brought it in, or the first that text in an intent had no hand in; `inherited`
    marks what came from the parent run and was not yet brought in by a step of this run (for what is there by trust:
    by its mapping). `place` numbers bundles and asked-for tools (`tools`, in their order) as the
    run came upon them: the array of tools is in this order, so that what comes later is appended.
    """

    id: str
    origin: Reason
    used: int
    inherited: bool = False
    place: int = 0
    tools: tuple[AskedTool, ...] = ()


@dataclass(frozen=True, slots=True)
class Activation:
    """The sticky set of a run, ordered by id so that equal sets have equal bytes."""

    entries: tuple[Entry, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(entry.id for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A bundle the step may see. `evidence` says in words what the reason rests on; `mode` how it is presented where
    that is not the bundle's own mode: what was offered in a shortlist waits behind search."""

    id: str
    rank: int
    reason: Reason
    evidence: str = ""
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A bundle (with `tool`: one tool of a shown bundle) that the step may not see, and the first test it failed.

    A tool that was `evicted` left the array, and may still be found and called.
    """

    id: str
    code: Code
    detail: str = ""
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A permitted bundle that search or the model may pick, with its score where one was given."""

    id: str
    score: float | None = None


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What one question to a model cost and gave. Holds the raw answer, so that replay needs no model."""

    name: str
    prompt_version: str = ""
    key: str = ""
    cached: bool = False
    attempts: int = 0
    failure: Failure | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    elapsed_ms: float = 0.0
    answer: str | None = None


NO_EVIDENCE: Final = Evidence()


@dataclass(frozen=True, slots=True)
class SearchUse:
    """What search found for one question and what was made of it. Recorded whoever answered in the end.

    `thresholds` is the version of what `verdict` rests on, `probability` that the best bundle is the right one (None:
    no calibration) and `threshold` what it was held against (None: a bundle like that is never shown by search alone).
    `ranked` holds the best candidates with their scores; under `cut` they are not plausible. `embeddings`: whether an
    embedder was `used`, or why not and words alone were ranked by (None: none is configured). `recall`: the same of
    past steps that are remembered by their meaning (None: none are). `withheld`: of `ranked`, what `[search] offer`
    keeps out of a shortlist.
    """

    verdict: Verdict
    why: str
    thresholds: str
    probability: float | None = None
    threshold: float | None = None
    cut: float = 0.0
    evidence: Evidence = NO_EVIDENCE
    ranked: tuple[Candidate, ...] = ()
    embeddings: Hearing | None = None
    recall: Recall | None = None
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a selector said to a question: bundle ids in order of preference, and how it came to them.

    The core treats it as a wish: ids that are not candidates are dropped, whoever sent them.
    """

    ids: tuple[str, ...]
    source: Source
    reason: Reason
    justification: str = ""
    scores: tuple[Candidate, ...] = ()
    model: ModelUse | None = None
    dropped: tuple[tuple[str, Code], ...] = ()
    """Ids the selector itself left out, with the code to record (`below_floor`, `over_budget`)."""
    offered: tuple[str, ...] = ()
    """Ids to offer behind search beside what was picked: who picks may be wrong."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a question: answered (`answer`), failed (`failure`), or nobody was there to ask (neither).

    Both: a model failed and search stands in for it, so the decision is degraded. `key` is the key of the question that
    was put, so that a replay knows whether it would be put again. `search` is what search found, if it was asked;
    `revisions` are those of the learned artifacts it used (see `Facts`).
    """

    key: str = ""
    answer: Answer | None = None
    failure: Failure | None = None
    model: ModelUse | None = None
    search: SearchUse | None = None
    revisions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Exposure:
    """How much the step is shown: tools in the array and their tokens (cl100k_base where counted), against all of the
    catalog. What is deferred counts from the step on after the one that asked for it; see `core.tools.exposure`."""

    tools: int
    tokens: int
    all_tools: int
    all_tokens: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step may see, why, and why not the rest. Already in the run directory when you hold it. `bundle_ids` is
    ordered: what the step asked for first, sticky bundles last."""

    bundles: tuple[Chosen, ...]
    """The bundles shown, each with its rank, its reason and what that rests on."""
    left_out: tuple[LeftOut, ...]
    """Bundles and tools that were not, each with the first test it failed."""
    source: Source
    """What settled it: `mapping`, `search`, `model`, `shortlist`, `default` or `none`."""
    degraded: bool
    """Whether a fallback was used because search or the model gave no usable answer."""
    justification: str
    """Why, in a sentence."""
    route: str | None
    """The name of the route that matched, None where none did."""
    candidates: tuple[Candidate, ...]
    """The permitted bundles that search or the model could pick."""
    before: Activation
    """The activation that it was decided on."""
    after: Activation
    """The activation that it left."""
    evicted: tuple[str, ...]
    """Ids of bundles that left the activation."""
    exposure: Exposure
    """How much the step is shown, against all there is."""
    model: ModelUse | None = None
    """What the question to a model cost and gave, where one was asked."""
    search: SearchUse | None = None
    """What search found, where it was asked."""
    run_id: str = ""
    """The run that it is of."""
    seq: int = -1
    """The place of its record in the run's."""
    decision_id: str = ""
    """Its id: what `tools` and `call` take as `decision`."""
    catalog_revision: str = ""
    """The config that it was taken under."""
    input_digest: str = ""
    """The digest of all that it was decided on."""

    @property
    def bundle_ids(self) -> list[str]:
        return [chosen.id for chosen in self.bundles]

    @property
    def evicted_tools(self) -> tuple[str, ...]:
        """Return the tools that an earlier step asked for and that left the array, since too many were asked for later
        or this step has no room for them. They stand in `left_out`."""
        return tuple(row.tool for row in self.left_out if row.tool and row.code in ("evicted", "over_budget"))

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Decision:
        """Return the decision that `to_json` gave. Raises pydantic's ValidationError for what is not one."""
        return TypeAdapter(cls).validate_python(dict(value))


@dataclass(frozen=True, slots=True)
class RecentStep:
    """A step this run took before, as search and the model may see it."""

    role: str
    step: str
    goal: str
    bundle_ids: tuple[str, ...]
