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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from router.core import activation as sticky_set
from router.core.canonical import digest_of
from router.core.catalog import Bundle, Catalog, Route
from router.core.exposure import shown_at_most
from router.core.mapping import Address, Mapping
from router.core.models import (
    Activation,
    Answer,
    Candidate,
    Chosen,
    Decision,
    Exposure,
    Facts,
    Failure,
    Grant,
    LeftOut,
    ModelUse,
    Reason,
    SearchUse,
    Source,
    Step,
    StepPolicy,
)
from router.core.patterns import first_match
from router.core.policy import Ceiling, Verdict, ceiling_of, static_verdict, with_facts

UNTRUSTED_ORIGINS: Final[frozenset[Reason]] = frozenset(("search", "model", "model_cached", "union"))
"""Origins that text in an intent may have had a hand in: a mapped route ignores stickiness that came from them."""

_MAX_PLANS: Final = 4096
_MAX_VERDICTS: Final = 200_000


class Verdicts:
    """What one ceiling makes of the catalog's bundles, worked out as it is asked for.

    Shared by all addresses under the same policies, so that steps with names of their own don't each pay for it.
    A cache, never an input: everything in it can be computed again from the catalog.
    """

    __slots__ = ("_candidates", "_catalog", "_selectable", "_static", "ceiling")

    def __init__(self, catalog: Catalog, ceiling: Ceiling) -> None:
        self._catalog = catalog
        self._static: dict[str, Verdict] = {}
        self._selectable: tuple[Bundle, ...] | None = None
        self._candidates: dict[object, Candidates] = {}
        self.ceiling = ceiling

    def of(self, id_: str, facts: Facts) -> Verdict:
        bundle = self._catalog.bundle(id_)
        if bundle is None:
            return Verdict(id_, code="unknown_bundle", detail="no bundle has this id")
        return self._judge(bundle, facts)

    def _judge(self, bundle: Bundle, facts: Facts) -> Verdict:
        known = self._static.get(bundle.id)
        if known is None:
            known = self._static[bundle.id] = static_verdict(self._catalog, self.ceiling, bundle)
        return with_facts(known, facts, bundle)

    def candidates(self, facts: Facts, ask: tuple[str, ...] | None, but: tuple[str, ...]) -> Candidates:
        """Permitted bundles a selector may pick: those `ask` covers (None: all), without `but`."""
        key = (facts.capabilities, facts.unavailable, facts.drifted, ask, but)
        found = self._candidates.get(key)
        if found is None:
            if len(self._candidates) >= 16:
                self._candidates.clear()
            found = self._candidates[key] = Candidates(tuple(self._pickable(facts, ask, frozenset(but))))
        return found

    def _pickable(self, facts: Facts, ask: tuple[str, ...] | None, but: frozenset[str]) -> Iterator[str]:
        if self._selectable is None:
            self._selectable = tuple(b for b in self._catalog.bundles.values() if b.selectable and not b.always)
        for bundle in self._selectable:
            asked = bundle.id not in but and (ask is None or first_match(ask, bundle.id) is not None)
            if asked and self._judge(bundle, facts).permitted:
                yield bundle.id

    @property
    def weight(self) -> int:
        return len(self._static)


class Candidates:
    """Permitted bundle ids in id order. `key` is their digest: equal keys, the same choice."""

    __slots__ = ("__dict__", "ids")

    def __init__(self, ids: tuple[str, ...]) -> None:
        self.ids = ids

    @cached_property
    def key(self) -> str:
        return digest_of(self.ids)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the catalog alone says about one address: its route, and what its ceiling makes of the bundles."""

    route: Route | None
    verdicts: Verdicts


PlanKey = tuple[Address, StepPolicy | None, tuple[Grant, ...]]


class _Indexes:
    """Look-ups of one catalog, kept on it outside its value."""

    def __init__(self, catalog: Catalog) -> None:
        tools = {tool for bundle in catalog.bundles.values() for tool in bundle.tools} | set(catalog.cards)
        self.all_tools = len(tools)
        self.all_tokens = sum(card.tokens for card in catalog.cards.values())
        self._catalog = catalog
        self._mapping = Mapping(catalog.routes)
        self._plans: dict[PlanKey, Plan] = {}
        self._verdicts: dict[Ceiling, Verdicts] = {}

    def plan(self, key: PlanKey) -> Plan:
        known = self._plans.get(key)
        if known is None:
            if len(self._plans) >= _MAX_PLANS or sum(v.weight for v in self._verdicts.values()) > _MAX_VERDICTS:
                self._plans, self._verdicts = {}, {}
            address, policy, grants = key
            ceiling = ceiling_of(self._catalog, address, policy, grants)
            verdicts = self._verdicts.setdefault(ceiling, Verdicts(self._catalog, ceiling))
            known = self._plans[key] = Plan(self._mapping.match(address), verdicts)
        return known


def _indexes(catalog: Catalog) -> _Indexes:
    found = catalog.memo.get("indexes")
    if not isinstance(found, _Indexes):
        found = catalog.memo["indexes"] = _Indexes(catalog)
    return found


def plan_for(catalog: Catalog, step: Step, grants: tuple[Grant, ...]) -> Plan:
    """The plan of the step's address, from the cache where it is known."""
    return _indexes(catalog).plan(((step.workflow, step.role, step.step), step.policy, grants))


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
    permitted: Candidates

    @property
    def candidates(self) -> tuple[str, ...]:
        return self.permitted.ids

    @property
    def key(self) -> str:
        """Equal keys: the same choice is put. (What the step says is the step's, and recorded with it.)"""
        return self.permitted.key


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
        but = tuple(bundle.id for id_ in route.bundles if (bundle := catalog.bundle(id_))) if route else ()
        permitted = plan.verdicts.candidates(facts, route.ask if route else None, but)
        if len(permitted.ids) >= 2:
            return Question(catalog, facts, activation, step, route, permitted)
    return _unanswered(catalog, facts, activation, step, route)


