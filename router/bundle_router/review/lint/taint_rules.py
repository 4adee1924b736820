"""Lint: rows with `seen` that can't do what they say, and steps that can leak what they read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from bundle_router.core.catalog import Bundle, Catalog, Route
from bundle_router.review.lint.findings import LintFinding, Subject

MAX_NAMED: Final = 5
"""Tools that a finding names at most."""
_HOSTS_OF_ANYBODY: Final = (
    "github.io",
    "githubusercontent.com",
    "gitlab.io",
    "gist.github.com",
    "pastebin.com",
    "netlify.app",
    "vercel.app",
    "pages.dev",
    "web.app",
    "blogspot.com",
    "medium.com",
)
"""Hosts under which anybody has a page of their own."""


def never_in_force(subject: Subject) -> Iterator[LintFinding]:
    """Yield a row for a taint that no tool returns, so that only what engines carry in counts."""
    catalog = subject.catalog
    if not catalog.looks_at_taints:
        return
    returned = _with_sorts(
        catalog, (taint for tool in _targets(catalog) for taint in catalog.statements.returns(tool))
    )
    for entry in subject.resolved.written.policies:
        for index, taint in enumerate(entry.value.seen):
            if taint not in returned:
                message = (
                    f"no tool returns {taint!r}: the row counts only where the engine says that a"
                    " step carries it"
                )
                hint = f"say it of what reads such content: returns = ['{taint}']"
                yield LintFinding(entry, message, hint, ("seen", index))


def unstated_taint(subject: Subject) -> Iterator[LintFinding]:
    """Yield a row that rests on what tools return, where nobody says it of some: what is never
    inferred is not seen then.
    """
    catalog = subject.catalog
    if not catalog.looks_at_taints:
        return
    sorts = dict(catalog.taints)
    private = {"private", *(name for name, sort in sorts.items() if sort == "private")}
    silent = sorted(tool for tool in _targets(catalog) if not catalog.statements.is_stated(tool)[0])
    for entry in subject.resolved.written.policies:
        if not silent or private.isdisjoint(entry.value.seen):
            continue
        names = ", ".join(silent[:MAX_NAMED])
        rest = f" and {len(silent) - MAX_NAMED} more" if len(silent) > MAX_NAMED else ""
        message = f"nobody says what these tools return, so it is not private: {names}{rest}"
        hint = "add [[servers.NAME.taints]] with returns = [...]; [] says that it is not"
        yield LintFinding(entry, message, hint, ("seen",))


def trifecta(subject: Subject) -> Iterator[LintFinding]:
    """Yield a route whose steps have private data, strangers' text and a way out at once, and no
    enforced row that counts once both were read.
    """
    catalog = subject.catalog
    if any(row.seen and row.enforce and row.is_open for row in catalog.policies):
        return
    for entry, route in zip(subject.resolved.written.routes, catalog.routes, strict=True):
        message = _leak(catalog, _tools_of(subject, route))
        if message:
            hint = "add a policy row: seen = ['private', 'untrusted'], deny = ['sends:outside']"
            yield LintFinding(entry, message, hint, ("bundles",))


def _tools_of(subject: Subject, route: Route) -> set[str]:
    """Return the tools that steps of the route are given and policy permits."""
    tools: set[str] = set()
    for id_ in route.bundles:
        bundle = subject.catalog.bundle(id_)
        if bundle is not None:
            tools |= subject.reach.tools_on(route, bundle)
    return tools


def _leak(catalog: Catalog, tools: set[str]) -> str:
    """Return how private data can leave through these tools, in words; empty where it can't."""
    private = _first_with(catalog, tools, "private")
    strange = _first_with(catalog, tools, "untrusted")
    senders = sorted(filter(catalog.statements.sends, tools))
    way_out = senders[0] if senders else ""
    if not all((private, strange, way_out)):
        return ""
    return (
        f"its steps read private data ({private}) and strangers' text ({strange}), and can send"
        f" ({way_out})"
    )


def hosts_of_strangers(subject: Subject) -> Iterator[LintFinding]:
    """Yield a host of `[docs]` under which strangers have pages, while docs.fetch is said to send
    nowhere: they read the addresses that are asked for.
    """
    entry = subject.resolved.written.docs
    catalog = subject.catalog
    if entry is None or "docs" not in catalog.servers or not catalog.looks_at_taints:
        return
    if catalog.statements.sends("docs.fetch"):
        return
    for index, host in enumerate(entry.value.hosts):
        is_shared = any(host == name or host.endswith(f".{name}") for name in _HOSTS_OF_ANYBODY)
        if host.startswith("*.") or is_shared:
            message = f"{host!r} covers pages of strangers, who see which addresses are read there"
            hint = "name the hosts one by one, or say of docs: sends = ['outside']"
            yield LintFinding(entry, message, hint, ("hosts", index))


def _targets(catalog: Catalog) -> set[str]:
    """Return the tools, and globs over tools that nobody listed, of the bundles in use."""
    bundles: Iterable[Bundle] = catalog.bundles.values()
    return {
        target
        for bundle in bundles
        if bundle.enabled
        for target in (*bundle.tools, *bundle.patterns)
    }


def _with_sorts(catalog: Catalog, taints: Iterable[str]) -> set[str]:
    sorts = dict(catalog.taints)
    names = set(taints)
    return names | {sorts[name] for name in names if name in sorts}


def _first_with(catalog: Catalog, tools: Iterable[str], taint: str) -> str:
    """Return the first of the tools, by name, that returns the taint or a sort of it; or ''."""
    for tool in sorted(tools):
        if taint in _with_sorts(catalog, catalog.statements.returns(tool)):
            return tool
    return ""
