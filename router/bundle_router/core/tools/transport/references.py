"""`${NAME}` in headers and environments, replaced when a connection is made: the values are never in the config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class MissingReference(LookupError):
    """A variable that a server's entry refers to is not set. `name` is the variable."""

    def __init__(self, name: str) -> None:
        super().__init__(f"its credential {name} is not set")
        self.name = name


def resolved(pairs: Iterable[tuple[str, str]], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the pairs with every reference replaced. Raises MissingReference for one that is unset or empty."""

    def value_of(match: re.Match[str]) -> str:
        value = environ.get(match[1], "")
        if not value:
            raise MissingReference(match[1])
        return value

    return {name: _REFERENCE.sub(value_of, value) for name, value in pairs}
