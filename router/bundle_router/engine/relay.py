"""Passes on what a server has besides tools to an agent's client: resources, prompts and
completions.

Rules:
1. A server is passed on only if its entry says so, it is trusted, and the run's current decision
   exposes a tool of it that may be called now. The verdict and the fresh facts are those of a call.
2. A request goes to one server. A prompt's name says which, as a tool's does. A resource belongs to
   the first server, by name, that lists it or has a template that fits it.
3. Lists are joined in the order of the servers' names, bounded, on one page. A prompt whose name
   would lead to another server is left out. A server that fails loses only its own rows.
4. Each read, prompt and completion is recorded in one line when it is over, failures and refusals
   for want of budget included; it counts in the step's budget like a call. Media become artifacts
   of the run. A list is recorded with the names in it, one record a server; repeating it is no
   loop. A request that no server owns leaves no record.
5. An answer is passed on as it came, or not at all where it is too large; the record says what it
   held.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from bundle_router.core.catalog import Feature, Server
from bundle_router.core.records.call_records import RequestPassed
from bundle_router.core.results.shaping import ShapedResult, shape
from bundle_router.core.servers.transport.blocks import blocks_of
from bundle_router.core.servers.transport.pass_through import (
    CHANGED,
    MAX_PASSED_BYTES,
    Client,
    ServerError,
    ServerReply,
    narrow_client,
    passes,
)
from bundle_router.core.values import Outcome, Text
from bundle_router.core.values.artifacts import Artifact
from bundle_router.core.values.canonical import encode, time_text
from bundle_router.engine.engine_ports import CallPorts
from bundle_router.engine.made_calls import ended_by, may_pass, shape_blocks, store
from bundle_router.engine.reservations import reserve
from bundle_router.engine.surface import RunState
from bundle_router.errors import ToolFailure
from bundle_router.ports import ToolServers

FEATURES: Final[Mapping[str, Feature]] = {
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "resources/read": "resources",
    "prompts/list": "prompts",
    "prompts/get": "prompts",
    "completion/complete": "completion",
}
LISTS: Final[Mapping[str, tuple[str, str]]] = {
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
    "prompts/list": ("prompts", "name"),
}
"""For each list: the key of its rows, and the key that identifies a row."""
MAX_PAGES: Final = 50
MAX_ROWS: Final = 5_000
MAX_BLOCKS: Final = 1_000
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PassthroughServers:
    """The servers that are passed on under a run's present state, in the order of their names."""

    servers: tuple[Server, ...]

    def of(self, feature: Feature) -> tuple[Server, ...]:
        return tuple(server for server in self.servers if passes(server, feature))

    @property
    def features(self) -> frozenset[Feature]:
        return frozenset(feature for server in self.servers for feature in server.pass_through)


def passed_through(state: RunState) -> PassthroughServers:
    """Return the servers of the exposed tools that the config lets pass on anything."""
    candidates = []
    for server in state.catalog.servers.values():
        if server.pass_through and server.trust == "trusted":
            candidates.append(server)
    if not candidates:
        return PassthroughServers(())

    exposing = {tool.partition(".")[0] for tool in state.exposed()}
    candidates.sort(key=lambda server: server.name)
    return PassthroughServers(tuple(server for server in candidates if server.name in exposing))


