"""The verbs run, install, uninstall, status and probe, as they are typed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bundle_router.cli import main
from bundle_router_deferral.agents import AgentPlaces, launch
from bundle_router_deferral.proxy import listen, serve

from tests.command_line import CODE
from tests.deferral.conftest import Home
from tests.deferral.fake_api import FakeApi
from tests.deferral.test_proxy_rules import request

AGENT = f"""#!{sys.executable}
import json, os, sys, urllib.request
base = os.environ.get("ANTHROPIC_BASE_URL", "none")
print("args", sys.argv[1:], "base", base)
if sys.argv[1:2] == ["ask"]:
    body = open(sys.argv[2], "rb").read()
    headers = {{"content-type": "application/json", "x-api-key": "CANARY-KEY"}}
    sent = urllib.request.Request(base + "/v1/messages", body, headers)
    print(json.load(urllib.request.urlopen(sent))["stop_reason"])
sys.exit(7)
"""


@contextmanager
def served(api: Any) -> Iterator[int]:
    """Serve an application from another thread, as the verbs have event loops of their own."""
    ready, done = threading.Event(), threading.Event()
    ports: list[int] = []

    async def run() -> None:
        async with serve(api, listen()) as port:
            ports.append(port)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    ready.wait(300)
    try:
        yield ports[0]
    finally:
        done.set()
        thread.join()


@pytest.fixture
def agent(home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up agent on the path."""
    program = home.folder / "programs/robot"
    program.parent.mkdir()
    program.write_text(AGENT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


def deferral(*words: str | Path) -> int:
    return main(["deferral", *map(str, words)])


def test_run_points_the_agent_at_a_proxy_that_ends_with_it(
    home: Home, agent: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApi()
    body = home.folder / "body.json"
    body.write_text(json.dumps(request()))
    with served(api) as port:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{port}")
        status = deferral(
            "run", "--json", "--runs", home.folder / "runs", "--", "robot", "ask", body
        )
    out = capfd.readouterr().out
    assert status == 7
    assert f"127.0.0.1:{port}" not in out
    assert "tool_use" in out
    assert api.requests[0]["tools"][0]["name"] == "tool_search_tool_bm25"
    assert api.headers[0]["x-api-key"] == "CANARY-KEY"
    report = json.loads(out.splitlines()[-1])
    assert report["proxies"][0]["deferred"] == 1
    for path in home.folder.rglob("*"):
        assert not path.is_file() or path == agent or b"CANARY-KEY" not in path.read_bytes()
    deferral("status", "--json", "--runs", home.folder / "runs")
    assert json.loads(capfd.readouterr().out)["proxies"][0]["requests"] == 1


def test_without_a_proxy_that_answers_the_agent_runs_alone(
    home: Home, agent: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (home.folder / "state").write_text("in the way")
    assert deferral("run", "--runs", home.folder / "runs", "--", "robot", "x") == 7
    shown = capfd.readouterr()
    assert "args ['x'] base none" in shown.out
    assert "runs without it" in shown.err


def test_an_agent_that_is_not_there_is_a_bad_request(
    home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    assert deferral("run", "--runs", home.folder / "runs", "--", "no-such-agent") == 3
    assert deferral("run") == 3
    assert "can't be started" in capfd.readouterr().err


def everything(folder: Path) -> dict[str, bytes]:
    state = folder / "state/bundle-router/deferral"
    kept = [state / "journal.jsonl", state / "lock"]
    return {
        str(path): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path not in kept
    }


def test_install_writes_a_launcher_and_uninstall_leaves_nothing(
    home: Home, agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(home.folder)
    assert deferral("install", "robot") == 0
    assert everything(home.folder) == before
    assert "dry run" in capsys.readouterr().out
    assert deferral("install", "robot", "--yes") == 0
    launcher = home.folder / "state/bundle-router/deferral/bin/robot"
    assert launcher.stat().st_mode & 0o777 == 0o755
    capsys.readouterr()
    assert deferral("status", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["agents"]
    assert (row["launcher"], row["program"], row["in_use"][:2]) == (str(launcher), str(agent), "no")
    assert deferral("install", "robot", "--yes") == 3  # it is there already
    installed = everything(home.folder)
    capsys.readouterr()
    assert deferral("uninstall", "robot") == 0
    assert "a dry run: nothing was written" in capsys.readouterr().out
    assert everything(home.folder) == installed
    assert deferral("uninstall", "robot", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["uninstalled"] is True
    assert everything(home.folder) == before
    assert deferral("uninstall", "robot") == 3


def test_installing_the_proxy_is_a_plan_that_apply_carries_out_and_undo_takes_back(
    home: Home, agent: Path
) -> None:
    before = everything(home.folder)
    assert deferral("apply", "proxy:robot") == 0
    assert everything(home.folder) == before
    assert deferral("apply", "proxy:robot", "--yes") == 0
    assert (home.folder / "state/bundle-router/deferral/bin/robot").exists()
    assert deferral("apply", "proxy:robot", "env-off", "--yes") == 3
    assert deferral("undo") == 0
    assert everything(home.folder) == before


@pytest.mark.parametrize("broken", [False, True])
def test_a_launcher_starts_the_agent_whatever_became_of_this_program(
    home: Home, agent: Path, broken: bool
) -> None:
    assert deferral("install", "robot", "--yes") == 0
    launcher = home.folder / "state/bundle-router/deferral/bin/robot"
    environment = {**os.environ, "PYTHONPATH": CODE}
    if broken:
        text = launcher.read_text()
        launcher.write_text(text.replace("-m bundle_router_deferral", "-m no_such_program"))
    done = subprocess.run(
        [launcher, "x y"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=home.folder,
        timeout=300,
        check=False,
    )
    assert done.returncode == 7
    assert "args ['x y']" in done.stdout
    assert ("base none" in done.stdout) is broken


def test_a_launcher_imports_nothing_from_the_folder_it_is_started_in(
    home: Home, agent: Path
) -> None:
    assert deferral("install", "robot", "--yes") == 0
    checkout = home.folder / "checkout"
    for name in ("bundle_router", "bundle_router_deferral", "starlette"):
        (checkout / name).mkdir(parents=True)
        (checkout / name / "__init__.py").write_text("open('was-imported', 'w')\n")
    done = subprocess.run(
        [home.folder / "state/bundle-router/deferral/bin/robot"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": CODE},
        cwd=checkout,
        timeout=300,
        check=False,
    )
    assert not (checkout / "was-imported").exists()
    assert "base http://127.0.0.1:" in done.stdout


@pytest.mark.parametrize(
    ("agent", "write", "upstream"),
    [
        ("claude", lambda home: None, "https://api.anthropic.com"),
        (
            "claude",
            lambda home: (home.claude / "settings.json").write_text(
                '{"env": {"ANTHROPIC_BASE_URL": "https://gw/a/"}}'
            ),
            "https://gw/a",
        ),
        (
            "opencode",
            lambda home: (home.project / "opencode.json").write_text(
                '{"provider": {"anthropic": {"options": {"baseURL": "https://gw/b/v1"}}}}'
            ),
            "https://gw/b",
        ),
    ],
)
def test_the_upstream_is_the_one_the_agent_would_have_asked(
    agent: str, write: Callable[[Home], object], upstream: str, home: Home, tmp_path: Path
) -> None:
    write(home)
    places = AgentPlaces(home.folder, home.project, {"PATH": "/bin"})
    assert places.upstream(agent) == upstream
    started = launch((f"/usr/bin/{agent}", "x"), 4242, places, tmp_path)
    assert "4242" in json.dumps([started.words, dict(started.environment)])
    assert ("--settings" in started.words) is (
        agent == "claude" and upstream != "https://api.anthropic.com"
    )


class Gateway(FakeApi):
    """A gateway that counts tokens as it likes."""

    def __init__(self, manner: str) -> None:
        super().__init__(refuses_deferral=manner == "refused")
        self.manner = manner

    def message(self, body: dict[str, Any], blocks: Any, reason: str) -> dict[str, Any]:
        made = super().message(body, blocks, reason)
        if self.manner == "ignored":
            made["usage"]["cache_read_input_tokens"] = 4_000
        return made


@pytest.mark.parametrize(("manner", "status"), [("pass", 0), ("ignored", 1), ("refused", 1)])
def test_a_probe_tells_what_a_gateway_does_with_deferral(
    manner: str,
    status: int,
    home: Home,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "CANARY-KEY")
    api = Gateway(manner)
    with served(api) as port:
        url = f"http://127.0.0.1:{port}/v1"
        assert deferral("probe", "--url", url) == 0
        assert api.bodies == []  # nothing is sent without --yes
        capsys.readouterr()
        assert deferral("probe", "--url", url, "--yes", "--json") == status
    found = json.loads(capsys.readouterr().out)
    assert (found["result"], found["host"]) == (manner, "127.0.0.1")
    kept = (home.folder / "state/bundle-router/deferral/probes.jsonl").read_text()
    assert json.loads(kept) == found
    assert "CANARY" not in kept


class Responses:
    """A gateway that speaks OpenAI's Responses form."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        tools = json.loads(body)["tools"]
        weight = sum(len(json.dumps(tool)) for tool in tools if not tool.get("defer_loading")) // 4
        answer = json.dumps(
            {"output": [], "usage": {"input_tokens": weight, "output_tokens": 1}}
        ).encode()
        good = scope["path"] == "/v1/responses" and scope["method"] == "POST"
        await send({"type": "http.response.start", "status": 200 if good else 404, "headers": []})
        await send({"type": "http.response.body", "body": answer})


def test_a_probe_of_the_responses_form_is_a_report(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "CANARY-KEY")
    with served(Responses()) as port:
        assert (
            deferral("probe", "--url", f"http://127.0.0.1:{port}", "--form", "openai", "--yes") == 0
        )
    assert "a report only" in capsys.readouterr().out


def test_a_probe_without_a_credential_asks_nobody(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert deferral("probe", "--url", "http://127.0.0.1:1", "--yes") == 3
