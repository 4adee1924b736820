"""Walks JSON values without recursion: collects their strings, and rebuilds them without the secrets.

The value of a secret's name is redacted whole if it is a string, a number, or a list of these. An object there is
walked as usual, because it may be a schema that describes the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from bundle_router.adapters.redaction.field_names import is_header_name, is_secret_name

MAX_DEPTH: Final = 500
"""Maximum depth. Deeper values are replaced, because they were not checked."""
TOO_DEEP: Final = "too-deep"

_LEAVES: Final = (list, tuple, int, float, type(None))
_REFERENCE = re.compile(r"(?:\w+ )?\$\{?\w+\}?")
"""`${GITHUB_TOKEN}`, `Bearer $TOKEN`: a reference to a secret, which is no secret itself."""


def plain_strings(value: Any) -> list[str] | None:
    """Return every string of the value, keys included; None if one of its names marks a secret, or if it is nested too
    deeply.
    """
    strings: list[str] = []
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, str):
                strings.append(node)
            elif _is_object(node):
                for key, item in node.items():
                    if isinstance(key, str):
                        strings.append(key)
                        if item and is_secret_name(key):
                            return None
                    if isinstance(item, str):
                        strings.append(item)
                    elif item is not None:
                        below.append(item)
                if _named_value(node) is not None:
                    return None
            elif isinstance(node, (list, tuple)):
                if _is_header_pair(node):
                    return None
                below.extend(node)
        if not below:
            return strings
        level = below
    return None


def redact_copy(value: Any, redact: Callable[[str], str], named: str, is_placeholder: Callable[[str], bool]) -> Any:
    """Return a copy with `redact` applied to every string, and `named` in place of every named secret."""
    root: list[Any] = [None]
    tuples: list[tuple[list[Any] | dict[Any, Any], Any, list[Any]]] = []
    work: list[tuple[Any, list[Any] | dict[Any, Any], Any, bool, int]] = [(value, root, 0, False, 0)]
    while work:
        node, into, at, secret, depth = work.pop()
        if depth > MAX_DEPTH:
            into[at] = f"[redacted:{TOO_DEEP}]"
        elif isinstance(node, str):
            kept = not secret or not node or is_placeholder(node) or _REFERENCE.fullmatch(node)
            into[at] = redact(node) if kept else named
        elif _is_object(node):
            into[at] = _opened_object(node, redact, work, depth, secret)
        elif isinstance(node, (list, tuple)):
            items: list[Any] = [None] * len(node)
            into[at] = items
            if isinstance(node, tuple):
                tuples.append((into, at, items))
            pair = _is_header_pair(node)
            work.extend((item, items, i, secret or (pair and i == 1), depth + 1) for i, item in enumerate(node))
        else:
            into[at] = named if secret and _is_number(node) else node
    for into, at, items in reversed(tuples):
        into[at] = tuple(items)
    return root[0]


def _opened_object(
    node: Mapping[Any, Any],
    redact: Callable[[str], str],
    work: list[tuple[Any, list[Any] | dict[Any, Any], Any, bool, int]],
    depth: int,
    secret: bool,
) -> dict[Any, Any]:
    """Return the object with redacted keys, and queue its values. Keys that became equal are made distinct."""
    opened: dict[Any, Any] = {}
    named = "value" if secret else _named_value(node)
    for key, item in node.items():
        new = redact(key) if isinstance(key, str) else key
        base, count = new, 1
        while new in opened:
            count += 1
            new = f"{base}#{count}"
        opened[new] = None
        goes = (isinstance(key, str) and is_secret_name(key)) or key == named
        work.append((item, opened, new, goes and not isinstance(item, Mapping), depth + 1))
    return opened


def _is_object(node: Any) -> bool:
    # An isinstance check of a number against an abstract class costs more than the rest of the walk.
    return isinstance(node, dict) or (not isinstance(node, _LEAVES) and isinstance(node, Mapping))


def _is_number(item: Any) -> bool:
    return isinstance(item, (int, float)) and not isinstance(item, bool)


def _named_value(node: Mapping[Any, Any]) -> str | None:
    """Return "value" if the object has the form `{"name": "Authorization", "value": "…"}`."""
    if "value" in node:
        for field in ("name", "key", "header"):
            name = node.get(field)
            if isinstance(name, str) and is_secret_name(name):
                return "value"
    return None


def _is_header_pair(node: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether the list is `["Authorization", "Bearer …"]`, the form of header lists."""
    return len(node) == 2 and isinstance(node[0], str) and isinstance(node[1], str) and is_header_name(node[0])
