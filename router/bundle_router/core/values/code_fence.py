"""The Markdown fence that models put round what they were asked for."""

from __future__ import annotations

import re
from typing import Final

_FENCED: Final = re.compile(r"\A\s*```[A-Za-z0-9_-]*[ \t]*\r?\n(.*?)\r?\n?```\s*\Z", re.DOTALL)


def without_fence(text: str) -> str:
    """Return the text inside a Markdown code fence, when that is all there is; else the text
    itself.
    """
    fenced = _FENCED.match(text)
    return fenced[1] if fenced else text
