"""Prints how far search knows when it is wrong: what it would show by itself, how much of that holds nothing needed.

    python tests/benchmarks/routing/doubt.py [--data FOLDER] [--sets mcp_mix,livemcp] [--queries N] [--labels 400]

Every bundle only reads and is permitted. "rule": `conservative`, in force until there are labels. "others": a
probability fitted on the other sets alone, each of them weighing the same. "own": one fitted on `--labels` queries of
the set itself (four fifths, where it has no more), judged on the rest. The probabilities show a bundle from 0.90 on.
"area": how well the probability tells right from wrong. Sets that share queries or tools do not teach each other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bundle_router.core.models.evidence import Logistic, fit_logistic
from bundle_router.core.search.sufficiency import judge
from bundle_router.review.evaluation import auroc
from bundle_router.review.learning.calibration import FEATURES

from tests.benchmarks.routing import routing_data
from tests.benchmarks.routing.run import make_search
from tests.benchmarks.selecting import A_STEP, catalog_for

THRESHOLD = 0.9
KIN = ({"mcp_mix", "livemcp"}, {"metatool_single", "metatool_multi"})


@dataclass(frozen=True, slots=True)
class Judged:
    """A query as search ranks it: what its first rests on, whether that is right, whether the rule shows it."""

    evidence: Mapping[str, float]
    right: bool
    shown: bool


def judged(data: routing_data.LabelledSet, number: int) -> list[Judged]:
    search, catalog = make_search(data), catalog_for(data)
    everyone = frozenset(search.corpus.members)
    found = []
    for query in routing_data.sample(data.queries, number):
        ranking = search.rank_bundles(query.request, everyone)
        first = ranking.scored[0].id if ranking.scored else ""
        shown = judge(catalog, A_STEP, ranking).use.verdict == "enough"
        found.append(Judged(asdict(ranking.evidence), first in query.bundles, shown))
    return found


def fitted(rows: Sequence[Judged], weights: Sequence[float] | None = None) -> Logistic:
    return fit_logistic([row.evidence for row in rows], [row.right for row in rows], FEATURES, weights=weights)


def by(probability: Logistic, rows: Sequence[Judged]) -> str:
    sure = [probability(row.evidence) for row in rows]
    area = auroc([row.right for row in rows], sure)
    return said([row for row, p in zip(rows, sure, strict=True) if p >= THRESHOLD], len(rows)) + f"{area or 0.0:8.3f}"


def said(shown: Sequence[Judged], of: int) -> str:
    wrong = sum(not row.right for row in shown)
    return f"{len(shown) / of:8.3f}{wrong / len(shown) if shown else 0.0:8.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=routing_data.folder())
    parser.add_argument("--sets", help="names of sets, with commas; default: all that are there")
    parser.add_argument("--queries", type=int, default=800)
    parser.add_argument("--labels", type=int, default=400)
    options = parser.parse_args(arguments)
    names = routing_data.sets_in(options.data, options.sets)
    found = {name: judged(routing_data.load(options.data, name), options.queries) for name in names}
    print(f"{'':18}{'rule: shown':>12}{'wrong':>8}{'others: shown':>15}{'wrong':>8}{'area':>8}{'own: shown':>12}")
    for name, rows in found.items():
        kin = next((group for group in KIN if name in group), {name})
        others = [(row, 1.0 / len(of)) for other, of in found.items() if other not in kin for row in of]
        cells = f"{name:18}    {said([row for row in rows if row.shown], len(rows))}"
        if others:
            cells += "       " + by(fitted([row for row, _ in others], [weight for _, weight in others]), rows)
        number = min(options.labels, len(rows) * 4 // 5)
        step = len(rows) / (len(rows) - number)
        held = {int(at * step) for at in range(len(rows) - number)}
        own = fitted([row for at, row in enumerate(rows) if at not in held])
        cells += "    " + by(own, [row for at, row in enumerate(rows) if at in held])
        print(f"{cells}  ({number} labels)", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
