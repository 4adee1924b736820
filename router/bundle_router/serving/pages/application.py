"""The pages as an ASGI application (Starlette)."""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from bundle_router.core.models.artifacts import SHA256
from bundle_router.errors import CorruptRun, RequestError, RouterError, UnknownRun
from bundle_router.serving.pages.queries import Query, fields_of, first
from bundle_router.serving.pages.rendering import NAV, Links, PageContent, asset_bytes, error_page, json_text, render
from bundle_router.serving.pages.views import Away, PageViews
from bundle_router.serving.refusals import Asgi
from bundle_router.wiring.run_reader import RunReader

Handler = Callable[[Request], Awaitable[Response]]
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer" browsers send "null" as the origin of our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
ARTIFACT_POLICY: Final = "default-src 'none'; sandbox"
MAX_FORM_BYTES: Final = 64 * 1024
ASSETS: Final[Mapping[str, str]] = {
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "htmx-2.0.10.min.js": "text/javascript; charset=utf-8",
    "htmx-LICENSE.txt": "text/plain; charset=utf-8",
    "codemirror-editor.min.js": "text/javascript; charset=utf-8",
    "codemirror-LICENSE.txt": "text/plain; charset=utf-8",
}
"""Files that pages load, all of them ours or vendored with their licence."""
_STATUS: Final = ((UnknownRun, 404), (RequestError, 404), (CorruptRun, 500))
Reviewer = Callable[[Request], str | None]
"""Returns the caller's name if they may label; None if they may only read."""


def pages(
    reader: RunReader,
    *,
    base: str = "",
    reviewer: Reviewer = lambda _: None,
    away: Away | None = None,
    first_routes: Sequence[BaseRoute] = (),
    nav: Sequence[tuple[str, str]] = NAV,
) -> Asgi:
    """Return the pages of a reader. `base` is the path they are mounted at; `away` tells which servers are unavailable,
    and why; `first_routes` are tried first, `nav` the addresses and names at the top of every page.
    """
    app = Starlette(routes=[*first_routes, *PageRoutes(reader, Links(base, nav=tuple(nav)), reviewer, away).routes()])
    app.router.redirect_slashes = False
    return app


class PageRoutes:
    """The addresses. Each answers a page for people and, with `.json`, the same facts for programs."""

    def __init__(self, reader: RunReader, links: Links, reviewer: Reviewer, away: Away | None = None) -> None:
        self._reader = reader
        self._links = links
        self._reviewer = reviewer
        self._away = away
        self._token = secrets.token_urlsafe(24)

    def routes(self) -> list[BaseRoute]:
        def page(path: str, view: Callable[[PageViews, Request], PageContent]) -> list[BaseRoute]:
            as_json = "/index.json" if path == "/" else f"{path}.json"
            return [Route(as_json, self._answer(view, as_json=True)), Route(path, self._answer(view))]

        return [
            *page("/", lambda v, r: v.overview(_query(r))),
            *page("/runs", lambda v, r: v.runs(_query(r))),
            *page("/steps", lambda v, r: v.records("steps", _query(r))),
            *page("/calls", lambda v, r: v.records("calls", _query(r))),
            *page("/search", lambda v, r: v.search(_query(r))),
            *page("/compare", lambda v, r: v.compare(_query(r))),
            *page("/matrix", lambda v, _: v.matrix()),
            *page("/catalog", lambda v, _: v.catalog()),
            *page("/catalog/{bundle}", lambda v, r: v.bundle(r.path_params["bundle"])),
            *page("/servers/{server}", lambda v, r: v.server(r.path_params["server"])),
            *page("/artifacts/{sha256}", lambda v, r: v.artifact(r.path_params["sha256"])),
            Route("/parts/runs", self._answer(lambda v, r: v.new_runs(_query(r)))),
            Route("/parts/runs/{run}", self._answer(lambda v, r: v.new_records(r.path_params["run"], _query(r)))),
            Route("/runs/{run}/artifacts/{sha256}", self._artifact),
            Route("/runs/{run}/{seq:int}/label", self._label, methods=["POST"]),
            Route("/runs/{run}/{seq:int}/why", self._named_why),
            *page("/runs/{run}/{seq:int}/why/{name}", lambda v, r: v.why(*_place_of(r), r.path_params["name"])),
            *page("/runs/{run}/{seq:int}/array", lambda v, r: v.array(*_place_of(r), _query(r))),
            *page("/runs/{run}/{seq:int}", lambda v, r: v.record(*_place_of(r))),
            *page("/runs/{run}", lambda v, r: v.run(r.path_params["run"], _query(r))),
            Route("/assets/{name}", self._asset),
            Route("/{rest:path}", self._nothing),
        ]

    # --- answers -----------------------------------------------------------------------------------------------------

    def _answer(self, view: Callable[[PageViews, Request], PageContent], *, as_json: bool = False) -> Handler:
        async def answer(request: Request) -> Response:
            def whole(page: PageContent) -> PageContent:
                return replace(page, values={**request_values(request), **page.values, "token": self._token})

            make = partial(self._make_page, view, request)
            return await respond(make, whole, self._links, self._reader.where, as_json=as_json)

        return answer

    def _make_page(self, view: Callable[[PageViews, Request], PageContent], request: Request) -> PageContent:
        stale = self._reader.refresh()
        views = PageViews(self._reader, may_label=self._reviewer(request) is not None, away=self._away)
        page = view(views, request)
        return replace(page, values={"stale": stale, **page.values})

    async def _named_why(self, request: Request) -> Response:
        """Redirect a form to its address: the typed name becomes a part of the path, if it can."""
        name = first(_query(request), "name").strip()[:300]
        if re.fullmatch(r"[A-Za-z0-9._~@:+-]+", name) and set(name) != {"."}:
            run_id, seq = _place_of(request)
            return RedirectResponse(self._links.to(f"/runs/{run_id}/{seq}/why/{name}"), 303, HEADERS)
        return await self._answer(lambda v, r: v.why(*_place_of(r), name))(request)

    async def _label(self, request: Request) -> Response:
        """Store a label. Needs a reviewer, a page of this origin, and its token."""
        by = self._reviewer(request)
        if by is None:
            return await self._refusal_page(request, "this token may read, and not label", 403)
        form = await read_form(request, self._token, MAX_FORM_BYTES)
        if isinstance(form, tuple):
            return await self._refusal_page(request, *form)
        run_id, seq = _place_of(request)
        try:
            await asyncio.to_thread(
                lambda: self._reader.label(
                    run_id, seq, needed=_ids(form, "needed"), not_needed=_ids(form, "not_needed"), by=by
                )
            )
        except RouterError as error:
            return await self._refusal_page(request, error.message, 400, error.advice)
        return RedirectResponse(self._links.to(f"/runs/{run_id}/{seq}") + "#labels", 303, HEADERS)

    async def _refusal_page(self, request: Request, message: str, status: int, advice: str = "") -> Response:
        return await self._answer(lambda *_: error_page(message, advice, self._reader.where, status))(request)

    async def _nothing(self, request: Request) -> Response:
        return await self._refusal_page(request, "there is nothing here", 404)

    async def _artifact(self, request: Request) -> Response:
        """Return an artifact's bytes: inline if they are a raster image or sound by content, else to download."""
        run_id, sha256 = request.path_params["run"], request.path_params["sha256"]
        try:
            if not SHA256.fullmatch(sha256):
                raise RequestError(f"{sha256[:64]!r} is not an artifact's digest")
            found = await asyncio.to_thread(self._reader.artifact, run_id, sha256)
        except RouterError as error:
            return await self._refusal_page(request, error.message, 404, error.advice)
        headers = {**HEADERS, "content-security-policy": ARTIFACT_POLICY, "cache-control": "private, max-age=86400"}
        headers["content-disposition"] = f'{"inline" if found.inline else "attachment"}; filename="{sha256[:16]}"'
        return Response(found.data, 200, headers, found.mime_type if found.inline else "application/octet-stream")

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            return await self._nothing(request)
        data = await asyncio.to_thread(asset_bytes, name)
        return Response(data, 200, {**HEADERS, "cache-control": "private, max-age=300"}, ASSETS[name])


