"""`reference/config.md`: every key with its type, default and meaning, made from the schemas, so that
it can't lie.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bundle_router.core.config.written_forms import FILES, schema

from tests.reference.markdown import GENERATED, code, table, without_gaps

_HEAD: Final = f"""\
# Configuration keys

Every key of the five files of a `config/` folder. {GENERATED} from the code that reads them. How the files lie over the
shipped ones, and what checks them, says [config/README.md](../../../config/README.md).

"""
_NAMES: Final = {"servers": "NAME", "bundles": "ID", "options": "MODEL", "forms": "NAME"}


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for file in FILES:
        whole = schema(file)
        parts.append(f"## {file}\n\n{whole['description']}\n\n")
        for key, node in whole["properties"].items():
            parts += _section(whole, key, node, "")
    return without_gaps(parts)


def _section(
    whole: Mapping[str, Any], key: str, node: Mapping[str, Any], within: str
) -> Iterator[str]:
    """Yield the heading and the rows of a table, then those of the tables inside it."""
    if _inner(node) is None:  # its keys are the user's own, and their values are words
        values = _type(_values(node) or {})
        yield f"### `[{key}]`\n\n{node['description']}\n\nEach key is a name, its value {values}.\n\n"
        return
    path, many, declared = _table(whole, key, node, within)
    heading = f"[[{path}]]" if many else f"[{path}]"
    yield f"### `{heading}`\n\n{node['description']}\n\n"
    rows = declared["properties"].items()
    required = declared.get("required", ())
    yield table(
        ("key", "type", "default", "meaning"),
        [
            (code(name), _type(row), _default(name, row, required), row["description"])
            for name, row in rows
        ],
    )
    for name, row in rows:
        if _inner(row) is not None:
            yield from _section(whole, name, row, path)


def _default(name: str, row: Mapping[str, Any], required: Sequence[str]) -> str:
    if name in required:
        return "required"
    return code(json.dumps(row["default"])) if "default" in row else ""


def _table(
    whole: Mapping[str, Any], key: str, node: Mapping[str, Any], within: str
) -> tuple[str, bool, Mapping[str, Any]]:
    """Return the path of the table as headers write it, whether there may be many, and its
    schema.
    """
    many = node.get("type") == "array"
    path = f"{within}.{key}" if within else key
    if _values(node) is not None:
        path += f".{_NAMES[key]}"
    reference = _inner(node)
    assert reference is not None
    return path, many, whole["definitions"][reference.rpartition("/")[2]]


def _inner(node: Mapping[str, Any]) -> str | None:
    """Return the definition of the tables that the key holds, if it holds any."""
    for place in (node, *node.get("allOf", ()), node.get("items"), _values(node)):
        if isinstance(place, Mapping) and "$ref" in place:
            found: str = place["$ref"]
            return found
    return None


def _values(node: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema of what a table holds whose keys are the user's own."""
    found = node.get("additionalProperties") or next(
        iter(node.get("patternProperties", {}).values()), None
    )
    return found if isinstance(found, Mapping) else None


def _type(node: Mapping[str, Any]) -> str:
    """Return the type in words, with its bounds."""
    kind = node.get("type")
    if "enum" in node:
        return " or ".join(f"`{json.dumps(choice)}`" for choice in node["enum"])
    if "const" in node:
        return f"`{json.dumps(node['const'])}`"
    if "anyOf" in node:
        return " or ".join(_type(choice) for choice in node["anyOf"])
    if kind in ("integer", "number"):
        return ("whole number" if kind == "integer" else "number") + _bounds(node)
    if kind == "array":
        return "list of tables" if _inner(node) else f"list of {_type(node['items'])}"
    if kind == "object" and _inner(node) is None:
        return f"table of {_type(_values(node) or {})}"
    return {"boolean": "true or false", "string": "text"}.get(str(kind), "table")


def _bounds(node: Mapping[str, Any]) -> str:
    low, over, high = node.get("minimum"), node.get("exclusiveMinimum"), node.get("maximum")
    lower = f"over {over:,g}" if over is not None else f"from {low:,}" if low is not None else ""
    upper = f"to {high:,}" if high is not None else ""
    return f", {lower} {upper}".rstrip() if lower or upper else ""
