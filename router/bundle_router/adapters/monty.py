"""Runs programs with pydantic-monty: a Python interpreter in worker processes, which has only what
it is given: no files, network, modules of ours or access to our objects.

What comes out of a worker is text, of bounded size:

1. A program's call leaves the worker as three lines on its standard error: an empty one, the
   function's name, the arguments as JSON. The call itself carries nothing. Its arguments are never
   read here, whoever makes it: to build them would hash and compare values of the program's, in
   this process and holding its lock (`t = (t, t)` forty times, as a key, takes for ever).
2. The value of a program is printed in the worker, and never read either.
3. What is printed, and the text of an error, is cut to the program's `output_chars`.
4. When a program ends, however it ends, its calls are cancelled and its worker is taken back.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from bundle_router.errors import needs_extra
from bundle_router.ports import CallFunction

if TYPE_CHECKING:
    from bundle_router.core.exposure.stubs import Program, ProgramEnd

WORKERS: Final = 4
"""Maximum programs that run at once; others wait."""
SESSIONS: Final = 50
"""Number of programs after which a worker process is replaced."""
_SEND: Final = "send_call"
"""The name of the function that suspends a program for a call.

It is no secret: a program that finds it can do no more with it than with its own functions.
"""
_NAME_LOOKUPS: Final = 1_000
"""Maximum undefined names that a program may look up."""
_NAME_CHARS: Final = 200
"""Maximum characters of an undefined name that are quoted."""
_FUNCTIONS: Final = """
def define():
    import json, sys
    dumps, write, channel, send = json.dumps, print, sys.stderr, {send}
    def function(name):
        async def call(*positional, **arguments):
            if positional:
                raise TypeError(name + "() takes keyword arguments only")
            write("\\n" + name + "\\n" + dumps(arguments), file=channel)
            return await send()
        return call
    return [function(name) for name in {names!r}]
{targets} = define()
define = None
"""
"""Defines a program's functions in the worker."""


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
        from bundle_router.core.exposure.stubs import ProgramEnd

        # Random numbers and sleeps must be the same on every run, because calls get their keys by
        # order.
        seed = hashlib.sha256(program.text.encode("utf-8", "replace")).hexdigest()
        policy: Any = {"sleep": "zero", "random_start": {"seed": seed}}
        limits: Any = {
            "max_feed_duration_secs": program.seconds,
            "max_memory": program.memory_bytes,
            # A call suspends its program twice: when it is made, and when it is awaited.
            "max_suspensions": 2 * program.calls + _NAME_LOOKUPS,
        }
        checked_out = (await self._pool()).checkout(
            script_name="program.py",
            limits=limits,
            type_check=True,
            type_check_stubs=program.stubs,
            type_check_format="concise",
            os_policy=policy,
        )
        output = _Output(program)
        calls = _Calls(program.calls, output, call)
        try:
            async with _session(checked_out, calls) as session:
                if program.names:
                    targets = "".join(f"{name}, " for name in program.names)
                    defined = _FUNCTIONS.format(send=_SEND, names=program.names, targets=targets)
                    await _define(session, defined)
                await _run(session, _with_value_printed(program.text), calls)
        except (monty.MontyTypingError, monty.MontySyntaxError) as wrong:
            code = "type_error" if isinstance(wrong, monty.MontyTypingError) else "syntax_error"
            sentence = output.cut(f"The program was not run:\n{wrong.display()}")
            return ProgramEnd(sentence, "invalid_arguments", code)
        except monty.MontyRuntimeError as failed:
            text = output.with_line(_traceback_of_program(failed.display("traceback")))
            return ProgramEnd(text, "tool_error", "program_failed")
        except (monty.MontyConversionError, monty.MontyCrashedError, _TooManyCalls) as failed:
            return ProgramEnd(output.with_line(str(failed)), "tool_error", "program_failed")
        return ProgramEnd(output.text)

    async def _pool(self) -> Any:
        from pydantic_monty import AsyncMonty

        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            async with self._starting.setdefault(loop, asyncio.Lock()):
                if loop not in self._pools:
                    pool = AsyncMonty(max_processes=WORKERS, max_checkouts_per_worker=SESSIONS)
                    # nobody gets it before; where this is cancelled, nobody does
                    await pool.__aenter__()
                    self._pools[loop] = pool
            self._starting.pop(loop, None)
        return self._pools[loop]

    async def close(self) -> None:
        pools = list(self._pools.values())
        self._pools = WeakKeyDictionary()
        for pool in pools:
            # the loop is closed, and its workers ended with it
            with contextlib.suppress(RuntimeError):
                await pool.__aexit__(None, None, None)


