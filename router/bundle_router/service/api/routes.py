"""The routes under `/v1`. See the rules of the package."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import (
    BaseModel,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    WrapSerializer,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bundle_router.core.results.shaping.media_forms import IMAGES
from bundle_router.core.values import RUN_ID, Decision
from bundle_router.errors import CorruptRun, RouterError, UnknownRun
from bundle_router.service.api.bodies import (
    KEY,
    CallBody,
    EmptyQuery,
    MediaQuery,
    MissedBody,
    RunsQuery,
    TimelineQuery,
    ToolsQuery,
    route_body,
    step_and_messages,
)
from bundle_router.service.api.openapi import openapi_document
from bundle_router.service.api.problems import (
    GONE,
    INTERNAL,
    NO_ARTIFACT,
    TIMED_OUT,
    UNSUPPORTED,
    invalid,
    problem_of,
)
from bundle_router.service.gate import is_json, values_of
from bundle_router.service.idling import IdleRuns
from bundle_router.service.keys import Caller, Scope
from bundle_router.service.refusals import (
    NO_SUCH_RUN,
    OTHER_PRINCIPAL,
    Message,
    Receive,
    Refusal,
    Send,
    missing_scope,
)
from bundle_router.service.telemetry import Telemetry
from bundle_router.wiring import Router

if TYPE_CHECKING:
    from bundle_router.service.pages.rendering import PageContent
    from bundle_router.service.pages.views import PageViews
    from bundle_router.workbench.run_reader import RunReader

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)
Work = Callable[[Request], Coroutine[Any, Any, Response]]
_KEY: Final = re.compile(KEY)
PRIVATE: Final = {
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "private, no-store",
}
"""Additional headers of every artifact."""


def _with_ids(decision: Decision, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
    """Return a decision's fields, and the ids that the library computes from them."""
    return {
        **fields(decision),
        "bundle_ids": decision.bundle_ids,
        "offered": decision.offered,
    }


_DECISION: Final = TypeAdapter(Annotated[Decision, WrapSerializer(_with_ids)])


