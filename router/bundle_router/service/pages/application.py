"""The pages as an ASGI application (Starlette)."""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from bundle_router.core.values.artifacts import SHA256
from bundle_router.errors import CorruptRun, RequestError, RouterError, UnknownRun
from bundle_router.service.pages.docs_views import docs_page
from bundle_router.service.pages.documentation import documentation
from bundle_router.service.pages.library_views import library_page, library_server_page
from bundle_router.service.pages.queries import Query, fields_of, first, whole_number
from bundle_router.service.pages.rendering import (
    SERVED_NAV,
    Links,
    PageContent,
    asset_bytes,
    error_page,
    json_text,
    render,
)
from bundle_router.service.pages.views import Away, PageViews
from bundle_router.service.refusals import Asgi
from bundle_router.workbench.run_reader import RunReader

Handler = Callable[[Request], Awaitable[Response]]
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # with "no-referrer" browsers send "null" as the origin of our own forms
    "referrer-policy": "same-origin",
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
    "local-time.js": "text/javascript; charset=utf-8",
    "kept-lists.js": "text/javascript; charset=utf-8",
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
    nav: Sequence[tuple[str, str]] = SERVED_NAV,
) -> Asgi:
    """Return the pages of a reader.

    `base` is the path they are mounted at; `away` tells which servers are unavailable, and why;
    `first_routes` are tried first, `nav` the addresses and names at the top of every page.
    """
    app = Starlette(
        routes=[
            *first_routes,
            *PageRoutes(reader, Links(base, nav=tuple(nav)), reviewer, away).routes(),
        ]
    )
    app.router.redirect_slashes = False
    return app


View = Callable[[Request], PageContent | str]
"""Makes a page, or the address to redirect to. Runs in a thread."""
Post = Callable[[Query, str, Request], PageContent | str]
"""Carries out a form that was posted by a named caller, and makes a page as a `View` does."""


class PageAnswers:
    """Answers requests with pages, as HTML or JSON, and takes their forms.

    A form needs a `writer` (others get the sentence `refusal`), a page of this origin, and its
    token. The value `permission` tells a page who may post.
    """

    def __init__(
        self,
        links: Links,
        where: str,
        writer: Reviewer,
        *,
        permission: str,
        refusal: str,
        max_form_bytes: int,
    ) -> None:
        self._links = links
        self._where = where
        self._writer = writer
        self._permission = permission
        self._refusal = refusal
        self._max_form_bytes = max_form_bytes
        self._token = secrets.token_urlsafe(24)

    def page(self, path: str, view: View) -> list[BaseRoute]:
        """Return the routes of a page for people and, with `.json`, of the same facts for
        programs.
        """
        as_json = "/index.json" if path == "/" else f"{path}.json"
        return [Route(as_json, self._get(view, as_json=True)), self.part(path, view)]

    def part(self, path: str, view: View) -> BaseRoute:
        """Return the route of a page without a JSON form."""
        return Route(path, self._get(view))

    def post(self, path: str, work: Post) -> BaseRoute:
        """Return the route of a form."""

        async def answer(request: Request) -> Response:
            if (by := self._writer(request)) is None:
                return await self.refuse(request, self._refusal, 403)
            form = await read_form(request, self._token, self._max_form_bytes)
            if isinstance(form, tuple):
                return await self.refuse(request, *form)
            return await self._respond(request, lambda: work(form, by, request))

        return Route(path, answer, methods=["POST"])

    async def refuse(
        self, request: Request, message: str, status: int, advice: str = ""
    ) -> Response:
        """Answer with a page that explains why not."""
        return await self._respond(
            request, lambda: error_page(message, advice, self._where, status)
        )

    def _get(self, view: View, *, as_json: bool = False) -> Handler:
        async def answer(request: Request) -> Response:
            return await self._respond(request, partial(view, request), as_json=as_json)

        return answer

    async def _respond(
        self, request: Request, make: Callable[[], PageContent | str], *, as_json: bool = False
    ) -> Response:
        def made() -> tuple[PageContent | str, str]:
            try:
                page = make()
            except RouterError as error:
                status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
                page = error_page(error.message, error.advice, self._where, status)
            if isinstance(page, str):
                return page, ""
            return page, (
                json_text(page.json)
                if as_json
                else render(self._complete(page, request), self._links)
            )

        page, text = await asyncio.to_thread(made)
        if isinstance(page, str):
            return RedirectResponse(self._links.base + page, 303, HEADERS)
        if as_json:
            return Response(text, page.status, HEADERS, "application/json")
        return HTMLResponse(
            text.encode("utf-8", "replace"), page.status, HEADERS
        )  # a record may hold half a character

    def _complete(self, page: PageContent, request: Request) -> PageContent:
        """Add what every page needs of its request: its address as JSON, the sign-out address of a
        browser that signed in (empty for a caller that sends a token), what the caller may do, and
        why the config's files are not in force.
        """
        as_json = ""
        # A page about an error repeats no address: it may hold a secret in place of an id.
        if request.method == "GET" and page.status < 400:
            as_json = _json_address(request)
        values = {
            "as_json": as_json,
            "sign_out": "/sign-out" if "cookie" in request.headers else "",
            "config_problems": request.scope.get("config_problems", ()),
            "stale": "",
            self._permission: self._writer(request) is not None,
            "token": self._token,
        }
        return replace(page, values={**values, **page.values})


