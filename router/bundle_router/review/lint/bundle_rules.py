"""Lint: bundles that are dead, hide tools that their texts mention, or contradict others."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from bundle_router.core.catalog import Bundle
from bundle_router.core.config.entries import WrittenEntry
from bundle_router.core.decide.unusable_tools import no_policy
from bundle_router.core.exposure.skills import head_fault
from bundle_router.core.values.patterns import is_glob, matches
from bundle_router.core.values.words import Effect
from bundle_router.review.lint.findings import LintFinding, Subject

LIKENESS: Final = 0.8
"""Minimum share of common words (Jaccard) of two descriptions that count as alike."""
MAX_COMPARISONS: Final = 200_000

_WORD: Final = re.compile(r"[a-z0-9]+")


def alike_pairs(bundles: Sequence[Bundle]) -> Iterator[tuple[Bundle, Bundle, str]]:
    """Yield `(earlier, later, why)` for each pair of similar bundles, once."""
    same_tools: dict[tuple[tuple[str, ...], tuple[str, ...]], Bundle] = {}
    reported: set[tuple[str, str]] = set()
    for bundle in bundles:
        twin = same_tools.setdefault((bundle.tools, bundle.patterns), bundle)
        if twin is not bundle:
            reported.add((twin.id, bundle.id))
            yield twin, bundle, "it has the same tools"
    for first, second in _alike_in_words(bundles):
        if (first.id, second.id) not in reported:
            yield first, second, "their descriptions say nearly the same"


def _alike_in_words(bundles: Sequence[Bundle]) -> Iterator[tuple[Bundle, Bundle]]:
    """Yield similar pairs.

    Prefix filter: such sets share one of the rarest words of each, so only those are compared.
    """
    words = [
        frozenset(_WORD.findall(f"{bundle.description} {bundle.avoid}".lower()))
        for bundle in bundles
    ]
    frequency = Counter(word for word_set in words for word in word_set)
    holders: defaultdict[str, list[int]] = defaultdict(list)
    comparisons = MAX_COMPARISONS
    for index, word_set in enumerate(words):
        rarest = sorted(word_set, key=lambda word: (frequency[word], word))
        prefix = rarest[: len(word_set) - int(LIKENESS * len(word_set)) + 1]
        candidates = {other for word in prefix for other in holders[word]}
        for other in sorted(candidates):
            comparisons -= 1
            if comparisons < 0:
                return
            shared = len(word_set & words[other])
            if shared >= LIKENESS * (len(word_set) + len(words[other]) - shared):
                yield bundles[other], bundles[index]
        for word in prefix:
            holders[word].append(index)


def never_permitted(subject: Subject) -> Iterator[LintFinding]:
    """Yield a bundle that no policy permits at any step."""
    for entry, bundle in subject.bundles():
        if (
            not subject.is_off(bundle)
            and subject.reach.complete
            and not subject.reach.permitted_anywhere(bundle)
        ):
            yield LintFinding(entry, *no_policy(bundle.id))


def disabled_server(subject: Subject) -> Iterator[LintFinding]:
    """Yield a bundle whose server is switched off, so that none of its tools is shown."""
    for entry, bundle in subject.bundles():
        reported = set()
        for index, ref in enumerate(entry.value.tools if bundle.enabled else ()):
            name = ref.partition(".")[0]
            if name not in reported and not subject.catalog.servers[name].enabled:
                reported.add(name)
                message = f"server {name!r} is disabled, so none of its tools is shown"
                yield LintFinding(
                    entry, message, "enable it, or take its tools out", ("tools", index)
                )


def disabled_part(subject: Subject) -> Iterator[LintFinding]:
    """Yield a bundle that is composed of one which is switched off, and has its tools all the
    same.
    """
    hint = "take it out, or deny its tools"
    for entry, bundle in subject.bundles():
        if not bundle.enabled:
            continue
        for index, id_ in enumerate(entry.value.bundles):
            part = subject.catalog.bundle(id_)
            if part is not None and not part.enabled:
                message = f"bundle {id_!r} is disabled, and its tools come along here all the same"
                yield LintFinding(entry, message, hint, ("bundles", index))


def excluded_tool(subject: Subject) -> Iterator[LintFinding]:
    """Yield a tool of a bundle that its server does not include, or excludes."""
    for entry, _ in subject.bundles():
        for index, ref in enumerate(entry.value.tools):
            name, _, tool = ref.partition(".")
            if not is_glob(tool) and not subject.catalog.servers[name].includes(tool):
                message = f"server {name!r} does not include {tool!r}, or excludes it"
                yield LintFinding(entry, message, "it will never be shown", ("tools", index))


def over_budget(subject: Subject) -> Iterator[LintFinding]:
    """Yield a bundle whose definitions take more tokens than it may."""
    cards = subject.catalog.cards
    for entry, bundle in subject.bundles():
        if bundle.max_tokens is None:
            continue
        tokens = sum(cards[tool].tokens for tool in bundle.tools if tool in cards)
        if tokens > bundle.max_tokens:
            message = (
                f"its tools' definitions take {tokens:,} tokens, more than {bundle.max_tokens:,}"
            )
            yield LintFinding(entry, message, "split it, or raise max_tokens", ("max_tokens",))


def missing_companion(subject: Subject) -> Iterator[LintFinding]:
    """Yield a companion that is not in the bundle, so that it does not come along."""
    for entry, bundle in subject.bundles():
        for index, tool in enumerate(entry.value.companions):
            if tool not in bundle.tools and not any(
                matches(pattern, tool) for pattern in bundle.patterns
            ):
                yield LintFinding(
                    entry,
                    f"{tool!r} is not in the bundle, so it does not come along",
                    "add it to tools",
                    ("companions", index),
                )


def missing_skill(subject: Subject) -> Iterator[LintFinding]:
    """Yield a skill whose file is not there."""
    if subject.read_content is None:
        return
    for entry, bundle in subject.bundles():
        if bundle.skill is not None and subject.read_content(bundle.skill) is None:
            message = f"there is no file bundles/{bundle.skill}"
            file = f"{bundle.skill}/SKILL.md"
            if subject.read_content(file) is not None:
                advice = f"did you mean {file!r}?"
            else:
                advice = "write it, or take the key out"
            yield LintFinding(entry, message, advice, ("skill",))


def unread_skill(subject: Subject) -> Iterator[LintFinding]:
    """Yield a skill whose head can't be read."""
    if subject.read_content is None:
        return
    for entry, bundle in subject.bundles():
        text = subject.read_content(bundle.skill) if bundle.skill is not None else None
        fault = head_fault(text) if text is not None else ""
        if fault:
            message = f"bundles/{bundle.skill}: {fault}"
            advice = "name, description and tools of it are not used; its instructions are"
            yield LintFinding(entry, message, advice, ("skill",))


