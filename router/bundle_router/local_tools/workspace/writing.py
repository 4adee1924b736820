"""`write_file`: replaces or creates one text file beneath the workspace, atomically.

Rules:
1. The parent folder is opened beneath the workspace (`Root`); everything after that is relative to
   its descriptor.
2. The last component is never followed: a symlink, folder, FIFO, socket or device there is refused.
3. Refused are files that outside programs run by themselves (`autorun`), the code of the router's
   own process (`router_code`), and the router's config and records: a tool that could rewrite the
   policy would not be bound by it. All are recognised by the folders above the open one, from its
   descriptor up to the root, not by the given path.
4. The new content is complete under a temporary name before one system call renames it.
5. A content with a mark such as `[redacted:…]` is refused, since it would replace the secret that
   the mark stands for; not where the file has that mark itself.
6. `create_only` and `expected_sha256` ensure that the replaced content is what the caller has seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import Field, model_validator

from bundle_router.adapters.descriptors import Opened
from bundle_router.core.values import (
    Data,
    Frozen,
    LocalTool,
    Text,
    ToolContext,
    ToolOutput,
    shorten,
)
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.beneath import PATH_ONLY
from bundle_router.local_tools.repo.confinement import Root, workspace
from bundle_router.local_tools.repo.hiding import identity_of, plain
from bundle_router.local_tools.repo.lineage import ancestors, location
from bundle_router.local_tools.workspace.autorun import ENVIRONMENT_MARKERS, autorun_part, reached
from bundle_router.local_tools.workspace.router_code import router_code

MAX_CONTENT: Final = 4 << 20
MAX_DEPTH: Final = 64
_MARK: Final = re.compile(rb"\[redacted:[A-Za-z0-9:_.-]{1,200}\]")

_one_at_a_time = threading.Lock()
"""Lock between comparing `expected_sha256` and replacing, against other writes of this process."""


class WriteFileArguments(Frozen):
    """Arguments of `workspace.write_file`."""

    path: str = Field(
        min_length=1, max_length=4095, description="File to write, relative to the workspace."
    )
    content: str = Field(
        max_length=MAX_CONTENT, description="The whole new content, as text (written as UTF-8)."
    )
    create_only: bool = Field(default=False, description="Refuse if the file exists.")
    expected_sha256: str | None = Field(
        default=None,
        pattern=r"^(sha256:)?[0-9a-f]{64}$",
        description=(
            "Refuse unless the existing file has this SHA-256 digest: the version you read."
        ),
    )

    @model_validator(mode="after")
    def _not_both(self) -> WriteFileArguments:
        if self.create_only and self.expected_sha256:
            raise ValueError(
                "create_only and expected_sha256 exclude each other: a new file has no digest yet"
            )
        return self


def write_file(arguments: WriteFileArguments, context: ToolContext) -> ToolOutput:
    """Write the file and return its digest. Raises ToolFailure, and then the file is unchanged."""
    content = arguments.content.encode("utf-8")
    if len(content) > MAX_CONTENT:
        raise ToolFailure(
            f"the content has {len(content):,} bytes, more than {MAX_CONTENT:,}", code="too_large"
        )
    with workspace(context) as root:
        protected = (*context.protected, *router_code(root.top).places, *reached(root.top))
        relative = root.relative(arguments.path)
        parent, _, name = relative.rpartition("/")
        _check_name(relative, name, asked=arguments.path)
        _refuse_autorun(
            (*PurePosixPath(root.within).parts, *PurePosixPath(relative).parts),
            relative,
            is_file=True,
        )
        with _parent_folder(root, parent or ".", protected) as folder, _one_at_a_time:
            _refuse_place(location(folder, root.fd, root.path) / name, root, protected)
            previous = _check_existing(folder, name, relative, arguments)
            if previous is not None:
                _refuse_identity(previous, name, protected)
            if context.settings.tokens == "redact":
                _refuse_marks(content, folder, name, previous, relative)
            try:
                replace_or_create(folder, name, content, previous)
            except FileExistsError:
                raise _exists_failure(relative) from None
            except OSError as error:
                raise ToolFailure(
                    f"{relative!r} can't be written: {error.strerror}", code="io_error"
                ) from error
    digest = hashlib.sha256(content).hexdigest()
    verb = "created" if previous is None else "replaced"
    record = {"path": relative, "bytes": len(content), "sha256": f"sha256:{digest}", "done": verb}
    return ToolOutput(
        (Text(f"{verb} {relative} ({len(content):,} bytes, sha256:{digest})"), Data(record))
    )


def _check_name(relative: str, name: str, *, asked: str) -> None:
    parts = PurePosixPath(relative).parts
    if name in ("", ".", "..") or asked.endswith("/"):
        raise ToolFailure(f"{relative!r} does not name a file", code="invalid_path")
    if len(parts) > MAX_DEPTH:
        raise ToolFailure(
            f"{shorten(relative, 200)!r} is more than {MAX_DEPTH} folders deep", code="invalid_path"
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in relative):
        raise ToolFailure(
            f"{shorten(relative, 200)!a} contains a control character", code="invalid_path"
        )


def _refuse_marks(
    content: bytes, folder: int, name: str, before: os.stat_result | None, shown: str
) -> None:
    """Refuse a content that has a mark of the redaction more often than the file has it now."""
    marks = Counter(_MARK.findall(content))
    if not marks:
        return
    there = Counter[bytes]()
    if before is not None and before.st_size <= MAX_CONTENT:
        with Opened(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)) as fd:
            there = Counter(_MARK.findall(os.read(fd, MAX_CONTENT)))
    for mark, number in marks.items():
        if number > there[mark]:
            raise ToolFailure(
                f"the content for {shown!r} has the mark {mark.decode()!r}, which stands for a"
                " secret that was not shown: writing it would replace the secret",
                code="redacted",
                advice=(
                    "leave this file to a person, or write it without the lines that hold secrets"
                ),
            )


def _refuse_autorun(parts: Sequence[str], shown: str, *, is_file: bool = False) -> None:
    part = autorun_part(parts, is_file=is_file)
    if plain(part) == ".git":
        raise ToolFailure(
            f"{shown!r} is inside a .git folder, where tools do not write", code="git_internals"
        )
    if part:
        reason = (
            f"{shown!r} is not written by tools: programs outside the sandbox run what {part!r}"
            " holds by themselves"
        )
        raise ToolFailure(reason, code="autorun", advice="ask a person to make this change")


def _refuse_place(path: Path, root: Root, protected: Sequence[str]) -> None:
    """Refuse a real path that is protected or that outside programs run."""
    if any(path.is_relative_to(place) for place in protected):
        raise _protected_failure(path.name)
    _refuse_autorun(
        path.relative_to(root.top).parts if path.is_relative_to(root.top) else (), path.name
    )


def _protected_failure(name: str) -> ToolFailure:
    return ToolFailure(
        f"{name!r} belongs to the router (config, records, a file of `serve`, code of its process),"
        " or git runs it",
        code="protected",
        advice=(
            "keep the workspace apart from what the router imports: Router.open(...,"
            ' workspace="work")'
        ),
    )


def _refuse_identity(info: os.stat_result, name: str, protected: Sequence[str]) -> None:
    if (info.st_dev, info.st_ino) in map(identity_of, protected):
        raise _protected_failure(name)


@contextmanager
def _parent_folder(root: Root, parent: str, protected: Sequence[str]) -> Iterator[int]:
    """Yield a descriptor of the file's folder, created if needed. Its real place counts."""
    with Opened(_open_or_make(root, parent, protected)) as descriptor:
        try:
            for folder in ancestors(descriptor, root.fd):
                _check_folder(folder, parent, protected)
            _refuse_place(location(descriptor, root.fd, root.path), root, protected)
        except OSError as error:
            raise ToolFailure(
                f"{parent!r} was moved away", code="changed_meanwhile", advice="try again"
            ) from error
        yield descriptor


