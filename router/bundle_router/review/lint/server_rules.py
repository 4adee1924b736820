"""Lint: servers that nobody uses, that listeners can reach, or that run programs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from bundle_router.core.config.servers import command_words, is_plain_http
from bundle_router.core.models.patterns import matches
from bundle_router.core.tools.reusable_results import is_read_only
from bundle_router.review.lint.findings import LintFinding, Subject


def unused_server(subject: Subject) -> Iterator[LintFinding]:
    used = {name for bundle in subject.catalog.bundles.values() for name in bundle.servers}
    for name, entry in subject.resolved.written.servers.items():
        if name not in used:
            yield LintFinding(entry, f"no bundle uses server {name!r}", "name its tools in a bundle, or remove it")


def plain_http(subject: Subject) -> Iterator[LintFinding]:
    for entry in subject.resolved.written.servers.values():
        if entry.value.url is not None and is_plain_http(entry.value.url):
            message = "plain http: every program on this machine can answer in its place, and read its tokens"
            yield LintFinding(entry, message, path=("url",))


def stdio_server(subject: Subject) -> Iterator[LintFinding]:
    for entry in subject.resolved.written.servers.values():
        if entry.value.traits.starts_process and entry.value.enabled:
            message = "stdio runs a program with the router's own rights, so it is started in development only"
            hint = "serve it over http, or open the router with development on"
            yield LintFinding(entry, message, hint, ("transport",))


def command_line(subject: Subject) -> Iterator[LintFinding]:
    for entry in subject.resolved.written.servers.values():
        words = command_words(entry.value.command or "")
        if len(words) > 1:
            message = f"{entry.value.command!r} is a command line, and the name of one program is meant"
            arguments = json.dumps([*words[1:], *entry.value.args])
            yield LintFinding(entry, message, f'command = "{words[0]}", args = {arguments}', ("command",))


def dead_reuse(subject: Subject) -> Iterator[LintFinding]:
    """Yield rows of `reuse` under which, by what bundles declare, no result is ever used again."""
    for name, entry in subject.resolved.written.servers.items():
        holders = [bundle for bundle in subject.catalog.bundles.values() if name in bundle.servers]
        tools = {tool for bundle in holders for tool in bundle.tools if tool.startswith(f"{name}.")}
        unknown = any(bundle.patterns and "read" in bundle.effects for bundle in holders)
        for index, row in enumerate(entry.value.reuse):
            covered = (t for t in tools if any(matches(pattern, t.partition(".")[2]) for pattern in row.tools))
            if row.ttl_s and not unknown and not any(is_read_only(subject.catalog, tool) for tool in covered):
                message = "no bundle says of any of these tools that it only reads, so nothing is used again"
                hint = "remove it, or give the tools that only read a bundle of their own"
                yield LintFinding(entry, message, hint, ("reuse", index))
