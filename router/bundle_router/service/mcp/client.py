"""The agent's client during one of its requests, and the notifications it receives meanwhile.

Rules:
1. A server's notifications reach the client before the answer does, in order. If the client is too
   slow, those beyond `MAX_HEARD` are dropped; the server is never blocked.
2. A client of the handshake era sets the log level once, for its session; one of the modern era
   with each request. No log lines are sent before that.
3. A client of the handshake era can be asked for input during its request, at most `MAX_ASKED`
   times. It does not know results that ask for input: the request is repeated with its answers, at
   most `MAX_ROUNDS` times. Its answers are passed to the server unchanged, and are never recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from bundle_router.core.servers.transport.pass_through import LOG, Ask, Client, ServerReply

MAX_HEARD: Final = 256
"""Maximum notifications that wait for the client."""
MAX_ASKED: Final = 128
MAX_ROUNDS: Final = 8
MAX_AT_ONCE: Final = 16
ANSWER_S: Final = 300.0
_LEVEL: Final = "log_level"
_FORMS: Final[Mapping[str, tuple[Any, type[BaseModel]]]] = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResultWithTools),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}
"""The questions that a client may be asked, and the type of each answer."""

Context = ServerRequestContext[Any, Any]
T = TypeVar("T")


def is_modern(context: Context) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def set_level(context: Context, level: str) -> None:
    """Set the log level of a session of the handshake era."""
    context.session._connection.state[_LEVEL] = level  # private; mcp is pinned below 3


def _level(context: Context) -> str:
    if is_modern(context):
        return str((context.meta or {}).get(types.LOG_LEVEL_META_KEY) or "")
    return str(context.session._connection.state.get(_LEVEL, ""))


@contextlib.asynccontextmanager
async def client_of(context: Context) -> AsyncIterator[Client]:
    """Yield the client of a request.

    At the end of the block all its notifications have been sent.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[str, Mapping[str, Any]] | None] = asyncio.Queue()

    def put(notification: tuple[str, Mapping[str, Any]]) -> None:
        if waiting.qsize() < MAX_HEARD:
            waiting.put_nowait(notification)

    def take_notification(method: str, params: Mapping[str, Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no listener left
            loop.call_soon_threadsafe(put, (method, params))

    async def tell() -> None:
        while (notification := await waiting.get()) is not None:
            await _send_notification(context, *notification)

    capabilities = context.session.client_capabilities
    params = context.params or {}
    telling = asyncio.create_task(tell(), name="mcp-telling")
    try:
        yield Client(
            capabilities=(
                capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
                if capabilities
                else {}
            ),
            continuation={
                name: params[name] for name in ("inputResponses", "requestState") if name in params
            },
            log_level=_level(context),
            progress=(context.meta or {}).get("progress_token") is not None,
            on_notification=take_notification,
            ask=None if is_modern(context) else _ask_of(context, loop),
        )
        waiting.put_nowait(None)
        await asyncio.wait((telling,))
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _send_notification(context: Context, method: str, params: Mapping[str, Any]) -> None:
    if method == LOG:
        line = types.LoggingMessageNotificationParams.model_validate(params)
        await context.session.send_notification(
            types.LoggingMessageNotification(params=line), related_request_id=context.request_id
        )
    else:
        await context.session.report_progress(
            params["progress"], params.get("total"), params.get("message")
        )


def _ask_of(context: Context, loop: asyncio.AbstractEventLoop) -> Ask:
    """Return a function that asks the request's client for input, from any event loop."""
    question_count = 0

    async def ask(request: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal question_count
        question_count += 1
        if question_count > MAX_ASKED:
            raise MCPError(
                types.INVALID_REQUEST,
                f"{MAX_ASKED} questions were asked in one request, which is the limit.",
            )
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(input_from(context, request), loop)
        )

    return ask


async def input_from(context: Context, question: Any) -> dict[str, Any]:
    """Ask the client for input during its request, and return its answer. Raises MCPError."""
    method = question["method"]
    request, form = _FORMS[method]
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await context.session.send_request(
                request.model_validate({"params": {}, **question}),
                form,
                metadata=ServerMessageMetadata(related_request_id=context.request_id),
            )
    except (ValidationError, TimeoutError):
        raise MCPError(
            types.INTERNAL_ERROR, f"The client did not answer {method} in the form of the protocol."
        ) from None
    return answer.model_dump(by_alias=True, mode="json", exclude_none=True)


async def ask_in_rounds(
    context: Context,
    client: Client,
    ask: Callable[[Client], Awaitable[T]],
    answer_of: Callable[[T], ServerReply | None],
) -> T:
    """Ask the server until it needs no more input from the client, and return its answer.

    In the modern era the client itself repeats the request. Raises MCPError if a round fails.
    """
    for _ in range(MAX_ROUNDS):
        outcome = await ask(client)
        answer = answer_of(outcome)
        if answer is None or answer.result is None or not answer.wants_input or is_modern(context):
            return outcome
        client = replace(client, continuation=await _answers_of(context, answer.result))
    raise MCPError(
        types.INTERNAL_ERROR,
        f"The server asked for more input {MAX_ROUNDS} times, which is the limit.",
    )


async def _answers_of(context: Context, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the client's answers to a result that asks for input, as parameters of the repeated
    request.
    """
    requests = result.get("inputRequests")
    requests = requests if isinstance(requests, Mapping) else {}
    if len(requests) > MAX_AT_ONCE:
        question = (
            f"The server asked {len(requests)} questions at once; at most {MAX_AT_ONCE} are"
            " passed on."
        )
        raise MCPError(types.INTERNAL_ERROR, question)
    answers: dict[str, Any] = {
        "inputResponses": {
            key: await input_from(context, request) for key, request in requests.items()
        }
    }
    if result.get("requestState") is None:
        return answers
    return {**answers, "requestState": result["requestState"]}
