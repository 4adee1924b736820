"""The privilege diff: what a config edit newly allows, whether or not a past step met it.

Rules:
1. Every address that either config tells apart is checked, including names that it never spells.
2. Privileges are a set of grants: this tool, in this bundle, brought in this way. Widening is what
   the new catalog grants and the old one does not; narrowing is the reverse. So exchanging the two
   exchanges widening and narrowing, and a catalog does not differ from itself.
3. Sound for any step: if the permitted tools grow, whatever its own policy, its ancestors and the
   facts are, a widening row names its bundle or its server, at its address or an ancestor's. One
   exception: a bundle that was renamed and kept its old id counts as the same, so a glob of a
   step's `allow` may cover only its new name.
4. What is permitted once a branch has seen something is compared for each set of taints that rows
   tell apart, up to `MAX_TAINT_SETS`.
5. Another way in which a bundle comes in is wider if nothing of the step itself brought it before.
   Which bundles search picks is behaviour, and shown by replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.catalog.address_classes import Masks, PartClasses, classes_of_parts, shared
from bundle_router.core.catalog.name_classes import ANY
from bundle_router.core.decide.policy import constituents
from bundle_router.core.exposure.placing import mode_of
from bundle_router.core.values import Address
from bundle_router.review.config_edits import ConfigEdit, config_edits
from bundle_router.review.privileges.everywhere import differences_everywhere
from bundle_router.review.privileges.granted import (
    GrantedTools,
    Permitted,
    tool_examples,
    with_examples,
)
from bundle_router.review.privileges.privilege_rows import (
    REACH_RANK,
    Addresses,
    Aspect,
    Kind,
    PrivilegeDiff,
    PrivilegeRow,
    Reach,
)

MAX_ADDRESSES: Final = 2_000_000
MAX_TAINT_SETS: Final = 64
"""Sets of taints that are compared; with more the diff is incomplete."""

_KINDS: Final[tuple[Kind, ...]] = ("widening", "narrowing", "neutral")
_Indexes = tuple[int, ...]
"""An address: the index of a group of names for each part."""


@dataclass(frozen=True, slots=True)
class NameGroup:
    """Names of one part of addresses that the rows of both catalogs treat alike."""

    labels: tuple[str, ...]
    """The labels of their classes."""
    example: str
    """One of the names."""
    masks: Masks
    """The rows that cover them: the old routes and policies, the new routes and policies."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One catalog at one class of addresses."""

    granted: GrantedTools
    route: int
    policies: int
    permitted: Permitted

    def reach(self, bundle: Bundle | None) -> Reach:
        if bundle is None:
            return "permitted"
        return self.granted.reach(self.route, bundle.id)

    def tools(self, bundle: Bundle | None) -> frozenset[str]:
        if bundle is None:
            return frozenset()
        return self.permitted.get(bundle.id, frozenset())


@dataclass(frozen=True, slots=True)
class _BundleSide:
    """One side and its form of a bundle; None where it has no such bundle."""

    side: _Side
    bundle: Bundle | None

    @property
    def tools(self) -> frozenset[str]:
        return self.side.tools(self.bundle)

    @property
    def reach(self) -> Reach:
        return self.side.reach(self.bundle)


