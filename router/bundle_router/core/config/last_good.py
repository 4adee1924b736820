"""Compares the files of a config folder with those of the last good config.

A router that reads its config again must not widen because a file is missing: the shipped file
would rule in its place. An editor that renames a file away and writes it anew, a `git checkout`, a
key that was removed from a volume, and a full disk all leave such a folder. Rules:

1. A file that was read and is gone is a problem, unless the folder's journal says that it was taken
   out on purpose. A file that was added is none.
2. A text that has lost the line break at its end is a problem: its writer may not be done. A text
   that was cut off at the end of a line can't be told from an edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bundle_router.core.config.config_text import FILE_NAMES, ConfigFile
from bundle_router.errors import Problem

_PUT_BACK: Final = "put it back, or start anew to go on without it"
_END_LINE: Final = "end its last line with a line break"

TakenOut = Callable[[ConfigFile], bool]
"""Returns whether the journal of the folder says that this file was taken out on purpose."""


@dataclass(frozen=True, slots=True)
class ConfigSnapshot:
    """The files that a config was loaded from."""

    files: tuple[ConfigFile, ...] = ()
    """The files of the project's folder and the shipped ones, without declarations in code."""
    learned: frozenset[str] = frozenset()
    """The paths of the learned files in force."""

    @property
    def own(self) -> dict[str, ConfigFile]:
        """The files that were read from the folder that was named, by name."""
        layer = "project" if any(file.layer == "project" for file in self.files) else "shipped"
        own_files = (file for file in self.files if file.layer == layer)
        return {file.name: file for file in own_files if file.name in FILE_NAMES}

    @property
    def policy(self) -> str:
        """The path of the policy file that rules; empty if there is none."""
        policies = [file for file in self.files if file.name == "policy.toml"]
        return policies[-1].display_path if policies else ""


def lost_files(
    before: ConfigSnapshot, now: ConfigSnapshot, was_taken_out: TakenOut
) -> Sequence[Problem]:
    """Return a problem for each file of `before` that is gone, or seems half written."""
    return [*_lost(before.own, now.own, was_taken_out), *_lost_learned(before, now)]


def _lost(
    before: dict[str, ConfigFile], now: dict[str, ConfigFile], was_taken_out: TakenOut
) -> Iterator[Problem]:
    for name in FILE_NAMES:
        if name not in before:
            continue
        last = before[name]
        present = now.get(name)
        if present is None:
            if not was_taken_out(last):
                message = "is gone; it was there when the config in force was read"
                yield Problem(last.display_path, 0, "", message, _PUT_BACK)
        elif last.text.endswith("\n") and present.text and not present.text.endswith("\n"):
            message = "ends in the middle of a line: it may be half written"
            yield Problem(last.display_path, 0, "", message, _END_LINE)


def _lost_learned(before: ConfigSnapshot, now: ConfigSnapshot) -> Iterator[Problem]:
    for path in sorted(before.learned - now.learned):
        message = "is gone; it was there when the config in force was read"
        yield Problem(path, 0, "", message, _PUT_BACK)
