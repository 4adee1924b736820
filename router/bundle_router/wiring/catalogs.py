"""Loads the catalog of a config folder, with what was learned, pinned and written for its
bundles.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle_router.core.catalog import Card, Catalog, Server
from bundle_router.core.values import LocalServer, LocalTool
from bundle_router.errors import RequestError, expect, shorten

if TYPE_CHECKING:
    from bundle_router.adapters.pin_file import PinFiles
    from bundle_router.core.config import ConfigFile
    from bundle_router.core.search.ranking import Memories
    from bundle_router.core.servers.pins.reviewed import Pins
    from bundle_router.core.values.local_tools import Block
    from bundle_router.ports import Diagnostics

LocalServers = Mapping[str, Sequence[LocalTool | Callable[..., Any]] | LocalServer]
"""Tools by the name of their server: typed functions, `LocalTool`s, or a `LocalServer`, which also
declares a bundle.
"""


def local_cards(
    local: LocalServers | None = None,
) -> tuple[dict[str, Sequence[LocalTool]], dict[str, Card]]:
    """Return the caller's local servers, and the cards of all that a config may name; the caller's
    come first.
    """
    from bundle_router.adapters.local import cards_of, tools_of
    from bundle_router.wiring.shipped import shipped_cards

    expect("local", local, (Mapping, type(None)), "local={'tickets': [get_ticket]}")
    passed: dict[str, Sequence[LocalTool]] = {}
    for name, declared in (local or {}).items():
        expect("the name of a local server", name, str, "local={'tickets': [get_ticket]}")
        tools = declared.tools if isinstance(declared, LocalServer) else declared
        passed[name] = tools_of(name, tools)
    shipped = {name: card for name, card in shipped_cards().items() if card.server not in passed}
    return passed, {**shipped, **cards_of(passed)}


def declared_files(local: LocalServers | None) -> list[ConfigFile]:
    """Return the declarations of `LocalServer`s as config files.

    Entries of the project's own files replace them.
    """
    from bundle_router.core.config import ConfigFile

    files: list[ConfigFile] = []
    bundles: dict[str, str] = {}
    for name, server in (local or {}).items():
        if not isinstance(server, LocalServer):
            continue
        place = f"local server {name!r}"
        advice = 'LocalServer([get_ticket], "Read tickets.", effects=["read"])'
        for field in ("effects", "examples"):
            expect(f"{place}: {field}", getattr(server, field), (list, tuple), advice)
        expect(f"{place}: bundle", server.bundle, str, 'bundle="support.tickets", or leave it out')
        bundle = server.bundle or name
        if bundles.setdefault(bundle, name) != name:
            duplicate = (
                f"{place}: local server {bundles[bundle]!r} declares a bundle {bundle!r} as well"
            )
            raise RequestError(
                duplicate, advice="give one of them another with LocalServer(..., bundle=...)"
            )
        rows = {
            "description": server.description,
            "tools": [f"{name}.*"],
            "effects": list(server.effects),
            "examples": list(server.examples),
            "mode": server.mode,
        }
        head = f'[servers.{json.dumps(name)}]\ntransport = "local"\ntrust = "trusted"\n'
        body = f"[bundles.{json.dumps(bundle)}]\n" + "".join(
            f"{key} = {json.dumps(rows[key])}\n" for key in rows
        )
        for file, text in (("servers.toml", head), ("bundles.toml", body)):
            files.append(ConfigFile(file, f"{place} (local=, --local)", text, has_lines=False))
    return files


def warn_of_ignored_file(path: str | None, diagnostics: Diagnostics) -> None:
    """Warn of a learned file of an earlier version, which has no effect any more."""
    if path is not None:
        advice = 'delete it; [search.embeddings] rank = "never" is what keeps words alone'
        diagnostics.event("warning", "learned.ignored", file=path, advice=advice)


def warn_of_unused_tools(
    local: LocalServers | None, catalog: Catalog, diagnostics: Diagnostics
) -> None:
    """Warn of local tools that no step can be shown: the config lacks a server of their name, a
    bundle with it, or a policy that permits it.
    """
    if local:
        from bundle_router.core.decide.reach import Reach
        from bundle_router.core.decide.unusable_tools import no_policy, unused_local

        reach = Reach(catalog)
        for bundle in catalog.bundles.values() if reach.complete else ():
            if local.keys() & {*bundle.servers} and not reach.permitted_anywhere(bundle):
                fields = dict(zip(("problem", "advice"), no_policy(bundle.id), strict=True))
                diagnostics.event("warning", "local.not_permitted", **fields)
        for problem in unused_local(local, catalog):
            diagnostics.event(
                "warning", "local.unused", problem=problem.message, advice=problem.suggestion
            )


def result_blocks(value: object) -> tuple[Block, ...]:
    """Return the value of a typed function as a result's blocks."""
    from bundle_router.adapters.local.functions import tool_output

    return tuple(tool_output(value).blocks)


