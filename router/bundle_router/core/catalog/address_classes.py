"""The classes of addresses that rows of the config tell apart.

Rules:
1. Rows treat two words of a part alike if the same names and globs cover both (see
   `review.name_classes`). So an address matters only through the class of each of its words, also
   where no row spells them.
2. What covers a word is kept as bits: a number for each table of rows, with bit `i` set where row
   `i` covers the word or is open. The bits of an address are what the bits of its words share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from bundle_router.core.catalog.name_classes import NameClass, name_classes
from bundle_router.core.catalog.step_address import PARTS, AddressedRow

Rows = Sequence[AddressedRow]
Masks = tuple[int, ...]
"""The rows of each table that cover a word or an address, as bits."""


@dataclass(frozen=True, slots=True)
class PartClasses:
    """The classes of words of one part of addresses."""

    classes: tuple[NameClass, ...]
    """The classes, each with an example."""
    masks: tuple[Masks, ...]
    """For each class: the rows that cover its words, by table."""
    complete: bool
    """False if there were too many names and globs to find all classes."""


def classes_of_parts(tables: Sequence[Rows]) -> tuple[PartClasses, ...]:
    """Return the classes that the rows of all tables tell apart, for each of `PARTS`."""
    return tuple(_part_classes(tables, position) for position in range(len(PARTS)))


def _part_classes(tables: Sequence[Rows], position: int) -> PartClasses:
    tables_by_name = [_rows_by_name(table, position) for table in tables]
    open_rows = [_open_rows(table, position) for table in tables]
    every = {name for by_name in tables_by_name for name in by_name}
    classes, complete = name_classes(every, with_empty=PARTS[position].is_optional)
    masks = []
    for name_class in classes:
        covering = [
            reduce(or_, (by_name.get(name, 0) for name in name_class.patterns), open_bits)
            for by_name, open_bits in zip(tables_by_name, open_rows, strict=True)
        ]
        masks.append(tuple(covering))
    return PartClasses(classes, tuple(masks), complete)


def _rows_by_name(rows: Rows, position: int) -> dict[str, int]:
    """Return the rows that have each name or glob in this part, as bits."""
    found: dict[str, int] = {}
    for index, row in enumerate(rows):
        for name in row.patterns[position]:
            found[name] = found.get(name, 0) | 1 << index
    return found


def _open_rows(rows: Rows, position: int) -> int:
    """Return the rows that leave this part open, as bits."""
    return sum(1 << index for index, row in enumerate(rows) if not row.patterns[position])


def shared(one: Masks, other: Masks) -> Masks:
    """Return the rows that cover both."""
    return tuple([bits & others for bits, others in zip(one, other, strict=True)])
