"""Who may see what: one function, used when a step is decided on and again when a tool is called.

Rules:
1. Absence is deny. An address that no policy with an `allow` covers may see nothing.
2. All policies that cover the address apply together: denials unite, allowances intersect, effects intersect, and
   the highest `min_trust` counts. So adding a denial, an effect list or a trust floor never widens anything.
3. The step's own policy, and every ancestor's ceiling, are further layers of the same kind. A layer can only narrow.
4. Deny beats allow. Denying a bundle also takes its tools out of every bundle composed of it.
5. An `allow` is a set of tools: `bundle:x` stands for all tools of x, `tool:s.t` for one. A bundle may be seen when at
   least one of its tools may; the tools that may not are refused one by one.
6. The tests are made in the order of `CODES`; the first that fails is the reason. `explain` shows them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from router.core.catalog import Bundle, Catalog
from router.core.mapping import Address, covering
from router.core.models import Code, Effect, Facts, Grant, LeftOut, StepPolicy, Trust
from router.core.patterns import Targets, first_match

_TRUST_ORDER: Final[dict[Trust, int]] = {"untrusted": 0, "trusted": 1}
_NOTHING: Final = Targets((), ())


@dataclass(frozen=True, slots=True)
class Layer:
    """One thing that narrows: a policy row, the step's own policy, or an ancestor's. `name` is for people."""

    name: str
    allow: Targets | None = None
    deny: Targets = _NOTHING
    min_trust: Trust | None = None
    effects: tuple[Effect, ...] | None = None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most a step may have. `ungranted` names the addresses (its own, its ancestors') that are granted nothing."""

    layers: tuple[Layer, ...]
    ungranted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """One test made on a bundle or tool, in the order of `CODES`."""

    code: Code
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a bundle comes to: the tools of it that may be seen, those that may not, or why none may (`code`)."""

    id: str
    tools: tuple[str, ...] = ()
    refused: tuple[LeftOut, ...] = ()
    code: Code | None = None
    detail: str = ""

    @property
    def permitted(self) -> bool:
        return self.code is None

    def as_left_out(self) -> LeftOut:
        assert self.code is not None, "a permitted bundle is not left out"  # noqa: S101 - a caller's bug, not input
        return LeftOut(self.id, self.code, self.detail)


def _address_layers(catalog: Catalog, address: Address, whose: str) -> tuple[list[Layer], list[str]]:
    rows = covering(catalog.policies, address)
    layers = [
        Layer(
            name=f"policy {row.name!r}{whose}",
            allow=None if row.allow is None else Targets.parse(row.allow),
            deny=Targets.parse(row.deny),
            min_trust=row.min_trust,
            effects=row.effects,
        )
        for row in rows
    ]
    granted = any(row.allow is not None for row in rows)
    return layers, [] if granted else ["/".join(address) + whose]


def _step_layer(policy: StepPolicy, name: str) -> Layer:
    return Layer(
        name=name,
        allow=None if policy.allow is None else Targets.parse(policy.allow),
        deny=Targets.parse(policy.deny),
        min_trust=policy.trust,
    )


def ceiling_of(catalog: Catalog, address: Address, policy: StepPolicy | None, grants: tuple[Grant, ...]) -> Ceiling:
    """All layers that a step at this address is judged under: policies, its own policy, and its ancestors'."""
    layers, ungranted = _address_layers(catalog, address, "")
    if policy is not None:
        layers.append(_step_layer(policy, "the step's own policy"))
    for generation, grant in enumerate(grants, start=1):
        whose = " of the parent run" if generation == 1 else f" of the ancestor run {generation} levels up"
        more, missing = _address_layers(catalog, (grant.workflow, grant.role, grant.step), whose)
        layers += more
        ungranted += missing
        if grant.policy is not None:
            layers.append(_step_layer(grant.policy, f"the step policy{whose}"))
    return Ceiling(tuple(layers), tuple(ungranted))


def constituents(catalog: Catalog, bundle: Bundle) -> tuple[Bundle, ...]:
    """The bundles it is composed of, all the way down, without itself. The catalog has no cycles."""
    found: dict[str, Bundle] = {}
    waiting = list(bundle.bundles)
    while waiting:
        id_ = waiting.pop()
        part = catalog.bundles.get(id_)
        if part is not None and id_ not in found:
            found[id_] = part
            waiting.extend(part.bundles)
    return tuple(found.values())


