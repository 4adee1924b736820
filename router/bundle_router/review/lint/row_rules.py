"""Lint: routes that never win, policies that say too little or too much, unsafe fallbacks and
servers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from bundle_router.core.catalog import Bundle, Catalog, Policy
from bundle_router.core.catalog.step_address import PARTS
from bundle_router.core.config.servers import command_words, is_plain_http
from bundle_router.core.decide.reach import shadowing_routes
from bundle_router.core.results.reusable_results import is_read_only
from bundle_router.core.values.patterns import Targets, first_match, is_glob, matches
from bundle_router.review.lint.findings import LintFinding, Subject

MAX_WAYS: Final = 100_000
"""Maximum pairs of a denied bundle's tool and another bundle with it that are checked."""


def unreachable_route(subject: Subject) -> Iterator[LintFinding]:
    """Yield a route that never matches, because an earlier one matches all of its steps."""
    entries = subject.resolved.written.routes
    for index, earlier in shadowing_routes(subject.catalog.routes).items():
        name = subject.catalog.routes[earlier].name
        message = (
            f"never matches: route {name!r} (routes[{earlier}]) matches all of its steps first"
        )
        yield LintFinding(entries[index], message, "move it up, or remove it")


def denied_route(subject: Subject) -> Iterator[LintFinding]:
    """Yield a bundle of a route that no policy permits at any of the route's steps."""
    if not subject.reach.complete:
        return
    for entry, route in zip(subject.resolved.written.routes, subject.catalog.routes, strict=True):
        for index, id_ in enumerate(entry.value.bundles):
            bundle = subject.catalog.bundle(id_)
            if bundle is None or subject.is_off(bundle) or subject.is_never_permitted(bundle):
                continue
            if not subject.reach.permitted_on(route, bundle):
                message = f"policy denies {id_!r} to every step that this route matches"
                yield LintFinding(
                    entry,
                    message,
                    "allow it there, or take it out of the route",
                    ("bundles", index),
                )


def disabled_in_route(subject: Subject) -> Iterator[LintFinding]:
    """Yield a bundle of a route that is switched off, or whose server is."""
    hint = "enable it, or take it out"
    for entry in subject.resolved.written.routes:
        for key in ("bundles", "ask"):
            ids = getattr(entry.value, key) or []
            for index, id_ in enumerate(ids):
                bundle = subject.catalog.bundle(id_)
                if bundle is None:
                    continue
                reason = subject.is_off(bundle)
                if reason:
                    yield LintFinding(entry, reason, hint, (key, index))


def missing_table(subject: Subject) -> Iterator[LintFinding]:
    """Yield a bundle of a route whose tool can do nothing, since the project's policy.toml replaces
    the shipped one whole, and leaves out the table that the tool needs.
    """
    written = subject.resolved.written
    if written.binaries and written.docs is not None:
        return
    shipped = subject.shipped().written
    lacking = {}
    if shipped.binaries and not written.binaries:
        lacking["workspace.exec"] = "[[binaries]], the programs that it may start"
    if shipped.docs is not None and written.docs is None:
        lacking["docs.fetch"] = "[docs], the hosts that it may read from"
    for entry in written.routes:
        for index, id_ in enumerate(entry.value.bundles):
            bundle = subject.catalog.bundle(id_)
            tools = bundle.tools if bundle is not None and not subject.is_off(bundle) else ()
            for tool in filter(lacking.get, tools):
                yield LintFinding(
                    entry,
                    f"{tool!r} of {id_!r} can do nothing: policy.toml has no {lacking[tool]}",
                    "copy it from the shipped policy.toml, which yours replaces whole",
                    ("bundles", index),
                )


# --- policies -------------------------------------------------------------------------------------


