"""A decision is a pure function of (catalog, facts, activation, step, answer).

    decide(plans, facts, activation, step) ─► Decision
                                            └─► Question
    settle(question, answer) ─► Decision
    decide_without_answer(question, failure) ─► Decision

Rules:
1. No clock, disk, network or randomness. Equal inputs give equal bytes.
2. The permitted set is computed before any answer and never widened after it: `settle` keeps only
   ids that were candidates, whoever sent them.
3. A matching route without `ask` is decided without a question, and ignores sticky bundles that
   search, a model or the fallback brought in. So text in the intent can't influence what it shows.
4. A step without an answer (no route, nothing found, no default) gets only `always` bundles, and no
   sticky ones. So does a step whose route says that it has none (`bundles = []`, no `ask`).
5. With fewer than two candidates no question is asked: one candidate is no choice, and is never
   picked automatically. Where a shortlist may be offered, it is the shortlist.
6. Bundles of the operator's rows come before picked ones, in the order shown and in the step's
   budgets. The declared default is shown beside a shortlist, since that is no answer.
7. `left_out` explains every bundle a reader would ask about, including all that were there before;
   a bundle that merely had no mapping is not in it (see `explain`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from bundle_router.core.catalog import Catalog, Route
from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.decide.plans import Candidates, Plan, Plans
from bundle_router.core.decide.replies import rank_candidates
from bundle_router.core.decide.step_bundles import StepBundles
from bundle_router.core.exposure.placing import may_be_offered
from bundle_router.core.values import (
    MODES,
    Activation,
    Answer,
    Candidate,
    Decision,
    Entry,
    Facts,
    Failure,
    LeftOut,
    ModelUse,
    Reason,
    SearchUse,
    Source,
    Step,
    WouldRefuse,
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question for search or a model: which of the candidates the step needs besides its mapped
    bundles.
    """

    plans: Plans
    """The plans of the catalog that decides."""
    facts: Facts
    """What was looked up for the decision."""
    activation: Activation
    """The bundles that are active in the run."""
    step: Step
    """The step that asks."""
    route: Route | None
    """The route that matched; None: none did."""
    permitted: Candidates
    """The permitted bundles, at least two, in id order."""
    may_ask_model: bool = True
    """False where the run has used up its questions."""

    @property
    def catalog(self) -> Catalog:
        return self.plans.catalog

    @property
    def candidates(self) -> tuple[str, ...]:
        return self.permitted.ids

    @property
    def key(self) -> str:
        """A digest that is equal for equal choices, without the step's own texts, which are
        recorded with it.
        """
        return self.permitted.key


def decide(plans: Plans, facts: Facts, activation: Activation, step: Step) -> Decision | Question:
    """Return the decision; or the question to ask, where the mapping has no answer or only a part
    of one.

    `plans` are those of the catalog.
    """
    catalog = plans.catalog
    plan = plans.of(step, facts.grants)
    route = plan.route
    if route is not None and route.ask is None:
        return _build_decision(plans, facts, activation, step, _Settling(route, "mapping"))
    order = catalog.settings.fallback.order
    permitted = Candidates(())
    if order != ("default",):
        if route:
            excluded = tuple(bundle.id for id_ in route.bundles if (bundle := catalog.bundle(id_)))
        else:
            excluded = ()
        permitted = plan.verdicts.candidates(facts, route.ask if route else None, excluded)
    question = Question(plans, facts, activation, step, route, permitted)
    if len(permitted.ids) >= 2:
        return question
    only = tuple(id_ for id_ in permitted.ids if may_be_offered(catalog, catalog.bundles[id_]))
    if only and "shortlist" in order:
        return settle(
            question,
            Answer(only, "shortlist", "shortlist", "it is the only bundle that may be picked"),
        )
    return _unanswered(question, _UNASKED)


def settle(
    question: Question,
    answer: Answer,
    failure: Failure | None = None,
    search: SearchUse | None = None,
) -> Decision:
    """Return the decision for an answer.

    Ids that are not candidates are dropped and recorded, never shown.

    `failure`: a model was asked first and failed, so the answer replaces the model's and the
    decision is degraded.
    """
    candidates = set(question.candidates)
    ids = [id_ for id_ in dict.fromkeys(answer.ids) if id_ in candidates]
    selection = _Selection(answer, failure, answer.model, search, nothing=not ids)
    if not ids:
        return _unanswered(question, selection)
    picks = tuple(_Need(id_, answer.reason, selection.evidence(id_)) for id_ in ids)
    if answer.source == "shortlist":
        picks = (*_default_needs(question.catalog), *picks)
    offered_ids = (
        id_ for id_ in dict.fromkeys(answer.offered) if id_ in candidates and id_ not in ids
    )
    doubt = _doubt_of(answer)
    picks += tuple(_Need(id_, "shortlist", f"search ranks it, and {doubt}") for id_ in offered_ids)
    settling = _Settling(question.route, answer.source, picks, selection)
    return _build_decision(
        question.plans, question.facts, question.activation, question.step, settling
    )


