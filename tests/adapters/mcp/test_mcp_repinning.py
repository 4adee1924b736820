"""Pins that are approved, or taken back, while a router is open: for new decisions, never wider for
earlier ones.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router
from bundle_router.adapters.archive import Archive
from bundle_router.adapters.pin_file import PinFiles
from bundle_router.adapters.text_files import lock_folder
from bundle_router.core.records.replayed import catalog_from, replay

NEW_TEXT = {"description": "Echoes, as we agreed."}


def until(condition: Callable[[], bool]) -> None:
    """Waits for what a look at the pin files brings, a few seconds at most."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def call(router: Router, run_id: str, tool: str = "s.echo") -> str:
    result = router.call_sync(run_id, tool, {"text": "x"})
    return result.code or result.outcome


def steps_and_calls(router: Router, project: Any, run_id: str, tool: str = "s.echo") -> str:
    router.route_sync(project.step(run_id))
    return call(router, run_id, tool)


def test_an_approved_change_is_used_by_new_decisions_and_not_by_those_taken_before(
    project: Any, bench: Any
) -> None:
    with bench.faults.serving() as server:
        project.http(server.url, tools='tools = ["s.echo", "s.pid"]')
        project.pin()
        with project.open() as router:
            assert steps_and_calls(router, project, "r") == "ok"
            before = router.catalog.revision
            server.faults.overlay["echo"] = NEW_TEXT
        with project.open() as router:
            assert steps_and_calls(router, project, "r") == "pin_drift"
            project.pin()
            until(lambda: steps_and_calls(router, project, "other") == "ok")
            assert call(router, "r") == "pin_drift", "its decision was taken before the approval"
            assert call(router, "r", "s.pid") == "ok", "the rest of it goes on as it was"
            assert steps_and_calls(router, project, "r") == "ok"
            shown = {tool["function"]["name"]: tool for tool in router.tools_sync("r").tools}
            assert NEW_TEXT["description"] in json.dumps(shown)
            assert router.catalog.revision != before
    assert "pins.unread" not in [row["type"] for row in project.records()]
    archive = Archive(project.root / "runs")
    assert archive.verify("r").ok
    for record in archive.records("r"):
        if record["type"] == "route.decided":
            catalog = catalog_from(archive.catalog("r", record["catalog_revision"]))
            assert replay(record, catalog).outcome == "identical"


def test_a_tool_that_is_approved_joins_a_glob_with_the_next_decision(
    project: Any, bench: Any
) -> None:
    with bench.faults.serving() as server:
        project.http(server.url, tools='tools = ["s.*o*"]')
        project.pin()
        with project.open() as router:
            assert steps_and_calls(router, project, "r") == "ok"
            server.faults.extra_tools.append(bench.faults.tool("novel"))
            project.pin()
            until(lambda: steps_and_calls(router, project, "other", "s.novel") == "ok")
            assert router.call_sync("r", "s.novel", {}).outcome == "denied"
            assert "s.novel" not in [tool.name for tool in router.tools_sync("r").active]
            assert steps_and_calls(router, project, "r", "s.novel") == "ok"


def test_what_is_taken_back_stops_at_once_for_decisions_taken_before(
    project: Any, bench: Any
) -> None:
    with bench.faults.serving() as server:
        project.http(server.url, tools='tools = ["s.echo", "s.pid"]')
        project.pin()
        pins = project.root / "bundles" / "pins" / "s.json"
        with project.open() as router:
            assert steps_and_calls(router, project, "r") == "ok"
            pins.unlink()
            until(lambda: call(router, "r") == "pin_drift")
            assert call(router, "r", "s.pid") == "pin_drift"
            assert router.route_sync(project.step()).bundle_ids == []


def test_one_tool_that_is_taken_back_stops_at_once_and_the_others_go_on(
    project: Any, bench: Any
) -> None:
    with bench.faults.serving() as server:
        project.http(server.url, tools='tools = ["s.echo", "s.pid"]')
        project.pin()
        files = PinFiles(project.root / "bundles" / "pins")
        with project.open() as router:
            assert steps_and_calls(router, project, "r") == "ok"
            pins = files.read("s")
            assert pins is not None
            files.write(replace(pins, pins=tuple(pin for pin in pins.pins if pin.tool != "echo")))
            until(lambda: call(router, "r") == "pin_drift")
            assert call(router, "r", "s.pid") == "ok"
            assert router.tools_sync("r").active[0].name == "s.pid"


