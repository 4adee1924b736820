"""A decision is a pure function of (catalog, facts, activation, step, answer).

    decide(catalog, facts, activation, step) ─► Decision
                                            └─► Question ─► settle(question, answer) ─► Decision
                                                         └─► give_up(question, failure) ─► Decision

Rules:
1. No clock, disk, network or randomness. Same inputs, same bytes out.
2. The permitted set is computed before any answer is heard and is never widened after: `settle` keeps only ids that
   were candidates, whoever sent them.
3. A route that matches and has no `ask` is settled without a question, and ignores stickiness that search or a model
   brought in. So text in the intent can't influence it.
4. A step with no answer (no route, nothing found, no default) gets none: only `always` bundles, and nothing sticky.
5. With fewer than two candidates nothing is asked: one candidate is not a choice, and is never taken automatically.
6. What a reader would ask about is in `left_out`; a bundle that simply had no mapping is not (see `explain`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from router.core import activation as sticky_set
from router.core.canonical import digest_of
from router.core.catalog import Bundle, Catalog, Route
from router.core.mapping import Address, Mapping
from router.core.models import (
    Activation,
    Answer,
    Chosen,
    Decision,
    Exposure,
    Facts,
    Failure,
    Grant,
    LeftOut,
    ModelUse,
    Reason,
    Source,
    Step,
    StepPolicy,
)
from router.core.patterns import first_match
from router.core.policy import Ceiling, Verdict, ceiling_of, static_verdict, with_facts

UNTRUSTED_ORIGINS: Final[frozenset[Reason]] = frozenset(("search", "model", "model_cached", "union"))
"""Origins that text in an intent may have had a hand in: a mapped route ignores stickiness that came from them."""

_MAX_PLANS: Final = 1024
_MAX_VERDICTS: Final = 100_000


class Plan:
    """What the catalog alone says about one address: its route, its ceiling, and verdicts as they are asked for.

    A cache, never an input: everything in it can be computed again from the catalog.
    """

    __slots__ = ("_catalog", "_selectable", "_verdicts", "ceiling", "route")

    def __init__(
        self, catalog: Catalog, address: Address, policy: StepPolicy | None, grants: tuple[Grant, ...]
    ) -> None:
        self._catalog = catalog
        self._verdicts: dict[str, Verdict] = {}
        self._selectable: tuple[Bundle, ...] | None = None
        self.route = _indexes(catalog).mapping.match(address)
        self.ceiling: Ceiling = ceiling_of(catalog, address, policy, grants)

    def verdict(self, id_: str, facts: Facts) -> Verdict:
        bundle = self._catalog.bundle(id_)
        if bundle is None:
            return Verdict(id_, code="unknown_bundle", detail="no bundle has this id")
        return self._judge(bundle, facts)

    def _judge(self, bundle: Bundle, facts: Facts) -> Verdict:
        known = self._verdicts.get(bundle.id)
        if known is None:
            known = self._verdicts[bundle.id] = static_verdict(self._catalog, self.ceiling, bundle)
        return with_facts(known, facts, bundle)

    def candidates(self, facts: Facts, ask: tuple[str, ...] | None, but: Iterable[str]) -> tuple[str, ...]:
        """Permitted bundles a selector may pick, in id order: those `ask` covers (None: all), without `but`."""
        if self._selectable is None:
            ceiling, catalog = self.ceiling, self._catalog
            self._selectable = tuple(
                bundle
                for bundle in catalog.bundles.values()
                if bundle.selectable and not bundle.always and static_verdict(catalog, ceiling, bundle).permitted
            )
        excluded = set(but)
        return tuple(
            bundle.id
            for bundle in self._selectable
            if bundle.id not in excluded
            and (ask is None or first_match(ask, bundle.id) is not None)
            and self._judge(bundle, facts).permitted
        )

    @property
    def weight(self) -> int:
        return len(self._verdicts) + len(self._selectable or ())


@dataclass(slots=True)
class _Indexes:
    """Per-catalog look-ups, built once. Kept on the catalog, outside its value."""

    mapping: Mapping
    all_tools: int
    all_tokens: int
    plans: dict[tuple[Address, StepPolicy | None, tuple[Grant, ...]], Plan] = field(default_factory=dict)


def _indexes(catalog: Catalog) -> _Indexes:
    found = catalog.memo.get("indexes")
    if isinstance(found, _Indexes):
        return found
    tools = {tool for bundle in catalog.bundles.values() for tool in bundle.tools} | set(catalog.cards)
    tokens = sum(card.tokens for card in catalog.cards.values())
    built = _Indexes(Mapping(catalog.routes), len(tools), tokens)
    catalog.memo["indexes"] = built
    return built


def plan_for(catalog: Catalog, step: Step, grants: tuple[Grant, ...]) -> Plan:
    """The plan of the step's address, from the cache where it is known."""
    indexes = _indexes(catalog)
    key = ((step.workflow, step.role, step.step), step.policy, grants)
    plan = indexes.plans.get(key)
    if plan is None:
        if len(indexes.plans) >= _MAX_PLANS or sum(p.weight for p in indexes.plans.values()) > _MAX_VERDICTS:
            indexes.plans.clear()
        plan = indexes.plans[key] = Plan(catalog, *key)
    return plan


