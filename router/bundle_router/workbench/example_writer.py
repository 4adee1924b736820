"""Has the configured model write examples and words for bundles (`review.example_writing`).

Rules:
1. A person starts it. Nothing is written here, and nothing of it happens when a step is routed.
2. One bundle after the other, with at most two calls each: the second to the same model where its
   first answer could not be used, or to the next model where the first failed otherwise.
3. `max_cost_usd` is exceeded by the first bundle at most. A bundle is not begun if it may cost more
   than what is left, going by the dearest so far; a call that timed out counts as the dearest. The
   day's limit (`[model] max_cost_per_day`) holds, too.
4. What ends the run leaves what was written before, and names the rest. A failure that would meet
   every bundle (no key, a refused request) ends it at once, one that may pass (`PASSING`) where it
   meets two bundles in a row.
5. What was taken of an answer is kept beside the runs for a day, so that the run which writes what
   an earlier one showed asks nobody. It is judged again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from bundle_router.adapters.system import SystemClock
from bundle_router.core.catalog import Bundle, Catalog, ModelChoice
from bundle_router.core.decide.asking.model_exchange import Correction, ModelReply, ModelRequest
from bundle_router.core.decide.asking.prompt import json_line
from bundle_router.core.search.text import Analyzer
from bundle_router.core.values import Failure
from bundle_router.core.values.canonical import digest_of
from bundle_router.engine.asking.day_budget import DayBudget
from bundle_router.errors import NotInstalled, RequestError
from bundle_router.ports import AnswerStore, ModelClient, Readiness, Redactor
from bundle_router.review.example_writing.candidates import ENOUGH
from bundle_router.review.example_writing.judging import AnswerJudge, JudgedAnswer
from bundle_router.review.example_writing.question import (
    EXAMPLES,
    QUESTION_VERSION,
    answer_shape,
    described_bundle,
    system_text,
)
from bundle_router.wiring.effects import open_diagnostics, open_redactor

DEADLINE_S: Final = 60.0
"""Least seconds for one call: it writes more than an answer to a question of routing."""
KEPT_S: Final = 86_400.0
"""Seconds for which an answer is kept."""
UNREADABLE: Final[frozenset[Failure]] = frozenset(("invalid_output", "truncated"))
"""Failures of an answer that the same model may mend."""
OF_BUNDLE: Final[frozenset[Failure]] = frozenset((*UNREADABLE, "refused", "context_window"))
"""Failures that say nothing about the next bundle."""
PASSING: Final[frozenset[Failure]] = frozenset(("timeout", "rate_limited", "upstream_error"))
"""Failures of a provider that may have passed when the next bundle is asked about."""


@dataclass(frozen=True, slots=True)
class ExampleDraft:
    """What a model wrote for one bundle."""

    bundle: str
    """The bundle's id."""
    model: str
    """The model that wrote it, as litellm names it."""
    answer: JudgedAnswer
    """What is taken of its answer."""


@dataclass(frozen=True, slots=True)
class ExampleDrafts:
    """What a run brought."""

    drafts: tuple[ExampleDraft, ...]
    """One for each bundle for which there is something to add."""
    failed: tuple[tuple[str, str], ...]
    """Bundles that were asked about in vain, each with the reason."""
    remaining_bundles: tuple[str, ...] = ()
    """Bundles that were not asked about."""
    end_reason: str = ""
    """Why there are such; empty: there are none."""
    cost_usd: float = 0.0
    """US dollars, as far as the model's price is known."""
    calls: int = 0
    """Calls that were made."""


@dataclass(frozen=True, slots=True)
class _StoredAnswer:
    """What is kept of an answer."""

    model: str
    examples: tuple[str, ...]
    words: tuple[tuple[str, tuple[str, ...]], ...]


_STORED: Final = TypeAdapter(_StoredAnswer)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What asking about one bundle came to: an answer, or a failure."""

    model: str
    failure: Failure | None = None
    judgement: JudgedAnswer | None = None
    stored: _StoredAnswer | None = None
    raw: str = ""

    @property
    def usable(self) -> int:
        """How many examples can be used."""
        return len(self.judgement.examples) if self.judgement is not None else 0


@dataclass(frozen=True, slots=True)
class WritingBounds:
    """What a run of an `ExampleWriter` may spend."""

    max_cost_usd: float | None = None
    """US dollars; None: no bound."""
    day: DayBudget | None = None
    """The day's limit of the models; None: there is none."""
    deadline_s: float = DEADLINE_S
    """Seconds that one call may take."""


