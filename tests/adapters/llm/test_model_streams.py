"""What a model leaves on the streams of a host that logs everything: nothing on standard output,
nothing of a call anywhere, and nothing at all of its libraries' import, which asks no network and
reads no `.env` file.

In one process for all, as loggers belong to the process, and as that import takes seconds.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HOST = """
import asyncio, io, json, logging, os, sys, threading
logging.basicConfig(level=logging.DEBUG, stream=(imported := io.StringIO()))
reached = []
def watch(name, args):
    if name in ("socket.connect", "socket.getaddrinfo"):
        reached.append((name, args[1:]))
sys.addaudithook(watch)
from bundle_router.adapters.system import SystemClock
from bundle_router.adapters.llm import LiteLlm
from bundle_router.adapters.loop import LoopThread
from bundle_router.engine.asking import ModelSelector
from bundle_router.core.catalog import Bundle, ModelOptions, ModelSettings
from bundle_router.core.decide.decide import decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.values import Activation, Facts, Step
from bundle_router.testing.upstream import ScriptedServer, body, choice, completion, says, status
from bundle_router.testing import FakeDiagnostics, small_catalog

made = {id_: Bundle(id_, "Does it", (f"srv.{id_[0]}",), effects=("read",)) for id_ in ("a.one", "b.two")}
catalog = small_catalog(made)
odd = json.loads(completion("CANARY-ANSWER"))
odd["usage"]["prompt_tokens"] = "CANARY-USAGE"
odd["choices"][0]["message"]["content"] = ["CANARY-PART"]

async def main(server):
    models = ModelSettings(("openai/m",), options=(ModelOptions("openai/m", base_url=server.base_url, key_env="KEY"),))
    client, loop = LiteLlm(models.choices), LoopThread("model")
    selector = ModelSelector(models, client, SystemClock(), FakeDiagnostics(), loop=loop, answers_ttl_s=0)
    await selector.warm_up()
    assert client.readiness == "ready", client.readiness
    assert not reached, reached
    assert "CANARY_FROM_ENV_FILE" not in os.environ and "OPENAI_API_KEY" not in os.environ
    print("imported", file=sys.stderr)
    logging.basicConfig(level=logging.DEBUG, force=True)
    for number in range(3):
        goal = f"CANARY-GOAL {number}"
        step = Step(run_id="r", workflow="w", role="r", step="s", goal=goal)
        await selector.select(decide(Plans(catalog), Facts(), Activation(), step), ())
    # litellm hands some of its work to threads of its own, which know nothing of whose call it was.
    worker = threading.Thread(target=lambda: logging.getLogger("LiteLLM").info("from a worker"))
    worker.start()
    worker.join()
    await selector.close()

with ScriptedServer([says(choice("b.two")), status(500, message="CANARY-ERROR"), body(json.dumps(odd).encode())]) as s:
    asyncio.run(main(s))
    assert len(s.requests) == 3, s.requests
assert "CANARY" not in imported.getvalue(), imported.getvalue()
"""


def test_a_host_that_logs_everything_sees_nothing_of_a_call_and_nothing_on_stdout(
    tmp_path: Path,
) -> None:
    if not all(importlib.util.find_spec(name) for name in ("litellm", "instructor")):
        pytest.skip("the extra bundle-router[model] is not installed")
    (tmp_path / ".env").write_text("CANARY_FROM_ENV_FILE=1\nOPENAI_API_KEY=sk-from-env-file\n")
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", HOST],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env={
            "HOME": str(tmp_path),
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": ":".join(sys.path),
            "PYTHONPYCACHEPREFIX": os.environ.get(
                "PYTHONPYCACHEPREFIX", ""
            ),  # else all of litellm is compiled again
            "KEY": "sk-CANARY-0123456789abcdef",
        },
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2_000:]
    assert done.stderr.startswith("imported\n"), done.stderr[:2_000]
    assert "CANARY" not in done.stderr
    assert "from a worker" in done.stderr
