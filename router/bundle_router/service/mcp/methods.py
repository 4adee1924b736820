"""The methods of a run that clients call: what each comes to.

Rules:
1. A method that the request's revision does not have, or this run has nothing for, is unknown.
   Parameters that do not fit the revision's schema are refused, before any work.
2. Every exception is named before it reaches the client: an error of the router in its words, a
   defect as ours, with its name in the router's log.
3. A list is encoded once per decision and revision, because it is requested far more often than it
   changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final, TypeVar

from mcp_types import methods as spec
from pydantic import ValidationError

from bundle_router.core.servers.transport.pass_through import Client
from bundle_router.engine.results import Result
from bundle_router.errors import RequestError, RouterError
from bundle_router.service.mcp.client import PendingRequest, ask_in_rounds, client_of
from bundle_router.service.mcp.following import FollowedResources
from bundle_router.service.mcp.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    AnswerError,
    Json,
    present_error,
    write_json,
)
from bundle_router.service.mcp.passage import Handler, ServerRun, as_sent, handlers, has_form
from bundle_router.service.mcp.protocol import ClientRequest
from bundle_router.service.mcp.result_forms import discover_result, initialize_result, result_for

T = TypeVar("T")
APPROVAL: Final = "bundle-router/approval"
"""The `_meta` key of a result that waits for somebody's word: the question, without arguments."""
_DEFECT: Final = "The router failed: this is a defect of it, named in its log."


class Methods:
    """The methods of one run.

    `listen` answers `subscriptions/listen`, and `open_session` `initialize`.
    """

    def __init__(
        self,
        run: ServerRun,
        following: FollowedResources,
        *,
        open_session: Handler,
        listen: Handler,
    ) -> None:
        self._run = run
        self._listed: Sequence[Json] | None = None
        self._encoded: dict[str, str] = {}
        self._handlers: dict[str, Handler] = {
            "initialize": open_session,
            "ping": _pong,
            "server/discover": self._discover,
            "tools/call": self._call_tool,
            "subscriptions/listen": listen,
            **handlers(run, self.answer_or_raise, following),
        }

    async def answer(self, pending: PendingRequest) -> str:
        """Return the result of a request, as JSON. Raises AnswerError."""
        request = pending.request
        check_params(request)
        try:
            if request.method == "tools/list":
                return await self._list_tools(request)
            handler = self._handlers.get(request.method)
            if handler is None:
                raise AnswerError(METHOD_NOT_FOUND, "Method not found", request.method)
            result = await handler(pending)
            return write_json(result_for(request.method, request.version, result))
        except AnswerError as error:
            raise (present_error(error) if request.is_modern else error) from None
        except Exception as defect:  # noqa: BLE001 - the boundary to the client (rule 2)
            self._run.report(defect)
            raise AnswerError(INTERNAL_ERROR, _DEFECT) from None

    def initialize_result(self, version: str) -> Json:
        """Return the result of `initialize`, for the negotiated revision."""
        return initialize_result(version, self._run.features, self._run.guidance)

    async def _discover(self, _pending: PendingRequest) -> Json:
        return discover_result(self._run.features, self._run.guidance)

    async def _list_tools(self, request: ClientRequest) -> str:
        if request.params.get("cursor") is not None:
            raise AnswerError(INVALID_PARAMS, "This list has one page: leave the cursor out.")
        tools = await self.answer_or_raise(self._run.tools())
        if self._listed is not tools:
            self._listed = tools
            self._encoded = {}
        encoded = self._encoded.get(request.version)
        if encoded is None:
            result = result_for("tools/list", request.version, {"tools": list(tools)})
            encoded = self._encoded[request.version] = write_json(result)
        return encoded

    async def _call_tool(self, pending: PendingRequest) -> Json:
        request = pending.request
        result = await self._call(pending)
        if result.answer is not None:
            sent = as_sent(result.answer)
            if has_form("tools/call", request.version, sent):
                return sent
        if result.artifacts or result.parts:
            content = await self.answer_or_raise(self._run.content(result, request.version))
        else:
            content = [{"type": "text", "text": result.text}]
        shown: Json = {"content": content, "isError": not result.ok}
        if result.approval is not None:
            shown["_meta"] = {APPROVAL: result.approval.to_json()}
        return shown

    async def _call(self, pending: PendingRequest) -> Result:
        name = pending.request.params["name"]
        arguments = pending.request.params.get("arguments") or {}
        if "results" not in self._run.features:
            return await self._call_run(name, arguments, None)
        async with client_of(pending) as client:
            ask = partial(self._call_run, name, arguments)
            return await ask_in_rounds(pending, client, ask, lambda result: result.answer)

    def _call_run(self, name: str, arguments: Json, client: Client | None) -> Awaitable[Result]:
        return self.answer_or_raise(self._run.call(name, arguments, client=client))

    async def answer_or_raise(self, work: Awaitable[T]) -> T:
        """Return the result of the work; turn its errors into JSON-RPC errors with a sentence."""
        try:
            return await work
        except RouterError as error:
            sentence = f"{error.message} ({error.advice})" if error.advice else error.message
            code = INVALID_REQUEST if isinstance(error, RequestError) else INTERNAL_ERROR
            raise AnswerError(code, sentence) from None
        except AnswerError:
            raise
        except Exception as defect:  # noqa: BLE001 - the boundary to the client (rule 2)
            self._run.report(defect)
            raise AnswerError(INTERNAL_ERROR, _DEFECT) from None


async def _pong(_pending: PendingRequest) -> Json:
    return {}


def check_params(request: ClientRequest) -> None:
    """Raise AnswerError for parameters that are not those of the method in this revision, or a
    method that it does not have.
    """
    if request.method not in spec.SPEC_CLIENT_METHODS:
        return
    try:
        spec.validate_client_request(request.method, request.version, request.params)
    except KeyError:
        raise AnswerError(METHOD_NOT_FOUND, "Method not found", request.method) from None
    except (ValidationError, RecursionError):
        raise AnswerError(INVALID_PARAMS, "Invalid request parameters", "") from None


def check_notification(method: str, version: str, params: Json) -> bool:
    """Return whether a notification is one of the revision, with parameters that fit it.

    Raises AnswerError for parameters that do not fit.
    """
    if method not in spec.SPEC_CLIENT_NOTIFICATION_METHODS:
        return False
    try:
        spec.validate_client_notification(method, version, params)
    except KeyError:
        return False
    except (ValidationError, RecursionError):
        raise AnswerError(INVALID_PARAMS, "Invalid notification parameters") from None
    return True
