"""Checks a step's own policy before anything is decided or written.

Rules:
1. A name without globs is a bundle's id or old id, or (`tool:`) a tool of the catalog. Anything
   else is refused, since a denial with a typo would silently permit.
2. A bare name that is a tool's and no bundle's is refused too, with the form to write. So a bundle
   that is added under that name later changes nothing.
3. A glob may match nothing: denying the tools of a server that is not configured here is normal,
   and allowing what does not exist permits nothing.
4. A pattern has at most `MAX_PATTERN` characters: matching is linear in them, and every plan keeps
   them.

Decisions don't check this: under an edited config a recorded step may name what is gone, and still
replays.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import cached_property
from typing import Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.values import TAINT_SORTS, StepPolicy
from bundle_router.core.values.patterns import first_match, is_glob
from bundle_router.core.values.spelling import Suggester
from bundle_router.errors import RequestError

MAX_PATTERN: Final = 200
"""Characters of one pattern of a step policy: enough for a server's name and a tool's."""
_MAX_NAMED_PROBLEMS: Final = 5
_FORMS: Final = "write 'bundle:repo.*', 'tool:repo.read_file' or 'repo.*'"


def check_step_policy(catalog: Catalog, policy: StepPolicy) -> list[str]:
    """Return what is wrong with the policy, a sentence for each pattern; empty when all of it is
    understood.
    """
    reader = _Reader(catalog)
    problems = []
    for key, patterns in (("allow", policy.allow or ()), ("deny", policy.deny)):
        for pattern in patterns:
            wrong = reader.wrong(pattern)
            if wrong is not None:
                problems.append(f"{key}: {wrong}")
    return problems


def refuse_unknown(
    catalog: Catalog, policy: StepPolicy | None, whose: str = "the step's policy"
) -> None:
    """Raise RequestError when the policy names something that the catalog doesn't have."""
    problems = check_step_policy(catalog, policy) if policy is not None else []
    if problems:
        if len(problems) > _MAX_NAMED_PROBLEMS:
            rest_text = f"; and {len(problems) - _MAX_NAMED_PROBLEMS} more"
        else:
            rest_text = ""
        raise RequestError(
            f"{whose} is not understood: {'; '.join(problems[:_MAX_NAMED_PROBLEMS])}{rest_text}",
            advice="name bundles and tools of the config; only globs may match nothing",
        )


def refuse_unknown_taints(catalog: Catalog, taints: Iterable[str], where: str) -> None:
    """Raise RequestError for a taint that is neither given nor declared in the config."""
    known = (*TAINT_SORTS, *(name for name, _ in catalog.taints))
    for taint in taints:
        if taint not in known:
            hint = Suggester().did_you_mean(taint, known)
            raise RequestError(
                f"{where}: unknown taint {taint[:80]!r}" + (f" ({hint})" if hint else ""),
                advice=f"use one of {', '.join(known)}, or declare it in [taints] of policy.toml",
            )


class _Reader:
    """Reads patterns against one catalog.

    Suggests a right name for the first few wrong ones only.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._suggester = Suggester()
        self._suggestions = _MAX_NAMED_PROBLEMS

    def wrong(self, pattern: str) -> str | None:
        if len(pattern) > MAX_PATTERN:
            return (
                f"a pattern of {len(pattern):,} characters ({pattern[:40]!r}…), at most"
                f" {MAX_PATTERN} are taken"
            )
        kind, colon, name = pattern.partition(":")
        if not colon:
            kind = ""
            name = pattern
        if ":" in name:  # all else that is no pattern is refused by `StepPolicy`
            return f"{pattern!r} is not a pattern: {_FORMS}"
        if is_glob(name):
            return None
        if kind == "tool":
            if self._is_tool(name):
                return None
            return self._unknown_sentence("tool", name, self._catalog.tool_names)
        if self._catalog.bundle(name) is not None:
            return None
        if self._is_tool(name):
            return f"{pattern!r} is a tool, not a bundle: write 'tool:{name}'"
        return self._unknown_sentence(
            "bundle", name, {*self._catalog.bundles, *self._catalog.aliases}
        )

    def _is_tool(self, name: str) -> bool:
        """Return whether the catalog has the tool, or a glob of a bundle covers it."""
        return name in self._catalog.tool_names or first_match(self._open, name) is not None

    @cached_property
    def _open(self) -> tuple[str, ...]:
        return tuple(
            {glob for bundle in self._catalog.bundles.values() for glob in bundle.patterns}
        )

    def _unknown_sentence(self, noun: str, name: str, known: Set[str]) -> str:
        self._suggestions -= 1
        nearest = self._suggester.nearest(name, sorted(known)) if self._suggestions >= 0 else None
        return f"unknown {noun} {name!r}" + (f" (did you mean {nearest!r}?)" if nearest else "")
