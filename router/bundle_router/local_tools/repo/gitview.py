"""A view of the workspace's repository without its configuration, for `git log` and `git diff`.

Rules:
1. git never reads the repository's own configuration, hooks, attributes file, replace refs or
   alternates. It uses a private folder made for this one call, with a `config` that we wrote. So no
   setting that names a command (fsmonitor, pager, textconv, external diff, filters, ssh, includes
   …) can run, including unknown ones.
2. What git needs is copied there through the confinement: HEAD, refs and shallow roots after
   checking their form, the index with its time stamp. From the repository's config only a closed
   set of harmless values is copied.
3. Objects are reached by links to the fan-out folders and `pack`, never by `info`: git sees no
   alternates. A repository that borrows objects, or with parts outside the workspace, is refused
   with the reason.
4. Nothing is written to the workspace, not even a refreshed index.
5. Files of the working tree whose content is shown are copied through the confinement too: git
   opens them by name, and a name may be swapped for a link at any moment. Of the tree itself git
   sees only names.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from bundle_router.adapters.private_folders import private_folder
from bundle_router.adapters.processes.starting import Command, find_binary
from bundle_router.core.values import ToolContext, shorten
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.children import Child, ConfinedCommand, output_of
from bundle_router.local_tools.repo.confinement import Root, read_up_to
from bundle_router.local_tools.repo.gitrefs import collect_refs, parse_head

_MAX_CONFIG_BYTES: Final = 1024 * 1024
_MAX_COPIED_BYTES: Final = 256 * 1024 * 1024
_MAX_INDEX_BYTES: Final = 512 * 1024 * 1024
_FAN_OUT: Final = re.compile(r"[0-9a-f]{2}|pack")
_MAX_OBJECT_FILES: Final = 1_000_000

_BOOLEAN: Final = ("true", "false", "yes", "no", "on", "off", "1", "0")
_CARRIED: Final = {
    "core.autocrlf": (*_BOOLEAN, "input"),
    "core.eol": ("lf", "crlf", "native"),
    "core.filemode": _BOOLEAN,
    "core.ignorecase": _BOOLEAN,
    "core.symlinks": _BOOLEAN,
    "core.precomposeunicode": _BOOLEAN,
    "extensions.objectformat": ("sha1", "sha256"),
}
"""Settings of the repository that only change how files compare, with their permitted values."""

_OWN_CONFIG: Final = """\
[core]
    bare = false
    fsmonitor = false
    untrackedCache = false
    hooksPath = /dev/null
    attributesFile = /dev/null
    excludesFile = /dev/null
    pager = cat
    quotePath = false
    bigFileThreshold = 8m
    packedGitLimit = 1g
    preloadIndex = false
[protocol]
    allow = never
[submodule]
    recurse = false
[log]
    showSignature = false
    mailmap = false
[gc]
    auto = 0
[maintenance]
    auto = false
