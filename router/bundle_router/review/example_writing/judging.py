"""What of a model's examples and words is taken for a bundle, and why the rest is not.

Rules:
1. A text is taken as it stands or not at all. It is refused if it is empty or too long, holds a
   control or an invisible character, holds something that redaction would hide, or the name of a
   tool. (A tool's name that is one plain word, such as `search`, is a word like any other.)
2. An example is refused if it has no word of its own beside those that every wish has ("show me the
   latest"), or the same words as another example of this or of another bundle.
3. An example is refused if it is more about another bundle: at least `OTHERS` of its words stand in
   what the operator wrote of that one, and more than stand in this bundle's own texts. The names of
   its servers do not count here, nor those words of its id that its description lacks, so that
   naming the product everywhere is no way around it.
4. An answer is refused as a whole (`off_subject`) if fewer than a third of the examples that are
   left share a word with the bundle's own texts, again without its names. Some may well be worded
   in words that nobody wrote before ("how hot is it outside"); most of them can't. The thinner the
   texts, the more right answers this refuses: an operator's line that says what the bundle is for
   mends that.
5. Of what is left the first `EXAMPLES`, and `WORDS` a language, are taken.

Rules 3 and 4 compare words: they see an example that is about another bundle's subject, or about
none. They don't see one that is about the right subject and wrong about it: a person reads the
diff.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.search.text import Analyzer
from bundle_router.core.values.visible import visible
from bundle_router.review.example_writing.question import EXAMPLES, WORDS, sendable_cards

MAX_EXAMPLE: Final = 160
"""Characters of an example."""
MAX_WORD: Final = 60
"""Characters of a key word."""
OTHERS: Final = 2
"""Words of another bundle that make an example look as if it were about that one."""
SHARING: Final = 3
"""One example in so many has to share a word with the bundle's own texts."""
OFF_SUBJECT: Final = (
    "too few of them share a word with the bundle's description and tools (say in its description"
    " what it is for)"
)
_PLAIN_WORD: Final = re.compile(r"[a-z]+")
_NAME: Final = re.compile(r"[\w.-]+")

Redact = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """What is taken of one answer."""

    examples: tuple[str, ...]
    """Examples to add."""
    words: tuple[str, ...]
    """Words to add."""
    refusals: tuple[tuple[str, str], ...]
    """Texts that are not taken, each with the reason."""
    off_subject: bool = False
    """Whether most of it is about something else, so that nothing is taken."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """The words of one bundle, stemmed, without those that every wish has."""

    names: frozenset[str]
    """Those of its servers' names, and those of its id that its description lacks."""
    own_words: frozenset[str]
    """Those of its texts, without `names`."""
    operators_words: frozenset[str]
    """Those of the operator's texts alone, without `names`."""