def grantless_policy(subject: Subject) -> Iterator[LintFinding]:
    """Yield a policy without `allow` for steps that no other policy allows anything."""
    for entry, policy in zip(
        subject.resolved.written.policies, subject.catalog.policies, strict=True
    ):
        if policy.allow is None and not subject.reach.granted_on(policy):
            message = (
                "only narrows, and no policy with 'allow' covers any of its steps: nothing is"
                " allowed there"
            )
            yield LintFinding(
                entry, message, "add allow = [...] to it or to another policy for these steps"
            )


def unrouted_name(subject: Subject) -> Iterator[LintFinding]:
    """Yield a name in an address of a policy that no route covers, and that is similar to one in a
    route.
    """
    suggester = subject.resolved.report.suggester
    for position, part in enumerate(PARTS):
        columns = [route.patterns[position] for route in subject.catalog.routes]
        if not all(columns):
            continue  # a route without the part covers every name
        routed = {name for names in columns for name in names}
        for entry in subject.resolved.written.policies:
            for index, name in enumerate(entry.value.patterns[position]):
                hint = "" if _is_routed(name, routed) else suggester.did_you_mean(name, routed)
                if hint:
                    message = f"no route has the {part.name} {name!r}"
                    yield LintFinding(entry, message, hint, (part.name, index))


def _is_routed(name: str, routed: Collection[str]) -> bool:
    """Return whether a name of a policy is a glob, or covered by what routes name."""
    if is_glob(name) or name in routed:
        return True
    globs = [pattern for pattern in routed if is_glob(pattern)]
    return first_match(globs, name) is not None


def unmatched_pattern(subject: Subject) -> Iterator[LintFinding]:
    """Yield a pattern of a policy that matches no bundle and no tool."""
    catalog = subject.catalog
    tools = {*catalog.cards}
    for bundle in catalog.bundles.values():
        tools.update(bundle.tools)
    open_ended = any(bundle.patterns for bundle in catalog.bundles.values())

    for entry in subject.resolved.written.policies:
        for key, index, pattern in targets_of(entry.value):
            targets = Targets.parse([pattern])
            if targets.sinks:
                continue  # which tools send there, servers.toml says
            if targets.tools and open_ended:
                continue  # it may match a tool that no list names
            (glob,) = targets.bundles or targets.tools
            names = catalog.bundles if targets.bundles else tools
            if is_glob(glob) and not any(matches(glob, name) for name in names):
                message = f"{pattern!r} matches nothing"
                yield LintFinding(entry, message, "check its spelling", (key, index))


def allow_everything(subject: Subject) -> Iterator[LintFinding]:
    """Yield a policy that allows every bundle there is, and every one that comes."""
    for entry in subject.resolved.written.policies:
        for index, pattern in enumerate(entry.value.allow or []):
            if pattern in ("*", "bundle:*", "tool:*"):
                message = f"{pattern!r} allows every bundle there is, and every one that comes"
                yield LintFinding(entry, message, "name what these steps need", ("allow", index))


def exec_everywhere(subject: Subject) -> Iterator[LintFinding]:
    """Yield a policy without role (and workflow, and step) that permits any step a bundle that
    executes.
    """
    everywhere = []
    for bundle in subject.catalog.bundles.values():
        executes = bundle.enabled and "exec" in bundle.effects
        if executes and subject.reach.permitted_to_strangers(bundle):
            everywhere.append(bundle)

    hint = "name the roles that need it, or deny it to the others"
    for entry, policy in zip(
        subject.resolved.written.policies, subject.catalog.policies, strict=True
    ):
        if policy.allow is None or not policy.is_open:
            continue
        allowed = Targets.parse(policy.allow)
        for bundle in everywhere:
            if allowed.bundle(bundle.id) or any(map(allowed.tool, bundle.tools)):
                message = f"every role may run programs through {bundle.id!r}"
                yield LintFinding(entry, message, hint, ("allow",))
                break


