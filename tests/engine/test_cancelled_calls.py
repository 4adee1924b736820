"""A call that is cancelled at any of its awaits leaves nothing behind, and the next one works."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.tool import LocalServer

from tests.engine.cancellation import cancel_at_each_await, check_records


async def look(n: int = 1) -> str:
    """Look."""
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    return "seen" * n


def look_in_thread(n: int = 1) -> str:
    """Look in a thread."""
    time.sleep(0.001)
    return "seen" * n


async def look_from_code() -> str:
    """Look from a program."""
    await asyncio.sleep(0)
    return "seen"


CONFIG = {
    "routes": '[[routes]]\nname = "all"\nbundles = ["t", "code"]\n',
    "policy": '[[policies]]\nname = "all"\nallow = ["bundle:t", "bundle:code"]\n',
    "router": (
        "[limits]\nmax_concurrent_calls = 1\nrepeated_calls = 100000\ncalls_per_step = 100000\n"
        'calls_per_tree = 100000\n[log]\ndurability = "disk"\n'
    ),
}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("t.look", {}),
    "a long result": ("t.look", {"n": 20_000}),
    "in a thread": ("t.look_in_thread", {}),
    "through call_tool": ("call_tool", {"name": "t.look", "arguments": {}}),
    "wrong arguments": ("t.look", {"n": "x"}),
    "search": ("search_tools", {"query": "look"}),
    "list": ("list_tools", {}),
    "execute": ("execute", {"code": "print(await code__look_from_code())"}),
    "large arguments": ("t.look", {"n": 1, "pad": "x" * 200_000}),
}


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_cancelled_at_any_await_leaves_nothing(
    call: str, blocks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`blocks`: the store is used in threads, as a database is."""
    if call == "execute":
        pytest.importorskip("pydantic_monty")
    (tmp_path / "config").mkdir()
    for name, text in CONFIG.items():
        (tmp_path / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
    local = {
        "t": LocalServer([look, look_in_thread], "Look.", effects=["read"]),
        "code": LocalServer([look_from_code], "Look.", effects=["read"], mode="code"),
    }
    name, arguments = CALLS[call]

    async def main() -> None:
        async with Router.open(
            tmp_path / "config", runs=tmp_path / "runs", local=local, workspace=tmp_path
        ) as router:
            monkeypatch.setattr(type(router._engines.newest.runs.store), "blocks", blocks)
            await router.route(Step(run_id="r", workflow="w", role="r", step="s"))
            await router.call("r", name, arguments)
            cancelled = await cancel_at_each_await(
                router, "r", lambda: router.call("r", name, arguments)
            )
            assert cancelled > 1
            lines = (
                (tmp_path / "runs" / "r" / "tool-calls.jsonl")
                .read_text(encoding="utf-8")
                .splitlines()
            )
            check_records(router, "r", [json.loads(line) for line in lines])

    asyncio.run(main())


def test_a_call_that_is_cancelled_while_a_thread_waits_to_record_its_end_has_one_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    for name, text in CONFIG.items():
        (tmp_path / "config" / f"{name}.toml").write_text(
            text.replace(', "code"', "").replace(', "bundle:code"', "")
        )
    began, done = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        began.set()
        await done.wait()
        return "waited"

    async def main() -> None:
        local = {"t": LocalServer([wait], "Wait.", effects=["read"])}
        async with Router.open(
            tmp_path / "config", runs=tmp_path / "runs", local=local, workspace=tmp_path
        ) as router:
            runs = router._engines.newest.runs
            monkeypatch.setattr(type(runs.store), "blocks", True)
            await router.route(Step(run_id="r", workflow="w", role="r", step="s"))
            call = asyncio.create_task(router.call("r", "t.wait", {}))
            await began.wait()
            with runs._runs["r"].lock:
                done.set()
                while "_locked" not in [  # noqa: ASYNC110
                    frame.f_code.co_name for frame in sys._current_frames().values()
                ]:
                    await asyncio.sleep(0.001)  # nobody is told of that
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call

    asyncio.run(main())
    lines = (tmp_path / "runs" / "r" / "tool-calls.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["call.started", "call.finished"]
