"""Stage 1: the contents of each file, entry by entry, and what is not permitted in them.

Rules:
1. Every file is read, whatever is wrong with the others.
2. The name of a wrong entry is remembered, so that stage 2 doesn't report it again as missing. The
   right part of it goes on to stage 2 as a partial entry, so that all its problems are reported at
   once.
3. Text goes `guard` → TOML parser → forms → the catalog's values. Nothing else parses.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Generic, TypeVar, get_origin

from pydantic import ValidationError

from bundle_router.core.config.config_text import ConfigFile, guard
from bundle_router.core.config.positions import Path
from bundle_router.core.config.problem_report import Report
from bundle_router.core.config.written_forms import FILES, Form, form_of, value_of
from bundle_router.core.values.form_errors import UNQUOTED, explain, known_keys

MAX_ENTRIES: Final = 8_000
"""Entries of one table of one file."""

MAX_LINES_ABOVE: Final = 300
"""Lines above an unknown key in which its table's header is looked for."""

ValueT = TypeVar("ValueT", covariant=True)


@dataclass(frozen=True, slots=True)
class WrittenEntry(Generic[ValueT]):
    """One entry of a file, and its place.

    `name` is its key, or its `name`, or empty. `value` is the catalog's value of it, but in the
    written order; `keys` are the written ones.

    `complete` is false when wrong keys were left out: an absent key may then not be absent in the
    file.
    """

    file: ConfigFile
    path: Path
    name: str
    value: ValueT
    keys: frozenset[str] = frozenset()
    complete: bool = True


@dataclass(slots=True)
class FileContent:
    """The contents of one file.

    `entries` and `broken` are by top-level key; `readable` is false for no TOML.
    """

    readable: bool = True
    entries: dict[str, list[WrittenEntry[Any]]] = field(default_factory=dict)
    broken: dict[str, set[str]] = field(default_factory=dict)


def read(file: ConfigFile, report: Report) -> FileContent:
    """Return the file's contents; problems go to the report."""
    content = FileContent()
    data = parse(file, report)
    if data is None:
        content.readable = False
        return content
    form = form_of(FILES[file.name])
    for key, value in islice(data.items(), MAX_ENTRIES):
        if key not in form.model_fields:
            meant = report.suggester.did_you_mean(key, known_keys(form, ()))
            known = f"known here: {', '.join(known_keys(form, ()))}"
            hint = meant or _commented_table(file, (key,), form, report) or known
            report.add(file, (key,), f"unknown key {key[:80]!r}", hint)
            # what stands there is misplaced, not missing
            content.readable = content.readable and not meant
            continue
        shape = get_origin(form.model_fields[key].annotation)
        if shape in (list, dict) and not isinstance(value, shape):
            content.readable = False  # as above
        if {shape, type(value)} == {list, dict}:
            is_list = ("is a list of tables, and this is one table", f"write [[{key}]]")
            is_table = ("is a table of named tables, and this is a list", f"write [{key}.NAME]")
            report.add(file, (key,), *(is_list if shape is list else is_table))
            continue
        entries = content.entries.setdefault(key, [])
        for path, name, single in _single_entries(form, key, value, file, report):
            entry = _entry(form, key, single, WrittenEntry(file, path, name, None), report)
            if not entry.complete:
                inner = value.get(name) if isinstance(value, dict) else None
                content.broken.setdefault(key, set()).update(_dotted_names(name, inner))
            if entry.value is not None:
                entries.append(entry)
    return content


def parse(file: ConfigFile, report: Report) -> dict[str, Any] | None:
    """Return the text as TOML, once `guard` has passed it; None for another text, which is
    reported.
    """
    problem = file.fault or guard(file)
    if problem is None:
        try:
            return tomllib.loads(file.text)
        except (
            ValueError
        ) as error:  # TOMLDecodeError, or int() where its limit on digits was lowered
            from bundle_router.core.config.syntax_problems import syntax_problem

            problem = syntax_problem(file, error)
    report.add_unreadable(file, problem)
    return None


def _single_entries(
    form: type[Form], key: str, value: Any, file: ConfigFile, report: Report
) -> Iterator[tuple[Path, str, Any]]:
    """Yield each entry under a top-level key, alone in the shape of its form: a table, a list of
    one, or unchanged.
    """
    shape = get_origin(form.model_fields[key].annotation)
    if (shape is dict and isinstance(value, dict)) or (shape is list and isinstance(value, list)):
        if len(value) > MAX_ENTRIES:
            report.add(file, (key,), f"more than {MAX_ENTRIES:,} entries; those after are not read")
        if shape is dict:
            for name in list(value)[:MAX_ENTRIES]:
                yield (key, name), name, {name: value[name]}
        else:
            for index, item in enumerate(value[:MAX_ENTRIES]):
                yield (key, index), _name_of(item), [item]
    else:
        yield (key,), "", value