"""


_ENVIRONMENT: Final = {
    "GIT_WORK_TREE": ".",
    **dict.fromkeys(("GIT_CONFIG_SYSTEM", "GIT_CONFIG_GLOBAL"), os.devnull),
    **dict.fromkeys(
        ("GIT_CONFIG_NOSYSTEM", "GIT_ATTR_NOSYSTEM", "GIT_NO_REPLACE_OBJECTS", "GIT_NO_LAZY_FETCH"),
        "1",
    ),
    **dict.fromkeys(("GIT_OPTIONAL_LOCKS", "GIT_TERMINAL_PROMPT"), "0"),
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}


@dataclass(frozen=True, slots=True)
class GitView:
    """A private git folder for the workspace's repository. `run` starts git on it."""

    binary: str
    folder: str
    root: Root
    context: ToolContext
    confined: bool = True
    tree: str = ""
    """The working tree, if it is not the workspace itself."""

    def copied(self, names: Sequence[str]) -> tuple[GitView, list[str]]:
        """Return a view over copies of these files, and the names of those that may be shown."""
        tree = Path(self.folder) / "tree"
        tree.mkdir()
        return replace(self, tree=str(tree)), _copy_files(self.root, names, tree)

    def submodules(self) -> list[str]:
        """Return the folders that `.gitmodules` says are submodules."""
        if self.root.entry(".gitmodules") is None:
            return []
        copy = Path(self.folder) / "gitmodules"
        copy.write_bytes(self.root.read(".gitmodules", max_bytes=_MAX_CONFIG_BYTES))
        listed, _, _ = self.run(
            *("config", "--file", str(copy), "--no-includes", "--null"),
            *("--get-regexp", r"^submodule\..*\.path$"),
            max_bytes=_MAX_CONFIG_BYTES,
            succeeds_with=(0, 1),  # 1: it names none
        )
        items = listed.decode("utf-8", "surrogateescape").split("\0")
        return [item.partition("\n")[2] for item in items if item]

    def run(
        self, *arguments: str, max_bytes: int, succeeds_with: tuple[int, ...] = (0,)
    ) -> tuple[bytes, bool, Child]:
        """Return git's standard output, whether it was cut, and the child.

        Raises ToolFailure if git ends with a status that is none of `succeeds_with`.
        """
        nothing = dict.fromkeys(
            ("GIT_EXEC_PATH", "HOME", "XDG_CONFIG_HOME", "PATH"), f"{self.folder}/nothing"
        )
        command = Command(
            argv=(self.binary, "--no-pager", "--no-replace-objects", *arguments),
            cwd=self.tree or self.root.place,
            env=_ENVIRONMENT | nothing | {"GIT_DIR": self.folder},
            inherited=(self.root.fd,),
        )
        confined = ConfinedCommand(command, (self.root.fd, self.folder), self.confined)
        out, cut, child = output_of(confined, self.context, max_bytes=max_bytes)
        if not cut and child.code not in succeeds_with:
            raise _git_failure(child)
        return out, cut, child


@contextmanager
def repository(root: Root, context: ToolContext, *, confined: bool = True) -> Iterator[GitView]:
    """Yield the repository at the top of the workspace.

    Raises ToolFailure `no_repository`, `repository_refused`, …
    """
    binary = find_binary("git", outside=root.top)
    if binary is None:
        raise ToolFailure(
            "git is not installed here",
            code="unavailable",
            advice="install git, or read files instead",
        )
    git_dir, common_dir = _locate(root)
    _check_objects(root, common_dir)
    with private_folder("bundle-router-git-") as folder:
        view = GitView(binary, folder, root, context, confined)
        _write_view(root, git_dir, common_dir, Path(folder))
        _carry_config(root, common_dir, view)
        yield view


# --- where its parts are --------------------------------------------------------------------------


def _refused_failure(why: str) -> ToolFailure:
    return ToolFailure(
        f"this git repository is not read: {why}",
        code="repository_refused",
        advice="use a repository that is complete inside the workspace, e.g. a plain clone of it",
    )


def _locate(root: Root) -> tuple[str, str]:
    """Return the folder of HEAD and the index, and the folder of objects and refs, which worktrees
    share.
    """
    entry = root.entry(".git")
    if entry is None:
        raise ToolFailure(
            "the workspace is not the top of a git repository (it has no .git)",
            code="no_repository",
            advice="history is only available where the workspace is a repository",
        )
    git_dir = ".git"
    if entry.kind == "file":
        text = _read_small(root, ".git")
        if not text.startswith("gitdir: "):
            raise _refused_failure("its .git file does not say where the repository is")
        git_dir = _folder_inside(root, "", text.removeprefix("gitdir: ").strip(), "its .git file")
    common_dir = git_dir
    if root.entry(f"{git_dir}/commondir") is not None:
        target = _read_small(root, f"{git_dir}/commondir").strip()
        common_dir = _folder_inside(root, git_dir, target, "its commondir file")
    _check_folder(root, git_dir, ".git")
    _check_folder(root, f"{common_dir}/objects", "its objects folder")
    return git_dir, common_dir


