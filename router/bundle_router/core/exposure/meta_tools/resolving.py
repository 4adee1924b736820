"""Resolves the name that an agent wrote to the tool it meant (rule 4 of the package)."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Final

from bundle_router.core.exposure.names import RESERVED
from bundle_router.core.values.spelling import Suggester

MAX_NAME: Final = 200
CLIENT_PREFIX: Final = "mcp__"
_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class ResolvedName:
    """`name` is the canonical name, or the text as written if no permitted tool matches.

    `alike`: the matching tools if there are several, so that none is called; or the most similar
    one (`less_trusted`: of a server that is less so).
    """

    name: str
    known: bool
    alike: tuple[str, ...] = ()
    less_trusted: bool = False

    @property
    def hint(self) -> str:
        """A sentence that suggests a name, or nothing."""
        if len(self.alike) > 1:
            return f"It could mean {', '.join(map(repr, self.alike[:8]))}: use one of these names."
        if self.less_trusted:
            return (
                f"This step has {self.alike[0]!r}, of a less trusted server: use this name if you"
                " mean that tool."
            )
        return f"Did you mean {self.alike[0]!r}?" if self.alike else ""


def resolve(
    written: str, permitted: Collection[str], canonical: Mapping[str, str], trusted: Container[str]
) -> ResolvedName:
    """Resolve a name to a permitted tool.

    `canonical`: canonical names by exposed name, of the whole catalog. `trusted`: the names of
    trusted servers.

    A whole name, in whatever spelling, is never resolved to another tool: if that is not permitted,
    it is refused. A name without its prefix is not resolved to an untrusted server's tool where it
    may mean a trusted server's.
    """
    name = _own_name(written[:MAX_NAME].strip(), canonical)
    exact = canonical.get(name, name)
    if exact in permitted:
        return ResolvedName(exact, known=True)
    if name in canonical or exact in set(canonical.values()):
        return ResolvedName(
            exact, known=False
        )  # not a typo, so no similar name: another tool does something else
    wanted = _plain_name(name)
    known = {tool for tool in canonical.values() if _plain_name(tool) == wanted}
    if wanted in RESERVED or (
        known and known.isdisjoint(permitted)
    ):  # no server's tool gets what was meant for these
        return ResolvedName(min(known, default=name), known=False)
    for form in (_short_name, _plain_name, lambda tool: _plain_name(_short_name(tool))):
        matching = sorted(
            tool
            for tool in permitted
            if form(tool) in ((name,) if form is _short_name else (wanted,))
        )
        if len(matching) == 1:
            tool = matching[0]
            same = (
                one
                for one in canonical.values()
                if wanted in (_plain_name(one), _plain_name(_short_name(one)))
            )
            meant = min((one for one in same if one.partition(".")[0] in trusted), default="")
            if not meant or tool.partition(".")[0] in trusted:
                return ResolvedName(tool, known=True)
            if meant not in permitted:
                return ResolvedName(meant, known=False, alike=(tool,), less_trusted=True)
            matching = sorted((tool, meant))
        if matching:
            return ResolvedName(name, known=False, alike=tuple(matching))
    return ResolvedName(name, known=False, alike=_nearest_names(name, permitted))


def _own_name(name: str, canonical: Mapping[str, str]) -> str:
    """Return the name without the prefix of Claude Code and others: `mcp__server__tool`, with the
    server's own name or that of this router's endpoint.
    """
    if name in canonical or not name.startswith(CLIENT_PREFIX):
        return name
    rest = name.removeprefix(CLIENT_PREFIX)
    tool = rest.partition("__")[2]
    return tool if tool in canonical and rest not in canonical else rest


def _short_name(tool: str) -> str:
    return tool.partition(".")[2]


def _plain_name(name: str) -> str:
    return _SEPARATORS.sub("_", name.lower()).strip("_")


def _nearest_names(name: str, permitted: Collection[str]) -> tuple[str, ...]:
    suggester = Suggester()
    found = suggester.nearest(name, permitted)
    if found is None and (
        shorts := {_short_name(tool): tool for tool in sorted(permitted, reverse=True)}
    ):
        near = suggester.nearest(name.rpartition("__")[2].rpartition(".")[2] or name, shorts)
        found = shorts[near] if near is not None else None
    return (found,) if found is not None else ()
