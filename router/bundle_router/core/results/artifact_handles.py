"""Artifact handles as arguments: `artifact:sha256:…` is the artifact if the tool's schema wants
bytes or a file there.

Rules:
1. Only a string that consists of a handle is replaced, at a place whose schema says that it holds
   - bytes: base64 by `contentEncoding` or `format` (`byte`, `binary`, `base64`), or a data URL by
     `format` (`data-url`, `data-uri`);
   - or the path of a file to read: by `format` (`path`, `file-path`, `file`), or by a name that
     ends in path, file or filename (`file_path`, `inputFile`, `paths`) and does not mention output.
   Everywhere else a handle is ordinary text.
2. The record of the call has the handle.
3. A file's name consists of the digest and the type of its bytes; nothing in it comes from a tool
   or a server.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from bundle_router.core.values.schema_tree import schema_at

Want = Literal["base64", "data_url", "path"]
PREFIX: Final = "artifact:sha256:"
MAX_DEPTH: Final = 20
MAX_HANDLES: Final = 20
_HANDLE: Final = re.compile(r"artifact:sha256:([0-9a-f]{64})")
_BYTES: Final = frozenset(("byte", "binary", "base64"))
_URLS: Final = frozenset(("data-url", "data-uri"))
_PATHS: Final = frozenset(("path", "file-path", "filepath", "file_path", "file"))
_PATH_NAMES: Final = frozenset(("path", "file", "filename", "filepath"))
_OUTPUT: Final = frozenset(
    ("output", "out", "dest", "destination", "target", "save", "to", "new", "write", "export")
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SUFFIXES: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/bmp": ".bmp",
    "image/tiff": ".tiff",
    "image/svg+xml": ".svg",
    "audio/wav": ".wav",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/flac": ".flac",
    "audio/mp4": ".m4a",
    "video/mp4": ".mp4",
    "video/webm": ".webm",
    "application/pdf": ".pdf",
    "application/zip": ".zip",
    "application/gzip": ".gz",
    "application/json": ".json",
    "application/xml": ".xml",
    "application/epub+zip": ".epub",
    "application/vnd.sqlite3": ".sqlite",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
    "text/html": ".html",
    "text/plain": ".txt",
}


@dataclass(frozen=True, slots=True)
class Handle:
    """One handle in the arguments: its place, and the form that is wanted there."""

    place: tuple[str | int, ...]
    sha256: str
    want: Want


def handles_in(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[Handle, ...]:
    """Return the handles that represent bytes or files, at most `MAX_HANDLES`."""
    handles: list[Handle] = []
    for handle in _walk(arguments, schema, schema, ()):
        handles.append(handle)
        if len(handles) == MAX_HANDLES:
            break
    return tuple(handles)


def fill_arguments(
    arguments: Mapping[str, Any], texts: Mapping[tuple[str | int, ...], str]
) -> dict[str, Any]:
    """Return a copy of the arguments with the texts at these places replaced."""
    copy: dict[str, Any] = _replace_handles(arguments, (), texts)
    return copy


def encoded(data: bytes, want: Want, mime_type: str) -> str:
    """Return the bytes in the form that the argument wants."""
    text = base64.b64encode(data).decode("ascii")
    if want == "base64":
        return text
    return f"data:{mime_type.partition(';')[0]};base64,{text}"


def file_name(sha256: str, mime_type: str) -> str:
    """Return the file name for an artifact."""
    return f"artifact-{sha256[:32]}{_SUFFIXES.get(mime_type.partition(';')[0], '.bin')}"


def _walk(
    value: Any, schema: Any, root: Mapping[str, Any], place: tuple[str | int, ...]
) -> Iterator[Handle]:
    if len(place) > MAX_DEPTH:
        return
    shapes = list(_shapes(schema, root, 0))
    if isinstance(value, str):
        match = _HANDLE.fullmatch(value)
        want = _want_of(shapes, place)
        if match is not None and want is not None:
            yield Handle(place, match[1], want)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            part = _join_alternatives(_property(shape, key) for shape in shapes)
            yield from _walk(inner, part, root, (*place, key))
    elif isinstance(value, list):
        items = _join_alternatives(shape.get("items") for shape in shapes)
        for index, inner in enumerate(value):
            yield from _walk(inner, items, root, (*place, index))


def _want_of(shapes: Sequence[Mapping[str, Any]], place: tuple[str | int, ...]) -> Want | None:
    """Return what a tool wants of an artifact at this place; None where it takes none."""
    for shape in shapes:
        want = _want(shape)
        if want is not None:
            return want
    if _names_a_file(place) and any(_may_be_text(shape) for shape in shapes):
        return "path"
    return None


def _join_alternatives(parts: Iterable[Any]) -> dict[str, Any]:
    return {"anyOf": [part for part in parts if isinstance(part, Mapping)]}


def _property(shape: Mapping[str, Any], key: str) -> Any:
    properties = shape.get("properties")
    subschema = properties.get(key) if isinstance(properties, Mapping) else None
    if subschema is not None:
        return subschema
    return shape.get("additionalProperties")


def _shapes(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield the schema and its alternatives, references followed; a bounded number."""
    if not isinstance(schema, Mapping) or depth > 4:
        return
    yield from _shapes(schema_at(root, schema.get("$ref")), root, depth + 1)
    yield schema
    for key in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(key)
        for part in parts[:8] if isinstance(parts, list) else ():
            yield from _shapes(part, root, depth + 1)


def _want(shape: Mapping[str, Any]) -> Want | None:
    if str(shape.get("contentEncoding", "")).lower() == "base64" or shape.get("format") in _BYTES:
        return "base64"
    if shape.get("format") in _PATHS:
        return "path"
    if shape.get("format") in _URLS:
        return "data_url"
    return None


def _names_a_file(place: tuple[str | int, ...]) -> bool:
    """Return whether the argument's name says that it is the path of a file to read."""
    name = next((part for part in reversed(place) if isinstance(part, str)), "")
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(words) and words[-1].removesuffix("s") in _PATH_NAMES and not _OUTPUT & {*words}


def _may_be_text(shape: Mapping[str, Any]) -> bool:
    types = shape.get("type")
    return types == "string" or (isinstance(types, list) and "string" in types)


def _replace_handles(
    value: Any, place: tuple[str | int, ...], texts: Mapping[tuple[str | int, ...], str]
) -> Any:
    if place in texts:
        return texts[place]
    if isinstance(value, Mapping):
        return {key: _replace_handles(inner, (*place, key), texts) for key, inner in value.items()}
    if isinstance(value, list):
        return [
            _replace_handles(inner, (*place, index), texts) for index, inner in enumerate(value)
        ]
    return value