def _entry(
    form: type[Form], key: str, single: Any, place: WrittenEntry[None], report: Report
) -> WrittenEntry[Any]:
    try:
        return _fill_entry(place, getattr(form.model_validate({key: single}), key))
    except ValidationError as error:
        _report(error, form, place, report)
        salvaged = _without_errors(single, place, error)
    try:
        return replace(
            _fill_entry(place, getattr(form.model_validate({key: salvaged}), key)), complete=False
        )
    except ValidationError:
        return replace(place, complete=False)


def _fill_entry(place: WrittenEntry[None], written: Any) -> WrittenEntry[Any]:
    """Return the entry with the value of its form."""
    values = list(written.values()) if isinstance(written, dict) else written
    only = values[0] if isinstance(values, list) else values
    keys = only.model_fields_set if isinstance(only, Form) else ()  # a word has no keys
    return replace(place, value=value_of(only, place.name), keys=frozenset(keys))


def _without_errors(single: Any, place: WrittenEntry[None], error: ValidationError) -> Any:
    """Return the entry without its errors: without a key, without one name of an inner table, or a
    list up to the error. Required text gets a stand-in. None if the entry is no table.
    """
    depth = len(place.path)
    if depth == 1:
        table = single
    elif isinstance(single, dict):
        table = single[place.name]
    else:
        table = single[0]
    if not isinstance(table, dict):
        return None
    kinds = (dict, list)  # what is taken from is a copy
    table = {key: type(part)(part) if type(part) in kinds else part for key, part in table.items()}
    name = place.name
    for detail in error.errors(include_url=False):
        if len(detail["loc"]) <= depth:
            return None
        bad, *rest = detail["loc"][depth:]
        if bad == "[key]":
            name = "x"
            continue
        part = table.get(bad)
        if rest and isinstance(part, dict):
            part.pop(rest[0], None)
        elif rest and isinstance(part, list):
            del part[int(rest[0]) :]
            if not part:  # an empty list would be wrong as well
                del table[bad]
        else:
            table.pop(bad, None)
        if bad in ("name", "description"):
            table[bad] = f"?{place.path[-1]}"
    if depth == 1:
        return table
    if isinstance(single, dict):
        return {name: table}
    return [table]


def _dotted_names(name: str, value: Any) -> Iterator[str]:
    """Yield the name of an entry, and the names that it has if its inner tables are parts of an id
    without quotes: a use of such a name elsewhere is no second mistake.
    """
    yield name
    for key, inner in value.items() if isinstance(value, dict) else ():
        if isinstance(inner, dict):
            yield from _dotted_names(f"{name}.{key}", inner)


def _name_of(item: Any) -> str:
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) else ""


def _report(
    error: ValidationError, form: type[Form], place: WrittenEntry[None], report: Report
) -> None:
    faults = [
        (detail, explain(detail, form, report.suggester))
        for detail in error.errors(include_url=False)
    ]
    suggestions = {suggestion for _, (_, _, suggestion) in faults}
    any_unquoted = any(suggestion.startswith(UNQUOTED) for suggestion in suggestions)

    for detail, (where, message, suggestion) in faults:
        if detail["type"] == "too_short" and detail["input"]:
            continue  # a list of one that was wrong counts as empty: its element has been reported
        if detail["type"] == "missing":
            is_misspelt = f"did you mean {where[-1]!r}?" in suggestions
            if is_misspelt or any_unquoted:
                continue  # it is there under another key, which is reported

        # The entry was validated alone: the index it had there (0) stands for the one it has in the
        # file.
        path = (*place.path, *where[len(place.path) :])
        if detail["type"] == "extra_forbidden":
            suggestion = _commented_table(place.file, path, form, report) or suggestion
        report.add(place.file, path, message, suggestion)


def _commented_table(file: ConfigFile, path: Path, form: type[Form], report: Report) -> str:
    """Return what to do about an unknown key that is one of a table whose header is a comment, as
    `init` writes them; empty if it is none.
    """
    from bundle_router.core.config.syntax_problems import header_names

    if report.is_full(file):
        return ""
    line = report.line(file, path)
    lines = report.lines(file)
    for number in range(line - 1, max(0, line - MAX_LINES_ABOVE), -1):
        text = lines[number - 1].strip()
        if header_names(text) is not None:
            return ""
        names = header_names(text.lstrip("# ")) if text.startswith("#") else None
        if names is None:
            continue
        if path[-1] not in known_keys(form, names):
            return ""
        header = text.lstrip("# ")
        return (
            f"it is a key of {header}; line {number}, its header, is a comment: take the # from it"
        )
    return ""