def _folder_inside(root: Root, base: str, target: str, what: str) -> str:
    """Return the folder that a file of the repository points to, relative to the root; refused if
    it is outside.
    """
    try:
        path = root.relative(target if target.startswith("/") else f"{base}/{target}".lstrip("/"))
        root.scandir(path, limit=0)
    except ToolFailure as failure:
        raise _refused_failure(
            f"{what} points to {target!r}, which is not a folder inside the workspace"
        ) from failure
    return path


def _check_folder(root: Root, path: str, what: str) -> None:
    try:
        root.scandir(path, limit=0)
    except ToolFailure as failure:
        raise _refused_failure(f"{what} can't be used ({failure.message})") from failure


def _read_small(root: Root, path: str) -> str:
    return root.read(path, max_bytes=8192).decode("utf-8", "surrogateescape")


def _check_objects(root: Root, common_dir: str) -> None:
    """Refuse borrowed objects, and links (or, by the setting, hard links) in the object store."""
    for name in ("alternates", "http-alternates"):
        if root.entry(f"{common_dir}/objects/info/{name}") is not None:
            raise _refused_failure(
                f"it borrows objects of another repository (objects/info/{name})"
            )
    for folder in root.scandir(f"{common_dir}/objects", limit=1000):
        if folder.kind == "symlink":
            raise _refused_failure(f"objects/{folder.name} is a symlink")
        if folder.kind == "dir" and _FAN_OUT.fullmatch(folder.name):
            _check_object_files(root, common_dir, folder.name)


def _check_object_files(root: Root, common_dir: str, folder: str) -> None:
    for entry in root.scandir(f"{common_dir}/objects/{folder}", limit=_MAX_OBJECT_FILES):
        name = f"objects/{folder}/{entry.name}"
        if entry.kind == "symlink":
            raise _refused_failure(f"{name} is a symlink")
        is_hard_link = entry.kind == "file" and entry.links > 1
        if is_hard_link and root.hard_links == "refuse":
            raise _refused_failure(f"{name} is a hard link, and those are refused here")


# --- the private folder ---------------------------------------------------------------------------


def _write_view(root: Root, git_dir: str, common_dir: str, folder: Path) -> None:
    (folder / "config").write_text(_OWN_CONFIG, encoding="utf-8")
    (folder / "refs").mkdir()
    (folder / "objects").mkdir()
    for entry in root.scandir(f"{common_dir}/objects", limit=1000):
        if entry.kind == "dir" and _FAN_OUT.fullmatch(entry.name):
            (folder / "objects" / entry.name).symlink_to(
                f"{root.place}/{common_dir}/objects/{entry.name}"
            )
    (folder / "HEAD").write_text(parse_head(_read_small(root, f"{git_dir}/HEAD")), encoding="utf-8")
    (folder / "packed-refs").write_text(collect_refs(root, common_dir), encoding="utf-8")
    if root.entry(f"{common_dir}/shallow") is not None:
        lines = (
            root.read(f"{common_dir}/shallow", max_bytes=_MAX_CONFIG_BYTES)
            .decode("ascii", "replace")
            .split()
        )
        (folder / "shallow").write_text(
            "".join(f"{line}\n" for line in lines if re.fullmatch(r"[0-9a-f]{40,64}", line))
        )
    for entry in root.scandir(git_dir, limit=10_000):
        if entry.kind == "file" and (
            entry.name == "index" or re.fullmatch(r"sharedindex\.[0-9a-f]+", entry.name)
        ):
            _copy_index(root, f"{git_dir}/{entry.name}", folder / entry.name)


