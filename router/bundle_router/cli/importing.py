"""`bundle-router import`: turns another program's MCP settings into servers and a first set of
bundles.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from bundle_router.cli.local import local_servers
from bundle_router.cli.output import print_json, say
from bundle_router.cli.shared_arguments import add_config, add_json, config_folder
from bundle_router.errors import ConfigError, RequestError
from bundle_router.review.imports import ImportedServers, import_clients
from bundle_router.wiring.catalogs import LocalServers
from bundle_router.workbench.library_reader import read_library

MAX_BYTES = 8 * 1024 * 1024


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="e.g. .mcp.json, ~/.cursor/mcp.json, ~/.codex/config.toml"
    )
    parser.add_argument(
        "--write", action="store_true", help="add the servers and bundles printed to the config"
    )
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.wiring.catalogs import open_pins, read_catalog

    config = config_folder(arguments)
    local = local_servers(arguments)
    catalog, _pins = read_catalog(config, local)
    source = Path(arguments.file)
    servers = import_clients(
        text_of(source, source.parent),
        source.name,
        servers=catalog.servers,
        bundles=catalog.bundles,
        pins=open_pins(config).read,
        library=read_library(),
        languages=catalog.settings.search.languages,
    )
    folder = Path(config or "config")
    texts = {
        folder / name: text
        for name, text in (("servers.toml", servers.servers), ("bundles.toml", servers.bundles))
        if text
    }
    new_texts = append_texts(config, local, texts, write=arguments.write)
    if arguments.json:
        print_json(
            {
                "servers": servers.names,
                "variables": servers.variables,
                "notes": servers.notes,
                "written": [str(path) for path in new_texts] if arguments.write else [],
                "text": {path.name: texts[path] for path in new_texts},
            }
        )
        return 0
    _show(servers, texts, written=arguments.write)
    return 0


def text_of(path: Path, folder: Path) -> str:
    """Return the text of a file in a folder. Raises RequestError, also for a link out of it."""
    from bundle_router.adapters.text_files import read_within

    try:
        data = read_within(folder, path, MAX_BYTES)
        if len(data) > MAX_BYTES:
            raise RequestError(f"{path} is larger than {MAX_BYTES:,} bytes")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise RequestError(
            f"{path} can't be read: {(error.strerror or str(error)).lower()}"
        ) from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not UTF-8 text (byte {error.start})") from error


def append_texts(
    config: str | None,
    local: LocalServers,
    texts: Mapping[Path, str],
    *,
    write: bool,
    instead_of: str = "",
) -> dict[Path, str]:
    """Return the project's files with these texts appended; existing text is unchanged. In a file
    that has the passage `instead_of`, its text stands in that place.

    With `write` they are replaced, while nobody else edits the folder. Raises ConfigError if a
    result can't be read back, StorageError.
    """
    from bundle_router.adapters.text_files import lock_folder, replace_texts

    if not write:
        return _appended(config, local, texts, instead_of)
    folder = Path(config or "config")
    with lock_folder(folder if folder.is_dir() else Path()):
        new_texts = _appended(config, local, texts, instead_of)
        replace_texts(new_texts)
        return new_texts


def _appended(
    config: str | None, local: LocalServers, texts: Mapping[Path, str], instead_of: str
) -> dict[Path, str]:
    from bundle_router.adapters.config_files import read_config
    from bundle_router.core.config import from_bytes
    from bundle_router.local_tools.workspace.grammar import problems as check_binary
    from bundle_router.review.lint import check
    from bundle_router.wiring.catalogs import declared_files, local_cards

    new_texts = {}
    for path, text in texts.items():
        present = text_of(path, path.parent) if path.exists() else ""
        if instead_of and instead_of in present:
            new_texts[path] = present.replace(instead_of, text.strip("\n"), 1)
            continue
        new_texts[path] = present + ("" if not present or present.endswith("\n") else "\n") + text
    added = [
        from_bytes(path.name, str(path), text.encode(), "project")
        for path, text in new_texts.items()
    ]
    names = {file.name for file in added}
    other_files = [f for f in read_config(config) if f.layer != "project" or f.name not in names]
    other_files += declared_files(local)
    problems = [
        p
        for p in check(
            [*other_files, *added], cards=local_cards(local)[1], check_binary=check_binary
        )
        if p.level == "error"
    ]
    if problems:
        raise ConfigError(problems)
    return new_texts


def _show(made: ImportedServers, texts: dict[Path, str], *, written: bool) -> None:
    for path, text in texts.items():
        say(f"added to {path}:" if written else f"to add to {path} (--write adds it):")
        for line in text.rstrip().splitlines():
            say(f"  {line}")
    for note in made.notes:
        say(f"note: {note}")
    if made.variables:
        say(f"set in the environment: {', '.join(made.variables)}")
    if not made.names:
        say("nothing to add")
    elif written:
        say(f"next: bundle-router pin --development {' '.join(made.names)} --write")
        say("then narrow the bundles in bundles.toml")
        say("then, for each role that may have one: bundle-router allow BUNDLE --role ROLE")
        say("then, where a model is configured: bundle-router examples (search finds by them)")