def hidden_tool(subject: Subject) -> Iterator[LintFinding]:
    """Yield a tool whose text tells agents of another one, which the bundle hides."""
    cards = subject.catalog.cards
    by_server: dict[str, list[str]] = {}
    for card in cards.values():
        by_server.setdefault(card.server, []).append(card.tool)
    for entry, bundle in subject.bundles():
        for shown in [cards[name] for name in bundle.tools if name in cards]:
            for other in by_server[shown.server]:
                hidden = f"{shown.server}.{other}"
                if hidden not in bundle.tools and _mentions(shown.description, other, hidden):
                    message = (
                        f"the text of {shown.name!r} tells agents of {hidden!r}, which the bundle"
                        " hides"
                    )
                    yield LintFinding(
                        entry, message, "add it, or agents will call what they can't", ("tools",)
                    )


def _mentions(text: str, tool: str, canonical: str) -> bool:
    """Return whether the text names the tool.

    A one-word name (`search`) counts only in code marks.
    """
    if tool not in text:  # of hundreds of tools: no pattern is compiled for each pair
        return False
    marked = canonical in text or f"`{tool}`" in text
    return marked or (
        "_" in tool and re.search(rf"(?<![\w.]){re.escape(tool)}(?!\w)", text) is not None
    )


def alike_bundles(subject: Subject) -> Iterator[LintFinding]:
    """Yield two bundles that search and a model can't tell apart."""
    entries = subject.resolved.written.bundles
    enabled_bundles = [bundle for _, bundle in subject.bundles() if bundle.enabled]
    for first, second, reason in alike_pairs(enabled_bundles):
        message = f"can't be told from bundle {first.id!r}: {reason}"
        yield LintFinding(entries[second.id], message, "merge them, or say what sets them apart")


