"""Requests for what servers pass on besides tools: resources, prompts, completion, log levels.

Rules:
1. A method is unknown if this run now passes on nothing of its kind; the capabilities agree.
2. A server's answer is sent unchanged, except for the protocol's own fields in `_meta` (the
   server's name) and the cache lifetime, which the endpoint sets. An answer that does not fit the
   protocol is an error; a tool's becomes the text that a model would see; of a list only the
   invalid row is dropped.
3. The run's own artifacts, to which results link, can always be read. They are never listed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import mcp_types as types
from mcp.server.connection import Connection
from mcp.shared.exceptions import MCPError
from mcp_types import methods

from bundle_router.core.catalog import Feature
from bundle_router.core.results.artifact_handles import PREFIX
from bundle_router.core.servers.transport.pass_through import Client, ServerReply
from bundle_router.engine.relay import LISTS
from bundle_router.engine.results import Result
from bundle_router.service.mcp.client import Context, ask_in_rounds, client_of, set_level
from bundle_router.service.mcp.following import FollowedResources

Json = dict[str, Any]
ErrorTranslator = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Awaits work of the router, and turns its errors into JSON-RPC errors."""
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
"""Parameters that are not part of the request itself: they are passed separately or dropped."""
_PROTOCOL: Final = types.SERVER_INFO_META_KEY.rpartition("/")[0] + "/"
_FRESHNESS: Final = ("ttlMs", "cacheScope")
"""Fields that say how long, and for whom, a client may cache an answer.

The endpoint sets them, because it decides each time who may see the answer.
"""


class ServerRun(Protocol):
    """The run as its server and the handlers use it."""

    @property
    def guidance(self) -> str: ...

    async def tools(self) -> Sequence[Json]: ...

    def schema(self, name: str) -> Mapping[str, Any] | None: ...

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, client: Client | None
    ) -> Result: ...

    async def content(self, result: Result, revision: str) -> list[Json]: ...

    def report(self, defect: Exception) -> None: ...

    @property
    def listen_to_log(self) -> Callable[[], None]: ...

    @property
    def features(self) -> frozenset[Feature]: ...

    async def ask(self, method: str, params: Mapping[str, Any], client: Client) -> ServerReply: ...

    async def artifact(self, uri: str) -> Json: ...

    async def follow(
        self, uri: str, updated: Callable[[], None]
    ) -> Callable[[], None] | ServerReply: ...


def handlers(
    run: ServerRun, translate: ErrorTranslator, following: FollowedResources
) -> dict[str, tuple[type[types.RequestParams], Any]]:
    """Return the handlers of requests for passed-on features, by method: the model of the params,
    and the function.
    """
    return {**_passed_on(run, translate), **_of_sessions(run, translate, following)}


def _passed_on(
    run: ServerRun, translate: ErrorTranslator
) -> dict[str, tuple[type[types.RequestParams], Any]]:
    def handler(method: str, feature: Feature) -> Any:
        async def handle(context: Context, _params: Any) -> Json:
            uri = (context.params or {}).get("uri")
            if method == "resources/read" and isinstance(uri, str) and uri.startswith(PREFIX):
                return {"resultType": "complete", "contents": [await translate(run.artifact(uri))]}
            _require(run, feature)
            params = {
                name: value for name, value in (context.params or {}).items() if name not in _OWN
            }
            if method.endswith("/list") and params.get("cursor") is not None:
                raise MCPError(
                    types.INVALID_PARAMS, "This list has one page: leave the cursor out."
                )

            async def ask(client: Client) -> ServerReply:
                answer: ServerReply = await translate(run.ask(method, params, client))
                return answer

            async with client_of(context) as client:
                sent = as_sent(await ask_in_rounds(context, client, ask, lambda answer: answer))
            return _well_formed(method, context.protocol_version, sent)

        return handle

    return {
        method: (model, handler(method, feature)) for method, (feature, model) in _PARAMS.items()
    }


