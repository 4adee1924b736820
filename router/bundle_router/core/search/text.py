"""Turns text into weighted terms, by the same rules for indexed texts and for requests.

Rules:
1. Words are Unicode letters and digits after NFKC, in lower case; scripts without spaces give one
   term a character.
2. An identifier is kept whole and split: `createPullRequest`, `create_pull_request` and
   `create-pull-request` all give `create`, `pull`, `request`, and a camelCase one its joined form
   as well. Single letters and bare numbers are no terms, and a word that would split into such
   (`GmbH`, `7c9f`) stays whole.
3. Stop words are dropped. Words that every request uses (`find`, `show`, `latest`) stay, but weigh
   less: dropping them would make "list" and "delete" the same, and counting them in full would let
   them decide.
4. Stemming is a port (`Stem`): the same stemmer must have made the index.
5. Neighbouring words also give one joined term ("resource group"), which can only add to a match.
6. In a request, words inside names (`acme/billing-api`, `new-checkout-ui`, addresses) weigh less:
   they say what is touched, not what is wanted. A file's extension names its kind (`.docx`: Word
   document), without its dot too where it is no word itself, and an address a page.
7. A request in another language loses that language's stop words, if it has more of these than
   English ones.
8. No string makes this fail: lone surrogates, controls and 32,768 characters are just text.
"""

from __future__ import annotations

import itertools
import re
import tomllib
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

# --- the word lists -------------------------------------------------------------------------------

_LISTS: Final[dict[str, Any]] = tomllib.loads(
    files("bundle_router.core.search").joinpath("word_lists.toml").read_text(encoding="utf-8")
)


def _words(name: str) -> frozenset[str]:
    return frozenset(_LISTS[name].split())


def _words_by_name(name: str) -> Mapping[str, frozenset[str]]:
    return MappingProxyType({key: frozenset(words.split()) for key, words in _LISTS[name].items()})


def _synonyms() -> tuple[tuple[str, tuple[str, ...]], ...]:
    table: dict[str, dict[str, None]] = {}
    for group in _LISTS["alike"].replace("\n", " | ").split("|"):
        members = group.split()
        for word in members:
            table.setdefault(word, {}).update(
                dict.fromkeys(other for other in members if other != word)
            )
    for row in _LISTS["broader"].split("|"):
        broader, _, narrower = row.partition(":")
        for word in narrower.split():
            table.setdefault(word, {})[broader.strip()] = None
    return tuple((word, tuple(others)) for word, others in sorted(table.items()))


STOP_WORDS: Final = _words("stop_words")
FOREIGN_STOP_WORDS: Final = _words_by_name("foreign_stop_words")
GENERIC: Final = _words("generic")
CONVERSATION: Final = _words("conversation")
ACTIONS: Final = _words_by_name("actions")
PREFACE: Final = _words("preface")
QUESTIONS: Final = _words("questions")
CHANGES: Final = _words("changes")
FILE_KINDS: Final = MappingProxyType(
    {ending: kind for kind, endings in _LISTS["file_kinds"].items() for ending in endings.split()}
)
"""File extension: words for the kind of file."""
_WORDS_TOO: Final = _words("words_too")
SYNONYMS: Final = _synonyms()
"""`(word, words it may stand for)`, by word."""

# --- terms ----------------------------------------------------------------------------------------

Stem = Callable[[str], str]
"""Stems one lower-case word. Must be a function of the word alone."""

MAX_WORDS: Final = 600
"""Maximum words of a request that are used. Its first page says what is wanted."""
MAX_CLAUSES: Final = 12
MAX_NAME: Final = 200
"""Maximum characters of a word that are examined to see whether it is a name."""

_WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_PART: Final = re.compile(
    r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[\u3040-\u30ff\u3400-\u9fff]|[^\W_A-Za-z\d]+"
)
_UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
"""Scripts written without spaces between words."""
_SENTENCE: Final = re.compile(r"(?<=[.!?;。！？])\s+|\n+")
_CONJUNCTION: Final = re.compile(
    r",\s*(?:and\s+)?(?:then|also|finally|next|additionally|after that)\b|,\s+and\b|;"
    r"|\b(?:and (?:then|also)|as well as|before|after that)\b",
    re.IGNORECASE,
)

_QUOTED: Final = re.compile(
    r"(?<![^\W_])(?:\"([^\"\n]{1,2000})\"|“([^”\n]{1,2000})”|`([^`\n]{1,2000})`"
    r"|'((?:[^'\n]|(?<=\w)'(?=\w)){1,2000})'(?!\w))"
)
MIN_QUOTED_WORDS: Final = 3


def split_quotes(text: str) -> tuple[str, str]:
    """Return the text without its quotations, and the quotations.

    Short ones stay: they are names, not content.

    Text to be *sent* ("the stock rose") says little about what is to be *done*.
    """
    quotations: list[str] = []

    def take(match: re.Match[str]) -> str:
        inside = next(group for group in match.groups() if group is not None)
        if len(inside.split()) < MIN_QUOTED_WORDS:
            return match.group()
        quotations.append(inside)
        return " "

    outside = _QUOTED.sub(take, text)
    return (outside, "\n".join(quotations)) if outside.strip() else (text, "")


def words(text: str) -> list[str]:
    """Return the words of a text in order, lower case, identifiers split and camelCase kept whole
    too. Unstemmed.
    """
    matches = _WORD.findall(text if text.isascii() else unicodedata.normalize("NFKC", text))
    return [
        word
        for name in matches
        for word in (_words_of if len(name) <= MAX_NAME else _words_of.__wrapped__)(name)
    ]


@lru_cache(maxsize=8192)
def _words_of(whole: str) -> tuple[str, ...]:
    word = whole
    if not whole.isalnum():
        word = re.split("['’]", whole, maxsplit=1)[0]
    return tuple(spelling.lower() for spelling in _spellings(word) if _tells(spelling.lower()))


def _spellings(word: str) -> list[str]:
    """Return a word and the parts that it is written of (`getUserId`); the word alone where it has
    none, or where a part is a single letter.
    """
    if _is_one_word(word):
        return [word]

    parts = _PART.findall(word)
    has_letter = any(len(part) == 1 and part.isascii() and part.isalpha() for part in parts)
    if len(parts) > 1 and has_letter:
        return [word]
    if len(parts) > 1:
        return [word, *parts]
    if has_letter:
        return []
    return parts


def _is_one_word(word: str) -> bool:
    """Return whether a word is written of no parts: of one case, in a script with spaces."""
    if not word.isalpha():
        return False
    if not word[1:].islower() and not word.isupper():
        return False
    return word.isascii() or _UNSPACED.search(word) is None


def _tells(word: str) -> bool:
    """Return whether a word says anything: no single letter or number, unless another script's."""
    return not word.isascii() or (len(word) > 1 and not word.isdigit())


_NAME: Final = re.compile(
    r"[\w)][/_:@=]\w|\w\.\w|[a-z]\d|\d[a-z]|\w-\w+-\w|[#@]\w|://", re.IGNORECASE
)
"""Matches characters that occur in names, paths, addresses, ids and versions, but not in words."""
_PROPER: Final = re.compile(r"(?<=[\w,] )[A-Z]\w+")
_ENDING: Final = re.compile(r"\.([A-Za-z][A-Za-z0-9]{1,5})\b")
_KIND: Final = re.compile(
    rf"\b(?:{'|'.join(sorted(FILE_KINDS.keys() - _WORDS_TOO))})\b", re.IGNORECASE
)
"""Matches a file extension that stands for its kind without a dot (an xlsx)."""


