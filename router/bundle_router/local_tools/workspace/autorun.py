"""Files that programs outside the sandbox run by themselves, by name: no tool changes them.

The criterion is *unasked*. Files that run because somebody entered or opened the folder, committed,
logged in or started an interpreter are protected: nobody reads them first. Files that run because
somebody builds, tests or installs the project are ordinary content: agents may edit them and people
review them. `router/docs/security/protected-files.md` has both tables.

`write_file` checks the names at any depth, `exec` at the top of the step's folder.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bundle_router.local_tools.repo.hiding import plain

PROTECTED: Final = (
    ((".git",), "git: hooks, and commands named in config (fsmonitor, pager, filters, ssh)"),
    (
        ("HEAD",),
        (
            "git: a folder with a file of this name, `objects` and `refs` is a repository, whose"
            " `config` counts"
        ),
    ),
    ((".hg", ".svn", ".jj"), "Mercurial, Subversion, Jujutsu: hooks and config"),
    (
        (".husky", ".githooks", "lefthook.yml", ".lefthook.yml", "lefthook-local.yml"),
        "git, at each commit, as hooks",
    ),
    (
        (".lefthook", ".lefthook-local", ".git-hooks", ".overcommit.yml"),
        "lefthook and overcommit, so",
    ),
    (
        (".pre-commit-config.yaml", ".pre-commit-config.yml", "prek.toml"),
        "pre-commit and prek, at each commit",
    ),
    (
        (".envrc", ".config/direnv", ".shadowenv.d", ".rtx.toml"),
        "direnv, shadowenv, rtx, on entering",
    ),
    (
        (
            "mise.toml",
            ".mise.toml",
            ".mise",
            "mise/config.toml",
            ".config/mise",
            ".config/mise.toml",
        ),
        "mise",
    ),
    (
        (".venv", "venv", ".conda", ".pixi"),
        "Python, and shells and editors that activate an environment they find",
    ),
    (
        (".vscode", ".idea", ".zed", ".fleet", ".devcontainer", ".devcontainer.json"),
        "editors: tasks, settings",
    ),
    (
        (".helix", ".nova", ".theia", ".vs", ".externalToolBuilders", ".gitpod.yml"),
        "editors: language servers, tasks",
    ),
    (
        (
            ".bsp",
            ".idx",
            ".replit",
            ".codesandbox",
            ".stackblitzrc",
            "devfile.yaml",
            ".devfile.yaml",
        ),
        "so, on opening",
    ),
    (
        (".exrc", ".vimrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".dir-locals.el"),
        "vim, Neovim and Emacs, on opening",
    ),
    (
        (".claude", ".mcp.json", ".cursor", ".codex", ".gemini", ".windsurf", ".roo", ".continue"),
        "agents: hooks",
    ),
    (
        (
            "opencode.json",
            "opencode.jsonc",
            ".opencode",
            "crush.json",
            ".crush.json",
            ".qwen",
            ".kiro",
        ),
        "agents: MCP",
    ),
    (
        (
            ".amazonq",
            ".clinerules/hooks",
            ".aider.conf.yml",
            ".factory",
            ".github/hooks",
            ".junie",
            ".trae",
        ),
        "agents",
    ),
    ((".kilocode", ".openhands", ".tabnine", ".grok", ".iflow", ".pi"), "agents: MCP, extensions"),
    (
        (".pdbrc", ".gdbinit", ".lldbinit", ".perldb", ".Rprofile", ".RData", ".octaverc"),
        "debuggers, R, Octave",
    ),
    ((".Renviron", ".dir-locals-2.el"), "R and Emacs"),
    (
        (".irbrc", ".pryrc", ".iex.exs", ".ghci", ".ocamlinit", ".erlang"),
        "interpreters that are typed to, at start",
    ),
    (
        (".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".inputrc"),
        "bash and sh",
    ),
    (
        (
            ".bash_aliases",
            ".cshrc",
            ".tcshrc",
            ".login",
            ".xprofile",
            ".xinitrc",
            ".xsession",
            ".xsessionrc",
        ),
        "logins",
    ),
    ((".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".config/fish"), "zsh and fish"),
    ((".gitconfig", ".config/git", ".ssh", ".gnupg"), "git, ssh and GnuPG, in a home folder"),
    (
        (".config/autostart", ".config/systemd", ".config/nvim", ".local/bin", ".local/lib"),
        "a login session",
    ),
    (
        (".emacs", ".emacs.d", ".vim", ".tmux.conf", ".screenrc", ".psqlrc", ".sqliterc"),
        "their programs, at start",
    ),
    (
        (".pyenv", ".rbenv", ".nvm", ".asdf", ".sdkman", ".bun", ".cargo/bin", ".rustup"),
        "shells, by `PATH`",
    ),
    (
        (
            ".cargo/env",
            ".bash_completion",
            ".forward",
            ".config/environment.d",
            ".local/share/systemd",
        ),
        "logins, mail",
    ),
    (
        ("sitecustomize.py", "usercustomize.py"),
        "Python, at each start with this folder on its path",
    ),
)
"""Paths, and the programs that run them."""

NAMES: Final = tuple(name for names, _ in PROTECTED for name in names)
_PARTS: Final = frozenset(tuple(name.casefold().split("/")) for name in NAMES if name != "HEAD")
_SPECIAL: Final = re.compile(
    r".+\.code-workspace|.+\.sublime-project|\.?mise\.[\w.-]+\.toml|\.?lefthook(-local)?\.\w+"
)
_RUN_BY_GIT: Final = re.compile(
    r"(?im)^\s*(hookspath|path|fsmonitor|clean|smudge|process|textconv|driver|command|external|pager|editor|sshcommand"
    r"|helper|program)\s*=(.+)"
)
ENVIRONMENT_MARKERS: Final = ("pyvenv.cfg", "conda-meta")
"""A folder with one of these is an environment, whatever its name."""


def reached(top: str) -> Iterator[str]:
    """Yield the real paths in the folder `top` that protected ones lead to: targets of links in
    them, and what git's config names (a folder of hooks and an included file, existing or not; a
    script of a filter).
    """
    for name in NAMES:
        yield from _link_targets(top, f"{top}/{name}")
        yield from _link_targets(top, f"{top}/{name}/hooks")
    try:
        with Path(top, ".git", "config").open(encoding="utf-8", errors="replace") as file:
            config = file.read(1 << 20)
    except OSError:
        return
    for key, value in _RUN_BY_GIT.findall(config):
        may_be_made = key.casefold().endswith("path")
        for path in _inside(top, _paths_in(top, value)):
            if may_be_made or os.path.lexists(path):
                yield path


def _link_targets(top: str, folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        yield from _inside(top, (entry.path for entry in entries if entry.is_symlink()))


def _paths_in(top: str, value: str) -> Iterator[str]:
    """Yield what the words of a value of git's config may mean as paths."""
    for word in re.findall(r"[^\s\"';|&]+", value):
        yield f"{top}/./{word}"
        yield f"{top}/.git/{word}"


def _inside(top: str, paths: Iterable[str]) -> Iterator[str]:
    for path in map(os.path.realpath, paths):
        if path.startswith(f"{top}/"):
            yield path


def autorun_part(parts: Sequence[str], *, is_file: bool = False) -> str:
    """Return the first part of a relative path that outside programs run by themselves; empty if
    there is none.

    Some file systems treat `.GIT`, `.git.` and `.git ` as `.git`, so they all count.
    """
    names = [plain(part) for part in parts]
    for index, part in enumerate(names):
        if part in ENVIRONMENT_MARKERS or _SPECIAL.fullmatch(part):
            return parts[index]
        if any(tuple(names[index : index + length]) in _PARTS for length in (1, 2, 3)):
            return parts[index]
    if is_file and names[-1:] == ["head"]:
        return "HEAD"
    return ""