@dataclass(frozen=True, slots=True)
class RelayedRequest:
    """One request to pass on: its run, decision and client.

    `made`: receives what counts as being passed on until its record.
    """

    at: CallPorts
    servers: ToolServers | None
    state: RunState
    client: Client
    made: list[object] = field(default_factory=list)

    async def carry_out(self, method: str, params: Mapping[str, Any]) -> ServerReply:
        """Return the answer for the client."""
        feature = FEATURES.get(method)
        if feature is not None and self.servers is not None:
            servers = passed_through(self.state).of(feature)
        else:
            servers = ()
        if not servers:
            return _error(METHOD_NOT_FOUND, "Method not found")
        if method in LISTS:
            return await self._join_lists(servers, method)
        addressee = await self._find_addressee(servers, method, params)
        if isinstance(addressee, ServerError):
            return ServerReply(error=addressee)
        return await self._recorded(*addressee, method)

    async def follow(
        self, uri: str, updated: Callable[[], None]
    ) -> Callable[[], None] | ServerReply:
        """Call `updated`, from any thread, when the resource changes.

        Return what ends this, or the error.
        """
        if self.servers is not None:
            servers = passed_through(self.state).of(CHANGED.get(uri, "resources"))
        else:
            servers = ()
        if uri in CHANGED and self.servers is not None:
            return await self._follow_lists(servers, uri, updated)
        owner = await self._owner(servers, uri) if servers else None
        if owner is None or self.servers is None:
            return ServerReply(
                error=ServerError(INVALID_PARAMS, "Resource not found", {"uri": uri})
            )
        request = self._request(owner, {"uri": uri}, "resources/subscribe")
        if (over := await self._over_budget(request)) is not None:
            return over
        try:
            end = await self.servers.follow(owner.name, uri, updated, scope=self.state.scope)
            answer = ServerReply({})
        except ToolFailure as failure:
            end = None
            answer = ServerReply(outcome="unavailable", code=failure.code, text=failure.message)
        try:
            await self._record(request, answer, *await self._shape_answer(answer))
        except BaseException:  # what leaves no record is not to go on either
            if end is not None:
                end()
            raise
        return answer if end is None else end

    async def _follow_lists(
        self, servers: Sequence[Server], method: str, updated: Callable[[], None]
    ) -> Callable[[], None]:
        """Call `updated` when a list of one of the servers changes; skip a server that fails.

        Nothing is recorded.
        """
        assert self.servers is not None  # noqa: S101 - `follow` saw to it
        ends = contextlib.ExitStack()
        for server in servers:
            with contextlib.suppress(ToolFailure):
                ends.callback(
                    await self.servers.follow(server.name, method, updated, scope=self.state.scope)
                )
        return ends.close

    # --- lists ------------------------------------------------------------------------------------

    async def _join_lists(self, servers: Sequence[Server], method: str) -> ServerReply:
        """Return the servers' lists as one."""
        requests = [self._request(server, {}, method) for server in servers]
        for request in requests:
            if (over := await self._over_budget(request)) is not None:
                return over
        key, id_ = LISTS[method]
        rows: list[Row] = []
        for server, request, (listed, answer) in zip(
            servers, requests, await self._lists(servers, method), strict=True
        ):
            rows += _name_prompts(servers, server, listed) if method == "prompts/list" else listed
            if answer.result is not None:
                reply = ServerReply({key: [row[id_] for row in listed]})
            else:
                reply = answer
            await self._record(request, reply, *await self._shape_answer(reply))
        answer = ServerReply({"resultType": "complete", LISTS[method][0]: rows[:MAX_ROWS]})
        if await may_pass(self.at.ports, answer):
            return answer
        return _error(INTERNAL_ERROR, f"The list has more than {MAX_PASSED_BYTES:,} bytes.")

    async def _lists(
        self, servers: Iterable[Server], method: str
    ) -> list[tuple[list[Row], ServerReply]]:
        return await asyncio.gather(*(self._rows(server, method) for server in servers))

    async def _rows(self, server: Server, method: str) -> tuple[list[Row], ServerReply]:
        """Return the rows of all pages of one server, without rows that have no identity; and its
        last answer.
        """
        key, id_ = LISTS[method]
        rows: list[Row] = []
        params: dict[str, Any] = {}
        until_s = asyncio.get_running_loop().time() + self._limit_s(server)
        for _ in range(MAX_PAGES):
            answer = await self._ask_server(server, params, method, until_s)
            page = answer.result or {}
            page_rows = page[key] if isinstance(page.get(key), list) else []
            rows += [
                row
                for row in page_rows
                if isinstance(row, Mapping) and isinstance(row.get(id_), str) and row[id_]
            ]
            cursor = page.get("nextCursor")
            is_last = (
                not isinstance(cursor, str)
                or cursor == params.get("cursor")
                or len(rows) >= MAX_ROWS
            )
            if is_last or not await may_pass(self.at.ports, ServerReply({key: rows})):
                break
            params = {"cursor": cursor}
        return rows, answer

    # --- whose it is ------------------------------------------------------------------------------

    async def _find_addressee(
        self, servers: Sequence[Server], method: str, params: Mapping[str, Any]
    ) -> tuple[Server, dict[str, Any]] | ServerError:
        """Return the server that a request is for, and the params under the server's own names."""
        if method == "prompts/get":
            return _prompt(servers, params)
        reference = params.get("ref") if method == "completion/complete" else params
        reference = reference if isinstance(reference, Mapping) else {}
        if reference.get("type") == "ref/prompt":
            addressee = _prompt(servers, reference)
            if isinstance(addressee, ServerError):
                return addressee
            return (addressee[0], {**params, "ref": addressee[1]})
        uri = str(reference.get("uri"))
        owner = await self._owner(servers, uri)
        if owner is None:
            return ServerError(INVALID_PARAMS, "Resource not found", {"uri": uri})
        return owner, dict(params)

    async def _owner(self, servers: Sequence[Server], uri: str) -> Server | None:
        """Return the server that has a resource or template.

        A single server is asked whatever it lists.
        """
        if len(servers) == 1:
            return servers[0]
        lists = await self._lists(servers, "resources/list")
        for server, (rows, _) in zip(servers, lists, strict=True):
            if uri in [row["uri"] for row in rows]:
                return server
        lists = await self._lists(servers, "resources/templates/list")
        for server, (rows, _) in zip(servers, lists, strict=True):
            templates = [row["uriTemplate"] for row in rows]
            if uri in templates or any(fits_template(uri, template) for template in templates):
                return server
        return None

    # --- asking -----------------------------------------------------------------------------------

    async def _ask_server(
        self, server: Server, params: Mapping[str, Any], method: str, until_s: float | None = None
    ) -> ServerReply:
        """Return the server's answer, within the time of a call or until a time on the loop's
        clock.
        """
        assert self.servers is not None  # noqa: S101 - `carry_out` saw to it
        if until_s is None:
            limit_s = self._limit_s(server)
        else:
            limit_s = until_s - asyncio.get_running_loop().time()
        scope = replace(self.state.scope, client=narrow_client(self.client, server))
        return await self.servers.ask(
            server.name, method, params, timeout_s=max(limit_s, 0.0), scope=scope
        )

    def _limit_s(self, server: Server) -> float:
        return server.timeout_s or self.state.catalog.settings.limits.call_timeout_s

    async def _recorded(
        self, server: Server, params: Mapping[str, Any], method: str
    ) -> ServerReply:
        request = self._request(server, params, method)
        if (over := await self._over_budget(request)) is not None:
            return over
        try:
            answer = await self._ask_server(server, params, method)
            shaped, stored = await self._shape_answer(answer)
        except BaseException as ended:
            outcome, code = ended_by(ended)
            end = request, ServerReply(outcome=outcome, code=code), ShapedResult.empty()
            if isinstance(ended, GeneratorExit):
                self.at.run.pending.leave(partial(self._append, *end, ()))
            else:
                await asyncio.shield(self._record(*end))
            raise
        await self._record(request, answer, shaped, stored)
        if await may_pass(self.at.ports, answer):
            return answer
        return _error(
            INTERNAL_ERROR,
            f"The answer of {server.name!r} has more than {MAX_PASSED_BYTES:,} bytes.",
        )

    def _request(self, server: Server, params: Mapping[str, Any], method: str) -> _Request:
        arguments = encode(self.at.ports.redactor.redact_value(dict(params)))
        return _Request(server.name, method, arguments, self.at.ports.clock.monotonic_ns())

    async def _shape_answer(self, answer: ServerReply) -> tuple[ShapedResult, tuple[Artifact, ...]]:
        """Return the answer in the form that is recorded."""
        max_chars = self.state.catalog.settings.limits.max_result_chars
        shaped = await shape_blocks(
            self.at.ports, max_chars, blocks_of(_as_result(answer), MAX_BLOCKS)
        )
        return shaped, await store(self.at.run, shaped.blobs)

    async def _over_budget(self, request: _Request) -> ServerReply | None:
        """Return the error where no budget is left for a request, and record it; None where there
        is budget.
        """
        self.made.append(request)
        refusal = await reserve(self.at, self.state, request.name, request.arguments, request)
        outcome: Outcome = "budget"
        if refusal is None and self.at.run.fold.ledger is not None:
            from bundle_router.engine.call_taints import taints_of_request

            judge = partial(taints_of_request, self.at, self.state, request.name)
            refusal = await self.at.run.under_lock(judge)
            outcome = "denied"
        if refusal is None:
            return None
        _, code, text = refusal
        shaped = shape(
            (Text(text),),
            self.state.catalog.settings.limits.max_result_chars,
            self.at.ports.describe,
        )
        await self._record(request, ServerReply(outcome=outcome, code=code), shaped)
        return _error(INTERNAL_ERROR, text)

    async def _record(
        self,
        request: _Request,
        answer: ServerReply,
        shaped: ShapedResult,
        stored: Sequence[Artifact] = (),
    ) -> None:
        await self.at.run.record(partial(self._append, request, answer, shaped, stored))

    def _append(
        self,
        request: _Request,
        answer: ServerReply,
        shaped: ShapedResult,
        stored: Sequence[Artifact],
        wait_s: float,
    ) -> None:
        """Append the record of a request. The caller holds the run's lock."""
        ports = self.at.ports
        run = self.at.run
        returns: tuple[str, ...] = ()
        if run.fold.ledger is not None and answer.outcome not in ("budget", "denied"):
            returns = tuple(sorted(self.state.catalog.statements.returns(request.name)))

        def record_of(call_id: str) -> RequestPassed:
            return RequestPassed(
                run_id=run.id,
                call_id=call_id,
                decision_id=self.state.decided.decision.decision_id,
                server=request.server,
                method=request.method,
                arguments=request.arguments,
                time=time_text(ports.clock.time_ns()),
                monotonic_ns=ports.clock.monotonic_ns(),
                outcome=answer.outcome,
                code="input_required" if answer.wants_input else answer.code,
                result=None if answer.outcome == "cancelled" else shaped.text,
                artifacts=tuple(stored),
                elapsed_ms=round((ports.clock.monotonic_ns() - request.started_ns) / 1e6, 3),
                original_bytes=shaped.original_bytes,
                returns=returns,
            )

        if returns and run.parent_id is not None:
            content = (request.name, "", frozenset(returns))
            self.at.tree.pass_taints(run, self.state.decided, content, wait_s)
        run.append_end(record_of, wait_s=wait_s)
        run.passing.pop(id(request), None)


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A request to one server, under the server's own names, as it is recorded."""

    server: str
    method: str
    arguments: str
    started_ns: int

    @property
    def name(self) -> str:
        return f"{self.server}.{self.method}"


