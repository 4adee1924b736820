"""What sentences say to a model. Each rule looks at one sentence, so that words far apart don't make a meaning."""

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
    """One sentence, and whether what it says is said or only spoken of."""

    __slots__ = ("bare", "text")

    def __init__(self, text: str, before: str) -> None:
        explained = MENTION.search(text) is not None or MENTION.search(before) is not None
        self.text = text
        self.bare = QUOTED.sub(" ", text) if explained else text
        """The sentence without its quotations, where it speaks of things."""
        if LABEL.search(before[-60:]) or LABEL.search(text):
            self.bare = ""
        indirect = INDIRECT.search(self.bare)
        if indirect:
            self.bare = self.bare[: indirect.end()]
        self.bare = LINK.sub(" https://link ", self.bare)


def seen_in_argument(text: str) -> Iterator[Seen]:
    """An argument, by its name or description, that is to be filled with what a secret file holds."""
    if FILE_SECRET.search(text) and CONTENTS.search(text):
        yield "read-secret", text[:120]


def seen_in_sentence(text: str, before: str) -> Iterator[Seen]:
    """Rules that a sentence meets. `before` is the sentence before it."""
    sentence = Sentence(text, before)
    said = sentence.bare
    if not said.strip():
        return
    yield from _orders(said)
    yield from _movements(said)
    if MUST.search(said):
        yield "told-to", text[:100]


def _orders(said: str) -> Iterator[Seen]:
    drop = DROP.search(said)
    if drop and _is_order(said, drop.start()):
        rest = said[drop.start() : drop.start() + 120]
        if BEFORE.search(rest) and RULES.search(rest):
            yield "override", rest
    bare = BARE_DROP.search(said)
    if bare and _is_order(said, bare.start()):
        yield "override", bare[0]
    elsewhere = None if drop or bare else ELSEWHERE.search(said)
    if elsewhere:
        yield "override", elsewhere[0]
    become = BECOME.search(said)
    if become:
        yield "unleash", said[become.start() : become.start() + 100]
    show, prompt = SHOW.search(said), PROMPT.search(said)
    if show and prompt and show.start() < prompt.start():
        yield "reveal-prompt", said[show.start() : prompt.end()]
    hide = HIDE.search(said)
    if hide and not PROTECTS.search(said[: hide.end()]):
        yield "concealment", hide[0]
    quiet = QUIETLY.search(said)
    if quiet:
        yield "quietly", said[max(0, quiet.start() - 40) : quiet.end() + 40]
    order = ORDER.search(said)
    if order:
        yield "seizes-order", order[0]
    every = EVERY_REQUEST.search(said)
    if every:
        yield "wants-every-request", said[every.start() : every.start() + 100]
    if ANOTHER.search(said) and _one_after_another(said, WHENEVER, IS_CALLED, ALTERS, ARGUMENTS):
        yield "redirection", said[:160]


def _one_after_another(said: str, *patterns: re.Pattern[str]) -> bool:
    """Whether the patterns are met in this order. Each is taken where it first comes, so the cost is one pass."""
    at = 0
    for pattern in patterns:
        found = pattern.search(said, at)
        if found is None:
            return False
        at = found.end()
    return True


def _is_order(said: str, at: int) -> bool:
    """Whether the verb at `at` is an order: not something that the tool, a file or a flag does."""
    before = said[max(0, at - 40) : at]
    return re.search(r"(?:\bto|\bcan|\bmay|\bwill|\bwould|\bthat|\bwhich|\bwhether|--?)\s*$", before) is None or (
        re.search(
            r"\b(?:you|need|have|want|required|asked|told|model|assistant|agent|llm) (?:\w{1,10} )?to\s*$", before
        )
        is not None
    )


def _movements(said: str) -> Iterator[Seen]:
    """Things that go where they should not."""
    at_home = HOME.search(said) is not None
    secret = SECRET.search(said)
    if secret:
        outside = SEND.search(said) and OUTSIDE.search(said) and not at_home
        if outside or STEAL.search(said):
            yield "exfiltration", said[:120]
        if FILE_SECRET.search(said) and not at_home:
            yield "secret-material", secret[0]
            if FETCH.search(said) and CARRY.search(said):
                yield "read-secret", said[:120]
    acts, far = ACTS_OUTSIDE.search(said), FAR.search(said)
    if acts and far and acts.start() < far.start() and BESIDES.search(said) and not at_home:
        yield "side-effect", said[:120]
