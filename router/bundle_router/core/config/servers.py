"""Stage 2 for servers: which keys fit which transport, where a server may listen, and how it gets
secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from bundle_router.core.catalog import TRANSPORT_KEYS, Server
from bundle_router.core.config.entries import WrittenEntry
from bundle_router.core.config.positions import Path
from bundle_router.core.config.problem_report import Report
from bundle_router.core.config.secrets import (
    is_credential_name,
    is_plain_setting,
    literal_secret,
    looks_secret,
    malformed_reference,
    references,
)
from bundle_router.core.values import META_SERVER, SERVER_NAME
from bundle_router.core.values.patterns import is_glob

ServerEntry = WrittenEntry[Server]

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ADVICE: Final = "keep it in the environment and write '${NAME}' here"
_STARTERS: Final = (
    "npx",
    "uvx",
    "uv",
    "node",
    "python",
    "python3",
    "pipx",
    "bunx",
    "deno",
    "docker",
    "podman",
)
_GLOBS_ELSEWHERE: Final = {
    "{": "write each out: ['a', 'b']",
    "}": "write each out: ['a', 'b']",
    "[": "write each out: ['a', 'b'], or '?' for one character",
    "]": "write each out: ['a', 'b'], or '?' for one character",
    "|": "write each out: ['a', 'b']",
    "!": "there is no negation: say it with deny, or with an earlier row",
}
"""Glob syntax of other programs, and what to write instead.

Here it would be taken literally and match nothing; a denial with it would protect nothing.
"""


def check_globs(
    entry: WrittenEntry[Any], where: str | Path, patterns: Sequence[str], report: Report
) -> None:
    """Report each of the patterns at `where` that means something elsewhere and nothing here."""
    for index, pattern in enumerate(patterns):
        if pattern.startswith("!"):
            mark = "!"
        else:
            mark = next((char for char in pattern if char in "{}[]|"), "")
        if mark:
            message = f"{pattern[:80]!r} uses {mark!r}, and patterns know only '*' and '?'"
            path = (where,) if isinstance(where, str) else where
            report.add_about(entry, (*path, index), message, _GLOBS_ELSEWHERE[mark])


def resolve_server(
    entry: ServerEntry, local_tools: Mapping[str, Set[str]], report: Report
) -> Server:
    """Return the catalog's value of the server.

    Problems go to the report; the server must then not be used.
    """
    server = entry.value
    if server.name == META_SERVER:
        report.add_about(
            entry,
            "",
            f"{META_SERVER!r} is the router itself, in records of its own tools",
            "rename it",
        )
    _check_keys(entry, report)
    check_globs(entry, "include", server.include or (), report)
    check_globs(entry, "exclude", server.exclude, report)
    _check_values(entry, "headers", server.headers, report)
    _check_values(entry, "env", server.env, report)
    if server.traits.speaks_http:
        _check_url(entry, report)
        _check_auth(entry, report)
    if server.traits.starts_process:
        _check_command(entry, report)
    if not server.traits.is_remote:
        _check_local(entry, local_tools, report)
    _check_trust(entry, report)
    for index, row in enumerate(server.reuse):
        check_globs(entry, ("reuse", index, "tools"), row.tools, report)
    if server.volatile:  # what admits definitions is loaded for these alone
        from bundle_router.core.servers.admission.identity import VolatileError, volatile_paths
    for index, path in enumerate(server.volatile):
        try:
            volatile_paths((path,))
        except VolatileError as wrong:
            report.add_about(entry, ("volatile", index), str(wrong))
    return replace(
        server,
        headers=tuple(sorted(server.headers)),
        env=tuple(sorted(server.env)),
        include=None if server.include is None else tuple(sorted(server.include)),
        exclude=tuple(sorted(server.exclude)),
        volatile=tuple(sorted(server.volatile)),
        idempotent=tuple(sorted(server.idempotent)),
        pass_through=tuple(sorted(server.pass_through)),
        env_names=tuple(
            sorted(
                {name for _, value in (*server.headers, *server.env) for name in references(value)}
            )
        ),
    )


def _check_keys(entry: ServerEntry, report: Report) -> None:
    server = entry.value
    fitting = server.traits.takes
    for key in TRANSPORT_KEYS:
        if key in entry.keys and key not in fitting:
            takes = f"it takes {', '.join(fitting) or 'neither url nor command'}"
            if server.traits.speaks_http:
                hint = f"{takes}; stdio takes command, args and env"
            else:
                hint = takes
            report.add_about(entry, key, f"does not fit transport {server.transport!r}", hint)
    needed = server.traits.needs
    if needed is not None and needed not in entry.keys and entry.complete:
        report.add_about(
            entry, "", f"transport {server.transport!r} needs {needed!r}", f"add {needed} = ..."
        )
    if server.traits.legacy and not server.legacy:
        hint = "use 'streamable-http', or add legacy = true"
        report.add_about(
            entry, "transport", f"transport {server.transport!r} has been given up by MCP", hint
        )
    if server.legacy and not server.traits.legacy:
        report.add_about(entry, "legacy", "is only for transport 'sse'", "remove it")


def _check_trust(entry: ServerEntry, report: Report) -> None:
    """Report keys that only a trusted server may have."""
    server = entry.value
    hint = "remove it, or add trust = 'trusted'"
    if server.pass_through and not server.traits.is_remote:
        report.add_about(
            entry, "pass_through", "a local server has tools, and nothing else", "remove it"
        )
    elif server.pass_through and server.trust != "trusted":
        report.add_about(
            entry, "pass_through", "what an untrusted server says is not passed on unaltered", hint
        )
    asking = sorted({"input", "logging"} & {*server.pass_through})
    if server.shared and asking:
        message = f"a process that several runs share can't be told whose {asking[0]} this is"
        report.add_about(entry, "shared", message, f"remove it, or {asking[0]!r} from pass_through")
    if not server.prefix and server.trust != "trusted":
        report.add_about(
            entry, "prefix", "the names of an untrusted server keep its name before them", hint
        )
    if server.reuse and server.trust != "trusted":
        message = "is for trusted servers: what a stranger said once would be said again"
        report.add_about(entry, "reuse", message, "remove it")


def check_prefixes(entries: Iterable[ServerEntry], report: Report) -> None:
    """Report a second server without a prefix: its tools' names would depend on what the first
    lists today.
    """
    bare = [entry for entry in entries if not entry.value.prefix]
    for entry in bare[1:]:
        message = f"server {bare[0].name!r} has no prefix already, and names have to be unique"
        report.add_about(entry, "prefix", message, "remove it here")


def is_loopback(host: str) -> bool:
    """Return whether a host, by its name or its address, is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_plain_http(url: str) -> bool:
    """Return whether traffic to the address can be read on its way."""
    return url.lower().startswith("http:")


