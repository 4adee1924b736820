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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bundle_router.core.servers.admission.admitted import Admitted, AdmittedTool
from bundle_router.core.servers.admission.identity import identity
from bundle_router.review.library.library_form import Kind, LibraryServer, LibraryTool

KnownBy = Literal["digest", "name", "unknown"]


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
    digests = {tool.card.tool: _digest_of(tool, listed.instructions) for tool in listed.tools}
    server = _like(digests, library)
    if server is None:
        return Recognition(tuple(RecognisedTool(tool, "unknown") for tool in listed.tools))

    readings = {reading.name: (kind, reading) for kind, reading in server.tools()}
    rows = []
    for tool in listed.tools:
        name = tool.card.tool
        if name not in readings:
            rows.append(RecognisedTool(tool, "unknown"))
            continue
        kind, reading = readings[name]
        known_by: KnownBy = "digest" if reading.sha256 == digests[name] else "name"
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


def _digest_of(tool: AdmittedTool, instructions: str) -> str:
    """Return a definition's digest without volatile parts left out, as the library has it."""
    return identity(json.loads(tool.definition), instructions)


def _like(digests: dict[str, str], library: Sequence[LibraryServer]) -> LibraryServer | None:
    """Return the server of the library that has most of these definitions; else the one that has
    most of their names, if these are enough.
    """
    best: LibraryServer | None = None
    most = (0, 0)
    for server in library:
        readings = {reading.name: reading.sha256 for _, reading in server.tools()}
        same_names = readings.keys() & digests.keys()
        same_digests = sum(readings[name] == digests[name] for name in same_names)
        is_whole = len(same_names) == len(readings) == len(digests)
        has_enough_names = len(same_names) >= 2 and 2 * len(same_names) >= len(digests)
        if not (same_digests or is_whole or has_enough_names):
            continue
        if (same_digests, len(same_names)) > most:
            best, most = server, (same_digests, len(same_names))
    return best
