"""The `ModelClient` over litellm and instructor.

Rules:
1. One `complete` is one request on the wire (see `wire`). litellm may not retry, instructor may not
   re-ask.
2. Only the messages vary between calls. A varying timeout or key would open a new client, with a
   socket, for every value.
3. instructor gets no `context`, because it would render messages as templates. It gets no key
   either, because its exceptions and hooks would carry it; the shim below it adds the key.
4. No exception of the libraries leaves this module, and none of their texts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from bundle_router.adapters.llm.credentials import (
    NO_KEY,
    UNCHECKED,
    RequestNotSent,
    host_of,
    key_of,
)
from bundle_router.adapters.llm.loading import (
    WAYS,
    Libraries,
    Way,
    installed,
    load,
    silence_warnings,
    ways_for,
)
from bundle_router.adapters.llm.responses import (
    UnusableAnswer,
    advice_on,
    check,
    failure_of,
    metered,
    raw_of,
)
from bundle_router.adapters.llm.wire import MAX_BYTES, Allowance, allowance, bytes_for, open_session
from bundle_router.core.catalog import AnswerMode, ModelChoice
from bundle_router.core.decide.asking.model_exchange import ModelReply, ModelRequest
from bundle_router.core.decide.asking.picks import AnswerShapes
from bundle_router.ports import Readiness

if TYPE_CHECKING:
    import asyncio

    from aiohttp import ClientSession

CLIENT_TIMEOUT_S: Final = 301.0
"""Timeout for litellm, the same for every call (rule 2) and longer than any deadline, which
cancelling enforces.
"""

_NOWHERE: Final = "http://127.0.0.1:9"
"""Where nothing listens, for rehearsals."""

_MODES: Final[Mapping[AnswerMode, str]] = {
    "json_schema": "JSON_SCHEMA",
    "tools": "TOOLS",
    "json": "JSON",
    "md_json": "MD_JSON",
}


@dataclass(frozen=True, slots=True)
class _Access:
    """How a model is reached."""

    way: Way
    key: str | None
    """See `key_of`."""


@dataclass(slots=True)
class _Exchange:
    """One call in progress: the arguments that the shim adds, and the response it received."""

    model: ModelChoice
    access: _Access
    response: Any = None


_exchange: ContextVar[_Exchange] = ContextVar("bundle_router_model_exchange")


class LiteLlm:
    """Calls `models`, by litellm's names. Everything but `readiness` is for one event loop.

    Keys are read from the environment at a model's first call, and cached. Rule 1 holds for every
    provider that litellm reaches through our session (nearly all). The few with a client of their
    own (bedrock, databricks) are bounded only by the deadline, and never asked at a `base_url`,
    since nothing could check what they send there.
    """

    def __init__(self, models: Sequence[ModelChoice] = ()) -> None:
        self._models = tuple(models)
        self._ways: dict[ModelChoice, Way] = {}
        self._handler: Any = None
        self.readiness: Readiness = "cold"
        self._libraries: Libraries | None = None
        self._session: ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: dict[AnswerMode, Any] = {}
        self._keys: dict[ModelChoice, str | None] = {}
        self._arguments: dict[tuple[ModelChoice, _Access], dict[str, Any]] = {}
        self._warm: asyncio.Event | None = None
        self._closing = False

    # --- getting ready ----------------------------------------------------------------------------

    async def warm_up(self) -> Readiness:
        """See `ModelClient`. litellm's first call takes an extra second, so this makes one without
        a request allowance, which ends before it connects.
        """
        import asyncio

        if self._warm is not None:
            await self._warm.wait()
            return self.readiness
        self._warm = asyncio.Event()
        try:
            self.readiness = await self._prepare_libraries()
        finally:
            if self.readiness in ("cold", "warming"):
                self.readiness = "broken"
            self._warm.set()
        return self.readiness

    async def _prepare_libraries(self) -> Readiness:
        import asyncio

        if not installed():
            return "missing"
        self.readiness = "warming"
        loaded = await load()
        if isinstance(loaded, str) or self._closing:
            return "broken"
        self._libraries = loaded
        self._loop = asyncio.get_running_loop()
        self._session = open_session(max_bytes=max(map(_most_bytes, self._models), default=0))
        self._handler = loaded.handler(self._session)
        await self._rehearse()
        return "ready"

    async def _rehearse(self) -> None:
        """Simulate a call, an error and an answer for every model, without a connection.

        This finds out how each provider takes our session (see `Way`): with the wrong one a
        provider never requests anything, or by a client of its own. A rehearsal holds no key and
        nothing of a step; its address is one on this machine where nothing listens.
        """
        with warnings.catch_warnings():
            silence_warnings()
            shape = AnswerShapes().of(("a", "b"))
            for model in (*self._models, ModelChoice("openai/rehearsal")):
                nowhere = replace(model, base_url=_NOWHERE, key_env=None)
                request = ModelRequest(nowhere, "rehearsal", "{}", shape)
                for way in ways_for(model.name, WAYS):
                    budget = Allowance(0)
                    await self._call_within(budget, request, _Access(way, NO_KEY))
                    if budget.asked:
                        self._ways[model] = way
                        break
            await self._rehearse_answer()

    async def _rehearse_answer(self) -> None:
        libraries = self._require_libraries()
        token = allowance.set(Allowance(0))
        try:
            response = await libraries.litellm.acompletion(
                model="openai/gpt-4o-mini",
                messages=[{"role": "user", "content": "{}"}],
                mock_response="{}",
            )
            metered(libraries.litellm, response, "openai/gpt-4o-mini", "{}", ModelReply())
        finally:
            allowance.reset(token)

    # --- calling ----------------------------------------------------------------------------------

    async def complete(self, request: ModelRequest) -> ModelReply:
        """See `ModelClient`."""
        if self._libraries is None:
            return ModelReply(failure="not_ready")
        model = request.model
        try:
            key = self._key(model)
            way = self._way_to(model)
        except RequestNotSent as refusal:
            return ModelReply(failure=refusal.failure, detail=refusal.why)
        budget = Allowance(1, host_of(model.base_url, key))
        return await self._call_within(budget, request, _Access(way, key))

    async def _call_within(
        self, budget: Allowance, request: ModelRequest, access: _Access
    ) -> ModelReply:
        token = allowance.set(budget)
        try:
            reply = await self._call_model(request, access)
        finally:
            allowance.reset(token)
        if budget.refusal is not None:
            return ModelReply(failure=budget.refusal.failure, detail=budget.refusal.why)
        return reply

    def _way_to(self, model: ModelChoice) -> Way:
        """Return how the model is reached. Raises RequestNotSent."""
        way = self._ways.get(model)
        if way is None and model.base_url is not None:
            raise RequestNotSent("not_sent", UNCHECKED)
        return way or "session"

    async def _call_model(self, request: ModelRequest, access: _Access) -> ModelReply:
        libraries = self._require_libraries()
        exchange = _Exchange(request.model, access)
        token = _exchange.set(exchange)
        try:
            answer = await self._client(request.model.mode).chat.completions.create(
                model=request.model.name,
                messages=_messages(request),
                response_model=request.shape,
                max_retries=0,
            )
            reply = ModelReply(answer=answer, raw=raw_of(exchange.response))
        except Exception as error:  # noqa: BLE001 - rule 4: what the libraries raise is no closed list
            reply = _failed_reply(error, exchange)
        finally:
            _exchange.reset(token)
        if exchange.response is None:
            return reply
        prompt = "".join(message["content"] for message in _messages(request))
        return metered(libraries.litellm, exchange.response, request.model.name, prompt, reply)

    def _client(self, mode: AnswerMode) -> Any:
        client = self._clients.get(mode)
        if client is None:
            instructor = self._require_libraries().instructor
            client = self._clients[mode] = instructor.from_litellm(
                self._shim, mode=getattr(instructor.Mode, _MODES[mode]), async_client=True
            )
        return client

    async def _shim(self, **request: Any) -> Any:
        """Complete by litellm, as the completion function that instructor calls.

        Adds what instructor need not know.
        """
        libraries = self._require_libraries()
        exchange = _exchange.get()
        model = exchange.model
        _make_strict(request)
        exchange.response = response = await libraries.litellm.acompletion(
            **request,
            **_parameters(model),
            base_url=model.base_url,
            api_key=exchange.access.key,
            timeout=CLIENT_TIMEOUT_S,
            max_retries=0,
            num_retries=0,
            drop_params=True,
            caching=False,
            # else litellm looks up the price by the name in the answer, in quadratic time
            base_model=model.name,
            shared_session=self._session,
            **self._client_argument(exchange),
        )
        check(response)
        return response

    def _client_argument(self, exchange: _Exchange) -> dict[str, Any]:
        place = exchange.model, exchange.access
        argument = self._arguments.get(place)
        if argument is None:
            session = self._session
            assert session is not None  # noqa: S101 - opened with the libraries
            argument = self._arguments[place] = self._require_libraries().client_argument(
                exchange.access.way,
                self._handler,
                session,
                model=exchange.model.name,
                key=exchange.access.key,
                base_url=exchange.model.base_url,
            )
        return argument

    def _require_libraries(self) -> Libraries:
        if self._libraries is None:
            raise UnusableAnswer("not_ready")
        return self._libraries

    def _key(self, model: ModelChoice) -> str | None:
        """Return the model's key. Raises RequestNotSent, also at later calls until it is set."""
        if model not in self._keys:
            self._keys[model] = key_of(model.name, model.key_env, model.base_url)
        return self._keys[model]

    async def close(self) -> None:
        """Close the connections, and remove our clients (litellm caches them by loop) from
        litellm's cache.
        """
        self._closing = True
        if self._session is not None and self._warm is not None:
            await (
                self._warm.wait()
            )  # a rehearsal takes a second; cancelling it would leave coroutines behind
        if self._libraries is not None and self._loop is not None:
            self._libraries.forget_clients(self._loop)
        if self._session is not None:
            await self._session.close()


