"""What selects a row of `routes.toml` and `policy.toml` for a step: the step's address.

Rules:
1. An address has one word for each of `PARTS`, in their order. The word is empty where the step
   has none.
2. A row covers an address when each part of the row is open or has a name or glob that covers the
   address's word.
3. Of the routes that cover a step, the first of the file is the answer. Of the policy rows, all
   are.
4. A part is declared here and nowhere else: in `PARTS`, and as a key of `AddressedRow`. The look-up
   of routes, plans, caches, recorded grants, replay, `check`, `diff`, the matrix and `explain` go
   over `PARTS`. One that is added has to be in `AddressedRow.ADDED`, too, so that a config without
   it keeps its revision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar, Final, Generic, TypeVar

from bundle_router.core.catalog.config_keys import REQUIRED, Names, Word, key
from bundle_router.core.values import Address, Step
from bundle_router.core.values.patterns import first_match, is_glob


@dataclass(frozen=True, slots=True)
class AddressPart:
    """One part of an address."""

    name: str
    """The config key of rows, and the name in records, reports and the index of runs."""
    label: str = ""
    """The label of a step that has its word. Empty: the step's field of the part's name."""

    @property
    def is_optional(self) -> bool:
        """Whether a step may have no word for this part."""
        return bool(self.label)


PARTS: Final = (
    AddressPart("workflow"),
    AddressPart("role"),
    AddressPart("step"),
)
"""The parts of every address, in their order."""

_part: Final = partial(key, (), "Names or globs; leave out for any.", Names, absent=None)


@dataclass(frozen=True, slots=True)
class AddressedRow:
    """A row that applies to the steps whose address it covers: a route or a policy row.

    Each part is a tuple of names or globs. An empty one is open: it covers any word.
    """

    ADDED: ClassVar[tuple[str, ...]] = ()

    name: str = key(REQUIRED, "The name of this row in records. Unique in the file.", Word)
    workflow: tuple[str, ...] = _part()
    role: tuple[str, ...] = _part()
    step: tuple[str, ...] = _part()

    @property
    def patterns(self) -> tuple[tuple[str, ...], ...]:
        """The names and globs of each part, in the order of `PARTS`."""
        return tuple([getattr(self, part.name) for part in PARTS])

    @property
    def is_open(self) -> bool:
        """Whether the row covers every address."""
        return all(not names or "*" in names for names in self.patterns)

    def covers(self, address: Address) -> bool:
        """Return whether the row applies to steps of this address (rule 2)."""
        return all(
            not names or first_match(names, word) is not None
            for names, word in zip(self.patterns, address, strict=True)
        )


def address_of(step: Step) -> Address:
    """Return the address of a step."""
    return address_from(vars(step), step.labels)


def address_from(fields: Mapping[str, Any], labels: Mapping[str, str]) -> Address:
    """Return the address of a step that is given by its fields and its labels.

    Raises KeyError for a field that is missing.
    """
    return Address(
        [labels.get(part.label, "") if part.label else fields[part.name] for part in PARTS]
    )


def address_json(address: Address) -> dict[str, str]:
    """Return the words by the names of their parts, as records and reports have them.

    A word that a step may lack is left out where it is empty.
    """
    return {
        part.name: word
        for part, word in zip(PARTS, address, strict=True)
        if word or not part.is_optional
    }


def address_from_json(row: Mapping[str, Any]) -> Address:
    """Return the address that `address_json` wrote. Raises KeyError where a word is missing."""
    return Address(
        [row.get(part.name, "") if part.is_optional else row[part.name] for part in PARTS]
    )


def part_names() -> str:
    """Return the names of all parts in words: `workflow, role and step`."""
    *first, last = [part.name for part in PARTS]
    return f"{', '.join(first)} and {last}"


# --- the rows that cover an address ---------------------------------------------------------------

RowT = TypeVar("RowT", bound=AddressedRow)
_ANY: Final = None
_Key = tuple[str | None, ...]


class RowLookup(Generic[RowT]):
    """An index over rows of which the first that covers an address counts: routes.

    It never changes which row that is. It only skips rows that can't match: rows without globs are
    found by look-ups, rows with globs are tried in order until they come after the best row found
    so far.

    Building it is linear in the rows; a match costs a look-up for each choice of open parts, plus
    the earlier globs.
    """

    def __init__(self, rows: Sequence[RowT]) -> None:
        self._rows = tuple(rows)
        self._exact: dict[_Key, int] = {}
        self._globbed: list[int] = []
        for position, row in enumerate(self._rows):
            keys = _exact_keys(row)
            if keys is None:
                self._globbed.append(position)
            else:
                for words in keys:
                    self._exact.setdefault(words, position)

    def match(self, address: Address) -> RowT | None:
        """Return the first row that covers the address, or None."""
        best = len(self._rows)
        for words in product(*((word, _ANY) for word in address)):
            best = min(best, self._exact.get(words, best))
        for position in self._globbed:
            if position >= best:
                break
            if self._rows[position].covers(address):
                return self._rows[position]
        return self._rows[best] if best < len(self._rows) else None


def rows_covering(rows: Sequence[RowT], address: Address) -> tuple[RowT, ...]:
    """Return all rows that cover the address, in file order (policies unite; they do not
    compete).
    """
    return tuple(row for row in rows if row.covers(address))


def _exact_keys(row: AddressedRow) -> list[_Key] | None:
    """Return the exact keys of a row, or None when one of its parts holds a real glob."""
    words: list[tuple[str | None, ...]] = []
    for names in row.patterns:
        if not names or "*" in names:
            words.append((_ANY,))
        elif any(is_glob(name) for name in names):
            return None
        else:
            words.append(names)
    return list(product(*words))
