"""Time: lifetimes follow the monotonic clock, order follows the sequence, and the wall clock may do
what it likes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_router import Step
from bundle_router.adapters.archive import Archive
from bundle_router.adapters.artifact_files import RunArtifacts
from bundle_router.adapters.media import describe
from bundle_router.adapters.run_log import DiskRunStore
from bundle_router.adapters.system import SystemCapabilities
from bundle_router.core.catalog import Bundle, Route
from bundle_router.engine.engine import Engine
from bundle_router.engine.engine_ports import EnginePorts
from bundle_router.engine.versions import EngineVersions
from bundle_router.testing import (
    FakeCapabilities,
    FakeClock,
    FakeDiagnostics,
    FakeRedactor,
    FakeSessions,
    small_catalog,
)
from bundle_router.wiring import Router


class JumpingClock(FakeClock):
    """A wall clock that leaps back and forth by hours, over a steady monotonic one."""

    _walls = (3_000, 1_000, 10_000)

    def __init__(self) -> None:
        super().__init__()
        self._reads = 0

    def time_ns(self) -> int:
        self._reads += 1
        return super().time_ns() + self._walls[self._reads % len(self._walls)] * 1_000_000_000


def test_records_keep_both_clocks_and_their_order_when_the_wall_clock_jumps(tmp_path: Path) -> None:
    clock = JumpingClock()
    catalog = small_catalog({"a": ["s.a"]}, routes=[Route("r", bundles=("a",))])
    store = DiskRunStore(tmp_path, clock=clock, artifacts=lambda path: RunArtifacts(path))
    deps = EnginePorts(
        clock, FakeRedactor(), FakeDiagnostics(), {"local": FakeSessions({})}, describe
    )
    engine = Engine(
        catalog=catalog, ports=deps, store=store, capabilities=FakeCapabilities(), workspace="/"
    )
    with Router(EngineVersions(engine)) as router:
        for number in range(6):
            router.route_sync(Step(run_id="r", workflow="w", role="r", step=str(number)))
            router.call_sync("r", "s.a", {})
            clock.advance(1)
    archive = Archive(tmp_path)
    assert archive.verify("r").ok
    records = list(archive.records("r"))
    assert [record["seq"] for record in records] == list(range(18))
    assert [r["step"]["step"] for r in records if r["type"] == "route.decided"] == list("012345")
    steady = [record["monotonic_ns"] for record in records]
    assert steady == sorted(steady)
    walls = [record["time"] for record in records]
    assert walls != sorted(walls), "the wall clock did jump"


def test_capabilities_are_looked_up_again_after_thirty_monotonic_seconds_and_not_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = JumpingClock()
    wanted = Bundle(
        "a",
        "A",
        ("s.a",),
        requires_env=("ROUTER_TEST_TOKEN",),
        requires_binary=("sh", "no-such-program"),
    )
    catalog = small_catalog({"a": wanted})
    store = DiskRunStore(tmp_path, clock=clock, artifacts=lambda path: RunArtifacts(path))
    deps = EnginePorts(
        clock, FakeRedactor(), FakeDiagnostics(), {"local": FakeSessions({})}, describe
    )
    capabilities = SystemCapabilities(clock, ttl_s=30)
    engine = Engine(
        catalog=catalog, ports=deps, store=store, capabilities=capabilities, workspace="/"
    )
    monkeypatch.delenv("ROUTER_TEST_TOKEN", raising=False)
    before = engine.facts()
    assert before.capabilities == {"binary:sh"}
    monkeypatch.setenv("ROUTER_TEST_TOKEN", "x")
    clock.advance(29.9)
    assert engine.facts() is before
    assert engine.facts("somebody else").capabilities == {"binary:sh"}
    clock.advance(0.1)
    assert engine.facts().capabilities == {"binary:sh", "env:ROUTER_TEST_TOKEN"}
    monkeypatch.setenv("ROUTER_TEST_TOKEN", "")
    clock.advance(30)
    assert engine.facts().capabilities == {"binary:sh"}, "an empty variable is not a credential"
