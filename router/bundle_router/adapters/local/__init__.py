"""Local tools: Python functions behind the same port as any tool server.

Rules:
1. A local server is one that ships with the router, or tools passed by the caller's code. Config
   names a server; it can't name code.
2. A tool runs in a worker thread, with validated arguments and a deadline that begins with the
   call. If the caller is cancelled or the deadline passes, `context.cancelled()` becomes true and
   the result is dropped. A call that is still waiting for a thread by then is never carried out,
   and is `busy`.
3. `ToolFailure` is an error for the agent. Any other exception of a tool is a defect: the agent
   gets one line, and diagnostics get the traceback. A tool's result is checked before it is used.
4. What a first-party tool returns, failures included, is redacted as records are, with a note, so
   that the model, code, artifacts and records have one text (`[repo] tokens`).
5. Errors in arguments are described without repeating the arguments, which may be secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ValidationError

from bundle_router.adapters.workers import Workers
from bundle_router.core.catalog import CallLimits, Card
from bundle_router.core.servers.transport.tool_servers import (
    EVERYONE,
    NOWHERE,
    CallPlace,
    RawResult,
    Scope,
)
from bundle_router.core.values import (
    TOOL_NAME,
    Block,
    Data,
    LocalSettings,
    LocalTool,
    Media,
    Outcome,
    Text,
    ToolContext,
    ToolOutput,
)
from bundle_router.core.values.canonical import digest_of, encode, holds_more_than
from bundle_router.errors import RequestError, StorageError, ToolFailure
from bundle_router.ports import Diagnostics, Redactor

if TYPE_CHECKING:
    from bundle_router.adapters.json_schema import JsonSchema

REDACTED_NOTE: Final = (
    "Secrets were taken out of this result: a mark such as `[redacted:…]` stands where each was. Do"
    " not write it into a file; a person can change this ([repo] tokens in policy.toml)."
)
NEVER_BEGUN: Final = RawResult((), "cancelled", "cancelled")

MAX_DESCRIPTION: Final = 8_000
"""Maximum characters of a local tool's description."""

MANY_VALUES: Final = 2_000
"""Number of values in arguments from which they are checked in a thread."""
CHECK_PATIENCE: Final = 10
"""How much more is checked than of a server's arguments, which are left to the server then: a table
of a megabyte has up to 500,000 values. Checking a million takes 0.4 s at most.
"""

_LEAVES: Final = frozenset((str, int, float, bool, type(None)))

GRACE_S: Final = 2.0
"""Seconds past its deadline that a tool may take to notice it.

Then its thread is abandoned and the call ends.
"""