async def _define(session: Any, text: str) -> None:
    """Define the functions of a program, the one time that the name `send_call` has a value."""
    import pydantic_monty as monty

    def suspend() -> None:
        """Stand for the function in the worker; it is never called here."""

    suspend.__name__ = _SEND
    step = await session.feed_start(text, skip_type_check=True)
    while isinstance(step, monty.AsyncNameLookupSnapshot):
        step = await step.resume(value=suspend)


async def _run(session: Any, text: str, calls: _Calls) -> None:
    """Run a program to its end. Reads neither its value nor the arguments of what it calls."""
    import pydantic_monty as monty

    step = await session.feed_start(text, print_callback=calls.output)
    while not isinstance(step, monty.MontyComplete):
        if isinstance(step, monty.AsyncNameLookupSnapshot):
            step = await step.resume()  # nobody defines it: a NameError in the program
        elif isinstance(step, monty.AsyncFutureSnapshot):
            step = await _resume(step, await calls.ended(step.pending_call_ids))
        elif step.is_os_function:
            step = await step.resume_not_handled()
        elif step.function_name == _SEND:
            calls.start(step.call_id)
            step = await step.resume({"future": ...})
        else:
            sentence = f"name {step.function_name[:_NAME_CHARS]!r} is not defined"
            step = await step.resume({"exc_type": "NameError", "message": sentence})


async def _resume(step: Any, results: Mapping[int, Any]) -> Any:
    """Give a program the results of its calls."""
    import pydantic_monty as monty

    try:
        return await step.resume(results)
    except monty.MontyRuntimeError as failed:
        if "surrogates not allowed" not in str(failed):
            raise
    wrong = {"exc_type": "RuntimeError", "message": "The result holds half of a character."}
    return await step.resume(dict.fromkeys(results, wrong))


class _TooManyCalls(Exception):
    """A program made more calls than it may."""


