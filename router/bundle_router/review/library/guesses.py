"""Guesses what the tools of a server can do that the library does not know.

Rules (the strictest that speaks counts; where none does, a tool is guessed to write):
1. Its name: the verbs in it. Words that are nouns as often as verbs (`run`, `comment`, `link`)
   count where they come first, or where the name has no other verb.
2. Its description: the verb that its first sentence begins with, a word there that says that
   something is made or sent, and anywhere a word that says that nothing brings it back.
3. Its input schema: code or commands, a file to write to, a switch named by a verb, and the values
   of an action.
4. Its hints make a guess stricter. `readOnlyHint` makes none milder, but where the server is
   trusted and nothing else speaks.

A guess is for a person to review. `bundle-router pin --write` marks it so.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from bundle_router.core.servers.admission.admitted import AdmittedTool
from bundle_router.core.servers.admission.cleaning import reveal_line
from bundle_router.core.values.schema_tree import all_schemas
from bundle_router.review.library.library_form import KINDS, Kind

_WORDS: Final = tomllib.loads(
    files("bundle_router.review.library").joinpath("verbs.toml").read_text(encoding="utf-8")
)
_KIND_OF_VERB: Final[dict[str, Kind]] = {
    verb: kind for kind in KINDS for verb in _WORDS["verbs"][kind].split()
}
_OFTEN_NOUNS: Final = frozenset(_WORDS["often"]["nouns"].split())
_CODE_PARAMETERS: Final = frozenset(_WORDS["parameters"]["code"].split())
_FORCING_PARAMETERS: Final = frozenset(_WORDS["parameters"]["forcing"].split())
_ACTION_PARAMETERS: Final = frozenset(_WORDS["parameters"]["action"].split())

_REASON_CHARS: Final = 80
_NAME_CHARS: Final = 128
"""Characters of a parameter's name, or of an action, whose words are looked at."""
_ENDINGS: Final = (("ies", "y"), ("es", ""), ("s", ""), ("ing", ""), ("ing", "e"))

