"""What the warning light says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

ALONE: Final = 1.0
"""The weight at which a verdict warns."""

RULES: Final[Mapping[str, tuple[float, str]]] = MappingProxyType(
    {
        "hidden-characters": (1.0, "characters that a reader can't see"),
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
        "wants-every-request": (1.0, "wants to be found whatever is asked"),
        "command": (0.6, "a shell command that downloads and runs, or destroys"),
        "told-to": (0.3, "addresses the model with an order"),
        "mimicry": (1.0, "has the name and the words of another server's tool"),
        "speaks-of-others": (1.0, "gives orders about another server's tool"),
    }
)
"""Rule → (weight, what it means)."""


@dataclass(frozen=True, slots=True)
class LightFinding:
    """One thing seen: the rule, where (`/description`), the words around it, and what it counts for."""

    rule: str
    where: str
    seen: str
    weight: float

    @property
    def meaning(self) -> str:
        return RULES[self.rule][1]


@dataclass(frozen=True, slots=True)
class LightVerdict:
    """The findings, heaviest first, and their sum (a rule counts once). `warns` is the light."""

    findings: tuple[LightFinding, ...]
    score: float

    @property
    def warns(self) -> bool:
        return self.score >= ALONE

    @property
    def charge(self) -> str:
        """What is held against the text, in a clause of which it is the subject."""
        copied = all(finding.rule == "mimicry" for finding in self.findings)
        return "is that of another server's tool" if copied else "speaks to the model"
