"""The pages of the service: reading runs and editing the config folder, as far as the caller's
token permits.

Rules for the addresses at which the config is edited (checked while typing, compared, saved,
undone; pins approved):
1. Anybody who may see the pages may read. Checking, saving and approving need the scope `edit`, and
   a POST from a page of this origin with the token of this process.
2. No address and no form names a path: there are the five files, and the folders that `serve` was
   given by name.
3. Everything works without JavaScript; with it, the text is checked while it is typed.
4. A refused save returns the text as it was typed, with its errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from bundle_router.errors import ConfigError, RequestError
from bundle_router.service.keys import Caller, Scope
from bundle_router.service.pages.application import HEADERS, PageAnswers, Reviewer, pages, query_of
from bundle_router.service.pages.config_views import ConfigViews, text_digest
from bundle_router.service.pages.queries import Query, first
from bundle_router.service.pages.rendering import NAV, Links, PageContent
from bundle_router.service.pages.views import Away
from bundle_router.service.refusals import Asgi
from bundle_router.service.reloading import WatchedPages
from bundle_router.workbench.config_editing import ConfigConflict, ConfigEditor, WideningRefused
from bundle_router.workbench.found_edits import FoundEdits
from bundle_router.workbench.pin_approval import PinApproval

if TYPE_CHECKING:
    from starlette.requests import Request

    from bundle_router.wiring.catalogs import LocalServers
from bundle_router.wiring.stores import RunPlace

MAX_FORM_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of a form: a config file with every character escaped."""
WITH_CONFIG: Final = (*NAV, ("/config", "Config"), ("/docs", "Docs"))
"""The navigation of pages where the config can be edited."""


class ConfigRoutes:
    """The routes of one config folder.

    `others`: folders to compare with, by name. `who`: who may edit. Pass `routes()` to
    `pages(first_routes=…)`.
    """

    def __init__(
        self,
        editor: ConfigEditor,
        *,
        approval: PinApproval | None = None,
        others: Mapping[str, Path] | None = None,
        edits: FoundEdits | None = None,
        who: Reviewer = lambda _: None,
        base: str = "",
    ) -> None:
        self._editor = editor
        self._approval = approval
        self._views = ConfigViews(editor, dict(others or {}), approval, edits)
        links = Links(base, nav=WITH_CONFIG)
        refusal = "this token may read, and not edit"
        self._answers = PageAnswers(
            links,
            self._views.where,
            who,
            permission="may_edit",
            refusal=refusal,
            max_form_bytes=MAX_FORM_BYTES,
        )

    def routes(self) -> list[BaseRoute]:
        page = self._answers.page
        post = self._answers.post
        views = self._views

        def config(request: Request) -> PageContent:
            query = query_of(request)
            return views.config(first(query, "file"), saved=first(query, "saved"))

        return [
            *page("/config", config),
            *page("/config/compare", lambda r: views.compare(first(query_of(r), "with"))),
            *page("/config/changes", lambda _: views.changes()),
            Route("/config/schema/{file}", self._schema),
            post(
                "/config/check",
                lambda form, *_: views.problems(first(form, "file"), first(form, "text")),
            ),
            post("/config/preview", lambda form, *_: views.preview(form)),
            post("/config/save", self._save),
            post("/config/accept", self._accept),
            *page("/config/undo", lambda _: views.undo()),
            post("/config/undo", self._undo),
            *page(
                "/servers/{server}/pins",
                lambda r: views.pins(r.path_params["server"], "approved" in query_of(r)),
            ),
            post(
                "/servers/{server}/pins",
                lambda _form, _by, r: views.pins(r.path_params["server"], ask=True),
            ),
            post("/servers/{server}/approve", self._approve),
        ]

    # --- what is posted ---------------------------------------------------------------------------

    def _save(self, form: Query, by: str, _request: Request) -> PageContent | str:
        name = first(form, "file")
        text = first(form, "text")
        if first(form, "compared") != text_digest(text):
            refusal = RequestError(
                "the text was changed since it was compared", advice="compare it again"
            )
            return self._views.preview(form, refused=refusal)
        try:
            self._editor.save(
                {name: text},
                {name: first(form, "digest")},
                by=by,
                reason=first(form, "reason"),
                acknowledged=first(form, "acknowledged"),
            )
        except (ConfigConflict, WideningRefused, ConfigError, RequestError) as error:
            return self._views.preview(form, refused=error)
        return f"/config?file={name}&saved=1"

    def _accept(self, form: Query, by: str, _request: Request) -> PageContent:
        refused = None
        try:
            self._editor.accept_risks(form.get("risk", ()), by=by, reason=first(form, "why"))
        except RequestError as error:
            refused = error
        return self._views.draft(form, refused=refused)

    def _undo(self, form: Query, by: str, _request: Request) -> PageContent | str:
        try:
            change = self._editor.undo(
                by=by, reason=first(form, "reason"), acknowledged=first(form, "acknowledged")
            )
        except (ConfigConflict, WideningRefused, ConfigError, RequestError) as error:
            return self._views.undo(refused=error)
        return f"/config?file={change.files[0].name}&saved=undone"

    def _approve(self, form: Query, by: str, request: Request) -> PageContent | str:
        server: str = request.path_params["server"]
        if self._approval is None:
            raise RequestError("servers are not asked here")
        try:
            listed = form.get("listed", ())
            tools = form.get("tool", ())
            if listed and not tools:
                raise RequestError(
                    "no tool is ticked", advice="tick what you have read and approve"
                )
            only = None if set(listed) == set(tools) else tools
            self._approval.approve(
                server, first(form, "digest"), by=by, reason=first(form, "reason"), only=only
            )
        except RequestError as error:
            return self._views.pins(server, ask=True, refused=error)
        return f"/servers/{server}/pins?approved=1"

    async def _schema(self, request: Request) -> Response:
        """Return the JSON Schema of a file, for editors; the same that `init` writes beside the
        config.
        """
        from bundle_router.core.config.written_forms import schema_texts

        name = request.path_params["file"]
        text = schema_texts().get(f"schema/{name}")
        if text is None:
            return await self._answers.refuse(request, "there is no such schema", 404)
        return Response(text, 200, HEADERS, "application/schema+json")


