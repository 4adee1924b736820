"""Runs a page of the documentation as its reader does: writes its files, types its commands.

A page is read from the top. Its fenced blocks mean:

- `LANGUAGE title="PATH"`: the file is written. With `append`, the text is added at its end.
- `diff title="PATH"`: what its lines with `-` and without a sign say is replaced in the file.
- `console`: lines that begin with `$ ` are typed, and those below are what is printed. In these, `…`
  stands for any text within a line, and a line of nothing else for any number of lines.

All other blocks are left alone. A command has to succeed, unless the page goes on with `echo $?`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Final

from tests.command_line import CODE, Finished, run_any

FENCE: Final = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE: Final = re.compile(r'title="([^"]+)"')
ASSIGNED: Final = re.compile(r"([A-Z]+)=(.*)")
PATH: Final = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""Where programs are found: those of this environment first."""
SHELL: Final = re.compile(r"[|&;<>()`*]")
"""Characters by which a command is one for a shell."""


@dataclass
class Reader:
    """Somebody who follows a page in one folder."""

    folder: Path
    """Where files are written and commands are typed."""
    variables: dict[str, str] = field(default_factory=dict)
    """What `NAME=…` set."""
    status: int = 0
    """The exit status of the last command."""

    def follow(self, page: str) -> None:
        """Do what a page says, and check that it prints what the page shows."""
        for language, words, text in FENCE.findall(page):
            title = TITLE.search(words)
            if language == "console":
                self._type(text)
            elif title is not None:
                self._write(self.folder / title[1], language, text, append="append" in words)

    def _write(self, path: Path, language: str, text: str, *, append: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if language == "diff":
            text = _edited(path.read_text("utf-8"), text)
        elif append:
            text = path.read_text("utf-8") + "\n" + text
        path.write_text(text, encoding="utf-8")

    def _type(self, transcript: str) -> None:
        parts = re.split(r"^\$ (.*(?:(?<=\\)\n.*)*)\n", transcript, flags=re.MULTILINE)
        assert parts[0] == "", f"a transcript begins with a command: {parts[0]}"
        for command, expected in zip(parts[1::2], parts[2::2], strict=True):
            if command == "echo $?":
                assert f"{self.status}\n" == expected, command
                self.status = 0
                continue
            assert self.status == 0, f"the command before {command!r} ended with {self.status}"
            done = self._done(command.replace("\\\n", " "))
            self.status = done.returncode
            printed = done.stdout + done.stderr
            assert matches(expected, printed), f"$ {command}\n{printed}\n--- expected\n{expected}"
        assert self.status == 0, f"the last command ended with {self.status}: {printed}"

    def _done(self, command: str) -> Finished:
        assigned = ASSIGNED.fullmatch(command)
        if assigned is not None:
            done = self._by_a_shell(f"printf %s {assigned[2]}")
            self.variables[assigned[1]] = done.stdout
            return subprocess.CompletedProcess(command, done.returncode, "", done.stderr)
        if command.startswith("bundle-router ") and not SHELL.search(command.split(" '")[0]):
            words = shlex.split(Template(command).safe_substitute(self.variables))
            return run_any(self.folder, *words[1:], env={"PATH": PATH})
        return self._by_a_shell(command)

    def _by_a_shell(self, command: str) -> Finished:
        env = {
            **os.environ,
            **self.variables,
            "PATH": PATH,
            "PYTHONPATH": CODE,
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{who}_NAME": "Ann" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "ann@example.org" for who in ("AUTHOR", "COMMITTER")},
        }
        words = ["bash", "-c", command]
        return subprocess.run(
            words, cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )


def typed(page: str) -> list[str]:
    """Return the commands of a page's transcripts."""
    return [
        line.removeprefix("$ ")
        for language, _, text in FENCE.findall(page)
        if language == "console"
        for line in text.splitlines()
        if line.startswith("$ ")
    ]


def matches(expected: str, printed: str) -> bool:
    """Return whether what was printed is what the page shows."""
    lines = [
        r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"[ ]*\n"
        for line in expected.splitlines()
        if line.strip()
    ]
    text = "".join(f"{line}\n" for line in printed.splitlines() if line.strip())
    return re.fullmatch("".join(lines), text) is not None


def _edited(text: str, diff: str) -> str:
    """Return the text with one place replaced, which has to be the only one like it."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in "- ")
    after = "".join(line[1:] for line in lines if line[0] in "+ ")
    assert text.count(before) == 1, f"not once in the file: {before}"
    return text.replace(before, after)
