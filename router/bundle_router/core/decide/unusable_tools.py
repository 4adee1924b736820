"""What is wrong where a caller's own tools can be shown to no step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bundle_router.core.catalog import Catalog
from bundle_router.core.values.spelling import Suggester
from bundle_router.errors import Problem


def unused_local(local: Iterable[str], catalog: Catalog) -> Iterator[Problem]:
    """Yield a warning for each server name of the given local tools that the config does not have,
    so that no bundle can hold them, or of whose tools no bundle holds any.
    """
    bundled = {
        tool.partition(".")[0]
        for bundle in catalog.bundles.values()
        for tool in (*bundle.tools, *bundle.patterns)
    }
    servers = [server.name for server in catalog.servers.values() if not server.traits.is_remote]
    for name in local:
        if name not in servers:
            near = Suggester().did_you_mean(name, servers)
            hint = near or f"[servers.{name}] with transport = 'local' takes them in"
            message = f"servers.toml has no local server {name!r}, so these tools are not used"
            yield Problem(f"--local {name}", 0, "", message, hint, "warning", "unused-local")
        elif name not in bundled:
            message = f"no bundle holds a tool of local server {name!r}"
            hint = f"name '{name}.*' in one of bundles.toml"
            yield Problem(f"--local {name}", 0, "", message, hint, "warning", "unused-local")


def no_policy(bundle_id: str) -> tuple[str, str]:
    """Return what is wrong with a bundle that no step may see, and the rows that show it."""
    policy = f"name, role and allow = ['bundle:{bundle_id}'] in policy.toml permits it"
    hint = (
        f"a row [[policies]] with {policy}, one of [[routes]] with bundles = ['{bundle_id}']"
        f" shows it: `bundle-router allow {bundle_id} --role ROLE` writes both"
    )
    return f"no policy lets any step see bundle {bundle_id!r}", hint