@dataclass(frozen=True, slots=True)
class Question:
    """What only search or a model can settle: which of the candidates the step needs besides `base`.

    `candidates` are permitted bundle ids in id order, at least two of them.
    """

    catalog: Catalog
    facts: Facts
    activation: Activation
    step: Step
    route: Route | None
    candidates: tuple[str, ...]

    @property
    def key(self) -> str:
        """Equal keys: the same choice is put. (What the step says is the step's, and recorded with it.)"""
        return digest_of(self.candidates)


@dataclass(frozen=True, slots=True)
class _Need:
    """A bundle the step asks for, before policy was heard."""

    id: str
    reason: Reason
    evidence: str


def decide(catalog: Catalog, facts: Facts, activation: Activation, step: Step) -> Decision | Question:
    """What the step may see; or, where the mapping has no (whole) answer, the question to ask."""
    plan = plan_for(catalog, step, facts.grants)
    route = plan.route
    if route is not None and route.ask is None:
        return _settled(catalog, facts, activation, step, _Settling(route, _mapped(route), "mapping"))
    if catalog.settings.fallback.order != ("default",):
        but = [bundle.id for id_ in route.bundles if (bundle := catalog.bundle(id_))] if route else ()
        candidates = plan.candidates(facts, route.ask if route else None, but)
        if len(candidates) >= 2:
            return Question(catalog, facts, activation, step, route, candidates)
    return _unanswered(catalog, facts, activation, step, route, failure=None, model=None)


def settle(question: Question, answer: Answer) -> Decision:
    """The decision that an answer leads to. Ids that are not candidates are dropped and recorded, never shown."""
    candidates = set(question.candidates)
    picks = [id_ for id_ in dict.fromkeys(answer.ids) if id_ in candidates]
    if not picks:
        return _unanswered(
            question.catalog,
            question.facts,
            question.activation,
            question.step,
            question.route,
            None,
            answer.model,
            answer,
        )
    base = _mapped(question.route)
    needs = base + [_Need(id_, answer.reason, answer.justification) for id_ in picks]
    settling = _Settling(
        question.route, needs, answer.source, justification=answer.justification, answer=answer, model=answer.model
    )
    return _settled(question.catalog, question.facts, question.activation, question.step, settling)


def give_up(question: Question, failure: Failure | None, model: ModelUse | None = None) -> Decision:
    """The decision when nobody answered: what the route maps, or the declared default, or none.

    `failure=None` says that nobody was there to ask (no search, no model): declared behaviour, so not degraded.
    """
    return _unanswered(
        question.catalog, question.facts, question.activation, question.step, question.route, failure, model
    )


# --- from needs to a decision --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Settling:
    """How the needs came about."""

    route: Route | None
    needs: Sequence[_Need]
    source: Source
    degraded: bool = False
    justification: str = ""
    answer: Answer | None = None
    model: ModelUse | None = None


