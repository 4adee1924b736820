"""Our own stdio transport.

The SDK's has no bounds, stops at invalid UTF-8 and leaves grandchildren behind.

Rules:
1. A line over the maximum size ends the connection, because nobody knows which call it answered.
2. Lines that are no message (noise, half a line of JSON) are skipped, counted, and reported at most
   once a second.
3. Standard error is read all the time, so that the server can't block on it. Its end is kept for a
   crash report.
4. A server that is being ended is still read from until it has ended, so that it does not block on
   writing; one that sent too much is not.
5. A server that has exited is gone, even if a process it started still holds its standard output.
6. Lines without an answer among them, such as a flood of notifications, get half a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio

from bundle_router.adapters.mcp import sdk
from bundle_router.adapters.mcp.channels import wait_for_turn
from bundle_router.adapters.mcp.faults import (
    EXCHANGE,
    NOTHING_DONE,
    RequestState,
    RpcError,
    ServerFault,
)
from bundle_router.adapters.mcp.posting import Ended, read_message, read_object, read_result
from bundle_router.adapters.mcp.server_processes import Process, ProcessSupervisor, ServerCommand
from bundle_router.core.results.shaping.json_text import LARGE
from bundle_router.core.servers.transport.bounds import Bounds
from bundle_router.core.servers.transport.lines import LineBuffer, LineTooLong, cut_deep

FIRST_NUMBER: Final = 1_000_000_000
"""First id of our own requests; the SDK counts from 1."""
_CHUNK: Final = 65_536
_LINES: Final = 64
_HEAD: Final = 200
_ID: Final = re.compile(rb'"id"\s*:\s*"?(\d{10,18})(?!\d)')
"""Lines after which others have a turn: noise can be twenty thousand in a chunk."""
_MAX_PAUSE_S: Final = 0.1
_LEAST_S: Final = 0.01
_DRAIN_S: Final = 0.2
"""Seconds to read what an exited server wrote, and to learn of the exit of one that closed its
output.
"""

Message = dict[str, Any] | None
Report = Callable[..., None]
"""Reports to the operator: `report(level, name, **fields)`."""


@dataclass(slots=True)
class LineRequest:
    """A request, and the future of its answer on its caller's loop. `size`: bytes of the answer."""

    number: int
    answer: asyncio.Future[Any]
    timeout_s: float
    due: float
    ended: Ended
    size: int = 0


