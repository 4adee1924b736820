"""Parses the query string of an address into queries of the read model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import parse_qs

from bundle_router.core.records.read_model import FACETS, MARKS, SORTS, Facet, RunQuery
from bundle_router.errors import RequestError

Query = Mapping[str, Sequence[str]]
"""The parameters of a query string."""
PER_PAGE: Final = 50


def fields_of(text: str, most: int = 500) -> dict[str, list[str]]:
    """Return the fields of a query string or form, also empty ones.

    Raises RequestError if it has more than `most`.
    """
    try:
        return parse_qs(text, keep_blank_values=True, max_num_fields=most)
    except ValueError:
        raise RequestError(
            f"more than {most} fields were sent", advice="leave out what the page did not ask"
        ) from None


def first(query: Query, name: str, otherwise: str = "") -> str:
    values = query.get(name) or ()
    return values[0] if values else otherwise


def whole_number(text: str, otherwise: int = 0) -> int:
    """Parse a typed whole number, at least 0; `otherwise` if it is none."""
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    return otherwise


def run_query(query: Query) -> RunQuery:
    """Return the runs that an address selects. Unknown facets, orders and numbers are ignored."""
    facets: list[tuple[Facet, str]] = []
    for facet in FACETS:
        facets += [(facet, value) for value in query.get(facet, ())[:20] if value]
    facets += [("mark", mark) for mark in MARKS if first(query, mark) == "1"]

    order = first(query, "sort")
    sort = order.removeprefix("-")
    page = whole_number(first(query, "page"), 1) or 1
    return RunQuery(
        facets=tuple(facets[:50]),
        text=first(query, "q")[:500],
        since=time_of(first(query, "since")),
        until=time_of(first(query, "until"), whole_day=True),
        sort=sort if sort in SORTS else "started",
        ascending=order.startswith("-") != (sort == "run"),
        offset=(page - 1) * PER_PAGE,
        limit=PER_PAGE,
    )


def time_of(text: str, *, whole_day: bool = False) -> str:
    """Return a typed date or time; with `whole_day`, the end of a date.

    Raises RequestError if it is neither.
    """
    typed = text.strip()
    try:
        if typed:
            datetime.fromisoformat(typed)
        if whole_day and len(typed) == len("2026-01-31"):
            return f"{typed}T24"
        return typed
    except ValueError:
        raise RequestError(
            f"{text[:40]!r} is neither a date nor a time", advice="e.g. 2026-01-31"
        ) from None


def kept_query(query: Query, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the parameters of an address that its links keep.

    A mark by its own name (`denied=1`) is kept as a value of `mark`.
    """
    kept = {}
    for name in names:
        values = list(query.get(name, ()))
        if name == "mark":
            values += [mark for mark in MARKS if first(query, mark) == "1" and mark not in values]
        if any(values):
            kept[name] = values
    return kept


def without(kept: Mapping[str, Sequence[str]], name: str, value: str) -> dict[str, list[str]]:
    """Return the parameters of an address without one value."""
    rest = {other: list(values) for other, values in kept.items()}
    rest[name] = [one for one in kept[name] if one != value]
    return rest