def _of_sessions(
    run: ServerRun, translate: ErrorTranslator, following: FollowedResources
) -> dict[str, tuple[type[types.RequestParams], Any]]:
    """Return the handlers that only the handshake era has: a session's log level and resource
    subscriptions.
    """

    async def level(context: Context, params: types.SetLevelRequestParams) -> Json:
        _require(run, "logging")
        set_level(context, params.level)
        return {}

    async def subscribe(context: Context, params: types.SubscribeRequestParams) -> Json:
        _require(run, "resources")
        uri = str(params.uri)
        followed = followed_resources(context.session._connection)
        if uri in followed:
            return {}
        followed.add(uri)
        try:
            refusal = await translate(following.add(uri))
            if refusal is not None:
                as_sent(refusal)
        except BaseException:
            followed.discard(uri)
            raise
        context.session._connection.exit_stack.callback(
            lambda: following.drop(dropped_uris(followed, uri))
        )
        return {}

    async def unsubscribe(context: Context, params: types.UnsubscribeRequestParams) -> Json:
        _require(run, "resources")
        following.drop(
            dropped_uris(followed_resources(context.session._connection), str(params.uri))
        )
        return {}

    return {
        "logging/setLevel": (types.SetLevelRequestParams, level),
        "resources/subscribe": (types.SubscribeRequestParams, subscribe),
        "resources/unsubscribe": (types.UnsubscribeRequestParams, unsubscribe),
    }


def followed_resources(connection: Connection) -> set[str]:
    """Return the resources that a session of the handshake era subscribes to."""
    uris: set[str] = connection.state.setdefault("followed", set())
    return uris


def _require(run: ServerRun, feature: Feature) -> None:
    if feature not in run.features:
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found")


def dropped_uris(uris: set[str], uri: str) -> tuple[str, ...]:
    """Remove the URI from the set; return it if it was there."""
    dropped = (uri,) if uri in uris else ()
    uris.discard(uri)
    return dropped


def narrow_capabilities(
    capabilities: types.ServerCapabilities, features: frozenset[Feature]
) -> types.ServerCapabilities:
    """Return the capabilities without those that nothing is passed on for."""
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
    """Return the result to send.

    Raises MCPError with the server's own error, or why there is no answer.
    """
    if answer.error is not None:
        raise MCPError(answer.error.code, answer.error.message, _writable_data(answer.error.data))
    if answer.result is None:
        raise MCPError(types.INTERNAL_ERROR, answer.text)
    meta = answer.result.get("_meta")
    if isinstance(meta, Mapping):
        extra = {k: v for k, v in meta.items() if not str(k).startswith(_PROTOCOL)}
    else:
        extra = {}
    result = {name: value for name, value in answer.result.items() if name not in _FRESHNESS}
    return {"resultType": "complete", **result, "_meta": extra}


def _writable_data(data: Any) -> Any:
    """Return an error's data, or None where they nest deeper than the SDK can write."""
    try:
        types.ErrorData(code=0, message="", data=data).model_dump(mode="json")
    except ValueError:
        return None
    return data


def _well_formed(method: str, version: str, result: Json) -> Json:
    """Return the result if it fits the protocol; of a list drop the rows that do not, as one would
    invalidate all. Raises MCPError for any other misfit.
    """
    if has_form(method, version, result):
        return result
    if method not in LISTS:
        raise MCPError(
            types.INTERNAL_ERROR, "The server's answer does not have a form of the protocol."
        )
    key = LISTS[method][0]
    return {
        **result,
        key: [row for row in result[key] if has_form(method, version, {**result, key: [row]})],
    }


def has_form(method: str, version: str, result: Mapping[str, Any]) -> bool:
    """Return whether the result fits the protocol's model of it."""
    with_fields = {
        "ttlMs": 0,
        "cacheScope": "private",
        **result,
    }  # the SDK adds these fields where they are required
    try:
        if (
            result.get("resultType") != "input_required"
        ):  # else a result without contents would be valid
            _RESULTS[method].model_validate(with_fields, by_name=False)
        methods.serialize_server_result(method, version, with_fields)
    except ValueError:  # a ValidationError, or values that nest deeper than the SDK can write
        return False
    return True
