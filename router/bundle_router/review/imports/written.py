"""Writes imported servers, with a first set of bundles, as config text to append."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from bundle_router.core.config.secrets import (
    is_credential_name,
    literal_secret,
    looks_secret,
    malformed_reference,
)
from bundle_router.core.config.servers import is_loopback
from bundle_router.core.values import SERVER_NAME, TOOL_NAME
from bundle_router.review.imports.foreign import ForeignServer, read_clients

_FOREIGN: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-[^{}]*)?\}")
_HERE: Final = re.compile(r"\$\{(?:workspaceFolder|cwd)(?::[^{}]{0,100})?\}")
_INPUT: Final = re.compile(r"\$\{input:([^{}]{1,100})\}")
_SCHEME: Final = re.compile(r"(?i)((?:bearer|basic|token|apikey)\s+)(.+)", re.DOTALL)
_USER_INFO: Final = re.compile(r"[a-z][a-z0-9+.-]{1,20}://[^/\s:@]{0,200}:[^/\s@]{1,200}@")
_OPTION: Final = re.compile(r"--?([A-Za-z][\w-]{0,60})(?:=(.*))?", re.DOTALL)
_DENSE: Final = re.compile(r"(?=[^a-zA-Z]{0,200}[a-zA-Z])(?=[^0-9]{0,200}[0-9])[\w+=.~-]{20,}")
"""A long value of letters and digits without spaces or slashes.

Replacing one that is no secret does no harm.
"""


@dataclass(slots=True)
class MovedValues:
    """The variables of one import, and the values moved into them.

    One variable never holds two values.
    """

    values: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    referred: set[str] = field(default_factory=set)
    """Variables that are already referred to."""

    def reference_secrets(self, server: str, name: str, value: str, path: str) -> str:
        """Return the value for a header or variable: with references in place of secrets."""
        value = at_home(value)
        text = _FOREIGN.sub(r"${\1}", value)
        self.referred.update(_FOREIGN.findall(value))
        if ":-" in value and text != value:
            self.notes.append(f"{server}: what {path} falls back to was left out: set its variable")
        text = _INPUT.sub(lambda match: self._ask_for_variable(match[1], path), text)
        if not _is_secret(name, text):
            return text
        scheme = _SCHEME.fullmatch(text)
        secret = scheme[2] if scheme else text
        is_variable = re.fullmatch(r"[A-Z][A-Z0-9_]*", name)
        variable = self._variable(name if is_variable else f"{server}_{name}", server, secret)
        self.notes.append(f"set {variable} to the value that stands at {path}")
        return f"{scheme[1] if scheme else ''}${{{variable}}}"

    def _ask_for_variable(self, input_id: str, path: str) -> str:
        variable = self._variable(input_id, "input", f"${{input:{input_id}}}")
        self.notes.append(f"set {variable}: {path} asks for it when it starts")
        return f"${{{variable}}}"

    def _variable(self, wish: str, server: str, value: str) -> str:
        base = re.sub(r"[^A-Z0-9]+", "_", wish.upper()).strip("_") or "SECRET"
        if base[0].isdigit():
            base = f"_{base}"
        prefix = re.sub(r"[^A-Z0-9]+", "_", server.upper()).strip("_")
        numbered = [f"{prefix}_{base}_{number}" for number in range(2, 1000)]
        for name in (base, f"{prefix}_{base}", *numbered):
            if self.values.setdefault(name, value) == value:
                return name
        return base


def at_home(text: str) -> str:
    """Return the text with an editor's variable for the project folder replaced by the folder that
    servers start in.
    """
    return _HERE.sub(".", text).replace("${userHome}", "${HOME}")


def _is_secret(name: str, text: str) -> bool:
    rest = _FOREIGN.sub("", text)
    return (
        literal_secret(name, text)
        or _USER_INFO.search(rest) is not None
        or malformed_reference(text)
        or (_DENSE.fullmatch(rest) is not None and not is_path(rest))
    )


def is_path(text: str) -> bool:
    return "/" in text or "\\" in text or re.search(r"\.[a-z]{2,4}$", text) is not None


def secret_arguments(args: tuple[str, ...]) -> tuple[int, ...]:
    """Return the positions of arguments with a secret, or with a reference, which arguments can't
    have.
    """
    positions = []
    previous = ""
    for index, arg in enumerate(args):
        if _is_credential(arg, previous) or _holds_secret(arg):
            positions.append(index)
        previous = arg
    return tuple(positions)


def _is_credential(arg: str, previous: str) -> bool:
    """Return whether an argument is the value of an option with a credential's name, by itself
    (`--token=x`) or after the option (`--token x`).
    """
    option = _OPTION.fullmatch(arg)
    if option is not None:
        return bool(option[2]) and is_credential_name(option[1])
    option_before = _OPTION.fullmatch(previous)
    if option_before is None or option_before[2] is not None:
        return False
    return is_credential_name(option_before[1])


def _holds_secret(arg: str) -> bool:
    if "${" in arg or "\0" in arg:
        return True
    return looks_secret(arg) or _USER_INFO.search(arg) is not None


def without_credentials(url: str) -> tuple[str, bool]:
    """Return the address without user, password, fragment and credential parameters; and whether it
    had any.

    Raises ValueError if it is no http or https address.
    """
    parts = urlsplit(url)
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise ValueError("is not an http or https address")

    pairs = [pair for pair in parts.query.split("&") if pair]
    query = "&".join(pair for pair in pairs if not _holds_credential(pair))
    host = parts.netloc.rpartition("@")[2]
    clean = urlunsplit((parts.scheme, host, parts.path, query, ""))

    is_dense = any(_DENSE.fullmatch(part) for part in parts.path.split("/"))
    if is_dense or looks_secret(clean) or "$" in clean:
        raise ValueError("holds a credential in its path")
    return clean, clean != url


def _holds_credential(pair: str) -> bool:
    """Return whether a pair of a query has a credential's name, or refers to a variable."""
    names = [name for name, _ in parse_qsl(pair, keep_blank_values=True)]
    return "$" in pair or any(map(is_credential_name, names))