class PageRoutes:
    """The addresses of the pages about runs."""

    def __init__(
        self, reader: RunReader, links: Links, reviewer: Reviewer, away: Away | None = None
    ) -> None:
        self._reader = reader
        self._base = links.base
        self._views = PageViews(reader, away=away)
        refusal = "this token may read, and not label"
        self._answers = PageAnswers(
            links,
            reader.where,
            reviewer,
            permission="may_label",
            refusal=refusal,
            max_form_bytes=MAX_FORM_BYTES,
        )

    def routes(self) -> list[BaseRoute]:
        def page(path: str, view: View) -> list[BaseRoute]:
            return self._answers.page(path, partial(self._refreshed, view))

        def part(path: str, view: View) -> BaseRoute:
            return self._answers.part(path, partial(self._refreshed, view))

        v = self._views
        docs = documentation(self._base)
        return [
            *page("/", lambda r: v.overview(query_of(r))),
            *page("/runs", lambda r: v.runs(query_of(r))),
            *page("/steps", lambda r: v.records("steps", query_of(r))),
            *page("/calls", lambda r: v.records("calls", query_of(r))),
            *page("/search", lambda r: v.search(query_of(r))),
            *page("/compare", lambda r: v.compare(query_of(r))),
            *page("/matrix", lambda _: v.matrix()),
            *page("/catalog", lambda _: v.catalog()),
            *page("/catalog/{bundle}", lambda r: v.bundle(r.path_params["bundle"])),
            *page("/library", lambda r: library_page(query_of(r), self._reader.where)),
            *page(
                "/library/{server}",
                lambda r: library_server_page(r.path_params["server"], self._reader.where),
            ),
            *page("/servers/{server}", lambda r: v.server(r.path_params["server"])),
            *self._answers.page("/docs", lambda _: docs_page(docs, "")),
            *self._answers.page(
                "/docs/{page:path}", lambda r: docs_page(docs, r.path_params["page"])
            ),
            *page(
                "/artifacts/{sha256}", lambda r: v.artifact(r.path_params["sha256"], query_of(r))
            ),
            part("/parts/runs", lambda r: v.new_runs(query_of(r))),
            part("/parts/runs/{run}", lambda r: v.new_records(r.path_params["run"], query_of(r))),
            *page("/runs/{run}/media", lambda r: v.media(r.path_params["run"], query_of(r))),
            Route("/runs/{run}/artifacts/{sha256}", self._artifact),
            self._answers.post("/runs/{run}/{seq:int}/label", self._label),
            part("/runs/{run}/{seq:int}/why", self._named_why),
            *page(
                "/runs/{run}/{seq:int}/why/{name}",
                lambda r: v.why(*_place_of(r), r.path_params["name"]),
            ),
            *page("/runs/{run}/{seq:int}/array", lambda r: v.array(*_place_of(r), query_of(r))),
            *page("/runs/{run}/{seq:int}", lambda r: v.record(*_place_of(r), query_of(r))),
            *page("/runs/{run}", self._run),
            Route("/assets/{name}", self._asset),
            Route("/{rest:path}", self._nothing),
        ]

    def _refreshed(self, view: View, request: Request) -> PageContent | str:
        """Make a page over the present runs; it says where the index could not be brought up to
        date, and what happened to its file.
        """
        stale = self._reader.refresh()
        page = view(request)
        if isinstance(page, str):
            return page
        notice = self._reader.index.notice
        return replace(page, values={"stale": stale, "notice": notice, **page.values})

    def _run(self, request: Request) -> PageContent | str:
        """Return a run's page; redirect the number of a record to the part that shows it."""
        run_id = request.path_params["run"]
        query = query_of(request)
        if first(query, "go"):
            seq = whole_number(first(query, "go"))
            return f"/runs/{self._reader.index.run(run_id).run_id}?at={seq}#r{seq}"
        return self._views.run(run_id, query)

    def _named_why(self, request: Request) -> PageContent | str:
        """Redirect a form to its address: the typed name becomes a part of the path, if it can."""
        name = first(query_of(request), "name").strip()[:300]
        run_id, seq = _place_of(request)
        if re.fullmatch(r"[A-Za-z0-9._~@:+-]+", name) and set(name) != {"."}:
            return f"/runs/{run_id}/{seq}/why/{name}"
        return self._views.why(run_id, seq, name)

    def _label(self, form: Query, by: str, request: Request) -> PageContent | str:
        run_id, seq = _place_of(request)
        try:
            self._reader.label(
                run_id, seq, needed=_ids(form, "needed"), not_needed=_ids(form, "not_needed"), by=by
            )
        except RouterError as error:
            return error_page(error.message, error.advice, self._reader.where, 400)
        return f"/runs/{run_id}/{seq}#labels"

    async def _nothing(self, request: Request) -> Response:
        return await self._answers.refuse(request, "there is nothing here", 404)

    async def _artifact(self, request: Request) -> Response:
        """Return an artifact's bytes, or the part that is asked for: inline if they are a raster
        image, sound or video by content, else to download.
        """
        run_id = request.path_params["run"]
        sha256 = request.path_params["sha256"]
        try:
            if not SHA256.fullmatch(sha256):
                raise RequestError(f"{sha256[:64]!r} is not an artifact's digest")
            artifact = await asyncio.to_thread(self._reader.artifact, run_id, sha256)
        except RouterError as error:
            return await self._answers.refuse(request, error.message, 404, error.advice)
        headers = {
            **HEADERS,
            "content-security-policy": ARTIFACT_POLICY,
            "cache-control": "private, max-age=86400",
        }
        headers["content-disposition"] = (
            f'{"inline" if artifact.inline else "attachment"}; filename="{sha256[:16]}"'
        )
        mime_type = artifact.mime_type if artifact.inline else "application/octet-stream"
        headers["accept-ranges"] = "bytes"
        part = byte_range(request.headers.get("range", ""), len(artifact.data))
        if part is None:
            return Response(artifact.data, 200, headers, mime_type)
        headers["content-range"] = f"bytes {part.start}-{part.stop - 1}/{len(artifact.data)}"
        return Response(artifact.data[part.start : part.stop], 206, headers, mime_type)

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            return await self._nothing(request)
        data = await asyncio.to_thread(asset_bytes, name)
        return Response(
            data, 200, {**HEADERS, "cache-control": "private, max-age=300"}, ASSETS[name]
        )


