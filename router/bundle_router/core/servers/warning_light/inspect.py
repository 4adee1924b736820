"""Inspects one definition: applies every rule to every passage, then adds up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from bundle_router.core.servers.admission.admitted import Admitted
from bundle_router.core.servers.pins.compare import Comparison
from bundle_router.core.servers.warning_light.hidden import (
    Seen,
    TextPassage,
    decoded_texts,
    fold_text,
    is_command,
    passages,
    seen_in_characters,
    seen_in_commands,
    seen_in_layout,
)
from bundle_router.core.servers.warning_light.neighbours import Neighbourhood
from bundle_router.core.servers.warning_light.sentence_rules import (
    seen_in_argument,
    seen_in_piles,
    seen_in_sentence,
)
from bundle_router.core.values.visible import visible

ALONE: Final = 1.0
"""Weight from which a verdict warns."""

RULES: Final[Mapping[str, tuple[float, str]]] = MappingProxyType(
    {
        "hidden-characters": (1.0, "characters that a reader can't see"),
        "parted-letters": (1.0, "a text whose letters are parted, so that its words are not found"),
        "lookalike-letters": (0.6, "letters of another script inside a Latin word"),
        "hidden-payload": (1.0, "a command or an instruction in an encoding"),
        "far-away-text": (0.6, "text pushed out of sight by white space, or inside a comment"),
        "fake-markup": (0.6, "markup that pretends to be the system's or the conversation's"),
        "override": (1.0, "tells the model to drop the instructions it has"),
        "unleash": (1.0, "tells the model to leave its rules or to become something else"),
        "reveal-prompt": (1.0, "asks for the system prompt or the conversation"),
        "exfiltration": (1.0, "sends what is secret or private somewhere else"),
        "secret-material": (0.5, "names places or things that hold secrets"),
        "read-secret": (1.0, "has the model fetch secret material for an argument"),
        "concealment": (1.0, "keeps something from the user"),
        "quietly": (0.4, "something happens without a word"),
        "side-effect": (1.0, "does something outside besides what the tool is for"),
        "redirection": (1.0, "changes what other tools are called with"),
        "seizes-order": (0.5, "wants to be called before, or instead of, everything else"),
        "wants-everything": (0.6, "wants to be given all there is"),
        "wants-every-request": (1.0, "wants to be found whatever is asked"),
        "pile-of-steps": (1.0, "names steps of many kinds, to be found for each"),
        "command": (0.6, "a shell command that downloads and runs, or destroys"),
        "told-to": (0.3, "addresses the model with an order"),
        "mimicry": (1.0, "has the name and the words of another server's tool"),
        "speaks-of-others": (1.0, "gives orders about another server's tool"),
    }
)
"""Rule → (weight, meaning)."""


@dataclass(frozen=True, slots=True)
class LightFinding:
    """One finding: the rule, the place (`/description`), the words around it, and its weight."""

    rule: str
    where: str
    seen: str
    weight: float

    @property
    def meaning(self) -> str:
        return RULES[self.rule][1]


@dataclass(frozen=True, slots=True)
class LightVerdict:
    """The findings, heaviest first, and their sum (each rule counts once).

    `warns`: whether the light is on.
    """

    findings: tuple[LightFinding, ...]
    score: float

    @property
    def warns(self) -> bool:
        return self.score >= ALONE

    @property
    def charge(self) -> str:
        """The accusation against the text, as a clause with the text as its subject."""
        copied = all(finding.rule == "mimicry" for finding in self.findings)
        return "is that of another server's tool" if copied else "speaks to the model"


NOBODY = Neighbourhood(())
_ENOUGH_ALONE = frozenset(
    ("override", "unleash", "reveal-prompt", "exfiltration", "read-secret", "concealment")
)


def inspect(
    definition: Mapping[str, Any],
    *,
    server: str = "",
    instructions: str = "",
    neighbours: Neighbourhood = NOBODY,
) -> LightVerdict:
    """Return the verdict on a raw definition.

    `neighbours` are the tools of all servers that may be seen beside it; `instructions` are the
    server's own.
    """
    found: dict[str, LightFinding] = {}
    for passage in (*passages(definition), *passages({"instructions": instructions})):
        for rule, excerpt in _seen_in_passage(passage):
            found.setdefault(rule, _finding(rule, passage.where, excerpt))
    for rule, excerpt in neighbours.findings_beside(definition, server):
        found.setdefault(
            rule, _finding(rule, "/name" if rule == "mimicry" else "/description", excerpt)
        )
    findings = sorted(found.values(), key=lambda finding: (-finding.weight, finding.rule))
    return LightVerdict(tuple(findings), round(sum(finding.weight for finding in findings), 3))


def _finding(rule: str, where: str, seen: str) -> LightFinding:
    return LightFinding(rule, where, visible(" ".join(seen.split())[:160]), RULES[rule][0])


def _seen_in_passage(passage: TextPassage) -> Iterator[Seen]:
    yield from seen_in_characters(passage)
    yield from seen_in_layout(passage)
    yield from seen_in_commands(passage)
    yield from seen_in_piles(passage.plain)
    if passage.where.startswith("/inputSchema/"):
        yield from seen_in_argument(passage.plain)
    previous = ""
    for sentence in passage.sentences():
        yield from seen_in_sentence(sentence, previous)
        previous = sentence
    for text in decoded_texts(passage):
        if is_command(text) or any(
            rule in _ENOUGH_ALONE for rule, _ in seen_in_sentence(fold_text(text), "")
        ):
            yield "hidden-payload", text


@dataclass(frozen=True, slots=True)
class Light:
    """The verdict on one tool."""

    tool: str
    verdict: LightVerdict


def lights(found: Admitted, comparison: Comparison, everyone: Neighbourhood) -> Iterator[Light]:
    """Yield the warnings for new or changed tools of `found`; for all its tools if the server
    itself differs from the review. `everyone` are the tools of all servers, which texts may
    mention.
    """
    for tool, definition in _unreviewed(found, comparison):
        verdict = inspect(
            definition, server=found.server, instructions=found.instructions, neighbours=everyone
        )
        if verdict.warns:
            yield Light(tool, verdict)


def is_affected(found: Admitted, comparison: Comparison, neighbours: Neighbourhood) -> bool:
    """Return whether these neighbours add to the verdict on a tool that `lights` looks at."""
    return any(
        any(neighbours.findings_beside(text, found.server))
        for _, text in _unreviewed(found, comparison)
    )


def _unreviewed(found: Admitted, comparison: Comparison) -> Iterator[tuple[str, Mapping[str, Any]]]:
    unread = {change.tool for change in comparison.tools if change.kind != "unchanged"}
    for tool in found.tools:
        if tool.card.tool in unread or comparison.server:
            yield tool.card.tool, json.loads(tool.definition)
