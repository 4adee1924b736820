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
        # not a typo, so no similar name: another tool does something else
        return ResolvedName(exact, known=False)

    plain = _plain_name(name)
    same_plain = {tool for tool in canonical.values() if _plain_name(tool) == plain}
    if plain in RESERVED or (same_plain and same_plain.isdisjoint(permitted)):
        # no server's tool gets what was meant for these
        return ResolvedName(min(same_plain, default=name), known=False)

    for form, spelling in (
        (_short_name, name),
        (_plain_name, plain),
        (_plain_short_name, plain),
    ):
        matching = sorted(tool for tool in permitted if form(tool) == spelling)
        if len(matching) == 1:
            resolved = _single_match(matching[0], plain, permitted, canonical, trusted)
            if resolved is not None:
                return resolved
            matching = sorted((matching[0], _trusted_namesake(plain, canonical, trusted)))
        if matching:
            return ResolvedName(name, known=False, alike=tuple(matching))
    return ResolvedName(name, known=False, alike=_nearest_names(name, permitted))


def _single_match(
    tool: str,
    plain: str,
    permitted: Collection[str],
    canonical: Mapping[str, str],
    trusted: Container[str],
) -> ResolvedName | None:
    """Return what a name resolves to of which one permitted tool has the form; None where it may as
    well mean a trusted server's tool that is permitted, too.
    """
    namesake = _trusted_namesake(plain, canonical, trusted)
    if not namesake or tool.partition(".")[0] in trusted:
        return ResolvedName(tool, known=True)
    if namesake in permitted:
        return None
    return ResolvedName(namesake, known=False, alike=(tool,), less_trusted=True)


def _trusted_namesake(plain: str, canonical: Mapping[str, str], trusted: Container[str]) -> str:
    """Return the first trusted server's tool that the name may mean; empty if none."""
    namesakes = [
        tool for tool in canonical.values() if plain in (_plain_name(tool), _plain_short_name(tool))
    ]
    return min((tool for tool in namesakes if tool.partition(".")[0] in trusted), default="")


def _plain_short_name(tool: str) -> str:
    return _plain_name(_short_name(tool))


def _own_name(name: str, canonical: Mapping[str, str]) -> str:
    """Return the name without the prefix of Claude Code and others: `mcp__server__tool`, with the
    server's own name or that of this router's endpoint.
    """
    if name in canonical or not name.startswith(CLIENT_PREFIX):
        return name
    rest = name.removeprefix(CLIENT_PREFIX)
    tool = rest.partition("__")[2]
    if tool in canonical and rest not in canonical:
        return tool
    return rest


def _short_name(tool: str) -> str:
    return tool.partition(".")[2]


def _plain_name(name: str) -> str:
    return _SEPARATORS.sub("_", name.lower()).strip("_")


def _nearest_names(name: str, permitted: Collection[str]) -> tuple[str, ...]:
    suggester = Suggester()
    nearest = suggester.nearest(name, permitted)
    if nearest is not None:
        return (nearest,)
    tools = {_short_name(tool): tool for tool in sorted(permitted, reverse=True)}
    short = name.rpartition("__")[2].rpartition(".")[2] or name
    nearest = suggester.nearest(short, tools) if tools else None
    return () if nearest is None else (tools[nearest],)
