"""Reads an agent's config files as the agent does, and reports those that it ignores.

Pure; only named values are kept.

Precedence, as measured in Claude Code 2.1.329: managed > project local > project > user > process
environment. A file with comments or trailing commas is ignored whole; a BOM is accepted; of
duplicate keys the last wins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from bundle_router_deferral.causes import (
    BASE_URL,
    ENVIRONMENT,
    NO_BETAS,
    SWITCH,
    AgentSettings,
    Setting,
)

Scope = Literal["managed", "local", "project", "user", "user-local"]
RANK: Final[tuple[Scope, ...]] = ("managed", "local", "project", "user")
RELEVANT: Final = ("env", "permissions", "mcpServers")


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file as the agent reads it: named values, their places, and what it ignores."""

    path: str
    scope: Scope
    variables: tuple[tuple[str, str], ...] = ()
    denies_search: bool = False
    ignored: str = ""
    """Why the agent ignores the file, or a part of it."""


@dataclass(frozen=True, slots=True)
class AlwaysLoad:
    """A server that is loaded upfront on purpose: its file and the keys of the mark."""

    server: str
    path: str
    keys: tuple[str, ...]


def host_of(url: str) -> str:
    """Return only the host of a base URL."""
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def _load(data: bytes) -> dict[str, Any]:
    """Parse as the agent does. Raises ValueError with the error."""
    value = json.loads(data.decode("utf-8-sig"))
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def read_settings(path: str, scope: Scope, data: bytes) -> SettingsFile:
    """Return a settings file's values about deferral."""
    try:
        value = _load(data)
    except (ValueError, RecursionError) as wrong:
        if scope == "user-local":
            return SettingsFile(path, scope, ignored="the agent does not read this file")
        place = f"line {wrong.lineno}" if isinstance(wrong, json.JSONDecodeError) else str(wrong)
        return SettingsFile(
            path, scope, ignored=f"the agent can't parse it ({place}) and ignores all of it"
        )
    if scope == "user-local":
        loud = [name for name in RELEVANT if name in value]
        ignored = f"the agent does not read this file ({', '.join(loud)})" if loud else ""
        return SettingsFile(path, scope, ignored=ignored)
    environment = value.get("env")
    pairs = environment.items() if isinstance(environment, dict) else ()
    variables = tuple(
        (name, _kept(name, setting)) for name, setting in pairs if name in ENVIRONMENT
    )
    permissions = value.get("permissions")
    deny = permissions.get("deny") if isinstance(permissions, dict) else None
    if "mcpServers" in value:
        ignored = "the agent does not read `mcpServers` here (it does in .mcp.json)"
    else:
        ignored = ""
    return SettingsFile(
        path, scope, variables, isinstance(deny, list) and "ToolSearch" in deny, ignored
    )


def _kept(name: str, value: Any) -> str:
    """Return a setting's value as text: of a base URL only the host, of JSON its spelling."""
    if isinstance(value, bool) or not isinstance(value, str):
        value = json.dumps(value)
    return host_of(value) if name == BASE_URL else value[:200]


def effective(files: Sequence[SettingsFile], environment: Mapping[str, str]) -> AgentSettings:
    """Return the values in force for a project; settings files override the process environment."""
    variables = {
        name: Setting(_kept(name, environment[name]), "environment")
        for name in ENVIRONMENT
        if name in environment
    }

    denial = ""
    weakest_first = sorted(files, key=lambda file: -RANK.index(file.scope))
    for file in weakest_first:
        for name, value in file.variables:
            variables[name] = Setting(value, f"{file.path}: env.{name}")
        if file.denies_search:
            denial = f"{file.path}: permissions.deny"
    return AgentSettings(variables, denial)


def always_loaded(path: str, data: bytes, cwd: str = "") -> list[AlwaysLoad]:
    """Return the servers marked `alwaysLoad` in `.mcp.json` or `~/.claude.json` (there also those
    of project `cwd`).
    """
    try:
        value = _load(data)
    except (ValueError, RecursionError):
        return []
    places: list[tuple[tuple[str, ...], Any]] = [(("mcpServers",), value.get("mcpServers"))]
    projects = value.get("projects")
    if cwd and isinstance(projects, dict) and isinstance(projects.get(cwd), dict):
        places.append((("projects", cwd, "mcpServers"), projects[cwd].get("mcpServers")))
    names = []
    for keys, servers in places:
        for name, server in servers.items() if isinstance(servers, dict) else ():
            if isinstance(server, dict) and server.get("alwaysLoad") is True:
                names.append(AlwaysLoad(exposed_server(name), path, (*keys, name, "alwaysLoad")))
    return names


def exposed_server(name: str) -> str:
    """Return a server's name as it is in the names of its tools."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


_PROFILE: Final = re.compile(
    rf"^\s*(?:export\s+|set\s+-gx\s+)?({SWITCH}|{NO_BETAS}|{BASE_URL})[=\s]\s*(\S+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """A line of a shell profile that sets a named variable. It is shown, never edited."""

    path: str
    line: int
    name: str
    text: str


def profile_lines(path: str, text: str) -> list[ProfileLine]:
    """Return the lines of a shell profile that set a deferral variable; a URL's line is not
    shown.
    """
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _PROFILE.match(line)
        if match:
            excerpt = f"(sets {BASE_URL})" if match[1] == BASE_URL else match[0].strip()[:120]
            lines.append(ProfileLine(path, number, match[1], excerpt))
    return lines
