"""What pins say about a config without asking any server: what can't work, and what was approved and should not be."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.models.patterns import matches
from bundle_router.core.tools.pins.compare import server_differences
from bundle_router.core.tools.pins.reviewed import Pins
from bundle_router.core.tools.warning_light import Neighbour, Neighbourhood, inspect
from bundle_router.errors import Problem

MAX_LISTED: Final = 10


def unpinned_servers(catalog: Catalog, pins: Mapping[str, Pins]) -> tuple[str, ...]:
    """Return servers in use, by some bundle, that nobody has reviewed: none of their tools can be used."""
    used = {name for bundle in catalog.bundles.values() for name in bundle.servers}
    return tuple(
        server.name
        for server in catalog.servers.values()
        if server.enabled and server.traits.is_remote and server.name in used and server.name not in pins
    )


def pin_problems(catalog: Catalog, pins: Mapping[str, Pins], folder: str) -> Iterator[Problem]:
    """Yield warnings and risks, by server. `folder` is where the pin files are, as messages name it."""
    cards = catalog.cards.values()
    everyone = Neighbourhood(Neighbour(card.server, card.tool, card.description) for card in cards)
    for name, known in pins.items():
        server = catalog.servers.get(name)
        if server is None:
            continue
        file, again = f"{folder}/{name}.json", f"review it: bundle-router pin {name}"
        for row in server_differences(known, None, server, ()):
            message = (
                f"server {name!r} was reviewed with another {row.path.rpartition('/')[2]}: no tool of it can be used"
            )
            yield Problem(file, 0, "origin", message, again, "warning", "pin-origin")
        named = {tool for bundle in catalog.bundles.values() for tool in bundle.tools if tool.startswith(f"{name}.")}
        missing = sorted(named - {f"{name}.{tool}" for tool in known.names})
        if missing:
            more = f" and {len(missing) - MAX_LISTED} more" if len(missing) > MAX_LISTED else ""
            message = f"bundles name tools that are not pinned: {', '.join(missing[:MAX_LISTED])}{more}"
            yield Problem(file, 0, "tools", message, again, "warning", "unpinned-tool")
        yield from _unmatched_globs(catalog, known, file)
        yield from _lights(known, file, everyone)


def _unmatched_globs(catalog: Catalog, known: Pins, file: str) -> Iterator[Problem]:
    """Yield globs of bundles that cover no tool that was reviewed, beside others that may."""
    for bundle in catalog.bundles.values():
        for glob in bundle.patterns:
            server, _, short = glob.partition(".")
            if server == known.server and not any(matches(short, tool) for tool in known.names):
                message = (
                    f"bundle {bundle.id!r} names {glob!r}, which covers none of the {len(known.names)} pinned tools"
                )
                hint = f"check its spelling, or review what is new: bundle-router pin {server}"
                yield Problem(file, 0, "tools", message, hint, "warning", "unmatched-glob")


def _lights(known: Pins, file: str, everyone: Neighbourhood) -> Iterator[Problem]:
    for pin in known.pins:
        verdict = inspect(
            json.loads(pin.definition), server=known.server, instructions=known.instructions, neighbours=everyone
        )
        if verdict.warns:
            seen = "; ".join(f"{f.rule}: {f.seen!r}" for f in verdict.findings[:3])
            message = f"the text of {known.server}.{pin.tool} {verdict.charge} ({seen})"
            yield Problem(file, 0, f"tools.{pin.tool}", message, "", "risk", "poisoned-text")
