"""A whole router that asks a model over HTTP: config in, records out, and nothing that should not
get out.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import importlib.util
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from bundle_router import Router, Step
from bundle_router.core.records.replayed import replay
from bundle_router.core.values import Reply
from bundle_router.engine.asking import ModelSelector
from bundle_router.testing.upstream import (
    Act,
    Exchange,
    ScriptedServer,
    body,
    choice,
    completion,
    hang,
    says,
    status,
)
from bundle_router.wiring import load_catalog
from bundle_router.wiring.effects import open_redactor
from bundle_router.wiring.searching import open_model

from tests.adapters.llm.broken_upstream import reset
from tests.profiles import rounds

SECRET = "sk-canary-4Jf8sK2mZq9wX7vB"

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("litellm") is None or importlib.util.find_spec("instructor") is None,
    reason="the extra bundle-router[model] is not installed",
)


def config(folder: Path, url: str, **model: Any) -> Path:
    """A config with one model at `url`, whose key is in CANARY_KEY, and no route."""
    settings = {
        "names": ["openai/scripted"],
        "base_url": url,
        "key_env": "CANARY_KEY",
        "deadline_s": 60.0,
        **model,
    }
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (folder / "router.toml").write_text(
        f'[fallback]\norder = ["model", "default"]\ndefault = ["repo.readonly"]\n[model]\n{lines}'
        '[log]\ndiagnostics = "debug"\n'
    )
    (folder / "routes.toml").write_text("routes = []\n")
    (folder / "policy.toml").write_text('[[policies]]\nname = "everything"\nallow = ["*"]\n')
    (folder / "bundles.toml").write_text(
        '[bundles."files.find"]\ndescription = "Find files"\ntools = ["repo.ripgrep"]\neffects ='
        ' ["read"]\n'
    )
    return folder


def step(**more: Any) -> Step:
    return Step.model_validate(
        {"run_id": "r-1", "workflow": "x", "role": "y", "step": "z", "goal": "fix it", **more}
    )


def records(runs: Path, run_id: str = "r-1") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (runs / run_id / "routing.jsonl").read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CANARY_KEY", SECRET)
    made = tmp_path / "config"
    made.mkdir()
    return made


@needs_model
def test_a_step_without_a_route_is_settled_by_the_model_and_recorded(
    folder: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    with ScriptedServer([says(choice("files.find"))]) as server:
        with Router.open(config(folder, server.base_url), runs=runs, workspace=tmp_path) as router:
            assert router.warm_up_sync() is True
            decision = router.route_sync(step())
            again = router.route_sync(step(run_id="r-2"))
            catalog = router.catalog
        assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
        assert len(server.requests) == 1
    (record,) = records(runs)
    assert (record["source"], record["degraded"]) == ("model", False)
    assert record["bundles"][0]["reason"] == "model"
    assert again.bundles[0].reason == "model_cached"
    assert decision.bundle_ids[0] == "files.find"
    model = record["model"]
    assert (model["name"], model["attempts"], model["failure"], model["cached"]) == (
        "openai/scripted",
        1,
        None,
        False,
    )
    assert model["key"].startswith("sha256:")
    assert json.loads(model["answer"])["picks"][0]["id"] == "files.find"
    assert replay(record, catalog).outcome == "identical"


@needs_model
@pytest.mark.parametrize(
    ("act", "failure"),
    [
        (status(503), "upstream_error"),
        (says("nonsense"), "invalid_output"),
        (reset(), "upstream_error"),
        (hang(), "timeout"),
    ],
)
def test_a_model_that_fails_gives_the_declared_set_marked_degraded(
    folder: Path, tmp_path: Path, act: Act, failure: str
) -> None:
    runs = tmp_path / "runs"
    deadline = 0.5 if failure == "timeout" else 60.0
    with (
        ScriptedServer([act]) as server,
        Router.open(
            config(folder, server.base_url, deadline_s=deadline), runs=runs, workspace=tmp_path
        ) as router,
    ):
        router.warm_up_sync()
        decision = router.route_sync(step())
        assert replay(records(runs)[0], router.catalog).outcome == "identical"
    assert (decision.source, decision.degraded, decision.bundle_ids) == (
        "default",
        True,
        ["repo.readonly"],
    )
    assert decision.model is not None
    assert decision.model.failure == failure
    assert records(runs)[0]["reply"]["failure"] == failure


def test_before_the_libraries_are_loaded_the_declared_set_is_given(
    folder: Path, tmp_path: Path
) -> None:
    """F-10: the first question waits for no import."""
    with (
        ScriptedServer([hang()]) as server,
        Router.open(
            config(folder, server.base_url), runs=tmp_path / "runs", workspace=tmp_path
        ) as router,
    ):
        decision = router.route_sync(step())
        assert not server.requests
    assert (decision.degraded, decision.bundle_ids) == (True, ["repo.readonly"])
    assert decision.model is not None
    assert decision.model.failure == "not_ready"


def _echo_key(exchange: Exchange) -> None:
    """An error that says the key again, as some providers do, and more of the request."""
    said = {
        "error": {
            "message": (
                f"bad key {exchange.request.headers['authorization']} {exchange.request.body!r}"
            )
        }
    }
    exchange.reply(json.dumps(said).encode(), 401)


def _answer_with_key(exchange: Exchange) -> None:
    exchange.reply(completion(choice("repo.readonly", rationale=f"the key is {SECRET}")))


def _nonsense_with_key(exchange: Exchange) -> None:
    exchange.reply(completion(f"not json {SECRET}"))


@needs_model
@pytest.mark.parametrize(
    "act", [_echo_key, _answer_with_key, _nonsense_with_key, body(SECRET.encode()), reset()]
)
def test_the_key_is_in_no_record_and_on_no_stream(
    folder: Path,
    tmp_path: Path,
    act: Act,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S-17, for what goes to a model and comes back."""
    caplog.set_level(0)
    runs = tmp_path / "runs"
    with (
        ScriptedServer([act]) as server,
        Router.open(
            config(folder, server.base_url, names=["openai/gpt-4o-mini"]),
            runs=runs,
            workspace=tmp_path,
        ) as router,
    ):
        router.warm_up_sync()
        router.route_sync(step(goal=f"use {SECRET} please"))
        assert server.requests
        assert SECRET not in server.requests[0].message("user")
    out, err = capfd.readouterr()
    assert out == ""
    written = "".join(
        path.read_text() for path in runs.rglob("*") if path.is_file() and path.suffix != ".sqlite"
    )
    logged = "".join(f"{r.getMessage()} {r.exc_text}" for r in caplog.records)
    for form in (SECRET, base64.b64encode(SECRET.encode()).decode(), quote(SECRET, safe="")):
        for where in (err, written, logged):
            assert form not in where