def _mapped(route: Route | None) -> list[_Need]:
    return [_Need(id_, "mapped", f"route {route.name!r}") for id_ in route.bundles] if route else []


def _unanswered(
    catalog: Catalog,
    facts: Facts,
    activation: Activation,
    step: Step,
    route: Route | None,
    failure: Failure | None,
    model: ModelUse | None,
    answer: Answer | None = None,
) -> Decision:
    degraded = failure is not None
    why = f"the model was not heard ({failure})" if failure else "nothing was selected" if answer else ""
    if route is not None and route.bundles:
        settling = _Settling(route, _mapped(route), "mapping", degraded, why, answer, model)
        return _settled(catalog, facts, activation, step, settling)
    default = catalog.settings.fallback.default if "default" in catalog.settings.fallback.order else ()
    needs = [_Need(id_, "default", "[fallback] default") for id_ in default]
    source: Source = "default" if needs else "none"
    return _settled(catalog, facts, activation, step, _Settling(route, needs, source, degraded, why, answer, model))


def _settled(catalog: Catalog, facts: Facts, activation: Activation, step: Step, how: _Settling) -> Decision:
    plan = plan_for(catalog, step, facts.grants)
    shown = _Shown(catalog, step)
    needs = [*how.needs, *(_Need(bundle.id, "always", "always = true") for bundle in catalog.always)]
    for need in needs:
        shown.add(plan.verdict(need.id, facts), need.reason, need.evidence)
    needed = [(chosen.id, chosen.reason) for chosen in shown.bundles]
    source: Source = how.source
    if source == "default" and not any(reason == "default" for _, reason in needed):
        source = "none"  # every default bundle was refused: the step got nothing, and says so

    applied = sticky_set.apply(
        activation, needed, lambda id_: _tools_of(catalog, id_), catalog.settings.activation.max_tools
    )
    if catalog.settings.activation.sticky and source != "none":
        _add_sticky(shown, plan, facts, activation, applied, ignore_untrusted=_is_closed(how.route))
    for id_ in applied.evicted:
        shown.leave_out(
            LeftOut(id_, "evicted", f"least recently used, over {catalog.settings.activation.max_tools} tools")
        )
    if how.answer is not None:
        _note_unheard(shown, plan, facts, how.answer)
    return Decision(
        bundles=tuple(shown.bundles),
        left_out=tuple(shown.left_out),
        source=source,
        degraded=how.degraded,
        justification=_justification(how, source, shown),
        route=how.route.name if how.route else None,
        candidates=tuple(sorted(how.answer.scores, key=lambda c: (-(c.score or 0.0), c.id))) if how.answer else (),
        before=activation,
        after=applied.after if catalog.settings.activation.sticky else Activation(),
        evicted=applied.evicted,
        exposure=shown.exposure(),
        model=how.model,
    )


def _is_closed(route: Route | None) -> bool:
    return route is not None and route.ask is None


def _tools_of(catalog: Catalog, id_: str) -> tuple[str, ...]:
    bundle = catalog.bundle(id_)
    return () if bundle is None else bundle.tools or bundle.patterns


def _add_sticky(
    shown: _Shown,
    plan: Plan,
    facts: Facts,
    before: Activation,
    applied: sticky_set.Applied,
    *,
    ignore_untrusted: bool,
) -> None:
    """Shows what stays from earlier steps, most recently used first, where this step's own verdict permits it."""
    present = shown.ids | set(applied.evicted)
    for entry in sorted(before.entries, key=lambda e: (-e.used, e.id)):
        if entry.id in present or (ignore_untrusted and entry.origin in UNTRUSTED_ORIGINS):
            continue
        reason: Reason = "inherited" if entry.inherited else "sticky"
        whence = "from the parent run" if entry.inherited else "from an earlier step"
        shown.add(plan.verdict(entry.id, facts), reason, f"{whence} ({entry.origin})")