@lru_cache(maxsize=4_096)
def input_schema(model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the JSON Schema of a tool's arguments, without pydantic's titles, which would cost
    tokens.
    """
    return _without_titles(model.model_json_schema())


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    schema.pop("title", None)
    schema.pop("description", None)
    for key in ("properties", "$defs"):
        for value in schema.get(key, {}).values():
            value.pop("title", None)
            if key == "$defs":
                _without_titles(value)
    return schema


def tools_of(server: str, tools: object) -> tuple[LocalTool, ...]:
    """Return a local server's tools; functions are turned into tools.

    Raises RequestError for anything else.
    """
    from bundle_router.adapters.local.functions import local_tool

    if not isinstance(tools, list | tuple) or not tools:
        if isinstance(tools, list | tuple):
            fault = "an empty list"
        else:
            fault = f"{type(tools).__name__}, not a list"
        raise RequestError(
            f"local server {server!r}: its tools are {fault}",
            advice=f"write local={{{server!r}: [get_ticket, …]}}",
        )
    try:
        return tuple(local_tool(tool) for tool in tools)
    except RequestError as wrong:
        raise RequestError(
            f"local server {server!r}: {wrong.message}", advice=wrong.advice
        ) from None


def cards_of(servers: Mapping[str, Sequence[LocalTool]]) -> dict[str, Card]:
    """Return the cards of all local tools by canonical name.

    Raises RequestError for an object that is no LocalTool, for an invalid or repeated name, and for
    a description that is too long.
    """
    cards: dict[str, Card] = {}
    for server, tools in servers.items():
        for tool in tools:
            _check_form(server, tool)
            if not TOOL_NAME.fullmatch(tool.name):
                raise RequestError(
                    f"local server {server!r}: {tool.name!r} is not a tool name",
                    advice=f"it must match {TOOL_NAME.pattern}",
                )
            if len(tool.description) > MAX_DESCRIPTION:
                raise RequestError(
                    f"{server}.{tool.name}: its description has {len(tool.description):,}"
                    " characters",
                    advice=(
                        f"an agent pays for it at every step: say it in {MAX_DESCRIPTION:,} at most"
                    ),
                )
            tool_card = card(server, tool.name, tool.description, input_schema(tool.arguments))
            if tool_card.name in cards:
                raise RequestError(f"local server {server!r} has two tools named {tool.name!r}")
            cards[tool_card.name] = tool_card
    return cards


def _check_form(server: str, tool: LocalTool) -> None:
    """Refuse a malformed tool, which an engine's untyped code may pass, before it is called."""
    wrong = ""
    if not (isinstance(tool.name, str) and isinstance(tool.description, str)):
        wrong = f"the name and the description of {tool.name!r:.50} are not both text"
    elif not (isinstance(tool.arguments, type) and issubclass(tool.arguments, BaseModel)):
        wrong = f"the arguments of {tool.name!r} are not a pydantic model's class"
    elif not callable(tool.run):
        wrong = f"{tool.name!r} has no function to run"
    if wrong:
        raise RequestError(
            f"local server {server!r}: {wrong}",
            advice=(
                "write LocalTool(name, description, arguments, run); arguments is a subclass of"
                " pydantic.BaseModel"
            ),
        )


def argument_problems(tool: LocalTool, arguments: Mapping[str, Any]) -> Sequence[str]:
    """Return the errors of a call's arguments, one sentence each; empty if they are valid."""
    if _holds_many(arguments):
        # pydantic lists every invalid value, which can take seconds and holds the GIL.
        problems = _schema_problems(tool.arguments, arguments)
        if problems:
            return problems
    try:
        tool.arguments.model_validate(dict(arguments))
    except ValidationError as wrong:
        if wrong.error_count() > MANY_VALUES:
            return [f"arguments: {wrong.error_count():,} values are invalid"]
        return [
            _sentence(error)
            for error in wrong.errors(include_url=False, include_context=False)[:20]
        ]
    return ()


def _schema_problems(model: type[BaseModel], arguments: Mapping[str, Any]) -> Sequence[str]:
    """Return the errors of many values by the schema; empty if it has none, or can't be used."""
    from bundle_router.adapters.json_schema import Unchecked  # few calls need it

    schema = _schema_of(model)
    if schema is None:
        return ()
    try:
        return schema.problems(arguments, patience=CHECK_PATIENCE)
    except Unchecked as unchecked:
        return [f"arguments: they hold too much to be checked ({unchecked})"]


@lru_cache(maxsize=256)
def _schema_of(arguments: type[BaseModel]) -> JsonSchema | None:
    """Return the schema of a tool's arguments; None if only pydantic can check them, because they
    may contain themselves.
    """
    from bundle_router.adapters.json_schema import JsonSchema, Unchecked

    try:
        return JsonSchema(input_schema(arguments))
    except Unchecked:
        return None


def _holds_many(value: object) -> bool:
    """Return whether it holds more than `MANY_VALUES` values. Counting stops there."""
    if isinstance(value, dict) and _LEAVES.issuperset(map(type, value.values())):
        return len(value) > MANY_VALUES
    return holds_more_than(MANY_VALUES, value)


@dataclass(frozen=True, slots=True)
class KeptPlaces:
    """Places that local tools leave alone."""

    protected: Sequence[str] = ()
    """What they may read, but not change."""
    hidden: Sequence[str] = ()
    """What they may not even see. The service adds to it later, so it is not copied."""


class LocalSessions:
    """Calls local tools: the caller's own `servers`, and first-party ones, which `load` returns
    at their first call.

    At most `max_concurrent_calls` run at once; more wait, within their deadline.
    """

    # bound once: under freezegun, what `time` has differs between the caller and the workers
    _monotonic_ns = staticmethod(time.monotonic_ns)

    def __init__(
        self,
        servers: Mapping[str, Sequence[LocalTool]],
        load: Callable[[str], Sequence[LocalTool]],
        settings: LocalSettings,
        limits: CallLimits,
        diagnostics: Diagnostics,
        redactor: Redactor,
        places: KeptPlaces,
    ) -> None:
        self._load = load
        self._servers = {name: _by_name(tools) for name, tools in servers.items()}
        self._settings = settings
        self._limits = limits
        self._diagnostics = diagnostics
        self._redactor = redactor
        self._own = frozenset(servers)
        self._places = places
        self._workers = Workers(limits.max_concurrent_calls)
        self._checks = Workers(1)
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def _tool(self, server: str, tool: str) -> LocalTool:
        if server not in self._servers:
            self._servers[server] = _by_name(self._load(server))
        return self._servers[server][tool]

    async def check_arguments(
        self, server: str, tool: str, arguments: Mapping[str, Any]
    ) -> Sequence[str]:
        entry = self._tool(server, tool)
        if _holds_many(arguments):
            with contextlib.suppress(ToolFailure):  # without a thread it is checked here
                return await self._checks.submit(lambda: argument_problems(entry, arguments))
        return argument_problems(entry, arguments)

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        scope: Scope = EVERYONE,
        place: CallPlace = NOWHERE,
    ) -> RawResult:
        del scope  # local tools keep nothing between calls
        entry = self._tool(server, tool)
        start_times_ns = list[int]()
        abandoned = list[bool]()
        called_ns = self._monotonic_ns()
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle
        task: asyncio.Task[RawResult] | None = None

        def context() -> ToolContext:
            return ToolContext(
                workspace=place.workspace,
                settings=self._settings,
                timeout_s=max(0.001, timeout_s - (self._monotonic_ns() - called_ns) / 1e9),
                max_bytes=self._limits.max_result_bytes,
                cancelled=lambda: bool(abandoned),
                protected=(*self._places.protected, *self._places.hidden),
                hidden=tuple(self._places.hidden),
                within=place.within,
                handed=place.files,
            )

        def run() -> RawResult:
            start_times_ns.append(self._monotonic_ns())
            if abandoned:
                return NEVER_BEGUN
            return self._redacted(server, self._run(entry, arguments, context()))

        async def run_here() -> RawResult:
            async with self._turns.setdefault(
                loop, asyncio.Semaphore(self._limits.max_concurrent_calls)
            ):
                start_times_ns.append(self._monotonic_ns())
                return self._redacted(server, await self._run_here(entry, arguments, context()))

        def take(done: asyncio.Task[RawResult]) -> None:
            if not done.cancelled():
                settle(done.result())
            elif abandoned:
                settle(NEVER_BEGUN)
            else:  # by itself
                answer.cancel()

        def settle(result: RawResult) -> None:
            if not answer.done():
                answer.set_result(result)

        def stop() -> None:
            nonlocal timer
            if answer.done():
                return
            abandoned.append(True)
            if task is not None:
                task.cancel()
            if start_times_ns:
                timer = loop.call_later(GRACE_S, settle, NEVER_BEGUN)
            else:
                settle(_busy_result(server, tool, timeout_s, self._limits.max_concurrent_calls))

        if inspect.iscoroutinefunction(entry.run):
            answer: asyncio.Future[RawResult] = loop.create_future()
            task = loop.create_task(run_here())
            task.add_done_callback(take)
        else:
            # A tool in a thread has the context variables of its caller, as one on the loop does.
            caller = copy_context()
            # Awaited itself: `asyncio.wait` would take another turn of the loop.
            answer = self._workers.submit(lambda: caller.run(run))
        timer = loop.call_later(timeout_s, stop)
        try:
            result = await answer
            if not abandoned:
                queued_ms = (start_times_ns[0] - called_ns) / 1e6
                return RawResult(
                    result.blocks, result.outcome, result.code, result.answer, queued_ms
                )
        finally:
            timer.cancel()
            abandoned.append(True)
            if task is not None:
                with contextlib.suppress(RuntimeError):  # its loop was closed
                    task.cancel()
        if result.outcome in (
            "busy",
            "timeout",
        ):  # a tool's own timeout result may say how far it came
            return result
        text = f"{server}.{tool} took longer than {timeout_s:g} s; it was told to stop."
        return RawResult((Text(text),), "timeout", "timeout")

    def _run(
        self, entry: LocalTool, arguments: Mapping[str, Any], context: ToolContext
    ) -> RawResult:
        try:
            return self._result(entry.run(entry.arguments.model_validate(dict(arguments)), context))
        except ToolFailure as failure:
            return _failed_result(failure)
        except StorageError as fault:
            return _failed_result(_unavailable(fault))
        except BaseException as defect:  # noqa: BLE001 - the boundary of rule 3; a tool may not end us, or our loop
            return self._crashed_result(entry, defect)

    async def _run_here(
        self, entry: LocalTool, arguments: Mapping[str, Any], context: ToolContext
    ) -> RawResult:
        """Run a coroutine tool on the caller's event loop, where a cancellation reaches it; else as
        `_run`.
        """
        try:
            output = entry.run(entry.arguments.model_validate(dict(arguments)), context)
            return self._result(await output if inspect.isawaitable(output) else output)
        except ToolFailure as failure:
            return _failed_result(failure)
        except StorageError as fault:
            return _failed_result(_unavailable(fault))
        except GeneratorExit:
            raise
        except asyncio.CancelledError as defect:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self._crashed_result(entry, defect)  # nobody cancelled the call
        except BaseException as defect:  # noqa: BLE001 - as above
            return self._crashed_result(entry, defect)

    def _result(self, output: Any) -> RawResult:
        size = _size(output)
        if size > self._limits.max_result_bytes:
            text = (
                f"The result has {size:,} bytes, at most {self._limits.max_result_bytes:,} are"
                " taken. Ask for less."
            )
            return RawResult((Text(text),), "tool_error", "too_large")
        return RawResult(
            tuple(output.blocks),
            "tool_error" if output.failed else "ok",
            "failed" if output.failed else "",
        )

    def _redacted(self, server: str, result: RawResult) -> RawResult:
        """Return a first-party tool's result without the secrets in its text (rule 4)."""
        if server in self._own or self._settings.tokens == "show":
            return result
        blocks = tuple(self._redacted_block(block) for block in result.blocks)
        if blocks == tuple(result.blocks):
            return result
        return replace(result, blocks=(*blocks, Text(REDACTED_NOTE)))

    def _redacted_block(self, block: Block) -> Block:
        if isinstance(block, Text):
            return replace(block, text=self._redactor.redact(block.text))
        if isinstance(block, Data):
            return Data(self._redactor.redact_value(block.value))
        return block

    def _crashed_result(self, entry: LocalTool, defect: BaseException) -> RawResult:
        self._diagnostics.event("error", "tool.crashed", tool=entry.name, error=defect)
        kind = type(defect).__name__
        text = (
            f"The tool {entry.name!r} failed unexpectedly ({kind}); the operator's log has the"
            " details."
        )
        return RawResult((Text(text),), "tool_error", "crashed")

    async def close(self) -> None:
        for workers in (self._workers, self._checks):
            if workers.is_busy:  # with a tool that was told to stop, or its last result
                await asyncio.to_thread(workers.close, GRACE_S)
            else:
                workers.close()


