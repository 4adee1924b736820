"""The arguments of a call: read, bounded, and with the text that a record holds of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.models.canonical import digest, encode
from bundle_router.core.tools.shaping import Blob
from bundle_router.ports import Redactor

MAX_NAME: Final = 200
"""Characters of a name, or of a reason, in a record."""
HEAD: Final = 1_000
"""Characters kept of arguments that are too large to be taken, or that are longer than `KEPT` and were refused."""
KEPT: Final = 4_000


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a caller gave as arguments. `text` is what the record holds of it; `wrong` says why it can't be used:
    the code, and the rest of a sentence that begins with "The arguments of … ". `asked` is the value as the caller gave
    it, where something else has taken the place of artifact handles in it; `files` are the paths among that. `blobs`
    are the bytes that `text` names by their handles; they are stored when the call begins."""

    value: Mapping[str, Any]
    text: str
    wrong: tuple[str, str] | None = None
    asked: Mapping[str, Any] | None = None
    files: tuple[str, ...] = ()
    blobs: tuple[Blob, ...] = ()


def read_arguments(redactor: Redactor, given: Mapping[str, Any] | str, max_bytes: int) -> Arguments:
    """The arguments as an object and as the record's text, secrets taken out by name and by shape. An object as JSON
    text is taken too: that is how some providers hand it over."""
    if isinstance(given, str):
        if len(given) > max_bytes:
            return _too_large(redactor, given, max_bytes)
        try:
            given = json.loads(given or "{}", parse_constant=_no_constant)
        except (ValueError, RecursionError) as wrong:
            return _not_json(wrong)
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        return Arguments({}, encode({"not_an_object": kind}), ("not_an_object", "must be an object, with its names."))
    value = dict(given)
    try:
        text = encode(value)
    except (TypeError, ValueError, RecursionError) as wrong:
        return _not_json(wrong, sorted(str(name)[:MAX_NAME] for name in list(value)[:50]))
    if len(text) > max_bytes:
        return _too_large(redactor, text, max_bytes)
    return Arguments(value, encode(redactor.redact_value(value)))


def shortened(text: str) -> str:
    """What the record of a refused call holds of arguments: nobody acted on them, and there may be any number."""
    return text if len(text) <= KEPT else encode({"length": len(text), "digest": digest(text), "head": text[:HEAD]})


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _not_json(wrong: Exception, names: list[str] | None = None) -> Arguments:
    reason = "they are nested too deep" if isinstance(wrong, RecursionError) else str(wrong)[:MAX_NAME]
    text = encode({"not_json": reason} | ({"names": names} if names is not None else {}))
    return Arguments({}, text, ("not_json", f"are not JSON: {reason}."))


def _too_large(redactor: Redactor, text: str, max_bytes: int) -> Arguments:
    # Redacted before it is cut: half a secret is not recognised as one.
    head = redactor.redact(text[: 16 * HEAD])[:HEAD]
    kept = encode({"too_large": len(text), "digest": digest(text), "head": head})
    return Arguments({}, kept, ("too_large", f"are {len(text):,} bytes, at most {max_bytes:,} are taken."))