def _split(url: str) -> SplitResult | None:
    """Return the parts of an http(s) URL, or None: `urlsplit` raises on bad brackets, and `.port`
    on a bad port.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    if parts.scheme in ("http", "https") and parts.hostname:
        return parts
    return None


def _check_url(entry: ServerEntry, report: Report) -> None:
    url = entry.value.url
    if url is not None and "$" in url:
        report.add_about(
            entry, "url", "${NAME} is for headers and env only", "write the address out"
        )
    elif url is not None:
        check_url(
            entry,
            ("url",),
            url,
            report,
            example="https://host/mcp",
            instead="use a header: " + _ADVICE,
        )


def check_url(
    entry: WrittenEntry[Any], where: Path, url: str, report: Report, *, example: str, instead: str
) -> None:
    """Report an invalid address, one that others can listen to, and one with a credential in it."""
    parts = None
    if url.isascii() and url.isprintable() and " " not in url:
        parts = _split(url)
    if parts is None or parts.hostname is None:
        report.add_about(
            entry, where, f"{url[:80]!r} is not an http or https address", f"such as {example!r}"
        )
        return

    if parts.scheme == "http" and not is_loopback(parts.hostname):
        report.add_about(
            entry, where, "plain http would send calls and tokens in the clear", "use https"
        )
    if parts.username is not None or parts.password is not None:
        report.add_about(entry, where, "holds a user name or password", instead)
    if parts.fragment:
        report.add_about(entry, where, "has a fragment ('#...'), which is never sent", "remove it")

    if looks_secret(url) or _has_credential_name(parts.query):
        report.add_about(entry, where, "holds what looks like a credential", instead)


def _has_credential_name(query: str) -> bool:
    """Return whether a parameter of an address is named as credentials are."""
    names = [name for name, _ in parse_qsl(query)]
    return any(map(is_credential_name, names))


def _check_values(
    entry: ServerEntry, key: str, pairs: Sequence[tuple[str, str]], report: Report
) -> None:
    for name, value in pairs:
        path: Path = (key, name)
        if key == "headers" and not _HEADER_NAME.fullmatch(name):
            report.add_about(entry, path, f"{name[:80]!r} is not a header name")
        if not value.isprintable():
            report.add_about(entry, path, "holds a line break or control character", "remove it")
        if malformed_reference(value):
            report.add_about(entry, path, "holds a '$' that is not a reference", "write '${NAME}'")
        elif literal_secret(name, value):
            report.add_about(entry, path, "looks like a secret written out", _ADVICE)
        elif not references(value) and not is_plain_setting(value):
            message = (
                "is written out, and nothing shows that it is no secret: only references may be"
            )
            report.add_about(entry, path, message, _ADVICE)


def _check_auth(entry: ServerEntry, report: Report) -> None:
    server = entry.value
    if server.auth is not None and any(
        name.lower() == "authorization" for name, _ in server.headers
    ):
        message = "can't be used with a header 'Authorization': a request carries one credential"
        report.add_about(entry, "auth", message, "remove one of them")
    if server.client_id is None:
        return
    if server.auth is None:
        report.add_about(
            entry, "client_id", "is for auth = 'oauth' only", "add auth = 'oauth', or remove it"
        )
    if not server.client_id.isascii() or not server.client_id.isprintable():
        report.add_about(
            entry, "client_id", f"{server.client_id[:80]!r} is no client id: it is printable ASCII"
        )


def _check_command(entry: ServerEntry, report: Report) -> None:
    words: list[tuple[Path, str]] = [(("args", i), arg) for i, arg in enumerate(entry.value.args)]
    if entry.value.command is not None:
        words.insert(0, (("command",), entry.value.command))
    for place, word in words:
        if references(word):
            message = (
                "${NAME} is for headers and env only: arguments are visible to other users of the"
                " machine"
            )
            report.add_about(entry, place, message, "pass it in env")
        elif looks_secret(word):
            report.add_about(
                entry, place, "looks like a secret written out", "pass it in env: " + _ADVICE
            )
        if "\0" in word:
            report.add_about(entry, place, "holds a null character", "remove it")


def command_words(command: str) -> list[str]:
    """Return the words of a `command`: more than one if it is a command line.

    A path may have spaces, so only what looks like an option, or like an argument of a well-known
    starter, counts as a further word.
    """
    words = command.split()
    is_line = len(words) > 1 and (
        words[0] in _STARTERS or any(word.startswith("-") for word in words[1:])
    )
    return words if is_line else [command]


def _check_local(entry: ServerEntry, local_tools: Mapping[str, Set[str]], report: Report) -> None:
    tools = local_tools.get(entry.name)
    if tools is None:
        hint = report.suggester.did_you_mean(entry.name, local_tools)
        if local_tools:
            known = f"there are {', '.join(sorted(local_tools))}"
        else:
            known = "none come with this installation"
        add = (
            "your own come by Router.open(local=...), on the command line by --local"
            f" {entry.name}=module:TOOLS"
        )
        if SERVER_NAME.fullmatch(entry.name):  # what else it is called was reported before
            report.add_about(
                entry, "", f"no local tools are called {entry.name!r}", hint or f"{known}; {add}"
            )
        return
    for key, patterns in (("include", entry.value.include or ()), ("exclude", entry.value.exclude)):
        for index, pattern in enumerate(patterns):
            if not is_glob(pattern) and pattern not in tools:
                hint = (
                    report.suggester.did_you_mean(pattern, tools)
                    or f"it has {', '.join(sorted(tools))}"
                )
                report.add_about(
                    entry, (key, index), f"server {entry.name!r} has no tool {pattern!r}", hint
                )
