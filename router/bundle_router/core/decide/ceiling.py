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

    `ungranted`: addresses (its own, its ancestors') without a grant.
    """

    layers: tuple[Layer, ...]
    ungranted: tuple[str, ...]


def ceiling_of(
    catalog: Catalog, address: Address, policy: StepPolicy | None, grants: tuple[Grant, ...]
) -> StepCeiling:
    """Return the layers that judge a step at this address: policies, its own policy, and its
    ancestors'.
    """
    layers, ungranted = _address_layers(catalog, address, "")
    if policy is not None:
        layers.append(_step_layer(catalog, policy, "the step's own policy"))
    for generation, grant in enumerate(grants, start=1):
        if generation == 1:
            whose = " of the parent run"
        else:
            whose = f" of the ancestor run {generation} levels up"
        grant_layers, missing = _address_layers(catalog, grant.address, whose)
        layers += grant_layers
        ungranted += missing
        if grant.policy is not None:
            layers.append(_step_layer(catalog, grant.policy, f"the step policy{whose}"))
    return StepCeiling(tuple(layers), tuple(ungranted))


def _address_layers(
    catalog: Catalog, address: Address, whose: str
) -> tuple[list[Layer], list[str]]:
    rows = rows_covering(catalog.policies, address)
    layers = [
        Layer(
            name=f"policy {row.name!r}{whose}",
            allow=None if row.allow is None else _targets(catalog, row.allow),
            deny=_targets(catalog, row.deny),
            min_trust=row.min_trust,
            effects=row.effects,
        )
        for row in rows
    ]
    if any(row.allow is not None for row in rows):
        return layers, []
    return layers, ["/".join(filter(None, address)) + whose]


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
