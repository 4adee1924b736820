"""What is legal, but dead or risky. One function a rule; each rule has a stable word that stands in the output.

Rules for the rules:
1. They run on config without errors, and never make config invalid.
2. They speak about the project's own entries only, or about the shipped ones when there is nothing else.
3. `warning`: it does not do what it looks like it does. `risk`: it does, and someone should have looked.
4. Each takes time about linear in the config; those that compare pairs look only at pairs that could be alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from router.core.catalog import Bundle, Catalog, Policy
from router.core.config.alike import alike_pairs
from router.core.config.positions import Path
from router.core.config.reach import Reach, shadowed_by
from router.core.config.reading import Entry
from router.core.config.resolve import Resolved
from router.core.config.servers import included, is_plain_http
from router.core.patterns import Targets, is_glob, matches


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding, at `path` inside the entry."""

    entry: Entry[Any]
    message: str
    suggestion: str = ""
    path: Path = ()


@dataclass(frozen=True, slots=True)
class _Subject:
    """What the rules look at."""

    resolved: Resolved
    reach: Reach

    @property
    def catalog(self) -> Catalog:
        return self.resolved.catalog

    def bundles(self) -> Iterator[tuple[Entry[Any], Bundle]]:
        for id_, entry in self.resolved.written.bundles.items():
            yield entry, self.catalog.bundles[id_]


def lint(resolved: Resolved) -> None:
    """Adds what all rules find to the report."""
    own = {file.layer for file in resolved.files}
    layer = "project" if "project" in own else "shipped"
    subject = _Subject(resolved, Reach(resolved.catalog))
    for word, (level, rule) in RULES.items():
        for finding in rule(subject):
            if finding.entry.file.layer == layer:
                where = (*finding.entry.path, *finding.path)
                resolved.report.add(
                    finding.entry.file, where, finding.message, finding.suggestion, level=level, rule=word
                )


# --- servers -------------------------------------------------------------------------------------------------------


def _unused_server(subject: _Subject) -> Iterator[Finding]:
    used = {name for bundle in subject.catalog.bundles.values() for name in bundle.servers}
    for name, entry in subject.resolved.written.servers.items():
        if name not in used:
            yield Finding(entry, f"no bundle uses server {name!r}", "name its tools in a bundle, or remove it")


def _plain_http(subject: _Subject) -> Iterator[Finding]:
    for entry in subject.resolved.written.servers.values():
        if entry.form.url is not None and is_plain_http(entry.form.url):
            message = "plain http: every program on this machine can answer in its place, and read its tokens"
            yield Finding(entry, message, path=("url",))


def _stdio_server(subject: _Subject) -> Iterator[Finding]:
    for entry in subject.resolved.written.servers.values():
        if entry.form.transport == "stdio" and entry.form.enabled:
            message = "stdio runs a program with the router's own rights, so it is started in development only"
            hint = "serve it over http, or open the router with development on"
            yield Finding(entry, message, hint, ("transport",))


# --- bundles -------------------------------------------------------------------------------------------------------


def _never_permitted(subject: _Subject) -> Iterator[Finding]:
    for entry, bundle in subject.bundles():
        if bundle.enabled and subject.reach.complete and not subject.reach.permitted_anywhere(bundle):
            hint = "allow it in policy.toml for the roles that need it, or remove it"
            yield Finding(entry, f"no policy lets any step see bundle {bundle.id!r}", hint)


def _excluded_tool(subject: _Subject) -> Iterator[Finding]:
    for entry, _ in subject.bundles():
        for index, ref in enumerate(entry.form.tools):
            name, _, tool = ref.partition(".")
            if not is_glob(tool) and not included(subject.catalog.servers[name], tool):
                message = f"server {name!r} does not include {tool!r}, or excludes it"
                yield Finding(entry, message, "it will never be shown", ("tools", index))


def _over_budget(subject: _Subject) -> Iterator[Finding]:
    cards = subject.catalog.cards
    for entry, bundle in subject.bundles():
        tokens = sum(cards[tool].tokens for tool in bundle.tools if tool in cards)
        if bundle.max_tokens is not None and tokens > bundle.max_tokens:
            message = f"its tools' definitions take {tokens:,} tokens, more than {bundle.max_tokens:,}"
            yield Finding(entry, message, "split it, or raise max_tokens", ("max_tokens",))


