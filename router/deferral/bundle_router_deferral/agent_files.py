"""Reads transcripts, config files and the router's own runs from disk. It writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Final

from bundle_router_deferral.causes import AgentSettings, CauseTable, parse_table
from bundle_router_deferral.findings import RouterSavings
from bundle_router_deferral.settings import (
    AlwaysLoad,
    ProfileLine,
    Scope,
    SettingsFile,
    always_loaded,
    effective,
    profile_lines,
    read_settings,
)
from bundle_router_deferral.transcript import Counter, RecentIds, RequestFacts, Transcript

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
MAX_CONFIG_BYTES: Final = 16 * 1024 * 1024
MAX_PROJECTS: Final = 1_000
MANAGED: Final = Path("/etc/claude-code/managed-settings.json")
PROFILES: Final = (
    ".zshenv",
    ".zprofile",
    ".zshrc",
    ".bash_profile",
    ".bashrc",
    ".profile",
    ".config/fish/config.fish",
)


def cause_table() -> CauseTable:
    return parse_table(
        resources.files("bundle_router_deferral")
        .joinpath("causes.toml")
        .read_text(encoding="utf-8")
    )


class AgentFiles:
    """The places of Claude Code's config and transcripts, for one home folder and one
    environment.
    """

    def __init__(self, home: Path, environment: Mapping[str, str], managed: Path = MANAGED) -> None:
        self.home = home
        self.environment = environment
        self.managed = managed
        folder = environment.get("CLAUDE_CONFIG_DIR")
        self.folder = Path(folder) if folder else home / ".claude"
        self._user_file = (self.folder if folder else home) / ".claude.json"
        self._settings: dict[str, AgentSettings] = {}

    def transcripts(self, since: float = 0.0) -> list[Path]:
        """Return the transcripts that were changed after `since`, those of sub-agents after their
        session's own.
        """
        files = (path for path in (self.folder / "projects").rglob("*.jsonl") if path.is_file())
        return sorted(path for path in files if path.stat().st_mtime >= since)

    def config(self, cwd: str) -> tuple[list[SettingsFile], list[AlwaysLoad]]:
        """Return the settings files of a project, and the servers marked `alwaysLoad`."""
        project = Path(cwd) if cwd else None
        places: list[tuple[Path, Scope]] = [
            (self.managed, "managed"),
            (self.folder / "settings.json", "user"),
            (self.folder / "settings.local.json", "user-local"),
        ]
        if project is not None and project != self.home:
            places += [
                (project / ".claude/settings.json", "project"),
                (project / ".claude/settings.local.json", "local"),
            ]
        files = [
            read_settings(str(path), scope, data)
            for path, scope in places
            if (data := _read(path)) is not None
        ]
        marks: list[AlwaysLoad] = []
        if (data := _read(self._user_file)) is not None:
            marks += always_loaded(str(self._user_file), data, cwd)
        if project is not None and (data := _read(project / ".mcp.json")) is not None:
            marks += always_loaded(str(project / ".mcp.json"), data)
        return files, marks

    def settings(self, cwd: str) -> AgentSettings:
        """Return today's settings of a project. Caches the first thousand projects."""
        if cwd not in self._settings:
            if len(self._settings) >= MAX_PROJECTS:
                self._settings.clear()
            self._settings[cwd] = effective(self.config(cwd)[0], self.environment)
        return self._settings[cwd]

    def profiles(self) -> list[ProfileLine]:
        """Return the lines of shell profiles that set a deferral variable."""
        lines = []
        for name in PROFILES:
            data = _read(self.home / name)
            if data is not None:
                lines += profile_lines(str(self.home / name), data.decode("utf-8", "replace"))
        return lines


def _read(path: Path) -> bytes | None:
    """Return a file's bytes; None if there is no readable one."""
    try:
        if path.stat().st_size <= MAX_CONFIG_BYTES:
            return path.read_bytes()
        return None
    except OSError:
        return None


def lines_of(path: Path, limit: int = MAX_LINE_BYTES) -> Iterator[tuple[bytes, int]]:
    """Yield each line and its end position in the file; a line over `limit` is replaced by an
    unreadable piece.
    """
    offset = 0
    with path.open("rb") as file:
        while line := file.readline(limit):
            offset += len(line)
            if len(line) == limit and not line.endswith(b"\n"):
                while piece := file.readline(limit):
                    offset += len(piece)
                    if piece.endswith(b"\n"):
                        break
                line = b"(too long)"
            yield line, offset


class TranscriptReader:
    """Streams the requests of many transcripts; `damaged` and `lines` are totals, `at` is the
    position read to.
    """

    def __init__(self, table: CauseTable, count: Counter | None = None) -> None:
        self.lines = self.damaged = self.unreadable = self.at = 0
        self._table = table
        self._count = count
        self._seen = RecentIds()
        self._refused: dict[str, int] = {}

    def read(self, paths: Iterable[Path]) -> Iterator[RequestFacts]:
        for path in paths:
            transcript = Transcript(self._table.deferrable, self._seen, self._refused, self._count)
            offset = self.at
            try:
                for line, end in lines_of(path):
                    yield from transcript.feed(line)
                    self.at = offset + end
            except OSError:
                self.unreadable += 1
            yield from transcript.end()
            self.lines += transcript.lines
            self.damaged += transcript.damaged


def router_savings(runs: Path) -> RouterSavings:
    """Sum the exposure that the router's own decisions recorded."""
    savings = RouterSavings()
    for path in sorted(runs.glob("*/routing.jsonl")):
        savings.runs += 1
        try:
            for line, _end in lines_of(path):
                try:
                    savings.add(json.loads(line))
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    savings.damaged += 1
        except OSError:
            savings.damaged += 1
    return savings
