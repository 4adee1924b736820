"""The bundles that policies permit at the addresses that the config tells apart, for lint.

Policies treat all addresses alike that the same rows cover, so a bundle is judged once for each
such set of rows (see `review.address_classes`). In a config with too many names, or with too many
sets of rows, lint is silent: it never changes a decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product
from typing import Final

from bundle_router.core.catalog import Bundle, Catalog, Policy, Route
from bundle_router.core.catalog.address_classes import PartClasses, classes_of_parts
from bundle_router.core.catalog.step_address import PARTS, AddressedRow
from bundle_router.core.decide.ceiling import StepCeiling, ceiling_of
from bundle_router.core.decide.policy import BundleVerdict, static_verdict
from bundle_router.core.values import Address
from bundle_router.core.values.patterns import is_glob, matches

MAX_COMBINATIONS: Final = 200_000
"""Maximum combinations of words that are compared. With more, the rules that need them are silent.
"""
MAX_LOOKS: Final = 200_000
"""Maximum verdicts, and combinations of a route's words, that are computed.

After that everything counts as permitted.
"""
MAX_PAIRS: Final = 2_000_000
_STRANGER: Final = Address(["\x00stranger"] * len(PARTS))
"""An address that no row names: only open rows and `*` cover it."""

_Examples = Mapping[int, Address]
"""An example of the addresses that each set of policies covers. The set is given as bits."""


@dataclass(frozen=True, slots=True)
class _PartReach:
    """One part of addresses: the sets of policies that cover its words, each with an example."""

    words: Mapping[int, str]
    """For all words."""
    words_of_pattern: Mapping[str, Mapping[int, str]]
    """For the words that a name or glob of some row covers."""

    def words_on(self, names: Sequence[str]) -> Mapping[int, str]:
        """Return the same for the words that a row with these names and globs covers."""
        if not names:
            return self.words
        words: dict[int, str] = {}
        for name in names:
            words |= self.words_of_pattern[name]
        return words


def _part_reach(part: PartClasses) -> _PartReach:
    words: dict[int, str] = {}
    words_of_pattern: dict[str, dict[int, str]] = {}
    for name_class, (policies, *_) in zip(part.classes, part.masks, strict=True):
        words.setdefault(policies, name_class.example)
        for pattern in name_class.patterns:
            words_of_pattern.setdefault(pattern, {}).setdefault(policies, name_class.example)
    return _PartReach(words, words_of_pattern)


class Reach:
    """What policies permit at which addresses.

    `complete` is false if there are too many combinations to check: then whatever is asked of all
    addresses, or of those of a row, counts as permitted.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._ceilings: dict[int, StepCeiling] = {}
        self._verdicts: dict[tuple[str, int], BundleVerdict] = {}
        self._examples: dict[tuple[tuple[str, ...], ...], _Examples] = {}
        self._tools: dict[tuple[str, tuple[tuple[str, ...], ...]], Set[str]] = {}
        self._looks = MAX_LOOKS
        self._granting = sum(
            1 << index for index, row in enumerate(catalog.policies) if row.allow is not None
        )
        parts = classes_of_parts((catalog.policies, catalog.routes, catalog.approvals))
        self._parts = [_part_reach(part) for part in parts]
        everywhere = None
        if all(part.complete for part in parts):
            everywhere = _combine([part.words for part in self._parts], MAX_COMBINATIONS)
        self.complete = everywhere is not None
        self._everywhere = everywhere or {}

    def permitted_anywhere(self, bundle: Bundle) -> bool:
        """Return whether some step may see the bundle."""
        if not self.complete:
            return True
        return self._is_permitted(bundle, self._everywhere)

    def permitted_to_strangers(self, bundle: Bundle) -> bool:
        """Return whether a step that no row names may see the bundle."""
        rows = sum(1 << index for index, row in enumerate(self._catalog.policies) if row.is_open)
        return self._is_permitted(bundle, {rows: _STRANGER})

    def permitted_on(self, row: AddressedRow, bundle: Bundle) -> bool:
        """Return whether some step that the row matches may see the bundle."""
        examples = self._examples_on(row)
        return examples is None or self._is_permitted(bundle, examples)

    def tools_on(self, row: AddressedRow, bundle: Bundle) -> Set[str]:
        """Return the bundle's tools that some step of the row may see; in a very large config, only
        some.
        """
        key = (bundle.id, row.patterns)
        known = self._tools.get(key)
        if known is not None:
            return known
        tools: set[str] = set()
        for rows, example in (self._examples_on(row) or {}).items():
            verdict = self._verdict(rows, example, bundle)
            if verdict is not None:
                tools.update(verdict.tools)
        self._tools[key] = tools
        return tools

    def granted_on(self, policy: Policy) -> bool:
        """Return whether some policy grants anything at a step that this one also covers."""
        examples = self._examples_on(policy)
        return examples is None or any(rows & self._granting for rows in examples)

    def _examples_on(self, row: AddressedRow) -> _Examples | None:
        """Return an example of each kind of address that the row covers; None where there are too
        many.
        """
        if not self.complete:
            return None
        examples = self._examples.get(row.patterns)
        if examples is not None:
            return examples
        words = [
            part.words_on(names) for part, names in zip(self._parts, row.patterns, strict=True)
        ]
        combinations = _combine(words, self._looks)
        if combinations is not None:
            self._looks -= len(combinations)
            self._examples[row.patterns] = combinations
        return combinations

    def _is_permitted(self, bundle: Bundle, examples: _Examples) -> bool:
        for rows, example in examples.items():
            verdict = self._verdict(rows, example, bundle)
            if verdict is None or verdict.permitted:
                return True
        return False

    def _verdict(self, rows: int, example: Address, bundle: Bundle) -> BundleVerdict | None:
        """Return the verdict; None once the maximum was computed."""
        known = self._verdicts.get((bundle.id, rows))
        if known is not None:
            return known
        self._looks -= 1
        if self._looks < 0:
            return None
        if rows not in self._ceilings:
            self._ceilings[rows] = ceiling_of(self._catalog, example, None, ())
        verdict = static_verdict(self._catalog, self._ceilings[rows], bundle)
        self._verdicts[bundle.id, rows] = verdict
        return verdict


