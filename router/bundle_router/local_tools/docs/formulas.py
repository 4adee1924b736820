"""Writes formulas as a line of text: their TeX where a page has it, else with signs of our own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from bundle_router.local_tools.docs.soup import NavigableString, Tag, attribute, squeeze

_TEX: Final = "application/x-tex"
_ATOM: Final = re.compile(r"[-+−]?\w+")


def shape_formulas(main: Tag) -> None:
    """Replace MathML, and the TeX that MathJax reads, by a line of text."""
    for script in main.find_all("script"):
        if attribute(script, "type").startswith("math/tex"):
            script.replace_with(f"${squeeze(script.get_text())}$")
    for math in main.find_all("math"):
        source = math.find("annotation", attrs={"encoding": _TEX})
        if source is not None:
            math.replace_with(f"${squeeze(source.get_text())}$")
        else:
            math.replace_with(_line_of(math))


def raised(text: str, sign: str, following: str) -> str:
    """Return a superscript (`sign` "^") or subscript ("_") as text, in parentheses where it could
    be read otherwise. `following` is the text behind it.

    Example: `raised("-9", "^", " s")` is "^-9", `raised("n+1", "^", "")` is "^(n+1)".
    """
    text = text.strip()
    if not text or "](" in text:  # a note's mark, which is a link
        return text
    if _ATOM.fullmatch(text) and not _runs_on(text[-1], following[:1]):
        return f"{sign}{text}"
    return f"{sign}({text})"


def _runs_on(last: str, first: str) -> bool:
    if last.isdigit():
        return first.isdigit()
    return first.isalnum()


def _line_of(element: Tag) -> str:
    parts = []
    for child in element.children:
        if isinstance(child, Tag):
            parts.append(_term(child))
        elif isinstance(child, NavigableString):
            parts.append(child.strip())
    return "".join(parts)


def _term(element: Tag) -> str:
    """Return a part of a formula: a base with its exponent or index, a fraction, a root."""
    inner = [child for child in element.children if isinstance(child, Tag)]
    form = _FORMS.get((element.name, len(inner)))
    if form is not None:
        return form([_term(child) for child in inner])
    if element.name == "msqrt":
        return f"sqrt({_line_of(element)})"
    return _line_of(element)


def _with_both(parts: list[str]) -> str:
    base, below, above = parts
    return base + raised(below, "_", "") + raised(above, "^", "")


_FORMS: Final[dict[tuple[str, int], Callable[[list[str]], str]]] = {
    ("msup", 2): lambda parts: parts[0] + raised(parts[1], "^", ""),
    ("mover", 2): lambda parts: parts[0] + raised(parts[1], "^", ""),
    ("msub", 2): lambda parts: parts[0] + raised(parts[1], "_", ""),
    ("munder", 2): lambda parts: parts[0] + raised(parts[1], "_", ""),
    ("msubsup", 3): _with_both,
    ("munderover", 3): _with_both,
    ("mfrac", 2): lambda parts: f"({parts[0]})/({parts[1]})",
    ("mroot", 2): lambda parts: f"root({parts[0]}, {parts[1]})",
}
"""How an element of MathML with so many parts is written."""
