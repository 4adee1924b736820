"""An engine whose process has unusual settings; it uses all of the library, and prints, as JSON,
which of them changed, also in between: `python tests/host_program.py FOLDER FAULT_SERVER`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from bundle_router import Router, Step
from bundle_router.testing.upstream import ScriptedServer, choice, says

LARGE = 2_000_000
"""Bytes of a result that goes through the thread for large results."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1)


def handle(_signal: int, _frame: FrameType | None) -> None:
    """Handle a signal as this engine does."""


class Kept(logging.Filter):
    """A filter of this engine's own."""


def prepare() -> None:
    """Set unusual values. The collector is off."""
    os.environ["MODEL_KEY"] = "sk-of-the-scripted-server"
    gc.set_threshold(701, 11, 13)
    gc.disable()
    sys.setswitchinterval(0.0123)
    sys.setrecursionlimit(1_777)
    for number in SIGNALS:
        signal.signal(number, handle)
    warnings.filterwarnings("error", message="this engine's own")
    logging.getLogger().setLevel(logging.ERROR)
    logging.getLogger("engine").addFilter(Kept())


def interpreter() -> dict[str, Any]:
    """Return the settings that nothing may change, not even for a moment."""
    return {
        "gc.isenabled": gc.isenabled(),
        "gc.get_threshold": gc.get_threshold(),
        "gc.get_freeze_count": gc.get_freeze_count(),
        "sys.getswitchinterval": round(sys.getswitchinterval(), 6),
        "sys.getrecursionlimit": sys.getrecursionlimit(),
        "signals": [signal.getsignal(number) is handle for number in SIGNALS],
        "asyncio": sys.modules["asyncio"] is asyncio,
        "umask": mask(),
        "folder": str(Path.cwd()),
        "root logger": (logging.getLogger().level, len(logging.getLogger().handlers)),
        "hooks": (
            sys.excepthook is sys.__excepthook__,
            threading.excepthook is threading.__excepthook__,
            sys.stdout is sys.__stdout__,
            sys.stderr is sys.__stderr__,
            sys.getprofile(),
            sys.gettrace(),
        ),
    }


def mask() -> int:
    """Return the mask of new files' modes, as the system has it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("Umask:")[2].split()[0], 8)


def loggers() -> dict[str, tuple[int, int]]:
    """Return each logger's level and number of filters."""
    known = logging.Logger.manager.loggerDict.items()
    return {
        name: (one.level, len(one.filters))
        for name, one in known
        if isinstance(one, logging.Logger)
    }


class Watch(threading.Thread):
    """Looks at the interpreter's settings all the time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = interpreter()
        self.changed: dict[str, str] = {}
        self.looks = 0
        self._is_over = threading.Event()

    def look(self) -> None:
        now = interpreter()
        self.looks += 1
        for name, value in self.before.items():
            if now[name] != value:
                self.changed.setdefault(name, f"{value} -> {now[name]}")

    def run(self) -> None:
        while not self._is_over.wait(0.001):
            self.look()

    def end(self) -> None:
        self._is_over.set()
        self.join(60)
        self.look()


async def use(router: Router, watch: Watch) -> list[str]:
    """Route by a mapping, by search and by a model; make small and large calls; return outcomes."""
    step = {"workflow": "work", "role": "engine", "step": "mapped"}
    await router.warm_up()
    await router.route(Step(run_id="r", **step))
    watch.look()
    await router.tools("r", format="openai")
    outcomes: list[str] = []
    for name, arguments in (
        ("repo.list_dir", {"path": "."}),
        ("faults.big", {"bytes": LARGE}),
        ("faults.blocks", {}),
    ):
        result = await router.call("r", name, arguments)
        outcomes.append(result.outcome)
        watch.look()
    asked = await router.route(Step(run_id="r", **{**step, "step": "asks"}, goal="find a file"))
    outcomes.append(asked.source)
    await router.close_run("r")
    return outcomes


def write_config(folder: Path, fault_server: str, base_url: str) -> None:
    """Write a config with a stdio server, a step that is mapped, and one that asks a model."""
    texts = {
        "servers": f"[servers.faults]\ntransport = 'stdio'\ncommand = {sys.executable!r}\n"
        f"args = [{fault_server!r}]\ntrust = 'trusted'\n",
        "bundles": '[bundles."faults.all"]\ndescription = "Faults."\ntools = ["faults.*"]\n'
        'effects = ["read"]\n',
        "routes": '[[routes]]\nname = "mapped"\nstep = "mapped"\n'
        'bundles = ["repo.readonly", "faults.all"]\n',
        "policy": '[[policies]]\nname = "everything"\nallow = ["*"]\n',
        "router": '[fallback]\norder = ["model", "default"]\n[model]\nnames = ["openai/scripted"]\n'
        f'base_url = "{base_url}"\nkey_env = "MODEL_KEY"\ndeadline_s = 60\n',
    }
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")


def main(folder: Path, fault_server: str) -> dict[str, Any]:
    config = folder / "config"
    config.mkdir()
    prepare()
    environment, filters, known = dict(os.environ), list(warnings.filters), loggers()
    watch = Watch()
    watch.start()
    with ScriptedServer([says(choice("repo.readonly"))]) as server:
        write_config(config, fault_server, server.base_url)
        router = Router.open(config, runs=folder / "runs", workspace=folder, development="unpinned")

        async def run() -> list[str]:
            async with router:
                return await use(router, watch)

        outcomes = asyncio.run(run())
        asked = len(server.requests)
    watch.end()
    after = loggers()
    return {
        "outcomes": outcomes,
        "asked": asked,
        "looks": watch.looks,
        "changed": watch.changed,
        "environment": sorted(
            name
            for name in {*environment, *os.environ}
            if environment.get(name) != os.environ.get(name)
        ),
        "warnings": [
            getattr(added[1], "pattern", None) for added in warnings.filters if added not in filters
        ],
        "filters kept": [row in warnings.filters for row in filters],
        "loggers": sorted(
            name
            for name, (level, count) in after.items()
            if (level, count) != known.get(name, (level, 0))
        ),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
