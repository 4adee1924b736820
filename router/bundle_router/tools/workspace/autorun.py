"""What programs outside the sandbox run by themselves, by name: no tool changes it.

The line is *unasked*. What runs because somebody entered or opened the folder, committed, logged in or started an
interpreter is protected: nobody reads it first. What runs because somebody builds, tests or installs the project is
ordinary content, which agents are there to edit and people review as code. `.github/SECURITY.md` shows both tables.

`write_file` knows the names at any depth, `exec` at the top of the folder a step works in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

PROTECTED: Final = (
    ((".git",), "git: hooks, and commands named in config (fsmonitor, pager, filters, ssh)"),
    ((".hg", ".svn", ".jj"), "Mercurial, Subversion, Jujutsu: hooks and config"),
    ((".husky", ".githooks", "lefthook.yml", ".lefthook.yml", "lefthook-local.yml"), "git, at each commit, as hooks"),
    ((".pre-commit-config.yaml",), "pre-commit, at each commit"),
    ((".envrc", "mise.toml", ".mise.toml", ".mise", ".config/mise", ".config/direnv"), "direnv and mise, on entering"),
    ((".venv", "venv", ".conda", ".pixi"), "Python, and shells and editors that activate an environment they find"),
    ((".vscode", ".idea", ".zed", ".fleet", ".devcontainer", ".devcontainer.json"), "editors: tasks, settings"),
    ((".exrc", ".vimrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".dir-locals.el"), "vim, Neovim and Emacs, on opening"),
    ((".claude", ".mcp.json", ".cursor", ".codex", ".gemini", ".windsurf", ".roo", ".continue"), "agents: hooks"),
    ((".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".inputrc"), "bash and sh"),
    ((".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".config/fish"), "zsh and fish"),
    ((".gitconfig", ".config/git", ".ssh", ".gnupg"), "git, ssh and GnuPG, in a home folder"),
    ((".config/autostart", ".config/systemd", ".config/nvim", ".local/bin", ".local/lib"), "a login session"),
    (("sitecustomize.py", "usercustomize.py"), "Python, at each start with this folder on its path"),
)
"""(paths, who runs them)."""

ORDINARY: Final = (
    (("Makefile", "justfile", "Taskfile.yml", "CMakeLists.txt"), "build tools, when somebody builds"),
    (("package.json", ".npmrc", ".yarnrc.yml", ".pnpmfile.cjs", "node_modules"), "npm, yarn, pnpm, when asked"),
    (("pyproject.toml", "setup.py", "conftest.py", "noxfile.py", "tox.ini"), "build and test tools, when asked"),
    (("Cargo.toml", "build.rs", ".cargo/config.toml"), "cargo, when asked (and rust-analyzer when it is opened)"),
    (("Dockerfile", "docker-compose.yml", ".github/workflows", ".gitlab-ci.yml"), "containers and CI, after a push"),
    (("CLAUDE.md", "AGENTS.md", ".env", ".tool-versions", ".python-version", ".nvmrc"), "read as text or values"),
)
"""(paths, who runs them): agents may change these."""

NAMES: Final = tuple(name for names, _ in PROTECTED for name in names)
_PARTS: Final = frozenset(tuple(name.split("/")) for name in NAMES)
_SPECIAL: Final = re.compile(r".+\.code-workspace|.+\.sublime-project")
ENVIRONMENT_MARKERS: Final = ("pyvenv.cfg", "conda-meta")
"""A folder that holds one of these is an environment, whatever it is called."""


def autorun_part(parts: Sequence[str]) -> str:
    """Return the first part of a relative path that outside programs run by themselves; empty if there is none.

    Some file systems take `.GIT`, `.git.` and `.git ` for `.git`, so they all count.
    """
    plain = [part.casefold().rstrip(". ") for part in parts]
    for at, part in enumerate(plain):
        named = (part,) in _PARTS or tuple(plain[at : at + 2]) in _PARTS
        if named or part in ENVIRONMENT_MARKERS or _SPECIAL.fullmatch(part):
            return parts[at]
    return ""
