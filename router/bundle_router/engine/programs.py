"""Agents' programs (code mode): check, run and record them.

Each call in a program is a call of the run like any other.

Rules:
1. A program may call the tools of shown bundles in mode `code` that are exposed now; tools of
   untrusted servers only where policy says so. Every call passes the same verdict, budget and
   record as an agent's own call; its `via` names the program, which is stored as an artifact.
2. A program gets whole results, without a frame. What it prints is the agent's result, shaped like
   any other; in a frame where the program called a tool of a server that has one.
3. Where the program has a key, its calls have keys by their order: a second run gets the recorded
   results.
4. A call that a row with `seen` refuses ends the program: it makes no further one, and its output
   is not shown.
5. A call to an undefined name is a gap. The type checker's errors go to the agent, with their
   lines.
6. A call that waits for somebody's word ends the program, as held: made again once it is granted,
   with its key, the program gets the recorded results of the calls before, and the held one runs.
7. Time, memory, calls and output are bounded (`[limits]`); the interpreter has no files, network or
   other modules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from bundle_router.core.catalog import Bundle
from bundle_router.core.catalog.step_address import address_of
from bundle_router.core.decide.ceiling import may_call_untrusted_in_code
from bundle_router.core.exposure.meta_tools.definitions import EXECUTE
from bundle_router.core.exposure.program_text import meant_names, missing_awaits, plain_program
from bundle_router.core.exposure.stubs import (
    MAX_PROGRAM,
    Program,
    ProgramEnd,
    called_and_undefined,
    functions,
    stubs,
)
from bundle_router.core.results.shaping import Blob
from bundle_router.core.servers.transport.tool_servers import CallOutcome
from bundle_router.core.values import META_SERVER, MODES, Text
from bundle_router.core.values.canonical import digest
from bundle_router.engine.engine_ports import CallPorts
from bundle_router.engine.made_calls import finish_call, shape_blocks, store
from bundle_router.engine.meta_calls import MissedTool, record_missed
from bundle_router.engine.program_values import value_of
from bundle_router.engine.reservations import within_budget
from bundle_router.engine.results import (
    AdmittedCall,
    CallRequest,
    Result,
)
from bundle_router.engine.surface import RunState, why_not
from bundle_router.ports import CallFunction, Programs

Call = Callable[[str, str, str, str], Awaitable[Result]]
"""Makes a call of the run: canonical name, arguments as JSON text, key, via."""
FORM: Final = (
    f"{EXECUTE} takes one argument, 'code': the text of a Python program of at most {MAX_PROGRAM:,}"
    " characters."
)


def bundles_in_code(state: RunState) -> list[Bundle]:
    """Return the shown bundles in mode `code`."""
    catalog = state.catalog
    modes = state.modes
    bundles = [bundle for id_ in state.bundle_ids if (bundle := catalog.bundle(id_)) is not None]
    return [bundle for bundle in bundles if MODES[modes.get(bundle.id) or bundle.mode].by_program]


def callable_in_code(state: RunState) -> dict[str, str]:
    """Return the tools that a program of this step may call (rule 1), each with its exposed
    name.
    """
    exposed = state.exposed()
    catalog = state.catalog
    strangers = may_call_untrusted_in_code(catalog, address_of(state.step), state.facts.grants)
    names: dict[str, str] = {}
    for bundle in bundles_in_code(state):
        for tool in bundle.tools:
            if tool not in exposed:
                continue
            server = catalog.servers[tool.partition(".")[0]]
            if strangers or server.trust == "trusted":
                names[tool] = state.surface.exposed.get(tool, tool)
    return names


async def execute(
    at: CallPorts, programs: Programs, state: RunState, request: CallRequest, call: Call
) -> Result:
    """Run the program of a call to `execute`, and return what it printed."""
    execute_call = AdmittedCall(
        f"{META_SERVER}.{EXECUTE}", "", request, state, state.scope, at.ports.clock.monotonic_ns()
    )
    execution = partial(_execute, at, programs, execute_call, call)
    return await within_budget(at, execute_call, execution)


async def _execute(
    at: CallPorts, programs: Programs, execute_call: AdmittedCall, call: Call
) -> Result:
    ports = at.ports
    run = at.run
    state = execute_call.state
    request = execute_call.request
    limits = execute_call.state.catalog.settings.limits
    written = request.arguments.value.get("code") if request.arguments.wrong is None else None
    code = plain_program(written) if isinstance(written, str) else ""
    if not code.strip() or len(code) > MAX_PROGRAM:
        return await _finish(
            at, execute_call, ProgramEnd(FORM, "invalid_arguments", "invalid_arguments"), ()
        )
    text = code.encode("utf-8", "replace")
    blob = Blob(
        text,
        digest(text).rpartition(":")[2],
        "program",
        ports.describe(text),
        "text/x-python",
        "program.py",
    )
    artifacts = await store(run, (blob,))
    functions_by_name = functions(callable_in_code(state))
    count = 0
    framed = False
    tainted = ""

    held_result: Result | None = None

    async def called(name: str, arguments: str) -> Any:
        nonlocal count, framed, tainted, held_result
        if tainted:  # the program went on, in an `except`
            raise RuntimeError(tainted)
        if held_result is not None:
            raise RuntimeError(held_result.text)
        count += 1
        server = state.catalog.servers[functions_by_name[name].partition(".")[0]]
        framed = framed or server.frames_results
        key = f"{request.key}:{count}" if request.key else ""
        result = await call(functions_by_name[name], arguments, key, artifacts[0].uri)
        if result.code == "tainted":
            tainted = result.text
        if result.approval is not None:
            held_result = result
        if not result.ok:
            raise RuntimeError(result.text)
        artifact = partial(at.tree.artifact, run.id, principal=state.step.principal)
        return value_of(result, artifact, state.catalog.cards.get(functions_by_name[name]))

    program = Program(
        text=code,
        stubs=stubs(functions_by_name, state.catalog.cards),
        names=tuple(functions_by_name),
        seconds=limits.code_seconds,
        memory_bytes=limits.code_memory_mb * 1024 * 1024,
        calls=limits.code_calls,
        output_chars=limits.max_result_bytes,
        # JSON of only ASCII: up to six characters for a byte that counts in `max_argument_bytes`.
        argument_chars=6 * limits.max_argument_bytes,
    )
    undefined = called_and_undefined(code, functions_by_name)
    unawaited = missing_awaits(code, functions_by_name)
    if unawaited:
        sentence = "\n".join(["The program was not run:", *unawaited])
        end = ProgramEnd(sentence, "invalid_arguments", "type_error")
    else:
        end = await _run_in_time(programs, program, called, limits.code_timeout_s)
    if tainted:
        end = ProgramEnd(f"{tainted} The program ended there.", "denied", "tainted")
    if end.code == "type_error":
        end = replace(end, text="\n".join([end.text, *meant_names(undefined, functions_by_name)]))
    for name in undefined:
        await run.under_lock(partial(_record_gap, at, execute_call, artifacts[0].uri, name))
    if held_result is None:
        return await _finish(at, execute_call, end, artifacts, framed=framed)
    end = ProgramEnd(_held_words(held_result, request.key), "denied", "approval_needed")
    result = await _finish(at, execute_call, end, artifacts)
    return replace(result, outcome=held_result.outcome, code="", approval=held_result.approval)


def _held_words(held_result: Result, key: str) -> str:
    """Return the text of a program that ended because one of its calls waits."""
    if key:
        again = "Called again with the same key and code it goes on from there."
    else:
        again = (
            "It had no key: called again it makes the calls before once more. Give `execute` a key"
            " where they change something."
        )
    return f"The program ended. {held_result.text} {again}"


async def _run_in_time(
    programs: Programs, program: Program, called: CallFunction, timeout_s: float
) -> ProgramEnd:
    try:
        async with asyncio.timeout(timeout_s):
            return await programs.run(program, called)
    except TimeoutError:
        reason = f"The program took longer than {timeout_s:g} s with its calls."
        return ProgramEnd(reason, "timeout", "timeout")


def _record_gap(at: CallPorts, call: AdmittedCall, via: str, name: str, wait_s: float) -> None:
    state = call.state
    at.run.read_on()
    code, detail = why_not(state, state.surface.canonical.get(name, name))
    text = f"{name!r} is not available at this step ({code}: {detail})."
    gap = MissedTool(state.surface.canonical.get(name, name), code, text)
    record_missed(at, replace(call.request, via=via, key=""), state, gap, wait_s)


async def _finish(
    at: CallPorts, call: AdmittedCall, end: ProgramEnd, recorded: Any, *, framed: bool = False
) -> Result:
    """Record the end of a program. `framed`: it called tools of untrusted servers, so what it
    printed may be theirs.
    """
    shaped = await shape_blocks(
        at.ports,
        call.state.catalog.settings.limits.max_result_chars,
        (Text(end.text),),
        framed=framed,
    )
    stored = (*recorded, *await store(at.run, shaped.blobs))
    outcome = CallOutcome(end.outcome, end.code, shaped, stored=stored)
    return await at.run.record(partial(finish_call, at.ports, at.run, call, outcome))
