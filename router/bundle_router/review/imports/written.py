"""Writes imported servers, with a first set of bundles, as config text to append."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from bundle_router.core.catalog import Server
from bundle_router.core.config.servers import is_loopback
from bundle_router.core.servers.pins.reviewed import Pins
from bundle_router.core.values import SERVER_NAME, TOOL_NAME
from bundle_router.review.imports.foreign import ForeignServer, read_clients
from bundle_router.review.imports.moved_values import MovedValues, clean_address, secret_arguments
from bundle_router.review.imports.variable_syntax import (
    HERE,
    TAKEN_OUT,
    placeholders,
    read_references,
    with_defaults,
    without_references,
)
from bundle_router.review.library import LibraryServer, first_bundles
from bundle_router.review.toml_text import toml_string

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_SHELLS: Final = ("bash", "cmd", "dash", "fish", "ksh", "sh", "zsh")
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


def _no_pins(_server: str) -> Pins | None:
    return None


def import_clients(
    text: str,
    name: str,
    *,
    servers: Collection[str] = (),
    bundles: Collection[str] = (),
    pins: Callable[[str], Pins | None] = _no_pins,
    library: Sequence[LibraryServer] = (),
    languages: Sequence[str] = (),
) -> ImportedServers:
    """Return config text for the settings of another program. Raises ImportProblem.

    `servers` and `bundles` are the existing names. `pins` gives what was reviewed of a server (by
    its name here), `library` what is known about such definitions, and `languages` those whose
    key words are written.
    """
    writing = _Writing(name, set(servers), set(bundles), pins, library, languages)
    clients = read_clients(text, name)
    writing.moving.notes += clients.notes
    for foreign in clients.servers:
        writing.add(foreign)
    return writing.done()


@dataclass(slots=True)
class _Writing:
    source: str
    servers: set[str]
    bundles: set[str]
    pins: Callable[[str], Pins | None]
    library: Sequence[LibraryServer]
    languages: Sequence[str]
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
        if name in self.names:
            reason = f"{self.source} {foreign.path} would have the same name here as one before it"
            return self.note(name, f"{reason}: left out")
        if name in self.servers:
            return self.note(name, f"exists already: {self.source} {foreign.path} was left out")
        lines = self._http(name, foreign) if foreign.url is not None else self._stdio(name, foreign)
        if lines is None:
            return None
        self.servers.add(name)
        self.names.append(name)
        if name != foreign.name:
            self.note(name, f"was called {foreign.name[:80]!a}")
        for note in foreign.notes:
            self.note(name, note)
        if foreign.unsupported:
            self.note(
                name,
                "settings without an equivalent here were left out:"
                f" {', '.join(foreign.unsupported)[:200]}",
            )
        self.server_texts.append("\n".join([f"[servers.{name}]", *lines]))
        self._bundle(name, foreign)
        return None

    # --- servers ----------------------------------------------------------------------------------

    def _http(self, name: str, foreign: ForeignServer) -> list[str] | None:
        text = self._with_defaults(name, "its address", foreign.url or "")
        try:
            address = clean_address(text)
        except ValueError as wrong:
            self.note(name, f"its address {wrong}: left out")
            return None
        url = address.url
        if url.startswith("http:") and not is_loopback(urlsplit(url).hostname or ""):
            self.note(
                name,
                "its address is plain http to another machine, which is refused here: left out",
            )
            return None
        sse = foreign.kind in _SSE or (not foreign.kind and url.rstrip("/").endswith("/sse"))
        lines = ['transport = "sse"', "legacy = true"] if sse else ['transport = "streamable-http"']
        lines.append(f"url = {toml_string(url)}")
        advice = "give it in a header, then switch it on"
        if address.without_credential:
            self.note(name, f"its address held a credential, which was taken out: {advice}")
        if address.without_reference:
            self.note(name, f"its address referred to a variable, which was taken out: {advice}")
        if address.without_fragment:
            self.note(name, "its address had a fragment ('#...'), which is never sent: taken out")
        pairs = self._pairs(name, foreign, foreign.headers, "headers", _HEADER)
        is_off = address.without_credential or address.without_reference
        return [
            *lines,
            *self._common_lines(foreign, off=is_off),
            *self._login_lines(name, foreign, pairs),
            *_table(f"servers.{name}.headers", pairs),
        ]

    def _login_lines(
        self, name: str, foreign: ForeignServer, headers: Sequence[tuple[str, str]]
    ) -> list[str]:
        """Return the lines of a login over OAuth."""
        login = foreign.login
        if login is None:
            return []
        if any(label.lower() == "authorization" for label, _ in headers):
            self.note(name, "has a header Authorization, so its OAuth settings were left out")
            return []
        if login.unsupported:
            reason = ", ".join(login.unsupported)[:200]
            self.note(name, f"OAuth: the server itself says what these are, left out: {reason}")
        if login.has_secret:
            reason = "OAuth: a client's secret can't be given here, and was left out"
            self.note(name, f"{reason}: a login needs a client that is registered as a public one")

        command = f"bundle-router login {name}"
        if login.port is not None:
            command += f" --port {login.port}"
        self.note(name, f"log in once: `{command}`")
        lines = ['auth = "oauth"']
        if login.client_id is None:
            return lines
        is_literal = login.client_id.isascii() and login.client_id.isprintable()
        if not is_literal or len(login.client_id) > 200 or "$" in login.client_id:
            self.note(name, "its OAuth client id can't be written here: set client_id")
            return lines
        return [*lines, f"client_id = {toml_string(login.client_id)}"]

    def _stdio(self, name: str, foreign: ForeignServer) -> list[str] | None:
        command = self._with_defaults(name, "its command", foreign.command or "")
        refers_to = next(read_references(command), None)
        if refers_to is not None:
            reason = f"its command refers to {refers_to.syntax[:80]}"
            self.note(name, f"{reason}, and a command can't do so here: left out")
            return None
        if not command or "$" in command or len(command) > 2000 or not command.isprintable():
            self.note(name, "has neither an address nor a command that can be started: left out")
            return None
        arguments = self._arguments(name, command, foreign.args)
        if arguments is None:
            return None
        args, is_off = arguments
        lines = ['transport = "stdio"', f"command = {toml_string(command)}"]
        if args:
            lines.append(f"args = [{', '.join(toml_string(arg) for arg in args)}]")
        if foreign.folder:
            is_off = True
            reason = f"starts in the folder {foreign.folder[:200]!a} there"
            advice = "here it starts in the folder that Router.open has, so it is switched off"
            self.note(name, f"{reason}; {advice} until its paths fit")
        if foreign.login is not None:
            self.note(
                name, "its OAuth settings were left out: a program gets its credential in env"
            )
        self.note(name, "is started as a child process, which needs --development")
        pairs = self._pairs(name, foreign, foreign.env, "env", _VARIABLE)
        return [
            *lines,
            *self._common_lines(foreign, off=is_off),
            *_table(f"servers.{name}.env", pairs),
        ]

    def _arguments(
        self, name: str, command: str, arguments: Sequence[str]
    ) -> tuple[list[str], bool] | None:
        """Return the arguments without secrets and references, and whether any had one; None, with
        a note, if one can't be written.
        """
        is_shell = command.rpartition("/")[2] in _SHELLS
        texts = []
        refers_to: list[str] = []
        for arg in arguments:
            text = self._with_defaults(name, "an argument", arg)
            text, references = without_references(text, is_shell=is_shell)
            texts.append(text)
            refers_to += references
            for placeholder in placeholders(text):
                self.note(name, f"{placeholder[:80]!a} was taken over as it stands, in an argument")
        secret = secret_arguments(tuple(texts))
        args = [TAKEN_OUT if index in secret else arg for index, arg in enumerate(texts)]
        if any(len(arg) > 4096 for arg in args):
            self.note(name, "an argument is longer than 4,096 characters: left out")
            return None

        advice = "pass it in env where the server can read it from there"
        if secret:
            positions = ", ".join(str(index + 1) for index in secret)
            reason = f"argument {positions} held a secret, which other users could read"
            self.note(name, f"{reason}: it was taken out and the server is switched off; {advice}")
        if refers_to:
            self.note(
                name,
                f"its arguments refer to {', '.join(dict.fromkeys(refers_to))[:200]}, and arguments"
                f" can't here: {TAKEN_OUT} stands there and the server is switched off; write it"
                f" out, or {advice}",
            )
        return args, bool(secret or refers_to)

    def _with_defaults(self, name: str, place: str, text: str) -> str:
        """Return a text that can't refer to variables here, with what they fall back to."""
        with_texts, replaced = with_defaults(text)
        for reference in replaced:
            reason = f"{place} can't refer to a variable here"
            self.note(name, f"{reason}: the default of {reference.syntax[:80]} stands there")
        if any(reference.text == HERE for reference in read_references(text)):
            self.note(
                name,
                "the project's folder is '.' here, where servers are started: the folder that"
                " Router.open has",
            )
        return with_texts

    def _common_lines(self, foreign: ForeignServer, *, off: bool) -> list[str]:
        lines = ['trust = "untrusted"']
        if off or not foreign.enabled:
            lines.append("enabled = false")
        exclude = sorted({tool for tool in foreign.exclude if TOOL_NAME.fullmatch(tool)})
        if exclude:
            lines.append(f"exclude = [{', '.join(toml_string(tool) for tool in exclude)}]")
        if foreign.timeout_s is not None:
            lines.append(f"timeout_s = {foreign.timeout_s:g}")
        if foreign.connect_s is not None:
            lines.append(f"connect_s = {foreign.connect_s:g}")
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
                continue
            text = self.moving.reference_secrets(name, label, value, path)
            if text is not None:
                rows.append((label, text))
        return rows

    # --- bundles ----------------------------------------------------------------------------------

    def _bundle(self, name: str, foreign: ForeignServer) -> None:
        id_ = f"thirdparty.{name}"
        if id_ in self.bundles:
            return self.note(name, f"bundle {id_!r} exists already and was left as it is")
        pins = self.pins(name)
        if pins is not None and pins.pins:
            return self._first_bundles(name, foreign, pins)
        tool_names = sorted(
            tool for tool in set(foreign.tools) - set(foreign.exclude) if TOOL_NAME.fullmatch(tool)
        )
        self.bundles.add(id_)
        self.bundle_texts.append(bundle_text(name, tool_names))
        if not tool_names:
            self.unknown.setdefault(
                f"bundle-router pin{'' if foreign.url else ' --development'}", []
            ).append(name)
        return None

    def _first_bundles(self, name: str, foreign: ForeignServer, pins: Pins) -> None:
        """Add bundles for a server whose definitions were reviewed here before."""
        server = Server(name, exclude=tuple(foreign.exclude))
        first = first_bundles(
            pins.reviewed(server), self.library, trusted=False, languages=self.languages
        )
        existing = sorted(self.bundles.intersection(first.ids))
        if existing:
            return self.note(name, f"bundle {existing[0]!r} exists already and was left as it is")
        self.bundles.update(first.ids)
        self.bundle_texts.append(first.text.rstrip())
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
