"""The one place that knows both the engine and the adapters. `Router.open` is here."""

from bundle_router.wiring.catalogs import load_catalog
from bundle_router.wiring.facade import Router

__all__ = ["Router", "load_catalog"]
