"""Rows with `seen`: the policy rows that count once a branch has seen certain kinds of content.

Rules:
1. A row is in force once the branch has seen all of its taints. What is a sort of a taint counts as
   it: `customer`, declared as private, puts a row for `private` in force.
2. A row in force is a layer like others: its denials, allowances, effects and trust floor narrow.
   It never grants (`core.decide.ceiling`).
3. One with `enforce = false` refuses nothing. What it would have refusals is said for what is shown
   and for calls.
4. While arguments are not known, a statement with `when` counts; for a call it counts where its
   conditions hold or can't be decided.
5. No row with `seen` covers the step: nothing here is entered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.catalog.conditions import evaluate_all
from bundle_router.core.catalog.config_tables import Condition
from bundle_router.core.decide.ceiling import Layer, StepCeiling
from bundle_router.core.decide.policy import ConfigChecks
from bundle_router.core.values import Code, Seen, WouldRefuse

if TYPE_CHECKING:
    from bundle_router.core.decide.policy import FactChecks

GOAL: Final = "goal"
"""Where a taint comes from that the engine handed in, in place of a tool's name."""
_NARROWING: Final[frozenset[Code]] = frozenset(
    ("policy_denied", "not_allowed", "trust_too_low", "effect_not_allowed")
)
"""The tests in which a row narrows; the others are of no row."""


class TaintTest:
    """The test of the rows that are in force for what a branch has seen.

    It is a test of policy (`FactTest`), and says the same of a call.
    """

    def __init__(self, catalog: Catalog, layers: Iterable[Layer], seen: Sequence[Seen]) -> None:
        self._catalog = catalog
        sorts = dict(catalog.taints)
        self._sources = _sources(seen, sorts)
        self.in_force = tuple(layer for layer in layers if layer.seen <= self._sources.keys())
        self._checks: dict[tuple[int, str], ConfigChecks] = {}

    def __call__(self, checks: FactChecks, bundle: Bundle, target: str | None) -> str | None:
        """Return why a row in force refuses the bundle, or its tool or glob; None if none does."""
        for number, layer in enumerate(self.in_force):
            if layer.is_enforced:
                wrong = self._refusal(number, bundle, target)
                if wrong is not None:
                    return f"{wrong}, and {self.sources_of(layer)}"
        return None

    def would_refuse(self, bundle: Bundle, tools: Iterable[str]) -> tuple[WouldRefuse, ...]:
        """Return what rows that are not enforced would refuse of the bundle and these tools."""
        return tuple(self._would_refuse(bundle, tuple(tools)))

    def _would_refuse(self, bundle: Bundle, tools: Sequence[str]) -> Iterator[WouldRefuse]:
        for number, layer in enumerate(self.in_force):
            if layer.is_enforced:
                continue
            out = self._refused_tools(number, bundle, tools)
            if out and len(out) == len(tools):
                yield WouldRefuse(layer.row, bundle.id)
            else:
                yield from (WouldRefuse(layer.row, bundle.id, tool) for tool in out)

    def _refused_tools(self, number: int, bundle: Bundle, tools: Sequence[str]) -> list[str]:
        return [tool for tool in tools if self._refusal(number, bundle, tool) is not None]

    def refusals_of_call(
        self, bundle: Bundle, tool: str, sinks: frozenset[str]
    ) -> Iterator[tuple[Layer, str]]:
        """Yield each row in force that refuses a call of the bundle's tool whose arguments go to
        these sinks, with the reason.
        """
        for layer in self.in_force:
            alone = StepCeiling((layer,), ())
            wrong = _narrowed_by(ConfigChecks(self._catalog, alone, bundle, sinks), tool)
            if wrong is not None:
                yield layer, f"{wrong}, and {self.sources_of(layer)}"

    def sources_of(self, layer: Layer) -> str:
        """Return what the branch has seen that puts the row in force, and the calls it came
        from.
        """
        return "this branch has seen " + ", ".join(
            f"{taint} ({source_words(self._sources[taint])})" for taint in sorted(layer.seen)
        )

    def _refusal(self, number: int, bundle: Bundle, target: str | None) -> str | None:
        """Return why the row of that number refuses the bundle or its target."""
        if target is None and (bundle.tools or bundle.patterns):
            return None  # its tools are tested one by one
        checks = self._checks.get((number, bundle.id))
        if checks is None:
            alone = StepCeiling((self.in_force[number],), ())
            checks = ConfigChecks(self._catalog, alone, bundle)
            self._checks[number, bundle.id] = checks
        return _narrowed_by(checks, target)


def _narrowed_by(checks: ConfigChecks, target: str | None) -> str | None:
    """Return why the one row of these tests refuses the target; None where it does not."""
    for code, wrong in checks.on(target):
        if wrong is not None and code in _NARROWING:
            return wrong
    return None


def _sources(seen: Sequence[Seen], sorts: Mapping[str, str]) -> dict[str, Seen]:
    """Return the first source of each taint, and of what it is a sort of."""
    sources: dict[str, Seen] = {}
    for source in seen:
        sources.setdefault(source.taint, source)
    for source in seen:
        if source.taint in sorts:
            sources.setdefault(sorts[source.taint], source)
    return sources


def source_words(source: Seen) -> str:
    """Return where a taint came from, for people: `github.issue_read, record 7`."""
    origin = "handed in with the goal" if source.tool == GOAL else source.tool
    place = f"record {source.seq}" + (f" of run {source.run}" if source.run else "")
    return f"{origin}, {place}"


def may_hold(conditions: Sequence[Condition], arguments: Any) -> bool:
    """Return whether a statement's conditions hold for the arguments, or can't be decided."""
    return evaluate_all(conditions, arguments) != "fails"


def cleared(taints: Iterable[str], sorts: Mapping[str, str]) -> frozenset[str]:
    """Return the taints that clearing these clears: they, and the sorts of them."""
    names = frozenset(taints)
    return names | {name for name, sort in sorts.items() if sort in names}
