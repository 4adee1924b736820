"""Stage 2 for servers: which keys fit which transport, where a server may listen, and how secrets get there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from bundle_router.core.catalog import Reuse, Server
from bundle_router.core.config.globs import check_globs
from bundle_router.core.config.positions import Path
from bundle_router.core.config.reading import Entry
from bundle_router.core.config.report import Report
from bundle_router.core.config.secrets import (
    is_credential_name,
    literal_secret,
    looks_secret,
    malformed_reference,
    plainly_harmless,
    references,
)
from bundle_router.core.config.written.entries import WrittenServer
from bundle_router.core.models.patterns import is_glob, matches
from bundle_router.core.tools.admission import VolatileError, volatile_paths

_HTTP: Final = ("streamable-http", "sse")
_KEYS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "streamable-http": ("url", "headers", "auth", "client_id"),
    "sse": ("url", "headers", "auth", "client_id"),
    "stdio": ("command", "args", "env", "files"),
    "local": (),
}
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ADVICE: Final = "keep it in the environment and write '${NAME}' here"


def resolve_server(entry: Entry[WrittenServer], local_tools: Mapping[str, Set[str]], report: Report) -> Server:
    """The server as the catalog has it. What is wrong with it goes to the report; the value then is not to be used."""
    form = entry.form
    _check_keys(entry, report)
    check_globs(entry, "include", form.include or (), report)
    check_globs(entry, "exclude", form.exclude, report)
    if form.transport in _HTTP:
        _check_url(entry, report)
        _check_values(entry, "headers", form.headers or {}, report)
        _check_auth(entry, report)
    if form.transport == "stdio":
        _check_values(entry, "env", form.env or {}, report)
        _check_command(entry, report)
    if form.transport == "local":
        _check_local(entry, local_tools, report)
    _check_reuse(entry, report)
    _check_passing(entry, report)
    for index, path in enumerate(form.volatile):
        try:
            volatile_paths((path,))
        except VolatileError as wrong:
            report.add(entry.file, (*entry.path, "volatile", index), str(wrong))
    pairs = {**(form.headers or {}), **(form.env or {})}
    return Server(
        name=entry.name,
        transport=form.transport,
        trust=form.trust,
        enabled=form.enabled,
        url=form.url,
        command=form.command,
        args=tuple(form.args or ()),
        headers=tuple(sorted((form.headers or {}).items())),
        auth=form.auth,
        client_id=form.client_id,
        env=tuple(sorted((form.env or {}).items())),
        include=None if form.include is None else tuple(sorted(form.include)),
        exclude=tuple(sorted(form.exclude)),
        legacy=form.legacy,
        volatile=tuple(sorted(form.volatile)),
        ttl_s=form.ttl_s,
        timeout_s=form.timeout_s,
        files=form.files,
        reuse=tuple(Reuse(tuple(row.tools), row.ttl_s, row.across_runs) for row in form.reuse),
        pass_through=tuple(sorted(form.pass_through)),
        prefix=form.prefix,
        env_names=tuple(sorted({name for value in pairs.values() for name in references(value)})),
    )


def included(server: Server, tool: str) -> bool:
    """Whether the server's own lists leave the tool in."""
    if server.include is not None and not any(matches(pattern, tool) for pattern in server.include):
        return False
    return not any(matches(pattern, tool) for pattern in server.exclude)


def _check_keys(entry: Entry[WrittenServer], report: Report) -> None:
    form = entry.form
    fitting = _KEYS_OF[form.transport]
    for key in ("url", "headers", "auth", "client_id", "command", "args", "env", "files"):
        if getattr(form, key) is not None and key not in fitting:
            keys = ", ".join(fitting) or "neither url nor command"
            report.add(
                entry.file,
                (*entry.path, key),
                f"does not fit transport {form.transport!r}",
                f"it takes {keys}; stdio takes command, args and env"
                if form.transport in _HTTP
                else f"it takes {keys}",
            )
    for key in ("url", "command"):
        if key in fitting and getattr(form, key) is None:
            report.add(entry.file, entry.path, f"transport {form.transport!r} needs {key!r}", f"add {key} = ...")
    if form.transport == "sse" and not form.legacy:
        message = "transport 'sse' has been given up by MCP"
        report.add(entry.file, (*entry.path, "transport"), message, "use 'streamable-http', or add legacy = true")
    if form.legacy and form.transport != "sse":
        report.add(entry.file, (*entry.path, "legacy"), "is only for transport 'sse'", "remove it")


def _check_passing(entry: Entry[WrittenServer], report: Report) -> None:
    form = entry.form
    if form.pass_through and form.transport == "local":
        report.add(entry.file, (*entry.path, "pass_through"), "a local server has tools, and nothing else", "remove it")
    elif form.pass_through and form.trust != "trusted":
        message = "what an untrusted server says is not passed on unaltered"
        report.add(entry.file, (*entry.path, "pass_through"), message, "remove it, or add trust = 'trusted'")
    if not form.prefix and form.trust != "trusted":
        message = "the names of an untrusted server keep its name before them"
        report.add(entry.file, (*entry.path, "prefix"), message, "remove it, or add trust = 'trusted'")


def check_prefixes(entries: Iterable[Entry[WrittenServer]], report: Report) -> None:
    """Reports a second server without a prefix: its names would depend on what the first lists today."""
    bare = [entry for entry in entries if not entry.form.prefix]
    for entry in bare[1:]:
        message = f"server {bare[0].name!r} has no prefix already, and names have to be told apart"
        report.add(entry.file, (*entry.path, "prefix"), message, "remove it here")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_plain_http(url: str) -> bool:
    return url.lower().startswith("http:")