def _as_result(answer: ServerReply) -> Mapping[str, Any]:
    """Return the answer as a tool's result has it, for the record: contents and prompts as
    blocks.
    """
    result = answer.result
    if result is None:
        return {"content": [{"type": "text", "text": answer.text}]}
    contents = result.get("contents")
    messages = result.get("messages")
    if isinstance(contents, list):
        return {"content": [{"type": "resource", "resource": content} for content in contents]}
    if isinstance(messages, list):
        return {
            "content": [
                message.get("content") for message in messages if isinstance(message, Mapping)
            ]
        }
    return {
        "structuredContent": {
            name: value for name, value in result.items() if name not in ("_meta", "resultType")
        }
    }


def _prompt(
    servers: Sequence[Server], named: Mapping[str, Any]
) -> tuple[Server, dict[str, Any]] | ServerError:
    """Return the server of a prompt, and the prompt's name there.

    Of several servers the longest name counts.
    """
    name = str(named.get("name"))
    with_prefix = [server for server in servers if server.prefix]
    for server in sorted(with_prefix, key=lambda server: -len(server.name)):
        server_prompt = name.removeprefix(f"{server.name}__")
        if server_prompt != name:
            return server, {**named, "name": server_prompt}
    bare = next((server for server in servers if not server.prefix), None)
    if bare is not None:
        return (bare, dict(named))
    return ServerError(INVALID_PARAMS, "Prompt not found", {"name": name})


