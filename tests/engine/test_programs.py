"""Code mode: an agent's program calls tools by the same policy, keys, budgets and records, and can
do nothing else.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Result, Router, Step
from bundle_router.adapters.media import describe
from bundle_router.adapters.monty import WORKERS
from bundle_router.core.catalog import Bundle, Card, Policy, Route, Server
from bundle_router.core.exposure.stubs import called_and_undefined
from bundle_router.core.results.shaping import shape
from bundle_router.core.servers.transport.tool_servers import RawResult
from bundle_router.core.values import Data, Text
from bundle_router.engine.program_values import value_of
from bundle_router.engine.programs import callable_in_code
from bundle_router.testing import fake_router, small_catalog
from bundle_router.tool import LocalServer, Media

pytest.importorskip(
    "pydantic_monty", reason="pydantic-monty is not installed; the extra code has it"
)

CONFIG = {
    "routes": '[[routes]]\nname = "all"\nbundles = ["notes", "plain"]\n',
    "policy": (
        '[[policies]]\nname = "all"\nallow = ["bundle:notes", "bundle:plain"]\ndeny ='
        ' ["tool:notes.burn"]\neffects = ["read", "write"]\n'
    ),
}


class Notes:
    def __init__(self) -> None:
        self.added: list[str] = []

    def servers(self) -> dict[str, LocalServer]:
        def add(text: str) -> int:
            """Add a note."""
            self.added.append(text)
            return len(self.added)

        async def listing(count: int, prefix: str = "line") -> list[dict[str, Any]]:
            """List what there is."""
            return [
                {"name": f"{prefix} {number}", "size": number * 7 % 100} for number in range(count)
            ]

        def draw() -> Media:
            """Draw."""
            return Media(b"\x89PNG\r\n\x1a\n", "image/png")

        def burn() -> str:
            """Burn the notes."""
            raise AssertionError("policy denies it")

        def direct() -> str:
            """Be called by name."""
            return "direct"

        return {
            "notes": LocalServer(
                [add, listing, draw, burn], "Notes.", effects=["read", "write"], mode="code"
            ),
            "plain": LocalServer([direct], "Plain.", effects=["read"]),
        }


def run(
    folder: Path,
    work: Callable[[Router], Coroutine[Any, Any, Any]],
    limits: str = "",
    notes: Notes | None = None,
) -> Any:
    (folder / "config").mkdir(exist_ok=True)
    for name, text in {**CONFIG, "router": f"[limits]\n{limits}\n"}.items():
        (folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")

    async def main() -> Any:
        local = (notes or Notes()).servers()
        async with Router.open(
            folder / "config", runs=folder / "runs", local=local, workspace=folder
        ) as router:
            await router.route(Step(run_id="r", workflow="w", role="r", step="s", key="k"))
            return await work(router)

    return asyncio.run(main())


def execute(
    folder: Path, program: str, limits: str = "", notes: Notes | None = None, key: str = ""
) -> Result:
    async def work(router: Router) -> Result:
        return await router.call("r", "execute", {"code": program}, key=key)

    result = run(folder, work, limits, notes)
    assert isinstance(result, Result)
    return result


def calls(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "runs" / "r" / "tool-calls.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["type"] == "call.finished"]


def test_the_agent_is_shown_search_and_execute_and_told_of_them(tmp_path: Path) -> None:
    async def work(router: Router) -> Any:
        shown = await router.tools("r")
        found = await router.call("r", "search_tools", {"query": "add a note"})
        return shown, found.text

    shown, found = run(tmp_path, work)
    names = [row["function"]["name"] for row in shown.tools]
    assert names == ["search_tools", "execute", "read_artifact", "search_artifact", "plain__direct"]
    assert "execute runs a program" in shown.guidance
    assert "notes__add(text)" in found
    assert "await notes__add(" in found


def test_intermediate_results_never_pass_through_the_model(tmp_path: Path) -> None:
    program = """
rows = await notes__listing(count=2000)
big = [row["name"] for row in rows if row["size"] > 97]
print(len(rows), big[:2])
"""
    result = execute(tmp_path, program)
    assert result.text == "2000 ['line 14', 'line 57']\n"
    inner, outer = calls(tmp_path)
    assert (inner["server"], inner["tool"], inner["outcome"]) == ("notes", "listing", "ok")
    assert inner["via"] == outer["artifacts"][0]["uri"]
    assert outer["artifacts"][0]["role"] == "program"
    digest = outer["artifacts"][0]["sha256"]
    kept = tmp_path / "runs" / "r" / "artifacts" / "sha256" / digest[:2] / digest
    assert kept.read_text(encoding="utf-8") == program


def test_calls_run_at_once_and_give_values(tmp_path: Path) -> None:
    program = """