def _doubt_of(answer: Answer) -> str:
    """Return why bundles are offered beside what was picked."""
    if answer.source != "model":
        return "the step has several wishes"
    if answer.model is not None and answer.model.sure is False:
        return "the model is not sure"
    return "the model may be wrong"


def decide_without_answer(
    question: Question,
    failure: Failure | None,
    model: ModelUse | None = None,
    search: SearchUse | None = None,
) -> Decision:
    """Return the decision when there is no answer: what the route maps, or the declared default, or
    nothing.

    `failure=None`: there was nobody to ask (no model, and search was not sure). That is declared
    behaviour, not degraded.
    """
    return _unanswered(question, _Selection(None, failure, model, search))


# --- what was heard, and what it comes to ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Need:
    """A bundle that the step asks for, before policy judges it."""

    id: str
    reason: Reason
    evidence: str


@dataclass(frozen=True)
class _Selection:
    """The outcome of the question, if one was asked."""

    answer: Answer | None = None
    failure: Failure | None = None
    model: ModelUse | None = None
    search: SearchUse | None = None
    nothing: bool = False
    """Whether the answer has no candidate at all."""

    @property
    def why(self) -> str:
        """The reasons of search, the model and the answer, in that order, each once."""
        reasons = (
            self.search.why if self.search else "",
            f"{'the model was not' if self.model else 'nobody was'} heard ({self.failure})"
            if self.failure
            else "",
            self.answer.justification if self.answer else "",
            "nothing was selected" if self.nothing else "",
        )
        return "; ".join(dict.fromkeys(text for text in reasons if text))

    @cached_property
    def ranked(self) -> tuple[Candidate, ...]:
        """The ranked candidates, as recorded: a replay takes its scores from here."""
        if self.answer is not None and self.answer.scores:
            return rank_candidates(self.answer.scores)
        if self.search is None:
            return ()
        return rank_candidates(self.search.ranked)

    def evidence(self, id_: str) -> str:
        """Return the evidence of a pick: its own score, where search picked it; else the
        answer's.
        """
        if self.answer is None:
            return ""
        if self.answer.source in ("search", "shortlist"):
            score = next((row.score for row in self.ranked if row.id == id_), None)
            if score is not None:
                return f"score {score:.2f}"
        return self.answer.justification


_UNASKED: Final = _Selection()


@dataclass(frozen=True, slots=True)
class _Settling:
    """How a decision came about. `extra` is needed besides what the route maps."""

    route: Route | None
    source: Source
    extra: Sequence[_Need] = ()
    selection: _Selection = _UNASKED

    @property
    def closed(self) -> Route | None:
        """The route, where it alone decides what the step has."""
        if self.route is not None and self.route.ask is None:
            return self.route
        return None

    def needs(self, catalog: Catalog) -> list[_Need]:
        """Return what the step asks for, in the order of rule 6."""
        route = self.route
        if route:
            mapped = [_Need(id_, "mapped", f"route {route.name!r}") for id_ in route.bundles]
        else:
            mapped = []
        return [
            *mapped,
            *(_Need(bundle.id, "always", "always = true") for bundle in catalog.always),
            *self.extra,
        ]

    def why_nothing_stays(self, source: Source) -> str:
        """Return why this step keeps no bundle from before; empty where it may."""
        if source == "none":
            if self.route is not None:
                name = f"route {self.route.name!r} maps nothing"
            else:
                name = "no route covers this step"
            if self.selection is _UNASKED:
                return name
            return f"{name} and nothing was selected"
        if self.closed is not None and not self.closed.bundles:
            return f"route {self.closed.name!r} says that this step has none"
        return ""


def _unanswered(question: Question, selection: _Selection) -> Decision:
    catalog = question.catalog
    route = question.route
    source: Source = "mapping"
    needs: tuple[_Need, ...] = ()
    if route is None or not route.bundles:
        needs = _default_needs(catalog)
        source = "default" if needs else "none"
    how = _Settling(route, source, needs, selection)
    return _build_decision(question.plans, question.facts, question.activation, question.step, how)


def _default_needs(catalog: Catalog) -> tuple[_Need, ...]:
    fallback = catalog.settings.fallback
    return tuple(
        _Need(id_, "default", "[fallback] default")
        for id_ in fallback.default
        if "default" in fallback.order
    )