def settle(
    question: Question, answer: Answer, failure: Failure | None = None, search: SearchUse | None = None
) -> Decision:
    """The decision that an answer leads to. Ids that are not candidates are dropped and recorded, never shown.

    `failure`: a model was asked before and not heard, so the answer stands in for it and the decision is degraded.
    """
    candidates = set(question.candidates)
    picks = [id_ for id_ in dict.fromkeys(answer.ids) if id_ in candidates]
    heard = _Heard(answer, failure, answer.model, search, nothing=not picks)
    if not picks:
        return _unanswered(question.catalog, question.facts, question.activation, question.step, question.route, heard)
    needs = _mapped(question.route) + [_Need(id_, answer.reason, _evidence(answer, id_)) for id_ in picks]
    settling = _Settling(question.route, needs, answer.source, heard)
    return _settled(question.catalog, question.facts, question.activation, question.step, settling)


def _evidence(answer: Answer, id_: str) -> str:
    """What a pick rests on: its own score, where search gave one; else what the answer says of all."""
    score = next((row.score for row in answer.scores if row.id == id_ and answer.source == "search"), None)
    return answer.justification if score is None else f"score {score:.2f}"


def give_up(
    question: Question, failure: Failure | None, model: ModelUse | None = None, search: SearchUse | None = None
) -> Decision:
    """The decision when nobody answered: what the route maps, or the declared default, or none.

    `failure=None` says that nobody was there to ask (no model, and search was not sure): declared behaviour, so not
    degraded.
    """
    heard = _Heard(None, failure, model, search)
    return _unanswered(question.catalog, question.facts, question.activation, question.step, question.route, heard)


# --- from needs to a decision --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Heard:
    """What became of the question, if one was put."""

    answer: Answer | None = None
    failure: Failure | None = None
    model: ModelUse | None = None
    search: SearchUse | None = None
    nothing: bool = False
    """Whether the answer came to no candidate at all."""

    @property
    def why(self) -> str:
        """Search, model and answer in the order they spoke, each once."""
        said = (
            self.search.why if self.search else "",
            f"{'the model was not' if self.model else 'nobody was'} heard ({self.failure})" if self.failure else "",
            self.answer.justification if self.answer else "",
            "nothing was selected" if self.nothing else "",
        )
        return "; ".join(dict.fromkeys(text for text in said if text))

    @property
    def ranked(self) -> tuple[Candidate, ...]:
        """What was ranked, best first, equal scores by id: recorded in this order, and heard so again on replay."""
        scores = self.answer.scores if self.answer is not None and self.answer.scores else ()
        rows = scores or (self.search.ranked if self.search is not None else ())
        return tuple(sorted(rows, key=lambda row: (-(row.score or 0.0), row.id)))


_UNASKED: Final = _Heard()


@dataclass(frozen=True, slots=True)
class _Settling:
    """How the needs came about."""

    route: Route | None
    needs: Sequence[_Need]
    source: Source
    heard: _Heard = _UNASKED


def _mapped(route: Route | None) -> list[_Need]:
    return [_Need(id_, "mapped", f"route {route.name!r}") for id_ in route.bundles] if route else []


def _unanswered(
    catalog: Catalog, facts: Facts, activation: Activation, step: Step, route: Route | None, heard: _Heard = _UNASKED
) -> Decision:
    if route is not None and route.bundles:
        settling = _Settling(route, _mapped(route), "mapping", heard)
        return _settled(catalog, facts, activation, step, settling)
    default = catalog.settings.fallback.default if "default" in catalog.settings.fallback.order else ()
    needs = [_Need(id_, "default", "[fallback] default") for id_ in default]
    source: Source = "default" if needs else "none"
    return _settled(catalog, facts, activation, step, _Settling(route, needs, source, heard))


