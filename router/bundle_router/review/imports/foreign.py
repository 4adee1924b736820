"""Reads other programs' settings in any of the known forms."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.config.config_text import ConfigFile, guard
from bundle_router.errors import RequestError
from bundle_router.review.imports.foreign_login import ForeignLogin, is_login, read_login
from bundle_router.review.imports.variable_syntax import with_known_texts

MAX_CHARS: Final = 8 * 1024 * 1024
MAX_SERVERS: Final = 200
MAX_ITEMS: Final = 200
"""Maximum arguments, headers or variables of one server."""
MAX_TIMEOUT_S: Final = 3600
# Without a possessive group, which fails to match in Python 3.11.2 (Debian's).
_COMMENTS: Final = re.compile(r'("(?:[^"\\\n]|\\.)*+")|//[^\n]*+|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/')
_LAST_COMMA: Final = re.compile(r'("(?:[^"\\\n]|\\.)*+")|,(?=\s*+[}\]])')


class ImportProblem(RequestError):
    """The text is not the settings of a supported program."""


@dataclass(frozen=True, slots=True)
class ForeignServer:
    """One server of another program."""

    name: str
    """Its name there."""
    path: str
    """Its place in the file: `mcpServers.github`."""
    kind: str = ""
    """Its transport as it is written there, in small letters; empty if it is not."""
    command: str | None = None
    """The program to start."""
    args: tuple[str, ...] = ()
    """The program's arguments."""
    url: str | None = None
    """Its address."""
    headers: tuple[tuple[str, str], ...] = ()
    """Its headers, with references as they are written there."""
    env: tuple[tuple[str, str], ...] = ()
    """The program's variables, with references as they are written there."""
    enabled: bool = True
    """False: it is switched off there."""
    tools: tuple[str, ...] = ()
    """The names of tools that it lists as allowed."""
    exclude: tuple[str, ...] = ()
    """The names of tools that it lists as forbidden."""
    timeout_s: float | None = None
    """Seconds that a call may take."""
    connect_s: float | None = None
    """Seconds that its start may take."""
    folder: str = ""
    """The folder that the program starts in, unless it is the project's."""
    login: ForeignLogin | None = None
    """How its program logs in over OAuth; None if it doesn't."""
    unsupported: tuple[str, ...] = ()
    """Its settings without an equivalent here."""
    notes: tuple[str, ...] = ()
    """What reading it found, for a person."""


@dataclass(frozen=True, slots=True)
class ForeignClients:
    """The servers of one file."""

    servers: tuple[ForeignServer, ...]
    """The servers, in the order of the file."""
    notes: tuple[str, ...] = ()
    """What reading the file found, for a person."""


def read_clients(text: str, name: str) -> ForeignClients:
    """Return the servers in the text; `name` (a file's name) tells TOML from JSON, and is used in
    messages.

    Raises ImportProblem if the text is neither, is too large, or holds no servers in a known form.
    """
    if len(text) > MAX_CHARS:
        raise ImportProblem(f"{name}: is larger than {MAX_CHARS:,} characters")
    repeated: list[str] = []
    value = _toml(text, name) if name.lower().endswith(".toml") else _json(text, name, repeated)
    servers = list(_servers(value))
    if not servers:
        raise ImportProblem(
            f"{name}: holds no MCP servers in a known form",
            advice=(
                "known are 'mcpServers' (.mcp.json, Claude, Cursor), 'servers' (VS Code) and"
                " [mcp_servers] (Codex)"
            ),
        )
    if len(servers) > MAX_SERVERS:
        raise ImportProblem(f"{name}: holds more than {MAX_SERVERS} servers")
    counts_seconds = _SECONDS_FILE.search(name) is not None
    return ForeignClients(
        tuple(_server(path, key, entry, counts_seconds) for path, key, entry in servers),
        tuple(
            f"{name}: {key[:80]!a} stands twice in one table: the last was taken, as by its program"
            for key in dict.fromkeys(repeated)
        ),
    )


def _toml(text: str, name: str) -> dict[str, Any]:
    problem = guard(ConfigFile(name, name, text, "project"))
    if problem is not None:
        raise ImportProblem(str(problem))
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as wrong:
        raise ImportProblem(f"{name}: is not TOML ({wrong})") from None