class RefusedRequest(Exception):
    """Ends a request with a refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


class GuardedRoute:
    """One route as an ASGI application, because Starlette's wrapping of a function costs as much as
    the gate.
    """

    def __init__(self, answer: Callable[[Request], Coroutine[Any, Any, Response]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await (await self._answer(Request(scope, receive)))(scope, receive, send)


class JsonBytes(Response):
    """A response with encoded JSON and no other headers, because Starlette's own costs as much as
    the gate.
    """

    def __init__(self, body: bytes) -> None:
        self.status_code = 200
        self.body = body

    async def __call__(self, _scope: Message, _receive: Receive, send: Send) -> None:
        headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class DecisionApi:
    """The routes over one router. `request_s`: maximum seconds of one request."""

    def __init__(
        self, router: Router, telemetry: Telemetry, idle: IdleRuns, *, request_s: float
    ) -> None:
        self._router = router
        self._access = router.endpoint
        self._telemetry = telemetry
        self._idle = idle
        self._request_s = request_s
        self._document = openapi_document()
        self._reading = threading.Lock()
        self._reader: RunReader | None = None

    def routes(self) -> list[BaseRoute]:
        """Return the routes, each with the scope it needs."""
        run = "/v1/runs/{run_id}"
        table: list[tuple[str, str, Scope | None, Work]] = [
            ("POST", "/v1/route", "route", self._route),
            ("GET", "/v1/bundles", "route", self._bundles),
            ("GET", "/v1/runs", "review", self._runs),
            ("GET", run, "review", self._timeline),
            ("GET", f"{run}/tools", "call", self._tools),
            ("POST", f"{run}/call", "call", self._call),
            ("POST", f"{run}/missed", "call", self._missed),
            ("POST", f"{run}/close", "route", self._close),
            ("GET", f"{run}/artifacts/{{sha256}}", "call", self._artifact),
            ("GET", f"{run}/media/{{sha256}}", "call", self._media),
            ("GET", "/openapi.json", None, self._openapi),
        ]
        return [
            Route(
                path, GuardedRoute(partial(self._run_guarded, path, scope, work)), methods=[method]
            )
            for method, path, scope, work in table
        ]

    async def _run_guarded(
        self, route: str, needed: Scope | None, work: Work, request: Request
    ) -> Response:
        """Check the caller, then do the work within its time while the client waits.

        Turns errors into problems.
        """
        began = time.perf_counter()
        caller: Caller = request.scope["user"]
        try:
            if needed is not None and needed not in caller.scopes:
                raise RefusedRequest(missing_scope(needed, caller))
            response = await _while_waited_for(request, work, self._request_s)
        except RefusedRequest as refused:
            response = respond(refused.refusal)
        except RouterError as error:
            is_unknown = isinstance(error, UnknownRun) and caller.principal
            refusal = NO_SUCH_RUN if is_unknown else problem_of(error)
            if refusal.status >= 500:
                self._access.report("error", "request.failed", route=route, error=error)
            response = respond(refusal)
        except Exception as defect:  # noqa: BLE001 - the boundary: a defect of ours is a sentence, its text is for the log
            self._access.report("error", "request.failed", route=route, error=defect)
            response = respond(INTERNAL)
        self._telemetry.answered(
            route, response.status_code, caller.name, time.perf_counter() - began
        )
        return response

    # --- what is asked ----------------------------------------------------------------------------

    async def _route(self, request: Request) -> Response:
        body = _body(request, route_body(request.scope["body"]))
        step, messages = step_and_messages(body, _key(request, body.key))
        caller: Caller = request.scope["user"]
        if caller.principal:
            if step.principal not in ("", caller.principal):
                raise RefusedRequest(OTHER_PRINCIPAL)
            step = step.model_copy(update={"principal": caller.principal})
            for run_id in (step.run_id, step.parent_run_id):
                if run_id is not None:
                    await self._refuse_foreign(caller, run_id, may_be_new=run_id == step.run_id)
        with self._idle.use(step.run_id):
            routing = self._router.route(step, messages=messages)
            decision = await self._telemetry.decision(routing, _traceparent(request))
        return JsonBytes(_DECISION.dump_json(decision))

    async def _tools(self, request: Request) -> Response:
        run_id = await self._run(request)
        query = _query(request, ToolsQuery)
        with self._idle.use(run_id):
            toolset = await self._router.tools(
                run_id, format=query.format, native=query.native, decision=query.decision
            )
        etag = f'"{toolset.digest}"'
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={"etag": etag})
        return JSONResponse(
            toolset.to_json(), headers={"etag": etag, "cache-control": "private, no-cache"}
        )

    async def _call(self, request: Request) -> Response:
        run_id = await self._run(request)
        body = _body(request, CallBody)
        with self._idle.use(run_id):
            calling = self._router.call(
                run_id, body.tool, body.arguments, decision=body.decision, key=_key(request, "")
            )
            result = await self._telemetry.call(run_id, body.tool, calling, _traceparent(request))
        return JSONResponse(result.to_json())

    async def _missed(self, request: Request) -> Response:
        run_id = await self._run(request)
        body = _body(request, MissedBody)
        with self._idle.use(run_id):
            result = await self._router.missed(run_id, body.tool, decision=body.decision)
        return JSONResponse(result.to_json())

    async def _close(self, request: Request) -> Response:
        run_id = await self._run(request)
        _query(request, EmptyQuery)
        end = await self._router.close_run(run_id)
        self._idle.forget(run_id)
        return JSONResponse(asdict(end))

    async def _artifact(self, request: Request) -> Response:
        run_id = await self._run(request)
        _query(request, EmptyQuery)
        data, mime_type = await self._access.artifact(run_id, f"artifact:sha256:{_sha256(request)}")
        is_image = mime_type in IMAGES
        headers = {**PRIVATE, "content-disposition": "inline" if is_image else "attachment"}
        return Response(
            data, media_type=mime_type if is_image else "application/octet-stream", headers=headers
        )

    async def _media(self, request: Request) -> Response:
        run_id = await self._run(request)
        query = _query(request, MediaQuery)
        uri = f"artifact:sha256:{_sha256(request)}"
        media = self._router.media(
            run_id, uri, format=query.format, link=query.link, decision=query.decision
        )
        return JSONResponse(await media)

    async def _bundles(self, request: Request) -> Response:
        _query(request, EmptyQuery)
        catalog = self._router.catalog
        rows = [asdict(catalog.bundles[id_]) for id_ in sorted(catalog.bundles)]
        return JSONResponse({"revision": catalog.revision, "bundles": rows})

    async def _runs(self, request: Request) -> Response:
        filters = {name: [str(value)] for name, value in _query(request, RunsQuery)}
        if request.scope["user"].principal:
            raise RefusedRequest(OTHER_PRINCIPAL)
        return await self._read(lambda views: views.runs(filters))

    async def _timeline(self, request: Request) -> Response:
        run_id = await self._run(request)
        start = _query(request, TimelineQuery).start
        return await self._read(lambda views: views.run(run_id, {"from": [str(start)]}))

    async def _read(self, view: Callable[[PageViews], PageContent]) -> Response:
        """Return the facts of a page as JSON."""
        from bundle_router.service.pages.rendering import json_text
        from bundle_router.service.pages.views import PageViews
        from bundle_router.workbench.run_reader import open_reader

        def read() -> bytes:
            with self._reading:
                if self._reader is None:
                    runs, store = self._access.runs_place
                    self._reader = open_reader(runs, store=store)
            self._reader.refresh(now=True)
            return json_text(view(PageViews(self._reader)).json).encode()

        return JsonBytes(await asyncio.to_thread(read))

    def close(self) -> None:
        """Close the run reader, if it was opened."""
        if self._reader is not None:
            self._reader.close()

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(self._document)

    # --- whose it is ------------------------------------------------------------------------------

    async def _run(self, request: Request) -> str:
        """Return the run in the path, if the caller may access it."""
        run_id = str(request.path_params["run_id"])
        if RUN_ID.fullmatch(run_id) is None:
            raise RefusedRequest(NO_SUCH_RUN)
        await self._refuse_foreign(request.scope["user"], run_id)
        return run_id

    async def _refuse_foreign(
        self, caller: Caller, run_id: str, *, may_be_new: bool = False
    ) -> None:
        """Refuse a run of another principal as if it did not exist.

        So is a damaged one, of which nobody knows whose it was.
        """
        if not caller.principal:
            return
        try:
            principal = await self._access.principal(run_id)
        except UnknownRun:
            if may_be_new:
                return
            raise
        except CorruptRun as error:
            self._access.report("error", "request.failed", error=error)
            raise RefusedRequest(NO_SUCH_RUN) from None
        if principal != caller.principal:
            raise RefusedRequest(NO_SUCH_RUN)


def respond(refusal: Refusal) -> Response:
    """Return a refusal as problem details."""
    headers = {name.decode(): value.decode() for name, value in refusal.headers}
    return JSONResponse(refusal.to_json(), refusal.status, headers, "application/problem+json")


def _body(request: Request, model: type[Body]) -> Body:
    if not is_json(request.scope["headers"]):
        raise RefusedRequest(UNSUPPORTED)
    if request.scope["query_string"]:
        _query(request, EmptyQuery)
    try:
        return model.model_validate_json(request.scope["body"])
    except ValidationError as wrong:
        raise RefusedRequest(invalid(wrong)) from None


def _traceparent(request: Request) -> str | None:
    values = values_of(request.scope["headers"], b"traceparent")
    return values[0].decode("latin-1") if values else None


def _query(request: Request, model: type[Body]) -> Body:
    if not request.scope["query_string"]:
        return model()
    pairs = request.query_params.multi_items()
    values = dict(pairs)
    if len(values) < len(pairs):
        raise RefusedRequest(
            Refusal(422, "invalid", "The query names a parameter twice.", advice="name each once")
        )
    try:
        return model.model_validate(values)
    except ValidationError as wrong:
        raise RefusedRequest(invalid(wrong)) from None


def _key(request: Request, in_body: str) -> str:
    """Return the key in the header, quoted or not, else the key in the body."""
    keys = values_of(request.scope["headers"], b"idempotency-key")
    if not keys:
        return in_body
    key_text = keys[0].decode("latin-1")
    key = key_text.strip('"')
    if len(keys) > 1 or _KEY.fullmatch(key_text) is None:
        sentence = "Idempotency-Key is one text of 1 to 200 visible characters, in quotes or not."
        raise RefusedRequest(Refusal(400, "malformed", sentence, advice="send one such header"))
    if in_body not in ("", key):
        sentence = "The body's key is not that of the header Idempotency-Key."
        raise RefusedRequest(Refusal(400, "refused", sentence, advice="send the header alone"))
    return key


def _sha256(request: Request) -> str:
    sha256 = str(request.path_params["sha256"])
    if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise RefusedRequest(NO_ARTIFACT)
    return sha256


async def _while_waited_for(request: Request, work: Work, within_s: float) -> Response:
    """Do the work, but cancel it if it takes too long or the client disconnects.

    Work that never waits is not watched.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    watching: list[asyncio.Task[None]] = []
    refusals: list[Refusal] = []

    async def watch() -> None:
        try:
            async with asyncio.timeout(within_s):
                while (await request.receive())["type"] != "http.disconnect":
                    pass
            refusals.append(GONE)
        except TimeoutError:
            refusals.append(TIMED_OUT)
        assert task is not None  # noqa: S101 - ASGI servers run applications in tasks
        task.cancel()

    begin = loop.call_soon(lambda: watching.append(loop.create_task(watch())))
    try:
        return await work(request)
    except asyncio.CancelledError:
        if not refusals or task is None:
            raise
        task.uncancel()
        return respond(refusals[0])
    finally:
        begin.cancel()
        for each in watching:
            each.cancel()
