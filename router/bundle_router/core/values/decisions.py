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
    """A deferred tool that the run asked for: by search, by name or by a call."""

    name: str
    """Its canonical name, `server.tool`."""
    place: int
    """Its number among the bundles and tools that the run came upon, which orders the array."""
    used: int
    """The sequence number of its last use."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One bundle of a run's activation."""

    id: str
    """The bundle's id."""
    origin: Reason
    """The first reason that brought it in, or the first that text in an intent did not influence.
    """
    used: int
    """The sequence number of its last use: the least recently used goes first."""
    inherited: bool = False
    """Whether it is of the parent run, and no step of this run brought it in (for a trusted one: no
    mapping of this run).
    """
    place: int = 0
    """Its number among the bundles and tools that the run came upon: the array has this order, so
    that later ones are appended.
    """
    tools: tuple[AskedTool, ...] = ()
    """The deferred tools that the run asked for through it, in their order."""


@dataclass(frozen=True, slots=True)
class Activation:
    """The bundles that stay active in a run, ordered by id so that equal sets have equal bytes."""

    entries: tuple[Entry, ...] = ()
    """The bundles."""

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(entry.id for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A bundle that the step may see."""

    id: str
    """The bundle's id."""
    rank: int
    """Its position among the chosen ones, from 1."""
    reason: Reason
    """The code that says why it is shown."""
    evidence: str = ""
    """What the reason rests on, in words."""
    mode: Mode | None = None
    """Set where the bundle is presented in another mode than its own: a bundle of a shortlist stays
    behind search.
    """


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A bundle, or one tool of a shown bundle, that the step may not see.

    An `evicted` tool left the array, and may still be found and called.
    """

    id: str
    """The bundle's id."""
    code: Code
    """The first test that it failed."""
    detail: str = ""
    """What failed, in words."""
    tool: str | None = None
    """The canonical name where it is one tool; None: the whole bundle."""


@dataclass(frozen=True, slots=True)
class WouldRefuse:
    """A bundle or tool that a policy row with `enforce = false` would not have shown."""

    row: str
    """The name of the row."""
    id: str
    """The bundle's id."""
    tool: str | None = None
    """The canonical name where it is one tool; None: the whole bundle."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A permitted bundle that search or the model may pick."""

    id: str
    """The bundle's id."""
    score: float | None = None
    """What search gave it; None where nothing ranked."""


@dataclass(frozen=True, slots=True)
class ModelUse:
    """The cost and the answer of one question to a model.

    Contains the raw answer, so that a replay needs no model.
    """

    name: str
    """The model, as litellm names it."""
    prompt_version: str = ""
    """The version of the prompt."""
    key: str = ""
    """The key that the answer is cached under."""
    cached: bool = False
    """Whether the answer came from the cache."""
    attempts: int = 0
    """Calls that were made."""
    failure: Failure | None = None
    """Why there is no answer; None where there is one."""
    input_tokens: int = 0
    """Tokens sent, over all attempts."""
    output_tokens: int = 0
    """Tokens received, over all attempts."""
    cost_usd: float = 0.0
    """US dollars, as far as the model's price is known."""
    elapsed_ms: float = 0.0
    """Milliseconds in all."""
    answer: str | None = None
    """The answer as the model gave it."""
    sure: bool | None = None
    """Whether the model called itself sure of its picks; None where it gave no answer."""


NO_EVIDENCE: Final = Evidence()


@dataclass(frozen=True, slots=True)
class SearchUse:
    """What search found for one question, and what followed from it.

    Recorded whoever answered in the end.
    """

    verdict: Verdict
    """Whether that was enough: `enough`, `union`, `ambiguous` or `novel`."""
    why: str
    """The reason of the verdict, in words."""
    thresholds: str
    """The version of what the verdict rests on."""
    probability: float | None = None
    """That of the best bundle being right; None: no calibration."""
    threshold: float | None = None
    """What the probability was compared with; None: search alone never shows such a bundle."""
    cut: float = 0.0
    """The score below which a candidate is not plausible."""
    evidence: Evidence = NO_EVIDENCE
    """The features of the ranking."""
    ranked: tuple[Candidate, ...] = ()
    """The best candidates with their scores, best first."""
    embeddings: EmbeddingUse | None = None
    """Whether an embedder was `used`, or why words alone were ranked by; None: none is configured.
    """
    recall: Recall | None = None
    """The same for remembered steps; None: none are."""
    withheld: tuple[str, ...] = ()
    """Those of `ranked` that `[search] offer` keeps out of a shortlist."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A selector's answer to a question: bundle ids in order of preference, and how it found them.

    The core treats it as a wish: ids that are not candidates are dropped, whoever sent them.
    """

    ids: tuple[str, ...]
    """Bundle ids in order of preference."""
    source: Source
    """What answered."""
    reason: Reason
    """The code that the bundles are shown with."""
    justification: str = ""
    """The reason in a sentence."""
    scores: tuple[Candidate, ...] = ()
    """The candidates with their scores."""
    model: ModelUse | None = None
    """The cost of the question, if a model was asked."""
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

    Both: a model failed and search replaced it, so the decision is degraded.
    """

    key: str = ""
    """The key of the asked question, by which a replay knows whether it would be asked again."""
    answer: Answer | None = None
    """The answer, if there is one."""
    failure: Failure | None = None
    """Why the model gave none."""
    model: ModelUse | None = None
    """The cost of the question, if a model was asked."""
    search: SearchUse | None = None
    """What search found, if it was asked."""
    revisions: tuple[tuple[str, str], ...] = ()
    """The revisions of the learned artifacts that search used (see `Facts`)."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """How much the step is shown, beside all known tools, meta-tools not counted.

    A deferred tool counts from the step after the one that asked for it (see `core.exposure`).
    """

    tools: int
    """Tools in the array."""
    tokens: int
    """Tokens of their definitions (cl100k_base where counted)."""
    all_tools: int
    """All known tools."""
    all_tokens: int
    """Tokens of all known definitions."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step may see, why, and why not the rest.

    The run directory has it before you do. `bundle_ids` names the bundles shown: what the step
    asked for first, sticky bundles last. `offered` names those that only wait behind search; their
    tools can be found and called, too.

    >>> from bundle_router import Step
    >>> from bundle_router.testing import Route, fake_router, small_catalog
    >>> route = Route("all", bundles=("repo.readonly",))
    >>> catalog = small_catalog({"repo.readonly": ["repo.read_file"]}, routes=[route])
    >>> step = Step(run_id="r-42", workflow="feature", role="planner", step="plan")
    >>> with fake_router(catalog) as router:
    ...     decision = router.route_sync(step)
    >>> decision.bundle_ids, decision.source, decision.bundles[0].reason
    (['repo.readonly'], 'mapping', 'mapped')
    """

    bundles: tuple[Chosen, ...]
    """The bundles shown or offered, each with its rank, its reason and the evidence."""
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
    would: tuple[WouldRefuse, ...] = ()
    """What policy rows with `enforce = false` would not have shown."""
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
        """The ids of the bundles that are shown, in order."""
        return [bundle.id for bundle in self.bundles if bundle.reason != "shortlist"]

    @property
    def offered(self) -> list[str]:
        """The ids of the bundles that are offered behind search beside them, best first."""
        return [bundle.id for bundle in self.bundles if bundle.reason == "shortlist"]

    @property
    def reachable_ids(self) -> list[str]:
        """The ids of all bundles whose tools the step may call: shown or offered, in order."""
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
    """Its role."""
    step: str
    """Its position in the workflow."""
    goal: str
    """What it was to do."""
    bundle_ids: tuple[str, ...]
    """The bundles that it was shown."""
