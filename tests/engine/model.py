"""What happened to simulated runs, in the order in which it did, and what follows from that."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bundle_router import Decision, Result
from bundle_router.core.catalog import Bundle, CallLimits, Catalog, Policy, Route, Server, Settings
from bundle_router.testing import small_catalog

from tests.engine.interleaving import Interleaving

ROOT, SUB = "r", "s"
TREE_CALLS: Final = 3


def catalog(tree_calls: int | None) -> Catalog:
    """`wide` may have both bundles, `narrow` only the reader's.

    `s.again` may be made again, `s.once` may not.
    """
    bundles = {
        "read": Bundle("read", "reads", ("s.look",), effects=("read",)),
        "write": Bundle("write", "writes", ("s.again", "s.once"), effects=("write",)),
    }
    return small_catalog(
        bundles,
        routes=[Route("all", bundles=("write", "read"))],
        policies=[
            Policy("all", allow=("*",)),
            Policy("narrow", role=("narrow",), allow=("*",), deny=("bundle:write",)),
        ],
        servers=[Server("s", "local", "trusted", idempotent=("again",))],
        settings=Settings(limits=CallLimits(calls_per_tree=tree_calls)),
    )


CATALOGS: Final = {limit: catalog(limit) for limit in (None, TREE_CALLS)}


@dataclass
class Asked:
    """A call under way: for which run and tool, under which decision, and whether it was permitted
    at each moment.
    """

    run_id: str
    tool: str
    decision: str | None
    permitted: set[bool] = field(default_factory=set)


@dataclass(frozen=True)
class Decided:
    """A decision as it was recorded."""

    run_id: str
    branch: str
    role: str
    bundles: tuple[str, ...]
    parent_decision: str


class Model:
    """What happened, in the order in which it did, and what follows from it."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.interleaving = Interleaving(dice)
        self.decided: dict[str, Decided] = {}
        self.open: dict[str, dict[str, str]] = {ROOT: {}, SUB: {}}
        self.newest: dict[str, str] = {}
        self.asked: dict[int, Asked] = {}
        self.effects: Counter[tuple[str, str, str]] = Counter()
        self.returned: list[Decision] = []
        self.results: dict[tuple[str, str], list[tuple[str, Result]]] = defaultdict(list)
        self.conflicts: list[tuple[str, str, dict[str, Any]]] = []

    def note(self, record: Mapping[str, Any]) -> None:
        """A record was appended just now."""
        if record["type"] == "route.decided":
            step, id_ = record["step"], record["decision_id"]
            branch, run_id = record.get("branch") or "", record["run_id"]
            bundles = tuple(row["id"] for row in record["bundles"])
            parent = record.get("parent_decision_id") or ""
            self.decided[id_] = Decided(run_id, branch, step["role"], bundles, parent)
            self.open[run_id][branch] = id_
            self.newest[run_id] = id_
            self.look()
        elif record["type"] == "call.started":
            assert record["decision_id"] in self.open[record["run_id"]].values(), (
                "begun under a closed decision"
            )

    def look(self) -> None:
        for asked in self.asked.values():
            asked.permitted.add(self.permits(asked))

    def present(self, run_id: str, decision: str | None) -> str | None:
        """The decision that is meant: the named one's branch's newest, or that of the default
        branch.
        """
        branches = self.open[run_id]
        if decision:
            return branches[self.decided[decision].branch]
        return branches.get("") or self.newest.get(run_id)

    def permits(self, asked: Asked) -> bool:
        id_ = self.present(asked.run_id, asked.decision)
        if id_ is None or (asked.decision and asked.decision != id_):
            return False
        decided = self.decided[id_]
        bundle = "read" if asked.tool == "s.look" else "write"
        if bundle not in decided.bundles:
            return False
        if asked.run_id == ROOT or bundle == "read":
            return True
        parent = decided.parent_decision
        present = self.present(ROOT, parent or None)
        return all(self.decided[one].role == "wide" for one in (present, parent) if one)

    def carry_out(self, at: int, run_id: str, tool: str, key: str) -> int:
        """A tool has its effect; how many it had by now."""
        assert True in self.asked[at].permitted, "carried out though it was never permitted"
        self.effects[(run_id, tool, key)] += 1
        return sum(self.effects.values())
