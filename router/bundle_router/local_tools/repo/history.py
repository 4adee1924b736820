"""`repo.git_log` and `repo.git_diff`, over a view of the repository that can't run anything
(`local_tools.repo.gitview`).

Rules:
1. A revision is checked against a grammar, then git resolves it to a hash after `--end-of-options`;
   from there on only hashes are used.
2. Filters are plain values joined to their option (`--author=…`, fixed strings); paths are literal
   and come last.
3. Submodules are never entered: looking for changes in one would run git there, with its
   configuration.
4. A diff leaves out files in a hidden folder, and says so; a path in one is refused. Their content
   that was committed under another name is ordinary history.
5. So it leaves out files that hold credentials, of any revision: by their names, and those in whose
   patch a private key stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from pydantic import Field, field_validator, model_validator

from bundle_router.core.values import Frozen, Text, ToolContext, ToolOutput
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.confinement import Root, workspace
from bundle_router.local_tools.repo.gitrefs import is_revision
from bundle_router.local_tools.repo.gitview import GitView, repository
from bundle_router.local_tools.repo.hiding import holds_private_key, is_credential_file
from bundle_router.local_tools.repo.refusals import (
    count,
    hidden_failure,
    outside_failure,
    show_name,
)

_DATE: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z :.,+/-]{0,63}")
_MAX_COPIED: Final = 5_000
"""Maximum files whose content is compared with the working tree: their names are arguments."""
_MAX_NAMES: Final = 200_000
_NAME_BYTES: Final = 200
"""Mean bytes of a name, for the bound on what git may list."""
_REVISION_HELP: Final = "a branch, tag or hash, with ~n or ^n"


def _checked_revision(value: str | None) -> str | None:
    if value is not None and not is_revision(value):
        raise ValueError(f"{value!r} is not a revision: give {_REVISION_HELP}")
    return value


class GitLog(Frozen):
    """Arguments of `git_log`."""

    path: str | None = Field(
        default=None, max_length=4096, description="Only commits that touch this file or folder."
    )
    revision: str = Field(
        default="HEAD", description=f"Where to start: {_REVISION_HELP}; or 'a..b' for a range."
    )
    max_count: int = Field(default=20, ge=1, le=500, description="Most commits to return.")
    skip: int = Field(default=0, ge=0, le=1_000_000, description="Commits to skip, to read on.")
    since: str | None = Field(
        default=None, description="Not older than, e.g. '2026-01-31' or '2 weeks ago'."
    )
    until: str | None = Field(default=None, description="Not newer than.")
    author: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Part of the author's name or e-mail (plain text).",
    )

    @field_validator("revision")
    @classmethod
    def _revision(cls, value: str) -> str:
        for side in value.split("..") if ".." in value else [value]:
            _checked_revision(side)
        if value.count("..") > 1 or "..." in value:
            raise ValueError(f"{value!r} is not a range: give 'a..b'")
        return value

    @field_validator("since", "until")
    @classmethod
    def _date(cls, value: str | None) -> str | None:
        if value is not None and not _DATE.fullmatch(value):
            raise ValueError(f"{value!r} is not a date: give '2026-01-31' or '2 weeks ago'")
        return value

    @field_validator("author")
    @classmethod
    def _author(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("author must be plain printable text")
        return value


class GitDiff(Frozen):
    """Arguments of `git_diff`.

    Without revisions: working tree against index or, if staged, index against HEAD.
    """

    path: str | None = Field(default=None, max_length=4096, description="Only this file or folder.")
    staged: bool = Field(
        default=False, description="What is staged, against HEAD (or against base)."
    )
    base: str | None = Field(
        default=None, description=f"Compare from this revision: {_REVISION_HELP}."
    )
    target: str | None = Field(default=None, description="Compare to this revision (needs base).")
    stat: bool = Field(
        default=False, description="Only the list of files and how many lines changed."
    )
    context: int = Field(default=3, ge=0, le=50, description="Unchanged lines round each change.")

    _revisions = field_validator("base", "target")(_checked_revision)

    @model_validator(mode="after")
    def _check_target(self) -> GitDiff:
        if self.target is not None and (self.base is None or self.staged):
            raise ValueError("target needs base, and does not go with staged")
        return self


# --- log ------------------------------------------------------------------------------------------

_LOG: Final = (
    *(
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--no-show-signature",
        "--no-mailmap",
        "--no-notes",
    ),
    *(
        "--no-follow",
        "--decorate=short",
        "--encoding=UTF-8",
        "--date=iso-strict",
        "--fixed-strings",
    ),
    "--regexp-ignore-case",
)
_COMMIT: Final = "--format=%x00%h%x1f%ad%x1f%an <%ae>%x1f%D%x1f%s"


def git_log(arguments: GitLog, context: ToolContext, *, confined: bool = True) -> ToolOutput:
    """Run `repo.git_log`."""
    with workspace(context) as root, repository(root, context, confined=confined) as view:
        out, cut, _ = view.run(
            "log",
            *_LOG,
            f"--max-count={arguments.max_count + 1}",
            f"--skip={arguments.skip}",
            *(
                f"--{name}={value}"
                for name in ("since", "until", "author")
                if (value := getattr(arguments, name))
            ),
            _COMMIT,
            "--end-of-options",
            "..".join(_commit(view, side) for side in arguments.revision.split("..")),
            "--",
            *_checked_path(root, arguments.path),
            max_bytes=context.max_bytes,
        )
    commits = [item.rstrip("\n") for item in out.decode("utf-8", "replace").split("\0") if item]
    return ToolOutput((Text(_log_text(arguments, commits, cut)),))


def _log_text(arguments: GitLog, commits: list[str], cut: bool) -> str:
    most = arguments.max_count
    has_more = cut or len(commits) > most
    if cut and len(commits) <= most:
        most -= 1  # the last one may be half a commit
    page = commits[:most]
    about_path = f" touching {show_name(arguments.path)}" if arguments.path else ""
    if not page:
        return f"No commits{about_path} match."
    head = f"{count(len(page), 'commit')}{about_path}, newest first"
    if has_more:
        head += f"; there are more: skip={arguments.skip + len(page)} reads on."
    else:
        head += "; that is all."
    return "\n".join([head, *map(_commit_text, page)])


def _commit_text(item: str) -> str:
    hash_, date, author, names, subject = (item.split("\x1f", 4) + [""] * 4)[:5]
    return f"{hash_} {date} {author}{f' ({names})' if names else ''}\n    {subject}"


# --- diff -----------------------------------------------------------------------------------------


def git_diff(arguments: GitDiff, context: ToolContext, *, confined: bool = True) -> ToolOutput:
    """Run `repo.git_diff`."""
    with workspace(context) as root, repository(root, context, confined=confined) as view:
        sides = [
            _commit(view, side) for side in (arguments.base, arguments.target) if side is not None
        ]
        reads_files = not arguments.staged and arguments.target is None
        hides_credentials = root.credentials == "hide"
        flags = _diff_flags(arguments, sides, reads_files=reads_files)
        paths = _checked_path(root, arguments.path) or ["."]

        withheld: list[str] = []
        if reads_files or root.hidden.identities or hides_credentials:
            names = _names(view, [*flags, *paths], _MAX_COPIED if reads_files else _MAX_NAMES)
            folders = set(_hidden_folders(root, names))
            if hides_credentials:
                withheld = [name for name in names if is_credential_file(f"{root.path}/{name}")]
            paths += [f":(exclude,literal){place}" for place in sorted({*folders, *withheld})]
            if reads_files:
                hidden = {name for name in names if folders.intersection(_folders_of(name))}
                names = [name for name in names if name not in {*hidden, *withheld}]
                view, names_shown = view.copied(names)
                paths = [f":(literal){name}" for name in names_shown]
                withheld += set(names).difference(names_shown)

        out = b""
        cut = False
        if paths:
            form = ["--stat=120"]
            if not arguments.stat:
                form += ["--patch", f"--unified={arguments.context}"]
            most = max(0, context.max_bytes - 500)
            out, cut, _ = view.run("diff", *_DIFF, *form, *flags, *paths, max_bytes=most)
        if hides_credentials:
            out, keys = _without_keys(out)
            withheld += keys

        note = root.hidden.note()
        if withheld:
            note += f" {count(len(withheld), 'file')} with credentials left out."
    texts = _diff_text(arguments, out, cut, context.max_bytes, note)
    return ToolOutput(tuple(Text(text) for text in texts))


def _diff_flags(arguments: GitDiff, sides: Sequence[str], *, reads_files: bool) -> list[str]:
    flags = []
    if arguments.staged:
        flags.append("--cached")
    # In the working tree "all" keeps git out of submodules; between commits it enters none.
    flags.append(f"--ignore-submodules={'all' if reads_files else 'dirty'}")
    return [*flags, "--end-of-options", *sides, "--"]


_DIFF: Final = (
    *["--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short"],
    *["--src-prefix=a/", "--dst-prefix=b/", "--find-renames", "-l400"],
)


def _diff_text(arguments: GitDiff, out: bytes, cut: bool, max_bytes: int, note: str) -> list[str]:
    new_side = arguments.target or ("the index" if arguments.staged else "the working tree")
    old_side = arguments.base or ("HEAD" if arguments.staged else "the index")
    about_path = f" in {show_name(arguments.path)}" if arguments.path else ""
    head = f"Changes from {old_side} to {new_side}{about_path}"
    if not out:
        if new_side == "the working tree":
            untracked = " Untracked files are not part of a diff."
        else:
            untracked = ""
        return [f"{head}: none.{untracked}{note}"]
    text = out.decode("utf-8", "replace")
    if cut:
        head += f", cut at {max_bytes:,} bytes: name a path, or ask for stat"
    return [f"{head}.{note}", text]


def _without_keys(out: bytes) -> tuple[bytes, list[str]]:
    """Return a patch without the parts of files in which it shows a private key, and their
    heads.
    """
    head, *parts = re.split(rb"^(?=diff --git )", out, flags=re.MULTILINE)
    shown = [head]
    withheld = []
    for part in parts:
        if holds_private_key(part):
            withheld.append(part.partition(b"\n")[0].decode("utf-8", "replace"))
        else:
            shown.append(part)
    return b"".join(shown), withheld


def _names(view: GitView, scope: list[str], most: int) -> list[str]:
    """Return every path that a diff would show, with both names of renamed files."""
    names, cut, _ = view.run(
        "diff", *_DIFF, "--no-renames", "--name-only", "-z", *scope, max_bytes=most * _NAME_BYTES
    )
    listed = [name for name in names.decode("utf-8", "surrogateescape").split("\0") if name]
    if cut or len(listed) > most:
        raise ToolFailure(
            "too many files differ to compare them all", code="too_large", advice="name a path"
        )
    return listed


# --- what both share ------------------------------------------------------------------------------


def _commit(view: GitView, revision: str) -> str:
    """Return the full hash of a commit. Raises ToolFailure `unknown_revision`."""
    try:
        out, _, _ = view.run(
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            f"{revision}^{{commit}}",
            max_bytes=1000,
        )
    except ToolFailure as failure:
        if failure.code != "git_failed":
            raise
        raise ToolFailure(
            f"there is no revision {revision!r} in this repository",
            code="unknown_revision",
            advice=f"give {_REVISION_HELP}; git_log lists commits",
        ) from failure
    return out.decode("ascii").strip()


# --- which paths git is asked about ---------------------------------------------------------------
#
# git and its history know paths only as text; only the disk knows folders. So the names of a diff
# are looked up as folders, beneath the root, before git is asked for their content.


def _checked_path(root: Root, path: str | None) -> list[str]:
    """Return the path, checked as text too: the file may have been deleted, so nothing could be
    opened.
    """
    if path is None:
        return []
    relative = root.relative(path)
    if ".." in relative.split("/"):
        raise outside_failure(path)
    if root.is_hidden(relative):
        raise hidden_failure(path)
    return [f":(literal){relative}"]


def _hidden_folders(root: Root, names: Iterable[str]) -> Iterator[str]:
    """Yield every hidden folder that one of these paths goes through."""
    is_hidden = cache(root.is_hidden)
    for name in names:
        yield from islice(filter(is_hidden, _folders_of(name)), 1)


def _folders_of(name: str) -> Iterator[str]:
    """Yield the folders above a file, the outermost first."""
    return map(str, reversed(PurePosixPath(name).parents[:-1]))
