"""Rules about sentences that address a model.

Each looks at one sentence, so that distant words do not combine. The verbs, objects, places and
phrases that they combine are data (`vocabulary.toml`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final

from bundle_router.core.servers.warning_light.hidden import Seen, fold_letters

_VOCABULARY: Final[dict[str, Any]] = tomllib.loads(
    fold_letters(
        files("bundle_router.core.servers.warning_light")
        .joinpath("vocabulary.toml")
        .read_text(encoding="utf-8")
    )
)
PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
    name: re.compile(r"(?<![a-z])(?:" + "|".join(words) + r")(?![a-z])")
    for name, words in _VOCABULARY["words"].items()
} | {
    name: re.compile("".join(pattern.splitlines()))
    for name, pattern in _VOCABULARY["patterns"].items()
}

_STEPS: Final = re.compile(
    r"\b(?:"
    + "|".join(rf"(?P<{kind}>{'|'.join(words)})" for kind, words in _VOCABULARY["steps"].items())
    + r")\b"
)
MAX_KINDS: Final = 5
PILE: Final = 100
"""Characters within which a text names at most `MAX_KINDS` kinds of steps."""


def _find(name: str, text: str) -> re.Match[str] | None:
    return PATTERNS[name].search(text)


def _stated(text: str, before: str) -> str:
    """Return the part of a sentence that states something; if it mentions things, without its
    quotations.
    """
    if _find("label", before[-60:]) or _find("label", text):
        return ""
    if _find("mention", text) or _find("mention", before):
        stated = PATTERNS["quoted"].sub(" ", text)
    else:
        stated = text
    if indirect := _find("indirect", stated):
        stated = stated[: indirect.end()]
    return PATTERNS["link"].sub(" https://link ", stated)


def seen_in_argument(text: str) -> Iterator[Seen]:
    """Yield a finding if an argument's name or description asks for the contents of a secret
    file.
    """
    if _find("file_secret", text) and _find("contents", text):
        yield "read-secret", text[:120]


def seen_in_piles(text: str) -> Iterator[Seen]:
    """Yield a finding if a text names many kinds of steps close together."""
    last: dict[str, int] = {}
    for match in _STEPS.finditer(text):
        last[match.lastgroup or ""] = match.start()
        if (
            len(last) > MAX_KINDS
            and (start := sorted(last.values())[-MAX_KINDS - 1]) >= match.end() - PILE
        ):
            yield "pile-of-steps", text[start : match.end()]
            return


def seen_in_sentence(text: str, before: str) -> Iterator[Seen]:
    """Yield the rules that match a sentence. `before` is the sentence before it."""
    stated = _stated(text, before)
    if not stated.strip():
        return
    yield from _find_orders(stated)
    yield from _find_movements(stated)
    if _find("must", stated):
        yield "told-to", text[:100]


def _find_orders(sentence: str) -> Iterator[Seen]:
    if (drop := _find("drop", sentence)) and _is_order(sentence, drop.start()):
        rest = sentence[drop.start() : drop.start() + 120]
        if _find("before", rest) and _find("rules", rest):
            yield "override", rest
    if (bare := _find("bare_drop", sentence)) and _is_order(sentence, bare.start()):
        yield "override", bare[0]
    elsewhere = None if drop or bare else _find("elsewhere", sentence)
    if elsewhere:
        yield "override", elsewhere[0]
    if become := _find("become", sentence):
        yield "unleash", sentence[become.start() : become.start() + 100]
    show = _find("show", sentence)
    prompt = _find("prompt", sentence)
    if show and prompt and show.start() < prompt.start():
        yield "reveal-prompt", sentence[show.start() : prompt.end()]
    if (hide := _find("hide", sentence)) and not _find("protects", sentence[: hide.end()]):
        yield "concealment", hide[0]
    if quiet := _find("quietly", sentence):
        yield "quietly", sentence[max(0, quiet.start() - 40) : quiet.end() + 40]
    if order := _find("order", sentence):
        yield "seizes-order", order[0]
    if everything := _find("everything", sentence):
        yield "wants-everything", everything[0]
    if every := _find("every_request", sentence):
        yield "wants-every-request", sentence[every.start() : every.start() + 100]
    if elsewhere := _find_every_use_elsewhere(sentence):
        yield "wants-every-request", elsewhere[0]
    if _find("another", sentence) and _one_after_another(
        sentence, "whenever", "is_called", "alters", "arguments"
    ):
        yield "redirection", sentence[:160]


def _one_after_another(sentence: str, *names: str) -> bool:
    """Return whether the patterns match in this order, each at its first match: one pass."""
    offset = 0
    for name in names:
        match = PATTERNS[name].search(sentence, offset)
        if match is None:
            return False
        offset = match.end()
    return True


def _is_order(sentence: str, at: int) -> bool:
    """Return whether the verb at `at` is an imperative, not something that the tool, a file or a
    flag does.
    """
    prefix = sentence[max(0, at - 40) : at]
    return re.search(
        r"(?:\bto|\bcan|\bmay|\bwill|\bwould|\bthat|\bwhich|\bwhether|--?)\s*$", prefix
    ) is None or (
        re.search(
            r"\b(?:you|need|have|want|required|asked|told|model|assistant|agent|llm) (?:\w{1,10}"
            r" )?to\s*$",
            prefix,
        )
        is not None
    )


def _find_every_use_elsewhere(sentence: str) -> re.Match[str] | None:
    """Return where every use of another tool is claimed, not of a protocol."""
    every = None
    if _find("use_elsewhere", sentence):
        every = _find("every_elsewhere", sentence)
    if every and not PATTERNS["protocol"].match(sentence, every.end()):
        return every
    return _find("whatever_elsewhere", sentence)


def _find_movements(sentence: str) -> Iterator[Seen]:
    """Yield findings of data sent where it should not go."""
    at_home = _find("home", sentence) is not None
    if secret := _find("secret", sentence):
        outside = _find("send", sentence) and _find("outside", sentence) and not at_home
        if outside or _find("steal", sentence):
            yield "exfiltration", sentence[:120]
        if _find("file_secret", sentence) and not at_home:
            yield "secret-material", secret[0]
            if _find("fetch", sentence) and _find("carry", sentence):
                yield "read-secret", sentence[:120]
    acts = _find("acts_outside", sentence)
    far = _find("far", sentence)
    if acts and far and acts.start() < far.start() and _find("besides", sentence) and not at_home:
        yield "side-effect", sentence[:120]
