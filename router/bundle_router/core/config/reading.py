"""Stage 1: what each file says, entry by entry, and what it may not say.

Rules:
1. Every file is read, whatever is wrong with the others.
2. The name of an entry that is wrong is remembered, so that stage 2 doesn't report it a second time as missing. What
   is right in it goes on to stage 2 as a partial entry, except for servers: everything rests on their every key.
3. Text goes `guard` → TOML parser → forms. Nothing else parses.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Generic, TypeVar, get_origin

from pydantic import ValidationError

from bundle_router.core.config.positions import Path
from bundle_router.core.config.report import Report
from bundle_router.core.config.source import ConfigFile, guard
from bundle_router.core.config.wording import explain, known_keys
from bundle_router.core.config.written import FORMS, Form
from bundle_router.errors import Problem

MAX_ENTRIES: Final = 8_000
"""Entries of one table of one file."""

FormT = TypeVar("FormT", covariant=True)


@dataclass(frozen=True, slots=True)
class Entry(Generic[FormT]):
    """One entry as written, and where it stands. `name` is its key, or its `name`, or empty.

    `whole` is false when keys of it were wrong and are left out here: what is absent may not be absent.
    """

    file: ConfigFile
    path: Path
    name: str
    form: FormT
    whole: bool = True


@dataclass(slots=True)
class Reading:
    """What one file says. `entries` and `broken` go by top-level key; `readable` is false when it is not TOML."""

    file: ConfigFile
    readable: bool = True
    entries: dict[str, list[Entry[Any]]] = field(default_factory=dict)
    broken: dict[str, set[str]] = field(default_factory=dict)


def read(file: ConfigFile, report: Report) -> Reading:
    """Reads one file; what is wrong with it goes to the report."""
    reading = Reading(file)
    data = parse(file, report)
    if data is None:
        reading.readable = False
        return reading
    form = FORMS[file.name]
    for key, value in islice(data.items(), MAX_ENTRIES):
        if key not in form.model_fields:
            hint = report.suggester.did_you_mean(key, known_keys(form, ()))
            known = f"known here: {', '.join(known_keys(form, ()))}"
            report.add(file, (key,), f"unknown key {key[:80]!r}", hint or known)
            continue
        entries = reading.entries.setdefault(key, [])
        for path, name, single in _singles(form, key, value, file, report):
            entry = _entry(form, key, single, Entry(file, path, name, None), report)
            if not entry.whole:
                reading.broken.setdefault(key, set()).add(name)
            if entry.form is not None:
                entries.append(entry)
    return reading


def parse(file: ConfigFile, report: Report) -> dict[str, Any] | None:
    """The text as TOML, once `guard` has let it through; None when it is none, which the report then says."""
    problem = file.fault or guard(file)
    if problem is None:
        try:
            return tomllib.loads(file.text)
        except ValueError as error:  # TOMLDecodeError, or int() where its limit on digits was lowered
            problem = _syntax_problem(file, str(error))
    report.add_unreadable(file, problem)
    return None


def _syntax_problem(file: ConfigFile, message: str) -> Problem:
    where = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if where is not None:
        said = message[: where.start()]
        return Problem(file.display_path, int(where[1]), "", f"not valid TOML: {_lower(said)}", column=int(where[2]))
    last = file.text.count("\n", 0, len(file.text.rstrip())) + 1
    said = message.removesuffix(" (at end of document)")
    return Problem(file.display_path, last, "", f"not valid TOML: {_lower(said)}, at the end of the file")


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _singles(
    form: type[Form], key: str, value: Any, file: ConfigFile, report: Report
) -> Iterator[tuple[Path, str, Any]]:
    """Each entry under a top-level key, alone in the shape the form wants it: a table, a list of one, or as it is."""
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


def _entry(form: type[Form], key: str, single: Any, place: Entry[None], report: Report) -> Entry[Any]:
    try:
        return replace(place, form=_only(getattr(form.model_validate({key: single}), key), single))
    except ValidationError as error:
        _report(error, form, place, report)
        salvaged = None if key == "servers" else _without_errors(single, place, error)
    try:
        read = _only(getattr(form.model_validate({key: salvaged}), key), salvaged)
    except ValidationError:
        read = None
    return replace(place, form=read, whole=False)


def _without_errors(single: Any, place: Entry[None], error: ValidationError) -> Any:
    """The entry without its keys that are wrong, and with stand-ins for required text; None if it is no table."""
    depth = len(place.path)
    table = single if depth == 1 else single[place.name] if isinstance(single, dict) else single[0]
    if not isinstance(table, dict):
        return None
    table = dict(table)
    for detail in error.errors(include_url=False):
        if len(detail["loc"]) <= depth or detail["loc"][-1] == "[key]":
            return None
        bad = str(detail["loc"][depth])
        table.pop(bad, None)
        if bad in ("name", "description"):
            table[bad] = f"?{place.path[-1]}"
    return table if depth == 1 else {place.name: table} if isinstance(single, dict) else [table]


def _name_of(item: Any) -> str:
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) else ""


def _only(value: Any, single: Any) -> Any:
    if isinstance(value, dict):
        return value[next(iter(single))]
    return value[0] if isinstance(value, list) else value


def _report(error: ValidationError, form: type[Form], place: Entry[None], report: Report) -> None:
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and detail["input"]:
            continue  # a list of one that was wrong counts as empty: its element has been reported
        where, message, suggestion = explain(detail, form, report.suggester)
        # The entry was validated alone: the index it had there (0) stands for the one it has in the file.
        report.add(place.file, (*place.path, *where[len(place.path) :]), message, suggestion)
