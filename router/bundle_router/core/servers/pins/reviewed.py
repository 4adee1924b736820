"""The reviewed definitions of one server as a value, and their approval."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from bundle_router.core.catalog import Server, Transport
from bundle_router.core.servers.admission.admitted import Admitted, AdmittedTool
from bundle_router.errors import RequestError


@dataclass(frozen=True, slots=True)
class Origin:
    """How a server is reached.

    Of headers and variables only the names: their values are secrets and may change. The pin file
    holds these fields.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "extra": "forbid",
        "hide_input_in_errors": True,
    }

    transport: Transport
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


def origin_of(server: Server) -> Origin:
    """Return the origin of the server as it is configured now."""
    return Origin(
        transport=server.transport,
        url=server.url,
        command=server.command,
        args=server.args,
        headers=tuple(sorted(name.lower() for name, _ in server.headers)),
        env=tuple(sorted(name for name, _ in server.env)),
    )


@dataclass(frozen=True, slots=True)
class PinReview:
    """Who approved a definition, and when."""

    at: str
    """RFC 3339, UTC, to the second."""
    by: str
    """The name that was given, or of the user of the machine; it proves nothing."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One reviewed tool."""

    tool: str
    sha256: str
    definition: str
    """The canonical JSON of the original definition."""
    tokens: int
    counted: bool = True
    """False where `tokens` is estimated from the length."""
    approval: PinReview | None = field(default=None, compare=False)
    """None in files of earlier versions."""


@dataclass(frozen=True)
class Pins:
    """The reviewed definitions of one server.

    `volatile` are the paths that the digests excluded at that time.
    """

    server: str
    origin: Origin
    instructions: str
    pins: tuple[Pin, ...]
    volatile: tuple[str, ...] = ()
    begins_with_handshake: bool = False
    """Whether the server ended at the question for its era, or did not answer it."""

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(pin.tool for pin in self.pins)

    def definitions(self) -> list[dict[str, Any]]:
        """Return fresh copies of the reviewed definitions."""
        return [json.loads(pin.definition) for pin in self.pins]

    def reviewed(self, server: Server) -> Admitted:
        """Return the reviewed definitions as cards, with digests that exclude what the server
        declares volatile now.
        """
        from bundle_router.core.servers.admission.admit import admit  # where a server is pinned

        tokens = {pin.tool: pin for pin in self.pins}
        admitted = admit(server, self.definitions(), self.instructions)
        tools = tuple(
            replace(tool, card=replace(tool.card, tokens=pin.tokens, counted=pin.counted))
            for tool in admitted.tools
            if (pin := tokens[tool.card.tool])
        )
        return replace(admitted, tools=tools)


def approve(
    server: Server,
    admitted: Admitted,
    previous: Pins | None = None,
    only: Collection[str] | None = None,
    approval: PinReview | None = None,
) -> Pins:
    """Return pins that record the present definitions as reviewed.

    `only` approves those tools and keeps all others. A definition that was approved before, and is
    the same, keeps that approval.

    Raises RequestError if `only` names a tool that the server does not have, or if something
    changed that concerns all tools, which can't be approved in part.
    """
    pins = [_pin(tool, previous, approval) for tool in admitted.tools]
    fresh = Pins(
        server=server.name,
        origin=origin_of(server),
        instructions=admitted.instructions,
        pins=tuple(pins),
        volatile=server.volatile,
        begins_with_handshake=admitted.begins_with_handshake,
    )
    if only is None:
        return fresh

    names = fresh.names if previous is None else fresh.names | previous.names
    missing = sorted(frozenset(only) - names)
    if missing:
        raise RequestError(
            f"server {server.name!r} has no tool {missing[0]!r} that could be approved"
        )
    approved = [pin for pin in fresh.pins if pin.tool in only]
    if previous is None:
        return replace(fresh, pins=tuple(approved))
    if (previous.origin, previous.instructions) != (fresh.origin, fresh.instructions):
        raise RequestError(
            f"server {server.name!r} is reached in another way, or gives other instructions, than"
            " was reviewed",
            advice="that concerns all its tools: approve the server as a whole",
        )
    unchanged = [pin for pin in _digested_anew(previous, server).pins if pin.tool not in only]
    return replace(fresh, pins=tuple(sorted((*unchanged, *approved), key=lambda pin: pin.tool)))


def _pin(tool: AdmittedTool, previous: Pins | None, approval: PinReview | None) -> Pin:
    """Return the pin of a definition; one that was approved before keeps that approval."""
    card = tool.card
    pins_before = previous.pins if previous is not None else ()
    for pin in pins_before:
        is_same = (pin.tool, pin.sha256) == (card.tool, card.sha256)
        if is_same and pin.approval is not None:
            approval = pin.approval
    return Pin(card.tool, card.sha256, tool.definition, card.tokens, card.counted, approval)


def narrow_pins(pins: Pins, newer: Pins | None) -> Pins:
    """Return the pins that newer ones contain unchanged: without those taken back or approved
    since.
    """
    if newer is None or (pins.origin, pins.instructions) != (newer.origin, newer.instructions):
        return replace(pins, pins=())
    still_pinned = {(pin.tool, pin.sha256, pin.definition) for pin in newer.pins}
    return replace(
        pins,
        pins=tuple(
            pin for pin in pins.pins if (pin.tool, pin.sha256, pin.definition) in still_pinned
        ),
    )


def _digested_anew(pins: Pins, server: Server) -> Pins:
    """Return the same definitions with digests for the present volatile paths, so that a file has
    one kind.
    """
    digests = {tool.card.tool: tool.card.sha256 for tool in pins.reviewed(server).tools}
    return replace(
        pins,
        pins=tuple(replace(pin, sha256=digests.get(pin.tool, pin.sha256)) for pin in pins.pins),
    )
