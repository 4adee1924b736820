"""The classes of names that a set of patterns tells apart, with an example of each.

Rules:
1. Two names are in one class if the same patterns cover both. Every non-empty class is found, also
   that of names which no pattern covers: a config's statement about unspelled names is a statement
   about a class.
2. All patterns are walked as automata over every name at once. An example is the shortest name of
   its class.
3. The walk is bounded. If it hits the bound, the result says that it is incomplete, and must not be
   relied on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from bundle_router.core.values.patterns import is_glob, matches

MAX_STATES: Final = 40_000
MAX_NAME: Final = 200
"""Maximum characters of a workflow, role or step (see `Step`)."""
OTHER: Final = "any other"
ANY: Final = "any"

_Trie = dict[str, int]
_States = tuple[tuple[int, int], ...]
"""By the place of each glob that may still cover a name: the positions in it, as bits."""


@dataclass(frozen=True, slots=True)
class NameClass:
    """A class of names. `label` is for people, `example` is one of the names."""

    label: str
    example: str
    patterns: frozenset[str]


def name_classes(
    patterns: Iterable[str], prefix: str = "", *, with_empty: bool = False
) -> tuple[tuple[NameClass, ...], bool]:
    """Return the classes of names that begin with `prefix` and are longer, and whether these are
    all. `with_empty`: there may be no name, too, which is an empty one.

    Plain names are patterns that cover only themselves. The class of each plain name comes first,
    the uncovered one last.
    """
    every = sorted(set(patterns))
    exact = [pattern for pattern in every if not is_glob(pattern)]
    globs = [pattern for pattern in every if is_glob(pattern)]
    examples, complete = _walk(exact, globs, prefix)
    if with_empty:
        examples.setdefault(frozenset(glob for glob in globs if matches(glob, "")), "")
    exact_names = set(exact)

    def place(found: tuple[frozenset[str], str]) -> tuple[bool, bool, str]:
        covered, example = found
        return example not in exact_names, not covered, example

    classes = [
        NameClass(_label(example, covered, example in exact_names), example, covered)
        for covered, example in sorted(examples.items(), key=place)
    ]
    if len(classes) == 1 and classes[0].label == OTHER:
        classes = [NameClass(ANY, classes[0].example, classes[0].patterns)]
    return tuple(classes), complete


def label_of(name: str, classes: Sequence[NameClass]) -> str:
    """Return the label of the name's class."""
    patterns = {pattern for name_class in classes for pattern in name_class.patterns}
    covered = {pattern for pattern in patterns if matches(pattern, name)}
    return next((one.label for one in classes if one.patterns == covered), OTHER)


def _label(example: str, covered: frozenset[str], is_named: bool) -> str:
    if is_named:
        return example
    return " & ".join(sorted(covered - {"*"})) or OTHER


def _walk(
    exact: Sequence[str], globs: Sequence[str], prefix: str
) -> tuple[dict[frozenset[str], str], bool]:
    """Walk breadth first over possible names.

    A state is the position in the plain names and in each glob that may still cover the name: of
    many globs most are out after a few characters, and cost nothing more.
    """
    trie, ends = _trie_of(exact)
    literals = sorted({char for glob in globs for char in glob if char not in "*?"})
    free = _free_char({char for name in exact for char in name} | set(literals))
    node = 0
    states: _States = tuple((place, _close_stars(1, glob)) for place, glob in enumerate(globs))
    for char in prefix:
        node = trie[node].get(char, -1) if node >= 0 else -1
        states = _move_states(states, globs, char)
    examples: dict[frozenset[str], str] = {}
    visited = {(node, states)}
    layer = [(prefix, node, states)]
    for _ in range(MAX_NAME - len(prefix)):
        if not layer:
            break
        following: list[tuple[str, int, _States]] = []
        for text, node, states in layer:
            chars = {*literals, free, *(trie[node] if node >= 0 else ())}
            for char in sorted(chars, key=lambda one: (one != free, one)):
                to = trie[node].get(char, -1) if node >= 0 else -1
                next_states = _move_states(states, globs, char)
                name = text + char
                covered = {
                    globs[place] for place, state in next_states if state >> len(globs[place]) & 1
                }
                if to in ends:
                    covered.add(name)
                examples.setdefault(frozenset(covered), name)
                if (to, next_states) not in visited:
                    visited.add((to, next_states))
                    following.append((name, to, next_states))
            if len(visited) > MAX_STATES:
                return examples, False
        layer = following
    return examples, True


def _trie_of(names: Sequence[str]) -> tuple[list[_Trie], set[int]]:
    """Return the nodes of a trie, by number, and those that end a name."""
    nodes: list[_Trie] = [{}]
    ends: set[int] = set()
    for name in names:
        node = 0
        for char in name:
            if char not in nodes[node]:
                nodes[node][char] = len(nodes)
                nodes.append({})
            node = nodes[node][char]
        ends.add(node)
    return nodes, ends


def _close_stars(state: int, glob: str) -> int:
    """Return the positions (as bits) with those reached by letting a `*` match nothing."""
    for position, char in enumerate(glob):
        if char == "*" and state >> position & 1:
            state |= 1 << (position + 1)
    return state


def _move_states(states: _States, globs: Sequence[str], char: str) -> _States:
    """Return the possible positions in each glob after one more character."""
    next_states = []
    for place, state in states:
        glob = globs[place]
        bits = 0
        for position, glob_char in enumerate(glob):
            if state >> position & 1:
                if glob_char == "*":
                    bits |= 1 << position
                elif glob_char in ("?", char):
                    bits |= 1 << (position + 1)
        if bits:
            next_states.append((place, _close_stars(bits, glob)))
    return tuple(next_states)


def _free_char(used: set[str]) -> str:
    """Return a character that no pattern spells, to represent all of them."""
    return next(
        char for char in chain("xyzqwv", map(chr, range(0x61, 0x10000))) if char not in used
    )