def _combine(parts: Iterable[Mapping[int, str]], most: int) -> _Examples | None:
    """Return an example of each kind of address whose words are these; None where more than `most`
    combinations would be compared.
    """
    combinations: dict[int, tuple[str, ...]] = {-1: ()}
    for words in parts:
        if len(combinations) * len(words) > most:
            return None
        longer: dict[int, tuple[str, ...]] = {}
        for rows, prefix in combinations.items():
            for part_rows, word in words.items():
                longer.setdefault(rows & part_rows, (*prefix, word))
        combinations = longer
    return {rows: Address(words) for rows, words in combinations.items()}


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
    return all(map(_covers_field, wide.patterns, narrow.patterns))


def shadowing_routes(routes: Sequence[Route]) -> dict[int, int]:
    """Return for each route that can never be first: its index, and that of an earlier one that
    covers it.

    Rows that can cover another share its first words or leave them open, so a few look-ups find
    them; rows with globs are compared one by one, up to `MAX_PAIRS` comparisons in all.
    """
    exact: dict[tuple[str | None, ...], list[int]] = {}
    globbed: list[int] = []
    shadowed: dict[int, int] = {}
    pairs = MAX_PAIRS
    for index, route in enumerate(routes):
        fields: list[tuple[str | None, ...]] = [
            (None,) if not names or "*" in names else names for names in route.patterns
        ]
        near = {
            earlier
            for key in product(*({names[0], None} for names in fields))
            for earlier in exact.get(key, ())
        }
        for earlier in sorted({*near, *globbed}):
            pairs -= 1
            if pairs < 0:
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
