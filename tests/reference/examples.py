"""Examples of the fields of records, from recorded runs: `python -m tests.reference.examples RUNS...`
puts those of these runs into `examples.json`, which the reference shows.

Those that are stored are of `bundle-router demo`, whose config kept heads and bounded a tree's calls, of a
label and a receipt of its runs and, for fields that these do not have, of the runs of
tests/service/mcp/test_passing_on.py and tests/data/runs, of runs of other tests, and of tests/data/config.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bundle_router.core.records.field_types import FieldForm
from bundle_router.core.records.receipt import make_receipt
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.records.written_records import RECORDS

FILE: Final = Path(__file__).with_name("examples.json")
LONGEST: Final = 44
"""Characters of an example; of longer ones the beginning is kept."""


def examples() -> dict[str, dict[str, str]]:
    """Return the stored examples, by the type of a record and the path of a field."""
    found: dict[str, dict[str, str]] = json.loads(FILE.read_text("utf-8"))
    return found


def paths(form: Any, above: str = "") -> Iterator[tuple[str, FieldForm]]:
    """Yield each field of a form with its path: `bundles[].id`."""
    while isinstance(form, tuple | list):  # a nullable form, or a list of one
        above = f"{above}[]" if isinstance(form, list) else above
        form = form[0]
    if isinstance(form, Mapping):
        for name, field in form.items():
            path = f"{above}.{name}" if above else name
            yield path, field
            yield from paths(field.form, path)


def values_at(record: Any, path: str) -> Iterator[Any]:
    """Yield the values that a record has at a path."""
    name, _, rest = path.partition(".")
    is_list = name.endswith("[]")
    inner = record.get(name.removesuffix("[]")) if isinstance(record, Mapping) else None
    for value in (inner or ()) if is_list else (inner,):
        if rest:
            yield from values_at(value, rest)
        else:
            yield value


def text_of(value: Any) -> str:
    """Return an example as JSON, shortened."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _records(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the records of the runs in a folder, each with its type."""
    for name in ("routing.jsonl", "tool-calls.jsonl"):
        for path in sorted(folder.glob(f"*/{name}")):
            for line in path.read_text("utf-8").splitlines():
                record = json.loads(line)
                yield record["type"], record
    for path in sorted(folder.glob("*/run.json")):
        header = json.loads(path.read_text("utf-8"))
        yield "run", header
        catalog = json.loads(path.with_name("catalog.json").read_text("utf-8"))
        yield "catalog", catalog
        line = path.with_name("routing.jsonl").read_text("utf-8").partition("\n")[0]
        yield "receipt", make_receipt(RunHeader(header), [line], catalog, json.loads(line)["hash"])
    for path in sorted(folder.glob("*/labels.jsonl")):
        yield "label", json.loads(path.read_text("utf-8").partition("\n")[0])
    for path in sorted(folder.glob(".heads/*.head")):
        yield "head", json.loads(path.read_text("utf-8"))


def collect(folders: list[Path]) -> dict[str, dict[str, str]]:
    """Return an example of each field that has one: of the first run that says something, else the
    stored one.
    """
    known = examples()
    records = [row for folder in folders for row in _records(folder)]
    found: dict[str, dict[str, str]] = {}
    for kind in RECORDS:
        own = [record for type_, record in records if type_ == kind.type]
        found[kind.type] = {}
        for path, field in paths(kind.form()):
            if any(True for _ in paths(field.form)):
                continue  # its own fields have examples
            values = [value for record in own for value in values_at(record, path)]
            said = [value for value in values if value not in (None, "", [], {})]
            if said:
                found[kind.type][path] = text_of(said[0])
            elif path in known.get(kind.type, {}):
                found[kind.type][path] = known[kind.type][path]
    return found


if __name__ == "__main__":
    written = collect([Path(folder) for folder in sys.argv[1:]])
    FILE.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