def _check_folder(folder: int, shown: str, protected: Sequence[str]) -> None:
    """Refuse one folder on the way.

    Git directories and environments are also recognised by their content.
    """
    _refuse_identity(os.fstat(folder), shown, protected)
    if all(_exists_in(folder, part) for part in ("HEAD", "objects", "refs")):
        raise ToolFailure(
            f"{shown!r} is inside a git directory, where tools do not write", code="git_internals"
        )
    if any(_exists_in(folder, marker) for marker in ENVIRONMENT_MARKERS):
        _refuse_autorun((ENVIRONMENT_MARKERS[0],), shown)


def _exists_in(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _open_or_make(root: Root, parent: str, protected: Sequence[str]) -> int:
    flags = PATH_ONLY | os.O_DIRECTORY
    try:
        return root.open_fd(parent, flags)
    except ToolFailure as failure:
        if failure.code != "not_found" or ".." in PurePosixPath(parent).parts:
            raise
    above, _, name = parent.rpartition("/")
    with _parent_folder(root, above or ".", protected) as folder:
        _refuse_place(location(folder, root.fd, root.path) / name, root, protected)
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            pass  # created meanwhile, or a dangling link: opening it decides
        except OSError as error:
            raise ToolFailure(
                f"the folder {parent!r} can't be made: {error.strerror}", code="io_error"
            ) from error
    return root.open_fd(parent, flags)


def _check_existing(
    folder: int, name: str, shown: str, arguments: WriteFileArguments
) -> os.stat_result | None:
    """Return the status of the existing file, or None.

    Raises ToolFailure if it may not be replaced.
    """
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        if arguments.expected_sha256:
            raise ToolFailure(
                f"{shown!r} does not exist", code="changed_meanwhile", advice="read it again"
            ) from None
        return None
    except OSError as error:
        raise ToolFailure(
            f"{shown!r} can't be written: {error.strerror}", code="invalid_path"
        ) from error
    if not stat.S_ISREG(info.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(info.st_mode) else "not a regular file"
        raise ToolFailure(f"{shown!r} is {kind} and is not replaced", code="not_a_file")
    if arguments.create_only:
        raise _exists_failure(shown)
    if arguments.expected_sha256 and _digest(
        folder, name
    ) != arguments.expected_sha256.removeprefix("sha256:"):
        raise ToolFailure(
            f"{shown!r} has changed since it was read",
            code="changed_meanwhile",
            advice="read it again",
        )
    return info


def _exists_failure(shown: str) -> ToolFailure:
    return ToolFailure(
        f"{shown!r} exists",
        code="exists",
        advice="give expected_sha256 to replace what you have read",
    )


def _digest(folder: int, name: str) -> str:
    descriptor = os.open(
        name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
    )
    with os.fdopen(descriptor, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_or_create(
    folder: int, name: str, content: bytes, before: os.stat_result | None
) -> None:
    """Write a file, with the mode of the one it replaces.

    If there was none, a file created meanwhile is kept.
    """
    temporary = f".{secrets.token_hex(8)}.bundle-router-new"
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode) & 0o777
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if before is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if before is None:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        else:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)


WRITE_FILE: Final = LocalTool(
    name="write_file",
    description=(
        "Create or replace a text file in the workspace. Give expected_sha256 of the version you"
        " read so that nobody's change is lost, or create_only for a new file."
    ),
    arguments=WriteFileArguments,
    run=write_file,
)