def privilege_diff(old: Catalog, new: Catalog) -> PrivilegeDiff:
    """Return what the new catalog allows that the old one does not, the reverse, and other
    differences.
    """
    examples, knows_tools = tool_examples((old, new))
    parts = classes_of_parts((old.routes, old.policies, new.routes, new.policies))
    groups = [_name_groups(part) for part in parts]
    counts = tuple(map(len, groups))
    count = prod(counts)
    taint_sets = _taint_sets((old, new))
    complete = knows_tools and all(part.complete for part in parts) and count <= MAX_ADDRESSES
    complete = complete and len(taint_sets) <= MAX_TAINT_SETS
    comparison = _Comparison(with_examples(old, examples), with_examples(new, examples), examples)
    rows: dict[PrivilegeRow, set[_Indexes]] = {}
    if count <= MAX_ADDRESSES:
        for masks, addresses in _kinds_of_address(groups).items():
            example = _example(groups, addresses[0])
            for row in comparison.rows(masks, example):
                rows.setdefault(row, set()).update(addresses)
            for taints in taint_sets[:MAX_TAINT_SETS]:
                for row in comparison.rows_once_seen(taints, masks, example):
                    rows.setdefault(row, set()).update(addresses)
    differences = [
        replace(row, addresses=_merge_addresses(addresses, groups))
        for row, addresses in rows.items()
    ]
    differences += differences_everywhere(old, new, comparison.edits)
    return PrivilegeDiff(
        old_revision=old.revision,
        new_revision=new.revision,
        rows=tuple(sorted(differences, key=_order)),
        address_count=count,
        class_counts=counts,
        complete=complete,
        classes=tuple(part.classes for part in parts),
    )


def _taint_sets(catalogs: Iterable[Catalog]) -> list[frozenset[str]]:
    """Return the sets of taints that rows tell apart, the smallest first: what rows name, and the
    unions of that; at most one more than are compared.
    """
    rows = [row for catalog in catalogs for row in catalog.policies]
    seen_sets = {frozenset(row.seen) for row in rows} - {frozenset()}
    sets: set[frozenset[str]] = set()
    for taints in sorted(seen_sets, key=_by_size):
        sets |= {taints, *(taints | union for union in sets)}
        if len(sets) > MAX_TAINT_SETS:
            break
    return sorted(sets, key=_by_size)[: MAX_TAINT_SETS + 1]


def _by_size(taints: frozenset[str]) -> tuple[int, list[str]]:
    return len(taints), sorted(taints)


def _order(row: PrivilegeRow) -> tuple[object, ...]:
    """Return the sort key: rows that execute or write first, then by name."""
    harm = ("exec" not in row.effects, "write" not in row.effects)
    return (
        _KINDS.index(row.kind),
        not row.addresses,
        harm,
        row.subject,
        row.aspect,
        row.tools,
        str(row.addresses),
    )


# --- addresses ------------------------------------------------------------------------------------


def _way_in(granted: GrantedTools, bundle: Bundle) -> tuple[object, ...]:
    """Return all that decides how a bundle comes in by a route, and as what it is denied."""
    parts = constituents(granted.catalog, bundle)
    settings = granted.catalog.settings
    return (
        [part.aliases for part in parts],
        [part.tools for part in parts],
        settings.fallback,
        settings.activation.sticky,
        bundle.id in granted.brought_somewhere,
    )


def _name_groups(part: PartClasses) -> list[NameGroup]:
    """Return the classes of one part, those together that the same rows cover."""
    groups: dict[Masks, NameGroup] = {}
    for name_class, masks in zip(part.classes, part.masks, strict=True):
        group = groups.get(masks)
        if group is None:
            groups[masks] = NameGroup((name_class.label,), name_class.example, masks)
        else:
            groups[masks] = replace(group, labels=(*group.labels, name_class.label))
    if len(groups) == 1:
        return [replace(next(iter(groups.values())), labels=(ANY,))]
    return list(groups.values())


def _kinds_of_address(groups: Sequence[Sequence[NameGroup]]) -> dict[Masks, list[_Indexes]]:
    """Return the addresses by what covers them: each catalog's first route (as a bit), and all
    policies.
    """
    found: dict[Masks, list[_Indexes]] = {(-1, -1, -1, -1): [()]}
    for part in groups:
        longer: dict[Masks, list[_Indexes]] = {}
        for masks, addresses in found.items():
            for index, group in enumerate(part):
                common = shared(masks, group.masks)
                longer.setdefault(common, []).extend((*address, index) for address in addresses)
        found = longer
    kinds: dict[Masks, list[_Indexes]] = {}
    for (old_routes, old_policies, new_routes, new_policies), addresses in found.items():
        first = (old_routes & -old_routes, old_policies, new_routes & -new_routes, new_policies)
        kinds.setdefault(first, []).extend(addresses)
    return kinds