def test_every_variable_that_holds_a_key_is_redacted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "plain-words-that-look-like-nothing")
    made = config(
        folder, "http://127.0.0.1:9/v1", names=["openai/scripted", "anthropic/claude-haiku-4-5"]
    )
    redactor = open_redactor(load_catalog(made))
    assert SECRET not in redactor.redact(f"a {SECRET} b")
    assert "plain-words" not in redactor.redact("a plain-words-that-look-like-nothing b")


@pytest.mark.parametrize("change", ["names = []", 'names = ["m"]'])
def test_nobody_is_asked_where_the_config_names_no_model_or_no_turn_for_one(
    folder: Path, change: str
) -> None:
    from bundle_router.adapters.system import SystemClock
    from bundle_router.testing import FakeDiagnostics

    order = '["default"]' if "m" in change.split("=")[1] else '["model", "default"]'
    (folder / "router.toml").write_text(f"[fallback]\norder = {order}\n[model]\n{change}\n")
    assert open_model(load_catalog(folder), "runs", SystemClock(), FakeDiagnostics()) is None


def _descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@needs_model
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to count open files")
def test_many_questions_leave_no_socket_behind(
    opened: Callable[..., ModelSelector], question: Callable[..., Any]
) -> None:
    acts: list[Act] = [
        says(choice("a.one")),
        says("x"),
        says(choice("b.two")),
        status(400),
        says(choice("a.one")),
        body(b"x"),
    ]
    played: list[int] = []

    def act(exchange: Exchange) -> None:
        played.append(1)
        acts[len(played) % len(acts)](exchange)

    with ScriptedServer([act]) as server:
        selector = opened(server.base_url)

        async def ask_all(count: int) -> list[Reply]:
            return [await selector.select(question(goal=f"{count} {i}"), ()) for i in range(count)]

        asyncio.run(ask_all(20))
        before = _descriptors()
        replies = asyncio.run(ask_all(rounds(100)))
        assert sum(reply.model.attempts for reply in replies if reply.model) > len(replies) / 3
        assert server.connections <= 2
        assert _descriptors() <= before + 2


@needs_model
def test_threads_and_loops_ask_side_by_side(folder: Path, tmp_path: Path) -> None:
    """F-16 in small: 200 steps of 200 runs from 16 threads, no mix-up."""

    def act(exchange: Exchange) -> None:
        number = int(json.loads(exchange.request.message("user"))["goal"].split()[1])
        exchange.reply(completion(choice("repo.readonly" if number % 2 else "files.find")))

    with (
        ScriptedServer([act]) as server,
        Router.open(
            config(folder, server.base_url), runs=tmp_path / "runs", workspace=tmp_path
        ) as router,
    ):
        router.warm_up_sync()
        with ThreadPoolExecutor(16) as pool:
            decisions = list(
                pool.map(
                    lambda i: router.route_sync(step(run_id=f"r-{i}", goal=f"goal {i}")), range(200)
                )
            )
        assert len(server.requests) == 200
    for number, decision in enumerate(decisions):
        assert decision.bundle_ids[0] == ("repo.readonly" if number % 2 else "files.find"), number
