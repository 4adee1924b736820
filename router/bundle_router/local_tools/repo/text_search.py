"""`repo.ripgrep`: lines that match a pattern.

Rules:
1. The real `rg` searches (`local_tools.repo.rg`), the one that was installed with the router. Where
   it can't be confined, nothing is searched.
2. It does not backtrack, so every pattern takes linear time; unsupported syntax is an error, not a
   guess.
3. Results come in path order and stop at `max_matches` and at `max_bytes`; the first line says
   whether there is more.
4. Skipped: `.git`, files that a `.gitignore` names (unless the glob asks for them), binary files (a
   NUL byte), files over 10 MiB, symlinks. Hidden files (`.name`) are searched; the router's own
   records are not, and the result says so. Nor are files with credentials, and the result never
   says whether one would have matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from bundle_router.core.values import Text, ToolContext, ToolOutput
from bundle_router.local_tools.repo import rg
from bundle_router.local_tools.repo.confinement import workspace
from bundle_router.local_tools.repo.file_names import show_name, with_path_read
from bundle_router.local_tools.repo.hits import FileHits, Line, Ripgrep, bad_pattern
from bundle_router.local_tools.repo.refusals import count

LINE_CHARS: Final = 400
"""Maximum characters shown of one line, around the first match."""
_MAX_PATTERN_BYTES: Final = 131_000
"""Maximum bytes of a pattern. The kernel takes 131,072 bytes in one argument of a program."""
_NEWLINE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\n")


def ripgrep(
    arguments: Ripgrep, context: ToolContext, *, binary: str | None = None, confined: bool = True
) -> ToolOutput:
    """Run `repo.ripgrep`, with another `binary` than the installed one if that is given.

    `confined=False` omits the second wall, for tests of the first alone.
    """
    _check_pattern(arguments)
    arguments = with_path_read(arguments)
    with workspace(context) as root:
        arguments = arguments.model_copy(update={"path": root.relative(arguments.path or ".")})
        program = binary if binary is not None else rg.find_rg(context.workspace)
        result = _Shown(arguments, context.max_bytes)
        search = rg.search(program, arguments, root, context, confined=confined)
        with closing(search) as hits:  # closing it ends a running rg
            for file in hits:
                if not result.add(file):
                    break
        note = root.hidden.note()
    return ToolOutput((Text(result.text(note)),))


def _check_pattern(query: Ripgrep) -> None:
    """Refuse patterns that span lines, or that can't be passed to rg."""
    raw = query.pattern.encode("utf-8")  # pydantic has refused lone surrogates
    if len(raw) > _MAX_PATTERN_BYTES:
        raise bad_pattern(f"it has {len(raw):,} bytes, more than {_MAX_PATTERN_BYTES:,}")
    if "\0" in query.pattern or "\0" in (query.glob or ""):
        raise bad_pattern("it contains a NUL character")
    if _spans_lines(query):
        raise bad_pattern(
            "a line end is never part of a match; search for one line, with context around it"
        )


def _spans_lines(query: Ripgrep) -> bool:
    if "\n" in query.pattern:
        return True
    return not query.literal and _NEWLINE.search(query.pattern) is not None


# --- the result -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Shown:
    """The growing text of the result, within `max_matches` and `max_bytes`."""

    query: Ripgrep
    max_bytes: int
    out: list[str] = field(default_factory=list)
    used: int = 200  # room for the first line
    matches: int = 0
    files: int = 0
    stopped_by: str = ""

    def add(self, file: FileHits) -> bool:
        """Add the hits of a file; return whether there is room for more."""
        if self.matches >= self.query.max_matches:
            self.stopped_by = f"max_matches={self.query.max_matches}"
            return False
        self.files += 1
        self._put(show_name(file.path))
        last = 0
        for line in self._within_limit(file.lines):
            if self.query.context and last and line.number > last + 1:
                self._put("  --")
            if self.used > self.max_bytes:
                self.stopped_by = f"{self.max_bytes:,} bytes"
                return False
            self._put(f"  {line.number}{'-' if line.at is None else ':'} {_shown_text(line)}")
            self.matches += line.at is not None
            last = line.number
        return not self.stopped_by

    def _within_limit(self, lines: tuple[Line, ...]) -> Iterator[Line]:
        """Yield the lines up to the last match that may be shown, with its context."""
        room = self.query.max_matches - self.matches
        matching = [line.number for line in lines if line.at is not None]
        if len(matching) <= room:
            yield from lines
            return
        self.stopped_by = f"max_matches={self.query.max_matches}"
        last = min(matching[room - 1] + self.query.context, matching[room] - 1)
        yield from (line for line in lines if line.number <= last)

    def _put(self, line: str) -> None:
        self.out.append(line)
        self.used += len(line.encode("utf-8", "replace")) + 1

    def text(self, note: str) -> str:
        """Return the whole result; `note` is its sentence about hidden folders."""
        if not self.files:
            return f"No match in {show_name(self.query.path)}. {_SKIPPED}{note}"
        head = f"{count(self.matches, 'matching line')} in {count(self.files, 'file')}"
        if self.stopped_by:
            head += (
                f", stopped at {self.stopped_by}: there are more. Narrow it with path, glob or a"
                " longer pattern"
            )
        return "\n".join([f"{head}.{note}", *self.out])


_SKIPPED: Final = (
    "Skipped: .git, files .gitignore names, files with credentials, binary files, files over"
    " 10 MiB, symlinks."
)


def _shown_text(line: Line) -> str:
    """Return at most LINE_CHARS of a line, around its first match."""
    text = line.text
    start = 0
    stop = len(text)
    if stop > LINE_CHARS:
        start = max(0, min((line.at or 0) - LINE_CHARS // 4, stop - LINE_CHARS))
        stop = start + LINE_CHARS
    words = text[start:stop].decode("utf-8", "replace").rstrip("\r")
    return (
        ("…" if start else "")
        + words
        + (f"… ({len(text):,} bytes)" if stop < len(text) or start else "")
    )
