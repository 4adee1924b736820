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
from mcp_types import methods

from bundle_router.core.catalog import Feature
from bundle_router.core.results.artifact_handles import PREFIX
from bundle_router.core.servers.transport.pass_through import Client, ServerReply
from bundle_router.engine.relay import LISTS
from bundle_router.engine.results import Result
from bundle_router.service.mcp.client import PendingRequest, ask_in_rounds, client_of
from bundle_router.service.mcp.following import FollowedResources
from bundle_router.service.mcp.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    AnswerError,
    Json,
    write_json,
)
from bundle_router.service.mcp.sessions import ClientSession

Handler = Callable[[PendingRequest], Awaitable[Json]]
"""Answers a request, whose parameters fit the protocol. Raises AnswerError."""
ErrorTranslator = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Awaits work of the router, and turns its errors into JSON-RPC errors."""
_FEATURES: Final[Mapping[str, Feature]] = {
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "resources/read": "resources",
    "prompts/list": "prompts",
    "prompts/get": "prompts",
    "completion/complete": "completion",
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

    def mirrored_schema(self, name: str) -> Mapping[str, Any] | None: ...

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, client: Client | None
    ) -> Result: ...

    async def content(self, result: Result, revision: str) -> list[Json]: ...

    def report(self, defect: Exception) -> None: ...

    def warn_client(self, where: str) -> None: ...

    @property
    def features(self) -> frozenset[Feature]: ...

    async def ask(self, method: str, params: Mapping[str, Any], client: Client) -> ServerReply: ...

    async def artifact(self, uri: str) -> Json: ...

    async def follow(
        self, uri: str, updated: Callable[[], None]
    ) -> Callable[[], None] | ServerReply: ...


def handlers(
    run: ServerRun, translate: ErrorTranslator, following: FollowedResources
) -> dict[str, Handler]:
    """Return the handlers of requests for passed-on features, by method."""
    return {**_passed_on(run, translate), **_of_sessions(run, translate, following)}


def _passed_on(run: ServerRun, translate: ErrorTranslator) -> dict[str, Handler]:
    def handler(method: str, feature: Feature) -> Handler:
        async def handle(pending: PendingRequest) -> Json:
            uri = pending.request.params.get("uri")
            if method == "resources/read" and isinstance(uri, str) and uri.startswith(PREFIX):
                return {"resultType": "complete", "contents": [await translate(run.artifact(uri))]}
            _require(run, feature)
            params = {
                name: value for name, value in pending.request.params.items() if name not in _OWN
            }
            if method.endswith("/list") and params.get("cursor") is not None:
                raise AnswerError(INVALID_PARAMS, "This list has one page: leave the cursor out.")

            async def ask(client: Client) -> ServerReply:
                answer: ServerReply = await translate(run.ask(method, params, client))
                return answer

            async with client_of(pending) as client:
                sent = as_sent(await ask_in_rounds(pending, client, ask, lambda answer: answer))
            return _well_formed(method, pending.request.version, sent)

        return handle

    return {method: handler(method, feature) for method, feature in _FEATURES.items()}


def _of_sessions(
    run: ServerRun, translate: ErrorTranslator, following: FollowedResources
) -> dict[str, Handler]:
    """Return the handlers that only the handshake era has: a session's log level and resource
    subscriptions.
    """

    async def level(pending: PendingRequest) -> Json:
        _require(run, "logging")
        _session(pending).log_level = pending.request.params["level"]
        return {}

    async def subscribe(pending: PendingRequest) -> Json:
        _require(run, "resources")
        session = _session(pending)
        uri = pending.request.params["uri"]
        if uri in session.followed:
            return {}
        refusal = await translate(following.add(uri))
        if refusal is not None:
            as_sent(refusal)
        if uri in session.followed or session.is_ended:  # meanwhile
            following.drop([uri])
        else:
            session.followed.add(uri)
        return {}

    async def unsubscribe(pending: PendingRequest) -> Json:
        _require(run, "resources")
        followed = _session(pending).followed
        uri = pending.request.params["uri"]
        if uri in followed:
            followed.discard(uri)
            following.drop([uri])
        return {}

    return {
        "logging/setLevel": level,
        "resources/subscribe": subscribe,
        "resources/unsubscribe": unsubscribe,
    }


def _session(pending: PendingRequest) -> ClientSession:
    session = pending.request.session
    assert session is not None  # noqa: S101 - these methods exist in the handshake era alone
    return session


def _require(run: ServerRun, feature: Feature) -> None:
    if feature not in run.features:
        raise AnswerError(METHOD_NOT_FOUND, "Method not found")


def as_sent(answer: ServerReply) -> Json:
    """Return the result to send.

    Raises AnswerError with the server's own error, or why there is no answer.
    """
    if answer.error is not None:
        raise AnswerError(
            answer.error.code, answer.error.message, _writable_data(answer.error.data)
        )
    if answer.result is None:
        raise AnswerError(INTERNAL_ERROR, answer.text)
    meta = answer.result.get("_meta")
    if isinstance(meta, Mapping):
        extra = {k: v for k, v in meta.items() if not str(k).startswith(_PROTOCOL)}
    else:
        extra = {}
    result = {name: value for name, value in answer.result.items() if name not in _FRESHNESS}
    return {"resultType": "complete", **result, "_meta": extra}


def _writable_data(data: Any) -> Any:
    """Return an error's data, or None where they nest deeper than can be written."""
    try:
        write_json(data)
    except ValueError:
        return None
    return data


def _well_formed(method: str, version: str, result: Json) -> Json:
    """Return the result if it fits the protocol; of a list drop the rows that do not, as one would
    invalidate all. Raises AnswerError for any other misfit.
    """
    if has_form(method, version, result):
        return result
    if method not in LISTS:
        raise AnswerError(
            INTERNAL_ERROR, "The server's answer does not have a form of the protocol."
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
    except ValueError:  # a ValidationError, or values that nest deeper than can be written
        return False
    return True
