"""`bundle-router serve --mcp-only`, as people run it: a process that serves until it is told to
stop.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bundle_router.service import Keys
from bundle_router.service.keys import run_tag

from tests.cli.warm_commands import Forked, Warm
from tests.command_line import ROOT, run
from tests.command_line import begin as start
from tests.ports import free_port

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

STEP = ("--workflow", "feature", "--role", "reviewer", "--step", "review")


class Process:
    """The verb, running in a folder of its own: forked from a warm process, or, without one,
    started cold.
    """

    def __init__(self, warm: Warm | None, folder: Path, *words: str, **env: str) -> None:
        self.child: Forked | subprocess.Popen[str] = (
            Forked(warm, folder, ("serve", *words), env)
            if warm
            else start(folder, "serve", *words, env=env)
        )

    def line(self) -> str:
        """The next line of standard output; an empty one when it has ended."""
        assert self.child.stdout is not None
        return self.child.stdout.readline()

    def told(self) -> str:
        """The next line of standard error that is no event, such as that another test left a
        process behind.
        """
        assert self.child.stderr is not None
        return next(line for line in self.child.stderr if not line.startswith("{"))

    def stop(self, number: int) -> tuple[int, str]:
        """Its exit status and standard error after the signal."""
        self.child.send_signal(number)
        _, err = self.child.communicate(timeout=300)
        assert self.child.returncode is not None
        return self.child.returncode, err


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    warm = Warm()
    yield warm
    warm.close()


@pytest.fixture
def begin(tmp_path: Path, request: pytest.FixtureRequest, warm: Warm) -> Iterator[Any]:
    """Starts the verb; with the parameter `asyncio` as where the extra `uvloop` is not
    installed.
    """
    started: list[Process] = []
    path = {}
    if getattr(request, "param", "uvloop") == "asyncio":
        (tmp_path / "hidden").mkdir()
        (tmp_path / "hidden" / "uvloop.py").write_text(
            'raise ImportError("not installed")\n', encoding="utf-8"
        )
        path["PYTHONPATH"] = os.pathsep.join((str(tmp_path / "hidden"), str(ROOT / "router")))

    def make(*words: str, cold: bool = False, **env: str) -> Process:
        started.append(Process(None if cold else warm, tmp_path, *words, **path, **env))
        return started[-1]

    yield make
    for process in started:
        process.child.kill()
        process.child.communicate()


def ask(site: Any, url: str, token: str) -> tuple[list[str], str]:
    """The listed names, and what reading README.md gives."""
    base, _, run_id = url.rpartition("/")
    endpoint = SimpleNamespace(key=token, url=lambda run: f"{base}/{run}")

    async def main() -> tuple[list[str], str]:
        async with site.client(endpoint, run_id=run_id) as connected:
            names = [tool.name for tool in (await connected.list_tools()).tools]
            return (
                names,
                (await connected.call_tool("repo__read_file", {"path": "README.md"}))
                .content[0]
                .text,
            )

    return asyncio.run(asyncio.wait_for(main(), 300))


on_both_loops = pytest.mark.parametrize("begin", ["uvloop", "asyncio"], indirect=True)


@on_both_loops
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_step_is_routed_and_served_until_a_signal(
    site: Any, begin: Any, tmp_path: Path, number: int
) -> None:
    (tmp_path / "README.md").write_text("# served\n", encoding="utf-8")
    words = ("--mcp-only", "--run", "r-1", *STEP, "--config", str(ROOT / "config"), "--json")
    process = begin(*words, cold=True)
    said = json.loads(process.line())
    assert (said["run_id"], said["pid"]) == ("r-1", process.child.pid)
    assert said["url"] == f"http://127.0.0.1:{said['port']}/mcp/runs/r-1"
    token = process.told().removeprefix("bearer token: ").strip()
    names, text = ask(site, said["url"], token)
    assert "repo__read_file" in names
    assert "# served" in text
    if (maps := Path(f"/proc/{said['pid']}/maps")).exists() and find_spec("uvloop"):
        assert ("uvloop" in maps.read_text(encoding="utf-8")) == (
            not (tmp_path / "hidden").exists()
        )
    assert process.stop(number) == (0, "")
    run = json.loads((tmp_path / "runs" / "r-1" / "run.json").read_text(encoding="utf-8"))
    assert run["closed"]


def test_a_token_from_the_environment_is_not_said_anywhere(
    site: Any, begin: Any, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("# served\n", encoding="utf-8")
    token = "from-the-environment-" + "x" * 32
    words = (
        "--mcp-only",
        "--token-env",
        "ROUTER_TOKEN",
        "--run",
        "r-1",
        *STEP,
        "--config",
        str(ROOT / "config"),
    )
    process = begin(*words, ROUTER_TOKEN=token)
    line = process.line()
    url = line.split()[1]
    assert "# served" in ask(site, url, token)[1]
    decided = json.loads(
        (tmp_path / "runs" / "r-1" / "routing.jsonl").read_text(encoding="utf-8").splitlines()[0]
    )
    assert (
        "# served"
        in ask(site, url, Keys(token).token_for_run("r-1", run_tag(decided["decision_id"])))[1]
    )
    status, err = process.stop(signal.SIGTERM)
    assert (status, token in line + err) == (0, False)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
def test_no_program_of_the_same_user_reads_its_environment_in_proc_and_it_still_has_it(
    begin: Any, site: Any, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("# served\n", encoding="utf-8")
    words = ("--mcp-only", "--run", "r-1", *STEP, "--config", str(ROOT / "config"))
    token = "from-the-environment-" + "x" * 32
    process = begin(*words, "--token-env", "ROUTER_TOKEN", cold=True, ROUTER_TOKEN=token, KEY="k-1")
    url = process.line().split()[1]
    script = f"""
