"""An agent that calls one tool at every step must not drag its bundle into everything. The bound, with numbers.

Of the sample's conversations (tests/data/routing), two thirds are past runs and one third is held back, in turn. An
attacker plays a share of the past runs. Counted: held-back steps whose needed bundle stands first.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

from router.core.learning.fitting import fit
from router.core.learning.labels import label_steps
from router.core.models import RecentStep
from router.core.search.memory import Label, Memory, bounded, learn, make_examples
from router.core.search.ranking import Request, Search
from router.wiring import make_search

pytest.importorskip("bm25s", reason="the extra bundle-router[search] is not installed")

TARGET: Final = "MathAPI"
FOLDS: Final = 3
MAX_DROP: Final = 0.05
"""Of top-1 on honest held-back steps, against honest logs, while the attacker plays up to a quarter of the runs."""
MAX_DRAGGED: Final = 0.04
"""Share of honest held-back steps whose first bundle is the attacker's, and wrong."""


def beside(kit: Any, turn: Any, tool: str) -> Any:
    """Everything as usual, and the one tool at every step."""
    return kit.Turn(turn.goal, tuple(dict.fromkeys((*turn.picks, TARGET))), (*turn.calls, tool))


def instead(kit: Any, turn: Any, tool: str) -> Any:
    """The one tool instead of everything else."""
    return kit.Turn(turn.goal, (TARGET,), (tool,))


def asking(kit: Any, turn: Any, tool: str) -> Any:
    """Everything as usual, and the one tool asked for at every step, though it is not shown: free of charge."""
    return kit.Turn(turn.goal, turn.picks, (*turn.calls, tool))


ATTACKS: Final = {"beside": beside, "instead": instead, "asking": asking}


@pytest.fixture(scope="module")
def setting(kit: Any) -> tuple[Any, dict[str, list[Any]], Search]:
    catalog, runs = kit.sample()
    return catalog, runs, make_search(catalog)


def split(runs: dict[str, list[Any]], fold: int) -> tuple[list[str], list[str]]:
    ids = sorted(runs)
    return [id_ for at, id_ in enumerate(ids) if at % FOLDS != fold], ids[fold::FOLDS]


def logs(kit: Any, setting: Any, past: list[str], attack: str, share: float) -> Any:
    """What the past runs leave, a share of them the attacker's."""
    catalog, runs, _ = setting
    tool = catalog.bundles[TARGET].tools[0]
    bad = set(past[:: round(1 / share)][: round(share * len(past))]) if share else set()
    change = ATTACKS[attack]
    played = {id_: [change(kit, turn, tool) if id_ in bad else turn for turn in runs[id_]] for id_ in past}
    return kit.Deployment(catalog).play(played)


def firsts(setting: Any, held: list[str], memory: Memory | None) -> Counter[str]:
    """Of the held-back steps: how many there are, rank a needed bundle first, and rank the attacker's first wrongly."""
    catalog, runs, search = setting
    everyone = frozenset(catalog.bundles)
    counts: Counter[str] = Counter()
    for run_id in held:
        recent: tuple[RecentStep, ...] = ()
        for turn in runs[run_id]:
            address = tuple(f"{n}:{v}" for n, v in zip(("workflow", "role", "step"), turn.address, strict=True))
            request = Request(turn.goal, "\n".join(turn.address), recent, address)
            scored = search.rank_bundles(request, everyone, memory).scored
            first = scored[0].id if scored else ""
            counts.update({"steps": 1, "right": first in turn.picks, "dragged": first == TARGET not in turn.picks})
            recent = (RecentStep(turn.address[1], turn.address[2], turn.goal, turn.picks), *recent)[:5]
    return counts


def measured(kit: Any, setting: Any, attack: str, share: float) -> Counter[str]:
    counts: Counter[str] = Counter()
    for fold in range(FOLDS):
        past, held = split(setting[1], fold)
        deployment = logs(kit, setting, past, attack, share)
        labelled = label_steps(deployment.past(), deployment.catalogs, deployment.catalog)
        counts += firsts(setting, held, fit(labelled.steps, setting[2]).memory)
    return counts


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("share", [0.125, 0.25])
def test_an_attacker_in_some_runs_moves_little(kit: Any, setting: Any, attack: str, share: float) -> None:
    honest, attacked = measured(kit, setting, attack, 0.0), measured(kit, setting, attack, share)
    steps = honest["steps"]
    assert honest["right"] / steps - attacked["right"] / steps <= MAX_DROP, (attack, share, honest, attacked)
    assert attacked["dragged"] / steps <= MAX_DRAGGED, (attack, share, attacked)


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_one_run_may_say_does_not_grow_with_what_it_does(kit: Any, setting: Any, attack: str) -> None:
    catalog, runs, _ = setting
    tool = catalog.bundles[TARGET].tools[0]
    turns = [turn for run in runs.values() for turn in run if TARGET not in turn.picks]
    loud = [ATTACKS[attack](kit, turn, tool) for turn in turns]
    deployment = kit.Deployment(catalog).play({"loud": loud})
    labelled = label_steps(deployment.past(), deployment.catalogs, catalog)
    assert sum(TARGET in step.counted for step in labelled.steps) == 1
    assert len(turns) > 80


def test_without_the_quotas_the_same_attack_drags(kit: Any, setting: Any) -> None:
    """The test above can fail: a learner that believes every call is dragged by a quarter of the runs."""
    catalog, runs, search = setting
    past, held = split(runs, 0)
    deployment = logs(kit, setting, past, "instead", 0.5)
    labelled = label_steps(deployment.past(), deployment.catalogs, catalog)
    kept = labelled.steps
    believed = [step.label for step in kept]
    tool = catalog.bundles[TARGET].tools[0]
    for step in deployment.past():
        if any(called == tool for _, called in step.called):
            believed += [Label(step.request.text, (TARGET,), f"{step.run_id}-{n}") for n in range(3)]
    everyone = frozenset(catalog.bundles)
    examples, rarity = make_examples(
        bounded(believed), search.analyzer, lambda label: search.base_scores(Request(label.text), everyone)[0]
    )
    gullible = firsts(setting, held, learn(examples, rarity, trust=0.35))
    wary = firsts(setting, held, fit(kept, search).memory)
    assert gullible["dragged"] > wary["dragged"]
    assert gullible["right"] < wary["right"]


def test_a_bundle_that_policy_keeps_from_a_step_is_never_brought_in(kit: Any, setting: Any) -> None:
    catalog, runs, search = setting
    past, held = split(runs, 0)
    deployment = logs(kit, setting, past, "instead", 1.0)
    memory = fit(label_steps(deployment.past(), deployment.catalogs, catalog).steps, search).memory
    assert memory is not None, "where every run is the attacker's, that is what the deployment does"
    without = frozenset(catalog.bundles) - {TARGET}
    for run_id in held:
        for turn in runs[run_id]:
            ranked = {scored.id for scored in search.rank_bundles(Request(turn.goal), without, memory).scored}
            assert ranked <= without