def _missing_companion(subject: _Subject) -> Iterator[Finding]:
    for entry, bundle in subject.bundles():
        for index, tool in enumerate(entry.form.companions):
            if tool not in bundle.tools and not any(matches(pattern, tool) for pattern in bundle.patterns):
                yield Finding(
                    entry,
                    f"{tool!r} is not in the bundle, so it does not come along",
                    "add it to tools",
                    ("companions", index),
                )


def _hidden_tool(subject: _Subject) -> Iterator[Finding]:
    cards = subject.catalog.cards
    by_server: dict[str, list[str]] = {}
    for card in cards.values():
        by_server.setdefault(card.server, []).append(card.tool)
    for entry, bundle in subject.bundles():
        for name in bundle.tools:
            shown = cards.get(name)
            for other in by_server.get(shown.server, ()) if shown is not None else ():
                hidden = f"{shown.server}.{other}" if shown is not None else ""
                if hidden not in bundle.tools and shown is not None and _mentions(shown.description, other, hidden):
                    message = f"the text of {name!r} tells agents of {hidden!r}, which the bundle hides"
                    yield Finding(entry, message, "add it, or agents will call what they can't", ("tools",))


def _mentions(text: str, tool: str, canonical: str) -> bool:
    """Whether the text names the tool. A one-word name (`search`) is a word of English as well: only in code marks."""
    if canonical in text or f"`{tool}`" in text:
        return True
    return "_" in tool and re.search(rf"(?<![\w.]){re.escape(tool)}(?!\w)", text) is not None


def _alike_bundles(subject: _Subject) -> Iterator[Finding]:
    entries = subject.resolved.written.bundles
    offered = [bundle for _, bundle in subject.bundles() if bundle.enabled]
    for first, second, why in alike_pairs(offered):
        message = f"can't be told from bundle {first.id!r}: {why}"
        yield Finding(entries[second.id], message, "merge them, or say what sets them apart")


def _always_effects(subject: _Subject) -> Iterator[Finding]:
    for entry, bundle in subject.bundles():
        strong = [effect for effect in bundle.effects if effect in ("exec", "write")]
        if bundle.always and bundle.enabled and strong:
            message = f"every step gets a bundle that can {' and '.join(strong)}"
            yield Finding(entry, message, "route it to the steps that need it", ("always",))


def _alias_shadowed(subject: _Subject) -> Iterator[Finding]:
    for entry, _ in subject.bundles():
        for index, alias in enumerate(entry.form.aliases):
            if alias in subject.catalog.bundles:
                message = f"a bundle is called {alias!r} now, so the alias is never followed"
                yield Finding(entry, message, "remove it", ("aliases", index))


# --- routes --------------------------------------------------------------------------------------------------------


def _unreachable_route(subject: _Subject) -> Iterator[Finding]:
    entries = subject.resolved.written.routes
    for index, earlier in shadowed_by(subject.catalog.routes).items():
        name = subject.catalog.routes[earlier].name
        message = f"never matches: route {name!r} (routes[{earlier}]) matches all of its steps first"
        yield Finding(entries[index], message, "move it up, or remove it")


def _denied_route(subject: _Subject) -> Iterator[Finding]:
    if not subject.reach.complete:
        return
    for entry, route in zip(subject.resolved.written.routes, subject.catalog.routes, strict=True):
        written = entry.form.bundles or []
        for index, id_ in enumerate(written):
            bundle = subject.catalog.bundle(id_)
            if bundle is not None and bundle.enabled and not subject.reach.permitted_on(route, bundle):
                message = f"policy denies {id_!r} to every step that this route matches"
                yield Finding(entry, message, "allow it there, or take it out of the route", ("bundles", index))


def _disabled_in_route(subject: _Subject) -> Iterator[Finding]:
    for entry in subject.resolved.written.routes:
        for index, id_ in enumerate(entry.form.bundles or []):
            bundle = subject.catalog.bundle(id_)
            if bundle is not None and not bundle.enabled:
                yield Finding(entry, f"bundle {id_!r} is disabled", "enable it, or take it out", ("bundles", index))


# --- policies ------------------------------------------------------------------------------------------------------


def _grantless_policy(subject: _Subject) -> Iterator[Finding]:
    for entry, policy in zip(subject.resolved.written.policies, subject.catalog.policies, strict=True):
        if policy.allow is None and not subject.reach.granted_on(policy):
            message = "only narrows, and no policy with 'allow' covers any of its steps: nothing is allowed there"
            yield Finding(entry, message, "add allow = [...] to it or to another policy for these steps")


