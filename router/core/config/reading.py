"""Stage 1: what each file says, entry by entry, and what it may not say.

Rules:
1. Every file is read, whatever is wrong with the others.
2. An entry that is wrong is dropped and its name remembered, so that stage 2 can check everything else without
   reporting the wrong entry a second time as missing.
3. Text goes `guard` → TOML parser → forms. Nothing else parses.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, get_origin

from pydantic import ValidationError

from router.core.config.positions import Path
from router.core.config.report import Report
from router.core.config.source import ConfigFile, guard
from router.core.config.wording import explain, known_keys
from router.core.config.written import FORMS, Form
from router.errors import Problem

MAX_ENTRIES: Final = 10_000
"""Entries of one table of one file."""

FormT = TypeVar("FormT", covariant=True)


@dataclass(frozen=True, slots=True)
class Entry(Generic[FormT]):
    """One entry as written, and where it stands. `name` is its key, or its `name`, or empty."""

    file: ConfigFile
    path: Path
    name: str
    form: FormT


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
    data = _parse(file, report)
    if data is None:
        reading.readable = False
        return reading
    form = FORMS[file.name]
    for key, value in data.items():
        if key not in form.model_fields:
            hint = report.suggester.did_you_mean(key, known_keys(form, ()))
            known = f"known here: {', '.join(known_keys(form, ()))}"
            report.add(file, (key,), f"unknown key {key[:80]!r}", hint or known)
            continue
        entries = reading.entries.setdefault(key, [])
        for path, name, single in _singles(form, key, value, file, report):
            try:
                read_form = form.model_validate({key: single})
            except ValidationError as error:
                reading.broken.setdefault(key, set()).add(name)
                _report(error, form, path, file, report)
            else:
                entries.append(Entry(file, path, name, _only(getattr(read_form, key), single)))
    return reading


def _parse(file: ConfigFile, report: Report) -> dict[str, Any] | None:
    problem = file.fault or guard(file)
    if problem is None:
        try:
            return tomllib.loads(file.text)
        except ValueError as error:  # TOMLDecodeError, and int() on more than 4,300 digits
            problem = _syntax_problem(file, str(error))
    report.add_unreadable(file, problem)
    return None


def _syntax_problem(file: ConfigFile, message: str) -> Problem:
    where = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if where is not None:
        said = message[: where.start()]
        return Problem(file.display_path, int(where[1]), "", f"not valid TOML: {_lower(said)}", column=int(where[2]))
    if message.startswith("Exceeds the limit"):
        found = re.search(r"[\d_]{4301,}", file.text)
        line = file.text.count("\n", 0, found.start()) + 1 if found is not None else 0
        return Problem(file.display_path, line, "", "a number of more than 4,300 digits")
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


def _name_of(item: Any) -> str:
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) else ""


def _only(value: Any, single: Any) -> Any:
    if isinstance(value, dict):
        return value[next(iter(single))]
    return value[0] if isinstance(value, list) else value


def _report(error: ValidationError, form: type[Form], path: Path, file: ConfigFile, report: Report) -> None:
    for detail in error.errors(include_url=False):
        where, message, suggestion = explain(detail, form, report.suggester)
        # The entry was validated alone: the index it had there (0) stands for the one it has in the file.
        report.add(file, (*path, *where[len(path) :]), message, suggestion)