def test_pins_that_cant_be_read_change_nothing_and_that_is_said_once(
    project: Any, bench: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with bench.faults.serving() as server:
        project.http(server.url)
        project.pin()
        pins = project.root / "bundles" / "pins" / "s.json"
        said: list[str] = []

        def told() -> bool:
            assert steps_and_calls(router, project, "r") == "ok"
            said.extend(
                line for line in capfd.readouterr().err.splitlines() if "pins.unread" in line
            )
            return bool(said)

        with project.open() as router:
            assert steps_and_calls(router, project, "r") == "ok"
            good = pins.read_text()
            pins.write_text("{}")
            until(told)
            pins.write_text(good)
            assert steps_and_calls(router, project, "r") == "ok"
            told()
    assert len(said) == 1


def test_a_run_with_a_call_under_way_goes_over_with_a_later_step(project: Any, bench: Any) -> None:
    with bench.faults.serving() as server:
        project.http(server.url, tools='tools = ["s.echo", "s.hang"]')
        project.pin()

        async def main() -> None:
            async with asyncio.timeout(300), project.open() as router:
                await router.route(project.step())
                hanging = asyncio.create_task(router.call("r", "s.hang", {"s": 20}))
                await bench.until(lambda: server.faults.calls)
                server.faults.overlay["echo"] = NEW_TEXT
                await asyncio.to_thread(project.pin)
                old = router.catalog.revision
                while router.catalog.revision == old:
                    await router.route(project.step("other"))
                    await asyncio.sleep(0.05)
                assert (await router.route(project.step())).catalog_revision == old, (
                    "its call keeps it"
                )
                hanging.cancel()
                await asyncio.gather(hanging, return_exceptions=True)
                assert (
                    await router.route(project.step())
                ).catalog_revision == router.catalog.revision
                assert (await router.call("r", "s.echo", {"text": "x"})).ok

        asyncio.run(main())
    ends = [row["outcome"] for row in project.records() if row["type"] == "call.finished"]
    assert ends == ["cancelled", "ok"]


def test_runs_that_are_routed_side_by_side_while_pins_change_lose_nothing(
    project: Any, bench: Any
) -> None:
    with bench.faults.serving() as server:
        project.http(server.url, tools='tools = ["s.echo", "s.pid"]')
        project.pin()

        async def main() -> None:
            async with asyncio.timeout(300), project.open() as router:
                revisions = {router.catalog.revision}

                async def one(number: int) -> None:
                    while len(revisions) < 3:
                        revisions.add(
                            (await router.route(project.step(f"r-{number}"))).catalog_revision
                        )
                        called = await router.call(f"r-{number}", "s.pid", {})
                        assert called.outcome in ("ok", "denied", "busy", "budget")

                async def approve() -> None:
                    for name in ("first", "second"):
                        known = len(revisions)
                        server.faults.extra_tools.append(bench.faults.tool(name))
                        await asyncio.to_thread(project.pin)
                        await bench.until(lambda known=known: len(revisions) > known)

                await asyncio.gather(approve(), *(one(number) for number in range(9)))

        asyncio.run(main())
    archive = Archive(project.root / "runs")
    assert [archive.verify(run_id).ok for run_id in sorted(archive.run_ids())] == [True] * 9


def test_vendor_writes_nothing_of_pins_that_were_changed_while_it_ran(
    project: Any, bench: Any
) -> None:
    """It read them before, and would write last."""
    with bench.faults.serving() as server:
        project.http(server.url)
        project.pin()
    folder = project.config.parent
    (path,) = (folder / "bundles" / "pins").glob("*.json")
    command = [
        sys.executable,
        "-m",
        "bundle_router",
        "vendor",
        "s",
        "--config",
        str(project.config),
    ]
    with lock_folder(path.parent):
        vendor = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        waits = f" {vendor.pid} "
        while vendor.poll() is None and not re.search(
            f"->.*{waits}", Path("/proc/locks").read_text(encoding="ascii")
        ):
            time.sleep(0.01)
        pins = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(pins | {"tools": pins["tools"][1:]}), encoding="utf-8")
    assert "changed meanwhile" in vendor.communicate(timeout=60)[1]
    assert vendor.returncode == 3
    assert not (folder / "tool_servers" / "s.py").exists()