class _Calls:
    """The calls of one program, each a task, by the number that the worker gave it."""

    def __init__(self, most: int, output: _Output, call: CallFunction) -> None:
        self.output = output
        self._most = most
        self._call = call
        self._made = 0
        self._tasks: dict[int, asyncio.Task[Any]] = {}

    def start(self, number: int) -> None:
        """Begin the call whose text was just printed. Raises `_TooManyCalls`."""
        call = self.output.take_call()
        self._made += 1
        if self._made > self._most:
            raise _TooManyCalls(f"The program made more than {self._most:,} calls.")
        self._tasks[number] = asyncio.ensure_future(self._call_as_asked(call))

    async def _call_as_asked(self, asked: tuple[str, str] | None) -> Any:
        if asked is None:
            raise RuntimeError(
                "No call was read: a tool is called by its function, with arguments of at most"
                f" {self.output.argument_chars:,} characters as JSON."
            )
        return await self._call(*asked)

    async def ended(self, numbers: list[int]) -> dict[int, Any]:
        """Wait for one of these calls, and return the results of all that have ended."""
        tasks = {number: self._tasks[number] for number in numbers}
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        finished = [number for number, task in tasks.items() if task.done()]
        return {number: _result_of(self._tasks.pop(number)) for number in finished}

    def cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def close(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        self.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def _result_of(task: asyncio.Task[Any]) -> dict[str, Any]:
    if task.cancelled():
        return {"exc_type": "RuntimeError", "message": "The call was cancelled."}
    failed = task.exception()
    if failed is None:
        return {"return_value": task.result()}
    if isinstance(failed, Exception):
        return {"exception": failed}
    raise failed


@contextlib.asynccontextmanager
async def _session(checked_out: Any, calls: _Calls) -> AsyncIterator[Any]:
    """Enter a session of a worker and, at the end, end its calls and give the worker back.

    Also where the coroutine that runs it is closed.
    """
    async with contextlib.AsyncExitStack() as stack:
        try:
            session = await stack.enter_async_context(checked_out)
            stack.push_async_callback(calls.close)
            yield session
        except GeneratorExit:
            # nothing can be awaited here; without a loop, the pool's workers have ended
            remaining = stack.pop_all()
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                pass
            else:
                loop.create_task(remaining.aclose())  # noqa: RUF006 - what it awaits holds it
            raise


_KEPT: Final = "value__ = "
"""What keeps the value of a program's last expression."""
_FEED: Final = re.compile(r'"<python-input-[0-9]+>"')


def _traceback_of_program(text: str) -> str:
    """Return a traceback as one of the program that the agent wrote."""
    lines = _FEED.sub('"program.py"', text).split("\n")
    for place, line in enumerate(lines):
        code = line.lstrip()
        if not code.startswith(_KEPT):
            continue
        indent = line[: len(line) - len(code)]
        lines[place] = indent + code.removeprefix(_KEPT)
        if place + 1 < len(lines) and not lines[place + 1].strip("~^ "):
            marks = lines[place + 1]
            lines[place + 1] = indent + marks[len(indent) + len(_KEPT) :]
    return "\n".join(lines)


def _with_value_printed(text: str) -> str:
    """Return the program with its value printed in it: to copy one like `x = [x, x]`, a few times,
    takes all memory.
    """
    with contextlib.suppress(SyntaxError, ValueError, IndexError, RecursionError, MemoryError):
        last = ast.parse(text := text.replace("\r\n", "\n").replace("\r", "\n")).body[-1]
        if isinstance(last, ast.Expr):
            lines = text.encode().split(b"\n")
            line = lines[last.lineno - 1]
            column = last.col_offset
            lines[last.lineno - 1] = line[:column] + _KEPT.encode() + line[column:]
            return (
                b"\n".join(lines).decode()
                + "\nif value__ is not None:\n    print(repr(value__), end='')\nNone"
            )
    return text + "\nNone"  # also what Monty can parse and Python can't


class _Output:
    """What a program prints, up to a maximum of characters, and the texts of its calls.

    Standard error is held back until the next call or the next line of output, because the last
    lines before a call are its text.
    """

    def __init__(self, program: Program) -> None:
        self.argument_chars = program.argument_chars
        self._names = frozenset(program.names)
        self._most = program.output_chars
        self._room = program.output_chars
        self._parts: list[str] = []
        self._held: list[str] = []
        self._held_chars = 0
        self._held_most = program.argument_chars + max(map(len, program.names), default=0) + 3

    def __call__(self, stream: str, text: str) -> None:
        """Take what the worker sends: `stream` is `stdout` or `stderr`."""
        if stream != "stderr":
            self._write(self._release())
            self._write(text)
            return
        if self._held_chars + len(text) > self._held_most:
            self._write(self._release())
            text = text[-self._held_most :]
        self._held.append(text)
        self._held_chars += len(text)

    def take_call(self) -> tuple[str, str] | None:
        """Return the name and the arguments of the call whose text was printed last; None where
        the last lines are no call.
        """
        output = self._release()
        lines = output.rsplit("\n", 3)
        if len(lines) == 4 and lines[1] in self._names and lines[3] == "":
            prefix, name, arguments, _ = lines
            if len(arguments) <= self.argument_chars:
                self._write(prefix)
                return name, arguments
        self._write(output)
        return None

    def cut(self, text: str) -> str:
        """Return a text, cut to the maximum of characters."""
        if len(text) <= self._most:
            return text
        return text[: self._most] + "\n(the rest was dropped)"

    @property
    def text(self) -> str:
        self._write(self._release())
        return "".join(self._parts)

    def with_line(self, line: str) -> str:
        """Return the text of a program that failed, perhaps between a call's text and the call."""
        self.take_call()
        text = self.text
        if text and not text.endswith("\n"):
            text += "\n"
        return text + self.cut(line)

    def _release(self) -> str:
        output = "".join(self._held)
        self._held.clear()
        self._held_chars = 0
        return output

    def _write(self, text: str) -> None:
        if self._room <= 0:
            return
        self._parts.append(text[: self._room])
        self._room -= len(text)
        if self._room <= 0:
            self._parts.append("\n(the rest of what the program printed was dropped)")
