"""`reference/errors.md`: every error class with its exit status, HTTP status, cause and remedy."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

from bundle_router import errors
from bundle_router.errors import STORAGE_KINDS, RouterError
from bundle_router.service.api.problems import problem_of

from tests.reference.markdown import GENERATED, code, prose, table, without_gaps

_HEAD: Final = f"""\
# Errors

What `bundle_router` raises on purpose, by who is at fault. {GENERATED} from `bundle_router.errors`. What an agent can see
fail, a refused call or a failing tool, is a `Result` with an `outcome` and a [code](codes.md), never an exception.

`str(error)` says what is wrong and where, `error.advice` what a person can do about this one. On the command line an error
ends the program with its exit status; over HTTP it is a problem document (RFC 9457) with its status and code.

"""


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    parts.append(
        table(
            ("error", "exit status", "HTTP", "base"),
            [
                (
                    f"[{kind.__name__}](#{kind.__name__.lower()})",
                    str(kind.exit_code),
                    "{} `{}`".format(*http_of(kind)),
                    kind.__base__.__name__ if kind is not RouterError and kind.__base__ else "",
                )
                for kind in error_classes()
            ],
        )
    )
    for kind in error_classes():
        parts.append(f"## {kind.__name__}\n\n{prose(inspect.getdoc(kind) or '')}")
        parts.append(f"**What to do:** {kind.remedy}\n\n")
        if kind is errors.StorageError:
            parts += _kinds()
    return without_gaps(parts)


def error_classes() -> list[type[RouterError]]:
    """Return the errors, each base class before its own."""
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, RouterError)
    ]


def http_of(kind: type[RouterError]) -> tuple[int, str]:
    """Return the status and the code of an error in an answer of the service."""
    error = kind.__new__(kind)  # each class has arguments of its own; only the class is asked for
    error.message = error.advice = ""
    refusal = problem_of(error)
    return refusal.status, refusal.code


def _kinds() -> Iterator[str]:
    yield table(
        ("kind", "cause", "what to do"),
        [(code(kind), cause, remedy) for kind, (cause, remedy) in STORAGE_KINDS.items()],
    )
