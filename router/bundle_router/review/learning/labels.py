"""Derives labels from past steps: which bundles a step needed, and how much that may count.

Rules:
1. A bundle was needed if it was shown and one of its tools was called; if one of its tools was
   asked for and was merely not shown (a gap); or if a reviewer says so. A reviewer's "not needed"
   overrides the first two.
2. Only bundles that today's policy permits the step, and that search may pick, become labels:
   others can't be ranked, so there is nothing to learn about them.
3. A label is dropped when the config has made it obsolete: the bundle is gone, its description has
   changed, or the tool that the label is based on has left it. (A reviewer's label is based on all
   of its tools.)
4. In one run, a bundle counts at most `PER_RUN` times, and at most `QUOTAS[kind]` times for each
   kind. Bundles that were shown anyway (mapped, sticky, inherited), or only asked for, count once,
   because an agent that calls one tool at every step easily produces both. A bundle called at more
   than half of a run's steps counts once in all, unless a reviewer says more. A bundle over its
   quota is no negative evidence either (`neutral`).
5. Of one run at most `RUN_STEPS` steps count, spread over it; of all runs the newest `MAX_STEPS`
   steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.decide.plans import Plans
from bundle_router.core.search.memory import PER_RUN, Label
from bundle_router.core.search.request import marks_of
from bundle_router.review.learning.recorded_steps import PastStep

T = TypeVar("T")
Kind = Literal["corrected", "used", "routine", "gap"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""Kinds of labels: a reviewer's; shown by search, a model or the default, and used; shown anyway
and used; a gap.
"""
QUOTAS: Final[Mapping[Kind, int]] = {"corrected": 3, "used": 3, "routine": 1, "gap": 1}
ROUTINE: Final = frozenset(("mapped", "sticky", "inherited"))
EVERYWHERE: Final = 0.5
MIN_EVERYWHERE: Final = 4
"""Minimum steps of a run for a bundle called at more than `EVERYWHERE` of them to count as a
habit.
"""
RUN_STEPS: Final = 20
MAX_STEPS: Final = 20_000


@dataclass(frozen=True, slots=True)
class LabelledStep:
    """A past step with its needed bundles.

    `counted` are the needed ids within their quota; `permitted` are those ranked for the step under
    today's policy, at least two.
    """

    past: PastStep
    needed: Mapping[str, Kind]
    counted: frozenset[str]
    permitted: frozenset[str]

    @property
    def neutral(self) -> frozenset[str]:
        """Needed ids over their quota: neither positive nor negative evidence."""
        return frozenset(self.needed) - self.counted

    @property
    def label(self) -> Label:
        """The label for a memory of bundles."""
        request = self.past.request
        return Label(request.text, tuple(sorted(self.counted)), self.past.run_id, marks_of(request))

    @property
    def tool_label(self) -> Label | None:
        """The label for a memory of tools: the called tools of counted bundles, with words alone,
        as agents ask for tools. None if none was called.
        """
        tools = {tool for id_, tool in self.past.called if id_ in self.counted}
        if tools:
            return Label(self.past.request.text, tuple(sorted(tools)), self.past.run_id)
        return None


@dataclass(frozen=True, slots=True)
class Labelled:
    """Labelled steps, oldest run first, with counts: `by_kind` of the labels that count, `obsolete`
    labels dropped by rule 3, `unrankable` by rule 2, `over_quota` by rules 4 and 5.
    """

    steps: tuple[LabelledStep, ...]
    by_kind: tuple[tuple[Kind, int], ...] = ()
    obsolete: int = 0
    unrankable: int = 0
    over_quota: int = 0


@dataclass(frozen=True, slots=True)
class _Claim:
    """One bundle that one step needed. `tools` are those that the claim is based on."""

    id: str
    kind: Kind
    tools: tuple[str, ...]


def label_steps(
    past: Iterable[PastStep], catalogs: Mapping[str, Catalog], current: Catalog
) -> Labelled:
    """Return past steps' labels under the config `current`.

    `catalogs`: those that the steps were decided under.
    """
    counts: Counter[str] = Counter()
    by_run: defaultdict[str, list[LabelledStep]] = defaultdict(list)
    claimed = 0
    plans = Plans(current)
    for step in past:
        labelled = _label_step(step, catalogs.get(step.catalog_revision), plans, counts)
        if labelled is not None:
            by_run[step.run_id].append(labelled)
            claimed += len(labelled.needed)

    runs = sorted(by_run.values(), key=lambda steps: (steps[0].past.time, steps[0].past.run_id))
    within_quotas = [step for steps in runs for step in _within_quotas(steps)]
    newest = within_quotas[-MAX_STEPS:]
    kinds: Counter[Kind] = Counter()
    for label in newest:
        kinds.update(label.needed[id_] for id_ in label.counted)
    return Labelled(
        tuple(newest),
        tuple((kind, kinds[kind]) for kind in KINDS),
        counts["obsolete"],
        counts["unrankable"],
        claimed - kinds.total(),
    )


