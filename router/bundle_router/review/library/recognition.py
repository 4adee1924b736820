"""Recognises a server by the definitions that it lists.

Rules:
1. A server is recognised by digests, never by its name or command. It is the server of the library
   that has most of its definitions.
2. A tool with the digest of a definition that was read is known by its `digest`. One that only has
   the name of a tool of the recognised server is known by its `name`: anybody can call a tool so,
   and a definition that changed has to be read again. All others are `unknown`.
3. Where no digest is known, names propose a server: two at least, and half of what is listed; or
   all of a server that has a single tool.
4. A digest says which text was read. It does not say who runs the server, nor that the server does
   what the text says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from bundle_router.core.servers.admission.admitted import Admitted, AdmittedTool
from bundle_router.core.servers.admission.identity import identity
from bundle_router.review.library.library_form import Kind, LibraryServer, LibraryTool

KnownBy = Literal["digest", "name", "unknown"]

_TIME_ZONE: Final = re.compile(r"'(?:[A-Z][A-Za-z0-9_+-]{1,13}/){0,2}[A-Z][A-Za-z0-9_+-]{1,13}'")
"""A name of the time zone database in quotes: up to three parts of at most 14 characters."""


@dataclass(frozen=True, slots=True)
class RecognisedTool:
    """A listed tool, and what the library knows about it."""

    tool: AdmittedTool
    """The tool as it is listed."""
    known_by: KnownBy
    """How the library knows it."""
    kind: Kind | None = None
    """The kind of its bundle; None if it is unknown."""
    reading: LibraryTool | None = None
    """What was read; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class Recognition:
    """A listed server, and what the library knows about it."""

    tools: tuple[RecognisedTool, ...]
    """Every listed tool, in the order of the list."""
    server: LibraryServer | None = None
    """The server of the library; None if it knows none like it."""

    def known_by(self, known_by: KnownBy) -> tuple[RecognisedTool, ...]:
        """Return the tools that are known in this way."""
        return tuple(row for row in self.tools if row.known_by == known_by)


def recognise(listed: Admitted, library: Sequence[LibraryServer]) -> Recognition:
    """Return for each listed tool what the library knows about it.

    `listed` are a server's definitions as they are pinned, or as they are to be pinned.
    """
    digests = _digests_of(listed)
    server = _like(digests, library)
    if server is None:
        return Recognition(tuple(RecognisedTool(tool, "unknown") for tool in listed.tools))

    of_server = digests[server.varies]
    readings = {reading.name: (kind, reading) for kind, reading in server.tools()}
    rows = []
    for tool in listed.tools:
        name = tool.card.tool
        if name not in readings:
            rows.append(RecognisedTool(tool, "unknown"))
            continue
        kind, reading = readings[name]
        known_by: KnownBy = "digest" if reading.sha256 == of_server[name] else "name"
        rows.append(RecognisedTool(tool, known_by, kind, reading))
    return Recognition(tuple(rows), server)


def no_longer_read(
    before: Admitted, now: Admitted, library: Sequence[LibraryServer]
) -> tuple[str, ...]:
    """Return the tools whose definitions are those that were read in one list, and in the other
    are not any more: what their bundles say of them is not about what they are now.
    """
    read, still_read = (
        {row.tool.card.tool for row in recognise(listed, library).known_by("digest")}
        for listed in (before, now)
    )
    return tuple(
        name for name in (tool.card.tool for tool in now.tools) if name in read - still_read
    )


def library_digest(
    definition: Mapping[str, Any], instructions: str, varies: Sequence[str] = ()
) -> str:
    """Return the digest of a definition as the library has it.

    Volatile parts are not left out, and of what varies with the machine any stands for all.
    """
    if "time zone" not in varies:
        return identity(definition, instructions)
    text = _TIME_ZONE.sub("'Etc/UTC'", json.dumps(definition, ensure_ascii=False))
    return identity(json.loads(text), instructions)


_Digests = Mapping[tuple[str, ...], Mapping[str, str]]
"""Digests by what varies, and by the tool's name."""


def _digests_of(listed: Admitted) -> _Digests:
    definitions = {tool.card.tool: json.loads(tool.definition) for tool in listed.tools}
    variants: tuple[tuple[str, ...], ...] = ((), ("time zone",))
    return {
        varies: {
            name: library_digest(definition, listed.instructions, varies)
            for name, definition in definitions.items()
        }
        for varies in variants
    }


def _like(digests: _Digests, library: Sequence[LibraryServer]) -> LibraryServer | None:
    """Return the server of the library that has most of these definitions; else the one that has
    most of their names, if these are enough.
    """
    best: LibraryServer | None = None
    most = (0, 0)
    for server in library:
        readings = {reading.name: reading.sha256 for _, reading in server.tools()}
        listed = digests[server.varies]
        same_names = readings.keys() & listed.keys()
        same_digests = sum(readings[name] == listed[name] for name in same_names)
        is_whole = len(same_names) == len(readings) == len(listed)
        has_enough_names = len(same_names) >= 2 and 2 * len(same_names) >= len(listed)
        if not (same_digests or is_whole or has_enough_names):
            continue
        if (same_digests, len(same_names)) > most:
            best, most = server, (same_digests, len(same_names))
    return best
