"""Skills: a bundle's instructions, and the tools they name. Pure.

A skill is a Markdown file in the project's or the package's `bundles/` folder, so it is an
operator's text. Its head is a block between two lines of `---` with `name:`, `description:` and
`tools:` (on one line with commas, in brackets, or one a line after a dash). Other keys are ignored.
The head is not parsed as YAML, so it can't be a YAML bomb.

Rules:
1. A skill grants nothing. The tools it names are shown with it if the bundle holds them and policy
   permits them.
2. Its text is bounded, and cleaned of invisible characters.
"""

from __future__ import annotations

import re
from typing import Final

from bundle_router.core.catalog import Skill
from bundle_router.core.servers.admission.cleaning import cleaned

MAX_BYTES: Final = 64 * 1024
MAX_TEXT: Final = 16_000
MAX_TOOLS: Final = 100
MAX_LINE: Final = 1_000

_HEAD: Final = re.compile(r"\A---[ \t]*\n(?P<head>.*?)^---[ \t]*\n", re.DOTALL | re.MULTILINE)
_KEY: Final = re.compile(r"(?P<key>[A-Za-z_-]{1,50})[ \t]*:[ \t]*(?P<value>.*)")
_ITEM: Final = re.compile(r"[ \t]*-[ \t]+(?P<value>.*)")


def parse_skill(path: str, text: str) -> Skill:
    """Parse a skill from a file's text.

    Never fails: a file without a head consists of instructions.
    """
    text = cleaned(text.replace("\r\n", "\n").lstrip("\ufeff"))
    head = _HEAD.match(text)
    keys = _keys(head["head"]) if head is not None else {}
    body = (text[head.end() :] if head is not None else text).strip()
    if len(body) > MAX_TEXT:
        body = f"{body[:MAX_TEXT]}\n[{len(body) - MAX_TEXT:,} of {len(body):,} characters left out]"
    parts = path.split("/")
    fallback = parts[-2] if len(parts) > 1 else path.removesuffix(".md")
    return Skill(
        path,
        _only_value(keys.get("name")) or fallback,
        _only_value(keys.get("description")),
        tuple(dict.fromkeys(keys.get("tools", ())))[:MAX_TOOLS],
        body,
    )


def _keys(head: str) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    current: list[str] = []
    for line in head.splitlines():
        line = line[:MAX_LINE]
        item = _ITEM.fullmatch(line)
        key = _KEY.fullmatch(line)
        if key is not None and not line[:1].isspace():
            value = key["value"].strip()
            is_list = key["key"] == "tools"
            current = keys.setdefault(key["key"], _list_items(value) if is_list else [value])
        elif item is not None:
            current.append(_unquote_value(item["value"]))
    return keys


def _list_items(value: str) -> list[str]:
    inner = value.removeprefix("[").removesuffix("]")
    return [name for part in inner.split(",") if (name := _unquote_value(part))]


def _only_value(values: list[str] | None) -> str:
    if not values:
        return ""
    return _unquote_value(" ".join(values).strip())[:MAX_LINE]


def _unquote_value(value: str) -> str:
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value
