"""The text of `bundles.toml` with examples and words added: everything else stays as it is typed.

An addition is an edit of the text at the place that `locate` finds. It counts only if the standard
parser then reads exactly the old config with the additions in it; where it does not (a bundle that
is an inline table, or is written in dotted keys), the lines are for a person to add.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bundle_router.core.config.positions import locate
from bundle_router.review.toml_text import toml_string

_COMMENT: Final = re.compile(r"#[^\n]*")


@dataclass(frozen=True, slots=True)
class Addition:
    """Texts to add to one bundle's entry."""

    bundle: str
    """Its id."""
    examples: tuple[str, ...]
    """Examples to add behind those that it has."""
    words: tuple[str, ...]
    """Words to add behind those that it has."""
    comment: str
    """Who wrote them, and when: one line, without `#`."""

    def lists(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each key that is added to, with its texts."""
        if self.examples:
            yield "examples", self.examples
        if self.words:
            yield "words", self.words


def with_additions(text: str, additions: Sequence[Addition]) -> tuple[str, tuple[Addition, ...]]:
    """Return a valid `bundles.toml` with the additions, and those that can't be made in it."""
    impossible: list[Addition] = []
    for addition in additions:
        edited = _add(text, addition)
        if edited is None:
            impossible.append(addition)
        else:
            text = edited
    return text, tuple(impossible)


def addition_lines(addition: Addition) -> list[str]:
    """Return the lines of an addition, for a person to copy."""
    lines = [f"[bundles.{toml_string(addition.bundle)}]"]
    for key, texts in addition.lists():
        lines += _new_list(key, texts, addition.comment)
    return lines


def _add(text: str, addition: Addition) -> str | None:
    expected = tomllib.loads(text)
    entry = expected.get("bundles", {}).get(addition.bundle)
    if not isinstance(entry, dict):
        return None
    edited = text
    for key, texts in addition.lists():
        edited = _add_list(edited, (addition.bundle, key), texts, addition.comment)
        entry[key] = [*entry.get(key, []), *texts]
    try:
        if tomllib.loads(edited) == expected:
            return edited
    except ValueError:
        pass  # the place does not take lines of its own
    return None


def _add_list(text: str, place: tuple[str, str], texts: Sequence[str], comment: str) -> str:
    """Return the text with the texts at the end of a bundle's list, which may be a new one."""
    bundle, key = place
    positions = locate(text)
    path = ("bundles", bundle, key)
    span = positions.span(path)
    if span is not None:
        count = len(tomllib.loads(text)["bundles"][bundle][key])
        last = positions.span((*path, count - 1))
        return _extended(text, span[1] - 1, last[1] if last is not None else None, texts, comment)

    examples = positions.span(("bundles", bundle, "examples"))
    anchor = examples or positions.span(("bundles", bundle, "description"))
    if anchor is None:
        return text
    line_end = text.find("\n", anchor[1])
    if line_end < 0:
        line_end = len(text)
        text += "\n"
    added = "".join(f"{line}\n" for line in _new_list(key, texts, comment))
    return text[: line_end + 1] + added + text[line_end + 1 :]


def _extended(
    text: str, closing: int, last_end: int | None, texts: Sequence[str], comment: str
) -> str:
    """Return the text with more items before the bracket at `closing`.

    `last_end`: where the last item ends; None for an empty list.
    """
    tail = text[closing:]
    if last_end is None:
        head = text[:closing]
    else:
        between = text[last_end:closing]
        comma = "" if "," in _COMMENT.sub("", between) else ","
        head = text[:last_end] + comma + between
    line_break = "" if head.rstrip(" \t").endswith("\n") else "\n"
    items = "".join(f"{line}\n" for line in _items(texts, comment))
    return head.rstrip(" \t") + line_break + items + tail


def _new_list(key: str, texts: Sequence[str], comment: str) -> list[str]:
    return [f"{key} = [", *_items(texts, comment), "]"]


def _items(texts: Sequence[str], comment: str) -> list[str]:
    return [f"  # {comment}", *(f"  {toml_string(text)}," for text in texts)]
