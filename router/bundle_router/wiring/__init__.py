"""The one place that knows both the engine and the adapters. `Router.open` is here."""

from bundle_router.wiring.catalogs import (
    LocalServers,
    declared_files,
    load_catalog,
    load_remembering,
    local_cards,
    open_pins,
    project_folder,
    read_catalog,
    shipped_argument_problems,
)
from bundle_router.wiring.effects import open_redactor, package_version
from bundle_router.wiring.facade import Router
from bundle_router.wiring.logins import LOGIN_S, log_in, log_out, token_folder
from bundle_router.wiring.searching import MIN_CACHED, make_search, make_search_for, open_embedder, open_model
from bundle_router.wiring.toolservers import admitted_now

__all__ = [
    "LOGIN_S",
    "MIN_CACHED",
    "LocalServers",
    "Router",
    "admitted_now",
    "declared_files",
    "load_catalog",
    "load_remembering",
    "local_cards",
    "log_in",
    "log_out",
    "make_search",
    "make_search_for",
    "open_embedder",
    "open_model",
    "open_pins",
    "open_redactor",
    "package_version",
    "project_folder",
    "read_catalog",
    "shipped_argument_problems",
    "token_folder",
]
