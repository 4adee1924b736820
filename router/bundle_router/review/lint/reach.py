"""The addresses that the config tells apart, and the bundles that are permitted at them, for lint.

Rows name workflows, roles and steps by words and globs, so an address matters only through the rows
that cover it. One sample word for every word or glob in some row, and one that is in no row, give a
sample address for every combination that rows can tell apart. Exception: two globs that overlap in
a way no sample hits (`a*` and `*b`). There lint may be silent or, for a row written only for the
overlap, mistaken. It never changes a decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import product
from typing import Final

from bundle_router.core.catalog import Bundle, Catalog, Policy, Route
from bundle_router.core.decide.ceiling import StepCeiling, ceiling_of
from bundle_router.core.decide.mapping import Address, AddressedRow, rows_covering
from bundle_router.core.decide.policy import BundleVerdict, static_verdict
from bundle_router.core.values.patterns import first_match, is_glob, matches

MAX_ADDRESSES: Final = 20_000
"""Maximum sample addresses. With more, the rules that need them are silent."""
MAX_LOOKS: Final = 200_000
"""Maximum verdicts, and addresses of routes, that are computed.

After that everything counts as permitted.
"""
MAX_PAIRS: Final = 2_000_000
MAX_COVERED: Final = 500_000
"""Maximum pairs of a policy and a sample address, or of two policies: about half a second of
CPU.
"""
_STRANGER: Final = "\x00stranger"
"""A name in no row, which only `*` covers."""

_FIELDS: Final = ("workflow", "role", "step")
_Group = tuple[str, ...]
"""The names of the policies that cover an address.

Policy treats all addresses of one group alike.
"""


def _sample_words(rows: Iterable[AddressedRow], field: str) -> set[str]:
    written = {name for row in rows for name in getattr(row, field)}
    return {name.replace("*", "x").replace("?", "x") if is_glob(name) else name for name in written}


class Reach:
    """What policies permit at which addresses.

    `complete` is false if there are too many combinations to check.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._rows = catalog.policies
        self._granting = [row for row in catalog.policies if row.allow is not None]
        self._ceilings: dict[_Group, StepCeiling] = {}
        self._verdicts: dict[tuple[str, _Group], BundleVerdict] = {}
        self._groups: dict[Address, _Group] = {}
        self._tools: dict[tuple[object, ...], Set[str]] = {}
        self._looks = MAX_LOOKS
        self._sample_words = [
            sorted({*_sample_words(self._rows, field), _STRANGER}) for field in _FIELDS
        ]
        workflows, roles, steps = self._sample_words
        count = len(workflows) * len(roles) * len(steps)
        self.complete = count <= MAX_ADDRESSES and count * len(self._rows) <= MAX_COVERED
        for address in product(workflows, roles, steps) if self.complete else ():
            self._group(address)
        self._kinds = {group: address for address, group in self._groups.items()}

    def permitted_anywhere(self, bundle: Bundle) -> bool:
        """Return whether some step may see the bundle."""
        return any(self._permits(address, bundle) for address in self._kinds.values())

    def permitted_to_strangers(self, bundle: Bundle) -> bool:
        """Return whether a step that no row names may see the bundle."""
        return self._permits((_STRANGER, _STRANGER, _STRANGER), bundle)

    def permitted_on(self, row: AddressedRow, bundle: Bundle) -> bool:
        """Return whether some step that the row matches may see the bundle."""
        return any(self._permits(address, bundle) for address in self._addresses_of(row))

    def tools_on(self, row: AddressedRow, bundle: Bundle) -> Set[str]:
        """Return the bundle's tools that some step of the row may see; in a very large config, only
        some.
        """
        if (key := (bundle.id, row.workflow, row.role, row.step)) not in self._tools:
            verdicts = (self._verdict(address, bundle) for address in self._addresses_of(row))
            self._tools[key] = {
                tool for verdict in verdicts if verdict is not None for tool in verdict.tools
            }
        return self._tools[key]

    def granted_on(self, policy: Policy) -> bool:
        """Return whether some policy grants anything at a step that this one also covers."""
        many = len(self._granting) * len(self._rows) > MAX_COVERED
        return many or any(_overlap(policy, row) for row in self._granting)

    def _group(self, address: Address) -> _Group:
        if address not in self._groups:
            self._groups[address] = tuple(row.name for row in rows_covering(self._rows, address))
        return self._groups[address]

    def _permits(self, address: Address, bundle: Bundle) -> bool:
        verdict = self._verdict(address, bundle)
        return verdict is None or verdict.permitted

    def _verdict(self, address: Address, bundle: Bundle) -> BundleVerdict | None:
        """Return the verdict; None once the maximum was computed."""
        group = self._group(address)
        if (key := (bundle.id, group)) not in self._verdicts:
            self._looks -= 1
            if self._looks < 0:
                return None
            if group not in self._ceilings:
                self._ceilings[group] = ceiling_of(self._catalog, address, None, ())
            self._verdicts[key] = static_verdict(self._catalog, self._ceilings[group], bundle)
        return self._verdicts[key]

    def _addresses_of(self, row: AddressedRow) -> Iterator[Address]:
        pairs = zip(_FIELDS, self._sample_words, strict=True)
        workflows, roles, steps = (
            _matching_samples(getattr(row, field), samples) for field, samples in pairs
        )
        for address in product(workflows, roles, steps):
            self._looks -= 1
            yield address


