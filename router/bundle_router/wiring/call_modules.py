"""The modules that a first call loads, imported beforehand."""

from __future__ import annotations

from collections.abc import Container

from bundle_router.core.catalog import Catalog
from bundle_router.wiring.shipped import PACKAGES, shipped_tools


def load_call_modules(catalog: Catalog, own_servers: Container[str]) -> None:
    """Import what calls, meta-tools and the first-party tools of the catalog's bundles need.

    Blocks for about 0.15 s once a process: a first call would do so on its caller's event loop.
    What connections to other servers need is loaded in their own thread, and not here.
    `own_servers` are the local servers that the caller passed, which are loaded already.
    """
    from bundle_router.adapters import json_schema  # noqa: F401 - loading them is all
    from bundle_router.engine import calls, meta_calls  # noqa: F401 - likewise

    for server in sorted(_servers_in_use(catalog) & PACKAGES.keys()):
        if server not in own_servers:
            shipped_tools(server)


def _servers_in_use(catalog: Catalog) -> set[str]:
    """Return the servers whose tools some bundle has that is not switched off."""
    servers: set[str] = set()
    for bundle in catalog.bundles.values():
        if bundle.enabled:
            servers.update(bundle.servers)
    return servers