_TAKEN_OUT: Final = "TAKEN-OUT"
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_SSE: Final = frozenset(("sse", "http+sse", "http-sse"))


@dataclass(frozen=True, slots=True)
class ImportedServers:
    """Text to append to `servers.toml` and `bundles.toml` (empty: nothing), notes for a person, and
    the environment variables that must be set.
    """

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

    `servers` and `bundles` are the existing names, `tools` the known tools of servers (by their
    names here).
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
            return self.note(
                ascii(foreign.name[:80]), "has a name that no server can have here: left out"
            )
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
            self.note(
                name,
                "settings that mean nothing here were left out:"
                f" {', '.join(foreign.unsupported)[:200]}",
            )
        self.server_texts.append("\n".join([f"[servers.{name}]", *lines]))
        self._bundle(name, foreign)
        return None

    # --- servers ----------------------------------------------------------------------------------

    def _http(self, name: str, foreign: ForeignServer) -> list[str] | None:
        try:
            url, cut = without_credentials(foreign.url or "")
        except ValueError as wrong:
            self.note(name, f"its address {wrong}: left out")
            return None
        if url.startswith("http:") and not is_loopback(urlsplit(url).hostname or ""):
            self.note(
                name,
                "its address is plain http to another machine, which is refused here: left out",
            )
            return None
        sse = foreign.kind in _SSE or (not foreign.kind and url.rstrip("/").endswith("/sse"))
        lines = ['transport = "sse"', "legacy = true"] if sse else ['transport = "streamable-http"']
        lines.append(f"url = {toml_string(url)}")
        if cut:
            advice = "give it in a header, then switch it on"
            self.note(name, f"its address held a credential, which was taken out: {advice}")
        pairs = self._pairs(name, foreign, foreign.headers, "headers", _HEADER)
        return [
            *lines,
            *self._common_lines(foreign, off=bool(cut)),
            *_table(f"servers.{name}.headers", pairs),
        ]

    def _stdio(self, name: str, foreign: ForeignServer) -> list[str] | None:
        command = at_home(foreign.command or "")
        arguments = tuple(map(at_home, foreign.args))
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
            positions = ", ".join(str(index + 1) for index in secret)
            reason = (
                f"argument {positions} held a secret or a reference, which other users could read:"
                " it was taken out"
            )
            advice = "pass it in env where the server can read it from there"
            self.note(name, f"{reason} and the server is switched off; {advice}")
        if (command, *arguments) != (foreign.command, *foreign.args):
            positions = "where servers are started: the folder that Router.open has"
            self.note(name, f"the project's folder is '.' here, {positions}")
        self.note(name, "is started as a child process, which needs --development")
        pairs = self._pairs(name, foreign, foreign.env, "env", _VARIABLE)
        return [
            *lines,
            *self._common_lines(foreign, off=bool(secret)),
            *_table(f"servers.{name}.env", pairs),
        ]

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
        self,
        name: str,
        foreign: ForeignServer,
        pairs: Sequence[tuple[str, str]],
        key: str,
        form: re.Pattern[str],
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

    # --- bundles ----------------------------------------------------------------------------------

    def _bundle(self, name: str, foreign: ForeignServer) -> None:
        id_ = f"thirdparty.{name}"
        if id_ in self.bundles:
            return self.note(name, f"bundle {id_!r} exists already and was left as it is")
        tools = {*foreign.tools, *self.tools.get(name, ())} - set(foreign.exclude)
        tool_names = sorted(tool for tool in tools if TOOL_NAME.fullmatch(tool))
        self.bundles.add(id_)
        self.bundle_texts.append(bundle_text(name, tool_names))
        if not tool_names:
            self.unknown.setdefault(
                f"bundle-router pin{'' if foreign.url else ' --development'}", []
            ).append(name)
        return None

    def done(self) -> ImportedServers:
        head = (
            f"# Imported from {self.source!a}. Everything is untrusted until you say otherwise.\n"
        )
        for command, names in self.unknown.items():
            reason = "no tools are known, so the bundle is a comment"
            self.note(", ".join(names), f"{reason}: `{command} {' '.join(names)}` lists them")
        return ImportedServers(
            servers=(
                f"\n{head}\n" + "\n\n".join(self.server_texts) + "\n" if self.server_texts else ""
            ),
            bundles=(
                f"\n{head}\n" + "\n\n".join(self.bundle_texts) + "\n" if self.bundle_texts else ""
            ),
            notes=tuple(dict.fromkeys(self.moving.notes)),
            variables=tuple(sorted({*self.moving.values, *self.moving.referred})),
            names=tuple(self.names),
        )


def bundle_text(server: str, tools: Sequence[str]) -> str:
    """Return a first bundle for an untrusted server: its tools behind meta-tools; without tools, a
    comment.
    """
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
    return "\n".join(
        lines if tools else [f"#{line}" if not line.startswith("#") else line for line in lines]
    )


def server_name(foreign: str) -> str | None:
    """Return the nearest valid server name: `GitHub MCP` → `github-mcp`; None if there is none."""
    return re.sub(r"[^a-z0-9_-]+", "-", foreign.lower()).strip("-_")[:64].rstrip("-_") or None


def _table(name: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    if pairs:
        return ["", f"[{name}]", *(f"{_key(key)} = {toml_string(value)}" for key, value in pairs)]
    return []


def _key(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-]+", text):
        return text
    return toml_string(text)


def toml_string(text: str) -> str:
    """Return the text as a TOML basic string, ASCII where it is not printable."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(escapes.get(c) or (c if c.isprintable() else _code(c)) for c in text) + '"'


def _code(character: str) -> str:
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "\\uFFFD"
    if code <= 0xFFFF:
        return f"\\u{code:04X}"
    return f"\\U{code:08X}"
