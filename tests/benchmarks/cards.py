"""Admission, pins, exposed names and the warning light over whole catalogs:
`python tests/benchmarks/cards.py DATA`.

DATA (or the variable BUNDLE_ROUTER_DATA) is a folder with `catalog/servers.jsonl` (a server a line:
`server`, `tools`, `instructions`) and `attacks/mcpproxy-go` (labelled and honest tools). Without it
there is nothing to measure.

How the warning light's rules came about: the 57 labelled tools were dealt into five folds in the
way `folds_of` does, near-duplicates always into one, each label and category spread over all. Rules
were written from folds 0 and 1 and from public descriptions of attacks. Then, each time before
anything of the folds named was read:

    folds 2, 3, 4   20 of 20 seen, 2 of 16 honest ones alarmed     (rules from folds 0 and 1)
    folds 3, 4      15 of 15 seen, 1 of 11 honest ones alarmed     (fold 2 read in between)
    fold 3           5 of  5 seen, 0 of  5 honest ones alarmed     (fold 4 read in between)

What is printed below for the folds chooses only the threshold on the other four, with the rules as
they are now.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from bundle_router.core.catalog import Server
from bundle_router.core.exposure.names import exposed_names
from bundle_router.core.servers.admission.admit import admit
from bundle_router.core.servers.pins.file import pins_from_text, pins_to_text
from bundle_router.core.servers.pins.reviewed import approve
from bundle_router.core.servers.pins.usable import usable
from bundle_router.core.servers.warning_light import LightVerdict, Neighbour, Neighbourhood, inspect

FOLDS = 5
THRESHOLDS = (0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.5)


def milliseconds(work: Callable[..., object], *given: object) -> float:
    """CPU time of one run."""
    start = process_time()
    work(*given)
    return (process_time() - start) * 1000


def admission(rows: Sequence[dict[str, Any]]) -> None:
    print(f"{'server':<22}{'tools':>6}{'admitted':>9}{'refused':>8}{'noted':>6}{'kB':>7}{'ms':>7}")
    total: Counter[str] = Counter()
    for row in rows:
        server = Server(row["server"], "stdio", command="x")
        found = admit(server, row["tools"], row["instructions"])
        ms = milliseconds(admit, server, row["tools"], row["instructions"])
        size = sum(len(tool.definition) for tool in found.tools) / 1000
        noted = sum(1 for tool in found.tools if tool.notes)
        figures = (len(row["tools"]), len(found.tools), len(found.refused), noted)
        print(
            f"{row['server']:<22}{figures[0]:>6}{figures[1]:>9}{figures[2]:>8}{noted:>6}{size:>7.0f}{ms:>7.1f}"
        )
        for refused in found.refused:
            print(f"  refused {refused.name}: {refused.code}: {refused.detail}")
        total.update(dict(zip(("tools", "admitted", "refused", "noted"), figures, strict=True)))
        total["µs"] += round(ms * 1000)
    print(
        f"{len(rows)} servers: {dict(total)}; {total['µs'] / total['tools']:.0f} µs of CPU a tool\n"
    )


def pinning(rows: Sequence[dict[str, Any]]) -> None:
    size = 0
    write_ms = read_ms = check_ms = 0.0
    for row in rows:
        server = Server(row["server"], "stdio", command="x")
        admitted = admit(server, row["tools"], row["instructions"])
        pins = approve(server, admitted)
        text = pins_to_text(pins)
        size += len(text)
        write_ms += milliseconds(pins_to_text, pins)
        read_ms += milliseconds(pins_from_text, text, "x")
        reviewed = pins.reviewed(server)
        check_ms += milliseconds(usable, pins, admitted, server, "required", reviewed)
        again = admit(server, row["tools"][::-1], row["instructions"])
        assert usable(pins_from_text(text, "x"), again, server, "required").drifted == ()
    print(
        f"pins: {size / 1e6:.1f} MB; write {write_ms:.0f} ms, read {read_ms:.0f} ms, check"
        f" {check_ms:.0f} ms for all\n"
    )


def names(rows: Sequence[dict[str, Any]]) -> None:
    known = [f"{row['server']}.{tool['name']}" for row in rows for tool in row["tools"]]
    exposed = exposed_names(known)
    marked = [name for name in known if exposed[name] != name.replace(".", "__", 1)]
    owners: dict[str, set[str]] = defaultdict(set)
    for name in known:
        owners[name.partition(".")[2]].add(name)
    shared = [names for names in owners.values() if len(names) > 1]
    print(
        f"names: {len(known)} tools, {len({name.lower() for name in exposed.values()})} exposed"
        " names (case ignored)"
    )
    print(
        f"  longest {max(map(len, exposed.values()))}; {len(marked)} carry a mark;"
        f" {sum(len(n) > 58 for n in known)}"
    )
    print(
        f"  would overflow as mcp__server__tool; {len(shared)} names shared by"
        f" {sum(map(len, shared))} tools\n"
    )


# --- the warning light ----------------------------------------------------------------------------


def folds_of(entries: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Fold of each labelled tool: groups of near-duplicates whole, strata spread."""
    runs = [_runs(json.dumps(entry["tool"]).lower()) for entry in entries]
    group = list(range(len(entries)))
    for one in range(len(entries)):
        for other in range(one):
            if len(runs[one] & runs[other]) / len(runs[one] | runs[other]) >= 0.35:
                group = [group[other] if mine == group[one] else mine for mine in group]
    strata: dict[str, list[int]] = defaultdict(list)
    for root in dict.fromkeys(group):
        entry = entries[root]
        strata[f"{entry['label']}/{entry['category']}/{entry.get('resembles')}"].append(root)
    dealt, count = {}, 0
    for stratum in sorted(strata):
        for root in sorted(
            strata[stratum],
            key=lambda index: hashlib.sha256(entries[index]["id"].encode()).digest(),
        ):
            dealt[root] = count % FOLDS
            count += 1
    return {entry["id"]: dealt[group[index]] for index, entry in enumerate(entries)}


