"""`reference/http.md`: every route of the service's API, from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bundle_router.service.api.openapi import openapi_document

from tests.reference.markdown import GENERATED, code, table, without_gaps

_HEAD: Final = f"""\
# HTTP

Every route of the decision API that `bundle-router serve` answers under `/v1`. {GENERATED} from the document that the
service itself gives at `/openapi.json`. Each request carries `Authorization: Bearer TOKEN`; [production](../how-to/production.md)
says how tokens are made. What is refused is a problem document (RFC 9457) with one of the [codes of HTTP](codes.md#http).

"""
_METHODS: Final = ("get", "post", "put", "delete")


def page() -> str:
    """Return the text of the page."""
    document = openapi_document()
    parts = [_HEAD, "## Routes\n\n"]
    for method, path, operation in operations(document):
        parts += _operation(method, path, operation)
    parts.append("## Values\n\nWhat bodies and answers are made of.\n\n")
    for name, schema in document["components"]["schemas"].items():
        parts += _value(name, schema)
    return without_gaps(parts)


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the method, the path and the operation of each route."""
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield method.upper(), path, methods[method]


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### `{method} {path}`\n\n{operation['summary']}.\n\n"
    yield table(
        ("parameter", "in", "type", "meaning"),
        [
            (
                code(row["name"]),
                row["in"] + (", required" if row["required"] else ""),
                _type(row["schema"]),
                row.get("description", ""),
            )
            for row in operation["parameters"]
        ],
    )
    if "requestBody" in operation:
        yield f"The body is a {_content(operation['requestBody'])}.\n\n"
    answers = operation["responses"].items()
    yield table(
        ("status", "answer", "meaning"),
        [
            (status, _content(answer), answer["description"])
            for status, answer in answers
            if status != "default"
        ],
    )


def _content(answer: Mapping[str, Any]) -> str:
    """Return what a body or an answer holds."""
    for kind, content in answer.get("content", {}).items():
        shown = _type(content["schema"])
        return shown if kind == "application/json" else "bytes"
    return "nothing"


def _value(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}\n\n"
    lead, _, _ = schema.get("description", "").partition("\n\n")
    yield f"{lead}\n\n"
    required = schema.get("required", ())
    yield table(
        ("field", "type", "required", "meaning"),
        [
            (code(field), _type(row), "yes" if field in required else "", _meaning(row))
            for field, row in schema.get("properties", {}).items()
        ],
    )


def _meaning(row: Mapping[str, Any]) -> str:
    text = row.get("description", "")
    return "" if "\n\n>>>" in text else text


def _type(schema: Mapping[str, Any]) -> str:
    """Return a type in words; a value of the page is a link to it."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " or ".join(code(word) for word in schema["enum"])
    if "const" in schema:
        return code(schema["const"])
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(map(_type, schema[several]))
    kind = str(schema.get("type", "any value"))
    if kind == "array":
        items = schema.get("items") or {"type": "value"}
        return f"list of {_type(items)}"
    words = {"string": "text", "integer": "whole number", "boolean": "true or false"}
    return words.get(kind, kind)