import asyncio
counts = await asyncio.gather(*[notes__add(text=str(n)) for n in range(30)])
picture = await notes__draw()
print(sum(counts), picture["media"][0][:16])
"""
    notes = Notes()
    result = execute(tmp_path, program, notes=notes)
    assert result.text.strip() == "465 artifact:sha256:"
    assert len(notes.added) == 30


def test_a_program_that_is_run_again_with_its_key_does_nothing_twice(tmp_path: Path) -> None:
    notes, program = Notes(), "print(await notes__add(text='a'), await notes__add(text='b'))"
    first = execute(tmp_path, program, notes=notes, key="p")
    again = execute(tmp_path, program, notes=notes, key="p")
    assert first.text == again.text == "1 2\n"
    assert notes.added == ["a", "b"]


def test_a_program_with_a_held_call_ends_and_goes_on_once_it_is_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = CONFIG["policy"] + (
        '[[approvals]]\nname = "burnt"\ncalls = ["tool:notes.add"]\n'
        'unless = [{ at = "/text", in = ["a", "b", "d"] }]\n'
    )
    notes = Notes()
    program = """
try:
    await notes__add(text="a")
    await notes__add(text="b")
    await notes__add(text="c")
except RuntimeError:
    pass
await notes__add(text="d")
print("all")
"""

    async def work(router: Router) -> tuple[Result, Result]:
        held = await router.call("r", "execute", {"code": program}, key="p")
        assert held.approval is not None
        await router.grant(held.approval.id, by="lead")
        return held, await router.call("r", "execute", {"code": program}, key="p")

    monkeypatch.setitem(CONFIG, "policy", policy)
    held, result = run(tmp_path, work, notes=notes)
    assert (held.outcome, held.code) == ("awaiting_approval", "")
    assert "The program ended. Not done: notes.add waits for approval" in held.text
    assert "with the same key and code" in held.text
    assert (result.text, notes.added) == ("all\n", ["a", "b", "c", "d"])


def test_what_the_checker_finds_goes_back_with_its_line_and_nothing_is_run(tmp_path: Path) -> None:
    notes = Notes()
    result = execute(tmp_path, "await notes__add(text='a')\nawait notes__add(text=7)", notes=notes)
    assert (result.outcome, result.code) == ("invalid_arguments", "type_error")
    assert "program.py:2" in result.text
    assert "Expected `str`" in result.text
    assert not notes.added


def test_an_unknown_name_and_a_denied_tool_are_gaps(tmp_path: Path) -> None:
    result = execute(
        tmp_path,
        "await notes__burn()\nawait no_such_tool(x=1)\ndef own():\n    pass\nown()\nprint(len([]))",
    )
    assert "notes__burn" in result.text
    gaps = [row for row in calls(tmp_path) if row["outcome"] == "denied"]
    assert [".".join(filter(None, (row["server"], row["tool"]))) for row in gaps] == [
        "notes.burn",
        "no_such_tool",
    ]
    assert gaps[0]["code"] == "policy_denied"
    assert all(row["via"].startswith("artifact:sha256:") for row in gaps)


def test_a_failed_call_can_be_caught(tmp_path: Path) -> None:
    program = (
        "try:\n    await notes__listing(count=1, prefix='x' * 2000000)\nexcept RuntimeError as e:\n"
        "    print('caught')"
    )
    assert execute(tmp_path, program).text == "caught\n"


def test_budgets_count_the_calls_of_programs(tmp_path: Path) -> None:
    result = execute(
        tmp_path, "for n in range(9):\n    await notes__add(text=str(n))", "calls_per_step = 5"
    )
    assert not result.ok
    assert [row["outcome"] for row in calls(tmp_path)].count("ok") <= 5
    assert "budget" in [row["outcome"] for row in calls(tmp_path)]


@pytest.mark.parametrize("limits", ["calls_per_step = 5", "calls_per_tree = 5"])
def test_programs_that_run_at_the_same_time_do_not_exceed_the_budget(
    tmp_path: Path, limits: str
) -> None:
    """A program is recorded when it is over: until then it counts all the same."""

    async def work(router: Router) -> list[str]:
        every = [router.call("r", "execute", {"code": "print(1)"}) for _ in range(12)]
        return [result.outcome for result in await asyncio.gather(*every)]

    assert sorted(run(tmp_path, work, limits)) == ["budget"] * 7 + ["ok"] * 5


def test_programs_that_still_run_count_for_their_step_and_no_other_when_it_is_routed_again(
    tmp_path: Path,
) -> None:
    begun, end = asyncio.Queue[None](), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        await begun.put(None)
        await end.wait()
        return "waited"

    async def work(router: Router) -> None:
        step = Step(run_id="r", workflow="w", role="r", step="s")
        await router.route(step)
        programs = [
            asyncio.create_task(router.call("r", "execute", {"code": "await notes__wait()"}))
            for _ in "ab"
        ]
        for _ in programs:
            await begun.get()
        await router.route(step.model_copy(update={"step": "other"}))
        assert [(await router.call("r", "plain__direct")).outcome for _ in range(3)] == ["ok"] * 3
        await router.route(step)
        assert (await router.call("r", "plain__direct")).code == "calls_per_step"
        end.set()
        assert [(await program).outcome for program in programs] == ["ok", "ok"]

    def burn() -> str:
        """Burn the notes."""
        raise AssertionError("policy denies it")

    class Waiting(Notes):
        def servers(self) -> dict[str, LocalServer]:
            notes = LocalServer([wait, burn], "Notes.", effects=["read"], mode="code")
            return {**super().servers(), "notes": notes}

    run(tmp_path, work, "calls_per_step = 4", Waiting())


NEVER = {
    "a file": ("open('/etc/passwd').read()", "open"),
    "a file by pathlib": (
        "from pathlib import Path\nprint(Path('/etc/passwd').read_text())",
        "Permission",
    ),
    "writing a file": ("from pathlib import Path\nPath('/tmp/x').write_text('a')", "Permission"),
    "listing a folder": ("import os\nprint(os.listdir('/'))", "Permission"),
    "the environment": ("import os\nprint(os.environ)", "not supported"),
    "the network": ("import socket", "socket"),
    "a process": ("import subprocess", "subprocess"),
    "our modules": ("import bundle_router", "bundle_router"),
    "importlib": ("import importlib", "importlib"),
    "classes of the interpreter": (
        "print(().__class__.__bases__[0].__subclasses__())",
        "__class__",
    ),
    "text that is evaluated": ("print(eval('__import__(\\'os\\').environ'))", "__import__"),
    "text that is executed": ("exec('print(open(\\'/etc/passwd\\').read())')", "open"),
    "the globals of a function": ("async def f(): pass\nprint(f.__globals__)", "__globals__"),
    "what a tool's function is made of": ("print(notes__add.__closure__)", "__closure__"),
    "an endless loop": ("while True:\n    pass", "time"),
    "an endless coroutine": ("async def f():\n    return await f()\nawait f()", "recursion"),
    "recursion": ("def f():\n    return f()\nf()", "recursion"),
    "memory": ("x = [0] * 10**9", "memory limit"),
    "memory by doubling": ("x = 'a'\nwhile True:\n    x += x", "memory limit"),
    "a flood of output": ("while True:\n    print('x' * 1000)", "dropped"),
    "a flood of calls": ("while True:\n    await notes__add(text='x')", "more than 20 calls"),
    "an argument that doubles": (
        "x = [1]\nfor i in range(60):\n    x = [x, x]\nawait notes__add(text=x)  # type: ignore",
        "limit exceeded",
    ),
    "an argument of itself": (
        "x = []\nx.append(x)\nawait notes__add(text=x)  # type: ignore",
        "Circular reference",
    ),
    "what defines its functions": ("define()  # type: ignore", "not callable"),
    "a tool that is called by name": ("await plain__direct()", "plain__direct"),
    "the router's own tools": ("await call_tool(name='notes.burn')", "call_tool"),
}


@pytest.mark.parametrize("what", NEVER)
def test_a_program_may_never(what: str, tmp_path: Path) -> None:
    program, why = NEVER[what]
    seconds = 0.5 if why in ("time", "dropped") else 60
    limits = (
        f"code_seconds = {seconds}\ncode_memory_mb = 32\ncode_calls = 20\nmax_result_bytes = 20000"
    )

    async def work(router: Router) -> Any:
        result = await router.call("r", "execute", {"code": program})
        while "time" in (after := await router.call("r", "execute", {"code": "print(1 + 1)"})).text:
            # half a second may be too short on a busy machine, where the pool, not the worker,
            # notices at times
            pass
        return result, after

    result, after = run(tmp_path, work, limits)
    assert result.outcome in ("tool_error", "invalid_arguments")
    assert why in result.text
    assert after.text == "2\n", "the pool is well"
    assert "root:" not in result.text


FIND = "send = [value for name, value in locals().items() if name.startswith('send')][0]\n"
SHARED = "x = []\nfor _ in range(40):\n    x = [x, x]\n"
HASHED = "x = ()\nfor _ in range(40):\n    x = (x, x)\n"
NO_CALL = "No call was read"
# How a program may hand something over, and what comes of it. Read in this process, the values of
# SHARED and HASHED take all memory, or all time.
HANDED_OVER = {
    "a value that shares itself, as arguments": (
        FIND + SHARED + "await send('notes__add', {'text': x})",
        NO_CALL,
    ),
    "a value that shares itself, as a name": (FIND + SHARED + "await send(x, '{}')", NO_CALL),
    "a key that takes for ever to hash": (FIND + HASHED + "await send({x: 1})", NO_CALL),
    "a set of one": (FIND + HASHED + "await send({x}, frozenset([x]))", NO_CALL),
    "keys that collide": (
        FIND + "await send({n * (2 ** 61 - 1): 1 for n in range(30_000)})",
        NO_CALL,
    ),
    "a keyword that shares itself": (FIND + SHARED + "await send(text=x)", NO_CALL),
    "a keyword of megabytes": (FIND + "await send(**{'k' * 9_000_000: 1})", NO_CALL),
    "a million arguments": (FIND + "await send(*['a' * 1000] * 1_000_000)", NO_CALL),
    "an int of 100,000 digits": (FIND + "await send(10 ** 100_000)", NO_CALL),
    "a value that holds itself": (FIND + "x = []\nx.append(x)\nawait send(x)", NO_CALL),
    "a value that is nested deeply": (
        FIND + "x = []\nfor _ in range(90_000):\n    x = [x]\nawait send(x)",
        NO_CALL,
    ),
    "the text of a call, without a call": (
        "import sys\nprint('\\nnotes__add\\n{}', file=sys.stderr)",
        "",
    ),
    "the text of a call to a tool it may not call": (
        FIND + "import sys\nprint('\\nnotes__burn\\n{}', file=sys.stderr)\nawait send()",
        NO_CALL,
    ),
    "arguments of megabytes": ("await notes__add(text='x' * 7_000_000)", NO_CALL),
    "arguments that are larger than a call's may be": (
        "await notes__add(text='x' * 2_000_000)",
        "at most 1,048,576 are taken",
    ),
    "arguments that are nested deeply": (
        FIND
        + "import sys\nprint('\\nnotes__add\\n{\"text\": ' + '[' * 90_000 + ']' * 90_000 + '}',"
        " file=sys.stderr)\nawait send()",
        "nested",
    ),
    "arguments with an int of 100,000 digits": (
        FIND + "import sys\nprint('\\nnotes__add\\n{\"text\": ' + '9' * 100_000 + '}',"
        " file=sys.stderr)\nawait send()",
        "digits",
    ),
    "arguments that are no object": (
        FIND + "import sys\nprint('\\nnotes__add\\n[1]', file=sys.stderr)\nawait send()",
        "object",
    ),
    "a final value that shares itself": (SHARED + "x if 1 else \\", ""),
    "a final value that takes for ever to hash": (HASHED + "{x} if 1 else \\", ""),
    "a final value of megabytes": ("'x' * 9_000_000", "dropped"),
    "an undefined name of megabytes": ("eval('u' * 3_000_000)", "NameError"),
    "an attribute of megabytes": ("eval('(1).' + 'a' * 3_000_000)", "AttributeError"),
    "an undefined function of megabytes": ("eval('u' * 3_000_000 + '()')", "NameError"),
    "an undefined function that is called with a value": (
        SHARED + HASHED.replace("x", "y") + "eval('undefined(x, {y})')",
        "NameError: name 'undefined' is not defined",
    ),
    "an exception's message of megabytes": ("raise ValueError('m' * 9_000_000)", "ValueError"),
    "an exception of a value that shares itself": (SHARED + "raise ValueError(x)", "exception"),
    "exceptions that cause each other": (
        "e = ValueError('a')\nfor _ in range(200):\n    try:\n        raise ValueError('m' * 90_000)"
        " from e\n    except ValueError as f:\n        e = f\nraise e",
        "ValueError",
    ),
    "a traceback of long lines": (
        "exec('def f(n): return f(n + 1)  #' + 'a' * 1_000_000 + '\\nf(0)')",
        "RecursionError",
    ),
    "output of megabytes": ("print('x' * 9_000_000)", "dropped"),
    "error output of megabytes": (
        "import sys\nfor _ in range(9):\n    print('x' * 2_000_000, file=sys.stderr)",
        "dropped",
    ),
    "findings of the checker": ("\n".join(f"undefined_{n}" for n in range(3_000)), "not run"),
    "source that is nested deeply": ("-" * 60_000 + "1", ""),
    "source with attributes of attributes": ("a" + ".a" * 30_000, ""),
    "source with a long sum": ("1" + "+1" * 30_000, ""),
}


@pytest.mark.parametrize("what", HANDED_OVER)
def test_what_a_program_hands_over_is_text_of_bounded_size(what: str, tmp_path: Path) -> None:
    program, why = HANDED_OVER[what]

    async def work(router: Router) -> Any:
        result = await router.call("r", "execute", {"code": program})
        return result, await router.call("r", "plain__direct")

    notes = Notes()
    limits = "code_seconds = 60\ncode_memory_mb = 128\nmax_result_bytes = 20000"
    result, after = run(tmp_path, work, limits, notes)
    assert why in result.text
    assert len(result.text) < 20_500
    assert notes.added == []
    assert after.text == "direct"


def test_a_programs_own_error_output_is_shown_and_leaves_its_calls_alone(tmp_path: Path) -> None:
    program = (
        "import sys\nprint('one')\nprint('two', end='', file=sys.stderr)\n"
        "print(await notes__add(text='a\\nnotes__burn\\n{}'))\nprint('three', file=sys.stderr)"
    )
    notes = Notes()
    assert execute(tmp_path, program, notes=notes).text == "one\ntwo1\nthree\n"
    assert notes.added == ["a\nnotes__burn\n{}"]


RESULTS: dict[str, tuple[Any, str]] = {
    "half of a character": ('{"a": "\\ud800"}', "half of a character"),
    "an int of 100,000 digits": ("9" * 100_000, "str"),
    "text that is nested deeply": ("[" * 90_000 + "]" * 90_000, "str"),
    "numbers that are none": ("[NaN, Infinity, -1e999]", "list"),
    "an error of half a character": (RuntimeError("odd \ud800"), "odd"),
}


@pytest.mark.parametrize("what", RESULTS)
def test_odd_results_reach_a_program_as_values_or_errors(what: str, tmp_path: Path) -> None:
    value, kind = RESULTS[what]

    def odd() -> str:
        """Be odd."""
        if isinstance(value, Exception):
            raise value
        return str(value)

    class Odd(Notes):
        def servers(self) -> dict[str, LocalServer]:
            tools = [odd, super().servers()["notes"].tools[3]]
            notes = LocalServer(tools, "Notes.", effects=["read"], mode="code")
            return {**super().servers(), "notes": notes}

    program = (
        "try:\n    print(type(await notes__odd()))\nexcept Exception as e:\n    print(repr(e))"
    )
    result = execute(tmp_path, program, notes=Odd())
    assert result.ok
    assert kind in result.text


def test_a_program_that_takes_too_long_ends_with_its_calls(tmp_path: Path, leap: Any) -> None:
    begun, ended = threading.Event(), list[str]()

    async def wait() -> str:
        """Wait."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("call")
        return "waited"

    class Waiting(Notes):
        def servers(self) -> dict[str, LocalServer]:
            tools = [wait, super().servers()["notes"].tools[3]]
            notes = LocalServer(tools, "Notes.", effects=["read"], mode="code")
            return {**super().servers(), "notes": notes}

    async def work(router: Router) -> Result:
        leap.after(begun)
        return await router.call("r", "execute", {"code": "await notes__wait()"})

    result = run(tmp_path, work, "code_timeout_s = 60", Waiting())
    assert (result.outcome, ended) == ("timeout", ["call"])
    assert [row["tool"] for row in calls(tmp_path)] == ["wait", "execute"]