_WORD: Final = re.compile(r"[A-Za-z]+")
_LOWER_UPPER: Final = re.compile(r"([a-z0-9])([A-Z])")
_UPPER_UPPER: Final = re.compile(r"([A-Z]+)([A-Z][a-z])")
_OPENING_WORDS: Final = frozenset(("this", "the", "tool", "use", "to", "allows", "you"))
"""Words before the verb of a first sentence: 'Use this tool to list …'."""
_FINAL_WORDS: Final = re.compile(
    r"\b(?:overwrit\w+|permanently|irreversibl\w+|can(?:no|')t be undone|destructive)\b",
    re.IGNORECASE,
)
_MAKING_WORDS: Final = re.compile(
    r"\b(?:creates?|modif(?:y|ies)|persists?|saved?|saves|sends?|stores?|updates?|writes?)\b",
    re.IGNORECASE,
)
_FILE_PARAMETER: Final = re.compile(
    r"(?:out(?:put)?|save|dest(?:ination)?|download)_?(?:path|dir|directory|file|filename|folder|to)"
    r"|file_?name|local_?path|destination",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Guess:
    """What a tool is guessed to do, and why."""

    tool: str
    """Its name at the server."""
    kind: Kind
    """The strictest kind that something speaks for."""
    reason: str
    """What speaks for it, in a few words; the server's among them are safe to print."""


Evidence = tuple[Kind, str]
"""A kind, and what speaks for it."""


def guess(tool: AdmittedTool, *, trusted: bool) -> Guess:
    """Return what a tool is guessed to do. `trusted`: whether its server is."""
    definition: dict[str, Any] = json.loads(tool.definition)
    text = definition.get("description")
    description = text if isinstance(text, str) else ""
    hints = definition.get("annotations")

    evidence = list(_of_name(tool.card.tool))
    evidence += _of_description(description, has_verb=bool(evidence))
    evidence += _of_schema(tool.card.input_schema())
    evidence += _of_hints(hints if isinstance(hints, dict) else {})
    if not evidence and trusted and isinstance(hints, dict) and hints.get("readOnlyHint") is True:
        evidence.append(("read", "hint readOnlyHint of a trusted server"))
    kind, reason = strictest(evidence) or ("write", "nothing says what it does")
    return Guess(tool.card.tool, kind, reveal_line(reason[:_REASON_CHARS]))


def strictest(evidence: Iterable[Evidence]) -> Evidence | None:
    """Return the strictest evidence, the first of several; None if there is none."""
    return max(evidence, key=lambda row: KINDS.index(row[0]), default=None)


def _of_name(name: str) -> Iterator[Evidence]:
    """Yield the kinds of the verbs in a name (rule 1)."""
    words = words_of_name(name)
    verbs = [word for word in words if word in _KIND_OF_VERB]
    for verb in _certain_verbs(words[:1], verbs) or verbs:
        yield _KIND_OF_VERB[verb], f"{verb!r} in its name"


def _certain_verbs(first: list[str], verbs: list[str]) -> list[str]:
    """Return the verbs that are hardly nouns, and then also a verb that the name begins with."""
    certain = [verb for verb in verbs if verb not in _OFTEN_NOUNS]
    if certain and first == verbs[:1]:
        return certain + first
    return certain


def words_of_name(name: str) -> list[str]:
    """Return the words of `snake_case`, `kebab-case` and `camelCase`, in lower case."""
    spaced = _UPPER_UPPER.sub(r"\1 \2", _LOWER_UPPER.sub(r"\1 \2", name[:_NAME_CHARS]))
    return [word.lower() for word in _WORD.findall(spaced)]


def _of_description(text: str, *, has_verb: bool) -> Iterator[Evidence]:
    """Yield what a description speaks for (rule 2). `has_verb`: whether the name has a verb."""
    sentence = text.strip().split(". ")[0]
    words = (word.lower() for word in _WORD.findall(sentence))
    first = next((word for word in words if word not in _OPENING_WORDS), "")
    kind = _KIND_OF_VERB.get(_base_form(first))
    if kind is not None:
        yield kind, f"{first!r} in its description"
    if not has_verb and kind != "read":
        yield "write", "no verb says that it only reads"
    if made := _MAKING_WORDS.search(sentence):
        yield "write", f"{made[0].lower()!r} in its description"
    if final := _FINAL_WORDS.search(text):
        yield "risky", f"{final[0].lower()!r} in its description"


def _base_form(word: str) -> str:
    """Return the verb that a word is a form of; the word itself where no verb is known."""
    if word in _KIND_OF_VERB:
        return word
    for ending, base_ending in _ENDINGS:
        base = word.removesuffix(ending) + base_ending
        if word.endswith(ending) and base in _KIND_OF_VERB:
            return base
    return word


def _of_schema(schema: Mapping[str, Any]) -> Iterator[Evidence]:
    """Yield what the parameters speak for, nested ones included (rule 3)."""
    for part in all_schemas(schema):
        properties = part.get("properties")
        if isinstance(properties, dict):
            for name, inner in properties.items():
                yield from _of_parameter(name, inner if isinstance(inner, dict) else {})


def _of_parameter(name: str, schema: Mapping[str, Any]) -> Iterator[Evidence]:
    lower = name.lower()
    if lower in _CODE_PARAMETERS and "enum" not in schema:
        yield "run", f"parameter {name!r}"
    if _FILE_PARAMETER.fullmatch(name):
        yield "write", f"parameter {name!r}"
    if lower in _FORCING_PARAMETERS:
        yield "risky", f"parameter {name!r}"

    words = words_of_name(name)
    if schema.get("type") == "boolean":
        yield from _of_switch(name, words[:1])
    if lower in _ACTION_PARAMETERS or words[-1:] in (["action"], ["operation"]):
        yield from _of_action(name, schema)


def _of_switch(name: str, first: list[str]) -> Iterator[Evidence]:
    """Yield the kind of the verb that a switch is named by: `clear`, not `include`."""
    for verb in first:
        if verb in _KIND_OF_VERB and verb not in _OFTEN_NOUNS and verb != "resolve":
            yield _KIND_OF_VERB[verb], f"switch {name!r}"


def _of_action(name: str, schema: Mapping[str, Any]) -> Iterator[Evidence]:
    """Yield the kinds of what a parameter may say is to be done."""
    for value in _values(schema):
        for kind, _ in _of_name(value):
            yield kind, f"{value!r} as {name!r}"


def _values(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts that a parameter may be."""
    for part in all_schemas(schema):
        values = part.get("enum")
        for value in [*(values if isinstance(values, list) else ()), part.get("const")]:
            if isinstance(value, str):
                yield value


def _of_hints(hints: Mapping[str, Any]) -> Iterator[Evidence]:
    """Yield what a tool's hints admit (rule 4)."""
    if hints.get("readOnlyHint") is True:
        return  # `destructiveHint` has no meaning beside it
    if hints.get("readOnlyHint") is False:
        yield "write", "hint readOnlyHint: false"
    if hints.get("destructiveHint") is True:
        yield "risky", "hint destructiveHint: true"
