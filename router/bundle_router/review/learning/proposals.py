"""Proposed config changes from the logs, each with its evidence. Nothing here is ever applied.

Rules:
1. A route is proposed if search or a model gave the same answer at the same address: at least
   `after` times, in at least `MIN_RUNS` runs (a run counting at most `PER_RUN` times), as `SAME` of
   all answers there; and if `USED` of these were used (unless the engine calls no tools through the
   router at all).
2. An example is proposed for a bundle if search alone fails to rank it for past steps that needed
   it, in at least `MIN_RUNS` runs and for `SAME` of those with similar texts. It is a recorded
   text: read it before you adopt it, because the router's model will read it too.
3. A trim is proposed for tools that were shown at `MIN_SHOWN` steps of `MIN_RUNS` runs, and never
   called nor asked for. A step for which a reviewer says that the bundle was needed counts only if
   one of its tools was called.
4. Only what policy permits today is proposed, and only for bundles that have not changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bundle_router.core.catalog import Catalog, Route
from bundle_router.core.catalog.step_address import address_json
from bundle_router.core.decide.plans import Plans
from bundle_router.core.search.learned_values import fingerprint
from bundle_router.core.search.ranking import Search
from bundle_router.core.values import Address
from bundle_router.core.values.patterns import is_glob
from bundle_router.core.values.visible import visible
from bundle_router.review.example_writing.candidates import lacking_examples
from bundle_router.review.learning.labels import LabelledStep
from bundle_router.review.learning.recorded_steps import PastStep

AFTER: Final = 5
MIN_RUNS: Final = 3
PER_RUN: Final = 3
SAME: Final = 0.9
USED: Final = 0.5
MIN_SHOWN: Final = 20
MAX_EXAMPLES: Final = 3
MAX_EVIDENCE: Final = 3
"""Steps that are named for one example."""
MAX_EXAMPLE: Final = 200
"""Maximum characters of an example. Longer goals are not proposed."""
ALIKE: Final = 0.5
"""Minimum share of common words of two similar texts."""
REDACTED: Final = "[redacted"


@dataclass(frozen=True, slots=True)
class RouteProposal:
    """A row for `routes.toml`.

    `same` of `answers` were this one, in `runs` runs; the models took `cost_usd` for it.
    """

    address: Address
    bundles: tuple[str, ...]
    answers: int
    same: int
    runs: int
    used: int
    cost_usd: float

    def to_json(self) -> dict[str, Any]:
        """Return the proposal as JSON values."""
        values: dict[str, Any] = asdict(self)
        del values["address"]
        return {**address_json(self.address), **values}


@dataclass(frozen=True, slots=True)
class ExampleProposal:
    """An example for a bundle: the goal of a past step, redacted as the record has it."""

    bundle: str
    text: str
    runs: int
    """Runs in which the bundle was needed for goals like it."""
    rank: int | None
    """Place at which search alone ranks the bundle for it; None: not at all."""
    answered_by_model: int = 0
    """Steps with goals like it for which a model picked the bundle, which was then used."""
    evidence: tuple[str, ...] = ()
    """Some of the steps, as `run/seq`."""


@dataclass(frozen=True, slots=True)
class TrimProposal:
    """Tools of a bundle that were shown at `steps` steps of `runs` runs and never called (`whole`:
    all of the bundle's). They cost `tokens` at each of these steps.
    """

    bundle: str
    tools: tuple[str, ...]
    steps: int
    runs: int
    tokens: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Proposals:
    routes: tuple[RouteProposal, ...] = ()
    examples: tuple[ExampleProposal, ...] = ()
    trims: tuple[TrimProposal, ...] = ()

    @property
    def count(self) -> int:
        return len(self.routes) + len(self.examples) + len(self.trims)


def propose(
    past: Sequence[PastStep],
    labelled: Sequence[LabelledStep],
    catalogs: Mapping[str, Catalog],
    current: Catalog,
    search: Search | None,
    *,
    after: int = AFTER,
) -> Proposals:
    """Return all proposals from the logs. Without a search, no examples."""
    return Proposals(
        tuple(_propose_routes(past, current, after)),
        tuple(_propose_examples(labelled, current, search)) if search is not None else (),
        tuple(_trims(past, catalogs, current)),
    )


# --- routes ---------------------------------------------------------------------------------------


def _propose_routes(
    past: Sequence[PastStep], current: Catalog, after: int
) -> Iterator[RouteProposal]:
    records_calls = any(step.called for step in past)
    plans = Plans(current)
    for address, steps in _answered_steps(past):
        sample = _cap_steps(steps)
        totals = Counter(frozenset(step.picks or ()) for step in sample)
        best, agreements = min(totals.items(), key=lambda item: (-item[1], sorted(item[0])))
        if agreements < after or agreements < SAME * len(sample):
            continue
        agreeing = [step for step in steps if frozenset(step.picks or ()) == best]
        runs = len({step.run_id for step in agreeing})
        if runs < MIN_RUNS:
            continue

        uses = sum(_calls_any_of(step, best) for step in agreeing)
        if records_calls and uses < USED * len(agreeing):
            continue
        bundles = _row(agreeing, plans)
        if bundles:
            cost = round(sum(step.cost_usd for step in agreeing), 6)
            yield RouteProposal(address, bundles, len(steps), len(agreeing), runs, uses, cost)


def _answered_steps(past: Sequence[PastStep]) -> Iterator[tuple[Address, list[PastStep]]]:
    """Yield each address that a route could name, with the steps of it that a model answered
    unrestricted.
    """
    answered: defaultdict[Address, list[PastStep]] = defaultdict(list)
    for step in past:
        is_restricted = step.step.parent_run_id or step.step.policy is not None
        if is_restricted or step.degraded:
            continue
        if step.picks:
            answered[step.address].append(step)

    for address, steps in sorted(answered.items()):
        can_be_named = all(name.isprintable() and not is_glob(name) for name in address)
        if can_be_named:
            yield address, steps


def _calls_any_of(step: PastStep, ids: Collection[str]) -> bool:
    return any(id_ in ids for id_, _ in step.called)


def _cap_steps(steps: Iterable[PastStep]) -> list[PastStep]:
    counts: Counter[str] = Counter()
    steps_within = []
    for step in steps:
        counts[step.run_id] += 1
        if counts[step.run_id] <= PER_RUN:
            steps_within.append(step)
    return steps_within


def _row(settled: Sequence[PastStep], plans: Plans) -> tuple[str, ...]:
    """Return the bundles of the row: those that the asking route maps already, then the answer in
    its most frequent order. Empty if today's config settles the address itself, or does not permit
    it.
    """
    last = settled[-1]
    plan = plans.of(last.step, last.facts.grants)
    route: Route | None = plan.route
    if route is not None and route.ask is None:
        return ()

    answers = Counter(step.picks or () for step in settled)
    order, _ = min(answers.items(), key=lambda item: (-item[1], item[0]))
    mapped = route.bundles if route is not None else ()
    ids = []
    for id_ in (*mapped, *order):
        bundle = plans.catalog.bundle(id_)
        if bundle is None or not plan.verdicts.of(id_, last.facts).permitted:
            return ()
        ids.append(bundle.id)
    return tuple(dict.fromkeys(ids))


# --- examples -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Use:
    """A bundle that was needed for similar texts, and nothing else with it."""

    runs: set[str] = field(default_factory=set)
    ranks: dict[str, int | None] = field(default_factory=dict)
    """The texts, each with the place at which search alone ranks the bundle."""
    unsettled: set[str] = field(default_factory=set)
    """Those for which search alone does not rank it first, or a model had to be asked."""
    steps: list[str] = field(default_factory=list)
    """The steps, as `run/seq`."""
    by_model: list[str] = field(default_factory=list)
    """Those of them for which a model picked it."""


@dataclass(slots=True)
class _Kind:
    """Similar texts, and the bundles that were needed for them."""

    stems: frozenset[str]
    uses: defaultdict[str, _Use] = field(default_factory=lambda: defaultdict(_Use))


def _propose_examples(
    labelled: Sequence[LabelledStep], current: Catalog, search: Search
) -> Iterator[ExampleProposal]:
    """Yield goals that search alone does not settle; of bundles that lack examples, any goal.

    What a bundle was needed for in one run is evidence enough where it lacks examples, else in
    `MIN_RUNS`. A person reads each.
    """
    lacking = {bundle.id for bundle in lacking_examples(current, current.bundles)}
    proposals: defaultdict[str, list[ExampleProposal]] = defaultdict(list)
    for kind in _kinds(labelled, search):
        total = len(set().union(*(use.runs for use in kind.uses.values())))
        for bundle, use in kind.uses.items():
            texts = use.ranks if bundle in lacking else use.unsettled
            runs = len(use.runs)
            is_agreed = runs >= SAME * total
            if texts and is_agreed and (bundle in lacking or runs >= MIN_RUNS):
                text = min(texts, key=lambda text: (len(text), text))
                evidence = tuple((use.by_model or use.steps)[-MAX_EVIDENCE:])
                proposals[bundle].append(
                    ExampleProposal(
                        bundle, text, runs, use.ranks[text], len(use.by_model), evidence
                    )
                )
    for _, rows in sorted(proposals.items()):
        yield from sorted(rows, key=lambda row: (-row.runs, row.text))[:MAX_EXAMPLES]


def _kinds(labelled: Sequence[LabelledStep], search: Search) -> list[_Kind]:
    kinds: list[_Kind] = []
    holding: defaultdict[str, list[_Kind]] = defaultdict(list)
    for step in labelled:
        text = visible(" ".join(step.past.step.goal.split()))
        stems = frozenset(search.analyzer.stems(text))
        if len(step.needed) != 1 or len(text) > MAX_EXAMPLE or REDACTED in text or len(stems) < 2:
            continue
        near = (kind for stem in sorted(stems) for kind in holding[stem])
        kind = next((k for k in near if len(stems & k.stems) >= ALIKE * len(stems | k.stems)), None)
        if kind is None:
            kind = _Kind(stems)
            kinds.append(kind)
            for stem in stems:
                holding[stem].append(kind)
        _add_use(kind, step, text, search)
    return kinds


def _add_use(kind: _Kind, step: LabelledStep, text: str, search: Search) -> None:
    (needed,) = step.needed
    past = step.past
    use = kind.uses[needed]
    use.runs.add(past.run_id)
    use.steps.append(f"{past.run_id}/{past.seq}")

    scored = search.rank_bundles(past.request, step.permitted).scored
    ranked_ids = [bundle.id for bundle in scored]
    rank = ranked_ids.index(needed) + 1 if needed in ranked_ids else None
    use.ranks.setdefault(text, rank)
    is_from_model = past.by_model and needed in (past.picks or ())
    if is_from_model:
        use.by_model.append(f"{past.run_id}/{past.seq}")
    if rank != 1 or is_from_model:
        use.unsettled.add(text)


# --- trims ----------------------------------------------------------------------------------------


def _trims(
    past: Sequence[PastStep], catalogs: Mapping[str, Catalog], current: Catalog
) -> Iterator[TrimProposal]:
    steps: Counter[str] = Counter()
    runs: defaultdict[str, set[str]] = defaultdict(set)
    used: defaultdict[str, set[str]] = defaultdict(set)
    for step in past:
        recorded = catalogs.get(step.catalog_revision)
        for id_ in step.shown:
            if not _is_unchanged(id_, recorded, current):
                continue
            used[id_].update(tool for _, tool in step.called)
            if id_ in step.needed and not any(bundle == id_ for bundle, _ in step.called):
                continue  # a reviewer says that it was needed, but not which of its tools
            steps[id_] += 1
            runs[id_].add(step.run_id)
    missed_tools = {tool for step in past for tool in step.missed}
    for id_, count in sorted(steps.items()):
        bundle = current.bundles[id_]
        if count < MIN_SHOWN or len(runs[id_]) < MIN_RUNS:
            continue
        needed_tools = used[id_] | missed_tools | set(bundle.companions)
        unused = tuple(tool for tool in bundle.tools if tool not in needed_tools)
        if unused:
            tokens = sum(current.cards[tool].tokens for tool in unused if tool in current.cards)
            yield TrimProposal(id_, unused, count, len(runs[id_]), tokens, unused == bundle.tools)


def _is_unchanged(id_: str, old_catalog: Catalog | None, catalog: Catalog) -> bool:
    if old_catalog is None or id_ not in old_catalog.bundles or id_ not in catalog.bundles:
        return False
    return old_catalog.revision == catalog.revision or fingerprint(
        old_catalog.bundles[id_]
    ) == fingerprint(catalog.bundles[id_])