DOUBLED = "x = [1]\nfor i in range(60):\n    x = [x, x]\n"
LARGE_VALUES = [DOUBLED + "x", DOUBLED + "type Y = int\nx", DOUBLED + "if x:\n    x", "10 ** 9_999"]


@pytest.mark.parametrize("code", LARGE_VALUES)
def test_a_value_of_a_program_that_is_too_large_to_be_copied_never_leaves_it(
    code: str, tmp_path: Path
) -> None:
    """Written out, 60 lists that hold the one before twice take all memory there is."""

    async def work(router: Router) -> Result:
        return await router.call("r", "execute", {"code": code})

    result = run(tmp_path, work, "code_seconds = 1")
    assert len(result.text) < 13_000


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("1 + 1", "2"),
        ("'é'; (1,\n2)  # a pair", "(1, 2)"),
        ("print('a')\r\n'b'", "a\n'b'"),
        ("None", ""),
        ("x = 1", ""),
    ],
)
def test_the_value_of_a_last_expression_is_shown(code: str, text: str, tmp_path: Path) -> None:
    async def work(router: Router) -> Result:
        return await router.call("r", "execute", {"code": code})

    assert run(tmp_path, work).text == (text or "[the tool returned nothing]")


@pytest.mark.parametrize(
    "arguments", [{}, {"code": ""}, {"code": 7}, {"code": "x" * 70_000}, "no json"]
)
def test_malformed_arguments_get_a_sentence(arguments: Any, tmp_path: Path) -> None:
    async def work(router: Router) -> Result:
        return await router.call("r", "execute", arguments)

    assert "takes one argument" in run(tmp_path, work).text