class LineRequests:
    """Requests of one connection, one line each, that bypass the SDK.

    Any thread may begin one and give it up. The connection's loop ends all others: it takes the
    answers before the SDK sees them, and watches the time.
    """

    def __init__(self, process: Process, exchange: RequestState) -> None:
        self.number = FIRST_NUMBER
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._exchange = exchange
        self._lock = threading.Lock()
        self._waiting: dict[int, LineRequest] = {}  # who takes one out ends it
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._fault: ServerFault | None = None

    is_ready = True

    async def post(
        self,
        method: str,
        params: str,
        headers: Mapping[str, str],
        timeout_s: float = math.inf,
        ended: Ended = bool,
    ) -> tuple[dict[str, Any], int]:
        """See `posting.RequestCarrier.post`. Notifications beside an answer reach the SDK."""
        here = asyncio.get_running_loop()
        with self._lock:
            if self._fault is not None:
                fault = ServerFault(self._fault.kind, self._fault.detail)
                self._loop.call_soon_threadsafe(ended, fault)
                raise fault
            due = self._server_time(here) + timeout_s
            made = LineRequest(self.number, here.create_future(), timeout_s, due, ended)
            self.number += 1
            self._waiting[made.number] = made
            if made.due < self._due:
                self._due = made.due
                self._loop.call_soon_threadsafe(self._watch)
        self._write(f'"id":{made.number},"method":"{method}","params":{params}')
        try:
            return await made.answer, made.size
        except (
            asyncio.CancelledError,
            GeneratorExit,
        ):  # in the latter case its own loop may be closed
            with contextlib.suppress(RuntimeError):  # that loop was closed, with all it held
                self._loop.call_soon_threadsafe(self._abandon, made)
            raise

    def _write(self, fields: str) -> None:
        line = f'{{"jsonrpc":"2.0",{fields}}}\n'.encode("utf-8", "replace")
        self._process.stdin.write(line, later=len(self._waiting) > 1)

    def _abandon(self, made: LineRequest) -> None:
        if self._give_up(made):
            made.ended(asyncio.CancelledError())

    def _give_up(self, made: LineRequest) -> bool:
        """Tell the server that nobody waits for an answer any more. Return whether somebody did."""
        if self._waiting.pop(made.number, None) is None:
            return False
        params = f'{{"requestId":{made.number},"reason":"caller cancelled"}}'
        self._write(f'"method":"notifications/cancelled","params":{params}')
        return True

    def _watch(self) -> None:
        """End the requests whose time is up, and look again when that of the next one is."""
        if self._timer is not None:
            self._timer.cancel()
        now = self._server_time(self._loop)
        with self._lock:
            waiting = list(self._waiting.values())
            self._due = min((made.due for made in waiting if made.due > now), default=math.inf)
            wait_s = max(self._due - now, _LEAST_S)
            if self._due < math.inf:
                self._timer = self._loop.call_later(wait_s, self._watch)
            else:
                self._timer = None
        for made in waiting:
            if made.due <= now and self._give_up(made):
                self._end(
                    made,
                    ServerFault("timeout", f"no answer within {made.timeout_s:.3g} s", sent=True),
                )

    def _server_time(self, loop: asyncio.AbstractEventLoop) -> float:
        """Return the time, less what was ours while answers were read."""
        return (now := loop.time()) - self._exchange.own_s(now)

    def take(self, message: dict[str, Any], size: int) -> bool:
        """Return whether the message answers one of these requests, perhaps one whose caller no
        longer waits.
        """
        number = None if "method" in message else message.get("id")
        if isinstance(number, str) and number.isdecimal() and len(number) < 19:
            number = int(number)
        if type(number) is not int or not FIRST_NUMBER <= number < self.number:
            return False
        answer: Any = message.get("result")
        try:
            if (
                len(message) > 3 or type(answer) is not dict or message.get("jsonrpc") != "2.0"
            ):  # as few are
                answer = read_result({**message, "id": number}, number)
        except RpcError as error:
            answer = error
        except ServerFault as fault:  # no other answer will come
            answer = ServerFault(fault.kind, fault.detail, sent=True)
        made = self._waiting.pop(number, None)
        if made is not None:
            made.size = size
            self._end(made, answer)
        return True

    def _end(self, made: LineRequest, answer: Any) -> None:
        failure = answer if isinstance(answer, Exception) else None
        made.ended(failure)
        settle = made.answer.set_result if failure is None else made.answer.set_exception
        if (loop := made.answer.get_loop()) is not self._loop:
            with contextlib.suppress(RuntimeError):  # the caller's loop was closed
                loop.call_soon_threadsafe(lambda: None if made.answer.done() else settle(answer))
        elif not made.answer.done():
            settle(answer)

    def close(self, fault: ServerFault | None = None) -> None:
        """Fail the requests in progress with `fault`; default: the connection was closed by us."""
        fault = fault or ServerFault("closed", "the connection was closed during the call")
        with self._lock:
            self._fault = fault
            self._due = -math.inf
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            with contextlib.suppress(KeyError):  # its caller has just given it up
                made = self._waiting.popitem()[1]
                self._end(
                    made, ServerFault(fault.kind, fault.detail, sent=fault.kind not in NOTHING_DONE)
                )


