"""Every port has a fake, and a fake keeps the port's contract as its adapter does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import bundle_router.engine.engine_ports
import bundle_router.ports
import pytest
from bundle_router.adapters.answer_store import SqlAnswers
from bundle_router.adapters.artifact_files import ScratchFolder
from bundle_router.adapters.loop import LoopThread
from bundle_router.adapters.model_costs import SqlDayCosts
from bundle_router.errors import RequestError
from bundle_router.ports import AnswerStore, BackgroundLoop, DayCosts, Scratch
from bundle_router.testing import FakeClock, FakeDiagnostics

from tests.port_fakes import (
    FakeLoop,
    FakePorts,
    FakeScratch,
    MemoryAnswers,
    MemoryDayCosts,
    fake_ports,
)

PORTS = {
    value
    for module in (bundle_router.ports, bundle_router.engine.engine_ports)
    for value in vars(module).values()
    if inspect.isclass(value) and getattr(value, "_is_protocol", False)
    if value.__module__ == module.__name__
}


def methods(port: type) -> list[str]:
    """Return the names that a port asks for, its bases' included."""
    names = {
        name for base in port.__mro__ if base.__module__ == port.__module__ for name in vars(base)
    }
    return sorted(name for name in names if not name.startswith("_"))


def parameters(function: object) -> list[tuple[str, object, object]]:
    """Return what a function takes: names, kinds and defaults."""
    assert callable(function)
    return [
        (one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()
    ]


def test_every_port_has_a_fake() -> None:
    faked = set(get_type_hints(FakePorts).values())
    assert len(PORTS) >= 19
    assert PORTS - faked == set()


@pytest.mark.parametrize("name", [one.name for one in fields(FakePorts)])
def test_a_fake_takes_what_its_port_takes(name: str) -> None:
    port = get_type_hints(FakePorts)[name]
    fake = getattr(fake_ports(), name)
    assert methods(port) != []
    for method in methods(port):
        asked = inspect.getattr_static(port, method)
        assert hasattr(fake, method)
        if inspect.isfunction(asked):
            own = inspect.getattr_static(type(fake), method)
            assert parameters(own) == parameters(asked), method
            assert inspect.iscoroutinefunction(own) == inspect.iscoroutinefunction(asked), method


# --- the same contract for the fake and the adapter -----------------------------------------------


@pytest.mark.parametrize("make", [FakeScratch, ScratchFolder])
def test_a_scratch_file_is_readable_alone_in_its_folder_and_gone_after_the_call(
    make: Callable[[], Scratch], tmp_path: Path
) -> None:
    scratch = make()
    path = Path(scratch.put("a.txt", b"text", within=str(tmp_path)))
    assert path.is_absolute()
    assert path.parent.parent == tmp_path.resolve()
    assert [one.name for one in path.parent.iterdir()] == ["a.txt"]
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"text", 0o400)
    scratch.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "make", [lambda _: MemoryDayCosts(), lambda folder: SqlDayCosts(folder, FakeDiagnostics())]
)
def test_a_day_takes_costs_up_to_its_limit_and_days_are_apart(
    make: Callable[[Path], DayCosts], tmp_path: Path
) -> None:
    costs = make(tmp_path)
    day, next_day = "2026-01-01", "2026-01-02"
    assert costs.add_within(day, 0.75, 1.0)
    assert not costs.add_within(day, 0.5, 1.0)
    costs.add(day, -0.25)
    assert costs.add_within(day, 0.5, 1.0)
    assert not costs.add_within(day, 0.0, 1.0)
    assert costs.add_within(next_day, 1.0, 1.0)


@pytest.mark.parametrize(
    "make",
    [lambda _: MemoryAnswers(FakeClock()), lambda folder: SqlAnswers(folder, FakeDiagnostics())],
)
def test_an_answer_is_kept_replaced_and_missing_when_its_time_is_over(
    make: Callable[[Path], AnswerStore], tmp_path: Path
) -> None:
    answers = make(tmp_path)
    assert answers.get("k") is None
    answers.put("k", "first", 60.0)
    answers.put("k", "second", 60.0)
    answers.put("old", "text", 0.0)
    assert (answers.get("k"), answers.get("old")) == ("second", None)


@pytest.mark.parametrize("make", [FakeLoop, lambda: LoopThread("test-loop")])
def test_a_loop_returns_what_its_work_returns_or_raises_and_takes_none_when_closed(
    make: Callable[[], BackgroundLoop],
) -> None:
    async def answer(value: int) -> int:
        if value < 0:
            raise ValueError(value)
        return value + 1

    loop = make()
    assert loop.submit(answer(1)).result(30) == 2
    with pytest.raises(ValueError, match="-1"):
        loop.submit(answer(-1)).result(30)
    loop.close()
    loop.close()
    with pytest.raises(RequestError):
        loop.submit(answer(1))