def test_execute_is_no_tool_where_no_bundle_is_in_code_mode(tmp_path: Path) -> None:
    async def work(router: Router) -> Result:
        policy = {"deny": ("bundle:notes",)}
        from bundle_router import StepPolicy

        await router.route(
            Step(run_id="r2", workflow="w", role="r", step="s", policy=StepPolicy(**policy))
        )
        return await router.call("r2", "execute", {"code": "print(1)"})

    assert run(tmp_path, work).outcome == "denied"


def test_tools_of_untrusted_servers_are_callable_only_where_policy_says_so() -> None:
    """One row has to say so and none no, at the step's address and at every ancestor's."""
    bundle = Bundle("b", "b", ("own.look", "strange.look"), effects=("read",), mode="code")
    servers = [Server("own", "local", "trusted"), Server("strange", "stdio", "untrusted")]

    def programs_tools(*rows: Policy, role: str = "r", parent: str = "") -> set[str]:
        catalog = small_catalog(
            {"b": bundle}, routes=[Route("all", bundles=("b",))], policies=rows, servers=servers
        )
        with fake_router(catalog) as router:
            if parent:
                router.route_sync(Step(run_id="top", workflow="w", role=parent, step="s"))
            more = {"parent_run_id": "top"} if parent else {}
            router.route_sync(Step(run_id="x", workflow="w", role=role, step="s", **more))
            return set(callable_in_code(router._engines.newest.state("x")))

    allow = Policy("all", allow=("*",))
    yes, no = (
        Policy("yes", role=("r",), untrusted_in_code=True),
        Policy("no", untrusted_in_code=False),
    )
    assert programs_tools(allow) == {"own.look"}
    assert programs_tools(allow, yes) == {"own.look", "strange.look"}
    assert programs_tools(allow, yes, no) == {"own.look"}
    assert programs_tools(allow, yes, role="other") == {"own.look"}
    assert programs_tools(allow, yes, parent="other") == {"own.look"}


