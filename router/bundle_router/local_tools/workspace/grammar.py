"""Which command lines may start: an argument list against the forms of a binary's rule.

Rules:
1. Only an argument list that one of the forms describes completely is accepted. Nothing is split,
   joined, expanded, unquoted or abbreviated: the program gets the matched arguments byte for byte.
2. An argument that starts with `-` is an option of the form or it is refused; it is never a value
   or a positional. After `--` (if the form has it) nothing may start with `-`.
3. An argument that starts with `@` is refused unless the form has `at_files`: many programs read
   more arguments from such a file.
4. Every character is visible or a plain space. Control characters, line and paragraph separators,
   other spaces (U+00A0 …), invisible, unassigned and private characters are refused: they make a
   command line look like another one.
5. Counts and lengths are bounded before any pattern runs, and patterns run in google-re2 (linear
   time).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, Final

from bundle_router.adapters.expressions import ExpressionError, compile_expression
from bundle_router.core.values import BinaryForm, BinaryOption, BinaryRule
from bundle_router.errors import ToolFailure

MAX_ARGUMENTS: Final = 1_024
MAX_ARGUMENT_BYTES: Final = 4_096
MAX_TOTAL_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Accepted:
    """A permitted command line.

    `paths` are the parts of it that name files, relative to the working folder.
    """

    form: BinaryForm
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused command line: the index of the first argument that does not fit, and the reason."""

    index: int
    why: str


def match(rule: BinaryRule, arguments: Sequence[str]) -> Accepted | Refused:
    """Return the first form that describes `arguments` (without the program's name), or the refusal
    that got furthest.

    Raises ToolFailure `invalid_rule` when the config's own pattern does not compile.
    """
    refusal = _why_unsound(arguments)
    if refusal is not None:
        return refusal
    furthest = Refused(-1, "")
    for form in rule.forms:
        result = _Reader(form, arguments).read()
        if isinstance(result, Accepted):
            return result
        furthest = max(furthest, result, key=lambda found: found.index)
    return furthest


def problems(rule: BinaryRule) -> list[str]:
    """Return the errors in a rule's patterns, one sentence each, for `check`."""
    problems_found = []
    for form in rule.forms:
        patterns = [(f"option {option.name}", option.value) for option in form.options]
        for place, pattern in [*patterns, ("positionals", form.positionals)]:
            try:
                if pattern is not None:
                    _compile_pattern(pattern)
            except ToolFailure as failure:
                problems_found.append(
                    f"{rule.name} {' '.join(form.words)}: {place}: {failure.message}"
                )
        if any(option.name == "--" and option.value is not None for option in form.options):
            problems_found.append(f"{rule.name} {' '.join(form.words)}: option -- takes no value")
        if form.positionals is not None and form.max_positionals == 0:
            problems_found.append(
                f"{rule.name} {' '.join(form.words)}: positionals can't occur while max_positionals"
                " is 0"
            )
    return problems_found


def usage(rule: BinaryRule) -> list[str]:
    """Return one line for each form, for the model:
    `python -m pytest [-q] [-k VALUE] [PATH …up to 20]`.
    """
    return [" ".join([rule.name, *form.words, *_usage_of(form)]) for form in rule.forms]


def _usage_of(form: BinaryForm) -> list[str]:
    parts = []
    for option in form.options:
        if option.value is None:
            parts.append(f"[{option.name}]")
        elif option.separate:
            parts.append(f"[{option.name} /{option.value}/]")
        else:
            parts.append(f"[{option.name}{_joint(option)}/{option.value}/]")
    if form.positionals is not None:
        kind = "path in the workspace, " if form.paths else ""
        parts.append(f"[up to {form.max_positionals}: {kind}/{form.positionals}/]")
    return parts