async def respond(
    make: Callable[[], PageContent | str],
    complete: Callable[[PageContent], PageContent],
    links: Links,
    where: str,
    *,
    as_json: bool = False,
) -> Response:
    """Make a page in a thread, and answer it as HTML or JSON; an address instead of a page is a redirect, and an error
    a page that explains it."""

    def made() -> tuple[PageContent | str, str]:
        try:
            page = make()
        except RouterError as error:
            status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
            page = error_page(error.message, error.advice, where, status)
        if isinstance(page, str):
            return page, ""
        return page, json_text(page.json) if as_json else render(complete(page), links)

    page, text = await asyncio.to_thread(made)
    if isinstance(page, str):
        return RedirectResponse(links.base + page, 303, HEADERS)
    if as_json:
        return Response(text, page.status, HEADERS, "application/json")
    return HTMLResponse(text.encode("utf-8", "replace"), page.status, HEADERS)  # a record may hold half a character


async def read_form(request: Request, token: str, max_bytes: int) -> dict[str, list[str]] | tuple[str, int]:
    """Return the fields of a form from a page of this origin with this process's token; else the reason for refusing
    it, and the status."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            return "the form is too large", 413
    try:
        form = fields_of(body.decode("utf-8", "replace"))
    except RequestError as error:
        return error.message, 413
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = f"{request.url.scheme}://{request.url.netloc}"
    is_own = site in (None, "same-origin") and origin in (None, own) and (site or origin) is not None
    if not is_own or not hmac.compare_digest(first(form, "token").encode(), token.encode()):
        return "the form is not from a page of this service, or from an older one", 403
    return form


def _query(request: Request) -> Query:
    return fields_of(request.url.query)


def request_values(request: Request) -> dict[str, Any]:
    """Return what every page needs of its request: its address as JSON, the sign-out address of a browser that signed
    in (empty for a caller that sends a token), and why the config's files are not in force."""
    path, query = request.url.path, request.url.query
    as_json = path + ("index.json" if path.endswith("/") else ".json") + (f"?{query}" if query else "")
    return {"as_json": as_json, "sign_out": "/sign-out" if "cookie" in request.headers else "",
            "config_problems": request.scope.get("config_problems", ()), "stale": ""}  # fmt: skip


def _place_of(request: Request) -> tuple[str, int]:
    return request.path_params["run"], min(request.path_params["seq"], 2**62)  # what the index can look for


def _ids(form: Query, name: str) -> tuple[str, ...]:
    """Return the bundle ids of a field, from checkboxes or typed with spaces or commas between them."""
    return tuple(dict.fromkeys(id_ for value in form.get(name, ()) for id_ in value.replace(",", " ").split()))[:100]