def test_names_that_a_program_defines_are_no_gaps() -> None:
    program = "import json as j\nfrom a import b\nfor f in []: f()\ndef g(h): return h(), g(1)\n"
    program += "[k() for k in ()]\nj(); b(); m()"
    assert called_and_undefined(program, []) == ["m"]
    assert called_and_undefined("m() +", []) == ()


def test_a_program_whose_coroutine_is_closed_ends_without_an_error_and_its_worker_is_free(
    tmp_path: Path,
) -> None:
    """Nothing can be awaited in it then: a caller's loop may be closed, or drop its task."""
    waiting: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def wait() -> str:
        """Wait."""
        await waiting.put(event := asyncio.Event())
        await event.wait()
        return "waited"

    local = {"notes": LocalServer([wait], "Notes.", effects=["read"], mode="code")}

    async def begun(
        router: Router,
    ) -> tuple[Coroutine[Any, Any, Result], asyncio.Task[Result], asyncio.Event]:
        call = router.call("r", "execute", {"code": "print(await notes__wait())"})
        task = asyncio.ensure_future(call)
        return call, task, await waiting.get()

    async def main(router: Router) -> Coroutine[Any, Any, Result]:
        await router.route(Step(run_id="r", workflow="w", role="r", step="s"))
        for _ in range(WORKERS + 1):
            call, task, _ = await begun(router)
            call.close()
            task.cancel()
            assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], RuntimeError)
        call, task, event = await begun(router)
        event.set()
        assert (await task).text == "waited\n"
        call, task, _ = await begun(router)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is left on purpose
        return call

    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "routes.toml").write_text('[[routes]]\nname = "all"\nbundles = ["notes"]\n')
    (folder / "policy.toml").write_text('[[policies]]\nname = "all"\nallow = ["bundle:notes"]\n')
    router = Router.open(folder, runs=tmp_path / "runs", local=local, workspace=tmp_path)
    loop = asyncio.new_event_loop()
    call = loop.run_until_complete(main(router))
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # as above
    loop.close()
    call.close()
    assert router.call_sync("r", "search_tools", {"query": "wait"}).ok
    router.close_sync()