def _runs(text: str) -> frozenset[str]:
    letters = " ".join("".join(c if c.isalnum() else " " for c in text).split())
    return frozenset(letters[at : at + 4] for at in range(len(letters) - 3))


def labelled_verdict(entry: dict[str, Any]) -> LightVerdict:
    peers = [
        Neighbour(p["server"], p["tool"]["name"], p["tool"]["description"])
        for p in entry.get("peers", ())
    ]
    return inspect(entry["tool"], server=entry["server"], neighbours=Neighbourhood(peers))


def rates(rows: Iterable[tuple[bool, float]], threshold: float) -> tuple[int, int, int, int]:
    """(seen, malicious, alarms, benign) at a threshold."""
    kept = list(rows)
    return (
        sum(bad and score >= threshold for bad, score in kept),
        sum(bad for bad, _ in kept),
        sum(not bad and score >= threshold for bad, score in kept),
        sum(not bad for bad, _ in kept),
    )


def chosen(rows: Sequence[tuple[bool, float]]) -> float:
    """The threshold that sees most with at most 5 % alarms; the highest of equals."""

    def worth(threshold: float) -> tuple[bool, float, float]:
        seen, bad, alarms, benign = rates(rows, threshold)
        return alarms / benign <= 0.05, seen / bad, threshold

    return max(THRESHOLDS, key=worth)


def warning_light(attacks: Path, rows: Sequence[dict[str, Any]]) -> None:
    entries = json.loads((attacks / "detect_corpus_v1.json").read_text(encoding="utf-8"))["entries"]
    folds = folds_of(entries)
    scores = {
        entry["id"]: (entry["label"] == "malicious", labelled_verdict(entry).score)
        for entry in entries
    }
    sums = [0, 0, 0, 0]
    for fold in range(FOLDS):
        threshold = chosen([score for id_, score in scores.items() if folds[id_] != fold])
        found = rates([score for id_, score in scores.items() if folds[id_] == fold], threshold)
        sums = [a + b for a, b in zip(sums, found, strict=True)]
        print(
            f"fold {fold}: threshold {threshold} of the others; saw {found[0]}/{found[1]}, alarms"
            f" {found[2]}/{found[3]}"
        )
    print(
        f"cross-validated: recall {sums[0] / sums[1]:.3f}, false alarms {sums[2] / sums[3]:.3f}"
        f" over {len(entries)}"
    )
    hidden = [entry for entry in entries if entry["category"] == "unicode_smuggling"]
    print(
        f"hidden characters: {sum(labelled_verdict(entry).warns for entry in hidden)}/{len(hidden)}"
    )
    honest = json.loads((attacks / "livemcptool" / "tools.json").read_text(encoding="utf-8"))[
        "tools"
    ]
    honest = [
        (
            t["server"],
            {"name": t["tool"], "description": t["description"], "inputSchema": t["inputSchema"]},
        )
        for t in honest
    ]
    alarms_among("honest tools", honest)
    alarms_among(
        "tools of the catalog", [(row["server"], tool) for row in rows for tool in row["tools"]]
    )


def alarms_among(what: str, tools: Sequence[tuple[str, dict[str, Any]]]) -> None:
    alarms: list[str] = []

    def look() -> None:
        for server, tool in tools:
            verdict = inspect(tool, server=server)
            if verdict.warns:
                alarms.append(
                    f"{server}.{tool['name']}:"
                    f" {', '.join(finding.rule for finding in verdict.findings)}"
                )

    ms = milliseconds(look)
    print(
        f"{what}: {len(alarms)} of {len(tools)} alarmed ({len(alarms) / len(tools):.2%}),"
        f" {ms / len(tools):.2f} ms each"
    )
    for alarm in alarms:
        print(f"  {alarm}")


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("BUNDLE_ROUTER_DATA", ""))
    catalog, attacks = root / "catalog" / "servers.jsonl", root / "attacks" / "mcpproxy-go"
    if not catalog.is_file() or not attacks.is_dir():
        print(
            f"skipped: {root} holds no catalog/servers.jsonl and attacks/mcpproxy-go; give the"
            " folder that does"
        )
        return 0
    rows = [json.loads(line) for line in catalog.read_text(encoding="utf-8").splitlines()]
    admission(rows)
    pinning(rows)
    names(rows)
    warning_light(attacks, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
