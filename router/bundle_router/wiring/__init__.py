"""Connects the engine with the adapters; no other package knows both. `Router.open` is here."""

from bundle_router.wiring.catalogs import load_catalog
from bundle_router.wiring.facade import Router

__all__ = ["Router", "load_catalog"]