# --- the tests on one tool of one bundle, each giving None or what is wrong -----------------------------------------


def _denial(ceiling: Ceiling, catalog: Catalog, bundle: Bundle, tool: str | None) -> str | None:
    parts = constituents(catalog, bundle) if bundle.bundles else ()
    for layer in ceiling.layers:
        hit = layer.deny.bundle(bundle.id)
        if hit is not None:
            return f"{layer.name} denies {hit!r}"
        if tool is None:
            continue
        hit = layer.deny.tool(tool)
        if hit is not None:
            return f"{layer.name} denies 'tool:{hit}'"
        for part in parts:
            if tool in part.tools and (hit := layer.deny.bundle(part.id)) is not None:
                return f"{layer.name} denies {hit!r}, which {bundle.id!r} is composed of"
    return None


def _lack_of_allowance(ceiling: Ceiling, bundle: Bundle, tool: str | None) -> str | None:
    if ceiling.ungranted:
        return f"no policy with an allow covers {ceiling.ungranted[0]}"
    for layer in ceiling.layers:
        if layer.allow is None or layer.allow.bundle(bundle.id) is not None:
            continue
        if tool is None or layer.allow.tool(tool) is None:
            return f"{layer.name} does not allow it"
    return None


def _server_disabled(catalog: Catalog, tool: str) -> str | None:
    name, _, short = tool.partition(".")
    server = catalog.servers.get(name)
    if server is None:
        return f"server {name!r} is not configured"
    if not server.enabled:
        return f"server {name!r} is disabled"
    if server.include is not None and first_match(server.include, short) is None:
        return f"server {name!r} does not include it"
    excluded = first_match(server.exclude, short)
    return None if excluded is None else f"server {name!r} excludes {excluded!r}"


def _low_trust(ceiling: Ceiling, catalog: Catalog, bundle: Bundle, tool: str | None) -> str | None:
    server = catalog.servers.get(tool.partition(".")[0]) if tool else None
    trust = server.trust if server is not None else bundle.trust
    for layer in ceiling.layers:
        if layer.min_trust is not None and _TRUST_ORDER[trust] < _TRUST_ORDER[layer.min_trust]:
            return f"{layer.name} asks for {layer.min_trust} servers, this is {trust}"
    return None


def _effect(ceiling: Ceiling, bundle: Bundle) -> str | None:
    for layer in ceiling.layers:
        if layer.effects is not None:
            for effect in bundle.effects:
                if effect not in layer.effects:
                    return f"{layer.name} does not permit the effect {effect!r}"
    return None


def _missing_capability(facts: Facts, bundle: Bundle) -> str | None:
    for name in bundle.requires_env:
        if f"env:{name}" not in facts.capabilities:
            return f"the environment variable {name} is not set"
    for name in bundle.requires_binary:
        if f"binary:{name}" not in facts.capabilities:
            return f"the program {name!r} is not on the path"
    return None


def _unavailable(facts: Facts, tool: str) -> str | None:
    name = tool.partition(".")[0]
    for server, why in facts.unavailable:
        if server == name:
            return f"server {name!r}: {why}"
    return None


def _drift(facts: Facts, tool: str) -> str | None:
    server, _, short = tool.partition(".")
    return f"{tool} differs from its pin" if (server, short) in facts.drifted else None


def _tool_checks(catalog: Catalog, ceiling: Ceiling, bundle: Bundle, tool: str) -> Iterator[tuple[Code, str | None]]:
    """The tests that rest on the config alone, for one tool of the bundle."""
    yield "disabled", "the bundle is disabled" if not bundle.enabled else _server_disabled(catalog, tool)
    yield "policy_denied", _denial(ceiling, catalog, bundle, tool)
    yield "not_allowed", _lack_of_allowance(ceiling, bundle, tool)
    yield "trust_too_low", _low_trust(ceiling, catalog, bundle, tool)
    yield "effect_not_allowed", _effect(ceiling, bundle)
    server = catalog.servers.get(tool.partition(".")[0])
    untrusted = server is not None and server.trust == "untrusted"
    listed = tool in bundle.tools
    yield (
        "allowlist_required",
        "an untrusted server's tool must be named in the bundle" if untrusted and not listed else None,
    )