# --- what is read before the run ------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "```python\nprint(await notes__add(text='a'))\n```",
        "```\nprint(await notes__add(text='a'))\n```\n",
        "\ufeffprint(await notes__add(text='a'))",
        "\ufeff```py\r\nprint(await notes__add(text='a'))\r\n```",
        "```python\n\ufeffprint(await notes__add(text='a'))\n```",
    ],
)
def test_a_fence_and_a_byte_order_mark_are_no_part_of_a_program(tmp_path: Path, code: str) -> None:
    assert execute(tmp_path, code).text == "1\n"


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("print(notes__add(text='a'))", "1:7"),
        ("notes__add(text='a')", "1:1"),
        ("r = notes__add(text='a')\nprint('done')", "1:5"),
        ("r = notes__add(text='a')\nprint(r)", "1:5"),
        ("r = notes__add(text='a')\nprint(f'{r}')", "1:5"),
        ("x = 1 + notes__add(text='a')", "1:9"),
        ("print(notes__listing(count=2)[0])", "1:7"),
        ("for row in notes__listing(count=2):\n    print(row)", "1:12"),
        ("rows = notes__listing(count=2)\nprint([r['name'] for r in rows])", "1:8"),
        ("async def f():\n    notes__add(text='a')\nawait f()", "2:5"),
        ("if notes__add(text='a'):\n    pass", "1:4"),
    ],
)
def test_a_call_without_await_is_refused_before_anything_is_called(
    tmp_path: Path, code: str, place: str
) -> None:
    notes = Notes()
    result = execute(tmp_path, f"await notes__add(text='first')\n{code}", notes=notes)
    line, column = place.split(":")
    assert (result.outcome, result.code) == ("invalid_arguments", "type_error")
    assert f"program.py:{int(line) + 1}:{column}: `await` is missing before notes__" in result.text
    assert not notes.added