def _label_step(
    past: PastStep, old_catalog: Catalog | None, plans: Plans, counts: Counter[str]
) -> LabelledStep | None:
    catalog = plans.catalog
    claims = list(_claims(past, old_catalog))
    if not claims:
        return None
    permitted = frozenset(
        plans.of(past.step, past.facts.grants).verdicts.candidates(past.facts, None, ()).ids
    )
    needed: dict[str, Kind] = {}
    for claim in claims:
        bundle = catalog.bundle(claim.id)
        if bundle is None or not _still_holds(
            claim, old_catalog.bundle(claim.id) if old_catalog is not None else None, bundle
        ):
            counts["obsolete"] += 1
        elif bundle.id not in permitted or len(permitted) < 2:
            counts["unrankable"] += 1
        else:
            needed.setdefault(bundle.id, claim.kind)
    if not needed:
        return None
    return LabelledStep(past, needed, frozenset(needed), permitted)


def _claims(past: PastStep, old_catalog: Catalog | None) -> Iterator[_Claim]:
    """Yield the bundles that the step needed, the most reliable claim about each first."""
    for id_ in sorted(past.needed):
        old_bundle = old_catalog.bundle(id_) if old_catalog is not None else None
        yield _Claim(id_, "corrected", old_bundle.tools if old_bundle is not None else ())
    tools: defaultdict[str, list[str]] = defaultdict(list)
    for id_, tool in past.called:
        if id_ not in past.not_needed:
            tools[id_].append(tool)
    for id_, called in sorted(tools.items()):
        yield _Claim(id_, "routine" if past.shown.get(id_) in ROUTINE else "used", tuple(called))
    for tool in past.missed:
        holder = _most_specific(tool, past, old_catalog)
        if holder is not None:
            yield _Claim(holder, "gap", (tool,))


def _most_specific(tool: str, past: PastStep, old_catalog: Catalog | None) -> str | None:
    """Return, of the bundles with the tool that were not shown, the one with the fewest tools; ties
    by id.
    """
    if old_catalog is None:
        return None

    holders = [bundle for bundle in old_catalog.bundles.values() if tool in bundle.tools]
    excluded = {*past.shown, *past.not_needed}
    candidates = [bundle for bundle in holders if bundle.id not in excluded]
    if not candidates:
        return None
    return min(candidates, key=lambda bundle: (len(bundle.tools), bundle.id)).id


def _still_holds(claim: _Claim, old: Bundle | None, new: Bundle) -> bool:
    if old is None:
        return False
    if old == new:
        return True
    if " ".join(old.description.split()) != " ".join(new.description.split()):
        return False
    if claim.kind == "corrected":
        return old.tools == new.tools
    return set(claim.tools) <= set(new.tools)


def _within_quotas(steps: Sequence[LabelledStep]) -> list[LabelledStep]:
    """Return the steps of one run that count, with the counted bundles of each."""
    places: defaultdict[str, defaultdict[Kind, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, step in enumerate(steps):
        for id_, kind in step.needed.items():
            places[id_][kind].append(index)
    ids_by_step: defaultdict[int, set[str]] = defaultdict(set)
    for id_, by_kind in places.items():
        for index in _counted_steps(by_kind, len(steps)):
            ids_by_step[index].add(id_)
    chosen_steps = [
        LabelledStep(s.past, s.needed, frozenset(ids_by_step[at]), s.permitted)
        for at, s in enumerate(steps)
        if ids_by_step[at]
    ]
    return _spread_evenly(chosen_steps, RUN_STEPS)


def _counted_steps(by_kind: Mapping[Kind, list[int]], steps: int) -> list[int]:
    """Return the steps of a run at which a bundle counts, the most reliable kinds first."""
    times = sum(map(len, by_kind.values()))
    habit = steps >= MIN_EVERYWHERE and times > EVERYWHERE * steps
    indexes = _spread_evenly(by_kind.get("corrected", []), QUOTAS["corrected"])
    for kind in KINDS[1:]:
        quota = 1 if habit else QUOTAS[kind]
        room = (1 if habit else PER_RUN) - len(indexes)
        indexes += _spread_evenly(by_kind.get(kind, []), max(0, min(quota, room)))
    return indexes


def _spread_evenly(items: Sequence[T], number: int) -> list[T]:
    """Return at most `number` of the items, spread evenly over all of them."""
    if len(items) > number:
        return [items[at * len(items) // number] for at in range(number)]
    return list(items)