def _fact_checks(facts: Facts, bundle: Bundle, tool: str) -> Iterator[tuple[Code, str | None]]:
    """The tests that rest on what the shell looked up."""
    yield "capability_missing", _missing_capability(facts, bundle)
    yield "pin_drift", _drift(facts, tool)
    yield "server_unavailable", _unavailable(facts, tool)


def checks(catalog: Catalog, ceiling: Ceiling, facts: Facts, bundle: Bundle, tool: str) -> tuple[Check, ...]:
    """Every test on one tool of a bundle, in order, passed or not: the chain that `explain` prints."""
    tests = (*_tool_checks(catalog, ceiling, bundle, tool), *_fact_checks(facts, bundle, tool))
    return tuple(Check(code, wrong is None, wrong or "") for code, wrong in tests)


def _first_failure(tests: Iterator[tuple[Code, str | None]]) -> tuple[Code, str] | None:
    return next(((code, wrong) for code, wrong in tests if wrong is not None), None)


def static_verdict(catalog: Catalog, ceiling: Ceiling, bundle: Bundle) -> Verdict:
    """The verdict as far as config alone decides it. Depends on nothing that changes while the catalog is in use."""
    if not bundle.tools:
        return _toolless_verdict(catalog, ceiling, bundle)
    tools: list[str] = []
    refused: list[LeftOut] = []
    for tool in bundle.tools:
        failure = _first_failure(_tool_checks(catalog, ceiling, bundle, tool))
        if failure is None:
            tools.append(tool)
        else:
            refused.append(LeftOut(bundle.id, failure[0], failure[1], tool))
    if tools:
        return Verdict(bundle.id, tuple(tools), tuple(refused))
    # Nothing is left: the reason that stands furthest back in the order is the one nearest to being permitted, but a
    # reader asks "why not the bundle": report the test that its first tool failed.
    return Verdict(bundle.id, (), tuple(refused), refused[0].code, refused[0].detail)


def _toolless_verdict(catalog: Catalog, ceiling: Ceiling, bundle: Bundle) -> Verdict:
    """A bundle whose tools are only globs over servers not asked yet: judged as a whole."""
    tests: Iterator[tuple[Code, str | None]] = iter(
        (
            ("disabled", None if bundle.enabled else "the bundle is disabled"),
            ("policy_denied", _denial(ceiling, catalog, bundle, None)),
            ("not_allowed", _lack_of_allowance(ceiling, bundle, None)),
            ("trust_too_low", _low_trust(ceiling, catalog, bundle, None)),
            ("effect_not_allowed", _effect(ceiling, bundle)),
        )
    )
    failure = _first_failure(tests)
    return Verdict(bundle.id) if failure is None else Verdict(bundle.id, (), (), *failure)


def with_facts(verdict: Verdict, facts: Facts, bundle: Bundle) -> Verdict:
    """The verdict after the tests on what the shell looked up. Never permits what config refused."""
    if not verdict.permitted:
        return verdict
    if bundle.requires_env or bundle.requires_binary:
        missing = _missing_capability(facts, bundle)
        if missing is not None:
            return Verdict(bundle.id, (), verdict.refused, "capability_missing", missing)
    if not facts.unavailable and not facts.drifted:
        return verdict
    tools: list[str] = []
    refused: list[LeftOut] = []
    for tool in verdict.tools:
        failure = _first_failure(_fact_checks(facts, bundle, tool))
        if failure is None:
            tools.append(tool)
        else:
            refused.append(LeftOut(bundle.id, failure[0], failure[1], tool))
    if not refused:
        return verdict
    if tools:
        return Verdict(bundle.id, tuple(tools), (*verdict.refused, *refused))
    return Verdict(bundle.id, (), (*verdict.refused, *refused), refused[0].code, refused[0].detail)


def verdict(catalog: Catalog, ceiling: Ceiling, facts: Facts, id_: str) -> Verdict:
    """What the bundle of that id comes to under the ceiling and the facts."""
    bundle = catalog.bundle(id_)
    if bundle is None:
        return Verdict(id_, code="unknown_bundle", detail="no bundle has this id")
    return with_facts(static_verdict(catalog, ceiling, bundle), facts, bundle)
