"""The adapters that every router needs: a redactor, a store for runs, and reuse of results."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bundle_router.core.catalog import Catalog
from bundle_router.errors import needs_extra
from bundle_router.ports import Clock, Diagnostics, Redactor, RunStore

if TYPE_CHECKING:
    from bundle_router.engine.reuse import ResultReuse


def open_redactor(catalog: Catalog) -> Redactor:
    """Return a redactor that knows the values of all environment variables that the config
    names.
    """
    from bundle_router.adapters.redaction import SecretRedactor

    names = {name for server in catalog.servers.values() for name in server.env_names}
    names |= {*catalog.settings.log.redact_env} | catalog.settings.model.env_names
    if catalog.settings.search.embeddings is not None:
        names |= catalog.settings.search.embeddings.env_names
    return SecretRedactor(
        env_values={name: os.environ[name] for name in sorted(names) if os.environ.get(name)}
    )


def open_store(
    runs: str | Path, catalog: Catalog, clock: Clock, store: str | None = None
) -> RunStore:
    """Return the store of runs: a directory (`store=None`) or a database, with run heads beside it
    where `[records]` says so.

    Raises RequestError for an unsupported store, and for a key of `[records]` that is not set.
    """
    kept = _open_directory(runs, catalog, clock) if store is None else _open_database(store, clock)
    if catalog.settings.records.heads is None and catalog.settings.records.key is None:
        return kept  # without loading what keeps heads
    from bundle_router.adapters.archive import kept_heads
    from bundle_router.adapters.archive.head_files import HeadKeepingStore

    heads = kept_heads(catalog.settings.records, runs)
    return kept if heads is None else cast("RunStore", HeadKeepingStore(kept, heads))


def _open_directory(runs: str | Path, catalog: Catalog, clock: Clock) -> RunStore:
    from bundle_router.adapters.artifact_files import RunArtifacts
    from bundle_router.adapters.run_log import DiskRunStore

    durability = catalog.settings.log.durability
    artifacts = partial(RunArtifacts, durable=durability == "disk")
    return DiskRunStore(runs, clock=clock, artifacts=artifacts, durability=durability)


def _open_database(store: str, clock: Clock) -> RunStore:
    with needs_extra("a PostgreSQL store", "postgresql"):
        from bundle_router.adapters.postgres import PostgresRunStore

    return PostgresRunStore(store, clock=clock)


def open_results(catalog: Catalog, clock: Clock) -> ResultReuse | None:
    """Return the cache of results; None where no server permits reuse."""
    from bundle_router.engine.reuse import ResultReuse

    return ResultReuse(clock) if any(server.reuse for server in catalog.servers.values()) else None


def open_diagnostics(catalog: Catalog, redactor: Redactor) -> Diagnostics:
    from bundle_router.adapters.diagnostics import StderrDiagnostics

    return StderrDiagnostics(redactor, level=catalog.settings.log.diagnostics)


def token_folder() -> Path:
    """Return the folder of the tool servers' tokens: the user's own, for all projects and outside
    of every run.
    """
    from bundle_router.adapters.mcp.tokens import default_folder

    return default_folder(os.environ)
