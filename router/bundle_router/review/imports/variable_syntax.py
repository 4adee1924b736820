"""What a reference in another program's settings means here.

| written there | by | here |
|---|---|---|
| `${NAME}`, `${env:NAME}`, `$NAME` | all, Cursor and VS Code, Gemini CLI | the variable |
| `${NAME:-text}` | Claude Code, Gemini CLI | the variable in values, the text elsewhere |
| `${workspaceFolder}`, `${CLAUDE_PROJECT_DIR}` | editors, Claude Code | `.`: servers start there |
| `${userHome}`, `${pathSeparator}`, `${/}` | editors | `${HOME}`, `/` |
| `${input:ID}`, `${user_config.KEY}` | VS Code, plugins | a variable to set |
| `${file:PATH}` | Windsurf | a variable to set |
| `${CLAUDE_PLUGIN_ROOT}`, `${extensionPath}` | plugins | nothing: the folder is not known |
| `${workspaceFolderBasename}`, `${command:ID}` | editors | nothing: only the editor knows |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

REFERENCE: Final = re.compile(r"\$\{([^{}]{1,300})\}|(?<![\w$])\$([A-Z_][A-Z0-9_]*)\b")
"""One reference: what stands in the braces, or the name that stands without any."""
HERE: Final = "."
"""The project's folder, as servers see it: the folder that they are started in."""
TAKEN_OUT: Final = "TAKEN-OUT"
"""What stands in place of a secret or a reference in an argument."""
_VARIABLE: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_HERE: Final = re.compile(
    r"(?:workspaceFolder|cwd)(?::.*)?|(?:CLAUDE_PROJECT_DIR|workspacePath)(?::-.*)?", re.DOTALL
)
_SEPARATORS: Final = ("/", "pathSeparator")
_ASKED: Final = re.compile(r"(?:input:|user_config\.)(.+)", re.DOTALL)
_FILE: Final = re.compile(r"file:(.+)", re.DOTALL)
_PLUGIN_FOLDERS: Final = frozenset(
    ("CLAUDE_PLUGIN_ROOT", "CLAUDE_PLUGIN_DATA", "CURSOR_PLUGIN_ROOT", "extensionPath", "__dirname")
)
_EDITOR_NAMES: Final = frozenset(
    (
        "columnNumber",
        "defaultBuildTask",
        "execPath",
        "extensionInstallFolder",
        "file",
        "fileBasename",
        "fileBasenameNoExtension",
        "fileDirname",
        "fileDirnameBasename",
        "fileExtname",
        "fileWorkspaceFolder",
        "lineNumber",
        "relativeFile",
        "relativeFileDirname",
        "selectedText",
        "workspaceFolderBasename",
        "workspaceRoot",
    )
)
_PLACEHOLDER: Final = re.compile(r"%[A-Za-z_]\w*%|\{\{[^{}]+\}\}|(?<!\$)\{(?:env|file):[^{}]+\}")


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference, and what it means here: one of the fields after `syntax` is set."""

    syntax: str
    """As it stands there: `${NAME}`."""
    variable: str = ""
    """The environment variable that it names."""
    default: str | None = None
    """What a variable that is not set falls back to there."""
    text: str = ""
    """What it is in every project."""
    question: str = ""
    """What a person is asked for there, or the file whose text it is."""
    is_file: bool = False
    """Whether `question` is the path of a file."""
    reason: str = ""
    """Why it can't be taken over, as the end of a sentence."""


def meaning_of(match: re.Match[str]) -> Reference:
    """Return what a match of `REFERENCE` means."""
    syntax, inside = match[0], match[1]
    if inside is None:
        return Reference(syntax, variable=match[2])
    if _HERE.fullmatch(inside):
        return Reference(syntax, text=HERE)
    if inside in _SEPARATORS:
        return Reference(syntax, text="/")
    if inside == "userHome":
        return Reference(syntax, variable="HOME")

    question = _ASKED.fullmatch(inside)
    if question:
        return Reference(syntax, question=question[1])
    file = _FILE.fullmatch(inside)
    if file:
        return Reference(syntax, question=file[1], is_file=True)
    if inside in _PLUGIN_FOLDERS:
        return Reference(syntax, reason="the folder of a plugin, which is not known here")

    variable = _VARIABLE.fullmatch(inside)
    if variable is None or inside in _EDITOR_NAMES:
        return Reference(syntax, reason="which only the program knows that the settings are for")
    return Reference(syntax, variable=variable[1], default=variable[2])


def read_references(text: str) -> Iterator[Reference]:
    """Yield the references in the text, in their order."""
    return map(meaning_of, REFERENCE.finditer(text))


def with_known_texts(text: str) -> str:
    """Return the text with those references replaced that are the same in every project."""
    return REFERENCE.sub(lambda match: meaning_of(match).text or match[0], text)


def with_defaults(text: str) -> tuple[str, list[Reference]]:
    """Return the text with each reference that has a default replaced by it, and those references.

    For what can't hold a reference here: addresses, commands and arguments.
    """
    replaced: list[Reference] = []

    def default_of(match: re.Match[str]) -> str:
        meaning = meaning_of(match)
        if meaning.default is None:
            return match[0]
        replaced.append(meaning)
        return meaning.default

    return REFERENCE.sub(default_of, with_known_texts(text)), replaced


def without_references(text: str, *, is_shell: bool) -> tuple[str, list[str]]:
    """Return an argument with its references taken out, and what they refer to, for a sentence.

    A shell's arguments (`is_shell`) keep `$NAME`, which the shell itself replaces.
    """
    refers_to: list[str] = []

    def take_out(match: re.Match[str]) -> str:
        if is_shell and match[1] is None:
            return match[0]
        meaning = meaning_of(match)
        because = f" ({meaning.reason})" if meaning.reason else ""
        refers_to.append(f"{meaning.syntax[:80]}{because}")
        return TAKEN_OUT

    return REFERENCE.sub(take_out, text), refers_to


def placeholders(text: str) -> list[str]:
    """Return what looks like a reference of a form that no supported program replaces."""
    return _PLACEHOLDER.findall(text)
