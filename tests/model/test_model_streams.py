"""What calls to a model leave on the streams of a host that logs everything: nothing on standard output, and nothing of
a call anywhere. In a process of its own, as loggers belong to the process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

HOST = """
import asyncio, json, logging, threading
logging.basicConfig(level=logging.DEBUG)
from bundle_router.adapters.system import SystemClock
from bundle_router.adapters.llm import LiteLlm
from bundle_router.adapters.loop import LoopThread
from bundle_router.engine.asking import ModelSelector
from bundle_router.core.catalog import Bundle, ModelOptions, ModelSettings
from bundle_router.core.decide.decide import decide
from bundle_router.core.models import Activation, Facts, Step
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
    for number in range(3):
        goal = f"CANARY-GOAL {number}"
        step = Step(run_id="r", workflow="w", role="r", step="s", goal=goal)
        await selector.select(decide(catalog, Facts(), Activation(), step), ())
    # litellm hands some of its work to threads of its own, which know nothing of whose call it was.
    worker = threading.Thread(target=lambda: logging.getLogger("LiteLLM").info("from a worker"))
    worker.start()
    worker.join()
    await selector.close()

with ScriptedServer([says(choice("b.two")), status(500, message="CANARY-ERROR"), body(json.dumps(odd).encode())]) as s:
    asyncio.run(main(s))
    assert len(s.requests) == 3, s.requests
"""


def test_a_host_that_logs_everything_sees_nothing_of_a_call_and_nothing_on_stdout() -> None:
    if not all(importlib.util.find_spec(name) for name in ("litellm", "instructor")):
        pytest.skip("the extra bundle-router[model] is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", HOST],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": ":".join(sys.path),
            "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX", ""),  # else all of litellm is compiled again
            "KEY": "sk-CANARY-0123456789abcdef",
        },
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2_000:]
    assert "CANARY" not in done.stderr
    assert "from a worker" in done.stderr