@dataclass(slots=True)
class AnswerJudge:
    """Judges the answers for the bundles of one catalog, one after the other.

    An example that was taken for a bundle (`take`) is one of its examples for those that follow.
    """

    catalog: Catalog
    analyzer: Analyzer
    redact: Redact
    _subjects: dict[str, _Subject] = field(default_factory=dict)
    _used: dict[frozenset[str], str] = field(default_factory=dict)
    """The bundle by the words of its example."""
    _tool_names: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for bundle in self.catalog.bundles.values():
            if not bundle.enabled:
                continue
            self._subjects[bundle.id] = self._subject(bundle)
            for example in bundle.examples:
                self._used.setdefault(self._content(example), bundle.id)
        self._tool_names = _names_of_tools(self.catalog)

    def judge(
        self, bundle: Bundle, examples: Sequence[str], words: Mapping[str, Sequence[str]]
    ) -> JudgedAnswer:
        """Return what is taken of an answer for an enabled bundle of the catalog."""
        refusals: list[tuple[str, str]] = []
        examples_taken: list[str] = []
        used = dict(self._used)
        for text in map(str.strip, examples):
            content = self._content(text)
            fault = self._fault(text, MAX_EXAMPLE) or self._misses(bundle, content, used)
            if fault:
                refusals.append((text, fault))
            elif len(examples_taken) == EXAMPLES:
                refusals.append((text, f"more than {EXAMPLES}"))
            else:
                examples_taken.append(text)
                used[content] = bundle.id

        if not self._keeps_to_subject(bundle, examples_taken):
            refusals += [(text, OFF_SUBJECT) for text in examples_taken]
            return JudgedAnswer((), (), tuple(refusals), off_subject=True)
        key_words, unusable = self._key_words(bundle, words)
        return JudgedAnswer(tuple(examples_taken), key_words, (*refusals, *unusable))

    def take(self, bundle: Bundle, judged: JudgedAnswer) -> None:
        """Count what was taken as the bundle's examples from now on."""
        for text in judged.examples:
            self._used.setdefault(self._content(text), bundle.id)

    def _fault(self, text: str, limit: int) -> str:
        """Return why a text can't stand in a config (rule 1); empty if it can."""
        if not text:
            return "empty"
        if len(text) > limit:
            return f"longer than {limit} characters"
        if not text.isprintable() or visible(text) != text:
            return "holds a control or an invisible character"
        if self.redact(text) != text:
            return "looks as if it held a secret"
        tools = {name.strip(".-").lower() for name in _NAME.findall(text)} & self._tool_names
        if tools:
            return f"names the tool {min(tools)}"
        return ""

    def _misses(
        self, bundle: Bundle, content: frozenset[str], used: Mapping[frozenset[str], str]
    ) -> str:
        """Return why an example is not one of this bundle (rules 2 and 3); empty if it is."""
        if not content:
            return "would fit any bundle"
        if content in used:
            holder = used[content]
            return "said already" if holder == bundle.id else f"stands at {holder} already"
        subject = self._subjects[bundle.id]
        about = content - subject.names
        for id_, other_subject in self._subjects.items():
            shared = len(about & other_subject.operators_words)
            if id_ != bundle.id and shared >= OTHERS and shared > len(about & subject.own_words):
                return f"more about {id_}"
        return ""

    def _keeps_to_subject(self, bundle: Bundle, examples: Sequence[str]) -> bool:
        own_words = self._subjects[bundle.id].own_words
        sharing = [text for text in examples if self._content(text) & own_words]
        return SHARING * len(sharing) >= len(examples)

    def _key_words(
        self, bundle: Bundle, words: Mapping[str, Sequence[str]]
    ) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
        """Return the words that are taken, and the others with the reason."""
        refusals: list[tuple[str, str]] = []
        key_words = dict.fromkeys(bundle.words)
        for of_language in words.values():
            added = 0
            for text in map(str.strip, of_language):
                fault = self._fault(text, MAX_WORD)
                if fault:
                    refusals.append((text, fault))
                elif added < WORDS and text not in key_words:
                    key_words[text] = None
                    added += 1
        return tuple(key_words)[len(bundle.words) :], refusals

    def _subject(self, bundle: Bundle) -> _Subject:
        # The id's words may be what it is about ("calendar"); a server's name is the product's.
        id_words = self._content(bundle.id) - self._content(bundle.description)
        names = id_words | self._content(" ".join(bundle.servers))
        cards = sendable_cards(self.catalog, bundle).values()
        operators = (bundle.description, *bundle.examples)
        listed = (name.partition(".")[2] for name in bundle.tools)
        operators_words = self._content_of(operators) - names
        tools = self._content_of((*listed, *(card.description for card in cards)))
        return _Subject(names, operators_words | (tools - names), operators_words)

    def _content_of(self, texts: Iterable[str]) -> frozenset[str]:
        return frozenset().union(*map(self._content, texts))

    def _content(self, text: str) -> frozenset[str]:
        everyday = self.analyzer.generic | self.analyzer.conversation
        return frozenset(self.analyzer.stems(text)) - everyday


def _names_of_tools(catalog: Catalog) -> frozenset[str]:
    """Return the tools' names that are no plain words, with their server and without."""
    names = {name for bundle in catalog.bundles.values() for name in bundle.tools}
    names |= {name.partition(".")[2] for name in names}
    return frozenset(name.lower() for name in names if not _PLAIN_WORD.fullmatch(name))