def shipped_argument_problems(
    server: str, tool: str, arguments: Mapping[str, Any]
) -> Sequence[str]:
    """Return what is wrong with the arguments of a call to a first-party tool, one sentence
    each.
    """
    from bundle_router.adapters.local import argument_problems
    from bundle_router.wiring.shipped import shipped_cards, shipped_tools

    tools = shipped_tools(server) if f"{server}.{tool}" in shipped_cards() else ()
    return [
        problem
        for made in tools
        if made.name == tool
        for problem in argument_problems(made, arguments)
    ]


def expect_path(what: str, value: Any, example: str, *other: type) -> None:
    """Raise RequestError, with a sentence, if a parameter can't be a path, nor is of `other`
    types.
    """
    expect(what, value, (str, os.PathLike, *other), example)
    try:
        os.stat(value or ".")  # noqa: PTH116 - takes all that can be a path
    except (OSError, ValueError) as wrong:  # ValueError: a NUL, a lone surrogate
        if not isinstance(wrong, OSError) or wrong.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            reason = getattr(wrong, "strerror", wrong)
            raise RequestError(
                f"{what} can't be {shorten(str(value), 100)!r}: {reason}", advice=example
            ) from None


def load_catalog(
    config: str | Path | None = "config", *, local: LocalServers | None = None
) -> Catalog:
    """Read and check a config folder over the shipped one (None: the shipped one alone).

    Raises ConfigError.

    >>> from bundle_router import load_catalog
    >>> load_catalog(None).servers["repo"].transport
    'local'
    """
    return load_remembering(config, local=local)[0]


def load_remembering(
    config: str | Path | None, *, local: LocalServers | None = None
) -> tuple[Catalog, Memories | None]:
    """Do as `load_catalog` does, and return the memories in force too."""
    expect_path("config", config, 'load_catalog("config")', type(None))
    return with_learned(config, read_catalog(config, local)[0])


def read_catalog(
    config: str | Path | None, local: LocalServers | None = None
) -> tuple[Catalog, dict[str, Pins]]:
    """Return the catalog of a config folder as `with_reviewed` does.

    Raises ConfigError, CorruptPins.
    """
    return with_reviewed(config, read_unpinned(config, local))


def with_reviewed(config: str | Path | None, catalog: Catalog) -> tuple[Catalog, dict[str, Pins]]:
    """Return the catalog with the cards of the pins that its servers may use, and with its skills;
    and all its pins. Raises CorruptPins.
    """
    from bundle_router.core.servers.pins.usable import with_pinned_cards

    pins = open_pins(config).read_all(remote_servers(catalog))
    return with_skills(config, with_pinned_cards(catalog, pins)), pins


def read_unpinned(config: str | Path | None, local: LocalServers | None) -> Catalog:
    """Return the catalog of a config folder and the declarations in code, without pins.

    Raises ConfigError.
    """
    from bundle_router.adapters.config_files import read_config

    return load_unpinned(read_config(config), local)


def load_unpinned(files: Sequence[ConfigFile], local: LocalServers | None) -> Catalog:
    """Return the catalog of files that were read, as `read_unpinned` does."""
    from bundle_router.core.config import load

    return load([*declared_files(local), *files], cards=local_cards(local)[1])


def remote_servers(catalog: Catalog) -> dict[str, Server]:
    """Return the servers that can have pins."""
    return {server.name: server for server in catalog.servers.values() if server.traits.is_remote}


def open_pins(config: str | Path | None) -> PinFiles:
    """Return the pin files of a config folder: those in `bundles/pins` beside it."""
    from bundle_router.adapters.pin_file import PinFiles

    return PinFiles(project_folder(config) / "bundles" / "pins")


def project_folder(config: str | Path | None) -> Path:
    """Return the folder that contains a config folder and `bundles` (shipped config: the current
    folder).
    """
    return Path(config).resolve().parent if config is not None else Path.cwd()


def with_learned(config: str | Path | None, catalog: Catalog) -> tuple[Catalog, Memories | None]:
    """Return the catalog with the thresholds and memories that were accepted for this config
    folder.

    Raises ConfigError for a learned file that differs from what was accepted.
    """
    if config is None or not Path(config, "learned").is_dir():
        return catalog, None
    from bundle_router.adapters.learned_files import load_learned
    from bundle_router.core.search.ranking import Memories

    learned = load_learned(config).fitted_to(catalog)
    return learned.applied_to(catalog), Memories(learned.memory, learned.tools)


def with_skills(config: str | Path | None, catalog: Catalog) -> Catalog:
    """Return the catalog with the skills that its bundles name; the same object where they name
    none.
    """
    paths = {bundle.skill for bundle in catalog.bundles.values() if bundle.skill is not None}
    if not paths:
        return catalog
    from bundle_router.adapters.config_files import read_content
    from bundle_router.core.exposure.skills import MAX_BYTES, parse_skill

    skills = {}
    for path in sorted(paths):
        text = read_content(config, path, MAX_BYTES)
        if text is not None:
            skills[path] = parse_skill(path, text)
    return replace(catalog, skills=skills)