from pathlib import Path
for name in ("environ", "fd", "mem"):
    path = Path("/proc/{process.child.pid}") / name
    try:
        print(name, list(path.iterdir()) if name == "fd" else path.open("rb").read(65536))
    except OSError as error:
        print(name, type(error).__name__)
"""
    read = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    ).stdout
    assert token not in read
    assert "KEY=" not in read
    if os.geteuid() != 0:
        assert read.split("\n")[:2] == ["environ PermissionError", "fd PermissionError"]
    assert "# served" in ask(site, url, token)[1]
    assert process.stop(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--run", "none"), "none"),
        (("--mcp-only", "--run", "none"), "none"),
        (("--mcp-only", "--run", "../x"), "--run is not a run id"),
        (("--mcp-only", "--role", "reviewer"), "--workflow, --step"),
        (("--mcp-only", "--token-env", "NOT_SET_ANYWHERE"), "'NOT_SET_ANYWHERE' is not set"),
        (("--mcp-only", "--port", "99999"), "0 to 65535"),
        (("--mcp-only", "--host", "0.0.0.0"), "needs a token file"),
        (("--host", "0.0.0.0", "--tokens", "tokens.toml"), "needs TLS"),
        (("--host", "router.example"), "is not an IP address"),
        (("--tls-cert", "cert.pem"), "a certificate and its key"),
        (("--tokens", "none.toml"), "'none.toml' can't be read"),
    ],
)
def test_what_cant_be_served_is_a_bad_request(
    tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    done = run(tmp_path, "serve", *words, code=3)
    assert done.stdout == ""
    assert why in done.stderr


# --- S-03 -----------------------------------------------------------------------------------------

KEYS: dict[str, Any] = {
    "command": "/bin/sh",
    "args": ["-c", "touch pwned"],
    "transport": "stdio",
    "url": "file:///bin/sh",
    "env": {"LD_PRELOAD": "/tmp/x.so"},
    "cwd": "/",
    "server": {"command": "/bin/sh", "args": ["-c", "touch pwned"]},
    "mcpServers": {"evil": {"command": "/bin/sh", "args": ["-c", "touch pwned"]}},
}
METHODS = (
    "initialize", "server/discover", "ping", "tools/list", "tools/call", "resources/list", "resources/read",
    "prompts/get", "completion/complete", "logging/setLevel", "servers/add", "notifications/cancelled", "roots/list",
)  # fmt: skip
TOOLS = (
    "repo__read_file",
    "search_tools",
    "call_tool",
    "list_tools",
    "get_tool_details",
    "read_artifact",
    "none",
)


def messages() -> Iterator[bytes]:
    """Every place a message has for a key that could define a process."""
    for method in METHODS:
        for params in (KEYS, {"name": "call_tool", "arguments": KEYS, **KEYS}, {"_meta": KEYS}):
            yield json.dumps(
                {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **KEYS}
            ).encode()
    for tool in TOOLS:
        for key, value in KEYS.items():
            params = {"name": tool, "arguments": {key: value}}
            yield json.dumps(
                {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            ).encode()
        inner = {"name": "repo.read_file", "arguments": KEYS, **KEYS}
        params = {"name": tool, "arguments": inner}
        yield json.dumps(
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        ).encode()
    yield json.dumps(KEYS).encode()
    yield json.dumps([KEYS]).encode()


def test_no_message_starts_a_process(site: Any, begin: Any, tmp_path: Path) -> None:
    """S-03, as the kernel sees it."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed, so nothing can say that no process was started")
    if shutil.which("git"):
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    process = begin(
        "--mcp-only",
        "--run",
        "r-1",
        *STEP,
        "--config",
        str(ROOT / "config"),
        "--json",
        "--development",
    )
    said = json.loads(process.line())
    token = process.told().removeprefix("bearer token: ").strip()
    endpoint = SimpleNamespace(key=token, port=said["port"])
    log = tmp_path / "execve.log"
    watch = subprocess.Popen(
        [
            strace,
            "-f",
            "-qq",
            "-e",
            "trace=execve,execveat",
            "-o",
            str(log),
            "-p",
            str(said["pid"]),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        traced = Path(f"/proc/{said['pid']}/status")
        deadline = time.monotonic() + 300
        while f"TracerPid:\t{watch.pid}" not in traced.read_text():
            if watch.poll() is not None:
                pytest.skip("strace may not trace here")
            assert time.monotonic() < deadline

        async def fuzz() -> list[int]:
            answers = []
            for body in messages():
                for more in ("", "MCP-Protocol-Version: 2026-07-28"):
                    sent = site.request(endpoint, target="/mcp/runs/r-1", body=body, more=more)
                    answers.append((await site.raw(endpoint.port, sent)).status)
            return answers

        async def call(*calls: tuple[str, dict[str, Any]]) -> list[bool]:
            """Through a client, in both eras; whether each was an error."""
            errors = []
            served = SimpleNamespace(key=token, url=lambda run_id: said["url"])
            for era in ("legacy", "auto"):
                async with site.client(served, era, run_id="r-1") as connected:
                    for name, arguments in calls:
                        errors.append((await connected.call_tool(name, arguments)).is_error)
            return errors

        statuses = asyncio.run(asyncio.wait_for(fuzz(), 300))
        assert len(statuses) == 2 * len(list(messages()))
        assert set(statuses) <= {200, 202, 400, 404, 406, 422}, set(statuses)
        told = [(tool, {key: value}) for tool in TOOLS for key, value in KEYS.items()]
        told += [
            ("call_tool", {"name": name, "arguments": KEYS})
            for name in ("repo.read_file", "evil.run")
        ]
        assert all(asyncio.run(asyncio.wait_for(call(*told), 300)))
        assert log.read_text() == ""
        assert not (tmp_path / "pwned").exists()
        if shutil.which("git"):
            asyncio.run(asyncio.wait_for(call(("repo__git_log", {})), 300))
            assert "git" in log.read_text(), "a tool that does start a program is seen"
    finally:
        process.stop(signal.SIGTERM)
        watch.wait(300)


def test_people_sign_in_with_a_token_and_edit_the_config_if_it_is_good_for_that(
    begin: Any, tmp_path: Path
) -> None:
    httpx = pytest.importorskip("httpx")
    shutil.copytree(ROOT / "config", tmp_path / "config")
    shutil.copytree(ROOT / "config", tmp_path / "branch")
    process = begin(
        "--json",
        "--token-env",
        "TOKEN",
        "--compare",
        f"branch={tmp_path / 'branch'}",
        TOKEN="t" * 40,
    )
    base = f"http://127.0.0.1:{json.loads(process.line())['port']}"
    with httpx.Client(base_url=base, headers={"origin": base}, timeout=300) as person:
        assert person.get("/config").status_code == 401
        signed = person.post("/sign-in", data={"token": "t" * 40})
        assert signed.status_code == 303
        page = person.get("/config", params={"file": "router.toml"}).text
        assert "recent_steps = 5" in page
        token = page.partition('name="token" value="')[2].partition('"')[0]
        assert (
            "unknown key"
            in person.post(
                "/config/check", data={"token": token, "file": "router.toml", "text": "recent = 1"}
            ).text
        )
        compared = person.get("/config/compare.json", params={"with": "branch"}).json()
        assert compared["preview"]["privileges"]["rows"] == []
        assert person.get("/runs").status_code == 200
    assert process.stop(signal.SIGTERM)[0] == 0


def test_plain_serve_says_a_link_that_signs_in_once_and_nothing_of_a_run(begin: Any) -> None:
    httpx = pytest.importorskip("httpx")
    process = begin("--json")
    said = json.loads(process.line())
    assert (said["run_id"], said["notices"]) == (None, "")
    assert process.told().startswith("bearer token: brk_")
    words, _, link = process.told().rstrip().rpartition(" ")
    assert words == "sign in (once, within 10 minutes):"
    with httpx.Client(timeout=300, follow_redirects=True) as person:
        page = person.get(link)
        assert (page.status_code, page.url.path, page.url.query) == (200, "/", b"")
        assert person.get(link).status_code == 401
    status, err = process.stop(signal.SIGTERM)
    assert status == 0
    assert link.partition("=")[2] not in err


def write_config(config: Path, entry: dict[str, Any]) -> None:
    """A config with one server, `s`, all of whose tools every step has."""
    config.mkdir()
    lines = [f"{name} = {json.dumps(value)}" for name, value in entry.items()]
    files = {
        "servers": "\n".join(("[servers.s]", *lines)),
        "bundles": '[bundles."s.all"]\ndescription = "All."\neffects = ["read"]\ntools = ["s.*"]',
        "routes": '[[routes]]\nname = "all"\nbundles = ["s.all"]',
        "policy": '[[policies]]\nname = "all"\nallow = ["*"]',
    }
    for name, text in files.items():
        (config / f"{name}.toml").write_text(f"{text}\n", encoding="utf-8")


@on_both_loops
def test_what_is_followed_is_routed_again_when_a_server_comes_back_and_when_it_lists_more(
    begin: Any, tmp_path: Path
) -> None:
    from tests.adapters.mcp.conftest import FAULTS

    port = free_port()
    write_config(
        tmp_path / "config", {"url": f"http://127.0.0.1:{port}/mcp", "trust": "trusted", "ttl_s": 1}
    )
    places = (
        "--config",
        str(tmp_path / "config"),
        "--workspace",
        str(tmp_path),
        "--development",
        "--unpinned",
    )
    process = begin("--mcp-only", "--run", "r-1", *STEP, *places, "--json", "--follow")
    assert json.loads(process.line())["notices"].startswith(
        "following: the step is routed again when"
    )
    assert process.told().startswith("bearer token")
    lost = (
        "no tools of server 's': it gave no list of its tools: the server can't be reached"
        " (ClientConnectorError); "
    )
    assert process.told() == f"{lost}it is asked again\n"
    with FAULTS.serving(port=port) as server:
        assert process.told() == f"routed again: {len(FAULTS.TOOLS)} tools\n"
        server.faults.extra_tools.append(FAULTS.tool("later"))
        assert process.told() == f"routed again: {len(FAULTS.TOOLS) + 1} tools\n"
    assert process.told() == "routed again: 0 tools\n"
    assert process.told().startswith("no tools of server 's': ")
    process.stop(signal.SIGTERM)
    records = (tmp_path / "runs" / "r-1" / "routing.jsonl").read_text(encoding="utf-8").splitlines()
    missed = [[row["code"] for row in json.loads(line)["left_out"]] for line in records]
    assert missed[-4:-1] == [
        ["server_unavailable"],
        [],
        [],
    ], "three that count, however long it was away"
    assert len(missed) <= 5


def test_what_serving_does_not_notice_is_said(begin: Any) -> None:
    refused = begin("--follow").child
    assert "--follow needs a step" in refused.communicate()[1]
    assert refused.returncode == 3
    process = begin("--mcp-only", "--run", "r-1", *STEP, "--config", str(ROOT / "config"))
    process.line()
    assert "until the run is routed again (--follow does that):" in process.line()
    assert "are not noticed" in process.line()
    assert "is refused when it is called" in process.line()
    process.stop(signal.SIGTERM)


@on_both_loops
def test_a_server_that_is_silent_at_first_is_missing_in_words_and_not_in_silence(
    begin: Any, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    silent = ["-c", "import sys; sys.stdin.read()"]
    entry = {"transport": "stdio", "command": sys.executable, "args": silent, "trust": "trusted"}
    write_config(config, entry)
    places = ("--config", str(config), "--workspace", str(tmp_path))
    process = begin(
        "--mcp-only", "--run", "r-1", *STEP, *places, "--development", "--unpinned", "--json"
    )
    assert json.loads(process.line())["run_id"] == "r-1"
    assert process.told().startswith("bearer token")
    assert process.told().startswith(
        "no tools of server 's': it is still being asked for its tools, after"
    )
    process.stop(signal.SIGTERM)
    asked = run(
        tmp_path, "route", *STEP, *places, "--run", "r-2", "--development", "--unpinned"
    ).stdout
    assert (
        "server 's' was not asked which tools it has: bundle-router tools --run r-2 asks it"
        in asked
    )
    shown = run(tmp_path, "runs", "show", "r-1").stdout
    assert "server_unavailable: server 's': it is still being asked for its tools" in shown


@pytest.mark.parametrize("mode", [(), ("--mcp-only",)], ids=["service", "mcp-only"])
def test_what_is_followed_is_routed_again_when_a_pin_changes(
    begin: Any, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    from tests.adapters.mcp.conftest import FAULTS

    with FAULTS.serving() as server:
        write_config(tmp_path / "config", {"url": server.url, "trust": "trusted", "ttl_s": 1})
        run(tmp_path, "pin", "--yes", "s")
        process = begin(
            *mode,
            "--run",
            "r-1",
            *STEP,
            "--json",
            "--follow",
            "--token-env",
            "TOKEN",
            TOKEN="t" * 40,
        )
        process.line()
        server.faults.extra_tools.append(FAULTS.tool("later"))
        run(tmp_path, "pin", "--yes", "s")
        assert f"routed again: {len(FAULTS.TOOLS) + 1} tools\n" in process.child.stderr
        server.faults.extra_tools.clear()
        run(tmp_path, "pin", "--yes", "s")
        assert f"routed again: {len(FAULTS.TOOLS)} tools\n" in process.child.stderr
        assert process.stop(signal.SIGTERM)[0] == 0