def _by_name(tools: Sequence[LocalTool]) -> dict[str, LocalTool]:
    return {tool.name: tool for tool in tools}


def _unavailable(fault: StorageError) -> ToolFailure:
    return ToolFailure(fault.message, code="unavailable", advice=fault.advice)


def _failed_result(failure: ToolFailure) -> RawResult:
    advice = f"; {failure.advice}" if failure.advice else ""
    outcome: Outcome = "timeout" if failure.code == "timeout" else "tool_error"
    return RawResult((Text(failure.message + advice),), outcome, failure.code)


def _busy_result(server: str, tool: str, timeout_s: float, limit: int) -> RawResult:
    text = (
        f"{server}.{tool} did not begin within {timeout_s:g} s: {limit} other calls are under way."
        " Try again later."
    )
    return RawResult((Text(text),), "busy", "busy", queued_ms=timeout_s * 1000)


def _size(output: object) -> int:
    """Return the size of a tool's output: bytes, or characters of text.

    Raises TypeError or ValueError.
    """
    if not isinstance(output, ToolOutput):
        raise TypeError(f"it returned {type(output).__name__}, not ToolOutput")
    size = 0
    for block in output.blocks:
        if isinstance(block, Text) and isinstance(block.text, str):
            size += len(block.text)
        elif isinstance(block, Media) and isinstance(block.data, bytes | bytearray | memoryview):
            size += len(bytes(block.data))
        elif isinstance(block, Data):
            size += _json_size(block.value)
        else:
            raise TypeError(
                f"a block of its output is {type(block).__name__}, or its value has a wrong type"
            )
    return size


_ITEMS_AT_ONCE: Final = 256
"""Items of a list that are encoded in one piece."""


def _json_size(value: Any) -> int:
    """Return the bytes of a JSON value, encoded piece by piece: the encoder holds the GIL until it
    has finished.
    """
    size = 0
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        size = 2
        for name, inner in value.items():
            size += len(encode(name)) + 2 + _json_size(inner)
    elif isinstance(value, list) and len(value) > _ITEMS_AT_ONCE:
        for start in range(0, len(value), _ITEMS_AT_ONCE):
            size += len(encode(value[start : start + _ITEMS_AT_ONCE]))
    else:
        size = len(encode(value))
    return size


def _sentence(error: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in error["loc"]) or "arguments"
    return f"{place}: {error['msg'].removeprefix('Value error, ')}"


def card(server: str, tool: str, description: str, schema: Mapping[str, Any]) -> Card:
    """Return the card of one definition: canonical, hashed, with tokens estimated at four bytes
    each.
    """
    definition = {"description": description, "parameters": schema}
    tokens = -(-len(encode(definition)) // 4)
    return Card(
        server, tool, description, encode(schema), digest_of(definition), tokens, counted=False
    )