def denied_elsewhere(subject: Subject) -> Iterator[LintFinding]:
    """Yield a denied bundle whose tools stay callable through another bundle: the first such tool
    of each. (A bundle that is composed of the denied one loses its tools, because that is the
    meaning of denying a bundle.)
    """
    reported: set[tuple[int, str]] = set()
    for policy, index, bundle, tool, other in islice(_ways_round(subject.catalog), MAX_WAYS):
        if (policy, bundle.id) in reported:
            continue
        if tool in subject.reach.tools_on(subject.catalog.policies[policy], other):
            reported.add((policy, bundle.id))
            message = (
                f"denies bundle {bundle.id!r}, but {tool!r} stays callable through {other.id!r}"
            )
            hint = f"deny 'tool:{tool}' as well"
            yield LintFinding(
                subject.resolved.written.policies[policy], message, hint, ("deny", index)
            )


def _ways_round(catalog: Catalog) -> Iterator[tuple[int, int, Bundle, str, Bundle]]:
    """Yield (policy, index of its denial, denied bundle, one of its tools, another bundle with that
    tool).
    """
    holders: dict[str, list[Bundle]] = {}
    for bundle in catalog.bundles.values():
        for tool in bundle.tools:
            holders.setdefault(tool, []).append(bundle)

    for number, index, bundle in _denied_bundles(catalog):
        for tool in bundle.tools:
            for other in holders[tool]:
                if other is not bundle:
                    yield number, index, bundle, tool, other


def _denied_bundles(catalog: Catalog) -> Iterator[tuple[int, int, Bundle]]:
    """Yield (policy, index of its denial, bundle that the denial covers)."""
    for number, policy in enumerate(catalog.policies):
        for index, pattern in enumerate(policy.deny):
            for glob in Targets.parse([pattern]).bundles:
                for bundle in _covered_bundles(catalog, glob):
                    yield number, index, bundle


def _covered_bundles(catalog: Catalog, glob: str) -> Iterable[Bundle]:
    if is_glob(glob):
        return (bundle for bundle in catalog.bundles.values() if matches(glob, bundle.id))
    bundle = catalog.bundle(glob)
    return () if bundle is None else (bundle,)


# --- the router -----------------------------------------------------------------------------------


def disabled_default(subject: Subject) -> Iterator[LintFinding]:
    """Yield a bundle of the fallback that is switched off, or whose server is."""
    for entry in subject.resolved.written.sections.get("fallback", ()):
        for index, id_ in enumerate(entry.value.default):
            bundle = subject.catalog.bundle(id_)
            reason = subject.is_off(bundle) if bundle is not None else ""
            if reason:
                yield LintFinding(entry, reason, "enable it, or take it out", ("default", index))


def no_room(subject: Subject) -> Iterator[LintFinding]:
    """Yield a limit of active tools that leaves room for none that a step asks for."""
    for entry in subject.resolved.written.sections.get("activation", ()):
        if "max_tools" in entry.keys and entry.value.max_tools == 0:
            message = "leaves room for no tool but those that a step's own bundles bring"
            yield LintFinding(entry, message, "leave it out for 24", ("max_tools",))


def learned_rank(subject: Subject) -> Iterator[LintFinding]:
    """Yield the word `learned` of an earlier version, which is read as `always`."""
    for entry in subject.resolved.written.sections.get("search", ()):
        embeddings = entry.value.embeddings
        if embeddings is not None and embeddings.rank == "learned":
            message = (
                "'learned' is of an earlier version and read as 'always': an embedder that is"
                " named ranks, whatever the runs say"
            )
            yield LintFinding(
                entry, message, "leave it out, or write 'never'", ("embeddings", "rank")
            )


def risky_default(subject: Subject) -> Iterator[LintFinding]:
    """Yield a bundle of the fallback that can do more than read."""
    for entry in subject.resolved.written.sections.get("fallback", ()):
        for index, id_ in enumerate(entry.value.default):
            bundle = subject.catalog.bundle(id_)
            if bundle is not None:
                strong = [effect for effect in bundle.effects if effect in ("exec", "write")]
            else:
                strong = []
            if strong:
                message = (
                    f"the set for when nothing else answers holds {id_!r}, which can"
                    f" {' and '.join(strong)}"
                )
                yield LintFinding(
                    entry, message, "fall back to what only reads", ("default", index)
                )


