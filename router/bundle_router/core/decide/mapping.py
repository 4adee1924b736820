"""The mapping: ordered rows, first match wins.

Rules:
1. A row matches a step when each of its `workflow`, `role` and `step` is empty or has a name or
   glob that covers the step's. Rows are tried in file order; the first match is the answer.
2. The index never changes which row wins. It only skips rows that can't match: rows without globs
   are found by at most eight look-ups, rows with globs are tried in order until they come after the
   best row found so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Protocol, TypeVar

from bundle_router.core.catalog import Route
from bundle_router.core.values.patterns import first_match, is_glob

Address = tuple[str, str, str]
"""The address of a step: (workflow, role, step)."""

_ANY = None
_Key = tuple[str | None, str | None, str | None]


class AddressedRow(Protocol):
    """A row with an address: a route or a policy."""

    @property
    def workflow(self) -> tuple[str, ...]: ...
    @property
    def role(self) -> tuple[str, ...]: ...
    @property
    def step(self) -> tuple[str, ...]: ...


RowT = TypeVar("RowT", bound=AddressedRow)


def applies(row: AddressedRow, address: Address) -> bool:
    """Return whether the row covers the address (rule 1)."""
    fields = zip((row.workflow, row.role, row.step), address, strict=True)
    return all(not names or first_match(names, name) is not None for names, name in fields)


def _keys(row: AddressedRow) -> list[_Key] | None:
    """Return the exact keys of a row, or None when one of its fields holds a real glob."""
    fields: list[tuple[str | None, ...]] = []
    for names in (row.workflow, row.role, row.step):
        if not names or "*" in names:
            fields.append((_ANY,))
        elif any(is_glob(name) for name in names):
            return None
        else:
            fields.append(names)
    return [(workflow, role, step) for workflow, role, step in product(*fields)]


class RouteLookup:
    """An index over routes.

    Building it is linear in the rows; a match costs eight look-ups plus the earlier globs.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = tuple(routes)
        self._exact: dict[_Key, int] = {}
        self._globbed: list[int] = []
        for position, route in enumerate(self._routes):
            keys = _keys(route)
            if keys is None:
                self._globbed.append(position)
            else:
                for key in keys:
                    self._exact.setdefault(key, position)

    def match(self, address: Address) -> Route | None:
        """Return the first route that covers the address, or None."""
        workflow, role, step = address
        best = len(self._routes)
        for key in product((workflow, _ANY), (role, _ANY), (step, _ANY)):
            best = min(best, self._exact.get(key, best))
        for position in self._globbed:
            if position >= best:
                break
            if applies(self._routes[position], address):
                return self._routes[position]
        return self._routes[best] if best < len(self._routes) else None


def rows_covering(rows: Sequence[RowT], address: Address) -> tuple[RowT, ...]:
    """Return all rows that cover the address, in file order (policies unite; they do not
    compete).
    """
    return tuple(row for row in rows if applies(row, address))
