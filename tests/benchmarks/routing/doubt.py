"""Prints how far search knows when it is wrong: what it would show by itself, how much of that
holds nothing needed.

    python tests/benchmarks/routing/doubt.py [--data FOLDER] [--sets mcp_mix,livemcp] [--queries N]
        [--labels 400] [--examples FOLDER]
    python tests/benchmarks/routing/doubt.py --fit    the calibration that ships

Every bundle only reads. Three situations of each query: every bundle permitted ("all"), a dozen of
them with the right ones, a dozen without ("absent"). "others": a probability fitted on the other
sets alone, in all situations, that without a right bundle weighing half, a set by the square root
of its size: what ships, for a set it has not seen. "own": one fitted on `--labels` queries of the
set itself, every bundle permitted (four fifths, where it has no more), and judged on the rest, mean
of five draws. Each with the share of steps shown from 0.90 on, how much of that is wrong, and the
area: how well the probability tells right from wrong. Sets that share queries or tools do not teach
each other. `--examples`: the goals and MetaTool's single queries once more, over bundles with the
examples of a folder (`servers.json`, `metatool.json`). "small", "other": 25 catalogs of 4 to 10
bundles round three queries, asked for what they have and for what they have not, under "others".
"goals": the seen half of `engine_goals` over 53 real servers.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bundle_router.core.catalog import MIN_LABELS, Calibration, Catalog
from bundle_router.core.search.ranking import Ranking
from bundle_router.core.search.request import Request
from bundle_router.core.search.sufficiency import features_of, judge
from bundle_router.core.search.trials import mean
from bundle_router.core.values.evidence import fit_logistic
from bundle_router.review.evaluation import auroc
from bundle_router.review.learning.calibration import FEATURES

from tests.benchmarks.routing import goals, routing_data
from tests.benchmarks.routing.run import make_search
from tests.benchmarks.selecting import A_STEP, DOZEN, catalog_for

Asked = tuple[Request, frozenset[str]]
OF_OTHERS = ("matched", "distinct", "clear", "agreement", "remembered", "likeness")
"""What is weighed of sets that a calibration is not fitted on: what the shipped one is made of."""
KIN = (
    {"mcp_mix", "livemcp"},
    {"metatool_single", "metatool_multi", "metatool_single + examples"},
    {"goals", "goals + examples"},
)
SITUATIONS = ("all", "dozen", "absent")
SMALL = ("small", "other")
CATALOGS = 25
DRAWS = 5
CAUTION = 0.55
"""Taken from the bias that is fitted on other sets: on one that it has not seen a calibration is
less sure than on its own.
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """A query as search ranks it in one situation, and which bundles are right."""

    situation: str
    ranking: Ranking
    right: frozenset[str]

    @property
    def first_is_right(self) -> bool:
        return self.ranking.scored[0].id in self.right

    @property
    def evidence(self) -> Mapping[str, float]:
        return features_of(self.ranking.evidence)


def labelled(
    options: argparse.Namespace,
) -> Iterator[tuple[routing_data.LabelledSet, list[Asked]]]:
    for name in routing_data.sets_in(options.data, options.sets):
        data = routing_data.load(options.data, name)
        asked = routing_data.sample(data.queries, options.queries)
        rows = [(query.request, frozenset(query.bundles)) for query in asked]
        yield data, rows
        if name == "metatool_single" and options.examples is not None:
            yield goals.with_examples(data, options.examples / "metatool.json"), rows
    if options.catalog.is_file():
        seen = [goal for goal in goals.goals("seen") if goal.needs]
        servers = replace(goals.real_servers(options.catalog), name="goals")
        rows = [(Request(goal.text), goal.any_of) for goal in seen]
        yield servers, rows
        if options.examples is not None:
            yield goals.with_examples(servers, options.examples / "servers.json"), rows


def judged(data: routing_data.LabelledSet, asked: Sequence[Asked]) -> list[Judged]:
    search, draw, everyone = make_search(data), random.Random(3), sorted(b.id for b in data.bundles)
    found = []
    for request, right in asked:
        dozen = frozenset(draw.sample(everyone, min(DOZEN, len(everyone))))
        for situation, permitted in zip(
            SITUATIONS, (frozenset(everyone), dozen | right, dozen - right), strict=True
        ):
            found.append(Judged(situation, search.rank_bundles(request, permitted), right))
    return [row for row in found if row.ranking.scored]


