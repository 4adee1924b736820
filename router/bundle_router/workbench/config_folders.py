"""Config folders to compare: with the places of their entries, and as they were in a git
revision.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bundle_router.adapters.private_folders import temporary_root
from bundle_router.core.catalog import Catalog
from bundle_router.engine.route import DecisionCache
from bundle_router.errors import RequestError
from bundle_router.review.edit_places import Places, edit_places
from bundle_router.review.replaying import RecordedRuns, RunReplays
from bundle_router.wiring.catalogs import LocalServers, declared_files, load_catalog, local_cards


def load_with_places(
    config: str | Path, *, local: LocalServers | None = None
) -> tuple[Catalog, Places]:
    """Return the catalog of a config folder, and the file and line of each entry.

    Raises ConfigError.
    """
    from bundle_router.adapters.config_files import read_config
    from bundle_router.core.config.resolve import resolve

    catalog = load_catalog(config, local=local)
    files = [*declared_files(local), *read_config(config)]
    return catalog, edit_places(resolve(files, local_cards(local)[1]).written)


def open_replays(runs: RecordedRuns, other: Catalog | None, examples: int) -> RunReplays:
    """Return what replays recorded runs; under `other`, decisions that come to the same are decided
    once.
    """
    return RunReplays(runs, other, examples, lambda plans: DecisionCache(plans).decide)


@contextmanager
def revision_folder(revision: str, folder: str) -> Iterator[Path]:
    """Yield a copy of a config folder in a git revision, with the `bundles` beside it (pins and
    skills); it is deleted at the end of the block. `folder` is relative to the current one. Raises
    RequestError.
    """
    from bundle_router.adapters.git_revision import extract_revision

    path = Path(folder)
    if path.is_absolute() or ".." in path.parts:
        raise RequestError(
            f"{folder!r} is not a folder beneath this one", advice="go to the folder it is in"
        )
    with tempfile.TemporaryDirectory(prefix="bundle-router-", dir=temporary_root()) as name:
        extract_revision(
            revision, [os.fspath(path), os.fspath(path.parent / "bundles")], Path(name)
        )
        found = Path(name) / path
        if not found.is_dir():
            raise RequestError(
                f"{revision!r} is neither a folder nor a git revision that holds {folder!r}",
                advice="name a folder, or a revision and a folder: main:config",
            )
        yield found
