"""The library that checks values (jsonschema-rs): the only module that imports it."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import jsonschema_rs
from jsonschema_rs import ValidationError, Validator

MAX_PATTERN_BYTES: Final = 256 * 1024
"""Maximum bytes of one compiled pattern. A schema may have thousands of patterns."""

_VALIDATORS: Final[dict[int, type[Validator]]] = {
    4: jsonschema_rs.Draft4Validator,
    6: jsonschema_rs.Draft6Validator,
    7: jsonschema_rs.Draft7Validator,
    2019: jsonschema_rs.Draft201909Validator,
    2020: jsonschema_rs.Draft202012Validator,
}


def compiled(schema: dict[str, Any], draft: int) -> Validator:
    """Return the schema's validator. Raises ValueError if it can't be compiled.

    The patterns run in the linear engine; `format` refuses nothing.
    """
    return _VALIDATORS[draft](
        schema,
        retriever=_refuse,
        pattern_options=jsonschema_rs.RegexOptions(
            size_limit=MAX_PATTERN_BYTES, dfa_size_limit=MAX_PATTERN_BYTES
        ),
        validate_formats=False,
    )


def _refuse(uri: str) -> NoReturn:
    """Fetch nothing. Without a retriever of its own the library fetches `http:` and `file:`."""
    raise ValueError(f"{uri!r} is outside the schema")


__all__ = ["ValidationError", "Validator", "compiled"]
