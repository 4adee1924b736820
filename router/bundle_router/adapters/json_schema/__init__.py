"""JSON Schema, drafts 4 to 2020-12: what is wrong with a value, found in a bounded number of steps.

Why not a library: `jsonschema` compares and prints whole values at every keyword and runs patterns in `re`;
`jsonschema-rs` is linear in most keywords, but can't be stopped, and holds the interpreter for as long as it takes.

Rules:
1. A schema is untrusted. References are resolved inside it only; nothing is ever fetched.
2. Patterns are run by RE2, in linear time. One that RE2 does not take (look-around, back-references) is not checked.
3. Every keyword costs a step, and every name, item and character it looks at a share of one. Equality is that of
   canonical texts, so `uniqueItems`, `enum` and `const` are linear; what `unevaluatedProperties` and
   `unevaluatedItems` leave over is collected on the way and not found by evaluating again.
4. A check that needs more steps or time than it may have raises `Unchecked`. So does a schema that is none. Whoever
   asked leaves the verdict to the server, the judge of its own schema.
5. `format`, `contentEncoding` and their like say what a value is for and refuse nothing.
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
from bundle_router.adapters.json_schema.verdicts import CHECK_STEPS, INLINE_STEPS, JsonSchema, OutOfSteps, Unchecked
from bundle_router.adapters.workers import Workers
from bundle_router.errors import ToolFailure

WAIT_S: Final = 2.0
"""How long a check may take with its waiting for others."""
KEPT: Final = 512


class SchemaChecker:
    """Checks values for any event loop and keeps the last schemas made ready. What can't be checked counts as fine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, JsonSchema] = OrderedDict()
        # One thread: several would take the interpreter from the event loop in turn.
        self._worker = Workers(1)

    async def problems(self, name: str, schema: Mapping[str, Any], value: Any) -> Sequence[str]:
        """Return what is wrong with the value, one sentence each. `name` is whose schema it is, for keeping it."""
        ready = self._kept_schema(name, schema)
        try:
            return ready.problems(value, INLINE_STEPS)
        except OutOfSteps:
            pass
        except Unchecked:
            return ()
        pause = _turns_of(asyncio.get_running_loop(), time.monotonic() + WAIT_S)
        with contextlib.suppress(TimeoutError, ToolFailure, Unchecked):  # no thread to be had: it can't be checked
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
    """Return what waits, in a thread, until the loop had a turn. It raises Unchecked from `until` on: nobody waits for
    the verdict any longer."""

    def wait_for_turn() -> None:
        turn = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(turn.set)
            turn.wait(0.05)
        if time.monotonic() > until:
            raise Unchecked("too slow")

    return wait_for_turn


__all__ = ["CHECK_STEPS", "INLINE_STEPS", "JsonSchema", "OutOfSteps", "SchemaChecker", "Unchecked"]
