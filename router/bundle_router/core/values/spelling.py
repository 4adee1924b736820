"""“Did you mean”: the nearest right name to a wrong one.

A comparison of short names costs some ten microseconds, and one of long names that are alike
milliseconds. A broken file of ten thousand entries would make millions of them, and a server may
have thousands of long names, so a `Suggester` makes at most `budget` comparisons (a long one counts
as several) and suggests nothing after that.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

_CUTOFF = 0.6


class Suggester:
    def __init__(self, budget: int = 5_000) -> None:
        self._left = budget

    def nearest(self, word: str, known: Iterable[str]) -> str | None:
        """Return the known name most like `word`, if one is similar.

        Ties: the first of the alphabet.
        """
        if len(word) > 200 or self._left <= 0:
            return None
        best = None
        best_ratio = _CUTOFF
        matcher = SequenceMatcher(a="", b=word.lower(), autojunk=False)
        for name in known:
            # Two names of very different length can't reach the cut-off: 2·min/(sum) bounds the
            # ratio.
            if 2 * min(len(name), len(word)) < _CUTOFF * (len(name) + len(word)):
                continue
            if self._left <= 0:
                break
            self._left -= 1 + (len(name) + len(word)) // 100
            matcher.set_seq1(name.lower())
            if matcher.quick_ratio() < best_ratio:
                continue
            self._left -= len(name) * len(word) // 128
            ratio = matcher.ratio()
            if ratio > best_ratio or (ratio == best_ratio and best is not None and name < best):
                best = name
                best_ratio = ratio
        return best

    def did_you_mean(self, word: str, known: Iterable[str]) -> str:
        """`did you mean 'repo.readonly'?`, or nothing."""
        nearest = self.nearest(word, known)
        return f"did you mean {nearest!r}?" if nearest is not None else ""
