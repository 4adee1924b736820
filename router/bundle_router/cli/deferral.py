"""The verb `deferral`: that of `bundle_router_deferral`."""

from bundle_router_deferral.cli.arguments import declare

__all__ = ["declare"]
