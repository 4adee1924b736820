"""The client's errors: the library's, by the code of the service's problem (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final


class RouterError(Exception):
    """Base of all errors.

    `code` is the problem's closed code, `status` the HTTP status (0: no answer), `advice` what can
    be done, `retry_after_s` when to try again (None: unknown).
    """

    def __init__(
        self,
        message: str,
        *,
        advice: str = "",
        code: str = "",
        status: int = 0,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s


class RequestError(RouterError):
    """The request is malformed or refused; nothing was done and nothing was written."""


class InvalidStep(RequestError, ValueError):
    """A `Step` can't be made of these values."""


class UnknownRun(RequestError):
    """The service has no run of that id, or another principal's."""


class UnknownArtifact(RequestError):
    """Neither the run nor an ancestor of it has this artifact."""


class KeyConflict(RequestError):
    """The key of a step or a call was used before, with other contents."""


class RunBusy(RouterError):
    """Other processes held the run's records, or the service is overloaded.

    Trying again is safe.
    """


class StorageError(RouterError):
    """The run's records could not be written, so the decision or result was withheld."""


class CorruptRun(RouterError):
    """A record of the run is unreadable."""


class Unreachable(RouterError):
    """The service did not answer.

    With a key it is safe to ask again; without one a call may have happened.
    """


_BY_CODE: Final[Mapping[str, type[RouterError]]] = {
    "unknown_run": UnknownRun,
    "unknown_artifact": UnknownArtifact,
    "key_conflict": KeyConflict,
    "run_busy": RunBusy,
    "busy": RunBusy,
    "closing": Unreachable,
    "timed_out": Unreachable,
    "storage": StorageError,
    "corrupt_run": CorruptRun,
}


def error_of(status: int, problem: Mapping[str, Any], retry_after: str | None) -> RouterError:
    """Return the error for an answer that is no success. An unknown code counts by its status."""
    code = str(problem.get("code", ""))
    kind = _BY_CODE.get(code, RequestError if 400 <= status < 500 else RouterError)
    message = str(problem.get("detail") or f"the service answered {status}").removesuffix(".")
    wait = float(retry_after) if retry_after and retry_after.isdigit() else None
    return kind(
        message, advice=str(problem.get("advice", "")), code=code, status=status, retry_after_s=wait
    )
