"""The errors that Bundle Router raises, grouped by who is at fault.

    RouterError
    ├── ConfigError            the config is invalid; carries every problem, not the first
    ├── RequestError           the caller asked for something that is not possible
    │   ├── InvalidStep        a `Step` can't be made of these values; also a ValueError
    │   ├── UnknownRun         no run of that id is open or on disk
    │   ├── UnknownArtifact    neither the run nor an ancestor has it
    │   ├── KeyConflict        the key of a step or call was used before, with other contents
    │   └── WrongContext       a sync method inside a running event loop, or the reverse
    ├── RunBusy                other processes held the run's records too long; nothing written
    ├── StorageError           the run directory can't be written; the decision was not returned
    ├── CorruptRun             a run directory's records are damaged or were changed
    ├── CorruptPins            a pin file can't be read, or its texts and digests do not match
    ├── NotInstalled           an optional part is used whose extra is not installed
    └── ToolFailure            a tool failed (agents see it as an error result)

`message` says what is wrong and where. `advice` says what a person can do; it is separate, so that
a log line stays one line. Both are bounded (`longest`). `exit_code` is the command line's exit
status (see README, "Exit codes").
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final

__all__ = [
    "ApprovalChanged",
    "ConfigError",
    "CorruptPins",
    "CorruptRun",
    "InvalidStep",
    "KeyConflict",
    "NotAnApprover",
    "NotInstalled",
    "Problem",
    "RequestError",
    "RouterError",
    "RunBusy",
    "StorageError",
    "ToolFailure",
    "UnknownApproval",
    "UnknownArtifact",
    "UnknownRun",
    "WrongContext",
]

MAX_MESSAGE: Final = 2_000


def shorten(text: str, limit: int) -> str:
    """Return a text, or if it is longer than `limit` characters its beginning and end.

    >>> from bundle_router.errors import shorten
    >>> shorten("a" * 1_000, 50)
    'aaaaa… (1,000 characters) …aaaaa'
    """
    half = limit // 2 - 20
    if len(text) <= limit:
        return text
    return f"{text[:half]}… ({len(text):,} characters) …{text[-half:]}"


class RouterError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code: ClassVar[int] = 4
    remedy: ClassVar[str] = "Read `advice`, which is about this error."
    """What to do about errors of this class; `advice` is about the one at hand."""
    longest: ClassVar[int] = MAX_MESSAGE
    """Maximum characters of the message and of the advice, which may quote what a caller gave."""

    def __init__(self, message: str, *, advice: str = "") -> None:
        message = shorten(message, self.longest)
        advice = shorten(advice, self.longest)
        super().__init__(message)
        self.message = message
        self.advice = advice
        if advice:
            self.add_note(advice)  # stands below the message in a traceback

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to make an equal error, for `pickle` and `copy`.

        By default Python calls the class with `args` alone, which lack what only has a name.
        """
        return _error_from, (type(self), self.args, self.__dict__.copy())


def _error_from(
    kind: type[RouterError], args: tuple[object, ...], state: dict[str, object]
) -> RouterError:
    """Return the error of that class, message and attributes; its constructor is not called."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the config: what is wrong or risky, where, and what to do about it.

    >>> from bundle_router.errors import Problem
    >>> str(Problem("router.toml", 3, "model.nmaes", "unknown key", "names"))
    'router.toml:3: model.nmaes: unknown key (names)'
    """

    file: str
    """The file, as the user would type it."""
    line: int
    """From 1; 0: the whole file."""
    path: str
    """The key path: `routes[3].bundles[0]`."""
    message: str
    """What is wrong."""
    suggestion: str = ""
    """What to do about it; empty: nothing is known."""
    level: str = "error"
    """`error`, `warning` (no effect) or `risk` (allowed, but to be looked at)."""
    rule: str = ""
    """A stable word for a warning or a risk; empty for errors."""
    column: int = 0
    """From 1; 0: the whole line. The text names it only where there is no key path, because the
    file is not TOML.
    """

    def __str__(self) -> str:
        text = self.file
        if self.line:
            text += f":{self.line}"
        if self.column and not self.path:
            text += f":{self.column}"
        text += ":"

        if self.path:
            text += f" {self.path}:"
        text += f" {self.message}"
        if self.suggestion:
            text += f" ({self.suggestion})"
        if self.rule:
            text += f" [{self.rule}]"
        return text