class ExampleWriter:
    """Asks the models of a catalog about its bundles, on one event loop.

    `store` None: no answer is kept.
    """

    def __init__(
        self,
        catalog: Catalog,
        client: ModelClient,
        redactor: Redactor,
        analyzer: Analyzer,
        bounds: WritingBounds,
        store: AnswerStore | None = None,
    ) -> None:
        languages = catalog.settings.search.languages
        self._catalog = catalog
        self._models = catalog.settings.model.choices
        self._client = client
        self._redactor = redactor
        self._judge = AnswerJudge(catalog, analyzer, redactor.redact)
        self._bounds = bounds
        self._store = store
        self._system = system_text(languages)
        self._shape = answer_shape(languages)
        self._cost_usd = 0.0
        self._dearest_usd = 0.0
        self._calls = 0
        self._passing = 0
        self._drafts: dict[str, ExampleDraft] = {}
        self._failed: dict[str, str] = {}

    async def write(
        self, bundles: Sequence[Bundle], done: Callable[[int], None] = lambda _: None
    ) -> ExampleDrafts:
        """Ask about each bundle. A failure of the model is in the result, never raised."""
        end_reason = ""
        for number, bundle in enumerate(bundles, start=1):
            end_reason = await self._write_one(bundle)
            if end_reason:
                break
            done(number)
        settled = {*self._drafts, *self._failed}
        remaining_bundles = tuple(bundle.id for bundle in bundles if bundle.id not in settled)
        return ExampleDrafts(
            tuple(self._drafts.values()),
            tuple(self._failed.items()),
            remaining_bundles,
            end_reason if remaining_bundles else "",
            self._cost_usd,
            self._calls,
        )

    async def _write_one(self, bundle: Bundle) -> str:
        """Get what a model writes for a bundle; return why none is asked about the next one."""
        described = self._redactor.redact_value(described_bundle(self._catalog, bundle))
        user = json_line(described)
        names = [model.name for model in self._models]
        key = digest_of([QUESTION_VERSION, self._system, user, names])
        outcome = await self._kept(key, bundle)
        if outcome is None:
            if no_room := self._why_no_room():
                return no_room
            outcome = await self._ask_within_day(user, bundle)
            if outcome is None:
                return "[model] max_cost_per_day leaves no room today"
            await self._keep(key, outcome)
        self._note(outcome, bundle)
        return self._why_ended(outcome.failure)

    def _note(self, outcome: _Outcome, bundle: Bundle) -> None:
        judgement = outcome.judgement
        if judgement is None:
            self._failed[bundle.id] = str(outcome.failure)
        elif judgement.examples or judgement.words:
            self._judge.take(bundle, judgement)
            self._drafts[bundle.id] = ExampleDraft(bundle.id, outcome.model, judgement)
        else:
            reasons = "; ".join(dict.fromkeys(reason for _, reason in judgement.refusals))
            self._failed[bundle.id] = f"no example can be used: {reasons or 'there is none'}"

    def _why_ended(self, failure: Failure | None) -> str:
        """Return why a failure ends the run (rule 4); empty if it does not."""
        if failure in PASSING:
            self._passing += 1
            return f"the model failed twice in a row ({failure})" if self._passing == 2 else ""
        self._passing = 0
        if failure is None or failure in OF_BUNDLE:
            return ""
        return f"the model would answer about no other bundle, either ({failure})"

    # --- what it may cost -------------------------------------------------------------------------

    def _why_no_room(self) -> str:
        """Return why no further bundle is asked about (rule 3); empty if one is."""
        limit_usd = self._bounds.max_cost_usd
        if limit_usd is None or 0.0 < limit_usd >= self._cost_usd + self._dearest_usd:
            return ""
        return f"${self._cost_usd:.6f} are spent of ${limit_usd:.6f}"

    async def _ask_within_day(self, user: str, bundle: Bundle) -> _Outcome | None:
        """Ask about a bundle; None where the day's limit leaves no room."""
        reservation = None
        if self._bounds.day is not None:
            reservation = await asyncio.to_thread(self._bounds.day.reserve)
            if reservation is None:
                return None

        cost_before_usd = self._cost_usd
        outcome = await self._ask(user, bundle)
        cost_usd = self._cost_usd - cost_before_usd
        self._dearest_usd = max(self._dearest_usd, cost_usd)
        if self._bounds.day is not None and reservation is not None:
            is_known = outcome.failure != "timeout"
            settle = partial(self._bounds.day.settle, reservation, cost_usd, is_known=is_known)
            await asyncio.to_thread(settle)
        return outcome

    # --- asking -----------------------------------------------------------------------------------

    async def _ask(self, user: str, bundle: Bundle) -> _Outcome:
        """Ask at most twice (rule 2), and return the better answer."""
        first = await self._call(self._models[0], user, bundle)
        if first.usable >= ENOUGH:
            return first
        if first.failure is None or first.failure in UNREADABLE:
            complaint = Correction(first.raw, _complaint(first))
            second = await self._call(self._models[0], user, bundle, complaint)
        elif len(self._models) > 1:
            second = await self._call(self._models[1], user, bundle)
        else:
            return first
        return second if second.usable > first.usable else first

    async def _call(
        self, model: ModelChoice, user: str, bundle: Bundle, correction: Correction | None = None
    ) -> _Outcome:
        self._calls += 1
        request = ModelRequest(model, self._system, user, self._shape, correction)
        try:
            async with asyncio.timeout(self._bounds.deadline_s):
                reply = await self._client.complete(request)
        except TimeoutError:
            # The provider may have charged for it.
            reply = ModelReply(failure="timeout", cost_usd=self._dearest_usd)
        self._cost_usd += reply.cost_usd
        if reply.answer is None:
            return _Outcome(model.name, reply.failure, raw=reply.raw or "")

        fields = reply.answer.model_dump()
        words = tuple((code, tuple(texts)) for code, texts in fields.get("words", {}).items())
        stored = _StoredAnswer(model.name, tuple(fields["examples"]), words)
        return self._judged(stored, bundle, reply.raw or "")

    def _judged(self, answer: _StoredAnswer, bundle: Bundle, raw: str = "") -> _Outcome:
        judgement = self._judge.judge(bundle, answer.examples, dict(answer.words))
        return _Outcome(answer.model, None, judgement, answer, raw)

    # --- answers that are kept --------------------------------------------------------------------

    async def _kept(self, key: str, bundle: Bundle) -> _Outcome | None:
        if self._store is None:
            return None
        text = await asyncio.to_thread(self._store.get, key)
        if text is None:
            return None
        try:
            return self._judged(_STORED.validate_json(text), bundle)
        except ValidationError:
            return None  # written by another version, or by another hand

    async def _keep(self, key: str, outcome: _Outcome) -> None:
        if self._store is not None and outcome.stored is not None and outcome.usable:
            text = json.dumps(asdict(outcome.stored))
            await asyncio.to_thread(self._store.put, key, text, KEPT_S)