def _most_bytes(model: ModelChoice) -> int:
    if model.max_output_tokens == "none":
        return MAX_BYTES
    return bytes_for(model.max_output_tokens)


def _parameters(model: ModelChoice) -> dict[str, float]:
    """Return the parameters of a request, without those that the config leaves out."""
    parameters: dict[str, float] = {}
    if model.temperature != "none":
        parameters["temperature"] = model.temperature
    if model.max_output_tokens != "none":
        parameters["max_tokens"] = model.max_output_tokens
    return parameters


def _messages(request: ModelRequest) -> list[dict[str, str]]:
    messages = [
        {"role": "system", "content": request.system},
        {"role": "user", "content": request.user},
    ]
    if request.correction is not None:
        reply = request.correction.answer or "(nothing)"
        messages += [
            {"role": "assistant", "content": reply},
            {"role": "user", "content": request.correction.complaint},
        ]
    return messages


def _make_strict(request: dict[str, Any]) -> None:
    """Ask the provider to constrain the answer to its schema. instructor's own `strict` is not
    sent.
    """
    form = request.get("response_format")
    if isinstance(form, dict) and isinstance(form.get("json_schema"), dict):
        request["response_format"] = {
            **form,
            "json_schema": {**form["json_schema"], "strict": True},
        }
    if isinstance(request.get("tools"), list):
        request["tools"] = [
            {**tool, "function": {**tool["function"], "strict": True}} for tool in request["tools"]
        ]


def _failed_reply(error: Exception, exchange: _Exchange) -> ModelReply:
    """Return the reply for an exception. instructor wraps the shim's exceptions, so the causes are
    searched.
    """
    raw = raw_of(exchange.response)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UnusableAnswer):
            return ModelReply(failure=cause.failure, raw=raw)
        if isinstance(cause, ValidationError) and exchange.response is not None:
            return ModelReply(failure="invalid_output", raw=raw)
        if exchange.response is None and isinstance(getattr(cause, "status_code", None), int):
            failure, retry_after_s = failure_of(cause)
            detail = advice_on(cause, failure)
            return ModelReply(failure=failure, detail=detail, retry_after_s=retry_after_s)
        cause = cause.__cause__
    if exchange.response is not None:
        return ModelReply(failure="invalid_output", raw=raw)  # the answer does not match the schema
    innermost: BaseException = error
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    return ModelReply(failure=failure_of(innermost)[0])
