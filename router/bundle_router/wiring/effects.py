"""The adapters that every router needs (a redactor, diagnostics, reuse of results), and the HTTP
server of what stands on one.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle_router.core.catalog import Catalog
from bundle_router.ports import Clock, Diagnostics, Redactor

if TYPE_CHECKING:
    from bundle_router.adapters.http_listener import Listener
    from bundle_router.engine.reuse import ResultReuse


def open_redactor(catalog: Catalog) -> Redactor:
    """Return a redactor that knows the values of all environment variables that the config names,
    but for those that are words of the records themselves.
    """
    from bundle_router.adapters.redaction import SecretRedactor
    from bundle_router.core.records.own_words import is_record_word

    settings = catalog.settings
    names = {*settings.log.redact_env, *settings.model.env_names}
    for server in catalog.servers.values():
        names.update(server.env_names)
    if settings.search.embeddings is not None:
        names.update(settings.search.embeddings.env_names)
    values = {name: os.environ.get(name, "") for name in sorted(names)}
    secrets = {name: value for name, value in values.items() if value and not is_record_word(value)}
    return SecretRedactor(env_values=secrets)


def open_results(catalog: Catalog, clock: Clock) -> ResultReuse | None:
    """Return the cache of results; None where no server permits reuse."""
    if not any(server.reuse for server in catalog.servers.values()):
        return None
    from bundle_router.engine.reuse import ResultReuse

    return ResultReuse(clock)


def open_diagnostics(catalog: Catalog, redactor: Redactor) -> Diagnostics:
    from bundle_router.adapters.diagnostics import StderrDiagnostics

    return StderrDiagnostics(redactor, level=catalog.settings.log.diagnostics)


def start_listener(
    application: Any, listening: socket.socket, head_s: float, tls: tuple[str | None, str | None]
) -> Listener:
    """Return the HTTP server of an ASGI application, which answers on a listening socket from now
    until it is closed.

    `tls`: the files of a certificate and its key, or two None.
    """
    from bundle_router.adapters.http_listener import Listener

    listener = Listener(application, listening, head_s, tls)
    listener.start()
    return listener


def token_folder() -> Path:
    """Return the folder of the tool servers' tokens: the user's own, for all projects and outside
    of every run.
    """
    from bundle_router.adapters.mcp.tokens import default_folder

    return default_folder(os.environ)