def _settled(catalog: Catalog, facts: Facts, activation: Activation, step: Step, how: _Settling) -> Decision:
    plan = plan_for(catalog, step, facts.grants)
    shown = _Shown(catalog, step)
    needs = [*how.needs, *(_Need(bundle.id, "always", "always = true") for bundle in catalog.always)]
    for need in needs:
        shown.add(plan.verdicts.of(need.id, facts), need.reason, need.evidence)
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
        verdict, cap = plan.verdicts.of(id_, facts), catalog.settings.activation.max_tools
        evicted = LeftOut(id_, "evicted", f"least recently used, over {cap} tools")
        shown.leave_out(evicted if verdict.permitted else verdict.as_left_out())
    _note_unheard(shown, plan, facts, how.heard)
    return Decision(
        bundles=tuple(shown.bundles),
        left_out=tuple(shown.left_out),
        source=source,
        degraded=how.heard.failure is not None,
        justification=_justification(how, source, shown),
        route=how.route.name if how.route else None,
        candidates=how.heard.ranked,
        before=activation,
        after=applied.after if catalog.settings.activation.sticky else Activation(),
        evicted=applied.evicted,
        exposure=shown.exposure(),
        model=how.heard.model,
        search=how.heard.search,
    )


def _is_closed(route: Route | None) -> bool:
    return route is not None and route.ask is None


def _tools_of(catalog: Catalog, id_: str) -> tuple[str, ...] | None:
    """What the bundle shows without being asked. None: there is no such bundle any more."""
    bundle = catalog.bundle(id_)
    if bundle is None or not (bundle.tools or bundle.patterns):
        return None
    return bundle.tools or bundle.patterns if bundle.mode == "direct" else ()


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
        shown.add(plan.verdicts.of(entry.id, facts), reason, f"{whence} ({entry.origin})")


def _note_unheard(shown: _Shown, plan: Plan, facts: Facts, heard: _Heard) -> None:
    """Records what the selector asked for and did not get, and what was ranked and left out."""
    answer = heard.answer
    for id_, code in answer.dropped if answer is not None else ():
        shown.leave_out(LeftOut(id_, code))
    for id_ in dict.fromkeys(answer.ids if answer is not None else ()):
        if id_ not in shown.ids:
            verdict = plan.verdicts.of(id_, facts)
            shown.leave_out(
                LeftOut(id_, "not_selected", "not a candidate at this step")
                if verdict.permitted
                else verdict.as_left_out()
            )
    for row in heard.ranked:
        if row.id not in shown.ids:
            shown.leave_out(_ranked_out(row, heard.search))


def _ranked_out(row: Candidate, search: SearchUse | None) -> LeftOut:
    if search is not None and search.verdict == "novel":
        return LeftOut(row.id, "below_floor", "nothing fits the step well enough")
    if search is not None and (row.score or 0.0) < search.cut:
        return LeftOut(row.id, "below_floor", f"score {row.score or 0.0:.2f}, under {search.cut:.2f} is not plausible")
    return LeftOut(row.id, "not_selected", "ranked and not taken")


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
        self._count = 0
        self._tokens = 0

    def add(self, verdict: Verdict, reason: Reason, evidence: str) -> None:
        if verdict.id in self.ids:
            return
        if not verdict.permitted:
            self.leave_out(verdict.as_left_out())
            return
        fresh = [tool for tool in verdict.tools if tool not in self._tools]
        bundle = self._catalog.bundle(verdict.id)
        assert bundle is not None, "a permitted bundle exists"  # noqa: S101 - a caller's bug, not input
        tools, tokens = shown_at_most(self._catalog, bundle, fresh)
        over = self._over_budget(tools, tokens)
        if over:
            self.leave_out(LeftOut(verdict.id, "over_budget", over))
            return
        self.ids.add(verdict.id)
        self.bundles.append(Chosen(verdict.id, len(self.bundles) + 1, reason, evidence))
        self._tools.update(fresh)
        self._count += tools
        self._tokens += tokens
        self.left_out.extend(verdict.refused)

    def _over_budget(self, tools: int, tokens: int) -> str:
        step = self._step
        if step.max_bundles is not None and len(self.bundles) + 1 > step.max_bundles:
            return f"the step takes at most {step.max_bundles} bundles"
        if step.max_tools is not None and self._count + tools > step.max_tools:
            return f"with it the step would see {self._count + tools} tools, it takes at most {step.max_tools}"
        if step.max_tokens is not None and self._tokens + tokens > step.max_tokens:
            return f"with it the step would pay {self._tokens + tokens} tokens, it takes at most {step.max_tokens}"
        return ""

    def leave_out(self, row: LeftOut) -> None:
        if row.id not in self._out and row.id not in self.ids:
            self._out.add(row.id)
            self.left_out.append(row)

    def exposure(self) -> Exposure:
        indexes = _indexes(self._catalog)
        return Exposure(self._count, self._tokens, indexes.all_tools, indexes.all_tokens)


def _justification(how: _Settling, source: Source, shown: _Shown) -> str:
    if how.route is not None and source in ("mapping", "search", "model"):
        text = f"route {how.route.name!r} covers this step"
    elif how.route is not None:
        text = f"route {how.route.name!r} covers this step and maps nothing"
    else:
        text = "no route covers this step"
    if how.heard.why:
        text += f"; {how.heard.why}"
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
        for tool in plan.verdicts.of(id_, facts).tools:
            tools.setdefault(tool, id_)
    return tools


__all__ = ["Question", "decide", "give_up", "permitted_tools", "plan_for", "settle"]
