"""Host names, and the one form in which they are compared.

Rules:
1. A host is a DNS name. A host that an address parser could read as an address (dotted, decimal,
   octal, hexadecimal, bracketed) is refused.
2. A name that the two IDNA standards read differently (fullwidth or other foreign digits,
   ideographic full stops, `ß`, joiners) is refused: write its `xn--` form.

Sources: RFC 5890, the WHATWG URL standard's "ends in a number" host rule.
"""

from __future__ import annotations

import re
from typing import Final

from bundle_router.core.values.words import shorten

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


def spell_host(text: str) -> str:
    """Return the canonical form of a host name: lower case, ASCII, no final dot.

    Raises ValueError with the reason.
    """
    name = text.removesuffix(".").lower()
    if not name or len(name) > 253:
        raise ValueError(f"its host {shorten(text, 80)!r} is empty or longer than 253 characters")
    labels = [_spell_label(label) for label in name.split(".")]
    if len(labels) < 2:
        raise ValueError(f"its host {text!r} has no dot; a full name is needed")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError(f"its host {text!r} reads as an address; only names are fetched")
    if len(host := ".".join(labels)) > 253:
        raise ValueError(f"its host {text!r} is longer than 253 characters")
    return host


def _spell_label(label: str) -> str:
    if not label.isascii():
        label = _spell_unicode_label(label)
    if not _LABEL.fullmatch(label):
        raise ValueError(
            f"its host has the part {label!r}, which is not a DNS label (letters, digits, '-', 1"
            " to 63)"
        )
    return label


def _spell_unicode_label(label: str) -> str:
    # The standard library has IDNA 2003. A name that survives the round trip unchanged, and has no
    # digits but 0-9, means the same under IDNA 2008; all others are tricks of rule 2.
    if len(label) > 63 or any(char.isnumeric() and not char.isascii() for char in label):
        raise ValueError(f"its host has the part {shorten(label, 80)!r}; write its xn-- form")
    try:
        ascii_form = label.encode("idna").decode("ascii")
        back = ascii_form.encode("ascii").decode("idna")
    except UnicodeError:
        raise ValueError(f"its host has the part {label!r}, which IDNA does not accept") from None
    if back != label or not ascii_form.startswith("xn--"):
        raise ValueError(f"its host has the part {label!r}, which can be read in more than one way")
    return ascii_form