@pytest.mark.parametrize(
    "code",
    [
        "import asyncio\nprint(len(await asyncio.gather(notes__add(text='a'), notes__add(text='b'))))",
        "import asyncio\nasked = [notes__add(text=t) for t in 'ab']\nprint(len(await asyncio.gather(*asked)))",
        "import asyncio\none = notes__add(text='a')\ntwo = notes__add(text='b')\nprint(len(await asyncio.gather(one, two)))",
        "async def add(t):\n    return await notes__add(text=t)\nawait add('a')\nprint(await add('b'))",
        "one = notes__add(text='a')\nawait one\nother = notes__add(text='b')\nprint(await other)",
    ],
)  # fmt: skip
def test_a_coroutine_that_is_handed_on_is_no_mistake(tmp_path: Path, code: str) -> None:
    notes = Notes()
    result = execute(tmp_path, code, notes=notes)
    assert (result.outcome, result.text) == ("ok", "2\n")
    assert sorted(notes.added) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "meant"), [("add", "notes__add"), ("note__add", "notes__add"), ("nothing_like", None)]
)
def test_the_function_that_was_meant_is_named(tmp_path: Path, name: str, meant: str | None) -> None:
    result = execute(tmp_path, f"print(await {name}(text='a'))")
    assert (result.outcome, result.code) == ("invalid_arguments", "type_error")
    assert ("did you mean" in result.text) == (meant is not None)
    assert meant is None or f"`{name}`: did you mean `{meant}`?" in result.text


