"""What one catalog grants a step at most: the tools of each bundle that policy permits, and how the
bundle comes in.

Judged by the function that decides and calls (`core.decide.policy`), for steps without a policy of
their own, with every variable and program present and every server available. What a step, an
ancestor or a fact removes, it removes from both catalogs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from bundle_router.core.catalog import Bundle, Catalog, Route, Server
from bundle_router.core.catalog.name_classes import name_classes
from bundle_router.core.decide.ceiling import ceiling_of
from bundle_router.core.decide.policy import constituents, static_verdict
from bundle_router.core.values import Address
from bundle_router.core.values.patterns import first_match
from bundle_router.review.privileges.privilege_rows import REACH_RANK, Reach

Permitted = Mapping[str, frozenset[str]]
"""Bundle id → the tools of it that policy permits."""


class GrantedTools:
    """The grants of one catalog; `seen`: to a branch that has seen these taints."""

    def __init__(self, catalog: Catalog, seen: frozenset[str] = frozenset()) -> None:
        self.catalog = catalog
        sorts = dict(catalog.taints)
        self._seen = seen | {sorts[taint] for taint in seen if taint in sorts}
        self._permitted: dict[int, Permitted] = {}
        self._reaches: dict[tuple[int, str], Reach] = {}

    def permitted(self, rows: int, address: Address) -> Permitted:
        """Return what policy permits at an address.

        `rows`: the policies that cover it, as bits; equal rows give equal answers.
        """
        permitted = self._permitted.get(rows)
        if permitted is None:
            ceiling = ceiling_of(self.catalog, address, None, ())
            in_force = [
                layer for layer in ceiling.tainted if layer.is_enforced and layer.seen <= self._seen
            ]
            if in_force:
                ceiling = replace(ceiling, layers=(*ceiling.layers, *in_force))
            verdicts = (
                static_verdict(self.catalog, ceiling, bundle)
                for bundle in self.catalog.bundles.values()
            )
            permitted = {one.id: frozenset(one.tools) for one in verdicts if one.tools}
            self._permitted[rows] = permitted
        return permitted

    def reach(self, route: int, bundle: str) -> Reach:
        """Return how the bundle comes in if the route of that index (-1: none) matches."""
        reach = self._reaches.get((route, bundle))
        if reach is None:
            row = self.catalog.routes[route] if route >= 0 else None
            reach = self._reaches[route, bundle] = self._reach(row, self.catalog.bundles[bundle])
        return reach

    def _reach(self, route: Route | None, bundle: Bundle) -> Reach:
        address_reach = self._brought_by_address(route, bundle)
        if (
            address_reach != "permitted"
            or not self.catalog.settings.activation.sticky
            or self._holds_back(route)
        ):
            return address_reach
        return "stays" if bundle.id in self.brought_somewhere else "permitted"

    def _brought_by_address(self, route: Route | None, bundle: Bundle) -> Reach:
        """Return how the address itself brings the bundle in."""
        names = {bundle.id, *bundle.aliases}
        if bundle.always:
            return "given"
        if route is not None and not names.isdisjoint(route.bundles):
            return "given"
        if route is not None and route.ask is None:
            return "permitted"

        fallback = self.catalog.settings.fallback
        is_asked = route is None or route.ask is None or first_match(route.ask, bundle.id)
        if bundle.selectable and is_asked and fallback.order != ("default",):
            return "picked"
        if "default" in fallback.order and not names.isdisjoint(fallback.default):
            return "picked"
        return "permitted"

    def _holds_back(self, route: Route | None) -> bool:
        """Return whether no bundle stays at such an address: its route gives none, or nothing would
        answer.
        """
        if route is not None and (route.bundles or route.ask is None):
            return not route.bundles
        fallback = self.catalog.settings.fallback
        return fallback.order == ("default",) and not fallback.default

    @cached_property
    def brought_somewhere(self) -> frozenset[str]:
        """The bundles that some step brings in, so that they may stay at another."""
        mapped = {
            self.catalog.id_today(id_) for route in self.catalog.routes for id_ in route.bundles
        }
        asking = (None, *(route for route in self.catalog.routes if route.ask is not None))
        return frozenset(
            bundle.id
            for bundle in self.catalog.bundles.values()
            if bundle.id in mapped
            or any(REACH_RANK[self._brought_by_address(route, bundle)] for route in asking)
        )

    def handles(self, bundle: Bundle, tool: str) -> frozenset[str]:
        """Return the names by which a step's own policy can deny the tool in this bundle: the
        bundle's, also old ones, and those of the bundles it is composed of.
        """
        parts = [
            bundle,
            *(part for part in constituents(self.catalog, bundle) if tool in part.tools),
        ]
        return frozenset(name for part in parts for name in (part.id, *part.aliases))


def tool_examples(catalogs: Iterable[Catalog]) -> tuple[dict[str, str], bool]:
    """Return an example of each class of tools that bundles' globs may come to cover, with its
    label, and whether these are all classes. Policies, servers and bundles distinguish tools that
    nobody has listed yet.
    """
    every = tuple(catalogs)
    patterns: dict[str, set[str]] = {}
    for catalog in every:
        for bundle in catalog.bundles.values():
            for glob in bundle.patterns:
                patterns.setdefault(glob.partition(".")[0], set()).add(glob)
    examples: dict[str, str] = {}
    complete = True
    for server, globs in patterns.items():
        classes, is_complete = name_classes({*globs, *_told_apart(every, server)}, f"{server}.")
        complete = complete and is_complete
        examples |= {
            one.example: one.label for one in classes if not one.patterns.isdisjoint(globs)
        }
    return examples, complete


def _told_apart(catalogs: Iterable[Catalog], server: str) -> Iterable[str]:
    """Yield all patterns anywhere about tools of the server."""
    for catalog in catalogs:
        for bundle in catalog.bundles.values():
            yield from (tool for tool in bundle.tools if tool.partition(".")[0] == server)
        for row in catalog.policies:
            patterns = (*(row.allow or ()), *row.deny)
            for pattern in patterns:
                if pattern.startswith("tool:"):
                    yield pattern.removeprefix("tool:")
        declared = catalog.servers.get(server)
        if declared is None:
            continue
        names = (*(declared.include or ()), *declared.exclude, *_stated_tools(declared))
        for name in names:
            yield f"{server}.{name}"


def _stated_tools(server: Server) -> Iterable[str]:
    """Return the names and globs of tools that statements of the server are about."""
    return [tool for row in server.taints for tool in row.tools]


def with_examples(catalog: Catalog, examples: Iterable[str]) -> Catalog:
    """Return the catalog with the example tools added to servers, so that the globs of bundles
    cover them.
    """
    tools = tuple(examples)
    bundles = {}
    for bundle in catalog.bundles.values():
        if not bundle.patterns:
            continue
        covered = [tool for tool in tools if first_match(bundle.patterns, tool)]
        bundles[bundle.id] = replace(bundle, tools=tuple(sorted({*bundle.tools, *covered})))
    if not bundles:
        return catalog
    return replace(catalog, bundles={**catalog.bundles, **bundles})