def _example(groups: Sequence[Sequence[NameGroup]], indexes: _Indexes) -> Address:
    return Address([part[index].example for part, index in zip(groups, indexes, strict=True)])


def _merge_addresses(
    addresses: set[_Indexes], groups: Sequence[Sequence[NameGroup]]
) -> tuple[Addresses, ...]:
    """Return the addresses as few products: merges those that differ in the last part alone, then
    in the part before, and so on.
    """
    products = {tuple([frozenset((index,)) for index in indexes]) for indexes in addresses}
    for position in reversed(range(len(groups))):
        merged: dict[tuple[frozenset[int], ...], frozenset[int]] = {}
        for indexes_by_part in products:
            remainder = indexes_by_part[:position] + indexes_by_part[position + 1 :]
            merged[remainder] = merged.get(remainder, frozenset()) | indexes_by_part[position]
        products = {
            (*others[:position], indexes, *others[position:]) for others, indexes in merged.items()
        }
    made = [Addresses(tuple(map(_labels, product, groups))) for product in products]
    return tuple(sorted(made, key=str))


def _labels(indexes: frozenset[int], groups: Sequence[NameGroup]) -> tuple[str, ...]:
    if len(indexes) == len(groups):
        return (ANY,)
    return tuple(label for index in sorted(indexes) for label in groups[index].labels)


# --- what is granted at one of them ---------------------------------------------------------------