class ConfigError(RouterError):
    """The config can't be used. `problems` holds all of them, in file order."""

    exit_code = 2
    remedy = (
        "Correct what `problems` names, each with its file and line, then run"
        " `bundle-router check`."
    )
    longest = 10**9

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"{count} problem{'s' if count != 1 else ''} in the config"
        advice = "correct what is named above, then run `bundle-router check`"
        if any(p.message.startswith("unknown bundle") and not p.suggestion for p in self.problems):
            advice += (
                "; pass your own tools, which a bundle may be of, as local=... or --local"
                " NAME=module:TOOLS"
            )
        super().__init__("\n".join([head, *(f"  {p}" for p in self.problems)]), advice=advice)


class RequestError(RouterError):
    """The request is malformed or refused; nothing was done and nothing was written."""

    exit_code = 3
    remedy = "Ask for something else: nothing was done, so the same request fails again."


class InvalidStep(RequestError, ValueError):
    """A `Step` or `StepPolicy` can't be made of these values.

    The message says what each wrong field must be.
    """

    remedy = "Give each named field what the message says it must be."


class UnknownRun(RequestError):
    """The run is not open here, nor found under the runs directory."""

    remedy = (
        "Route a step of the run first, or open the router with the `runs` or `store`"
        " that holds it."
    )


class UnknownArtifact(RequestError):
    """Neither the run nor any of its ancestors has this artifact."""

    remedy = "Use a digest that a result of the run or of its ancestors names."


class KeyConflict(RequestError):
    """The run has the key of a step or call already, with other contents.

    The message names the difference.
    """

    remedy = "Use a new key for other contents, or send what the key was used with."


class UnknownApproval(RequestError):
    """No run here has a question with this id: it was never asked, or its run was pruned."""

    remedy = "Use the `id` of `Result.approval`, or of a question that `approvals()` lists."


class ApprovalChanged(RequestError):
    """An answer to a question would have no effect any more: it was answered, used or expired, or
    it is about another call than the one that was shown. Nothing was recorded.
    """

    remedy = "Look at the question again; a call that is made again may be asked for anew."


class NotAnApprover(RequestError):
    """Who answers may not: it is the side that asked, or no row names that one."""

    remedy = (
        "Have somebody else answer: another principal, and another token, than those that asked."
    )


class WrongContext(RequestError):
    """A `*_sync` method was called inside a running event loop."""

    remedy = "In a coroutine call the method without `_sync`, and await it."


class RunBusy(RouterError):
    """Other processes held the run's records, or kept appending to them, for too long.

    Nothing was written; trying again is safe. `pid` is the process that held them, 0 if unknown.
    """

    remedy = "Try again: nothing was written. Where it happens often, have one process a run."

    def __init__(self, message: str, *, pid: int = 0, advice: str = "") -> None:
        super().__init__(message, advice=advice)
        self.pid = pid


class StorageError(RouterError):
    """The run directory could not be written, so the decision or result was withheld.

    `kind` is a word of `STORAGE_KINDS`, which has its cause and what to do.
    """

    remedy = (
        "Make room or access, as its `kind` says, then send the step or call again with its key."
    )

    def __init__(self, message: str, *, kind: str, advice: str = "") -> None:
        super().__init__(message, advice=advice)
        self.kind = kind


_FREE_SPACE: Final = (
    "free space on the disk, or have this user's quota raised, then try again; no restart is needed"
)
_MAKE_WRITABLE: Final = (
    "make it writable for this user (see its owner and modes, and attributes), or choose another"
)
_DELETED: Final = (
    "it was deleted or moved: close the run; the next step of the same id starts a new, empty one"
)
STORAGE_FAULTS: Final = {
    errno.ENOSPC: ("disk_full", _FREE_SPACE),
    errno.EDQUOT: ("disk_full", _FREE_SPACE),
    errno.EFBIG: (
        "disk_full",
        "raise the limit of file sizes (`ulimit -f`), or go on under a new run id",
    ),
    errno.EROFS: (
        "read_only",
        "the file system is mounted read-only: remount it, or choose another runs directory",
    ),
    errno.EACCES: ("read_only", _MAKE_WRITABLE),
    errno.EPERM: ("read_only", _MAKE_WRITABLE),
    errno.ENOENT: ("deleted", _DELETED),
    errno.ESTALE: ("deleted", _DELETED),
    errno.ENOTDIR: (
        "io_error",
        "there is a file where a folder is needed: move it away, or choose another folder",
    ),
    errno.EMLINK: (
        "not_private",
        "put a copy in its place (`cp FILE FILE.copy && mv FILE.copy FILE`), or choose another"
        " runs directory",
    ),
    errno.EMFILE: (
        "out_of_files",
        "close_run finished runs, or raise the limit of open files (`ulimit -n`)",
    ),
    errno.ENFILE: (
        "out_of_files",
        "the machine is out of open files: close some, or raise `fs.file-max`",
    ),
}
"""The `StorageError.kind` of an `OSError.errno`, and what a person can do about it."""


