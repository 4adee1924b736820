"""`repo.git_log` and `repo.git_diff`, over a view of the repository that can't run anything
(`local_tools.repo.gitview`).

Rules:
1. A revision is checked against a grammar, then git resolves it to a hash after `--end-of-options`;
   from there on only hashes are used.
2. Filters are plain values joined to their option (`--author=…`, fixed strings); paths are literal
   and come last.
3. Submodules are never entered: looking for changes in one would run git there, with its
   configuration. They are named as not looked into, and a path in one is refused.
4. A diff leaves out files in a hidden folder, and says so; a path in one is refused. Their content
   that was committed under another name is ordinary history.
5. So it leaves out files that hold credentials, of any revision: by their names, and those in whose
   patch a private key stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from pydantic import Field, ValidationInfo, field_validator, model_validator

from bundle_router.core.values import Frozen, Text, ToolContext, ToolOutput
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.confinement import Root, workspace
from bundle_router.local_tools.repo.file_names import show_name, with_path_read
from bundle_router.local_tools.repo.gitrefs import is_revision
from bundle_router.local_tools.repo.gitview import GitView, repository
from bundle_router.local_tools.repo.hiding import holds_private_key, is_credential_file
from bundle_router.local_tools.repo.refusals import (
    count,
    hidden_failure,
    outside_failure,
)

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_AGO: Final = re.compile(
    r"(?:[0-9]{1,6} (?:second|minute|hour|day|week|month|year)s? ago|now|today|yesterday)"
)
_MAX_COPIED: Final = 5_000
"""Maximum files whose content is compared with the working tree: their names are arguments."""
_MAX_NAMES: Final = 200_000
_NAMED_SUBMODULES: Final = 5
_NAME_BYTES: Final = 200
"""Mean bytes of a name, for the bound on what git may list."""
_REVISION_HELP: Final = "a branch, tag or hash, with ~n or ^n"
_DATE_HELP: Final = "'2026-01-31', '2026-01-31T12:00:00+01:00' or '2 weeks ago'"


def _checked_revision(value: str | None) -> str | None:
    if value is not None and not is_revision(value):
        raise ValueError(f"{value!r} is not a revision: give {_REVISION_HELP}")
    return value


def _point_of_time(value: str, *, ends: bool) -> str:
    """Return a date as git is given it: one without a time is the whole day (UTC), of which
    `since` means the beginning and `until` the end. git itself would take the present time of day,
    and the present day for what it can't read.
    """
    if _AGO.fullmatch(value):
        return value
    try:
        point = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a date: give {_DATE_HELP}") from None
    if _DAY.fullmatch(value) and ends:
        point = point.replace(hour=23, minute=59, second=59)
    return (point if point.tzinfo is not None else point.replace(tzinfo=UTC)).isoformat()


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
        default=None, description=f"Not older than: {_DATE_HELP} (UTC; the day from its beginning)."
    )
    until: str | None = Field(default=None, description="Not newer than; a day counts to its end.")
    author: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Part of the author's name or e-mail (plain text).",
    )

    @field_validator("revision")
    @classmethod
    def _revision(cls, value: str) -> str:
        if value.count("..") > 1 or "..." in value:
            raise ValueError(f"{value!r} is not a range: give 'a..b', the commits of b not in a")
        for side in value.split("..") if ".." in value else [value]:
            _checked_revision(side)
        return value

    @field_validator("since")
    @classmethod
    def _since(cls, value: str | None) -> str | None:
        return None if value is None else _point_of_time(value, ends=False)

    @field_validator("until")
    @classmethod
    def _until(cls, value: str | None) -> str | None:
        return None if value is None else _point_of_time(value, ends=True)

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
        default=None,
        description=(
            f"Compare from this revision: {_REVISION_HELP}; or 'a...b' for what b changed since it"
            " left a, as a pull request shows it."
        ),
    )
    target: str | None = Field(default=None, description="Compare to this revision (needs base).")
    stat: bool = Field(
        default=False, description="Only the list of files and how many lines changed."
    )
    context: int = Field(default=3, ge=0, le=50, description="Unchanged lines round each change.")

    @field_validator("base", "target")
    @classmethod
    def _revision(cls, value: str | None, info: ValidationInfo) -> str | None:
        sides = [value]
        if value is not None and info.field_name == "base" and value.count("...") == 1:
            sides = [*value.split("...")]
        elif value is not None and ".." in value:
            raise ValueError(f"{value!r} is not a revision: give base='a...b', or base and target")
        for side in sides:
            _checked_revision(side)
        return value

    @model_validator(mode="after")
    def _check_target(self) -> GitDiff:
        base = self.base or ""
        names_other_side = self.target is not None or self.staged
        if "..." in base and names_other_side:
            raise ValueError(
                "base='a...b' names both sides; it goes with neither target nor staged"
            )
        if self.target is None:
            return self

        if self.base is None or self.staged:
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
    arguments = with_path_read(arguments)
    with workspace(context) as root, repository(root, context, confined=confined) as view:
        paths = _checked_path(root, arguments.path)
        _refuse_submodule(view, arguments.path)
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
            *paths,
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
    arguments = with_path_read(arguments)
    with workspace(context) as root, repository(root, context, confined=confined) as view:
        comparison = _compare(view, arguments)
        sides = comparison.commits
        reads_files = not arguments.staged and len(sides) < 2
        hides_credentials = root.credentials == "hide"
        flags = _diff_flags(arguments, sides, reads_files=reads_files)
        paths = _checked_path(root, arguments.path) or ["."]
        submodules = _refuse_submodule(view, arguments.path)

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
        if reads_files and submodules:
            note += f" Not looked into: {_list_submodules(submodules)}."
        note += comparison.note
    texts = _diff_text(arguments, comparison, out, cut, context.max_bytes, note)
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


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What a diff compares."""

    commits: tuple[str, ...]
    """The hashes of the commits: none, the old side, or both."""
    old_side: str
    """The old side, in words."""
    new_side: str
    """The new side, in words."""
    note: str = ""
    """What a reader of the diff might not expect of it; a sentence after a blank, or empty."""