def byte_range(header: str, size: int) -> range | None:
    """Return the one part of so many bytes that a request asks for; None for all of them.

    Players ask for parts to seek. What is not one part of the bytes is answered with all.
    """
    match = re.fullmatch(r"bytes=(\d{0,15})-(\d{0,15})", header.strip())
    if match is None or not any(match.groups()):
        return None
    start, stop = 0, size
    if not match[1]:
        start = max(0, size - int(match[2]))
    else:
        start = int(match[1])
        if match[2]:
            stop = min(size, int(match[2]) + 1)
    return range(start, stop) if start < stop else None


async def read_form(
    request: Request, token: str, max_bytes: int
) -> dict[str, list[str]] | tuple[str, int]:
    """Return the fields of a form from a page of this origin with this process's token; else the
    reason for refusing it, and the status.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            return "the form is too large", 413
    try:
        form = fields_of(body.decode("utf-8", "replace"))
    except RequestError as error:
        return error.message, 413
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    service = f"{request.url.scheme}://{request.url.netloc}"
    is_own = (
        site in (None, "same-origin") and origin in (None, service) and (site or origin) is not None
    )
    if not is_own or not hmac.compare_digest(first(form, "token").encode(), token.encode()):
        return "the form is not from a page of this service, or from an older one", 403
    return form


def query_of(request: Request) -> Query:
    """Return the parameters of a request. Raises RequestError if there are too many."""
    return fields_of(request.url.query)


def _place_of(request: Request) -> tuple[str, int]:
    return request.path_params["run"], min(
        request.path_params["seq"], 2**62
    )  # what the index can look for


def _ids(form: Query, name: str) -> tuple[str, ...]:
    """Return the bundle ids of a field, from checkboxes or typed with spaces or commas between
    them.
    """
    return tuple(
        dict.fromkeys(
            id_ for value in form.get(name, ()) for id_ in value.replace(",", " ").split()
        )
    )[:100]


def _json_address(request: Request) -> str:
    """Return the address at which the page's values are JSON."""
    path = request.url.path
    query = f"?{request.url.query}" if request.url.query else ""
    if path.endswith("/"):
        return f"{path}index.json{query}"
    return f"{path}.json{query}"
