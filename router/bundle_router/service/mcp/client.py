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
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import mcp_types as types
from mcp_types import methods
from pydantic import BaseModel, ValidationError

from bundle_router.core.servers.transport.pass_through import LOG, Ask, Client, ServerReply
from bundle_router.service.mcp.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    AnswerError,
    AnswerMessage,
    Json,
    notification_message,
    question_message,
)
from bundle_router.service.mcp.protocol import ClientRequest
from bundle_router.service.mcp.streams import AnswerStream

MAX_HEARD: Final = 256
"""Maximum notifications that wait for the client."""
MAX_ASKED: Final = 128
MAX_ROUNDS: Final = 8
MAX_AT_ONCE: Final = 16
ANSWER_S: Final = 300.0
_FORMS: Final[Mapping[str, tuple[type[BaseModel], type[BaseModel]]]] = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResultWithTools),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}
"""The questions that a client may be asked, and the type of each answer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A client's request while it is answered."""

    request: ClientRequest
    """The request."""
    stream: AnswerStream
    """Its answer, which may be a stream of messages."""

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client can do, in the protocol's form."""
        session = self.request.session
        if session is not None:
            return session.capabilities
        return capabilities_of(self.request.meta.get(types.CLIENT_CAPABILITIES_META_KEY))

    @property
    def log_level(self) -> str:
        """The lowest level of log lines that the client wants; empty: none."""
        session = self.request.session
        if session is not None:
            return session.log_level
        return str(self.request.meta.get(types.LOG_LEVEL_META_KEY) or "")

    async def notify(self, method: str, params: Json) -> None:
        """Send a notification, before the answer."""
        await self.stream.say(notification_message(method, params))

    async def ask(self, method: str, params: Json | None) -> Json:
        """Ask the client, and return its answer. Raises AnswerError, also where it refuses."""
        session = self.request.session
        if session is None:
            raise AnswerError(INVALID_REQUEST, "This revision asks its clients by results alone.")
        session.question_count += 1
        question = session.question_count
        answered: asyncio.Future[AnswerMessage] = asyncio.get_running_loop().create_future()

        def take(answer: AnswerMessage) -> None:
            if not answered.done():
                answered.set_result(answer)

        session.questions[str(question)] = take
        try:
            await self.stream.say(question_message(question, method, params))
            async with asyncio.timeout(ANSWER_S):
                answer = await answered
        except TimeoutError:
            await self.notify("notifications/cancelled", {"requestId": question})
            raise _unanswered(method) from None
        finally:
            del session.questions[str(question)]
        if answer.error is not None:
            raise answer.error
        return answer.result or {}


def capabilities_of(declared: Any) -> Mapping[str, Any]:
    """Return the capabilities that a client declared, as far as the protocol knows them."""
    try:
        model = types.ClientCapabilities.model_validate(declared, by_name=False)
    except ValidationError:
        return {}
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


@contextlib.asynccontextmanager
async def client_of(pending: PendingRequest) -> AsyncIterator[Client]:
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
            await _send_notification(pending, *notification)

    params = pending.request.params if pending.request.is_modern else {}
    telling = asyncio.create_task(tell(), name="mcp-telling")
    try:
        yield Client(
            capabilities=pending.capabilities,
            continuation={
                name: params[name] for name in ("inputResponses", "requestState") if name in params
            },
            log_level=pending.log_level,
            progress=pending.request.progress_token is not None,
            on_notification=take_notification,
            ask=None if pending.request.is_modern else _ask_of(pending, loop),
        )
        loop.call_soon(waiting.put_nowait, None)  # behind the notifications that were handed over
        await asyncio.wait((telling,))
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _send_notification(
    pending: PendingRequest, method: str, params: Mapping[str, Any]
) -> None:
    if method == LOG:
        line = types.LoggingMessageNotificationParams.model_validate(params)
        await pending.notify(method, line.model_dump(by_alias=True, mode="json", exclude_none=True))
        return
    progress: Json = {
        "progressToken": pending.request.progress_token,
        "progress": params["progress"],
    }
    for name in ("total", "message"):
        if params.get(name) is not None:
            progress[name] = params[name]
    await pending.notify("notifications/progress", progress)


def _ask_of(pending: PendingRequest, loop: asyncio.AbstractEventLoop) -> Ask:
    """Return a function that asks the request's client for input, from any event loop."""
    question_count = 0

    async def ask(request: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal question_count
        question_count += 1
        if question_count > MAX_ASKED:
            raise AnswerError(
                INVALID_REQUEST,
                f"{MAX_ASKED} questions were asked in one request, which is the limit.",
            )
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(input_from(pending, request), loop)
        )

    return ask


async def input_from(pending: PendingRequest, question: Any) -> Json:
    """Ask the client for input during its request, and return its answer. Raises AnswerError."""
    method = question["method"]
    request_form, answer_form = _FORMS[method]
    try:
        request = request_form.model_validate({"params": {}, **question})
        asked = request.model_dump(by_alias=True, mode="json", exclude_none=True)
        answer = await pending.ask(method, asked.get("params"))
        with contextlib.suppress(KeyError):  # this revision has no such question
            methods.validate_client_result(method, pending.request.version, answer)
        return answer_form.model_validate(answer, by_name=False).model_dump(
            by_alias=True, mode="json", exclude_none=True
        )
    except ValidationError:
        raise _unanswered(method) from None


def _unanswered(method: str) -> AnswerError:
    return AnswerError(
        INTERNAL_ERROR, f"The client did not answer {method} in the form of the protocol."
    )


async def ask_in_rounds(
    pending: PendingRequest,
    client: Client,
    ask: Callable[[Client], Awaitable[T]],
    answer_of: Callable[[T], ServerReply | None],
) -> T:
    """Ask the server until it needs no more input from the client, and return its answer.

    In the modern era the client itself repeats the request. Raises AnswerError if a round fails.
    """
    is_modern = pending.request.is_modern
    for _ in range(MAX_ROUNDS):
        outcome = await ask(client)
        answer = answer_of(outcome)
        if answer is None or answer.result is None or not answer.wants_input or is_modern:
            return outcome
        client = replace(client, continuation=await _answers_of(pending, answer.result))
    raise AnswerError(
        INTERNAL_ERROR,
        f"The server asked for more input {MAX_ROUNDS} times, which is the limit.",
    )


async def _answers_of(pending: PendingRequest, result: Mapping[str, Any]) -> dict[str, Any]:
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
        raise AnswerError(INTERNAL_ERROR, question)
    answers: dict[str, Any] = {
        "inputResponses": {
            key: await input_from(pending, request) for key, request in requests.items()
        }
    }
    if result.get("requestState") is None:
        return answers
    return {**answers, "requestState": result["requestState"]}
