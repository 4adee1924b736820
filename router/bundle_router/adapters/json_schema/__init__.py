"""JSON Schema, drafts 4 to 2020-12: finds the errors of a value in a bounded number of steps.

Why not a library: `jsonschema` compares and prints whole values at every keyword and runs patterns
in `re`; `jsonschema-rs` is linear in most keywords, but can't be stopped, and holds the GIL all the
time.

Rules:
1. A schema is untrusted. References are resolved inside it only; nothing is ever fetched.
2. RE2 runs the patterns, in linear time. A pattern that RE2 rejects (look-around, back-references)
   is not checked.
3. Every keyword costs a step, and every name, item and character it reads a fraction of one. Values
   are compared by canonical texts, so `uniqueItems`, `enum` and `const` are linear. Evaluated names
   and items are collected on the way, so `unevaluatedProperties` and `unevaluatedItems` evaluate
   nothing twice.
4. A check that exceeds its steps or time raises `Unchecked`, and so does an invalid schema. The
   caller then leaves the verdict to the server that wrote the schema.
5. `format`, `contentEncoding` and similar keywords are annotations, which refuse nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import bundle_router.adapters.json_schema.keywords  # noqa: F401  # it fills the table of keywords
from bundle_router.adapters.json_schema.verdicts import (
    CHECK_STEPS,
    INLINE_STEPS,
    JsonSchema,
    OutOfSteps,
    Unchecked,
)
from bundle_router.adapters.workers import Workers
from bundle_router.errors import ToolFailure

WAIT_S: Final = 2.0
"""Seconds that a check may take, waiting included."""
KEPT: Final = 512


class SchemaChecker:
    """Checks values for any event loop, and caches the last schemas.

    A value that can't be checked counts as valid.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, JsonSchema] = OrderedDict()
        # One thread: several would take turns in keeping the GIL from the event loop.
        self._worker = Workers(1)

    async def problems(self, name: str, schema: Mapping[str, Any], value: Any) -> Sequence[str]:
        """Return the errors of the value, one sentence each.

        `name` identifies the schema in the cache.
        """
        ready = self._kept_schema(name, schema)
        if ready.accepts(value):
            return ()
        try:
            return ready.problems(value, INLINE_STEPS)
        except OutOfSteps:
            pass
        except Unchecked:
            return ()
        pause = _turns_of(asyncio.get_running_loop(), time.monotonic() + WAIT_S)
        with contextlib.suppress(
            TimeoutError, ToolFailure, Unchecked
        ):  # without a thread it can't be checked
            work = self._worker.submit(lambda: ready.problems(value, CHECK_STEPS, pause))
            return await asyncio.wait_for(work, WAIT_S)
        return ()

    def _kept_schema(self, name: str, schema: Mapping[str, Any]) -> JsonSchema:
        with self._lock:
            ready = self._kept.pop(name, None)
            if ready is None or ready.root is not schema:
                ready = JsonSchema(schema)
            self._kept[name] = ready
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return ready

    def close(self) -> None:
        self._worker.close(WAIT_S)


def _turns_of(loop: asyncio.AbstractEventLoop, until: float) -> Callable[[], None]:
    """Return a function that waits, in a thread, until the loop has run once.

    From `until` on it raises Unchecked, because nobody waits for the verdict any longer.
    """

    def wait_for_turn() -> None:
        turn = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(turn.set)
            turn.wait(0.05)
        if time.monotonic() > until:
            raise Unchecked("too slow")

    return wait_for_turn


__all__ = ["CHECK_STEPS", "INLINE_STEPS", "JsonSchema", "OutOfSteps", "SchemaChecker", "Unchecked"]
