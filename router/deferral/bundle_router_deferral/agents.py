"""Starts an agent beside its own proxy, and writes launchers that always do so.

Rules:
1. The agent's own files are not changed: its environment, an option, or a temporary folder points
   it to the proxy.
2. The upstream is the one that the agent would have used, and is fixed when the proxy starts.
3. If the proxy does not start or does not answer, the agent starts without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bundle_router.errors import RequestError

from bundle_router_deferral.rewriting import DeferralRules, RequestRewriter
from bundle_router_deferral.settings import RANK, Scope

DEFAULT_UPSTREAM: Final = "https://api.anthropic.com"
HEALTH_S: Final = 3.0
MARK: Final = "BUNDLE_ROUTER_DEFERRAL"


@dataclass(frozen=True, slots=True)
class Launch:
    """How an agent is started: its command line, additions to its environment, and the upstream it
    would have used.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def agent_of(command: Sequence[str]) -> str:
    return Path(command[0]).name.removesuffix(".exe")


def _json(path: Path) -> dict[str, Any]:
    try:
        return _parse(path.read_bytes().decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError):
        return {}


def _value_at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


class AgentPlaces:
    """The files in which the known agents configure their upstream."""

    def __init__(self, home: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.home = home
        self.folder = folder
        self.environment = environment
        named = environment.get("CLAUDE_CONFIG_DIR")
        self.claude = Path(named) if named else home / ".claude"

    def claude_setting(self) -> str:
        """Return Claude Code's base URL in a settings file, which overrides the environment."""
        places: dict[Scope, Path] = {
            "managed": Path("/etc/claude-code/managed-settings.json"),
            "local": self.folder / ".claude/settings.local.json",
            "project": self.folder / ".claude/settings.json",
            "user": self.claude / "settings.json",
        }
        for scope in RANK:
            url = _value_at(_json(places[scope]), "env", "ANTHROPIC_BASE_URL")
            if isinstance(url, str) and url:
                return url
        return ""

    def cline_providers(self) -> Path:
        path = self.environment.get("CLINE_PROVIDER_SETTINGS_PATH")
        if path:
            return Path(path)
        return self.home / ".cline/data/settings/providers.json"

    def upstream(self, agent: str) -> str:
        """Return the base URL that an agent would use, without `/v1`."""
        if agent == "opencode":
            url = self._opencode_url()
        elif agent == "cline":
            providers = _json(self.cline_providers())
            url = _value_at(providers, "providers", "anthropic", "settings", "baseUrl")
        elif agent == "claude":
            url = self.claude_setting() or self.environment.get("ANTHROPIC_BASE_URL")
        else:
            url = self.environment.get("ANTHROPIC_BASE_URL")

        base = url if isinstance(url, str) and url else DEFAULT_UPSTREAM
        return base.rstrip("/").removesuffix("/v1")

    def _opencode_url(self) -> Any:
        """Return the base URL of the first of opencode's configs that has one."""
        home = Path(self.environment.get("XDG_CONFIG_HOME") or self.home / ".config")
        configs = (
            _parse(self.environment.get("OPENCODE_CONFIG_CONTENT", "{}")),
            _json(self.folder / "opencode.json"),
            _json(home / "opencode/opencode.json"),
        )
        for config in configs:
            url = _value_at(config, "provider", "anthropic", "options", "baseURL")
            if isinstance(url, str) and url:
                return url
        return None


def _parse(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def launch(command: Sequence[str], port: int, places: AgentPlaces, scratch: Path) -> Launch:
    """Return how to start an agent that uses the proxy on `port`; `scratch` is a folder for its
    temporary files.
    """
    base = f"http://127.0.0.1:{port}"
    agent = agent_of(command)
    off = places.environment.get("NO_PROXY") or places.environment.get("no_proxy") or ""
    direct = ",".join(filter(None, (off, "127.0.0.1")))
    common = {"ANTHROPIC_BASE_URL": base, "NO_PROXY": direct, "no_proxy": direct, MARK: "1"}
    if agent == "claude":
        words = tuple(command)
        if (
            places.claude_setting()
        ):  # a settings file overrides the environment, and this option overrides both
            words = (
                command[0],
                "--settings",
                json.dumps({"env": {"ANTHROPIC_BASE_URL": base}}),
                *command[1:],
            )
        return Launch(words, common)
    if agent == "opencode":
        config = _parse(places.environment.get("OPENCODE_CONFIG_CONTENT", "{}"))
        config.setdefault("provider", {}).setdefault("anthropic", {}).setdefault("options", {})[
            "baseURL"
        ] = f"{base}/v1"
        return Launch(tuple(command), common | {"OPENCODE_CONFIG_CONTENT": json.dumps(config)})
    if agent == "cline":
        providers = _json(places.cline_providers())
        settings = (
            providers.setdefault("providers", {})
            .setdefault("anthropic", {})
            .setdefault("settings", {})
        )
        settings["baseUrl"] = f"{base}/v1"
        file = scratch / "providers.json"
        with os.fdopen(
            os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as out:
            json.dump(providers, out)
        # Without `local`, Cline starts a daemon that would outlive the proxy and keep its address.
        variables = {
            "CLINE_PROVIDER_SETTINGS_PATH": str(file),
            "CLINE_SESSION_BACKEND_MODE": "local",
        }
        return Launch(tuple(command), common | variables)
    return Launch(tuple(command), common | {"ANTHROPIC_API_BASE": base})


@contextlib.asynccontextmanager
async def proxy_running(
    upstream: str, rules: DeferralRules, state: Path, runs: Path
) -> AsyncIterator[int]:
    """Run a proxy during the block, and yield its port once it answers. Raises OSError."""
    from bundle_router_deferral.hidden_store import HiddenStore
    from bundle_router_deferral.numbers import NumbersLog
    from bundle_router_deferral.proxy import DeferralProxy, listen, serve
    from bundle_router_deferral.upstream import Upstream

    store = HiddenStore(state / "hidden.sqlite")
    numbers = NumbersLog(runs)
    try:
        async with Upstream(upstream) as way:
            application = DeferralProxy(way, RequestRewriter(rules), store, numbers)
            async with serve(application, listen()) as port:
                await asyncio.wait_for(healthy(port), HEALTH_S)
                yield port
    finally:
        numbers.close()
        store.close()


async def healthy(port: int) -> None:
    """Check a proxy's health. Raises OSError if it is not healthy."""
    from bundle_router_deferral.proxy import HEALTH

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            f"GET {HEALTH} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode()
        )
        status = await reader.readline()
        if b" 200 " not in status:
            raise OSError(f"it answered {status!r}")
    finally:
        writer.close()


async def run_agent(
    command: Sequence[str],
    places: AgentPlaces,
    rules: DeferralRules,
    state: Path,
    runs: Path,
    *,
    upstream: str = "",
    say: Callable[[str], None] = lambda _text: None,
) -> int:
    """Run an agent beside a proxy, and return its exit status.

    If the proxy does not answer, run it alone.
    """
    upstream = upstream or places.upstream(agent_of(command))
    async with contextlib.AsyncExitStack() as stack:
        started = Launch(tuple(command))
        try:
            port = await stack.enter_async_context(proxy_running(upstream, rules, state, runs))
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="bundle-router-"))
            started = launch(command, port, places, Path(scratch))
        except Exception as error:  # noqa: BLE001 - the agent starts whatever became of the proxy
            say(
                f"the proxy did not start ({error or type(error).__name__}); {agent_of(command)}"
                " runs without it"
            )
        return await _run(started, places.environment)