def _unmatched_pattern(subject: _Subject) -> Iterator[Finding]:
    catalog = subject.catalog
    tools = {*catalog.cards, *(tool for bundle in catalog.bundles.values() for tool in bundle.tools)}
    open_ended = any(bundle.patterns for bundle in catalog.bundles.values())
    for entry in subject.resolved.written.policies:
        for key in ("allow", "deny"):
            for index, pattern in enumerate(getattr(entry.form, key) or []):
                targets = Targets.parse([pattern])
                names = catalog.bundles if targets.bundles else tools
                (glob,) = targets.bundles or targets.tools
                if (
                    is_glob(glob)
                    and not any(matches(glob, name) for name in names)
                    and not (targets.tools and open_ended)
                ):
                    yield Finding(entry, f"{pattern!r} matches nothing", "check its spelling", (key, index))


def _allow_everything(subject: _Subject) -> Iterator[Finding]:
    for entry in subject.resolved.written.policies:
        for index, pattern in enumerate(entry.form.allow or []):
            if pattern in ("*", "bundle:*", "tool:*"):
                message = f"{pattern!r} allows every bundle there is, and every one that comes"
                yield Finding(entry, message, "name what these steps need", ("allow", index))


def _exec_everywhere(subject: _Subject) -> Iterator[Finding]:
    """A policy without a role (and workflow, and step) that lets any step reach a bundle that executes."""
    execs = [bundle for bundle in subject.catalog.bundles.values() if "exec" in bundle.effects and bundle.enabled]
    everywhere = [bundle for bundle in execs if subject.reach.permitted_to_strangers(bundle)]
    for entry, policy in zip(subject.resolved.written.policies, subject.catalog.policies, strict=True):
        if _names_nobody(policy) and policy.allow is not None:
            allowed = Targets.parse(policy.allow)
            hit = [bundle.id for bundle in everywhere if _allows(allowed, bundle)]
            if hit:
                message = f"every role may run programs through {hit[0]!r}"
                yield Finding(entry, message, "name the roles that need it, or deny it to the others", ("allow",))


def _names_nobody(policy: Policy) -> bool:
    return all(not names or "*" in names for names in (policy.workflow, policy.role, policy.step))


def _allows(targets: Targets, bundle: Bundle) -> bool:
    return targets.bundle(bundle.id) is not None or any(targets.tool(tool) is not None for tool in bundle.tools)


# --- the router ----------------------------------------------------------------------------------------------------


def _risky_default(subject: _Subject) -> Iterator[Finding]:
    for entry in subject.resolved.written.sections.get("fallback", ()):
        for index, id_ in enumerate(entry.form.default):
            bundle = subject.catalog.bundle(id_)
            strong = [effect for effect in bundle.effects if effect in ("exec", "write")] if bundle is not None else []
            if strong:
                message = f"the set for when nothing else answers holds {id_!r}, which can {' and '.join(strong)}"
                yield Finding(entry, message, "fall back to what only reads", ("default", index))


_Rule = Callable[[_Subject], Iterator[Finding]]

RULES: Final[dict[str, tuple[str, _Rule]]] = {
    "unused-server": ("warning", _unused_server),
    "plain-http": ("risk", _plain_http),
    "stdio-server": ("risk", _stdio_server),
    "never-permitted": ("warning", _never_permitted),
    "excluded-tool": ("warning", _excluded_tool),
    "over-budget": ("warning", _over_budget),
    "missing-companion": ("warning", _missing_companion),
    "hidden-tool": ("warning", _hidden_tool),
    "alike-bundles": ("warning", _alike_bundles),
    "always-effects": ("risk", _always_effects),
    "alias-shadowed": ("warning", _alias_shadowed),
    "unreachable-route": ("warning", _unreachable_route),
    "denied-route": ("warning", _denied_route),
    "disabled-in-route": ("warning", _disabled_in_route),
    "grantless-policy": ("warning", _grantless_policy),
    "unmatched-pattern": ("warning", _unmatched_pattern),
    "allow-everything": ("risk", _allow_everything),
    "exec-everywhere": ("risk", _exec_everywhere),
    "risky-default": ("risk", _risky_default),
}
"""Every rule: its word, its level, what finds it. `stray-file` is given while reading (see `overlay`)."""


def rule_words() -> Sequence[str]:
    return (*RULES, "stray-file")
