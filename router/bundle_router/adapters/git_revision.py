"""Reads a folder from a git revision with the `git` program."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bundle_router.adapters.processes.starting import Command, run_to_end
from bundle_router.errors import RequestError

_TIMEOUT_S: Final = 60
_MAX_BYTES: Final = 256 << 20


def extract_revision(revision: str, folders: Sequence[str], target: Path) -> None:
    """Write those of the folders (relative to the current one) that the revision contains below
    `target`.

    Links are not written. Raises RequestError if git is not available, or the revision does not
    exist.
    """
    if revision.startswith("-"):
        raise RequestError(f"{revision!r} is not a git revision")
    listed = _git("ls-tree", "--name-only", "-z", revision, "--", *folders).decode(
        "utf-8", "surrogateescape"
    )
    present = [name for name in listed.split("\0") if name]
    if not present:
        return
    data = _git("archive", "--format=tar", revision, "--", *present)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        # Only regular files. tarfile's filters would do this, but need Python 3.11.4.
        for member in archive:
            if (
                member.isfile()
                and ".." not in Path(member.name).parts
                and not Path(member.name).is_absolute()
            ):
                archive.extract(member, target, set_attrs=False)


def _git(*words: str) -> bytes:
    program = shutil.which("git")
    if program is None:
        raise RequestError("git is not installed", advice="compare two folders")
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    command = Command((str(Path(program).absolute()), *words), env, cwd=str(Path.cwd()))
    try:
        done = run_to_end(command, timeout_s=_TIMEOUT_S, max_bytes=_MAX_BYTES)
    except TimeoutError:
        raise RequestError(f"git took longer than {_TIMEOUT_S} s") from None
    if done.is_cut:
        raise RequestError(f"git {words[0]} says more than {_MAX_BYTES:,} bytes")
    if done.status:
        stderr = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = stderr[0].removeprefix("fatal: ") if stderr else "failed"
        raise RequestError(
            f"no such folder, and git has no such revision: {why}",
            advice="e.g. main, or with a folder: main:config",
        )
    return done.stdout
