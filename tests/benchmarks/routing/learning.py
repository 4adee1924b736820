"""Prints the CPU time that learning takes: a memory of bundles, and one of tools, with their
replays.

    python tests/benchmarks/routing/learning.py [--data FOLDER] [--set stabletoolbench]
        [--labels 1600]

Labels are the set's queries, and the same with a quarter of the words left out (fixed seed), each
in a run of its own, until there are as many as asked for. What is timed is what `learn` does of
them but for reading the runs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bundle_router.core.search.fit import fit_memory
from bundle_router.core.search.memory import Label
from bundle_router.core.search.ranking import Search
from bundle_router.core.search.request import Request, marks_of

from tests.benchmarks.routing import routing_data
from tests.benchmarks.routing.run import make_search


def enough(queries: Sequence[routing_data.Query], number: int) -> list[routing_data.Query]:
    draw = random.Random(3)
    made = list(queries[:number])
    while len(made) < number:
        of = queries[len(made) % len(queries)]
        words = of.text.split()
        kept = sorted(draw.sample(range(len(words)), max(1, len(words) * 3 // 4)))
        text = " ".join(words[at] for at in kept)
        made.append(
            replace(
                of,
                id=f"{of.id}-{len(made)}",
                text=text,
                run=f"{of.run}-{len(made)}",
                request=Request(text),
            )
        )
    return made


def timed(kind: str, queries: Sequence[routing_data.Query], search: Search) -> float:
    """Learns what the queries needed of a kind, prints what that took, and returns it in
    seconds.
    """
    bundles = frozenset(search.corpus.members)
    labels = [
        Label(q.text, q.bundles if kind == "bundles" else q.tools, q.run, marks_of(q.request))
        for q in queries
    ]
    scores = search.base_scores if kind == "bundles" else search.base_tool_scores
    started = time.process_time()
    base = {(query.run, query.text): scores(query.request, bundles) for query in queries}
    ranked = time.process_time()
    fitted = fit_memory(labels, search.analyzer, lambda label: base[label.run, label.text])
    ended = time.process_time()
    on = f"trust {fitted.memory.trust:g}" if fitted.memory is not None else "off"
    print(
        f"  {kind:8} ranked in {ranked - started:.1f} s, learned and replayed in"
        f" {ended - ranked:.1f} s of CPU; {on}; quality {fitted.before:.3f} → {fitted.after:.3f},"
        f" where ids are new {fitted.new:+.3f}",
        flush=True,
    )
    return ended - started


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=routing_data.folder())
    parser.add_argument("--set", default="bfcl_sample")
    parser.add_argument("--labels", type=int, default=1600)
    options = parser.parse_args(arguments)
    data = routing_data.load(options.data, options.set)
    search, queries = make_search(data), enough(data.queries, options.labels)
    print(f"{len(queries)} labels over {len(data.bundles)} bundles and {len(data.tools)} tools")
    print(
        f"  in all {sum(timed(kind, queries, search) for kind in ('bundles', 'tools')):.1f} s"
        " of CPU"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
