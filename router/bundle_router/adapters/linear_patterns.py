"""Regular expressions of agents over untrusted text: RE2, in linear time for every pattern."""

from __future__ import annotations

from collections.abc import Callable

from bundle_router.local_tools.expressions import MAX_BYTES, compile_expression


def compile_pattern(pattern: str) -> Callable[[str], tuple[int, int] | None]:
    """Return a function that finds the first match in a line (start, end).

    Raises ValueError if RE2 rejects the pattern.
    """
    # Over bytes: over text the library also counts characters, at three times the cost of the
    # match.
    expression = compile_expression(_encoded(pattern), max_bytes=MAX_BYTES, captures=False)

    def find(text: str) -> tuple[int, int] | None:
        data = _encoded(text)
        found = expression.search(data)
        if found is None:
            return None
        start = len(data[: found.start()].decode())
        return start, start + len(found.group().decode())

    return find


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