def _message(
    line: bytes | bytearray, read: Callable[[bytes | bytearray], Message] = read_object
) -> Message:
    """Parse the JSON object on a line.

    Invalid UTF-8 is replaced, and all but answers are bounded in depth.
    """
    if (message := read(line)) is None:
        message = read(line := line.decode("utf-8", "replace").encode())
    return message if message is None or "method" not in message else read(cut_deep(bytes(line)))


def _unreadable_answer(line: bytes | bytearray) -> Message:
    """Return a message without a result for a line that seems to be an answer and can't be parsed;
    else None.
    """
    found = _ID.search(line[:_HEAD]) or _ID.search(line[-_HEAD:])
    if found is not None and line.startswith(b"{") and b'"method"' not in line:
        return {"id": int(found[1])}
    return None


class Pipes:
    """One server's process, and the tasks that read and write its lines (a `connection.Wire`).

    The process belongs to one run, or keeps no caller's state.
    """

    stateful = True

    def __init__(self, process: Process, bounds: Bounds, report: Report) -> None:
        self.process = process
        self._exchange = EXCHANGE.get() or RequestState(is_shared=True)
        self.requests = LineRequests(process, self._exchange)
        self.fault: ServerFault | None = None
        self.skipped = 0
        self.accepts: Callable[[str], bool] = lambda method: False
        self._bounds = bounds
        self._report = report
        self._stderr = b""
        self._told_at = 0.0

    async def read(self, session: Any) -> None:
        """Turn lines into messages until the output or the process ends; then tell the session."""
        reading = asyncio.ensure_future(self._read_lines(session))
        exiting = asyncio.ensure_future(self.process.exited.wait())
        try:
            await asyncio.wait((reading, exiting), return_when=asyncio.FIRST_COMPLETED)
            if self.fault is None:
                await asyncio.wait((reading, exiting), timeout=_DRAIN_S)
        finally:
            for task in (reading, exiting):
                task.cancel()
            await asyncio.gather(reading, exiting, return_exceptions=True)
            self._settle()
            self.requests.close(self.fault)
            session.close()

    async def _read_lines(self, session: Any) -> None:
        lines = LineBuffer(self._bounds.max_message_bytes)
        now = asyncio.get_running_loop().time
        exchange = self._exchange
        read = partial(read_message, exchange=exchange)
        while chunk := await self._next_chunk(lines):
            if len(lines.held) >= _CHUNK:
                await wait_for_turn()
            begun = now()
            is_wanted = b"\n" not in chunk
            try:
                found = lines.feed(chunk)
            except LineTooLong as error:
                self.fault = ServerFault("too_large", f"the server sent {error}")
                return
            for number, line in enumerate(found, 1):
                is_large = len(line) >= LARGE
                if is_large:
                    value = await exchange.read_in_turn(partial(_message, line, read))
                else:
                    value = _message(line)
                value = (
                    _unreadable_answer(line) if value is None else value
                )  # its caller need not wait for a deadline
                is_wanted = is_wanted or (value is not None and "method" not in value)
                if not number % _LINES:
                    await wait_for_turn()
                if value is not None and self.requests.take(value, len(line)):
                    # its caller takes it apart: one kept until the next answer is freed here, in
                    # one go
                    value = None
                    continue
                if value is not None:
                    message = sdk.read_message(exchange.hold(value) if is_large else value)
                else:
                    message = None
                if message is None:
                    self._skip(line)
                elif not sdk.is_unwanted(message, self.accepts):
                    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await session.send(message)
            found = []
            line = bytearray()
            if not is_wanted:
                await asyncio.sleep(min(now() - begun, _MAX_PAUSE_S))

    async def _next_chunk(self, lines: LineBuffer) -> bytes:
        output = self.process.stdout
        output.take = self._take_answer if not lines.held else None
        try:
            return await output.read(_CHUNK)
        finally:
            output.take = None

    def _take_answer(self, chunk: bytes) -> bool:
        """Take a chunk that is one short answer, and return whether it was one.

        None that costs a pause is parsed.
        """
        if (
            len(chunk) > min(LARGE, self._bounds.max_message_bytes)
            or chunk.find(b"\n") != len(chunk) - 1
        ):
            return False
        message = _message(chunk) if chunk.startswith(b"{") and b'"method"' not in chunk else None
        return message is not None and self.requests.take(message, len(chunk))

    def _skip(self, line: bytes | bytearray) -> None:
        self.skipped += 1
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= 1.0 or not self._told_at:
            self._told_at = now
            shown = line[:200].decode("utf-8", "replace")
            self._report("warning", "server.noise", skipped=self.skipped, line=shown)

    def _settle(self) -> None:
        if self.fault is not None:
            return
        process = self.process
        if process.failed:
            self.fault = ServerFault(
                "not_started", f"the server can't be started: {process.failed}"
            )
        elif process.status is not None:
            if process.status < 0:
                ended = f"signal {-process.status}"
            else:
                ended = f"status {process.status}"
            self.fault = ServerFault("connection_lost", f"the server's process ended ({ended})")
        else:
            self.fault = ServerFault("connection_lost", "the server closed its output")

    async def read_errors(self) -> None:
        while chunk := await self.process.stderr.read(_CHUNK):
            self._stderr = (self._stderr + chunk)[-self._bounds.max_stderr_bytes :]

    async def write(self, session: Any) -> None:
        """Turn messages into lines until the session or the server's input ends."""
        with contextlib.suppress(anyio.ClosedResourceError):
            async for message in session:
                self.process.stdin.write(sdk.line_of(message))
                await self.process.stdin.drain()

    @property
    def pid(self) -> int:
        return self.process.pid

    def note_era(self, accepts: Callable[[str], bool]) -> None:
        self.accepts = accepts

    def carrier(self, on_change: object, *, is_modern: bool) -> LineRequests:
        return self.requests

    @property
    def last_words(self) -> str:
        return self._stderr.decode("utf-8", "replace").strip()