def _matching_samples(names: tuple[str, ...], samples: list[str]) -> list[str]:
    """Return the sample words that a route's field covers. Words without globs are looked up."""
    if not names:
        return samples
    named = {name.replace("*", "x").replace("?", "x") if is_glob(name) else name for name in names}
    globs = [name for name in names if is_glob(name)]
    return sorted(
        named | {sample for sample in samples if globs and first_match(globs, sample) is not None}
    )


def _overlap(one: AddressedRow, other: AddressedRow) -> bool:
    """Return whether both rows cover some address (by samples)."""
    return all(_fields_overlap(getattr(one, field), getattr(other, field)) for field in _FIELDS)


def _fields_overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    if not one or not other:
        return True
    return any(
        matches(a, b) or matches(b, a) or (is_glob(a) and is_glob(b)) for a in one for b in other
    )


# --- routes that an earlier one hides -------------------------------------------------------------


def _covers_pattern(wide: str, narrow: str) -> bool:
    """Return whether `wide` covers every name that `narrow` covers.

    May be False although it does.
    """
    if wide in (narrow, "*"):
        return True
    if not is_glob(narrow):
        return matches(wide, narrow)
    # A `*` of the narrow glob must be covered by a `*` of the wide one; a `?` covers only one
    # character.
    return "?" not in wide and matches(wide, narrow)


def _covers_field(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    if not wide or "*" in wide:
        return True
    return bool(narrow) and all(any(_covers_pattern(one, name) for one in wide) for name in narrow)


def _covers(wide: AddressedRow, narrow: AddressedRow) -> bool:
    return all(_covers_field(getattr(wide, field), getattr(narrow, field)) for field in _FIELDS)


def shadowing_routes(routes: Sequence[Route]) -> dict[int, int]:
    """Return for each route that can never be first: its index, and that of an earlier one that
    covers it.

    Rows that can cover another share its first words or leave them open, so eight look-ups find
    them; rows with globs are compared one by one, up to `MAX_PAIRS` comparisons in all.
    """
    exact: dict[tuple[str | None, ...], list[int]] = {}
    globbed: list[int] = []
    shadowed: dict[int, int] = {}
    left = MAX_PAIRS
    for index, route in enumerate(routes):
        fields: list[tuple[str | None, ...]] = [
            (None,) if not names or "*" in names else names
            for names in (route.workflow, route.role, route.step)
        ]
        near = {
            earlier
            for key in product(*({names[0], None} for names in fields))
            for earlier in exact.get(key, ())
        }
        for earlier in sorted({*near, *globbed}):
            left -= 1
            if left < 0:
                return shadowed
            if _covers(routes[earlier], route):
                shadowed[index] = earlier
                break
        if any(name is not None and is_glob(name) for names in fields for name in names):
            globbed.append(index)
        elif index not in shadowed:
            for words in product(*fields):
                exact.setdefault(words, []).append(index)
    return shadowed
