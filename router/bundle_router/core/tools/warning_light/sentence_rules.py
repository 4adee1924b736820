"""Rules about sentences that address a model. Each looks at one sentence, so that distant words do not combine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bundle_router.core.tools.warning_light.hidden import Seen
from bundle_router.core.tools.warning_light.vocabulary import (
    ACTS_OUTSIDE,
    ALTERS,
    ANOTHER,
    ARGUMENTS,
    BARE_DROP,
    BECOME,
    BEFORE,
    BESIDES,
    CARRY,
    CONTENTS,
    DROP,
    ELSEWHERE,
    EVERY_REQUEST,
    EVERYTHING,
    FAR,
    FETCH,
    FILE_SECRET,
    HIDE,
    HOME,
    INDIRECT,
    IS_CALLED,
    LABEL,
    LINK,
    MENTION,
    MUST,
    ORDER,
    OUTSIDE,
    PROMPT,
    PROTECTS,
    QUIETLY,
    QUOTED,
    RULES,
    SECRET,
    SEND,
    SHOW,
    STEAL,
    WHENEVER,
)


class Sentence:
    """One sentence, and whether it states something or only mentions it."""

    __slots__ = ("bare", "text")

    def __init__(self, text: str, before: str) -> None:
        explained = MENTION.search(text) is not None or MENTION.search(before) is not None
        self.text = text
        self.bare = QUOTED.sub(" ", text) if explained else text
        """The sentence without its quotations, if it mentions things."""
        if LABEL.search(before[-60:]) or LABEL.search(text):
            self.bare = ""
        indirect = INDIRECT.search(self.bare)
        if indirect:
            self.bare = self.bare[: indirect.end()]
        self.bare = LINK.sub(" https://link ", self.bare)


def seen_in_argument(text: str) -> Iterator[Seen]:
    """Yield a finding if an argument's name or description asks for the contents of a secret file."""
    if FILE_SECRET.search(text) and CONTENTS.search(text):
        yield "read-secret", text[:120]


def seen_in_sentence(text: str, before: str) -> Iterator[Seen]:
    """Yield the rules that match a sentence. `before` is the sentence before it."""
    sentence = Sentence(text, before)
    bare = sentence.bare
    if not bare.strip():
        return
    yield from _find_orders(bare)
    yield from _find_movements(bare)
    if MUST.search(bare):
        yield "told-to", text[:100]


def _find_orders(sentence: str) -> Iterator[Seen]:
    drop = DROP.search(sentence)
    if drop and _is_order(sentence, drop.start()):
        rest = sentence[drop.start() : drop.start() + 120]
        if BEFORE.search(rest) and RULES.search(rest):
            yield "override", rest
    bare = BARE_DROP.search(sentence)
    if bare and _is_order(sentence, bare.start()):
        yield "override", bare[0]
    elsewhere = None if drop or bare else ELSEWHERE.search(sentence)
    if elsewhere:
        yield "override", elsewhere[0]
    become = BECOME.search(sentence)
    if become:
        yield "unleash", sentence[become.start() : become.start() + 100]
    show, prompt = SHOW.search(sentence), PROMPT.search(sentence)
    if show and prompt and show.start() < prompt.start():
        yield "reveal-prompt", sentence[show.start() : prompt.end()]
    hide = HIDE.search(sentence)
    if hide and not PROTECTS.search(sentence[: hide.end()]):
        yield "concealment", hide[0]
    quiet = QUIETLY.search(sentence)
    if quiet:
        yield "quietly", sentence[max(0, quiet.start() - 40) : quiet.end() + 40]
    order = ORDER.search(sentence)
    if order:
        yield "seizes-order", order[0]
    everything = EVERYTHING.search(sentence)
    if everything:
        yield "wants-everything", everything[0]
    every = EVERY_REQUEST.search(sentence)
    if every:
        yield "wants-every-request", sentence[every.start() : every.start() + 100]
    if ANOTHER.search(sentence) and _one_after_another(sentence, WHENEVER, IS_CALLED, ALTERS, ARGUMENTS):
        yield "redirection", sentence[:160]


def _one_after_another(sentence: str, *patterns: re.Pattern[str]) -> bool:
    """Return whether the patterns match in this order, each at its first match: one pass."""
    at = 0
    for pattern in patterns:
        found = pattern.search(sentence, at)
        if found is None:
            return False
        at = found.end()
    return True


def _is_order(sentence: str, at: int) -> bool:
    """Return whether the verb at `at` is an imperative, not something that the tool, a file or a flag does."""
    before = sentence[max(0, at - 40) : at]
    return re.search(r"(?:\bto|\bcan|\bmay|\bwill|\bwould|\bthat|\bwhich|\bwhether|--?)\s*$", before) is None or (
        re.search(
            r"\b(?:you|need|have|want|required|asked|told|model|assistant|agent|llm) (?:\w{1,10} )?to\s*$", before
        )
        is not None
    )


def _find_movements(sentence: str) -> Iterator[Seen]:
    """Yield findings of data sent where it should not go."""
    at_home = HOME.search(sentence) is not None
    secret = SECRET.search(sentence)
    if secret:
        outside = SEND.search(sentence) and OUTSIDE.search(sentence) and not at_home
        if outside or STEAL.search(sentence):
            yield "exfiltration", sentence[:120]
        if FILE_SECRET.search(sentence) and not at_home:
            yield "secret-material", secret[0]
            if FETCH.search(sentence) and CARRY.search(sentence):
                yield "read-secret", sentence[:120]
    acts, far = ACTS_OUTSIDE.search(sentence), FAR.search(sentence)
    if acts and far and acts.start() < far.start() and BESIDES.search(sentence) and not at_home:
        yield "side-effect", sentence[:120]
