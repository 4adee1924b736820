"""Skills: a bundle's instructions, and the tools they name. Pure.

A skill is a Markdown file in the project's or the package's `bundles/` folder, so it is an
operator's text. Its head is YAML between two lines of `---`, with `name`, `description` and `tools`
(a list, or one line with commas or blanks). Other keys are ignored.

Rules:
1. A skill grants nothing. The tools it names are shown with it if the bundle holds them and policy
   permits them.
2. Its text is bounded, and cleaned of invisible characters.
3. A head that can't be read is said by `check`; the skill then is its instructions alone. A colon
   in a name or description of one line is read, though YAML would want quotes there.
4. A head may have neither anchors nor aliases, so it can't be a YAML bomb.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from bundle_router.core.catalog import Skill
from bundle_router.core.servers.admission.cleaning import cleaned

MAX_BYTES: Final = 64 * 1024
MAX_TEXT: Final = 16_000
MAX_TOOLS: Final = 100
MAX_LINE: Final = 1_000

_HEAD: Final = re.compile(
    r"\A\s*^---[ \t]*\n(?P<head>.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE
)
_PLAIN: Final = re.compile(
    r"^(?P<key>name|description):[ \t]+(?P<value>[^\s\"'>|&*!%@`\[{#].*)$", re.MULTILINE
)
_TOOL_BREAK: Final = re.compile(r"[,\s]+")


def parse_skill(path: str, text: str) -> Skill:
    """Parse a skill from a file's text.

    Never fails: a file without a head consists of instructions.
    """
    text = _plain(text)
    head = _HEAD.match(text)
    try:
        keys = _read_head(head["head"]) if head is not None else {}
    except ValueError:
        keys = {}
    body = (text[head.end() :] if head is not None else text).strip()
    if len(body) > MAX_TEXT:
        body = f"{body[:MAX_TEXT]}\n[{len(body) - MAX_TEXT:,} of {len(body):,} characters left out]"
    parts = path.split("/")
    fallback = parts[-2] if len(parts) > 1 else path.removesuffix(".md")
    return Skill(
        path,
        _text_of(keys.get("name")) or fallback,
        _text_of(keys.get("description")),
        tuple(dict.fromkeys(_names_of(keys.get("tools"))))[:MAX_TOOLS],
        body,
    )


def head_fault(text: str) -> str:
    """Return why the head of a skill can't be read, in a sentence; empty if it can, or there is
    none.
    """
    head = _HEAD.match(_plain(text))
    if head is None:
        return ""
    try:
        _read_head(head["head"])
    except ValueError as fault:
        return str(fault)
    return ""


def _plain(text: str) -> str:
    return cleaned(text.replace("\r\n", "\n").lstrip("\ufeff"))


def _read_head(head: str) -> Mapping[str, Any]:
    """Return the keys of a head. Raises ValueError with a sentence (rule 3)."""
    try:
        return _read_yaml(head)
    except ValueError as fault:
        quoted = _PLAIN.sub(_quote, head)
        try:
            return _read_yaml(quoted)
        except ValueError:
            raise fault from None


def _read_yaml(text: str) -> Mapping[str, Any]:
    import yaml  # type: ignore[import-untyped]  # it has no types

    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise ValueError("its head has an anchor or alias of YAML")
        value = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it makes texts, lists and maps
    except yaml.MarkedYAMLError as error:
        place = f" (line {error.problem_mark.line + 2})" if error.problem_mark else ""
        raise ValueError(f"its head is no YAML: {error.problem}{place}") from None
    except (yaml.YAMLError, RecursionError):
        raise ValueError("its head is no YAML that is read here") from None
    if value in (None, ""):
        return {}
    if not isinstance(value, dict):
        raise ValueError("its head has no keys: write name, description and tools")
    for key in ("name", "description"):
        if not isinstance(value.get(key, ""), str):
            raise ValueError(f"{key} in its head is no text")
    tools = value.get("tools", "")
    if not isinstance(tools, str) and not _is_list_of_texts(tools):
        raise ValueError("tools in its head is no list of names")
    return value


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _quote(line: re.Match[str]) -> str:
    text = line["value"].rstrip().replace("'", "''")
    return f"{line['key']}: '{text}'"


def _text_of(value: Any) -> str:
    """Return a value of the head on one line."""
    return " ".join(value.split())[:MAX_LINE] if isinstance(value, str) else ""


def _names_of(value: Any) -> list[str]:
    """Return the names of tools: of a list, or of a line with commas or blanks."""
    if isinstance(value, str):
        return [name for name in _TOOL_BREAK.split(value) if name]
    return [item.strip() for item in value or () if item.strip()]
