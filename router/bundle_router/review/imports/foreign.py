"""Reads other programs' settings in any of the known forms."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.config.config_text import ConfigFile, guard
from bundle_router.errors import RequestError

MAX_CHARS: Final = 8 * 1024 * 1024
MAX_SERVERS: Final = 200
MAX_ITEMS: Final = 200
"""Maximum arguments, headers or variables of one server."""
# Without a possessive group, which fails to match in Python 3.11.2 (Debian's).
_COMMENTS: Final = re.compile(r'("(?:[^"\\\n]|\\.)*+")|//[^\n]*+|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/')
_LAST_COMMA: Final = re.compile(r'("(?:[^"\\\n]|\\.)*+")|,(?=\s*+[}\]])')


class ImportProblem(RequestError):
    """The text is not the settings of a supported program."""


@dataclass(frozen=True, slots=True)
class ForeignServer:
    """One server of another program.

    `path` is its place there; `tools` are the names that it lists as allowed; `unsupported` are its
    settings without an equivalent here.
    """

    name: str
    path: str
    kind: str = ""
    command: str | None = None
    args: tuple[str, ...] = ()
    url: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    enabled: bool = True
    tools: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    timeout_s: float | None = None
    unsupported: tuple[str, ...] = ()


def read_clients(text: str, name: str) -> tuple[ForeignServer, ...]:
    """Return the servers in the text; `name` (a file's name) tells TOML from JSON, and is used in
    messages.

    Raises ImportProblem if the text is neither, is too large, or holds no servers in a known form.
    """
    if len(text) > MAX_CHARS:
        raise ImportProblem(f"{name}: is larger than {MAX_CHARS:,} characters")
    value = _toml(text, name) if name.lower().endswith(".toml") else _json(text, name)
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
    return tuple(_server(path, key, entry) for path, key, entry in servers)


def _toml(text: str, name: str) -> dict[str, Any]:
    problem = guard(ConfigFile(name, name, text, "project"))
    if problem is not None:
        raise ImportProblem(str(problem))
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as wrong:
        raise ImportProblem(f"{name}: is not TOML ({wrong})") from None


def _json(text: str, name: str) -> dict[str, Any]:
    """Parse JSON, with the comments and trailing commas that editors allow."""
    try:
        bare = _COMMENTS.sub(lambda match: match[1] or " ", text.removeprefix("\ufeff"))
        value = json.loads(_LAST_COMMA.sub(lambda match: match[1] or "", bare))
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
        "description",
        "name",
        "gallery",
        "version",
    )
)


def _server(path: str, name: str, entry: Mapping[str, Any]) -> ForeignServer:
    url = next(
        (entry[key] for key in ("url", "serverUrl", "httpUrl") if isinstance(entry.get(key), str)),
        None,
    )
    kind = entry.get("type", entry.get("transport"))
    disabled = entry.get("disabled") is True or entry.get("enabled") is False
    return ForeignServer(
        name=name,
        path=path,
        kind=kind.lower() if isinstance(kind, str) else "",
        command=entry["command"] if isinstance(entry.get("command"), str) else None,
        args=tuple(str(arg) for arg in _list(entry.get("args"))),
        url=url,
        headers=_headers(entry),
        env=_env(entry),
        enabled=not disabled,
        tools=_names(entry, "enabled_tools", "includeTools", "tools", "alwaysAllow", "autoApprove"),
        exclude=_names(entry, "disabled_tools", "excludeTools", "disabledTools"),
        timeout_s=_seconds(entry),
        unsupported=tuple(sorted(key for key in entry if key not in _KNOWN)),
    )


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
    return [(key, str(item)) for key, item in value.items() if isinstance(item, str | int | float)][
        :MAX_ITEMS
    ]


def _headers(entry: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    rows = [*_pairs(entry.get("headers")), *_pairs(entry.get("http_headers"))]
    rows += [(name, f"${{{variable}}}") for name, variable in _pairs(entry.get("env_http_headers"))]
    bearer = entry.get("bearer_token_env_var")
    if isinstance(bearer, str):
        rows.append(("Authorization", f"Bearer ${{{bearer}}}"))
    return tuple(dict(rows).items())


def _env(entry: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    forwarded = [(str(name), f"${{{name}}}") for name in _list(entry.get("env_vars"))]
    return tuple(dict([*forwarded, *_pairs(entry.get("env"))]).items())


def _seconds(entry: Mapping[str, Any]) -> float | None:
    """Return a timeout in seconds: Codex writes seconds, the others milliseconds."""
    for key, unit in (("tool_timeout_sec", 1.0), ("timeout", 0.001)):
        value = entry.get(key)
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and 0 < value <= 3600 / unit
        ):
            return round(value * unit, 3)
    return None
