"""The ceiling of a step: every policy, step policy and ancestor's limit that applies to it, as
layers.

Rules:
1. A layer can only narrow. The policies that cover the address, the step's own policy, and those of
   every ancestor are layers of one kind; no layer grants what another refuses.
2. An address that no policy with an `allow` covers is granted nothing, and neither are its
   sub-agents.
3. A renamed bundle is also meant by its old ids: `bundle:old-id` means its present id, and a glob
   in a `deny` covers it by any of its ids. A glob in an `allow` has to cover the present id.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.catalog.step_address import rows_covering
from bundle_router.core.values import Address, Effect, Grant, StepPolicy, Trust
from bundle_router.core.values.patterns import Targets

_NOTHING: Final = Targets((), ())


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: a policy row, the step's own policy, or an ancestor's. `name` is for people."""

    name: str
    allow: Targets | None = None
    deny: Targets = _NOTHING
    min_trust: Trust | None = None
    effects: tuple[Effect, ...] | None = None
    seen: frozenset[str] = frozenset()
    """The taints that the branch has to have seen for the layer to count."""
    row: str = ""
    """The policy row of a layer with `seen`."""
    is_enforced: bool = True
    """False: it refuses nothing, and what it would have refused is recorded."""

    def denying_pattern(self, bundle: Bundle) -> str | None:
        """Return the pattern that denies the bundle, by its name or an old one."""
        for id_ in (bundle.id, *bundle.aliases):
            hit = self.deny.bundle(id_)
            if hit is not None:
                return hit
        return None


@dataclass(frozen=True, slots=True)
class StepCeiling:
    """The most that a step may have.

    `ungranted`: addresses (its own, its ancestors') without a grant. `tainted`: the layers that
    count only once the step's branch has seen something.
    """

    layers: tuple[Layer, ...]
    ungranted: tuple[str, ...]
    tainted: tuple[Layer, ...] = ()


def ceiling_of(
    catalog: Catalog, address: Address, policy: StepPolicy | None, grants: tuple[Grant, ...]
) -> StepCeiling:
    """Return the layers that judge a step at this address: policies, its own policy, and its
    ancestors'.
    """
    layers, tainted, ungranted = _address_layers(catalog, address, "")
    if policy is not None:
        layers.append(_step_layer(catalog, policy, "the step's own policy"))
    for generation, grant in enumerate(grants, start=1):
        if generation == 1:
            whose = " of the parent run"
        else:
            whose = f" of the ancestor run {generation} levels up"
        grant_layers, grant_tainted, missing = _address_layers(catalog, grant.address, whose)
        layers += grant_layers
        tainted += grant_tainted
        ungranted += missing
        if grant.policy is not None:
            layers.append(_step_layer(catalog, grant.policy, f"the step policy{whose}"))
    return StepCeiling(tuple(layers), tuple(ungranted), tuple(tainted))


def _address_layers(
    catalog: Catalog, address: Address, whose: str
) -> tuple[list[Layer], list[Layer], list[str]]:
    """Return the layers of an address, those that count only once something was seen, and the
    address where no row grants it anything.
    """
    layers: list[Layer] = []
    tainted: list[Layer] = []
    is_granted = False
    for row in rows_covering(catalog.policies, address):
        layer = Layer(
            name=f"policy {row.name!r}{whose}",
            allow=None if row.allow is None else _targets(catalog, row.allow),
            deny=_targets(catalog, row.deny),
            min_trust=row.min_trust,
            effects=row.effects,
        )
        if row.seen:
            tainted.append(
                replace(layer, seen=frozenset(row.seen), row=row.name, is_enforced=row.enforce)
            )
            continue
        layers.append(layer)
        is_granted = is_granted or row.allow is not None
    if is_granted:
        return layers, tainted, []
    return layers, tainted, ["/".join(filter(None, address)) + whose]


def may_call_untrusted_in_code(
    catalog: Catalog, address: Address, grants: tuple[Grant, ...]
) -> bool:
    """Return whether a program at this address may call tools of untrusted servers: here and for
    every ancestor some policy row permits it and none forbids it.
    """
    addresses = [address, *(grant.address for grant in grants)]
    permissions = [
        [row.untrusted_in_code for row in rows_covering(catalog.policies, step_address)]
        for step_address in addresses
    ]
    return all(True in row and False not in row for row in permissions)


def _step_layer(catalog: Catalog, policy: StepPolicy, name: str) -> Layer:
    return Layer(
        name=name,
        allow=None if policy.allow is None else _targets(catalog, policy.allow),
        deny=_targets(catalog, policy.deny),
        min_trust=policy.trust,
    )


def _targets(catalog: Catalog, patterns: Iterable[str]) -> Targets:
    """Return the patterns with old bundle ids replaced by present ones."""
    targets = Targets.parse(patterns)
    present_ids = tuple(catalog.id_today(name) for name in targets.bundles)
    return replace(targets, bundles=present_ids)
