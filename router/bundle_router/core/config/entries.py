"""Stage 1: the contents of each file, entry by entry, and what is not permitted in them.

Rules:
1. Every file is read, whatever is wrong with the others.
2. The name of a wrong entry is remembered, so that stage 2 doesn't report it again as missing. The
   right part of it goes on to stage 2 as a partial entry, so that all its problems are reported at
   once.
3. Text goes `guard` → TOML parser → forms → the catalog's values. Nothing else parses.
"""

from __future__ import annotations

import re
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
from bundle_router.errors import Problem

MAX_ENTRIES: Final = 8_000
"""Entries of one table of one file."""

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
            hint = report.suggester.did_you_mean(key, known_keys(form, ()))
            known = f"known here: {', '.join(known_keys(form, ()))}"
            report.add(file, (key,), f"unknown key {key[:80]!r}", hint or known)
            content.readable = (
                content.readable and not hint
            )  # what stands there is misplaced, not missing
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
            problem = _syntax_problem(file, str(error))
    report.add_unreadable(file, problem)
    return None


def _syntax_problem(file: ConfigFile, message: str) -> Problem:
    match = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if match is not None:
        reason = message[: match.start()]
        twice = re.search(r"[Cc]annot declare \('(\w+)',\) twice", reason)
        line = int(match[1])
        column = int(match[2])
        is_list = file.name in ("routes.toml", "policy.toml")
        if is_list:
            many = "write [[{}]] for each of several"
        else:
            many = "put all of its keys under the first [{}]"
        hint = many.format(twice[1]) if twice else _syntax_hint(file, line, column)
        return Problem(
            file.display_path, line, "", f"not valid TOML: {_lower(reason)}", hint, column=column
        )
    last = file.text.count("\n", 0, len(file.text.rstrip())) + 1
    reason = message.removesuffix(" (at end of document)")
    return Problem(
        file.display_path, last, "", f"not valid TOML: {_lower(reason)}, at the end of the file"
    )


def _syntax_hint(file: ConfigFile, line: int, column: int) -> str:
    """Return what to write instead of a word of another language, or one without quotes."""
    text = file.text.split("\n")[line - 1][column - 1 :]
    word = re.match(r"[A-Za-z][\w./:-]*", text)
    if line == 1 and text.startswith("{"):
        return "this is JSON; `bundle-router import` takes over the servers of a .mcp.json"
    if word and word[0] in ("True", "False"):
        return f"write {word[0].lower()}"
    if word:
        return "put text in quotes"
    return ""


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


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
    return replace(place, value=value_of(only, place.name), keys=frozenset(only.model_fields_set))


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
        report.add(place.file, path, message, suggestion)