def _note_unheard(shown: _Shown, plan: Plan, facts: Facts, answer: Answer) -> None:
    """Records what the selector asked for and did not get, and what it ranked and left out itself."""
    for id_, code in answer.dropped:
        shown.leave_out(LeftOut(id_, code))
    for id_ in dict.fromkeys(answer.ids):
        if id_ not in shown.ids:
            verdict = plan.verdict(id_, facts)
            shown.leave_out(
                LeftOut(id_, "not_selected", "not a candidate at this step")
                if verdict.permitted
                else verdict.as_left_out()
            )
    for candidate in answer.scores:
        if candidate.id not in shown.ids:
            shown.leave_out(LeftOut(candidate.id, "not_selected", "ranked and not taken"))


class _Shown:
    """Collects what is shown and what is left out, within the step's budgets. First reason for an id wins."""

    def __init__(self, catalog: Catalog, step: Step) -> None:
        self._catalog = catalog
        self._step = step
        self.bundles: list[Chosen] = []
        self.left_out: list[LeftOut] = []
        self.ids: set[str] = set()
        self._out: set[str] = set()
        self._tools: set[str] = set()
        self._tokens = 0

    def add(self, verdict: Verdict, reason: Reason, evidence: str) -> None:
        if verdict.id in self.ids:
            return
        if not verdict.permitted:
            self.leave_out(verdict.as_left_out())
            return
        fresh = [tool for tool in verdict.tools if tool not in self._tools]
        tokens = sum(card.tokens for tool in fresh if (card := self._catalog.cards.get(tool)) is not None)
        over = self._over_budget(len(fresh), tokens)
        if over:
            self.leave_out(LeftOut(verdict.id, "over_budget", over))
            return
        self.ids.add(verdict.id)
        self.bundles.append(Chosen(verdict.id, len(self.bundles) + 1, reason, evidence))
        self._tools.update(fresh)
        self._tokens += tokens
        self.left_out.extend(verdict.refused)

    def _over_budget(self, tools: int, tokens: int) -> str:
        step = self._step
        if step.max_bundles is not None and len(self.bundles) + 1 > step.max_bundles:
            return f"the step takes at most {step.max_bundles} bundles"
        if step.max_tools is not None and len(self._tools) + tools > step.max_tools:
            return f"with it the step would see {len(self._tools) + tools} tools, it takes at most {step.max_tools}"
        if step.max_tokens is not None and self._tokens + tokens > step.max_tokens:
            return f"with it the step would pay {self._tokens + tokens} tokens, it takes at most {step.max_tokens}"
        return ""

    def leave_out(self, row: LeftOut) -> None:
        if row.id not in self._out and row.id not in self.ids:
            self._out.add(row.id)
            self.left_out.append(row)

    def exposure(self) -> Exposure:
        indexes = _indexes(self._catalog)
        return Exposure(len(self._tools), self._tokens, indexes.all_tools, indexes.all_tokens)


def _justification(how: _Settling, source: Source, shown: _Shown) -> str:
    if how.route is not None and source in ("mapping", "search", "model"):
        text = f"route {how.route.name!r} covers this step"
    elif how.route is not None:
        text = f"route {how.route.name!r} covers this step and maps nothing"
    else:
        text = "no route covers this step"
    if how.justification:
        text += f"; {how.justification}"
    if source == "default":
        text += "; the declared default is shown"
    elif source == "none":
        text += "; nothing is shown" if not shown.bundles else "; only what is always shown"
    stays = [chosen.id for chosen in shown.bundles if chosen.reason in ("sticky", "inherited")]
    if stays:
        text += f"; {', '.join(stays)} stay{'s' if len(stays) == 1 else ''} from before"
    return text


def permitted_tools(catalog: Catalog, facts: Facts, step: Step, bundle_ids: Sequence[str]) -> dict[str, str]:
    """The tools that the given bundles come to at this step, each with the first bundle that holds it.

    The same verdict as in `decide`: call it at call time with fresh facts to refuse what was revoked since.
    """
    plan = plan_for(catalog, step, facts.grants)
    tools: dict[str, str] = {}
    for id_ in bundle_ids:
        for tool in plan.verdict(id_, facts).tools:
            tools.setdefault(tool, id_)
    return tools


__all__ = ["Question", "decide", "give_up", "permitted_tools", "plan_for", "settle"]