def _complaint(outcome: _Outcome) -> str:
    """Return what the model is told about an answer of which too little can be used."""
    said = "That could not be read"
    if outcome.judgement is not None:
        reasons = dict.fromkeys(reason for _, reason in outcome.judgement.refusals)
        said = f"Too few of these can be used ({'; '.join(reasons) or 'there are none'})"
    return (
        f"{said}. Answer with the JSON object described above and nothing else, with {EXAMPLES}"
        " other examples."
    )


def write_examples(
    catalog: Catalog,
    bundles: Sequence[Bundle],
    *,
    runs: str | Path,
    max_cost_usd: float,
    is_default_cost: bool,
    done: Callable[[int], None] = lambda _: None,
) -> ExampleDrafts:
    """Have the models of the config write examples for these bundles.

    `is_default_cost`: nobody asked for just this limit, so that a model of unknown price is asked
    without one.

    Raises NotInstalled without the models' libraries, and RequestError where no model is named, it
    can't be loaded, or a limit was asked for that can't hold.
    """
    from bundle_router.adapters.answer_store import SqlAnswers
    from bundle_router.adapters.bm25 import english_stemmer
    from bundle_router.adapters.llm import LiteLlm
    from bundle_router.adapters.loop import CLEAN_UP_S, LoopThread
    from bundle_router.adapters.model_costs import SqlDayCosts

    settings = catalog.settings.model
    if not settings.names:
        raise RequestError(
            "no model is configured, which could write examples",
            advice="name one in router.toml: [model] names = ['openai/gpt-5-mini']",
        )
    clock = SystemClock()
    redactor = open_redactor(catalog)
    diagnostics = open_diagnostics(catalog, redactor)
    day = None
    if settings.max_cost_per_day is not None:
        costs = SqlDayCosts(runs, diagnostics)
        day = DayBudget(settings.max_cost_per_day, costs, clock, diagnostics)
    loop = LoopThread("bundle-router-model", abandon_after_s=CLEAN_UP_S + 1)
    client = LiteLlm(settings.choices)
    try:
        _check_readiness(loop.submit(client.warm_up()).result())
        bounds = WritingBounds(
            _limit(settings.names, max_cost_usd, is_default_cost),
            day,
            max(settings.deadline_s, DEADLINE_S),
        )
        analyzer = Analyzer(english_stemmer())
        store = SqlAnswers(runs, diagnostics)
        writer = ExampleWriter(catalog, client, redactor, analyzer, bounds, store)
        return loop.submit(writer.write(bundles, done)).result()
    finally:
        loop.submit(client.close()).result()
        loop.close()


def _check_readiness(readiness: Readiness) -> None:
    if readiness == "missing":
        raise NotInstalled(
            "asking a model needs litellm and instructor",
            advice="pip install 'bundle-router[model]'",
        )
    if readiness != "ready":
        raise RequestError("the models' libraries can't be loaded", advice="see the log")


def _limit(names: Sequence[str], max_cost_usd: float, is_default: bool) -> float | None:
    """Return the limit that can hold; None where a price is unknown and no limit was asked for."""
    from bundle_router.adapters.llm import has_price

    unpriced = [name for name in names if not has_price(name)]
    if not unpriced:
        return max_cost_usd
    if is_default:
        return None
    raise RequestError(
        f"the price of {unpriced[0]} is unknown, so --max-cost can't limit what it costs",
        advice="leave --max-cost out for a model that costs nothing",
    )
