"""The file and line of each config entry, by the edit that may concern it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bundle_router.core.config.entries import WrittenEntry
from bundle_router.core.config.overlay import WrittenConfig
from bundle_router.core.config.positions import Path, Positions, locate

Places = dict[tuple[str, str], str]
"""`ConfigEdit.place` → `config/policy.toml:31`."""

_Anchor = tuple[tuple[str, str], WrittenEntry[object], Path]
_LOCAL: Final = {
    "docs_hosts": ("docs", "hosts"),
    "hard_links": ("repo", "hard_links"),
    "credentials": ("repo", "credentials"),
    "tokens": ("repo", "tokens"),
}


def edit_places(written: WrittenConfig) -> Places:
    """Return the places of all entries of a parsed config."""
    positions: dict[str, Positions] = {}
    places: Places = {}
    for place, entry, path in _anchors(written):
        name = entry.file.display_path
        if name not in positions:
            positions[name] = locate(entry.file.text)
        line = positions[name].line(path)
        places[place] = f"{name}:{line}" if line and not name.startswith("local=") else name
    return places


def _anchors(written: WrittenConfig) -> Iterator[_Anchor]:
    yield from ((("server", name), entry, entry.path) for name, entry in written.servers.items())
    yield from ((("bundle", name), entry, entry.path) for name, entry in written.bundles.items())
    yield from ((("route", entry.name), entry, entry.path) for entry in written.routes)
    yield from ((("policy", entry.name), entry, entry.path) for entry in written.policies)
    yield from ((("approval", entry.name), entry, entry.path) for entry in written.approvals)
    if written.routes:
        yield ("order of routes", ""), written.routes[0], written.routes[0].path
    for key, entries in written.sections.items():
        for entry in entries:  # the project's after the shipped one
            yield from (
                (("setting", f"{key}.{name}"), entry, (*entry.path, name))
                for name in sorted(entry.keys)
            )
    for name, (section, key) in _LOCAL.items():
        local = written.docs if section == "docs" else written.repo
        if local is not None:
            yield ("local", name), local, (*local.path, key)
    if written.binaries:
        yield ("local", "binaries"), written.binaries[0], written.binaries[0].path
