"""The pages of the service: reading runs and editing the config folder, as far as the caller's token permits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle_router.serving.keys import Caller, Scope
from bundle_router.serving.pages.application import pages
from bundle_router.serving.pages.config_routes import WITH_CONFIG, ConfigRoutes
from bundle_router.serving.pages.views import Away
from bundle_router.serving.refusals import Asgi

if TYPE_CHECKING:
    from starlette.requests import Request

    from bundle_router.wiring.catalogs import LocalServers


@dataclass(frozen=True, slots=True)
class PageSources:
    """The sources of the pages. `config=None`: the shipped config, which can be read but not edited. `others`: folders
    to compare with, by name. `development`: stdio servers may be asked for their pins. `away` tells which servers are
    unavailable, and why."""

    runs: str | Path = "runs"
    store: str | None = None
    config: str | Path | None = None
    local: LocalServers | None = None
    development: bool = False
    others: Mapping[str, Path] = field(default_factory=dict)
    away: Away | None = None


@contextmanager
def service_pages(sources: PageSources) -> Iterator[Asgi]:
    """Yield the pages, to be passed to `serve`. Raises RequestError, StorageError, NotInstalled."""
    from bundle_router.wiring.config_editing import open_editor
    from bundle_router.wiring.pin_approval import PinApproval
    from bundle_router.wiring.run_reader import open_reader

    def shown(**more: Any) -> Asgi:
        return pages(reader, reviewer=lambda request: _caller_of(request, "review"), away=sources.away, **more)

    reader = open_reader(sources.runs, store=sources.store, config=sources.config, local=sources.local)
    try:
        if sources.config is None:
            yield shown()
            return
        editing = ConfigRoutes(
            open_editor(sources.config, sources.store or sources.runs, local=sources.local),
            approval=PinApproval(sources.config, development=sources.development, local=sources.local),
            others=sources.others,
            who=lambda request: _caller_of(request, "edit"),
        )
        yield shown(more=editing.routes(), nav=WITH_CONFIG)
    finally:
        reader.close()


def _caller_of(request: Request, scope: Scope) -> str | None:
    """Return the caller's name if their token has the scope, else None."""
    caller: Caller = request.scope["user"]
    return caller.name if scope in caller.scopes else None
