"""Reports what is legal in a config but dead or risky, beside its errors: `bundle-router check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from bundle_router.core.catalog import Card, Catalog
from bundle_router.core.config.config_text import ConfigFile
from bundle_router.core.config.resolve import resolve
from bundle_router.core.config.router_settings import CheckBinary, no_check
from bundle_router.core.models.spelling import Suggester
from bundle_router.errors import Problem
from bundle_router.review.lint.findings import HasContent
from bundle_router.review.lint.rules import lint

__all__ = ["HasContent", "check", "unused_local"]


def check(
    files: Sequence[ConfigFile],
    *,
    cards: Mapping[str, Card],
    check_binary: CheckBinary = no_check,
    has_content: HasContent | None = None,
) -> list[Problem]:
    """Return every error or, without errors, what is dead (`warning`) or dangerous (`risk`) in the project's own files.

    The shipped files are linted if there are no project files. `has_content` tells whether a skill's file exists (None:
    not checked, and none is reported as missing).
    """
    resolved = resolve(files, cards, check_binary)
    if not resolved.report.has_errors:
        shipped = [file for file in files if file.layer == "shipped"]
        lint(resolved, lambda: resolve(shipped, cards, check_binary), has_content)
    return resolved.report.problems()


def unused_local(local: Iterable[str], catalog: Catalog) -> Iterator[Problem]:
    """Yield a warning for each server name of the given local tools that the config does not have, so that no bundle
    can hold them, or of whose tools no bundle holds any."""
    held = {tool.partition(".")[0] for bundle in catalog.bundles.values() for tool in (*bundle.tools, *bundle.patterns)}
    servers = [server.name for server in catalog.servers.values() if not server.traits.is_remote]
    for name in local:
        if name not in servers:
            near = Suggester().did_you_mean(name, servers)
            hint = near or f"[servers.{name}] with transport = 'local' takes them in"
            message = f"servers.toml has no local server {name!r}, so these tools are not used"
            yield Problem(f"--local {name}", 0, "", message, hint, "warning", "unused-local")
        elif name not in held:
            message, hint = (
                f"no bundle holds a tool of local server {name!r}",
                f"name '{name}.*' in one of bundles.toml",
            )
            yield Problem(f"--local {name}", 0, "", message, hint, "warning", "unused-local")
