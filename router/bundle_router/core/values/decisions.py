"""The sticky set of a run, and the router's decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from bundle_router.core.values.evidence import Evidence
from bundle_router.core.values.words import (
    Code,
    EmbeddingUse,
    Failure,
    Mode,
    Reason,
    Recall,
    Source,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class AskedTool:
    """A deferred tool (canonical name) that the run asked for: by search, by name or by a call."""

    name: str
    place: int
    used: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One bundle of a run's activation.

    `used` is the sequence number of its last use, for least-recently-used order.

    `origin` is the first reason that brought it in, or the first that text in an intent did not
    influence. `inherited` marks a bundle of the parent run that no step of this run brought in (for
    a trusted one: no mapping of this run). `place` numbers bundles and asked-for tools (`tools`, in
    their order) as the run came upon them: the array has this order, so that later ones are
    appended.
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
    """A bundle that the step may see.

    `evidence` says in words what the reason rests on. `mode` is set where the bundle is presented
    in another mode than its own: a bundle of a shortlist stays behind search.
    """

    id: str
    rank: int
    reason: Reason
    evidence: str = ""
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A bundle (with `tool`: one tool of a shown bundle) that the step may not see, and the first
    test it failed.

    An `evicted` tool left the array, and may still be found and called.
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
    """The cost and the answer of one question to a model.

    Contains the raw answer, so that a replay needs no model.
    """

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
    """What search found for one question, and what followed from it.

    Recorded whoever answered in the end.

    `thresholds` is the version of what `verdict` rests on. `probability` is that of the best bundle
    being right (None: no calibration), `threshold` what it was compared with (None: search alone
    never shows such a bundle). `ranked` has the best candidates with their scores; those under
    `cut` are not plausible. `embeddings`: whether an embedder was `used`, or why words alone were
    ranked by (None: none is configured). `recall`: the same for remembered steps (None: none are).
    `withheld`: those of `ranked` that `[search] offer` keeps out of a shortlist.
    """

    verdict: Verdict
    why: str
    thresholds: str
    probability: float | None = None
    threshold: float | None = None
    cut: float = 0.0
    evidence: Evidence = NO_EVIDENCE
    ranked: tuple[Candidate, ...] = ()
    embeddings: EmbeddingUse | None = None
    recall: Recall | None = None
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A selector's answer to a question: bundle ids in order of preference, and how it found them.

    The core treats it as a wish: ids that are not candidates are dropped, whoever sent them.
    """

    ids: tuple[str, ...]
    source: Source
    reason: Reason
    justification: str = ""
    scores: tuple[Candidate, ...] = ()
    model: ModelUse | None = None
    dropped: tuple[tuple[str, Code], ...] = ()
    """Ids that the selector itself left out, each with the code to record (`below_floor`,
    `over_budget`).
    """
    offered: tuple[str, ...] = ()
    """Ids to offer behind search beside the picked ones, since a pick may be wrong."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a question: answered (`answer`), failed (`failure`), or nobody to ask
    (neither).

    Both: a model failed and search replaced it, so the decision is degraded. `key` is the key of
    the asked question, by which a replay knows whether it would be asked again. `search` is what
    search found, if it was asked; `revisions` are those of the learned artifacts that it used (see
    `Facts`).
    """

    key: str = ""
    answer: Answer | None = None
    failure: Failure | None = None
    model: ModelUse | None = None
    search: SearchUse | None = None
    revisions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Exposure:
    """How much the step is shown: tools in the array and their tokens (cl100k_base where counted),
    besides meta-tools, beside all known tools. A deferred tool counts from the step after the one
    that asked for it (see `core.exposure`).
    """

    tools: int
    tokens: int
    all_tools: int
    all_tokens: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step may see, why, and why not the rest.

    The run directory has it before you do. `bundle_ids` is ordered: what the step asked for first,
    sticky bundles last.
    """

    bundles: tuple[Chosen, ...]
    """The bundles shown, each with its rank, its reason and the evidence."""
    left_out: tuple[LeftOut, ...]
    """Bundles and tools that are not shown, each with the first test it failed."""
    source: Source
    """What decided it: `mapping`, `search`, `model`, `shortlist`, `default` or `none`."""
    degraded: bool
    """Whether a fallback was used because search or the model gave no usable answer."""
    justification: str
    """The reasons in a sentence."""
    route: str | None
    """The name of the route that matched, or None."""
    candidates: tuple[Candidate, ...]
    """The permitted bundles that search or the model could pick."""
    before: Activation
    """The activation before the step."""
    after: Activation
    """The activation after the step."""
    evicted: tuple[str, ...]
    """Ids of bundles that left the activation."""
    exposure: Exposure
    """How much the step is shown, beside everything there is."""
    model: ModelUse | None = None
    """The cost and the answer of the question to a model, if one was asked."""
    search: SearchUse | None = None
    """What search found, if it was asked."""
    run_id: str = ""
    """The id of its run."""
    seq: int = -1
    """The number of its record in the run."""
    decision_id: str = ""
    """Its id, which `tools` and `call` take as `decision`."""
    catalog_revision: str = ""
    """The revision of the config that it was made under."""
    input_digest: str = ""
    """The digest of all inputs of the decision."""

    @property
    def bundle_ids(self) -> list[str]:
        return [bundle.id for bundle in self.bundles]

    @property
    def evicted_tools(self) -> tuple[str, ...]:
        """The tools that an earlier step asked for and that left the array, because too many were
        asked for later or this step has no room for them. They are in `left_out`.
        """
        return tuple(
            row.tool for row in self.left_out if row.tool and row.code in ("evicted", "over_budget")
        )

    def to_json(self) -> dict[str, object]:
        """Return this as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Decision:
        """Return the decision that `to_json` wrote.

        Raises pydantic's ValidationError for anything else.
        """
        return TypeAdapter(cls).validate_python(dict(value))


@dataclass(frozen=True, slots=True)
class RecentStep:
    """An earlier step of this run, as search and the model may see it."""

    role: str
    step: str
    goal: str
    bundle_ids: tuple[str, ...]
