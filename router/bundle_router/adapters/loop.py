"""Event loops in threads of their own: for engines without a loop, for connections to tool servers,
for models.

Each has a thread of its own, because a connection belongs to the loop it was opened on while
callers come from any loop and thread, a client library may block its loop for a second, and a
blocked caller must not delay another's call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from bundle_router.errors import RequestError, ToolFailure, WrongContext

T = TypeVar("T")

CLEAN_UP_S = 5.0
"""Seconds that a cancelled coroutine may take to end."""


def refuse_running_loop(what: str, instead: str) -> None:
    """Raise WrongContext on a thread that runs an event loop, because waiting there would stop the
    loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # it has none
        return
    raise WrongContext(
        f"{what} was used inside a running event loop", advice=f"use `{instead}` there"
    )


def faster_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory if the extra `uvloop` is installed; None for asyncio's own."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


class LoopThread:
    """One event loop in a daemon thread, for callers on any thread or loop. Started on first use.

    `make_executor` creates the loop's default executor. With `abandon_after_s`, `close` waits at
    most that long for the thread, and not at all for its executor, as a library may block either
    for minutes.
    """

    def __init__(
        self,
        name: str,
        *,
        make_executor: Callable[[], Executor] | None = None,
        abandon_after_s: float | None = None,
    ) -> None:
        self._name = name
        self._make_executor = make_executor
        self._abandon_after_s = abandon_after_s
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.closed = False

    @property
    def is_started(self) -> bool:
        return self._loop is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop. Cancelling the future cancels the coroutine.

        Raises RequestError if this is closed, OSError or RuntimeError if the system has no thread
        or descriptor left; the coroutine is closed then.
        """
        with self._lock:
            try:
                return asyncio.run_coroutine_threadsafe(work, self._start_loop())
            except (RequestError, OSError, RuntimeError):
                work.close()
                raise

    def call_soon(
        self, callback: Callable[[], object], context: Context
    ) -> asyncio.AbstractEventLoop:
        """Call the callback on the loop, and return the loop. Raises as `submit` does."""
        with self._lock:
            loop = self._start_loop()
            loop.call_soon_threadsafe(callback, context=context)
            return loop

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop.

        The caller holds the lock, so that work begun under it starts before the loop is told to
        end.
        """
        if self.closed:
            raise RequestError(f"{self._name} is closed")
        if self._loop is None:
            self._loop, self._thread = self._start()
        return self._loop

    def _start(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        executor = self._make_executor() if self._make_executor is not None else None
        loop = None
        try:
            loop = asyncio.new_event_loop()
            if executor is not None:
                loop.set_default_executor(executor)
            # The thread has no reference to this object, so an object dropped without closing ends
            # its thread.
            waits = self._abandon_after_s is None
            thread = threading.Thread(
                target=_serve, args=(loop, waits), name=self._name, daemon=True
            )
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
        """Cancel the work in progress, wait for it to end, and end the loop and its thread.

        Idempotent; blocks.
        """
        with self._lock:
            self.closed = True
            loop = self._loop
            thread = self._thread
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


_GEVENT_PARTS: Final = ("threading", "select", "queue")
"""Modules without whose own code an event loop can't run beside its callers."""


def refuse_gevent() -> None:
    """Raise RequestError where gevent has replaced what an event loop of our own needs."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return
    replaced = [name for name in _GEVENT_PARTS if monkey.is_module_patched(name)]
    if replaced:
        raise RequestError(
            f"gevent has replaced {', '.join(replaced)} of this process, so that no event loop can"
            " run beside the greenlets",
            advice="monkey.patch_all(thread=False, select=False, queue=False) leaves them as they"
            " are; or keep the router in a process of its own (bundle-router serve)",
        )


class Portal:
    """Runs coroutines for threads without a loop, all on one loop, so that objects they share
    belong to one loop.
    """

    def __init__(self) -> None:
        self._thread = LoopThread("bundle-router-loop")
        self.is_forked = False
        """Whether this is a child process, and the portal belongs to its parent."""
        _PORTALS.add(self)

    @property
    def closed(self) -> bool:
        return self._thread.closed

    @property
    def is_started(self) -> bool:
        return self._thread.is_started

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the portal's loop and return its result.

        An interrupt cancels it and waits briefly.

        Raises RequestError if the portal is closed, also meanwhile.
        """
        task: asyncio.Task[T]
        results: SimpleQueue[asyncio.Task[T]] = (
            SimpleQueue()
        )  # cheaper than a future of another thread

        async def shared() -> T:
            share_running_loop()
            return await work

        def begin() -> None:
            nonlocal task
            task = asyncio.get_running_loop().create_task(shared())
            task.add_done_callback(results.put)

        try:
            loop = self._thread.call_soon(begin, copy_context())
        except (RequestError, OSError, RuntimeError) as error:
            work.close()
            raise (_closed_error("this router is closed") if self.closed else error) from None
        try:
            done = results.get()
        except BaseException:  # an interrupt
            with contextlib.suppress(RuntimeError, Empty):
                loop.call_soon_threadsafe(lambda: task.cancel())
                results.get(timeout=CLEAN_UP_S)
            raise
        try:
            return done.result()
        except asyncio.CancelledError:
            if self.closed:
                raise _closed_error("it was closed during this call, which was cancelled") from None
            raise CancelledError from None

    def close(self) -> None:
        """Cancel the work in progress, wait until its end is recorded, and stop the loop.

        Idempotent.
        """
        self._thread.close()


_PORTALS: weakref.WeakSet[Portal] = weakref.WeakSet()
"""The portals of this process. Of no router: a handler of forks can't be unregistered, so there is
one for all, which holds none.
"""


def _note_fork() -> None:
    for portal in list(_PORTALS):
        portal.is_forked = True


os.register_at_fork(after_in_child=_note_fork)


def _closed_error(what: str) -> RequestError:
    return RequestError(what, advice="open another with Router.open(...)")


# --- the sessions' loop ---------------------------------------------------------------------------
# If the process is ours, so that no foreign code can block its loop, the sessions run on that loop.
# If the first caller has no loop, they run on the portal's, for which it waits anyway. Changing
# loops and back costs 40 to 70 µs of CPU.

END_S = 2.0
_SHARED: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
"""The loops that run nothing but ours. Of no router: a loop is shared, or not, for all that run on
it.
"""


def share_running_loop() -> None:
    """Run sessions that are begun on this loop on this loop itself. Close them before it ends."""
    _SHARED.add(asyncio.get_running_loop())


class _Workers(ThreadPoolExecutor):
    """An executor that queues work for its existing threads if the system has no thread for
    another.
    """

    def _adjust_thread_count(self) -> None:
        # Overrides a private method, which is called when the work is already in the queue.
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise


class SessionsLoop:
    """Runs coroutines for any caller.

    `context`, called by the caller, returns the context that they run in.
    """

    def __init__(self, name: str, context: Callable[[], Context]) -> None:
        self._name = name
        self._context = context
        self._thread = LoopThread(name, make_executor=self._workers)
        self._here: asyncio.AbstractEventLoop | None = None
        self._pending: set[asyncio.Task[Any]] = set()

    @property
    def is_started(self) -> bool:
        return self._here is not None or self._thread.is_started

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Awaitable[T]:
        """Run the coroutine that `make` returns on the sessions' loop, and await it here.

        Cancelling does not wait.

        Raises ToolFailure `unavailable` if the system has no thread or descriptor left; a later
        call may succeed.
        """
        running = asyncio.get_running_loop()
        context = self._context()
        if self._here is None and running in _SHARED and not self._thread.is_started:
            self._here = running
        if self._here is running:
            return running.create_task(context.run(make), context=context)
        return self._over_there(make, context, running)

    async def _over_there(
        self,
        make: Callable[[], Coroutine[Any, Any, T]],
        context: Context,
        here: asyncio.AbstractEventLoop,
    ) -> T:
        """Await here, by a future, a task on the other loop, with one message each way.

        `run_coroutine_threadsafe` would add a locking future and three loop iterations. The task
        sees of the caller only what `context` holds.
        """
        answer: asyncio.Future[T] = here.create_future()
        work: asyncio.Task[T] | None = None

        async def made() -> T:
            return await make()

        def begin() -> None:
            nonlocal work
            if not answer.cancelled():
                work = asyncio.get_running_loop().create_task(made(), context=context)
                self._pending.add(work)
                work.add_done_callback(ended)

        def ended(done: asyncio.Task[T]) -> None:
            self._pending.discard(done)
            with contextlib.suppress(RuntimeError):  # the caller's loop was closed
                here.call_soon_threadsafe(settle, done)

        def settle(done: asyncio.Task[T]) -> None:
            if done.cancelled():
                answer.cancel()
            elif (error := done.exception()) is not None:
                if not answer.done():
                    answer.set_exception(error)
            elif not answer.done():
                answer.set_result(done.result())

        def give_up() -> None:
            if work is not None:
                work.cancel()

        try:
            target = self._here
            if target is None:
                target = self._thread.call_soon(begin, context)
            else:
                target.call_soon_threadsafe(begin, context=context)
        except (OSError, RuntimeError) as error:
            raise ToolFailure(
                f"tool servers can't be reached from here: {error}", code="unavailable"
            ) from error
        try:
            return await answer
        except (
            asyncio.CancelledError,
            GeneratorExit,
        ):  # the latter is thrown when a loop was closed
            with contextlib.suppress(RuntimeError):  # that loop has ended, with all its work
                target.call_soon_threadsafe(give_up)
            raise

    def _workers(self) -> ThreadPoolExecutor:
        workers = _Workers(thread_name_prefix=self._name)
        try:
            workers.submit(int)  # start one thread now, so that later work can always be queued
        except RuntimeError:
            workers.shutdown(wait=False)
            raise
        return workers

    def close(self) -> None:
        """End the loop and its thread, after giving pending work `END_S` to end.

        Blocks; idempotent.
        """
        if self._here is not None and self._here.is_running():
            asyncio.run_coroutine_threadsafe(self._wait_for_pending(), self._here).result()
        elif self._thread.is_started:
            self._thread.submit(self._wait_for_pending()).result()
        self._thread.close()

    async def _wait_for_pending(self) -> None:
        if self._pending:
            await asyncio.wait(self._pending, timeout=END_S)