def _why_unsound(arguments: Sequence[str]) -> Refused | None:
    """Check rules 4 and 5, which do not depend on the form."""
    if len(arguments) > MAX_ARGUMENTS:
        return Refused(
            MAX_ARGUMENTS, f"there are {len(arguments)} arguments, more than {MAX_ARGUMENTS}"
        )
    total = 0
    for index, argument in enumerate(arguments):
        if argument == "":
            return Refused(index, "it is empty")
        for character in argument:
            if not character.isprintable():  # every category C* and Z*, but the plain space
                return Refused(
                    index, f"it contains the character U+{ord(character):04X}, which can't be seen"
                )
        size = len(argument.encode("utf-8"))
        total += size
        if size > MAX_ARGUMENT_BYTES:
            return Refused(index, f"it has {size} bytes, more than {MAX_ARGUMENT_BYTES}")
        if total > MAX_TOTAL_BYTES:
            return Refused(index, f"the arguments have more than {MAX_TOTAL_BYTES} bytes together")
    return None


class _Reader:
    """Reads one argument list under one form."""

    def __init__(self, form: BinaryForm, arguments: Sequence[str]) -> None:
        self._form = form
        self._arguments = arguments
        self._at = 0
        self._positionals = 0
        self._paths: list[str] = []
        self._only_positionals = False

    def read(self) -> Accepted | Refused:
        for index, word in enumerate(self._form.words):
            if index >= len(self._arguments) or self._arguments[index] != word:
                return Refused(index, f"{word!r} must stand here")
        self._at = len(self._form.words)
        while self._at < len(self._arguments):
            argument = self._arguments[self._at]
            reason = (
                self._option(argument) if argument.startswith("-") else self._positional(argument)
            )
            if reason:
                return Refused(min(self._at, len(self._arguments) - 1), reason)
            self._at += 1
        return Accepted(self._form, tuple(self._paths))

    def _option(self, argument: str) -> str:
        """Accept one option (and its separate value).

        Return the reason for a refusal, or an empty string.
        """
        if self._only_positionals:
            return "after '--' no argument may start with '-'"
        for option in self._form.options:
            if argument == option.name:
                if option.value is None:
                    self._only_positionals = argument == "--"
                    return ""
                if option.separate:
                    self._at += 1
                    return self._separate(option)
        for option in self._form.options:
            start = option.name + _joint(option)
            if option.name == "--":
                continue  # never with a value, as that could be any long option
            if option.value is not None and option.joined and argument.startswith(start):
                return self._value(option, argument[len(start) :])
        return "this option is not permitted"

    def _separate(self, option: BinaryOption) -> str:
        if self._at >= len(self._arguments):
            return f"{option.name} needs a value"
        value = self._arguments[self._at]
        if value.startswith("-"):
            return f"the value of {option.name} can't start with '-'"
        return self._value(option, value)

    def _value(self, option: BinaryOption, value: str) -> str:
        if value.startswith("@") and not self._form.at_files:
            return "a value that starts with '@' is not permitted"
        if not _compile_pattern(option.value or "").fullmatch(value):
            return f"the value of {option.name} must match /{option.value}/"
        if not option.path:
            return ""
        return self._path(value)

    def _positional(self, argument: str) -> str:
        if argument.startswith("@") and not self._form.at_files:
            return "an argument that starts with '@' is not permitted"
        if self._form.positionals is None:
            return "no argument may stand here"
        self._positionals += 1
        if self._positionals > self._form.max_positionals:
            return f"at most {self._form.max_positionals} such arguments are permitted"
        if not _compile_pattern(self._form.positionals).fullmatch(argument):
            return f"it must match /{self._form.positionals}/"
        if not self._form.paths:
            return ""
        if (
            "::" in argument
        ):  # for pytest the path ends here; for other programs it is part of the name
            self._paths.append(argument)
        return self._path(argument.partition("::")[0])

    def _path(self, text: str) -> str:
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts:
            return "it must be a path relative to the working folder, without '..'"
        self._paths.append(text)
        return ""


def _joint(option: BinaryOption) -> str:
    """Return the text between an option and its joined value: nothing for `-n5`, `=` for
    `--name=5`.
    """
    return "" if len(option.name) == 2 else "="


@lru_cache(maxsize=1024)
def _compile_pattern(pattern: str) -> Any:
    try:
        return compile_expression(pattern)
    except ExpressionError as error:
        raise ToolFailure(
            f"the pattern /{pattern}/ is not a google-re2 expression: {error}",
            code="invalid_rule",
            advice="correct it in policy.toml, then run `bundle-router check`",
        ) from None