def _split(url: str) -> SplitResult | None:
    """The parts of an http(s) URL, or None: `urlsplit` raises on bad brackets, and `.port` on a bad port."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts if parts.scheme in ("http", "https") and parts.hostname else None


def _check_url(entry: Entry[WrittenServer], report: Report) -> None:
    url = entry.form.url
    if url is None:
        return
    where = (*entry.path, "url")
    if "$" in url:
        report.add(entry.file, where, "${NAME} is for headers and env only", "write the address out")
        return
    check_url(entry, where, url, report, example="https://host/mcp", instead="use a header: " + _ADVICE)


def check_url(entry: Entry[Any], where: Path, url: str, report: Report, *, example: str, instead: str) -> None:
    """Reports an address that is none, that is open to listeners, or that holds a credential."""
    parts = _split(url) if url.isascii() and url.isprintable() and " " not in url else None
    if parts is None or parts.hostname is None:
        report.add(entry.file, where, f"{url[:80]!r} is not an http or https address", f"such as {example!r}")
        return
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        report.add(entry.file, where, "plain http would send calls and tokens in the clear", "use https")
    if parts.username is not None or parts.password is not None:
        report.add(entry.file, where, "holds a user name or password", instead)
    if parts.fragment:
        report.add(entry.file, where, "has a fragment ('#...'), which is never sent", "remove it")
    if any(is_credential_name(name) for name, _ in parse_qsl(parts.query)) or looks_secret(url):
        report.add(entry.file, where, "holds what looks like a credential", instead)


def _check_values(entry: Entry[WrittenServer], key: str, pairs: Mapping[str, str], report: Report) -> None:
    for name, value in pairs.items():
        where: Path = (*entry.path, key, name)
        if key == "headers" and not _HEADER_NAME.fullmatch(name):
            report.add(entry.file, where, f"{name[:80]!r} is not a header name")
        if not value.isprintable():
            report.add(entry.file, where, "holds a line break or control character", "remove it")
        if malformed_reference(value):
            report.add(entry.file, where, "holds a '$' that is not a reference", "write '${NAME}'")
        elif literal_secret(name, value):
            report.add(entry.file, where, "looks like a secret written out", _ADVICE)
        elif not references(value) and not plainly_harmless(value):
            message = "is written out, and nothing shows that it is no secret: only references may be"
            report.add(entry.file, where, message, _ADVICE)


def _check_auth(entry: Entry[WrittenServer], report: Report) -> None:
    form = entry.form
    if form.auth is not None and any(name.lower() == "authorization" for name in form.headers or {}):
        message = "stands beside a header 'Authorization': a request carries one credential"
        report.add(entry.file, (*entry.path, "auth"), message, "remove one of them")
    if form.client_id is None:
        return
    where = (*entry.path, "client_id")
    if form.auth is None:
        report.add(entry.file, where, "is for auth = 'oauth' only", "add auth = 'oauth', or remove it")
    if not form.client_id.isascii() or not form.client_id.isprintable():
        report.add(entry.file, where, f"{form.client_id[:80]!r} is no client id: it is printable ASCII")


def _check_command(entry: Entry[WrittenServer], report: Report) -> None:
    form = entry.form
    words: list[tuple[Path, str]] = [((*entry.path, "args", i), arg) for i, arg in enumerate(form.args or ())]
    if form.command is not None:
        words.insert(0, ((*entry.path, "command"), form.command))
    for where, word in words:
        if references(word):
            message = "${NAME} is for headers and env only: arguments are visible to other users of the machine"
            report.add(entry.file, where, message, "pass it in env")
        elif looks_secret(word):
            report.add(entry.file, where, "looks like a secret written out", "pass it in env: " + _ADVICE)
        if "\0" in word:
            report.add(entry.file, where, "holds a null character", "remove it")


def _check_reuse(entry: Entry[WrittenServer], report: Report) -> None:
    form = entry.form
    if form.reuse and form.trust != "trusted":
        message = "is for trusted servers: what a stranger said once would be said again"
        report.add(entry.file, (*entry.path, "reuse"), message, "remove it")
    for index, row in enumerate(form.reuse):
        check_globs(entry, "reuse", row.tools, report, index, "tools")


def _check_local(entry: Entry[WrittenServer], local_tools: Mapping[str, Set[str]], report: Report) -> None:
    tools = local_tools.get(entry.name)
    if tools is None:
        hint = report.suggester.did_you_mean(entry.name, local_tools)
        known = f"there are {', '.join(sorted(local_tools))}" if local_tools else "none come with this installation"
        own = f"your own come by Router.open(local=...), on the command line by --local {entry.name}=module:TOOLS"
        report.add(entry.file, entry.path, f"no local tools are called {entry.name!r}", hint or f"{known}; {own}")
        return
    for key, patterns in (("include", entry.form.include or ()), ("exclude", entry.form.exclude)):
        for index, pattern in enumerate(patterns):
            if not is_glob(pattern) and pattern not in tools:
                hint = report.suggester.did_you_mean(pattern, tools)
                message = f"server {entry.name!r} has no tool {pattern!r}"
                report.add(entry.file, (*entry.path, key, index), message, hint or f"it has {', '.join(sorted(tools))}")
