"""Runs programs with pydantic-monty: a Python interpreter in worker processes, which has only what
it is given: no files, no network, no modules of ours, no access to our objects.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator
from typing import Any, Final
from weakref import WeakKeyDictionary

from bundle_router.core.tools.stubs import Program, ProgramEnd
from bundle_router.errors import needs_extra
from bundle_router.ports import CallFunction

WORKERS: Final = 4
"""Maximum programs that run at once; others wait."""
SESSIONS: Final = 50
"""Number of programs after which a worker process is replaced."""
_FUNCTIONS: Final = """
def define():
    import json
    dumps, send = json.dumps, {send}
    def function(name):
        async def call(*positional, **arguments):
            if positional:
                raise TypeError(name + "() takes keyword arguments only")
            return await send(name, dumps(arguments))
        return call
    return [function(name) for name in {names!r}]
{targets} = define()
define = None
"""
"""Defines a program's functions in the worker.

Arguments leave it as text: Monty copies values into this process whole, where a small one like
`x = [x, x]`, a few times, takes all memory. A program can't guess the name `send`.
"""


class MontyPrograms:
    """The `Programs` port over pydantic-monty.

    Workers start with the first program of an event loop (some 15 ms).
    """

    def __init__(self) -> None:
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()
        self._starting: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def run(self, program: Program, call: CallFunction) -> ProgramEnd:
        """Check and run a program. Raises NotInstalled."""
        with needs_extra("a bundle with mode = 'code'", "code"):
            import pydantic_monty as monty
        printed = _Printed(program.output_chars)
        # Random numbers and sleeps must be the same on every run, because calls get their keys by
        # order.
        seed = hashlib.sha256(program.text.encode("utf-8", "replace")).hexdigest()
        policy: Any = {"sleep": "zero", "random_start": {"seed": seed}}
        limits: Any = {
            "max_feed_duration_secs": program.seconds,
            "max_memory": program.memory_bytes,
            "max_suspensions": program.calls,
        }
        checked_out = (await self._pool()).checkout(
            script_name="program.py",
            limits=limits,
            type_check=True,
            type_check_stubs=program.stubs,
            type_check_format="concise",
            os_policy=policy,
        )
        send = f"send_{secrets.token_hex(16)}"
        lookup = {send: call}
        try:
            async with _ended_when_closed(checked_out) as session:
                if program.names:
                    targets = "".join(f"{name}, " for name in program.names)
                    defined = _FUNCTIONS.format(send=send, names=program.names, targets=targets)
                    await session.feed_run(defined, external_lookup=lookup, skip_type_check=True)
                await session.feed_run(
                    _with_value_printed(program.text),
                    external_lookup=lookup,
                    print_callback=printed,
                )
        except monty.MontyTypingError as wrong:
            return ProgramEnd(
                f"The program was not run:\n{wrong.display()}", "invalid_arguments", "type_error"
            )
        except monty.MontySyntaxError as wrong:
            return ProgramEnd(
                f"The program was not run:\n{wrong.display()}", "invalid_arguments", "syntax_error"
            )
        except monty.MontyRuntimeError as failed:
            return ProgramEnd(
                printed.with_line(failed.display("traceback")), "tool_error", "program_failed"
            )
        except (monty.MontyConversionError, monty.MontyCrashedError) as failed:
            return ProgramEnd(printed.with_line(str(failed)), "tool_error", "program_failed")
        return ProgramEnd(printed.text)

    async def _pool(self) -> Any:
        from pydantic_monty import AsyncMonty

        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            async with self._starting.setdefault(loop, asyncio.Lock()):
                if loop not in self._pools:
                    pool = AsyncMonty(max_processes=WORKERS, max_checkouts_per_worker=SESSIONS)
                    await (
                        pool.__aenter__()
                    )  # nobody gets it before; where this is cancelled, nobody does
                    self._pools[loop] = pool
            self._starting.pop(loop, None)
        return self._pools[loop]

    async def close(self) -> None:
        pools, self._pools = list(self._pools.values()), WeakKeyDictionary()
        for pool in pools:
            with contextlib.suppress(
                RuntimeError
            ):  # the loop is closed, and its workers ended with it
                await pool.__aexit__(None, None, None)


@contextlib.asynccontextmanager
async def _ended_when_closed(checked_out: Any) -> AsyncIterator[Any]:
    """Do as `async with checked_out` does, also where the coroutine that runs it is closed."""
    async with contextlib.AsyncExitStack() as held:
        try:
            yield await held.enter_async_context(checked_out)
        except (
            GeneratorExit
        ):  # nothing can be awaited here; without a loop, the pool's workers have ended
            left = held.pop_all()
            if asyncio._get_running_loop() is not None:
                asyncio.ensure_future(left.aclose())  # noqa: RUF006 - what it awaits holds it
            raise


def _with_value_printed(text: str) -> str:
    """Return the program with its value printed in it: to copy one like `x = [x, x]`, a few times,
    takes all memory.
    """
    with contextlib.suppress(SyntaxError, ValueError, IndexError, RecursionError, MemoryError):
        last = ast.parse(text := text.replace("\r\n", "\n").replace("\r", "\n")).body[-1]
        if isinstance(last, ast.Expr):
            lines = text.encode().split(b"\n")
            line, at = lines[last.lineno - 1], last.col_offset
            lines[last.lineno - 1] = line[:at] + b"value__ = " + line[at:]
            return (
                b"\n".join(lines).decode()
                + "\nif value__ is not None:\n    print(repr(value__), end='')\nNone"
            )
    return text + "\nNone"  # also what Monty can parse and Python can't


class _Printed:
    """The printed output of a program, up to a maximum of characters."""

    def __init__(self, most: int) -> None:
        self._parts: list[str] = []
        self._room = most

    def __call__(self, stream: str, text: str) -> None:
        if self._room > 0:
            self._parts.append(text[: self._room])
            self._room -= len(text)
            if self._room <= 0:
                self._parts.append("\n(the rest of what the program printed was dropped)")

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def with_line(self, line: str) -> str:
        text = self.text
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}"