def effects_differ(subject: Subject) -> Iterator[LintFinding]:
    """Yield a bundle that declares an effect which, by other bundles' declarations, none of its
    tools can have.

    A bundle's effects are those of all its tools together, so a tool can only have effects that
    every bundle with it declares. One of the two is wrong; if it is the other one, policies by
    effect let the tool through.
    """
    listed_in = {
        bundle.id: _own_tools(entry.value.tools, bundle) for entry, bundle in subject.bundles()
    }
    holders: dict[str, list[Bundle]] = {}
    for bundle in subject.catalog.bundles.values():
        for tool in listed_in[bundle.id]:
            holders.setdefault(tool, []).append(bundle)

    for entry, bundle in subject.bundles():
        tools = listed_in[bundle.id]
        if bundle.patterns or not tools:
            continue  # unknown tools may have any effect
        for effect in entry.value.effects:
            lacking = [_first_without(effect, holders[tool]) for tool in tools]
            if lacking[0] is not None and None not in lacking:
                yield _at_the_newer(subject, entry, effect, tools[0], lacking[0].id)
                break


def _first_without(effect: Effect, bundles: Sequence[Bundle]) -> Bundle | None:
    return next((bundle for bundle in bundles if effect not in bundle.effects), None)


def _at_the_newer(
    subject: Subject, entry: WrittenEntry[Any], effect: str, tool: str, other_id: str
) -> LintFinding:
    """Return the finding for the project's entry, if the other one is a shipped one."""
    hint = "one of the two is wrong, and policies rest on it"
    other = subject.resolved.written.bundles[other_id]
    if entry.file.layer == "shipped" and other.file.layer == "project":
        message = f"does not say that {tool!r} can {effect!r}, as bundle {entry.name!r} does"
        return LintFinding(other, message, hint, ("effects",))
    message = (
        f"says that {tool!r} can {effect!r}, and bundle {other_id!r}, which holds it too, does not"
    )
    return LintFinding(entry, message, hint, ("effects",))


def _own_tools(refs: list[str], bundle: Bundle) -> list[str]:
    """Return the bundle's tools without those of the bundles it is composed of."""
    if refs:
        return [tool for tool in bundle.tools if any(matches(ref, tool) for ref in refs)]
    return []


def always_effects(subject: Subject) -> Iterator[LintFinding]:
    """Yield a bundle with `always = true` that can do more than read."""
    for entry, bundle in subject.bundles():
        if not bundle.always or not bundle.enabled:
            continue
        effects = [effect for effect in bundle.effects if effect in ("exec", "write")]
        if effects:
            message = f"every step gets a bundle that can {' and '.join(effects)}"
            yield LintFinding(entry, message, "route it to the steps that need it", ("always",))


def alias_shadowed(subject: Subject) -> Iterator[LintFinding]:
    """Yield an alias that is never followed, because a bundle is called so now."""
    for entry, _ in subject.bundles():
        for index, alias in enumerate(entry.value.aliases):
            if alias in subject.catalog.bundles:
                message = f"a bundle is called {alias!r} now, so the alias is never followed"
                yield LintFinding(entry, message, "remove it", ("aliases", index))
