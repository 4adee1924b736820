"""Lint: servers that nobody uses, that listeners can reach, or that run programs."""

from __future__ import annotations

from collections.abc import Iterator

from router.core.config.findings import Finding, Subject
from router.core.config.servers import is_plain_http


def unused_server(subject: Subject) -> Iterator[Finding]:
    used = {name for bundle in subject.catalog.bundles.values() for name in bundle.servers}
    for name, entry in subject.resolved.written.servers.items():
        if name not in used:
            yield Finding(entry, f"no bundle uses server {name!r}", "name its tools in a bundle, or remove it")


def plain_http(subject: Subject) -> Iterator[Finding]:
    for entry in subject.resolved.written.servers.values():
        if entry.form.url is not None and is_plain_http(entry.form.url):
            message = "plain http: every program on this machine can answer in its place, and read its tokens"
            yield Finding(entry, message, path=("url",))


def stdio_server(subject: Subject) -> Iterator[Finding]:
    for entry in subject.resolved.written.servers.values():
        if entry.form.transport == "stdio" and entry.form.enabled:
            message = "stdio runs a program with the router's own rights, so it is started in development only"
            hint = "serve it over http, or open the router with development on"
            yield Finding(entry, message, hint, ("transport",))
