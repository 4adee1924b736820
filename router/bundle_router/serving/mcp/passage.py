"""What servers pass on besides their tools, as requests of the endpoint: resources, prompts, completion, log levels.

Rules:
1. A method is unknown where nothing of the kind is passed on in this run now; capabilities say the same.
2. A server's answer goes out as it came, but for what the protocol itself keeps in `_meta` (its name), and how long it
   may be kept: here it is the endpoint that answers. What the protocol has no form for is an error, or, of a tool, the
   text that a model would be shown; of a list it costs the row alone.
3. The run's own artifacts, which links in results name, can be read whatever is passed on. They are listed nowhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import mcp_types as types
from mcp.server.connection import Connection
from mcp.shared.exceptions import MCPError
from mcp_types import methods
from pydantic import ValidationError

from bundle_router.core.catalog import Feature
from bundle_router.core.tools.artifact_handles import PREFIX
from bundle_router.core.tools.transport.pass_through import Client, ServerReply
from bundle_router.engine.relay import LISTS
from bundle_router.engine.results import Result
from bundle_router.serving.mcp.client import Context, ask_in_rounds, client_of, set_level
from bundle_router.serving.mcp.following import FollowedResources

Json = dict[str, Any]
Asked = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Awaits work of the router's; a JSON-RPC error where that fails."""
_PARAMS: Final[Mapping[str, tuple[Feature, type[types.RequestParams]]]] = {
    "resources/list": ("resources", types.PaginatedRequestParams),
    "resources/templates/list": ("resources", types.PaginatedRequestParams),
    "resources/read": ("resources", types.ReadResourceRequestParams),
    "prompts/list": ("prompts", types.PaginatedRequestParams),
    "prompts/get": ("prompts", types.GetPromptRequestParams),
    "completion/complete": ("completion", types.CompleteRequestParams),
}
_RESULTS: Final[Mapping[str, type[types.Result]]] = {
    "tools/call": types.CallToolResult,
    "resources/list": types.ListResourcesResult,
    "resources/templates/list": types.ListResourceTemplatesResult,
    "resources/read": types.ReadResourceResult,
    "prompts/list": types.ListPromptsResult,
    "prompts/get": types.GetPromptResult,
    "completion/complete": types.CompleteResult,
}
_OWN: Final = ("_meta", "inputResponses", "requestState")
"""Params that are not the request's own: they go another way, or nowhere."""
_PROTOCOL: Final = types.SERVER_INFO_META_KEY.rpartition("/")[0] + "/"
_FRESHNESS: Final = ("ttlMs", "cacheScope")
"""How long, and for whom, a client may keep an answer: the endpoint says so itself, as who may have it is decided here
each time anew."""


class ServerRun(Protocol):
    """What a server, and its handlers, ask of their run."""

    @property
    def guidance(self) -> str: ...

    async def tools(self) -> Sequence[Json]: ...

    def schema(self, name: str) -> Mapping[str, Any] | None: ...

    async def call(self, name: str, arguments: Mapping[str, Any], *, client: Client | None) -> Result: ...

    async def content(self, result: Result, revision: str) -> list[Json]: ...

    def report(self, defect: Exception) -> None: ...

    @property
    def listen_to_log(self) -> Callable[[], None]: ...

    @property
    def features(self) -> frozenset[Feature]: ...

    async def ask(self, method: str, params: Mapping[str, Any], client: Client) -> ServerReply: ...

    async def artifact(self, uri: str) -> Json: ...

    async def follow(self, uri: str, updated: Callable[[], None]) -> Callable[[], None] | ServerReply: ...


def handlers(
    run: ServerRun, asked: Asked, following: FollowedResources
) -> dict[str, tuple[type[types.RequestParams], Any]]:
    """Return the requests that have to do with what is passed on: the model of their params, and their handler, by
    method."""
    return {**_passed_on(run, asked), **_of_sessions(run, asked, following)}


def _passed_on(run: ServerRun, asked: Asked) -> dict[str, tuple[type[types.RequestParams], Any]]:
    def handler(method: str, feature: Feature) -> Any:
        async def handle(context: Context, _params: Any) -> Json:
            uri = (context.params or {}).get("uri")
            if method == "resources/read" and isinstance(uri, str) and uri.startswith(PREFIX):
                return {"resultType": "complete", "contents": [await asked(run.artifact(uri))]}
            _require(run, feature)
            params = {name: value for name, value in (context.params or {}).items() if name not in _OWN}
            if method.endswith("/list") and params.get("cursor") is not None:
                raise MCPError(types.INVALID_PARAMS, "This list has one page: leave the cursor out.")

            async def ask(client: Client) -> ServerReply:
                answer: ServerReply = await asked(run.ask(method, params, client))
                return answer

            async with client_of(context) as client:
                sent = as_sent(await ask_in_rounds(context, client, ask, lambda answer: answer))
            return _well_formed(method, context.protocol_version, sent)

        return handle

    return {method: (model, handler(method, feature)) for method, (feature, model) in _PARAMS.items()}