def _copy_files(root: Root, names: Sequence[str], tree: Path) -> list[str]:
    """Copy the files as git would find them, except those that may not be shown; return the copied
    names.
    """
    folders = {""} | {str(folder) for name in names for folder in PurePosixPath(name).parents[:-1]}
    plain = {folder for folder in folders if _is_plain(root, folder)}
    links: dict[Path, str] = {}
    withheld: set[str] = set()
    room = _MAX_COPIED_BYTES
    for name in [*(f"{folder}/.gitattributes".lstrip("/") for folder in folders), *names]:
        target = tree / name
        try:
            entry = root.entry(name) if name.rpartition("/")[0] in plain else None
            if entry is not None and entry.kind == "symlink":
                links[target] = entry.target
            elif entry is not None and entry.kind != "dir":
                with root.open_for_reader(name) as file:
                    info = os.fstat(file.fileno())
                    room -= info.st_size
                    if room < 0:
                        raise ToolFailure(
                            "the files that differ are too large",
                            code="too_large",
                            advice="name a path",
                        )
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(read_up_to(file, info.st_size))
                    target.chmod(0o700 if info.st_mode & 0o100 else 0o600)
        except ToolFailure as failure:
            if failure.code in ("hard_link", "not_a_file", "too_large"):
                raise
            if failure.code == "credentials":
                withheld.add(name)
    for target, text in links.items():  # links last, so that nothing is created through one
        if not any(parent in links for parent in target.parents):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(text)
    return [name for name in names if name not in withheld]


def _is_plain(root: Root, folder: str) -> bool:
    """Return whether the path goes through folders only: beyond a link git tracks nothing."""
    parts = PurePosixPath(folder).parts
    if not {"..", ".git", "/"}.isdisjoint(part.casefold() for part in parts):
        return False  # an index may say anything
    try:
        for length in range(1, len(parts) + 1):
            entry = root.entry("/".join(parts[:length]))
            if entry is None or entry.kind != "dir":
                return False
    except ToolFailure:
        return False
    return True


def _copy_index(root: Root, source: str, target: Path) -> None:
    """Copy with the time stamp, by which git tells which files may have changed since."""
    with root.open_file(source) as file, target.open("wb") as copy:
        info = os.fstat(file.fileno())
        if info.st_size > _MAX_INDEX_BYTES:
            raise _refused_failure(f"its index has {info.st_size:,} bytes")
        shutil.copyfileobj(file, copy)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


def _carry_config(root: Root, common_dir: str, view: GitView) -> None:
    """Copy the harmless settings of the repository's config, parsed by git itself, without
    includes.
    """
    if root.entry(f"{common_dir}/config") is None:
        return
    copy = Path(view.folder) / "theirs"
    copy.write_bytes(root.read(f"{common_dir}/config", max_bytes=_MAX_CONFIG_BYTES))
    try:
        listed, _, _ = view.run(
            "config",
            "--file",
            str(copy),
            "--no-includes",
            "--null",
            "--list",
            max_bytes=_MAX_CONFIG_BYTES,
        )
    except ToolFailure as failure:
        if failure.code in ("unavailable", "timeout", "cancelled"):
            raise
        raise _refused_failure("its config file can't be parsed") from failure
    finally:
        copy.unlink()
    items = (item.partition("\n") for item in listed.decode("utf-8", "replace").split("\0") if item)
    settings = {key: value or "true" for key, _, value in items}
    if settings.get("extensions.refstorage", "files") != "files":
        raise _refused_failure("it keeps its refs in a form other than files")
    lines = [
        _line(key, value)
        for key, value in settings.items()
        if value.lower() in _CARRIED.get(key, ())
    ]
    if "extensions.objectformat" in settings:
        lines.append(_line("core.repositoryformatversion", "1"))
    with (Path(view.folder) / "config").open("a", encoding="utf-8") as config:
        config.writelines(lines)


def _line(key: str, value: str) -> str:
    section, _, name = key.partition(".")
    return f"[{section}]\n    {name} = {value}\n"


_EXPLAINED: Final = {
    "does not have any commits yet": ("no_commits", "the repository has no commits yet"),
    "unknown revision": ("unknown_revision", "there is no such revision"),
    **dict.fromkeys(
        ("bad object", "unable to read", "Could not read"),
        ("missing_object", "an object is missing (a partial or damaged clone; nothing is fetched)"),
    ),
}


def _git_failure(child: Child) -> ToolFailure:
    words = " ".join(bytes(child.stderr).decode("utf-8", "replace").split())
    for sign, (code, message) in _EXPLAINED.items():
        if sign in words:
            return ToolFailure(message, code=code)
    return ToolFailure(
        f"git failed (status {child.code}): {shorten(words, 500)}", code="git_failed"
    )
