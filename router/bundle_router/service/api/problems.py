"""Errors under `/v1` as refusals with a closed code. Pure."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from bundle_router.errors import (
    ApprovalChanged,
    CorruptRun,
    KeyConflict,
    NotAnApprover,
    NotInstalled,
    RequestError,
    RouterError,
    RunBusy,
    StorageError,
    UnknownApproval,
    UnknownArtifact,
    UnknownRun,
    shorten,
)
from bundle_router.service.refusals import Refusal

_RETRY: Final = ((b"retry-after", b"1"),)
MAX_ERRORS: Final = 20

TIMED_OUT: Final = Refusal(
    504,
    "timed_out",
    "The request took longer than [service] request_s.",
    advice="raise that limit, or ask for less",
)
INTERNAL: Final = Refusal(
    500,
    "internal",
    "An error in the service ended the request.",
    advice="the service's log names it; report it",
)
UNSUPPORTED: Final = Refusal(
    415,
    "unsupported_type",
    "Send the body as 'Content-Type: application/json'.",
    advice="set the header",
)
NO_ARTIFACT: Final = Refusal(
    404,
    "unknown_artifact",
    "The run has no such artifact.",
    advice="use a digest that a result of this run names",
)
GONE: Final = Refusal(499, "unavailable", "The client went away.", advice="ask again")


def problem_of(error: RouterError) -> Refusal:
    """Return the refusal for an error of the library."""
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            return Refusal(
                status, code, f"{error.message}.", _RETRY if status == 503 else (), error.advice
            )
    return INTERNAL


_KINDS: Final[tuple[tuple[type[RouterError], int, str], ...]] = (
    (UnknownRun, 404, "unknown_run"),
    (UnknownArtifact, 404, "unknown_artifact"),
    (UnknownApproval, 404, "unknown_approval"),
    (ApprovalChanged, 409, "approval_changed"),
    (NotAnApprover, 403, "not_an_approver"),
    (KeyConflict, 422, "key_conflict"),
    (RequestError, 400, "refused"),
    (RunBusy, 503, "run_busy"),
    (StorageError, 503, "storage"),
    (CorruptRun, 500, "corrupt_run"),
    (NotInstalled, 501, "not_installed"),
)


def invalid(error: ValidationError) -> Refusal:
    """Return the refusal for an invalid body or query.

    Of the input it repeats only keys and ids, shortened.
    """
    rows = error.errors(include_url=False, include_context=False, include_input=False)
    if rows[0]["type"] == "json_invalid":
        return Refusal(
            400, "malformed", "The body is not JSON.", advice="send one JSON object in UTF-8"
        )
    errors = tuple(
        (
            shorten("/" + "/".join(map(str, row["loc"])), 300),
            row["msg"].removeprefix("Value error, "),
        )
        for row in rows[:MAX_ERRORS]
    )
    sentence = "; ".join(f"{pointer}: {detail}" for pointer, detail in errors)
    return Refusal(
        422,
        "invalid",
        f"{sentence}.",
        advice="see /openapi.json for what may be sent",
        errors=errors,
    )
