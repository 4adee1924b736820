"""The stdio transport: the lines of a process.

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
from typing import TYPE_CHECKING, Any, Final

from bundle_router.adapters.mcp.exchange import CANCELLED, Outgoing, Session, message, next_event
from bundle_router.adapters.mcp.faults import ServerFault
from bundle_router.adapters.mcp.pending import PendingRequests, Report
from bundle_router.adapters.mcp.server_processes import Process, ProcessSupervisor, ServerCommand
from bundle_router.core.servers.reader import FrameTooLarge, LineFrames, Noise, ServerReader
from bundle_router.core.servers.transport.bounds import Bounds

if TYPE_CHECKING:
    from bundle_router.core.servers.reader.agreement import Agreement

_CHUNK: Final = 65_536
_EVENTS_PER_TURN: Final = 64
"""Events after which others have a turn: noise can be twenty thousand lines in a chunk."""
_MAX_PAUSE_S: Final = 0.1
_DRAIN_S: Final = 0.2
"""Seconds to read what an exited server wrote, and to learn of the exit of one that closed its
output.
"""


class StdioTransport:
    """One server's process (a `Transport`). It belongs to one run, or keeps no caller's state."""

    first_number = 1_000_000_000
    """Ids of ten digits are recognised also in a line that can't be parsed."""
    stateful = True
    silence_s = 3.0

    def __init__(
        self,
        command: ServerCommand,
        supervisor: ProcessSupervisor,
        bounds: Bounds,
        report: Report,
    ) -> None:
        self._command = command
        self._supervisor = supervisor
        self._bounds = bounds
        self._report = report
        self._process: Process | None = None
        self._pending: PendingRequests | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._reader = ServerReader(LineFrames(bounds.max_frame_bytes), bounds.max_message_bytes)
        self._stderr = b""
        self._reported_at = 0.0
        self.fault: ServerFault | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def open(self, session: Session) -> None:
        """Start the process. If the caller is cancelled, no half-started process is left."""
        loop = asyncio.get_running_loop()
        starting = loop.create_task(self._supervisor.start(self._command))
        try:
            await finish(starting)
        finally:
            if not starting.cancelled() and starting.exception() is None:
                self._process = starting.result()
        process = starting.result()
        self._pending = PendingRequests(session, self._report)
        self._tasks = [
            loop.create_task(self._read(process, self._pending)),
            loop.create_task(self._read_errors(process)),
        ]

    def agreed(self, agreement: Agreement) -> None:
        """Do nothing: lines are the same in both eras."""

    # --- requests ---------------------------------------------------------------------------------

    async def exchange(self, request: Outgoing) -> dict[str, Any]:
        process, pending = self._opened()
        result = pending.add(request)
        process.stdin.write(request.body + b"\n", later=len(pending) > 1)
        try:
            return await result
        finally:
            if pending.discard(request) and request.cancels:
                params = {"requestId": request.number, "reason": "caller cancelled"}
                process.stdin.write(message(CANCELLED, params) + b"\n")

    async def notify(self, message: bytes) -> None:
        process, _ = self._opened()
        process.stdin.write(message + b"\n")

    async def write_reply(self, reply: bytes) -> None:
        process, _ = self._opened()
        process.stdin.write(reply + b"\n")
        await process.stdin.drain()

    def _opened(self) -> tuple[Process, PendingRequests]:
        if self._process is None or self._pending is None:
            raise ServerFault("closed", "the connection is not open")
        return self._process, self._pending

    # --- what the server sends --------------------------------------------------------------------

    async def _read(self, process: Process, pending: PendingRequests) -> None:
        """Read until the output or the process ends; then tell those who wait."""
        reading = asyncio.ensure_future(self._read_lines(process, pending))
        exiting = asyncio.ensure_future(process.exited.wait())
        try:
            await asyncio.wait((reading, exiting), return_when=asyncio.FIRST_COMPLETED)
            if self.fault is None:
                await asyncio.wait((reading, exiting), timeout=_DRAIN_S)
        finally:
            for task in (reading, exiting):
                task.cancel()
            await asyncio.gather(reading, exiting, return_exceptions=True)
            self.fault = self.fault or _fault_of(process)
            pending.end(self.fault)

    async def _read_lines(self, process: Process, pending: PendingRequests) -> None:
        now = asyncio.get_running_loop().time
        while chunk := await process.stdout.read(_CHUNK):
            begun = now()
            try:
                self._reader.receive_data(chunk)
            except FrameTooLarge as error:
                self.fault = ServerFault("too_large", f"the server sent {error}")
                return
            is_wanted = b"\n" not in chunk
            is_wanted = await self._take_events(pending) or is_wanted
            if not is_wanted:
                await asyncio.sleep(min(now() - begun, _MAX_PAUSE_S))
        self._reader.receive_end()
        await self._take_events(pending)

    async def _take_events(self, pending: PendingRequests) -> bool:
        """Give all events at hand to whom they concern. Return whether an answer was among them."""
        count = 0
        is_wanted = False
        while self._reader.next_size:
            event = await next_event(self._reader, pending.patience)
            if isinstance(event, Noise):
                self._report_noise(event)
            elif await pending.take(event, self):
                is_wanted = True
            count += 1
            if count % _EVENTS_PER_TURN == 0:
                await asyncio.sleep(0)
        return is_wanted

    async def _read_errors(self, process: Process) -> None:
        while chunk := await process.stderr.read(_CHUNK):
            self._stderr = (self._stderr + chunk)[-self._bounds.max_stderr_bytes :]

    def _report_noise(self, noise: Noise) -> None:
        now = asyncio.get_running_loop().time()
        if self._reported_at and now - self._reported_at < 1.0:
            return
        self._reported_at = now
        line = noise.excerpt.decode("utf-8", "replace")
        self._report("warning", "server.noise", skipped=self._reader.noise, line=line)

    async def wait_ended(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks[:1])

    @property
    def last_words(self) -> str:
        """The end of the server's standard error."""
        return self._stderr.decode("utf-8", "replace").strip()

    # --- the end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the server and all its processes, even if the caller is cancelled meanwhile."""
        await finish(asyncio.get_running_loop().create_task(self._close()))

    async def _close(self) -> None:
        process = self._process
        self._process = None
        if process is None:
            return
        ended_by = self.fault
        if self._tasks and self._tasks[0].done():
            process.stop_listening()
        try:
            await self._supervisor.stop(process, self._bounds.close_s)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._pending is not None:
                await self._pending.close()
        if ended_by is not None and ended_by.kind in ("connection_lost", "not_started"):
            words = self.last_words[-500:]
            self._report("warning", "server.ended", reason=ended_by.detail, last_words=words)


def _fault_of(process: Process) -> ServerFault:
    """Return why the output of a process has ended."""
    if process.failed:
        return ServerFault("not_started", f"the server can't be started: {process.failed}")
    if process.status is None:
        return ServerFault("connection_lost", "the server closed its output")
    ended = f"signal {-process.status}" if process.status < 0 else f"status {process.status}"
    return ServerFault("connection_lost", f"the server's process ended ({ended})")


async def finish(task: asyncio.Task[Any]) -> None:
    """Wait for a task even if cancelled once or twice, and raise the cancellation afterwards.

    Raises what the task raised.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
