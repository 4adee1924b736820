"""Whether a URI is one that a resource template (RFC 6570) stands for, as far as that takes to tell servers apart."""

from __future__ import annotations

import re
from typing import Final

MAX_TEMPLATE: Final = 2_000
_EXPRESSION: Final = re.compile(r"\{[^{}]*\}")


def fits_template(uri: str, template: str) -> bool:
    """Return whether the URI begins, goes on and ends as the template does around its expressions. An expression stands
    for the shortest text up to what follows it, so this takes no more than one pass."""
    first, *rest = _EXPRESSION.split(template[:MAX_TEMPLATE])
    if not rest or len(template) > MAX_TEMPLATE:
        return uri == template
    last = rest.pop()
    if not uri.startswith(first) or not uri.endswith(last) or len(uri) < len(first) + len(last):
        return False
    middle, at = uri[len(first) : len(uri) - len(last)], 0
    for literal in rest:
        found = middle.find(literal, at)
        if found < 0:
            return False
        at = found + len(literal)
    return True