class _Comparison:
    """Compares two catalogs at one class of addresses after another."""

    def __init__(self, old: Catalog, new: Catalog, examples: Mapping[str, str]) -> None:
        self._old, self._new = GrantedTools(old), GrantedTools(new)
        self._labels = examples
        self._pairs = list(_pair_bundles(old, new))
        self.edits = config_edits(old, new)
        self._edited = {edit.place: edit for edit in self.edits}
        self._carried = {id_: edit for edit in self.edits for id_ in edit.carries}
        self._unstable = frozenset(
            number for number in range(len(self._pairs)) if not self._is_stable(number)
        )
        self._met: dict[tuple[int, int], tuple[frozenset[int], frozenset[int]]] = {}
        self._once_seen: dict[frozenset[str], tuple[GrantedTools, GrantedTools]] = {}

    def rows_once_seen(
        self, taints: frozenset[str], masks: Masks, address: Address
    ) -> Iterator[PrivilegeRow]:
        """Yield what either catalog alone permits at an address to a branch that has seen these
        taints, where they permit it alike to one that has seen nothing.
        """
        sides = self._once_seen.get(taints)
        if sides is None:
            sides = (
                GrantedTools(self._old.catalog, taints),
                GrantedTools(self._new.catalog, taints),
            )
            self._once_seen[taints] = sides
        old, new = (
            self._side(grants, masks[place], masks[place + 1], address)
            for grants, place in zip(sides, (0, 2), strict=True)
        )
        plain_old = self._side(self._old, masks[0], masks[1], address)
        plain_new = self._side(self._new, masks[2], masks[3], address)
        note = f"once its branch has seen {', '.join(sorted(taints))}"
        for old_bundle, new_bundle in self._pairs:
            old_end, new_end = _BundleSide(old, old_bundle), _BundleSide(new, new_bundle)
            plain = (plain_old.tools(old_bundle), plain_new.tools(new_bundle))
            gained = new_end.tools - old_end.tools - (plain[1] - plain[0])
            lost = old_end.tools - new_end.tools - (plain[0] - plain[1])
            if gained and new_bundle is not None:
                row = self._row("widening", "may call", gained, new_bundle, old_end, new_end)
                yield replace(row, note=note)
            if lost and old_bundle is not None:
                row = self._row("narrowing", "may call", lost, old_bundle, new_end, old_end)
                yield replace(row, note=note)

    def rows(self, masks: Masks, address: Address) -> Iterator[PrivilegeRow]:
        """Yield the differences at an address, as rows without addresses."""
        old = self._side(self._old, masks[0], masks[1], address)
        new = self._side(self._new, masks[2], masks[3], address)
        permitted, differing = self._permitted_bundles(old, new)
        for number in sorted(
            differing | (permitted & self._unstable) if _same_route(old, new) else permitted
        ):
            old_bundle, new_bundle = (
                _BundleSide(*pair) for pair in zip((old, new), self._pairs[number], strict=True)
            )
            yield from self._one_way("widening", old_bundle, new_bundle)
            yield from self._one_way("narrowing", new_bundle, old_bundle)
            yield from self._other_rows(old_bundle, new_bundle)

    def _permitted_bundles(self, old: _Side, new: _Side) -> tuple[frozenset[int], frozenset[int]]:
        """Return the bundles of which either side permits any tool, and those of which they permit
        different tools.
        """
        key = (old.policies, new.policies)
        numbers = self._met.get(key)
        if numbers is not None:
            return numbers

        permitted = set()
        different = set()
        for number, (old_bundle, new_bundle) in enumerate(self._pairs):
            old_tools = old.tools(old_bundle)
            new_tools = new.tools(new_bundle)
            if old_tools or new_tools:
                permitted.add(number)
            if old_tools != new_tools:
                different.add(number)
        numbers = self._met[key] = (frozenset(permitted), frozenset(different))
        return numbers

    def _is_stable(self, number: int) -> bool:
        """Return whether a bundle is the same on both sides, and comes in the same way by the same
        route.
        """
        old_bundle, new_bundle = self._pairs[number]
        if old_bundle is None or old_bundle != new_bundle:
            return False
        return _way_in(self._old, old_bundle) == _way_in(self._new, old_bundle)

    def _side(self, granted: GrantedTools, route: int, policies: int, address: Address) -> _Side:
        return _Side(
            granted, route.bit_length() - 1, policies, granted.permitted(policies, address)
        )

    def _one_way(
        self, kind: Kind, narrow: _BundleSide, wide: _BundleSide
    ) -> Iterator[PrivilegeRow]:
        """Yield what the wide side grants of the bundle, and the narrow side does not."""
        bundle = wide.bundle
        if not wide.tools or bundle is None:
            return
        fresh = wide.tools - narrow.tools
        common = wide.tools & narrow.tools
        if fresh:
            yield self._row(kind, "may call", fresh, bundle, narrow, wide)
        if not common or narrow.bundle is None:
            return
        if REACH_RANK[wide.reach] > REACH_RANK[narrow.reach]:
            yield self._row(kind, "comes in", common, bundle, narrow, wide)
        if not _needs_of(narrow.bundle) <= _needs_of(bundle):
            yield self._row(kind, "requires", common, bundle, narrow, wide)
        narrow_handles = narrow.side.granted.handles
        wide_handles = wide.side.granted.handles
        looser = frozenset(
            t for t in common if not narrow_handles(narrow.bundle, t) <= wide_handles(bundle, t)
        )
        if looser:
            yield self._row(kind, "can be denied as", looser, bundle, narrow, wide)

    def _other_rows(self, old: _BundleSide, new: _BundleSide) -> Iterator[PrivilegeRow]:
        if old.bundle is None or new.bundle is None:
            return
        tools = old.tools & new.tools
        differs = old.reach != new.reach
        equal_rank = REACH_RANK[old.reach] == REACH_RANK[new.reach]
        if tools and differs and equal_rank:
            yield self._row("neutral", "comes in", tools, new.bundle, old, new)

    def _row(
        self,
        kind: Kind,
        aspect: Aspect,
        tools: frozenset[str],
        bundle: Bundle,
        narrow: _BundleSide,
        wide: _BundleSide,
    ) -> PrivilegeRow:
        """Return a row about the wide side's form of a bundle."""
        old, new = (wide, narrow) if kind == "narrowing" else (narrow, wide)
        return PrivilegeRow(
            kind=kind,
            aspect=aspect,
            subject=bundle.id,
            tools=tuple(
                sorted(dict.fromkeys(self._labels.get(tool, tool) for tool in sorted(tools)))
            ),
            before=_side_words(aspect, old, tools),
            after=_side_words(aspect, new, tools),
            effects=bundle.effects,
            servers=tuple(sorted({tool.partition(".")[0] for tool in tools})),
            shown=tuple(
                sorted({mode_of(wide.side.granted.catalog, bundle, tool) for tool in tools})
            ),
            edits=tuple(self._blame_edits(aspect, old, new)),
            note=""
            if narrow.bundle is None or narrow.bundle.id == bundle.id
            else f"renamed from {narrow.bundle.id!r}",
        )

    def _blame_edits(
        self, aspect: Aspect, old: _BundleSide, new: _BundleSide
    ) -> Iterator[ConfigEdit]:
        """Yield the edits that concern a bundle at an address."""
        sides = (old.side, new.side)
        bundles = [end.bundle for end in (old, new) if end.bundle is not None]
        for id_ in dict.fromkeys(bundle.id for bundle in bundles):
            yield from self._edits_of("bundle", [id_])
            if id_ in self._carried:
                yield self._carried[id_]

        if aspect == "may call":
            policies = [name for side in sides for name in _covering_rows(side)]
            yield from self._edits_of("policy", policies)
            servers = [name for bundle in bundles for name in bundle.servers]
            yield from self._edits_of("server", servers)

        comes_in = aspect == "comes in"
        if comes_in or (aspect == "may call" and len(bundles) < 2):
            routes = [
                side.granted.catalog.routes[side.route].name for side in sides if side.route >= 0
            ]
            yield from self._edits_of("route", routes)
        if comes_in:
            settings = ("fallback.order", "fallback.default", "activation.sticky")
            yield from self._edits_of("setting", settings)

    def _edits_of(self, table: str, names: Iterable[str]) -> Iterator[ConfigEdit]:
        """Yield the edits of a table's rows, each once."""
        for name in dict.fromkeys(names):
            edit = self._edited.get((table, name))
            if edit is not None:
                yield edit