@asynccontextmanager
async def open_stdio(
    command: ServerCommand, supervisor: ProcessSupervisor, bounds: Bounds, report: Report
) -> AsyncIterator[tuple[sdk.Streams, Pipes]]:
    """Start the server and yield its streams.

    On exit the server is ended, even if the caller is cancelled.
    """
    process = await _start_process(command, supervisor, bounds)
    pipes = Pipes(process, bounds, report)
    to_session, session_reads, session_writes, from_session = sdk.pipe()
    loop = asyncio.get_running_loop()
    tasks = [
        loop.create_task(pipes.read(to_session)),
        loop.create_task(pipes.read_errors()),
        loop.create_task(pipes.write(from_session)),
    ]
    try:
        yield (session_reads, session_writes), pipes
    finally:
        streams = (to_session, session_reads, session_writes, from_session)
        await _to_the_end(loop.create_task(_stop(pipes, tasks, streams, supervisor, bounds)))


async def _start_process(
    command: ServerCommand, supervisor: ProcessSupervisor, bounds: Bounds
) -> Process:
    """Start the process. If the caller is cancelled meanwhile, no half-started process is left."""
    starting = asyncio.get_running_loop().create_task(supervisor.start(command))
    try:
        await _to_the_end(starting)
    except asyncio.CancelledError:
        if not starting.cancelled() and starting.exception() is None:
            stopping = supervisor.stop(starting.result(), bounds.close_s)
            await _to_the_end(asyncio.get_running_loop().create_task(stopping))
        raise
    return starting.result()


async def _to_the_end(task: asyncio.Task[Any]) -> None:
    """Wait for the task even if cancelled once or twice, and raise the cancellation afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _stop(
    pipes: Pipes,
    tasks: list[asyncio.Task[None]],
    streams: tuple[Any, ...],
    supervisor: ProcessSupervisor,
    bounds: Bounds,
) -> None:
    for stream in streams:
        stream.close()
    if tasks[0].done():
        pipes.process.stop_listening()
    try:
        await supervisor.stop(pipes.process, bounds.close_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