def _of_sessions(
    run: ServerRun, asked: Asked, following: FollowedResources
) -> dict[str, tuple[type[types.RequestParams], Any]]:
    """Return what only the handshake era has: a session's log level, and the resources it follows."""

    async def level(context: Context, params: types.SetLevelRequestParams) -> Json:
        _require(run, "logging")
        set_level(context, params.level)
        return {}

    async def subscribe(context: Context, params: types.SubscribeRequestParams) -> Json:
        _require(run, "resources")
        uri, mine = str(params.uri), followed_resources(context.session._connection)
        if uri in mine:
            return {}
        mine.add(uri)
        try:
            refusal = await asked(following.add(uri))
            if refusal is not None:
                as_sent(refusal)
        except BaseException:
            mine.discard(uri)
            raise
        context.session._connection.exit_stack.callback(lambda: following.drop(dropped_uris(mine, uri)))
        return {}

    async def unsubscribe(context: Context, params: types.UnsubscribeRequestParams) -> Json:
        _require(run, "resources")
        uri, mine = str(params.uri), followed_resources(context.session._connection)
        following.drop(dropped_uris(mine, uri))
        return {}

    return {
        "logging/setLevel": (types.SetLevelRequestParams, level),
        "resources/subscribe": (types.SubscribeRequestParams, subscribe),
        "resources/unsubscribe": (types.UnsubscribeRequestParams, unsubscribe),
    }


def followed_resources(connection: Connection) -> set[str]:
    """Return the resources that a session of the handshake era follows."""
    found: set[str] = connection.state.setdefault("followed", set())
    return found


def _require(run: ServerRun, feature: Feature) -> None:
    if feature not in run.features:
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found")


def dropped_uris(uris: set[str], uri: str) -> tuple[str, ...]:
    """Return the URI, if it was among these; it is not any more."""
    found = (uri,) if uri in uris else ()
    uris.discard(uri)
    return found


def narrow_capabilities(
    capabilities: types.ServerCapabilities, features: frozenset[Feature]
) -> types.ServerCapabilities:
    """Return the capabilities without those of which nothing is passed on."""
    kinds: dict[str, Feature] = {
        "resources": "resources",
        "prompts": "prompts",
        "completions": "completion",
        "logging": "logging",
    }
    changes: dict[str, Any] = {name: None for name, kind in kinds.items() if kind not in features}
    for name in ("prompts", "resources"):
        capability = getattr(capabilities, name)
        if name not in changes and capability is not None:
            changes[name] = capability.model_copy(update={"list_changed": True})
    return capabilities.model_copy(update=changes)


def as_sent(answer: ServerReply) -> Json:
    """Return the result to send. Raises MCPError with the server's own error, or with why there is no answer."""
    if answer.error is not None:
        raise MCPError(answer.error.code, answer.error.message, answer.error.data)
    if answer.result is None:
        raise MCPError(types.INTERNAL_ERROR, answer.text)
    meta = answer.result.get("_meta")
    own = {k: v for k, v in meta.items() if not str(k).startswith(_PROTOCOL)} if isinstance(meta, Mapping) else {}
    kept = {name: value for name, value in answer.result.items() if name not in _FRESHNESS}
    return {"resultType": "complete", **kept, "_meta": own}


def _well_formed(method: str, version: str, result: Json) -> Json:
    """Return what the protocol has a form for: a list without the rows that have none, as one of them would cost all
    the others. Raises MCPError for anything else that has none."""
    if has_form(method, version, result):
        return result
    if method not in LISTS:
        raise MCPError(types.INTERNAL_ERROR, "The server's answer is none that the protocol knows.")
    key = LISTS[method][0]
    return {**result, key: [row for row in result[key] if has_form(method, version, {**result, key: [row]})]}


def has_form(method: str, version: str, result: Mapping[str, Any]) -> bool:
    """Return whether the protocol has a form for the result."""
    whole = {"ttlMs": 0, "cacheScope": "private", **result}  # what the SDK adds where the form requires it
    try:
        if result.get("resultType") != "input_required":  # else a result without its contents would do
            _RESULTS[method].model_validate(whole, by_name=False)
        methods.serialize_server_result(method, version, whole)
    except ValidationError:
        return False
    return True