async def _run(started: Launch, environment: Mapping[str, str]) -> int:
    try:
        process = await asyncio.create_subprocess_exec(
            *started.words, env={**environment, **started.environment}
        )
    except OSError as error:
        raise RequestError(f"{started.words[0]!r} can't be started: {error.strerror}") from None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _send, process, number)
    loop.add_signal_handler(
        signal.SIGINT, lambda: None
    )  # the terminal sends it to the agent too: the agent decides
    try:
        status = await process.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.remove_signal_handler(number)
    return status if status >= 0 else 128 - status


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def find_agent(name: str, path: str, launchers: Path) -> str | None:
    """Return the agent's own program: the first on the path that is not one of our launchers."""
    folders = [folder for folder in path.split(os.pathsep) if folder and Path(folder) != launchers]
    return shutil.which(name, path=os.pathsep.join(folders))


def launcher_text(agent: str, program: str) -> bytes:
    """Return the text of a launcher.

    If this program is gone or broken, it starts the agent alone.
    """
    # -P: the agent is started in a checkout, which may have folders of these names.
    command = f"{shlex.quote(sys.executable)} -P -m bundle_router_deferral"
    real = shlex.quote(program)
    return f"""#!/bin/sh
# Written by `bundle-router deferral install {agent}`.
# `bundle-router deferral uninstall {agent} --yes` removes it.
if [ -z "${{{MARK}:-}}" ] && {command} --version >/dev/null 2>&1; then
  {MARK}=1 exec {command} run -- {real} "$@"
fi
exec {real} "$@"
""".encode()