def in_small_catalogs(data: routing_data.LabelledSet, asked: Sequence[Asked]) -> list[Judged]:
    """Queries in catalogs of a few of the set's bundles: what these have, and what they have
    not.
    """
    draw, everyone = random.Random(5), [bundle.id for bundle in data.bundles]
    found = []
    for _ in range(CATALOGS):
        size = min(draw.randint(4, 10), len(everyone) - 2)
        needed = sorted(frozenset().union(*(right for _, right in draw.sample(asked, 3))))
        few = {*draw.sample(needed, min(len(needed), size - 1))}
        few |= {*draw.sample(sorted({*everyone} - few), size - len(few))}
        bundles = [bundle for bundle in data.bundles if bundle.id in few]
        tools = {id_ for bundle in bundles for id_ in bundle.tools}
        search = make_search(
            replace(data, bundles=bundles, tools=[tool for tool in data.tools if tool.id in tools])
        )
        for situation, of in zip(SMALL, (True, False), strict=True):
            some = [(request, right) for request, right in asked if bool(right & few) is of]
            for request, right in draw.sample(some, min(8, len(some))):
                found.append(
                    Judged(situation, search.rank_bundles(request, frozenset(few)), right & few)
                )
    return [row for row in found if row.ranking.scored]


def fitted(sets: Sequence[Sequence[Judged]], names: Sequence[str] = OF_OTHERS) -> Calibration:
    sets = [[row for row in of if row.situation in SITUATIONS] for of in sets]
    rows = [
        (row, (0.5 if row.situation == "absent" else 1.0) / len(of) ** 0.5)
        for of in sets
        for row in of
    ]
    found = fit_logistic(
        [row.evidence for row, _ in rows],
        [row.first_is_right for row, _ in rows],
        names,
        weights=[w for _, w in rows],
    )
    return Calibration("fitted", max(len(rows), MIN_LABELS), found.bias, found.weights)


def cautious(calibration: Calibration) -> Calibration:
    return replace(calibration, bias=round(calibration.bias - CAUTION, 4))


def under(catalog: Catalog, calibration: Calibration) -> Catalog:
    search = replace(catalog.settings.search, calibration=calibration)
    return replace(catalog, settings=replace(catalog.settings, search=search))


def settled(
    catalog: Catalog, rows: Sequence[Judged]
) -> tuple[float, float, float, float, float, float]:
    """Shares of the steps shown one bundle, and several; how much of these is wrong; the area; the
    share of "novel".
    """
    found = [(judge(catalog, A_STEP, row.ranking), row) for row in rows]

    def shown(verdict: str) -> tuple[float, float]:
        wrong = [not row.right & {*one.ids} for one, row in found if one.use.verdict == verdict]
        return len(wrong) / max(len(rows), 1), mean(map(float, wrong))

    sure = [one.use.probability or 0.0 for one, _ in found]
    area = auroc([row.first_is_right for row in rows], sure) or 0.0
    return *shown("enough"), *shown("union"), area, shown("novel")[0]


def of_own(catalog: Catalog, rows: Sequence[Judged], number: int) -> list[float]:
    """The mean over draws of what a calibration settles that was fitted on so many of the rows, of
    the others.
    """
    draws = []
    for seed in range(DRAWS):
        mixed = random.Random(seed).sample(rows, len(rows))
        own = under(catalog, fitted([mixed[:number]], FEATURES))
        draws.append(settled(own, mixed[number:]))
    return [mean(column) for column in zip(*draws, strict=True)]


def line(of: Sequence[float]) -> str:
    return (
        f"one {of[0]:.3f} wrong {of[1]:.3f}  several {of[2]:.3f} wrong {of[3]:.3f}  area"
        f" {of[4]:.3f}  novel {of[5]:.3f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=routing_data.folder())
    parser.add_argument("--catalog", type=Path, default=goals.catalog_file())
    parser.add_argument(
        "--examples", type=Path, help="a folder that holds servers.json and metatool.json"
    )
    parser.add_argument("--sets", help="names of sets, with commas; default: all that are there")
    parser.add_argument("--queries", type=int, default=800)
    parser.add_argument("--labels", type=int, default=400)
    parser.add_argument(
        "--fit", action="store_true", help="print the calibration of all sets together"
    )
    options = parser.parse_args(arguments)
    found = {
        data.name: (catalog_for(data), judged(data, asked) + in_small_catalogs(data, asked))
        for data, asked in labelled(options)
    }
    if options.fit:
        made = cautious(fitted([rows for _, rows in found.values()]))
        print(f"{made.labels} rows of {', '.join(found)}: bias {made.bias}, weights {made.weights}")
        return 0
    for name, (catalog, rows) in found.items():
        kin = next((group for group in KIN if name in group), {name})
        others = [of for other, (_, of) in found.items() if other not in kin]
        by_others = under(catalog, cautious(fitted(others))) if others else catalog
        for situation in (*SITUATIONS, *SMALL):
            mine = [row for row in rows if row.situation == situation]
            print(
                f"{name:16} others  {situation:7} {line(settled(by_others, mine))}  ({len(mine)})",
                flush=True,
            )
        mine = [row for row in rows if row.situation == "all"]
        number = min(options.labels, len(mine) * 4 // 5)
        print(
            f"{name:16} own     all     {line(of_own(catalog, mine, number))}  ({number} labels)",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