def _build_decision(
    plans: Plans, facts: Facts, activation: Activation, step: Step, settling: _Settling
) -> Decision:
    catalog = plans.catalog
    plan = plans.of(step, facts.grants)
    settings = catalog.settings.activation
    if catalog.aliases:
        activation_before = sticky_set.rename_bundles(activation, catalog.id_today)
    else:
        activation_before = activation
    if settings.sticky:
        stays = {entry.id for entry in activation_before.entries if entry.origin != "shortlist"}
    else:
        stays = set()
    step_bundles = StepBundles(plans, step)
    for need in settling.needs(catalog):
        is_offer = need.reason == "shortlist"
        if not (is_offer and need.id in stays):  # what is there already is not offered anew
            step_bundles.add(
                plan.verdicts.of(need.id, facts), need.reason, need.evidence, offered=is_offer
            )
    needed = [(bundle.id, bundle.reason) for bundle in step_bundles.bundles]
    source = _source_of(
        settling,
        {reason for _, reason in needed},
        any(plan.verdicts.of(i, facts).permitted for i in stays),
    )

    only_offered = {
        entry.id for entry in activation_before.entries if entry.origin == "shortlist"
    } - {id_ for id_, _ in needed}
    only_offered |= {id_ for id_, reason in needed if reason == "shortlist"}

    @cache
    def tools_of(id_: str) -> tuple[str, ...] | None:
        tools = _tools_of(catalog, id_)
        if tools is not None and id_ in only_offered:
            return ()
        return tools

    applied = sticky_set.apply(activation_before, needed, tools_of, settings.max_tools)
    if settings.sticky:
        _add_sticky(step_bundles, plan, facts, activation_before, applied, settling, source)
    _note_going(step_bundles, plan, facts, applied, settings.max_tools)
    _note_unpicked(step_bundles, plan, facts, settling.selection)
    activation_after = applied.after if settings.sticky else Activation()
    exposure = step_bundles.exposure(activation_after, plan.verdicts, facts)
    return Decision(
        bundles=tuple(step_bundles.bundles),
        left_out=tuple(step_bundles.left_out),
        source=source,
        degraded=settling.selection.failure is not None
        or _lacks_pending(catalog, facts, step_bundles.left_out),
        justification=_justification(settling, source, step_bundles),
        route=settling.route.name if settling.route else None,
        candidates=settling.selection.ranked,
        before=activation,
        after=activation_after,
        evicted=applied.evicted,
        exposure=exposure,
        model=settling.selection.model,
        search=settling.selection.search,
        would=_would_refuse(plan, facts, step_bundles) if facts.seen else (),
    )


def _would_refuse(plan: Plan, facts: Facts, bundles: StepBundles) -> tuple[WouldRefuse, ...]:
    """Return what of the shown bundles rows with `enforce = false` would have refused."""
    return tuple(
        row for bundle in bundles.bundles for row in plan.verdicts.would_refuse(bundle.id, facts)
    )


def _lacks_pending(catalog: Catalog, facts: Facts, left_out: Sequence[LeftOut]) -> bool:
    """Return whether something is left out because a server's first list had not come yet."""
    unavailable = (
        [row for row in left_out if row.code == "server_unavailable"] if facts.pending else []
    )
    bundles = [(row.tool, catalog.bundle(row.id)) for row in unavailable]
    targets = (
        ((tool,) if tool else (*bundle.tools, *bundle.patterns))
        for tool, bundle in bundles
        if bundle is not None
    )
    return any(target.partition(".")[0] in facts.pending for names in targets for target in names)


def _source_of(settling: _Settling, reasons: set[Reason], stays: bool) -> Source:
    """Return the source of the decision: `none` where every bundle of a shortlist or the default
    was refused.
    """
    source = settling.source
    if source == "shortlist":
        if "shortlist" in reasons or stays:
            return source
        source = "default"
    if source == "default" and "default" not in reasons:
        return "none"
    return source


def _tools_of(catalog: Catalog, id_: str) -> tuple[str, ...] | None:
    """Return what the bundle shows without being asked, each glob over unknown tools counted as
    one; else None.
    """
    bundle = catalog.bundle(id_)
    if bundle is None:
        return None
    if not MODES[bundle.mode].in_array:
        return ()
    if bundle.patterns:
        return (*bundle.tools, *bundle.patterns)
    return bundle.tools


# --- what stays from before, and what goes --------------------------------------------------------