def _json(text: str, name: str, repeated: list[str]) -> dict[str, Any]:
    """Parse JSON, with the comments and trailing commas that editors allow.

    Keys that stand twice in one object are added to `repeated`.
    """

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in pairs)
        repeated.extend(key for key, count in counts.items() if count > 1)
        return dict(pairs)

    try:
        bare = _COMMENTS.sub(lambda match: match[1] or " ", text.removeprefix("\ufeff"))
        plain = _LAST_COMMA.sub(lambda match: match[1] or "", bare)
        value = json.loads(plain, object_pairs_hook=object_of)
    except (ValueError, RecursionError) as wrong:
        raise ImportProblem(f"{name}: is not JSON ({str(wrong)[:200]})") from None
    if not isinstance(value, dict):
        raise ImportProblem(f"{name}: is not a JSON object")
    return value


def _servers(value: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (path, name, entry) of every server, in the order of the file."""
    for path, table in _server_tables(value):
        if not isinstance(table, dict):
            continue
        for key, entry in table.items():
            if isinstance(entry, dict):
                yield f"{path}.{key}", key, entry


def _server_tables(value: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield (path, value) of each key that one client or another keeps its servers under."""
    for key in ("mcpServers", "servers", "mcp_servers"):
        yield key, value.get(key)
    inner = value.get("mcp")
    if isinstance(inner, dict):
        yield "mcp.servers", inner.get("servers")
    projects = value.get("projects")
    if not isinstance(projects, dict):
        return
    for path, project in projects.items():
        if isinstance(project, dict):
            yield f"projects.{path}.mcpServers", project.get("mcpServers")


_KNOWN: Final = frozenset(
    (
        "type",
        "transport",
        "command",
        "args",
        "url",
        "serverUrl",
        "httpUrl",
        "headers",
        "http_headers",
        "env_http_headers",
        "bearer_token_env_var",
        "env",
        "env_vars",
        "disabled",
        "enabled",
        "tools",
        "includeTools",
        "enabled_tools",
        "alwaysAllow",
        "autoApprove",
        "excludeTools",
        "disabled_tools",
        "disabledTools",
        "timeout",
        "tool_timeout_sec",
        "startup_timeout_sec",
        "startup_timeout_ms",
        "cwd",
        "description",
        "name",
        "gallery",
        "version",
    )
)


_ADDRESSES: Final = ("url", "serverUrl", "httpUrl")
_STDIO: Final = "stdio"


def _server(path: str, name: str, entry: Mapping[str, Any], counts_seconds: bool) -> ForeignServer:
    url = next((entry[key] for key in _ADDRESSES if isinstance(entry.get(key), str)), None)
    command = entry["command"] if isinstance(entry.get("command"), str) else None
    transport = entry.get("type", entry.get("transport"))
    kind = transport.lower() if isinstance(transport, str) else ""

    notes = list(_unread(entry))
    has_both = url is not None and command is not None
    if has_both and kind == _STDIO:
        url = None
        notes.append("has a command and an address: the address was left out")
    elif has_both:
        notes.append("has an address and a command: the command was left out")
    timeout_s, timeout_notes = _seconds(entry, counts_seconds)
    connect_s, connect_notes = _seconds_to_start(entry)
    notes += timeout_notes + connect_notes
    headers, header_notes = _headers(entry)
    notes += header_notes

    return ForeignServer(
        name=name,
        path=path,
        kind=kind,
        command=command,
        args=tuple(_text(arg) for arg in _list(entry.get("args"))),
        url=url,
        headers=headers,
        env=_env(entry),
        enabled=not (entry.get("disabled") is True or entry.get("enabled") is False),
        tools=_names(entry, "enabled_tools", "includeTools", "tools", "alwaysAllow", "autoApprove"),
        exclude=_names(entry, "disabled_tools", "excludeTools", "disabledTools"),
        timeout_s=timeout_s,
        connect_s=connect_s,
        folder=_folder(entry.get("cwd")),
        login=read_login(entry),
        unsupported=tuple(
            sorted(key for key in entry if key not in _KNOWN and not is_login(key, entry[key]))
        ),
        notes=tuple(notes),
    )


def _unread(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is said of values in a form that no program writes."""
    args = entry.get("args")
    if args is not None and not isinstance(args, list):
        yield "args are no list: they were left out"
    for key in ("args", "env_vars"):
        items = entry.get(key)
        if isinstance(items, list) and len(items) > len(_list(items)):
            yield f"{key}: only the first {MAX_ITEMS} that are text, numbers or booleans were taken"
    for key in ("headers", "http_headers", "env_http_headers", "env"):
        pairs = entry.get(key)
        if pairs is None:
            continue
        if not isinstance(pairs, dict):
            yield f"{key} is no table: it was left out"
        elif len([value for value in pairs.values() if value is not None]) > len(_pairs(pairs)):
            yield f"{key}: only the first {MAX_ITEMS} that are text, numbers or booleans were taken"


def _folder(folder: Any) -> str:
    """Return a working folder; empty if it is the project's own, where servers start here too."""
    if not isinstance(folder, str) or with_known_texts(folder) in ("", ".", "./"):
        return ""
    return folder


def _names(entry: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    """Return the distinct tool names under any of the keys."""
    rows = [name for key in keys for name in _list(entry.get(key)) if isinstance(name, str)]
    return tuple(dict.fromkeys(rows))


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [item for item in value if isinstance(item, str | int | float)][:MAX_ITEMS]
    return []


def _pairs(value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, dict):
        return []
    pairs = [(key, item) for key, item in value.items() if isinstance(item, str | int | float)]
    return [(key, _text(item)) for key, item in pairs[:MAX_ITEMS]]


def _text(value: str | int | float) -> str:
    """Return a value as JavaScript writes it, which most of the programs are made in."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def _headers(entry: Mapping[str, Any]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Return the headers, and notes about those that were written twice: the last counts."""
    rows = [*_pairs(entry.get("headers")), *_pairs(entry.get("http_headers"))]
    rows += [(name, f"${{{variable}}}") for name, variable in _pairs(entry.get("env_http_headers"))]
    bearer = entry.get("bearer_token_env_var")
    if isinstance(bearer, str):
        rows.append(("Authorization", f"Bearer ${{{bearer}}}"))

    by_name: dict[str, tuple[str, str]] = {}
    notes = []
    for label, value in rows:
        if label.lower() in by_name:
            notes.append(f"header {label[:80]!a} stands twice: the last was taken")
        by_name[label.lower()] = (label, value)
    return tuple(by_name.values()), notes


def _env(entry: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    forwarded = [(str(name), f"${{{name}}}") for name in _list(entry.get("env_vars"))]
    return tuple(dict([*forwarded, *_pairs(entry.get("env"))]).items())


_SECONDS_FILE: Final = re.compile(r"(?i)cline|^mcp_settings\.json$")
"""Files of programs that count in seconds: Cline's and Roo Code's."""
_SECONDS_KEYS: Final = frozenset(("autoApprove", "alwaysAllow", "disabledTools", "watchPaths"))
"""Keys that these programs write beside it."""
_LEAST_MS: Final = 1000
"""Milliseconds below which nobody limits a call: a smaller number is of seconds."""


def _seconds_to_start(entry: Mapping[str, Any]) -> tuple[float | None, list[str]]:
    """Return the seconds that a start may take, as Codex writes them, and notes about them."""
    for key, per_second in (("startup_timeout_sec", 1), ("startup_timeout_ms", 1000)):
        value = entry.get(key)
        if value is not None:
            return _within_bounds(key, value, per_second)
    return None, []


def _within_bounds(key: str, value: Any, per_second: int) -> tuple[float | None, list[str]]:
    """Return a number of seconds that config takes; None, with a note, for another value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None, [f"{key} is no number above 0: it was left out"]
    if value > MAX_TIMEOUT_S * per_second:
        return None, [f"{key} is longer than {MAX_TIMEOUT_S:,} s: it was left out"]
    return value / per_second, []


def _seconds(entry: Mapping[str, Any], counts_seconds: bool) -> tuple[float | None, list[str]]:
    """Return a call's timeout in seconds, and notes about it.

    Codex, Cline and Roo Code write seconds, the others milliseconds; and blocks are copied from one
    to the other.
    """
    value = entry.get("tool_timeout_sec")
    if value is not None:
        return _within_bounds("tool_timeout_sec", value, 1)
    value = entry.get("timeout")
    if value is None:
        return None, []
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    if not is_number or value > MAX_TIMEOUT_S * 1000:
        return _within_bounds("timeout", value, 1000)

    counts_seconds = counts_seconds or not _SECONDS_KEYS.isdisjoint(entry)
    if counts_seconds:
        return _within_bounds("timeout", value, 1 if value <= MAX_TIMEOUT_S else 1000)
    if value >= _LEAST_MS:
        return _within_bounds("timeout", value, 1000)
    note = f"timeout = {value:g} was read as seconds: in milliseconds no call fits"
    return value, [note]
