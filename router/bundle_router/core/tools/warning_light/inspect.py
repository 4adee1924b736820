"""One definition, looked at: every passage by every rule, then the sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bundle_router.core.tools.shaping.visible import visible
from bundle_router.core.tools.warning_light.hidden import (
    Seen,
    decoded_texts,
    is_command,
    seen_in_characters,
    seen_in_commands,
    seen_in_layout,
)
from bundle_router.core.tools.warning_light.neighbours import Neighbourhood
from bundle_router.core.tools.warning_light.sentence_rules import seen_in_argument, seen_in_sentence
from bundle_router.core.tools.warning_light.texts import TextPassage, folded, passages
from bundle_router.core.tools.warning_light.values import RULES, LightFinding, LightVerdict

NOBODY = Neighbourhood(())
_ENOUGH_ALONE = frozenset(("override", "unleash", "reveal-prompt", "exfiltration", "read-secret", "concealment"))


def inspect(
    definition: Mapping[str, Any], *, server: str = "", instructions: str = "", neighbours: Neighbourhood = NOBODY
) -> LightVerdict:
    """Return what the warning light makes of a raw definition. `neighbours` are the tools of all servers that may be
    seen beside it; `instructions` are the server's own."""
    found: dict[str, LightFinding] = {}
    for passage in (*passages(definition), *passages({"instructions": instructions})):
        for rule, seen in _seen(passage):
            found.setdefault(rule, _finding(rule, passage.where, seen))
    for rule, seen in neighbours.seen_beside(definition, server):
        found.setdefault(rule, _finding(rule, "/name" if rule == "mimicry" else "/description", seen))
    findings = sorted(found.values(), key=lambda finding: (-finding.weight, finding.rule))
    return LightVerdict(tuple(findings), round(sum(finding.weight for finding in findings), 3))


def _finding(rule: str, where: str, seen: str) -> LightFinding:
    return LightFinding(rule, where, visible(" ".join(seen.split())[:160]), RULES[rule][0])


def _seen(passage: TextPassage) -> Iterator[Seen]:
    yield from seen_in_characters(passage)
    yield from seen_in_layout(passage)
    yield from seen_in_commands(passage)
    if passage.where.startswith("/inputSchema/"):
        yield from seen_in_argument(passage.plain)
    before = ""
    for sentence in passage.sentences():
        yield from seen_in_sentence(sentence, before)
        before = sentence
    for text in decoded_texts(passage):
        if is_command(text) or _orders_something(text):
            yield "hidden-payload", text


def _orders_something(text: str) -> bool:
    return any(rule in _ENOUGH_ALONE for rule, _ in seen_in_sentence(folded(text), ""))
