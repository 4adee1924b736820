"""Tools that are typed functions: described by annotations and docstring, called, and refused where
they can't be.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from bundle_router import Result, Router, Step
from bundle_router.errors import ConfigError, RequestError
from bundle_router.tool import (
    Data,
    LocalServer,
    LocalTool,
    Media,
    Text,
    ToolContext,
    ToolFailure,
    ToolOutput,
    tool,
)
from pydantic import BaseModel, Field

CONFIG = {
    "servers": '[servers.own]\ntransport = "local"\ntrust = "trusted"\n',
    "bundles": '[bundles.own]\ndescription = "Ours."\ntools = ["own.*"]\neffects = ["read"]\n',
    "routes": '[[routes]]\nname = "all"\nbundles = ["own"]\n',
    "policy": '[[policies]]\nname = "all"\nallow = ["bundle:own"]\neffects = ["read"]\n',
    "router": "[limits]\ncall_timeout_s = 60\n",
}


class Found(BaseModel):
    number: int
    open: bool


@dataclass
class Place:
    line: int


class Picture:
    def _repr_png_(self) -> bytes:
        return b"\x89PNG\r\n\x1a\n"


def get_ticket(number: int, form: Literal["short", "long"] = "short", copy: bool = False) -> str:
    """Read a ticket of the tracker.

    Closed ones, too.

    Args:
        number: Its number.
        form: How much of it.
    """
    return f"{number} {form} {copy}"


Words = Annotated[str, Field(min_length=2, description="What to look for.")]


async def find(words: Words, /, *, limit: int = 3) -> Found:
    """Find a ticket.

    :param limit: how many
    """
    await asyncio.sleep(0)
    return Found(number=len(words) * limit, open=True)


def where(context: ToolContext, deep: list[int] | None = None) -> Place:
    """Say where it is called."""
    assert context.timeout_s > 0
    return Place(len(deep or ()))


def opened(folder: Path, local: dict[str, Any]) -> Router:
    (folder / "config").mkdir(exist_ok=True)
    for name, text in CONFIG.items():
        (folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
    return Router.open(folder / "config", runs=folder / "runs", workspace=folder, local=local)


STEP = Step(run_id="r", workflow="w", role="r", step="s")


def test_annotations_and_docstring_are_what_the_agent_sees(tmp_path: Path) -> None:
    with opened(tmp_path, {"own": [get_ticket, find, where]}) as router:
        router.route_sync(STEP)
        rows: Sequence[Any] = router.tools_sync("r", format="mcp").tools
    shown = {row["name"]: row for row in rows}
    ticket = next(row for name, row in shown.items() if "get_ticket" in name)
    assert ticket["description"] == "Read a ticket of the tracker.\n\nClosed ones, too."
    properties = ticket["inputSchema"]["properties"]
    assert properties["number"] == {"type": "integer", "description": "Its number."}
    assert properties["form"]["enum"] == ["short", "long"]
    assert sorted(properties) == ["copy", "form", "number"]
    assert ticket["inputSchema"]["required"] == ["number"]
    assert ticket["inputSchema"]["additionalProperties"] is False
    found = next(row for name, row in shown.items() if "find" in name)["inputSchema"]["properties"]
    assert found["words"] == {"type": "string", "minLength": 2, "description": "What to look for."}
    assert found["limit"] == {"type": "integer", "default": 3, "description": "how many"}
    assert "context" not in json.dumps(shown)


@pytest.mark.parametrize(
    ("name", "arguments", "outcome", "text"),
    [
        ("own.get_ticket", {"number": 7, "copy": True}, "ok", "7 short True"),
        ("own.get_ticket", {"number": "seven"}, "invalid_arguments", "number"),
        ("own.get_ticket", {"number": 7, "other": 1}, "invalid_arguments", "other"),
        ("own.find", {"words": "abc", "limit": 2}, "ok", '"number":6'),
        ("own.find", {"words": "a"}, "invalid_arguments", "words"),
        ("own.where", {"deep": [1, 2]}, "ok", '"line":2'),
    ],
)
def test_they_are_called_sync_and_async(
    name: str, arguments: dict[str, Any], outcome: str, text: str, tmp_path: Path
) -> None:
    async def call() -> tuple[str, str]:
        async with opened(tmp_path, {"own": [get_ticket, find, where]}) as router:
            await router.route(STEP)
            result = await router.call("r", name, arguments)
            return result.outcome, result.text

    assert asyncio.run(call())[0] == outcome
    with opened(tmp_path, {"own": [get_ticket, find, where]}) as router:
        result = router.call_sync("r", name, arguments)
    assert (result.outcome, text in result.text.replace(" ", "" if text[0] == '"' else " ")) == (
        outcome,
        True,
    )


def total(rows: list[list[int]]) -> int:
    """Add the numbers of a table."""
    return sum(map(sum, rows))


def test_a_table_of_a_megabyte_is_an_argument(tmp_path: Path) -> None:
    table = [[1] * 10 for _ in range(30_000)]
    with opened(tmp_path, {"own": [total]}) as router:
        router.route_sync(STEP)
        added = router.call_sync("r", "own.total", {"rows": table})
        wrong = router.call_sync("r", "own.total", {"rows": [*table, *[["x"]] * 5_000]})
    assert (added.outcome, added.text) == ("ok", "300000")
    assert wrong.outcome == "invalid_arguments"
    assert "they do not fit the schema, and are too large to say where" in wrong.text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("words", "words"),
        ({"a": [1, None]}, '"a"'),
        ([1, 2], "[1"),
        (3.5, "3.5"),
        (None, "null"),
        (Text("block"), "block"),
        (Data({"b": 1}), '"b"'),
        (ToolOutput((Text("whole"),)), "whole"),
        (b"\x00\x01", "artifact:sha256:"),
        (Media(b"GIF89a", "image/gif"), "artifact:sha256:"),
        (Picture(), "image/png"),
        ([Text("first"), b"\x00"], "first"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_function_returns_becomes_blocks(value: Any, text: str, tmp_path: Path) -> None:
    def give() -> Any:
        """Give it."""
        return value

    with opened(tmp_path, {"own": [give]}) as router:
        router.route_sync(STEP)
        result = router.call_sync("r", "own.give", {})
    assert (result.outcome, text in result.text) == ("ok", True)


def untyped(x):  # type: ignore[no-untyped-def]  # the case
    """Take x."""


def starred(*parts: str) -> None:
    """Take many."""


def undocumented(x: int) -> int:
    return x


def unschematic(x: Callable[[], int]) -> None:
    """Take a function."""


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (untyped, "'untyped': parameter 'x' has no type"),
        (starred, "takes any number of 'parts'"),
        (undocumented, "'undocumented' has no description"),
        (unschematic, "'unschematic' can't be described"),
        (Found, "the class Found is not a tool"),
        (7, "7 is not a tool"),
        (tool(name=3)(get_ticket), "the name and the description of 3 are not both text"),  # type: ignore[call-overload]  # untyped code does this
        (tool(description=["a"])(get_ticket), "of 'get_ticket' are not both text"),  # type: ignore[call-overload]  # as above
    ],
)
def test_a_wrong_one_is_refused_when_the_router_is_opened(
    wrong: object, says: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError) as caught:
        opened(tmp_path, {"own": [wrong]})
    assert "local server 'own'" in caught.value.message
    assert says in caught.value.message


def test_a_bare_function_in_place_of_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="not a list"):
        opened(tmp_path, {"own": get_ticket})


def test_the_decorator_renames_and_describes() -> None:
    @tool(name="look", description="Look.")
    def f(x: int) -> int:
        return x

    assert isinstance(f, LocalTool)
    assert (f.name, f.description) == ("look", "Look.")
    assert tool(get_ticket).name == "get_ticket"
    assert tool(f) is f


def test_failures_and_deadlines_of_async_tools_are_results(tmp_path: Path, leap: Any) -> None:
    cancelled = threading.Event()

    async def hang() -> str:
        """Hang."""
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    async def fail() -> str:
        """Fail."""
        raise ToolFailure("no such ticket", code="not_found", advice="ask for another")

    async def refuse() -> str:
        """Refuse."""
        raise ToolFailure("the tracker is closed on Sundays")

    async def crash() -> str:
        """Crash."""
        raise ZeroDivisionError

    async def call_all() -> list[Result]:
        async with opened(tmp_path, {"own": [hang, fail, refuse, crash]}) as router:
            await router.route(STEP)
            hung = asyncio.create_task(router.call("r", "own.hang", {}))
            others = [await router.call("r", f"own.{n}", {}) for n in ("fail", "refuse", "crash")]
            assert not hung.done()
            await leap.until(hung)
            return [*others, await hung]

    failed, refused, crashed, hung = asyncio.run(call_all())
    assert (failed.outcome, failed.code, "ask for another" in failed.text) == (
        "tool_error",
        "not_found",
        True,
    )
    assert (refused.outcome, refused.code) == ("tool_error", "failed")
    assert "closed on Sundays" in refused.text
    assert (crashed.outcome, crashed.code) == ("tool_error", "crashed")
    assert hung.outcome == "timeout"
    assert cancelled.is_set()


ROUTES = {name: text for name, text in CONFIG.items() if name in ("routes", "policy")}


def declared(folder: Path, server: LocalServer, **more: str) -> Router:
    (folder / "config").mkdir(exist_ok=True)
    for name, text in {**ROUTES, **more}.items():
        (folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
    return Router.open(
        folder / "config", runs=folder / "runs", workspace=folder, local={"own": server}
    )


def test_a_server_and_a_bundle_are_declared_with_the_tools(tmp_path: Path) -> None:
    server = LocalServer(
        [get_ticket, find], 'Tickets: "ours".', examples=["what does the ticket say"]
    )
    with declared(tmp_path, server) as router:
        assert router.route_sync(STEP).bundle_ids == ["own"]
        assert router.call_sync("r", "own.get_ticket", {"number": 7}).ok
        bundle = router.catalog.bundles["own"]
        assert (bundle.description, bundle.effects) == ('Tickets: "ours".', ("read",))
        assert router.explain(STEP, "own").shown


def test_policy_reaches_them_and_the_files_go_before_the_code(tmp_path: Path) -> None:
    server = LocalServer([get_ticket], "Ours.", effects=("read", "write"))
    with declared(tmp_path, server) as router:
        decision = router.route_sync(STEP)
        assert [(row.id, row.code) for row in decision.left_out] == [("own", "effect_not_allowed")]
    bundles = (
        '[bundles.own]\ndescription = "Theirs."\ntools = ["own.get_ticket"]\neffects = ["read"]\n'
    )
    with declared(tmp_path, server, bundles=bundles) as router:
        assert router.catalog.bundles["own"].description == "Theirs."
        assert router.route_sync(STEP.model_copy(update={"run_id": "r2"})).bundle_ids == ["own"]


def test_what_is_wrong_with_a_declaration_says_where_it_was_made(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"local server .own. \(local=, --local\): bundles\.own\.effects\[0\]"
    ):
        declared(tmp_path, LocalServer([get_ticket], "Ours.", effects=("fly",)))


# --- the caller's task ----------------------------------------------------------------------------

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


def tenant_in_a_thread() -> str:
    """Say whose call this is."""
    return TENANT.get()


async def tenant_on_the_loop() -> str:
    """Say whose call this is."""
    return TENANT.get()


@pytest.mark.parametrize("name", ["tenant_in_a_thread", "tenant_on_the_loop"])
@pytest.mark.parametrize("is_sync", [True, False])
def test_a_tool_has_the_context_variables_of_its_caller(
    tmp_path: Path, name: str, is_sync: bool
) -> None:
    tools = {"own": [tenant_in_a_thread, tenant_on_the_loop]}

    async def call_from_a_loop() -> list[str]:
        async with opened(tmp_path, tools) as router:
            await router.route(STEP)
            return await asyncio.gather(*(call_for(router, who) for who in ("ann", "bob")))

    async def call_for(router: Router, who: str) -> str:
        TENANT.set(who)
        return (await router.call("r", f"own.{name}", {})).text

    def call_without_a_loop(who: str) -> str:
        TENANT.set(who)
        with opened(tmp_path, tools) as router:
            router.route_sync(STEP)
            return router.call_sync("r", f"own.{name}", {}).text

    if is_sync:
        assert [copy_context().run(call_without_a_loop, who) for who in ("ann", "bob")] == [
            "ann",
            "bob",
        ]
    else:
        assert asyncio.run(call_from_a_loop()) == ["ann", "bob"]
    assert TENANT.get() == "nobody"


def outcomes_in(folder: Path) -> list[str]:
    """Return the recorded outcomes of the run's calls."""
    lines = (folder / "runs" / "r" / "tool-calls.jsonl").read_text(encoding="utf-8").splitlines()
    return [row["outcome"] for row in map(json.loads, lines) if row["type"] == "call.finished"]


async def cancelled_inside() -> str:
    """Wait for something that somebody else cancels."""
    inner = asyncio.ensure_future(asyncio.sleep(3_600))
    inner.cancel()
    await inner
    return "never"


def test_a_tool_that_is_cancelled_inside_fails_and_its_caller_goes_on(tmp_path: Path) -> None:
    async def main() -> tuple[Result, list[str]]:
        async with opened(tmp_path, {"own": [cancelled_inside]}) as router:
            await router.route(STEP)
            async with asyncio.TaskGroup() as group:
                calling = group.create_task(router.call("r", "own.cancelled_inside", {}))
            return calling.result(), outcomes_in(tmp_path)

    result, recorded = asyncio.run(main())
    assert (result.outcome, result.code, recorded) == ("tool_error", "crashed", ["tool_error"])
    with opened(tmp_path, {"own": [cancelled_inside]}) as router:
        router.route_sync(STEP)
        assert router.call_sync("r", "own.cancelled_inside", {}).code == "crashed"