def unused_server(subject: Subject) -> Iterator[LintFinding]:
    """Yield a server that no bundle uses."""
    used = {name for bundle in subject.catalog.bundles.values() for name in bundle.servers}
    for name, entry in subject.resolved.written.servers.items():
        if name not in used:
            yield LintFinding(
                entry, f"no bundle uses server {name!r}", "name its tools in a bundle, or remove it"
            )


def plain_http(subject: Subject) -> Iterator[LintFinding]:
    """Yield a server that is reached over plain HTTP."""
    for entry in subject.resolved.written.servers.values():
        if entry.value.url is not None and is_plain_http(entry.value.url):
            message = (
                "plain http: every program on this machine can answer in its place, and read its"
                " tokens"
            )
            yield LintFinding(entry, message, path=("url",))


def stdio_server(subject: Subject) -> Iterator[LintFinding]:
    """Yield a server that is a program with the router's own rights."""
    for entry in subject.resolved.written.servers.values():
        if entry.value.traits.starts_process and entry.value.enabled:
            message = (
                f"{entry.value.transport} runs a program with the router's own rights, so in"
                " development only"
            )
            hint = "serve it over http, or open the router with development on"
            yield LintFinding(entry, message, hint, ("transport",))


def command_line(subject: Subject) -> Iterator[LintFinding]:
    """Yield a command that is a command line, where the name of one program is meant."""
    for entry in subject.resolved.written.servers.values():
        words = command_words(entry.value.command or "")
        if len(words) > 1:
            message = (
                f"{entry.value.command!r} is a command line, and the name of one program is meant"
            )
            arguments = json.dumps([*words[1:], *entry.value.args])
            yield LintFinding(
                entry, message, f'command = "{words[0]}", args = {arguments}', ("command",)
            )


def dead_reuse(subject: Subject) -> Iterator[LintFinding]:
    """Yield rows of `reuse` under which, by the bundles' declarations, no result can ever be
    reused.
    """
    message = "no bundle says of any of these tools that it only reads, so nothing is used again"
    hint = "remove it, or give the tools that only read a bundle of their own"
    for name, entry in subject.resolved.written.servers.items():
        holders = [bundle for bundle in subject.catalog.bundles.values() if name in bundle.servers]
        if any(bundle.patterns and "read" in bundle.effects for bundle in holders):
            continue  # a tool that no list names may be one that only reads

        readers = _readers_of(subject.catalog, name, holders)
        for index, row in enumerate(entry.value.reuse):
            if row.ttl_s and not _covers_any(row.tools, readers):
                yield LintFinding(entry, message, hint, ("reuse", index))


def _readers_of(catalog: Catalog, server: str, bundles: Iterable[Bundle]) -> set[str]:
    """Return the server's tools in the bundles that, by their declarations, only read."""
    tools: set[str] = set()
    for bundle in bundles:
        tools.update(bundle.tools)
    return {tool for tool in tools if tool.startswith(f"{server}.") and is_read_only(catalog, tool)}


def targets_of(policy: Policy) -> Iterator[tuple[str, int, str]]:
    """Yield the patterns of a policy, with their keys and places."""
    for key, patterns in (("allow", policy.allow), ("deny", policy.deny)):
        for index, pattern in enumerate(patterns or ()):
            yield key, index, pattern


def _covers_any(patterns: Sequence[str], tools: Iterable[str]) -> bool:
    """Return whether one of the patterns matches one of the tools' names on their server."""
    names = [tool.partition(".")[2] for tool in tools]
    return any(matches(pattern, name) for pattern in patterns for name in names)