def test_a_traceback_shows_the_line_of_the_program(tmp_path: Path) -> None:
    result = execute(tmp_path, "rows = [1]\nprint(rows[5])")
    assert (result.outcome, result.code) == ("tool_error", "program_failed")
    assert 'File "program.py", line 2' in result.text
    assert "\n    print(rows[5])\n          ~~~~~~~\n" in result.text


# --- types of results -----------------------------------------------------------------------------


def test_the_type_of_a_result_is_shown_once_the_run_has_recorded_one(tmp_path: Path) -> None:
    """Its names and kinds, in another process too; and nothing of what it held."""

    async def ask(router: Router) -> list[str]:
        found = await router.call("r", "search_tools", {"query": "list what there is"})
        details = await router.call("r", "get_tool_details", {"name": "notes__listing"})
        return [found.text, details.text]

    async def work(router: Router) -> list[str]:
        before = await ask(router)
        call = "await notes__listing(count=2000, prefix='secret')"
        assert (await router.call("r", "execute", {"code": call})).ok
        await router.route(Step(run_id="r", workflow="w", role="r", step="next"))
        return before + await ask(router)

    async def elsewhere(router: Router) -> list[str]:
        await router.route(Step(run_id="r", workflow="w", role="r", step="last"))
        return await ask(router)

    before, _, *after = run(tmp_path, work)
    assert "notes__listing(count: int, prefix?): List what there is." in before
    shown = "notes__listing(count: int, prefix?) -> {name, size: int}[]: List what there is."
    for found, details in (after, run(tmp_path, elsewhere)):
        assert shown in found
        assert details.endswith("\nReturns: {name, size: int}[]")
        assert "secret" not in found + details


def test_the_type_of_a_result_is_for_programs_of_its_principal_only() -> None:
    bundles = {
        "code": Bundle("code", "c", ("own.look",), effects=("read",), mode="code"),
        "named": Bundle("named", "n", ("own.name",), effects=("read",), mode="meta"),
    }
    catalog = small_catalog(
        bundles,
        routes=[Route("all", bundles=("code", "named"))],
        policies=[Policy("all", allow=("*",))],
        servers=[Server("own", "local", "trusted")],
    )
    answers = {tool: RawResult((Data({"id": 1}),)) for tool in ("own.look", "own.name")}
    with fake_router(catalog, results=answers) as router:
        router.route_sync(Step(run_id="x", workflow="w", role="r", step="s"))
        for tool in answers:
            assert router.call_sync("x", tool, {}).ok
        found = router.call_sync("x", "search_tools", {"query": "look name"}).text
        run = router._engines.newest.runs.get("x")
        assert run is not None
        assert run.fold.last_result("own.look", "") is not None
        assert run.fold.last_result("own.look", "ann") is None
    assert "look() -> {id: int}" in found.replace("own__", "")
    assert found.count("->") == 1


@pytest.mark.parametrize(
    ("text", "structured", "returns", "expected"),
    [
        ("[1, 2]", {"result": [1, 2]}, "int[]", [1, 2]),
        ("[]", {"result": []}, "int[]", []),
        ("12", {"result": "12"}, "str", "12"),
        ("12", {"result": 12}, "int", 12),
        ("", {"result": "12"}, "str", "12"),
        ("", {"result": None}, "", None),
    ],
)
def test_a_value_that_an_sdk_wrapped_comes_without_the_wrapper_live_and_recorded(
    text: str, structured: dict[str, Any], returns: str, expected: Any
) -> None:
    card = Card("s", "t", "", "{}", "sha256:0", 1, returns=returns, wraps_result=True)
    blocks = (*((Text(text),) if text else ()), Data(structured))
    recorded = Result("ok", shape(blocks, 10_000, describe).text, tool="s.t")
    for result in (replace(recorded, whole=blocks), recorded):
        assert value_of(result, no_artifact, card) == expected
    plain = replace(recorded, whole=blocks)
    assert value_of(plain, no_artifact, replace(card, wraps_result=False)) == structured


def no_artifact(sha256: str) -> bytes:
    raise KeyError(sha256)
