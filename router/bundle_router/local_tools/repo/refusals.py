"""Text for models: why a path is refused (a `ToolFailure` with a code and advice), counts and
names.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bundle_router.errors import ToolFailure, shorten
from bundle_router.local_tools.repo.beneath import HiddenFolder


def invalid(path: str, why: str) -> ToolFailure:
    return ToolFailure(f"{path!r} is not a usable path: {why}", code="invalid_path")


def outside_failure(path: str) -> ToolFailure:
    return ToolFailure(
        f"{path!r} leads outside the workspace",
        code="outside_workspace",
        advice=(
            "give a path relative to the workspace; links with an absolute target are not followed"
        ),
    )


def hidden_failure(path: str) -> ToolFailure:
    sentence = "is the router's own (its records, or a file of `serve` such as its tokens)"
    return ToolFailure(
        f"{shorten(path, 200)!r} {sentence}: no tool reads or changes it", code="hidden"
    )


def credentials_failure(path: str) -> ToolFailure:
    return ToolFailure(
        f"{shorten(path, 200)!r} holds credentials, which no tool shows",
        code="credentials",
        advice="work without it; a person can say what it is for",
    )


_WORDS: Final = {
    errno.ENOENT: (
        "not_found",
        "there is no {path!r} in the workspace",
        "list its folder with list_dir",
    ),
    errno.ENOTDIR: (
        "not_a_directory",
        "{path!r} is, or goes through, something that is not a directory",
        "",
    ),
    errno.EISDIR: ("is_directory", "{path!r} is a directory", "list it with list_dir"),
    errno.ELOOP: (
        "too_many_links",
        "{path!r} goes through a loop of symlinks, or a link that is not followed",
        "",
    ),
    errno.EACCES: ("permission_denied", "the router may not read {path!r}", ""),
    errno.EPERM: ("permission_denied", "the router may not read {path!r}", ""),
    errno.ENAMETOOLONG: ("invalid_path", "a name in {path!r} is too long", ""),
    errno.EAGAIN: ("changed_meanwhile", "{path!r} kept moving while it was opened", "try again"),
    errno.ENXIO: ("not_a_file", "{path!r} is not a regular file and is not read", ""),
}


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Turn the kernel's errors about a path into a ToolFailure for the caller."""
    try:
        yield
    except HiddenFolder as error:
        raise hidden_failure(path) from error
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise outside_failure(path) from error
        code, message, advice = _WORDS.get(
            error.errno or 0, ("io_error", "{path!r} can't be read: " + str(error.strerror), "")
        )
        raise ToolFailure(
            message.format(path=shorten(path, 200)), code=code, advice=advice
        ) from error


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 line`, `1,200 lines`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