def _name_prompts(servers: Sequence[Server], server: Server, listed: Iterable[Row]) -> list[Row]:
    """Return a server's prompts under names that lead back to it, without those that would lead to
    another server.
    """
    prefix = f"{server.name}__" if server.prefix else ""
    rows = [{**row, "name": f"{prefix}{row['name']}"} for row in listed]
    return [
        row
        for row in rows
        if not isinstance(to := _prompt(servers, row), ServerError) and to[0] is server
    ]


def _error(code: int, message: str) -> ServerReply:
    return ServerReply(error=ServerError(code, message))


MAX_TEMPLATE: Final = 2_000
_EXPRESSION: Final = re.compile(r"\{[^{}]*\}")


def fits_template(uri: str, template: str) -> bool:
    """Return whether a resource template (RFC 6570) covers the URI: the URI has the template's
    literal parts in order, from its start to its end, and each expression covers the shortest text
    up to the next literal. One pass.
    """
    first, *rest = _EXPRESSION.split(template[:MAX_TEMPLATE])
    if not rest or len(template) > MAX_TEMPLATE:
        return uri == template
    last = rest.pop()
    if not uri.startswith(first) or not uri.endswith(last) or len(uri) < len(first) + len(last):
        return False
    middle = uri[len(first) : len(uri) - len(last)]
    position = 0
    for literal in rest:
        start = middle.find(literal, position)
        if start < 0:
            return False
        position = start + len(literal)
    return True