def _same_route(old: _Side, new: _Side) -> bool:
    routes = [
        side.granted.catalog.routes[side.route] if side.route >= 0 else None for side in (old, new)
    ]
    return routes[0] == routes[1]


def _covering_rows(side: _Side) -> Iterator[str]:
    for index, row in enumerate(side.granted.catalog.policies):
        if side.policies >> index & 1:
            yield row.name


def _needs_of(bundle: Bundle) -> frozenset[str]:
    return frozenset((*bundle.requires_env, *bundle.requires_binary))


def _side_words(aspect: Aspect, one: _BundleSide, tools: frozenset[str]) -> str:
    """Return a side's value of the row's aspect, in words."""
    bundle = one.bundle
    if bundle is None:
        return ""
    if aspect == "requires":
        variables = [f"env {name}" for name in bundle.requires_env]
        binaries = [f"binary {name}" for name in bundle.requires_binary]
        return ", ".join([*variables, *binaries]) or "nothing"
    if aspect == "can be denied as":
        handles = {name for tool in tools for name in one.side.granted.handles(bundle, tool)}
        return ", ".join(sorted(handles))
    if tools & one.tools:
        return one.reach
    return ""


def _pair_bundles(old: Catalog, new: Catalog) -> Iterator[tuple[Bundle | None, Bundle | None]]:
    """Yield each bundle in its old and new form, matched by id, else by an old id that it kept."""
    remaining = {id_: bundle for id_, bundle in old.bundles.items() if id_ not in new.bundles}
    for id_, bundle in new.bundles.items():
        if id_ in old.bundles:
            yield old.bundles[id_], bundle
            continue
        names = {id_, *bundle.aliases}
        old_bundle = next(
            (one for one in remaining.values() if not names.isdisjoint((one.id, *one.aliases))),
            None,
        )
        if old_bundle is not None:
            del remaining[old_bundle.id]
        yield old_bundle, bundle
    yield from ((bundle, None) for bundle in remaining.values())