def _add_sticky(
    bundles: StepBundles,
    plan: Plan,
    facts: Facts,
    before: Activation,
    applied: sticky_set.Applied,
    settling: _Settling,
    source: Source,
) -> None:
    """Show the bundles of earlier steps, most recently used first, where this step's verdict
    permits them; leave out every other one with the reason.
    """
    dropped = {*applied.evicted, *applied.aside}
    why_none = settling.why_nothing_stays(source)
    for entry in sorted(before.entries, key=lambda e: (-e.used, e.id)):
        if entry.id in dropped:
            continue
        verdict = plan.verdicts.of(entry.id, facts)
        if sticky_set.is_unused_offer(entry):
            detail = "it was offered at an earlier step, and nothing of it was used"
            bundles.withhold(verdict, LeftOut(entry.id, "not_selected", detail))
        elif why_none:
            bundles.withhold(
                verdict,
                LeftOut(entry.id, "not_mapped", f"{why_none}, so nothing stays {_origin(entry)}"),
            )
        elif settling.closed is not None and entry.origin in sticky_set.UNTRUSTED:
            detail = f"brought in by {entry.origin}; a route that does not ask ignores that"
            bundles.withhold(verdict, LeftOut(entry.id, "not_mapped", detail))
        else:
            is_offer = entry.origin == "shortlist"
            reason: Reason = "inherited" if entry.inherited else "sticky"
            bundles.add(verdict, reason, f"{_origin(entry)} ({entry.origin})", offered=is_offer)


def _origin(entry: Entry) -> str:
    if entry.inherited:
        return "from the parent run"
    return "from an earlier step"


def _note_going(
    bundles: StepBundles, plan: Plan, facts: Facts, applied: sticky_set.Applied, cap: int
) -> None:
    """Record what left the activation, and what made room for this step's picks."""
    for id_ in applied.evicted:
        bundles.withhold(
            plan.verdicts.of(id_, facts),
            LeftOut(id_, "evicted", f"least recently used, over {cap} tools"),
        )
    for id_ in sorted(applied.aside):
        reason = f"with what was picked for this step over {cap} tools; it stays for later steps"
        bundles.withhold(plan.verdicts.of(id_, facts), LeftOut(id_, "over_budget", reason))
    for id_, tool in applied.evicted_tools:
        if tool not in bundles.direct:
            still = "; search still finds it" if id_ in bundles.ids else ""
            bundles.left_out.append(
                LeftOut(id_, "evicted", f"asked for before the last {cap} that were{still}", tool)
            )


# --- what is said of it ---------------------------------------------------------------------------


def _note_unpicked(bundles: StepBundles, plan: Plan, facts: Facts, selection: _Selection) -> None:
    """Record what the selector asked for and did not get, and what was ranked and left out."""
    answer = selection.answer
    for id_, code in answer.dropped if answer is not None else ():
        bundles.leave_out(LeftOut(id_, code))
    for id_ in dict.fromkeys(answer.ids if answer is not None else ()):
        if id_ not in bundles.ids:
            bundles.withhold(
                plan.verdicts.of(id_, facts),
                LeftOut(id_, "not_selected", "not a candidate at this step"),
            )
    for row in selection.ranked:
        if row.id not in bundles.ids:
            bundles.leave_out(_ranked_out(row, selection))


def _ranked_out(row: Candidate, selection: _Selection) -> LeftOut:
    search = selection.search
    if search is None:
        return LeftOut(row.id, "not_selected", "ranked and not taken")
    if row.id in search.withheld and _is_offering(selection.answer):
        return LeftOut(row.id, "not_offered", "[search] offer keeps it out of a shortlist")
    if search.verdict == "novel":
        return LeftOut(row.id, "below_floor", "nothing fits the step well enough")
    score = row.score or 0.0
    if score < search.cut:
        reason = f"score {score:.2f}, under {search.cut:.2f} is not plausible"
        return LeftOut(row.id, "below_floor", reason)
    return LeftOut(row.id, "not_selected", "ranked and not taken")


def _is_offering(answer: Answer | None) -> bool:
    """Return whether bundles are offered: in a shortlist, or beside what search is sure of."""
    if answer is None or answer.source == "shortlist":
        return True
    return answer.source == "search" and bool(answer.offered)


def _justification(settling: _Settling, source: Source, bundles: StepBundles) -> str:
    if settling.route is not None and source in ("mapping", "search", "model", "shortlist"):
        text = f"route {settling.route.name!r} covers this step"
    elif settling.route is not None:
        text = f"route {settling.route.name!r} covers this step and maps nothing"
    else:
        text = "no route covers this step"
    if settling.selection.why:
        text += f"; {settling.selection.why}"
    if source == "default":
        text += "; the declared default is shown"
    elif source == "shortlist":
        text += "; nothing is sure, so the best of what is permitted waits behind search"
    elif source == "none":
        text += "; nothing is shown" if not bundles.bundles else "; only what is always shown"
    stays = [bundle.id for bundle in bundles.bundles if bundle.reason in ("sticky", "inherited")]
    if stays:
        text += f"; {', '.join(stays)} stay{'s' if len(stays) == 1 else ''} from before"
    return text