def kinds_in(text: str) -> str:
    """Return words for the things that a text names: the kinds of its files, with or without the
    dot, and a page if it has an address.
    """
    endings = (*_ENDING.findall(text), *_KIND.findall(text))
    kinds = [FILE_KINDS.get(ending, "") for ending in dict.fromkeys(map(str.lower, endings))]
    return " ".join((*kinds, "url web page" if "://" in text else ""))


def foreign_stop_words(found: Collection[str]) -> frozenset[str]:
    """Return the stop words of the language of the words, unless that is English."""
    words = frozenset(found)
    count, _, stop = max(
        (len(words & stop), name, stop) for name, stop in FOREIGN_STOP_WORDS.items()
    )
    if count >= 2 and count > len(words & STOP_WORDS):
        return stop
    return frozenset()


@lru_cache(maxsize=4096)
def _identity(word: str) -> str:
    return word


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a text: distinct stems in order of appearance, and their pairs of neighbours."""

    stems: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    named: frozenset[str] = frozenset()
    """Stems that occur only in names."""
    proper: frozenset[str] = frozenset()
    """Stems of words capitalised inside a sentence: even unknown ones are not corrected."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """The word of each stem, as it is written."""
    guesses: Mapping[str, float] = field(default_factory=dict)
    """Stems of words that a misspelt one may mean, with how likely it does."""


NO_TERMS: Final = Terms(())


def pair_term(pair: tuple[str, str]) -> str:
    """Return the index term of two neighbours.

    Its space distinguishes it from every single word.
    """
    return f"{pair[0]} {pair[1]}"


@dataclass(frozen=True)
class Analyzer:
    """Applies the rules above with one stemmer.

    Make one and keep it: its tables are stemmed once.
    """

    stem: Stem = _identity
    stop: frozenset[str] = STOP_WORDS
    generic: frozenset[str] = field(init=False)
    conversation: frozenset[str] = field(init=False)
    synonyms: Mapping[str, tuple[str, ...]] = field(init=False)

    _actions: Mapping[str, str] = field(init=False, repr=False)
    _preface: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        stem = self.stem
        actions = {stem(word): action for action, verbs in ACTIONS.items() for word in verbs}
        object.__setattr__(self, "_actions", MappingProxyType(actions))
        object.__setattr__(self, "_preface", frozenset(stem(word) for word in PREFACE))
        object.__setattr__(self, "generic", frozenset(stem(word) for word in GENERIC))
        object.__setattr__(self, "conversation", frozenset(stem(word) for word in CONVERSATION))
        table: dict[str, dict[str, None]] = {}
        for word, synonyms in SYNONYMS:
            row = table.setdefault(stem(word), {})
            row.update(dict.fromkeys(stem(other) for other in synonyms))
        for word, row in table.items():
            row.pop(word, None)
        object.__setattr__(
            self,
            "synonyms",
            MappingProxyType({word: tuple(sorted(row)) for word, row in sorted(table.items())}),
        )

    def stems(self, text: str, *, limit: int | None = None) -> list[str]:
        """Return stems in order of appearance, with repetitions, without stop words."""
        stop = self.stop
        stem = self.stem
        telling = [word for word in words(text) if word not in stop]
        return [stem(word) for word in telling[:limit]]

    def terms(self, text: str, *, limit: int | None = MAX_WORDS) -> Terms:
        """Return the terms of a request."""
        stem = self.stem
        request_words = words(text)
        foreign = set(map(stem, foreign_stop_words(request_words[:limit])))
        telling = [word for word in request_words if word not in self.stop]

        stems: list[str] = []
        spellings: dict[str, str] = {}
        for word in telling[:limit]:
            one = stem(word)
            if one in foreign:
                continue
            stems.append(one)
            spellings.setdefault(one, word)

        kinds = self.stems(kinds_in(text))
        added = [kind for kind in kinds if kind not in foreign]
        proper = words(" ".join(_PROPER.findall(text)))
        return Terms(
            tuple(dict.fromkeys((*stems, *added))),
            tuple(dict.fromkeys(itertools.pairwise(stems))),
            self._named(text, limit).difference(added),
            frozenset(map(stem, proper)),
            spellings,
        )

    def _named(self, text: str, limit: int | None) -> frozenset[str]:
        """Return the stems of names (`getUserId`, `v1.2`) that no plain word of the request has."""
        names: list[str] = []
        others: list[str] = []
        for part in text.split():
            is_name = not part.isalpha() and _NAME.search(part[:MAX_NAME]) is not None
            (names if is_name else others).append(part)
        if not names:
            return frozenset()

        in_names = self.stems(" ".join(names), limit=limit)
        elsewhere = self.stems(" ".join(others), limit=limit)
        return frozenset(in_names).difference(elsewhere)

    def action_asked(self, text: str) -> str:
        """Return the action that a request asks for, by its first word after polite ones; empty if
        that names none.
        """
        first = next(
            (stem for stem in self.stems(text[:MAX_NAME]) if stem not in self._preface), ""
        )
        return self._actions.get(first, "")

    def asks_for_change(self, text: str) -> bool | None:
        """Return whether a request asks that something is changed or done (True) or to be told
        something (False), by its first word after polite ones; None if that tells neither.
        """
        first = next((word for word in words(text[:MAX_NAME]) if self._opens_wish(word)), "")
        if first in QUESTIONS:
            return False
        if first in CHANGES:
            return True
        action = self._actions.get(self.stem(first))
        return None if action is None else action != "read"

    def _opens_wish(self, word: str) -> bool:
        return word in QUESTIONS or not (word in self.stop or self.stem(word) in self._preface)

    def actions_in(self, name: str) -> frozenset[str]:
        """Return the actions in a tool's name."""
        return frozenset(self._actions[stem] for stem in self.stems(name) if stem in self._actions)

    def clauses(self, text: str) -> list[Terms]:
        """Return the wishes of a request with several, each of at least two terms; the first
        `MAX_CLAUSES`.
        """
        terms_of_clauses: list[Terms] = []
        clauses = [
            clause for sentence in _SENTENCE.split(text) for clause in _CONJUNCTION.split(sentence)
        ]
        for clause in clauses if len(clauses) > 1 else ():
            terms = self.terms(clause)
            if len(terms.stems) >= 2:
                terms_of_clauses.append(terms)
                if len(terms_of_clauses) == MAX_CLAUSES:
                    break
        return terms_of_clauses if len(terms_of_clauses) > 1 else []

    def query_weights(self, terms: Terms, scale: Scale) -> dict[str, float]:
        """Return query weights by index term: the words, their synonyms, and pairs of
        neighbours.
        """
        weights: dict[str, float] = {}
        own: dict[str, float] = {}
        for stem in terms.stems:
            if stem in self.generic:
                weight = scale.generic
            elif stem in self.conversation:
                weight = scale.conversation
            else:
                weight = 1.0
            weight *= scale.named if stem in terms.named else 1.0
            weight *= scale.guess * terms.guesses.get(stem, 1.0) if stem in terms.guesses else 1.0
            own[stem] = weight
            weights[stem] = max(weights.get(stem, 0.0), weight)
            for synonym in self.synonyms.get(stem, ()):
                weights[synonym] = max(weights.get(synonym, 0.0), weight * scale.synonym)
        for pair in terms.pairs:
            weights[pair_term(pair)] = scale.pair * min(
                own.get(pair[0], 1.0), own.get(pair[1], 1.0)
            )
        return weights


@dataclass(frozen=True, slots=True)
class Scale:
    """Weights of kinds of query terms, an ordinary word being 1: words that every request uses,
    words of conversation, synonyms (times the weight of the original word), pairs of neighbours,
    words inside names, and corrected words.
    """

    generic: float
    conversation: float
    synonym: float
    pair: float
    named: float = 0.35
    guess: float = 0.8