@dataclass(frozen=True, slots=True)
class PageSources:
    """The sources of the pages.

    `config=None`: the shipped config, which can be read but not edited. `others`: folders to
    compare with, by name. `development`: stdio servers may be asked for their pins. `away` tells
    which servers are unavailable, and why.
    """

    runs: str | Path = "runs"
    store: RunPlace | None = None
    config: str | Path | None = None
    local: LocalServers | None = None
    development: bool = False
    others: Mapping[str, Path] = field(default_factory=dict)
    away: Away | None = None
    edits: FoundEdits | None = None
    """The edits of the config that the service finds."""


@contextmanager
def service_pages(sources: PageSources) -> Iterator[Asgi]:
    """Yield the pages, to be passed to `serve`. Raises RequestError, StorageError, NotInstalled."""
    from bundle_router.workbench.config_editing import open_editor
    from bundle_router.workbench.pin_approval import PinApproval
    from bundle_router.workbench.run_reader import open_reader

    def shown(**options: Any) -> Asgi:
        return pages(
            reader,
            reviewer=lambda request: _caller_of(request, "review"),
            away=sources.away,
            **options,
        )

    place = sources.runs if sources.store is None else sources.store
    with closing(open_reader(place, config=sources.config, local=sources.local)) as reader:
        if sources.config is None:
            yield shown()
            return
        editing = ConfigRoutes(
            open_editor(sources.config, place, local=sources.local),
            approval=PinApproval(
                sources.config, development=sources.development, local=sources.local
            ),
            others=sources.others,
            edits=sources.edits,
            who=lambda request: _caller_of(request, "edit"),
        )
        app = shown(first_routes=editing.routes(), nav=WITH_CONFIG)
        yield WatchedPages(app, sources.edits) if sources.edits is not None else app


def _caller_of(request: Request, scope: Scope) -> str | None:
    """Return the caller's name if their token has the scope, else None."""
    caller: Caller = request.scope["user"]
    return caller.name if scope in caller.scopes else None
