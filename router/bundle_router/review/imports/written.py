"""Writes imported servers, with a first set of bundles, as config text to append."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from bundle_router.core.config.servers import is_loopback
from bundle_router.core.models import SERVER_NAME, TOOL_NAME
from bundle_router.review.imports.foreign import ForeignServer, read_clients
from bundle_router.review.imports.moving import MovedValues, at_home, secret_arguments, without_credentials

_TAKEN_OUT: Final = "TAKEN-OUT"
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_SSE: Final = frozenset(("sse", "http+sse", "http-sse"))


@dataclass(frozen=True, slots=True)
class ImportedServers:
    """Text to append to `servers.toml` and `bundles.toml` (empty: nothing), notes for a person, and the environment
    variables that must be set."""

    servers: str
    bundles: str
    notes: tuple[str, ...]
    variables: tuple[str, ...]
    names: tuple[str, ...]


def import_clients(
    text: str,
    name: str,
    *,
    servers: Collection[str] = (),
    bundles: Collection[str] = (),
    tools: Mapping[str, Sequence[str]] | None = None,
) -> ImportedServers:
    """Return config text for the settings of another program. Raises ImportProblem.

    `servers` and `bundles` are the existing names, `tools` the known tools of servers (by their names here).
    """
    writing = _Writing(name, set(servers), set(bundles), tools or {})
    for foreign in read_clients(text, name):
        writing.add(foreign)
    return writing.done()


@dataclass(slots=True)
class _Writing:
    source: str
    servers: set[str]
    bundles: set[str]
    tools: Mapping[str, Sequence[str]]
    moving: MovedValues = field(default_factory=MovedValues)
    server_texts: list[str] = field(default_factory=list)
    bundle_texts: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    unknown: dict[str, list[str]] = field(default_factory=dict)
    """Servers whose tools are unknown, by the command that lists them."""

    def note(self, name: str, what: str) -> None:
        self.moving.notes.append(f"{name}: {what}")

    def add(self, foreign: ForeignServer) -> None:
        name = server_name(foreign.name)
        if name is None or not SERVER_NAME.fullmatch(name):
            return self.note(ascii(foreign.name[:80]), "has a name that no server can have here: left out")
        if name in self.servers:
            return self.note(name, f"exists already: {self.source} {foreign.path} was left out")
        lines = self._http(name, foreign) if foreign.url is not None else self._stdio(name, foreign)
        if lines is None:
            return None
        self.servers.add(name)
        self.names.append(name)
        if name != foreign.name:
            self.note(name, f"was called {foreign.name[:80]!a}")
        if foreign.unsupported:
            self.note(name, f"settings that mean nothing here were left out: {', '.join(foreign.unsupported)[:200]}")
        self.server_texts.append("\n".join([f"[servers.{name}]", *lines]))
        self._bundle(name, foreign)
        return None

    # --- servers ----------------------------------------------------------------------------------------------------

    def _http(self, name: str, foreign: ForeignServer) -> list[str] | None:
        try:
            url, cut = without_credentials(foreign.url or "")
        except ValueError as wrong:
            self.note(name, f"its address {wrong}: left out")
            return None
        if url.startswith("http:") and not is_loopback(urlsplit(url).hostname or ""):
            self.note(name, "its address is plain http to another machine, which is refused here: left out")
            return None
        sse = foreign.kind in _SSE or (not foreign.kind and url.rstrip("/").endswith("/sse"))
        lines = ['transport = "sse"', "legacy = true"] if sse else ['transport = "streamable-http"']
        lines.append(f"url = {toml_string(url)}")
        if cut:
            advice = "give it in a header, then switch it on"
            self.note(name, f"its address held a credential, which was taken out: {advice}")
        pairs = self._pairs(name, foreign, foreign.headers, "headers", _HEADER)
        return [*lines, *self._common_lines(foreign, off=bool(cut)), *_table(f"servers.{name}.headers", pairs)]

    def _stdio(self, name: str, foreign: ForeignServer) -> list[str] | None:
        command, arguments = at_home(foreign.command or ""), tuple(map(at_home, foreign.args))
        if not command or "$" in command or len(command) > 2000 or not command.isprintable():
            self.note(name, "has neither an address nor a command that can be started: left out")
            return None
        secret = secret_arguments(arguments)
        args = [_TAKEN_OUT if index in secret else arg for index, arg in enumerate(arguments)]
        if any(len(arg) > 4096 for arg in args):
            self.note(name, "an argument is longer than 4,096 characters: left out")
            return None
        lines = ['transport = "stdio"', f"command = {toml_string(command)}"]
        if args:
            lines.append(f"args = [{', '.join(toml_string(arg) for arg in args)}]")
        if secret:
            where = ", ".join(str(index + 1) for index in secret)
            what = f"argument {where} held a secret or a reference, which other users could read: it was taken out"
            advice = "pass it in env where the server can read it from there"
            self.note(name, f"{what} and the server is switched off; {advice}")
        if (command, *arguments) != (foreign.command, *foreign.args):
            where = "where servers are started: the folder that Router.open has"
            self.note(name, f"the project's folder is '.' here, {where}")
        self.note(name, "is started as a child process, which needs --development")
        pairs = self._pairs(name, foreign, foreign.env, "env", _VARIABLE)
        return [*lines, *self._common_lines(foreign, off=bool(secret)), *_table(f"servers.{name}.env", pairs)]

    def _common_lines(self, foreign: ForeignServer, *, off: bool) -> list[str]:
        lines = ['trust = "untrusted"']
        if off or not foreign.enabled:
            lines.append("enabled = false")
        exclude = sorted({tool for tool in foreign.exclude if TOOL_NAME.fullmatch(tool)})
        if exclude:
            lines.append(f"exclude = [{', '.join(toml_string(tool) for tool in exclude)}]")
        if foreign.timeout_s is not None:
            lines.append(f"timeout_s = {foreign.timeout_s:g}")
        return lines

    def _pairs(
        self, name: str, foreign: ForeignServer, pairs: Sequence[tuple[str, str]], key: str, form: re.Pattern[str]
    ) -> list[tuple[str, str]]:
        rows = []
        for label, value in pairs:
            path = f"{self.source} {foreign.path}.{key}.{label}"
            fits = form.fullmatch(label) and value.isprintable() and len(value) <= 2000
            if not fits or (key == "headers" and not value):
                self.note(name, f"{key} {label[:80]!a} can't be written here: left out")
            else:
                rows.append((label, self.moving.reference_secrets(name, label, value, path)))
        return rows

    # --- bundles ----------------------------------------------------------------------------------------------------

    def _bundle(self, name: str, foreign: ForeignServer) -> None:
        id_ = f"thirdparty.{name}"
        if id_ in self.bundles:
            return self.note(name, f"bundle {id_!r} exists already and was left as it is")
        known = {*foreign.tools, *self.tools.get(name, ())} - set(foreign.exclude)
        named = sorted(tool for tool in known if TOOL_NAME.fullmatch(tool))
        self.bundles.add(id_)
        self.bundle_texts.append(bundle_text(name, named))
        if not named:
            self.unknown.setdefault(f"bundle-router pin{'' if foreign.url else ' --development'}", []).append(name)
        return None

    def done(self) -> ImportedServers:
        head = f"# Imported from {self.source!a}. Everything is untrusted until you say otherwise.\n"
        for command, names in self.unknown.items():
            why = "no tools are known, so the bundle is a comment"
            self.note(", ".join(names), f"{why}: `{command} {' '.join(names)}` lists them")
        return ImportedServers(
            servers=f"\n{head}\n" + "\n\n".join(self.server_texts) + "\n" if self.server_texts else "",
            bundles=f"\n{head}\n" + "\n\n".join(self.bundle_texts) + "\n" if self.bundle_texts else "",
            notes=tuple(dict.fromkeys(self.moving.notes)),
            variables=tuple(sorted({*self.moving.values, *self.moving.referred})),
            names=tuple(self.names),
        )


def bundle_text(server: str, tools: Sequence[str]) -> str:
    """Return a first bundle for an untrusted server: its tools behind meta-tools; without tools, a comment."""
    lines = [
        f'[bundles."thirdparty.{server}"]',
        "# Say in your own words what it is for, and narrow what its tools can do.",
        f"description = {toml_string(f'Tools of the server {server}.')}",
        "tools = [",
        *(f"  {toml_string(f'{server}.{tool}')}," for tool in tools or ("name_of_a_tool",)),
        "]",
        'effects = ["read", "write", "exec", "network"]',
        'mode = "meta"',
    ]
    return "\n".join(lines if tools else [f"#{line}" if not line.startswith("#") else line for line in lines])


def server_name(foreign: str) -> str | None:
    """Return the nearest valid server name: `GitHub MCP` → `github-mcp`; None if there is none."""
    name = re.sub(r"[^a-z0-9_-]+", "-", foreign.lower()).strip("-_")[:64].rstrip("-_")
    return name or None


def _table(name: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    return ["", f"[{name}]", *(f"{_key(key)} = {toml_string(value)}" for key, value in pairs)] if pairs else []


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else toml_string(text)


def toml_string(text: str) -> str:
    """Return the text as a TOML basic string, ASCII where it is not printable."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(escapes.get(c) or (c if c.isprintable() else _code(c)) for c in text) + '"'


def _code(character: str) -> str:
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "\\uFFFD"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
