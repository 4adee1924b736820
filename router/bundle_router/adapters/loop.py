"""Event loops in threads of their own: for engines that have none, for connections to tool servers, for models.

Why a thread each: a connection belongs to the loop it was opened on while callers come from any loop and thread, a
client library may hold its loop for a second, and a caller that blocks its own loop must not delay another's call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Executor, Future
from contextvars import Context
from typing import Any, TypeVar

from bundle_router.errors import RequestError, WrongContext

T = TypeVar("T")

CLEAN_UP_S = 5.0
"""How long a coroutine that was cancelled may take to end."""


def refuse_running_loop(what: str, instead: str) -> None:
    """Raise WrongContext on a thread that runs an event loop: waiting there would stop the loop."""
    if asyncio._get_running_loop() is not None:
        raise WrongContext(f"{what} was used inside a running event loop", advice=f"use `{instead}` there")


def faster_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes loops of uvloop, where the extra `uvloop` is installed; None for asyncio's own."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


class LoopThread:
    """One event loop in a daemon thread, for callers on any thread or loop. Started on first use.

    `make_executor` makes the loop's default executor. With `abandon_after_s`, `close` waits no longer than that for the
    thread, and not at all for its executor: a library may hold either for minutes.
    """

    def __init__(
        self, name: str, *, make_executor: Callable[[], Executor] | None = None, abandon_after_s: float | None = None
    ) -> None:
        self._name = name
        self._make_executor = make_executor
        self._abandon_after_s = abandon_after_s
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def is_started(self) -> bool:
        return self._loop is not None

    @property
    def ident(self) -> int | None:
        """The thread's number (`threading.get_ident`); None before it is started."""
        thread = self._thread
        return thread.ident if thread is not None else None

    def submit(self, work: Coroutine[Any, Any, T], *, context: Context | None = None) -> Future[T]:
        """Start a coroutine on the loop, in `context`. Cancelling the future cancels it.

        Raises RequestError when this is closed, OSError or RuntimeError where the system has no thread or descriptor to
        give; the coroutine is closed then.
        """
        with self._lock:
            try:
                if self._closed:
                    raise RequestError(f"{self._name} is closed")
                if self._loop is None:
                    self._loop, self._thread = self._start()
            except (RequestError, OSError, RuntimeError):
                work.close()
                raise
            if context is not None:
                return context.run(asyncio.run_coroutine_threadsafe, work, self._loop)
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _start(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        executor = self._make_executor() if self._make_executor is not None else None
        loop = None
        try:
            loop = asyncio.new_event_loop()
            if executor is not None:
                loop.set_default_executor(executor)
            # The thread knows nothing of this object, so that one which is dropped unclosed ends its thread.
            waits = self._abandon_after_s is None
            thread = threading.Thread(target=_serve, args=(loop, waits), name=self._name, daemon=True)
            thread.start()
            weakref.finalize(self, _stop, loop).atexit = False
        except (OSError, RuntimeError):
            if loop is not None:
                loop.close()
            if executor is not None:
                executor.shutdown(wait=False)
            raise
        return loop, thread

    def close(self) -> None:
        """Cancel what is under way, wait for it to end, and end the loop and its thread. Idempotent; blocks."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            _stop(loop)
            thread.join(self._abandon_after_s)


def _serve(loop: asyncio.AbstractEventLoop, waits_for_executor: bool) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_the_rest())
        loop.run_until_complete(loop.shutdown_asyncgens())
        if waits_for_executor:
            loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(loop.stop)


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=CLEAN_UP_S)


class Portal:
    """Runs coroutines for threads without a loop, all on one loop, so that what they share belongs to one loop."""

    def __init__(self) -> None:
        self._thread = LoopThread("bundle-router-loop")
        self.is_forked = False
        """Whether this is a child process, and the portal its parent's."""
        _PORTALS.add(self)

    @property
    def closed(self) -> bool:
        return self._thread.closed

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it to the end on the portal's loop and give its result. An interrupt cancels it and waits a little.

        Raises RequestError when the portal is closed, before or meanwhile.
        """
        ended = threading.Event()

        async def to_the_end() -> T:
            try:
                return await work
            finally:
                ended.set()

        try:
            future = self._thread.submit(to_the_end())
        except RequestError:
            work.close()
            raise _closed("this router is closed") from None
        try:
            return future.result()
        except BaseException as interrupted:
            if future.cancel():
                ended.wait(CLEAN_UP_S)
            if self.closed and isinstance(interrupted, CancelledError):
                raise _closed("it was closed while this was under way, which was cancelled") from None
            raise

    def close(self) -> None:
        """Cancel what is under way, wait for it to record its end, and stop the loop. May be called again."""
        self._thread.close()


_PORTALS: weakref.WeakSet[Portal] = weakref.WeakSet()


def _note_fork() -> None:
    for portal in list(_PORTALS):
        portal.is_forked = True


os.register_at_fork(after_in_child=_note_fork)


def _closed(what: str) -> RequestError:
    return RequestError(what, advice="open another with Router.open(...)")
