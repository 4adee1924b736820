"""Lint of pins against the config, without contacting a server: tools that can't work, and doubtful approvals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from bundle_router.core.catalog import Catalog
from bundle_router.core.config.overlay import WrittenConfig
from bundle_router.core.config.problem_report import Report
from bundle_router.core.models.patterns import matches
from bundle_router.core.tools.pins.compare import server_differences
from bundle_router.core.tools.pins.reviewed import Pins
from bundle_router.core.tools.warning_light import Neighbourhood, inspect
from bundle_router.errors import Problem


def unpinned_servers(catalog: Catalog, pins: Mapping[str, Pins]) -> tuple[str, ...]:
    """Return the servers that bundles use and nobody has reviewed: none of their tools can be used."""
    used = {name for bundle in catalog.bundles.values() for name in bundle.servers}
    return tuple(
        server.name
        for server in catalog.servers.values()
        if server.enabled and server.traits.is_remote and server.name in used and server.name not in pins
    )


def pin_problems(catalog: Catalog, pins: Mapping[str, Pins], folder: str, written: WrittenConfig) -> Iterator[Problem]:
    """Yield warnings and risks, by server. `folder` is the folder of pin files as messages name it; `written` is the
    parsed config."""
    everyone = Neighbourhood(catalog.cards.values())
    for name, known in pins.items():
        server = catalog.servers.get(name)
        if server is None:
            continue
        development = "--development " if server.traits.starts_process else ""
        file, again = f"{folder}/{name}.json", f"review it: bundle-router pin {development}{name}"
        for row in server_differences(known, None, server, ()):
            message = (
                f"server {name!r} was reviewed with another {row.path.rpartition('/')[2]}: no tool of it can be used"
            )
            yield Problem(file, 0, "origin", message, again, "warning", "pin-origin")
        yield from _unpinned(written, known, again)
        yield from _lights(known, file, everyone)


def _unpinned(written: WrittenConfig, known: Pins, again: str) -> Iterator[Problem]:
    """Yield the places where bundles name, or mean by a glob, no pinned tool of a server."""
    report, names = Report(()), [f"{known.server}.{tool}" for tool in known.names]
    for entry in written.bundles.values():
        for index, tool in enumerate(entry.value.tools):
            if tool.startswith(f"{known.server}.") and not any(matches(tool, name) for name in names):
                message = f"{tool!r} is none of the {len(names)} pinned tools"
                hint, place = report.suggester.did_you_mean(tool, names) or again, (*entry.path, "tools", index)
                report.add(entry.file, place, message, hint, level="warning", rule="unpinned-tool")
    yield from report.problems()


def _lights(known: Pins, file: str, everyone: Neighbourhood) -> Iterator[Problem]:
    for pin in known.pins:
        verdict = inspect(
            json.loads(pin.definition), server=known.server, instructions=known.instructions, neighbours=everyone
        )
        if verdict.warns:
            seen = "; ".join(f"{f.rule}: {f.seen!r}" for f in verdict.findings[:3])
            message = f"the text of {known.server}.{pin.tool} {verdict.charge} ({seen})"
            yield Problem(file, 0, f"tools.{pin.tool}", message, "", "risk", "poisoned-text")
