"""Policy: who may see what.

The same function judges a step when it is decided and a tool when it is called.

Rules:
1. Absence is deny. An address that no policy with an `allow` covers may see nothing.
2. All policies that cover the address apply together: denials unite, allowances intersect, effects
   intersect, and the highest `min_trust` counts. So adding a denial, an effect list or a trust
   floor never widens anything.
3. The step's own policy, and every ancestor's ceiling, are further layers of the same kind (see
   `core.decide.ceiling`).
4. Deny beats allow. Denying a bundle also takes its tools out of every bundle composed of it.
5. An `allow` is a set of tools: `bundle:x` means all tools of x, `tool:s.t` one. A bundle may be
   seen when at least one of its tools may; the tools that may not are refused one by one.
6. A glob over a server that was not asked yet (`patterns`) is judged like a tool. It is permitted
   only if everything that it may cover is, so a `tool:` name allows no part of it; each tool is
   judged again once it is known.
7. `sends:outside` means the tools whose arguments go there, by what the operator states and by
   what is inferred (`core.catalog.statements`), whichever bundle holds them.
8. Rows with `seen` (`core.decide.taints`) are tested after all other tests of config, and before
   those of the machine.
9. The tests are made in the order of `CODES`; the first that fails is the reason. `explain` shows
   them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.decide.ceiling import Layer, StepCeiling
from bundle_router.core.values import WHOLE_SERVER, Code, Drift, Facts, LeftOut, Trust
from bundle_router.core.values.patterns import Targets, first_cover, is_glob

_TRUST_ORDER: Final[dict[Trust, int]] = {"untrusted": 0, "trusted": 1}

CheckResults = Iterator[tuple[Code, str | None]]
"""The tests in the order of `CODES`, each with what is wrong, or None."""


@dataclass(frozen=True, slots=True)
class Check:
    """One test of a bundle or tool, in the order of `CODES`."""

    code: Code
    """The code that a failure is recorded with."""
    passed: bool
    """Whether the bundle or tool passed."""
    detail: str
    """What was found, in words."""


@dataclass(frozen=True, slots=True)
class BundleVerdict:
    """The verdict on a bundle: the tools (and globs over unknown tools) that may be seen, those
    that may not, or why none may (`code`).
    """

    id: str
    tools: tuple[str, ...] = ()
    refused: tuple[LeftOut, ...] = ()
    code: Code | None = None
    detail: str = ""
    patterns: tuple[str, ...] = ()

    @property
    def permitted(self) -> bool:
        return self.code is None

    def as_left_out(self) -> LeftOut:
        assert self.code is not None, "a permitted bundle is not left out"  # noqa: S101 - a caller's bug, not input
        return LeftOut(self.id, self.code, self.detail)


def unknown(id_: str) -> BundleVerdict:
    """Return the verdict on an id that no bundle has."""
    return BundleVerdict(id_, code="unknown_bundle", detail="no bundle has this id")


def constituents(catalog: Catalog, bundle: Bundle) -> tuple[Bundle, ...]:
    """Return the bundles that a bundle is composed of, at any depth, without itself.

    The catalog has no cycles.
    """
    parts: dict[str, Bundle] = {}
    waiting = list(bundle.bundles)
    while waiting:
        id_ = waiting.pop()
        part = catalog.bundles.get(id_)
        if part is not None and id_ not in parts:
            parts[id_] = part
            waiting.extend(part.bundles)
    return tuple(parts.values())


# --- the tests that rest on config alone ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Denials:
    """What one layer denies of a bundle: all of it (`whole`), the tools of a denied constituent
    (`through`), or those whose arguments go to a denied sink. `sinks` are those of one call; None:
    those that the catalog states.
    """

    catalog: Catalog
    layer: Layer
    whole: str | None
    through: Mapping[str, str]
    sinks: frozenset[str] | None

    def of(self, target: str | None) -> str | None:
        if self.whole is not None or target is None:
            return self.whole
        hit = self.layer.deny.tool(target)
        if hit is not None:
            return f"{self.layer.name} denies 'tool:{hit}'"
        through = self.through.get(target)
        if through is not None or not self.layer.deny.sinks:
            return through
        sinks = self.sinks
        if sinks is None:
            sinks = self.catalog.statements.sends(target)
        sink = self.layer.deny.sink(sinks)
        return None if sink is None else f"{self.layer.name} denies 'sends:{sink}'"


class ConfigChecks:
    """The tests of one bundle that depend on config alone.

    What all its tools share is computed once.

    A target is a tool, a glob over a server that was not asked yet, or None: the bundle as a whole.
    `sinks` are those that the arguments of one call go to, where a call is judged.
    """

    def __init__(
        self,
        catalog: Catalog,
        ceiling: StepCeiling,
        bundle: Bundle,
        sinks: frozenset[str] | None = None,
    ) -> None:
        self._catalog = catalog
        self._bundle = bundle
        self._ungranted = ceiling.ungranted
        self._denials = _denials(catalog, ceiling, bundle, sinks)
        self._allowing = [
            (layer.name, layer.allow)
            for layer in ceiling.layers
            if layer.allow is not None and layer.allow.bundle(bundle.id) is None
        ]
        self._floors = [
            (layer.name, layer.min_trust) for layer in ceiling.layers if layer.min_trust is not None
        ]
        self._effect = _effect(ceiling, bundle)

    def on(self, target: str | None) -> CheckResults:
        yield "disabled", self._why_disabled(target)
        yield (
            "policy_denied",
            next((reason for denials in self._denials if (reason := denials.of(target))), None),
        )
        yield "not_allowed", self._lack_of_allowance(target)
        yield "trust_too_low", self._low_trust(target)
        yield "effect_not_allowed", self._effect
        yield "allowlist_required", self._why_unlisted(target)

    def _why_disabled(self, target: str | None) -> str | None:
        if not self._bundle.enabled:
            return "the bundle is disabled"
        if target is None:
            return None
        return _server_disabled(self._catalog, target)

    def _lack_of_allowance(self, target: str | None) -> str | None:
        if self._ungranted:
            return f"no policy with an allow covers {self._ungranted[0]}"
        for name, allow in self._allowing:
            if target is None:
                return f"{name} does not allow it"
            if allow.tool(target) is None and not self._is_allowed_sink(allow, target):
                return f"{name} does not allow it"
        return None

    def _is_allowed_sink(self, allow: Targets, target: str) -> bool:
        """Return whether the tool is one that sends where the layer allows it. A glob may cover
        tools that send nowhere (rule 6).
        """
        if not allow.sinks or is_glob(target):
            return False
        return allow.sink(self._catalog.statements.sends(target)) is not None

    def _low_trust(self, target: str | None) -> str | None:
        trust = self._trust(target)
        for name, floor in self._floors:
            if _TRUST_ORDER[trust] < _TRUST_ORDER[floor]:
                return f"{name} asks for {floor} servers, this is {trust}"
        return None

    def _trust(self, target: str | None) -> Trust:
        server = self._catalog.servers.get(target.partition(".")[0]) if target is not None else None
        return self._bundle.trust if server is None else server.trust

    def _why_unlisted(self, target: str | None) -> str | None:
        """Return why a glob is refused: the config had its server as trusted, and it is not any
        more.
        """
        if target is None or not is_glob(target) or self._trust(target) == "trusted":
            return None
        return "an untrusted server's tools must be named in the bundle one by one"


def _denials(
    catalog: Catalog, ceiling: StepCeiling, bundle: Bundle, sinks: frozenset[str] | None
) -> list[_Denials]:
    parts = constituents(catalog, bundle) if bundle.bundles else ()
    denials = []
    for layer in ceiling.layers:
        if not layer.deny.bundles and not layer.deny.tools and not layer.deny.sinks:
            continue
        hit = layer.denying_pattern(bundle)
        through: dict[str, str] = {}
        for part in parts if layer.deny.bundles else ():
            pattern = layer.denying_pattern(part)
            if pattern is not None:
                reason = f"{layer.name} denies {pattern!r}, which {bundle.id!r} is composed of"
                through |= dict.fromkeys((*part.tools, *part.patterns), reason)
        whole = None if hit is None else f"{layer.name} denies {hit!r}"
        denials.append(_Denials(catalog, layer, whole, through, sinks))
    return denials


def _effect(ceiling: StepCeiling, bundle: Bundle) -> str | None:
    for layer in ceiling.layers:
        if layer.effects is not None:
            for effect in bundle.effects:
                if effect not in layer.effects:
                    return f"{layer.name} does not permit the effect {effect!r}"
    return None


def _server_disabled(catalog: Catalog, target: str) -> str | None:
    name, _, short = target.partition(".")
    server = catalog.servers.get(name)
    if server is None:
        return f"server {name!r} is not configured"
    if not server.enabled:
        return f"server {name!r} is disabled"
    if (
        server.include is not None
        and not is_glob(short)
        and first_cover(server.include, short) is None
    ):
        return f"server {name!r} does not include it"
    excluded = first_cover(server.exclude, short)
    if excluded is None:
        return None
    return f"server {name!r} excludes {excluded!r}"


# --- the tests that rest on what the shell looked up ----------------------------------------------


class FactChecks:
    """The tests of a bundle or tool that depend on what the shell looked up, in order.

    Made once for facts that many bundles are judged under: it holds what they name by name.
    """

    def __init__(self, facts: Facts, tainted: FactTest | None = None) -> None:
        """`tainted` is the test of the rows with `seen`, where the step has any."""
        self.facts = facts
        self._tainted = tainted
        self.unavailable: Mapping[str, str] = dict(facts.unavailable)
        """Why each server that can't be used now can't be."""
        self.drifted: Mapping[tuple[str, str], Drift] = {
            (row.server, row.tool): row for row in facts.drifted
        }
        """The tools, by server and name, that are not as they were reviewed."""

    def on(self, bundle: Bundle, target: str | None) -> CheckResults:
        if self._tainted is not None:
            yield "tainted", self._tainted(self, bundle, target)
        for code, test in FACT_TESTS.items():
            yield code, test(self, bundle, target)


FactTest = Callable[[FactChecks, Bundle, str | None], str | None]
"""One test: says what is wrong with the bundle (no target) or with its tool or glob, or None."""


def _missing_capability(checks: FactChecks, bundle: Bundle, target: str | None) -> str | None:
    for name in bundle.requires_env:
        if f"env:{name}" not in checks.facts.capabilities:
            return f"the environment variable {name} is not set"
    for name in bundle.requires_binary:
        if f"binary:{name}" not in checks.facts.capabilities:
            return f"the program {name!r} is not on the path"
    return None


def _drift(checks: FactChecks, bundle: Bundle, target: str | None) -> str | None:
    if target is None:
        return None
    server, _, short = target.partition(".")
    if (server, WHOLE_SERVER) in checks.drifted:
        return (
            f"server {server!r} has no pins, or differs from them as a whole: review it with"
            " `bundle-router pin`"
        )
    row = checks.drifted.get((server, short))
    if row is None or row.code != "pin_drift":
        return None
    return f"{target} differs from its pin, or has none"


def _absence(code: Code, statement: str) -> FactTest:
    """Return the test of a tool that its server has not, in the way that `code` names."""

    def test(checks: FactChecks, bundle: Bundle, target: str | None) -> str | None:
        if target is None:
            return None
        server, _, short = target.partition(".")
        row = checks.drifted.get((server, short))
        if row is None or row.code != code or (server, WHOLE_SERVER) in checks.drifted:
            return None
        detail = f": {row.why}" if row.why else ""
        return f"server {server!r} {statement}{detail}"

    return test


def _unavailability(checks: FactChecks, bundle: Bundle, target: str | None) -> str | None:
    if target is None:
        return None
    server = target.partition(".")[0]
    reason = checks.unavailable.get(server)
    return None if reason is None else f"server {server!r}: {reason}"


FACT_TESTS: Final[Mapping[Code, FactTest]] = {
    "capability_missing": _missing_capability,
    "pin_drift": _drift,
    "not_admitted": _absence("not_admitted", "lists it in a form that is not admitted"),
    "not_listed": _absence("not_listed", "does not list it now"),
    "server_unavailable": _unavailability,
}
"""Every test of facts by its code, in the order of `CODES`. One that is added here counts in every
decision, call and explanation.
"""


# --- verdicts -------------------------------------------------------------------------------------


def checks(
    catalog: Catalog,
    ceiling: StepCeiling,
    facts: Facts,
    bundle: Bundle,
    target: str | None = None,
    tainted: FactTest | None = None,
) -> tuple[Check, ...]:
    """Return every test of one tool (or glob) of a bundle, or of the whole bundle, in order, passed
    or not: the chain that `explain` prints. `tainted` is the test of the rows with `seen`, where
    the step has any.
    """
    tests = (
        *ConfigChecks(catalog, ceiling, bundle).on(target),
        *FactChecks(facts, tainted).on(bundle, target),
    )
    return tuple(Check(code, wrong is None, wrong or "") for code, wrong in tests)


def static_verdict(catalog: Catalog, ceiling: StepCeiling, bundle: Bundle) -> BundleVerdict:
    """Return the verdict as far as the catalog alone decides it."""
    tests = ConfigChecks(catalog, ceiling, bundle)
    if bundle.tools or bundle.patterns:
        return _judge_tools(bundle, bundle.tools, bundle.patterns, (), tests.on)
    failure = _first_failure(tests.on(None))
    if failure is None:
        return BundleVerdict(bundle.id)
    return BundleVerdict(bundle.id, (), (), *failure)


def with_facts(verdict: BundleVerdict, facts: FactChecks, bundle: Bundle) -> BundleVerdict:
    """Return the verdict after the tests of facts. Never permits what config refused."""
    if not verdict.permitted:
        return verdict
    failure = _first_failure(facts.on(bundle, None))
    if failure is not None:
        return BundleVerdict(bundle.id, (), verdict.refused, *failure)
    if not (verdict.tools or verdict.patterns):
        return verdict
    return _judge_tools(
        bundle,
        verdict.tools,
        verdict.patterns,
        verdict.refused,
        lambda target: facts.on(bundle, target),
    )


def verdict(catalog: Catalog, ceiling: StepCeiling, facts: Facts, id_: str) -> BundleVerdict:
    """Return the verdict on the bundle of that id, under the ceiling and the facts."""
    bundle = catalog.bundle(id_)
    if bundle is None:
        return unknown(id_)
    return with_facts(static_verdict(catalog, ceiling, bundle), FactChecks(facts), bundle)


def _first_failure(tests: Iterable[tuple[Code, str | None]]) -> tuple[Code, str] | None:
    return next(((code, wrong) for code, wrong in tests if wrong is not None), None)


def _judge_tools(
    bundle: Bundle,
    tools: tuple[str, ...],
    patterns: tuple[str, ...],
    before: tuple[LeftOut, ...],
    tests: Callable[[str], CheckResults],
) -> BundleVerdict:
    """Return the verdict on a bundle after testing each of its tools and globs; `before` was
    refused earlier.

    Where no tool is left, the bundle's reason is the test that its first tool failed.
    """
    refusals: list[LeftOut] = []

    def passes(target: str) -> bool:
        failure = _first_failure(tests(target))
        if failure is not None:
            refusals.append(LeftOut(bundle.id, failure[0], failure[1], target))
        return failure is None

    permitted = tuple(filter(passes, tools))
    open_ = tuple(filter(passes, patterns))
    rows = (*before, *refusals)
    if permitted or open_:
        return BundleVerdict(bundle.id, permitted, rows, patterns=open_)
    return BundleVerdict(bundle.id, (), rows, refusals[0].code, refusals[0].detail)