def _compare(view: GitView, arguments: GitDiff) -> _Comparison:
    """Resolve what a diff compares. Raises ToolFailure `unknown_revision`."""
    base = arguments.base
    if base is None:
        if arguments.staged:
            return _Comparison((), "HEAD", "the index")
        return _Comparison((), "the index", "the working tree")
    if "..." in base:
        old, _, new = base.partition("...")
        commits = (_commit(view, old), _commit(view, new))
        merge_base = _merge_base(view, commits)
        if merge_base is None:
            raise ToolFailure(
                f"{old!r} and {new!r} have no commit in common",
                code="unknown_revision",
                advice="give base and target to compare the two as they are",
            )
        parted_at = f"{merge_base[:12]}, where {new} left {old},"
        return _Comparison((merge_base, commits[1]), parted_at, new)
    if arguments.target is None:
        new_side = "the index" if arguments.staged else "the working tree"
        return _Comparison((_commit(view, base),), base, new_side)
    commits = (_commit(view, base), _commit(view, arguments.target))
    note = ""
    if _merge_base(view, commits) not in (None, commits[0]):
        note = (
            f" What {base} got since they parted counts as taken back; base='{base}..."
            f"{arguments.target}' compares from their merge base."
        )
    return _Comparison(commits, base, arguments.target, note)


def _merge_base(view: GitView, commits: tuple[str, str]) -> str | None:
    """Return the best common ancestor of two commits; None if they have none."""
    out, _, _ = view.run("merge-base", *commits, max_bytes=1000, succeeds_with=(0, 1))
    return out.decode("ascii").strip() or None


def _diff_text(
    arguments: GitDiff,
    comparison: _Comparison,
    out: bytes,
    cut: bool,
    max_bytes: int,
    note: str,
) -> list[str]:
    new_side = comparison.new_side
    old_side = comparison.old_side
    about_path = f" in {show_name(arguments.path)}" if arguments.path else ""
    head = f"Changes from {old_side} to {new_side}{about_path}"
    if not out:
        if new_side == "the working tree":
            untracked = " Untracked files are not part of a diff."
        else:
            untracked = ""
        return [f"{head}: none.{untracked}{note}"]
    text = _show_names(out)
    if cut:
        head += f", cut at {max_bytes:,} bytes: name a path, or ask for stat"
    return [f"{head}.{note}", text]


def _show_names(out: bytes) -> str:
    """Return a diff as text, with the names of files in its heads as every tool shows them."""
    lines = []
    is_head = True  # the list of files, then the lines before the first change of each
    for line in out.split(b"\n"):
        if line.startswith(b"diff --git "):
            is_head = True
        elif line.startswith(b"@@ "):
            is_head = False
        lines.append(_show_head(line) if is_head else line.decode("utf-8", "replace"))
    return "\n".join(lines)


def _show_head(line: bytes) -> str:
    """Return a line of a head: a name that git quotes as C does, or writes in bytes that are not
    UTF-8, is shown by `show_name`.
    """
    parts = _QUOTED.split(line.removesuffix(b"\t"))  # git's end of a name with blanks
    for place, part in enumerate(parts):
        name = part
        if place % 2 == 1:
            name = _C_ESCAPE.sub(_unescape, part[1:-1])
        parts[place] = show_name(name.decode("utf-8", "surrogateescape")).encode()
    return b"".join(parts).decode()


def _unescape(escape: re.Match[bytes]) -> bytes:
    digits = escape[1]
    return _C_LETTERS.get(digits) or bytes([int(digits, 8)])


_QUOTED: Final = re.compile(rb'("(?:[^"\\]|\\.)*")')
_C_ESCAPE: Final = re.compile(rb"\\([0-7]{3}|.)")
_C_LETTERS: Final = {
    **{
        letter: bytes([code])
        for code, letter in zip(range(7, 14), b"a b t n v f r".split(), strict=True)
    },
    b'"': b'"',
    b"\\": b"\\",
}
"""What stands for what in a name that git quotes."""


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


def _refuse_submodule(view: GitView, path: str | None) -> list[str]:
    """Return the submodules of the repository. Raises ToolFailure for a path in one (rule 3)."""
    submodules = view.submodules()
    relative = "" if path is None else view.root.relative(path)
    for submodule in submodules:
        if relative == submodule or relative.startswith(f"{submodule}/"):
            raise ToolFailure(
                f"{show_name(relative)} is in the submodule {show_name(submodule)}, which is not"
                " looked into",
                code="in_submodule",
                advice="its files can be read; its history belongs to a repository of its own",
            )
    return submodules


def _list_submodules(submodules: Sequence[str]) -> str:
    """Return the submodules in words, the first few by name."""
    names = ", ".join(map(show_name, submodules[:_NAMED_SUBMODULES]))
    more = len(submodules) - _NAMED_SUBMODULES
    rest = f" and {more} more" if more > 0 else ""
    return f"{'submodule' if len(submodules) == 1 else 'submodules'} {names}{rest}"


def _hidden_folders(root: Root, names: Iterable[str]) -> Iterator[str]:
    """Yield every hidden folder that one of these paths goes through."""
    is_hidden = cache(root.is_hidden)
    for name in names:
        yield from islice(filter(is_hidden, _folders_of(name)), 1)


def _folders_of(name: str) -> Iterator[str]:
    """Yield the folders above a file, the outermost first."""
    return map(str, reversed(PurePosixPath(name).parents[:-1]))