STORAGE_KINDS: Final = {
    "disk_full": (
        "The disk, this user's quota or the limit of file sizes is full.",
        "Free space, then try again; no restart is needed.",
    ),
    "read_only": (
        "This user can't write the place, or the file system is mounted read-only.",
        "Make it writable for this user, or choose another place.",
    ),
    "deleted": (
        "The run's folder was deleted or moved.",
        "Close the run; the next step of the same id starts a new one.",
    ),
    "short_write": (
        "Only a part of the record was written, and was taken back.",
        "Free space on the disk, then try again.",
    ),
    "out_of_files": (
        "The process or the machine has as many files open as it may.",
        "Close finished runs, or raise the limit of open files.",
    ),
    "io_error": (
        "The disk or the file system failed.",
        "Check the disk and the system log.",
    ),
    "not_private": (
        "Other users could read or change the place.",
        "Give it to this user alone, or choose another place.",
    ),
    "too_large": (
        "An artifact or a record is over its limit.",
        "Ask for a smaller part of it.",
    ),
    "unreachable": (
        "The database is away.",
        "Check its address and that it runs, then try again.",
    ),
    "no_locks": (
        "The file system does not honour file locks.",
        "Choose a runs directory on another file system.",
    ),
}
"""The cause of each `StorageError.kind`, and what a person can do about it."""


def storage_error(what: str, error: OSError) -> StorageError:
    """Return the StorageError for a failed call; `what` says which operation failed and where.

    >>> from bundle_router.errors import storage_error
    >>> storage_error("can't write run r-42", OSError(28, "No space left on device")).kind
    'disk_full'
    """
    code = error.errno or 0
    kind, advice = STORAGE_FAULTS.get(code, ("io_error", "check the disk and the system log"))
    return StorageError(
        f"{what}: {error.strerror or error} (errno {code})", kind=kind, advice=advice
    )


class CorruptRun(RouterError):
    """A record in the middle of a run is unreadable, or the hash chain is broken.

    Reported, never skipped.
    """

    exit_code = 5
    remedy = (
        "Run `bundle-router runs verify`, which names the first bad record; restore the"
        " run from a copy."
    )


class CorruptPins(RouterError):
    """A pin file is invalid or was edited by hand.

    No tool of its server may be used because of it.
    """

    exit_code = 5
    remedy = (
        "Restore the pin file from version control, or review the server again with"
        " `bundle-router pin`."
    )


class NotInstalled(RouterError):
    """An optional part is used, and the extra that installs its library is missing."""

    remedy = "Install the extra that `advice` names."


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Raise NotInstalled with the extra's name where an import in this block fails because a
    library is missing.

    >>> from bundle_router.errors import NotInstalled, needs_extra
    >>> try:
    ...     with needs_extra("code mode", "code"):
    ...         import a_library_that_is_missing
    ... except NotInstalled as error:
    ...     "bundle-router[code]" in error.advice
    True
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "bundle_router":
            raise
        raise NotInstalled(
            f"{what} needs {missing.name}, which is not installed",
            advice=f"pip install 'bundle-router[{extra}]'",
        ) from None


def expect(what: str, value: object, kinds: type | tuple[type, ...], example: str) -> None:
    """Raise RequestError, with a sentence, if a parameter is not of the kinds it must be.

    >>> from bundle_router.errors import RequestError, expect
    >>> try:
    ...     expect("step", "edit", int, "step=1")
    ... except RequestError as error:
    ...     error.advice
    'step=1'
    """
    if not isinstance(value, kinds):
        raise RequestError(
            f"{what} can't be {value!r:.100}, of type {type(value).__name__}", advice=example
        )


def refuse_windows(platform: str) -> None:
    """Raise RouterError, with a sentence, on Windows, where an import would fail.

    >>> from bundle_router.errors import refuse_windows
    >>> refuse_windows("linux")
    """
    if platform == "win32":
        message = (
            "Bundle Router does not run on Windows, which lacks the file locks that its records"
            " need"
        )
        raise RouterError(message, advice="run it under WSL")


class ToolFailure(RouterError):
    """A tool failed. `code` is a short machine-readable word, e.g. `not_found`."""

    remedy = "Read its `code`: the agent has seen the same as an error result."

    longest = 10**9  # it is the tool's answer, and shaped as one

    def __init__(self, message: str, *, code: str = "failed", advice: str = "") -> None:
        super().__init__(message, advice=advice)
        self.code = code
