"""What a step that the mapping settles does not have to wait for: modules that only other steps
need.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json, sys
from bundle_router import Router, Step
with Router.open(sys.argv[1] + "/config", runs=sys.argv[1] + "/runs", workspace=sys.argv[1]) as router:
    taken = router.route_sync(Step(run_id="r", workflow="w", role="r", step=sys.argv[2], goal="read the file"))
loaded = [name for name in sys.modules if name.startswith("bundle_router.")]
print(json.dumps({"source": taken.source, "loaded": loaded}))
"""
CALLS = """
import json, sys
from bundle_router import Router, Step

def loaded():
    return {name for name in sys.modules if name.startswith("bundle_router.")}

with Router.open(sys.argv[1] + "/config", runs=sys.argv[1] + "/runs", workspace=sys.argv[1]) as router:
    router.route_sync(Step(run_id="r", workflow="w", role="r", step="known"))
    if sys.argv[2] == "warm":
        router.warm_up_sync()
    routed = loaded()
    read = router.call_sync("r", "repo.read_file", {"path": "config/routes.toml"})
    called = loaded()
    router.call_sync("r", "search_tools", {"query": "read a file"})
    asked = loaded()
print(json.dumps([read.outcome, sorted(called - routed), sorted(asked - called)]))
"""
FILES = {
    "servers": '[servers.repo]\ntransport = "local"\ntrust = "trusted"\n',
    "bundles": "".join(
        f'[bundles."{id_}"]\ndescription = "{words}"\ntools = ["repo.read_file"]\neffects ='
        ' ["read"]\n'
        for id_, words in (("repo.readonly", "Reads files."), ("repo.other", "Looks at a file."))
    ),
    "routes": (
        '[[routes]]\nname = "known"\nstep = "known"\nbundles = ["repo.readonly"]\n[[routes]]\nname'
        ' = "asked"\nstep = "asked"\nbundles = []\nask = ["repo.readonly", "repo.other"]\n'
    ),
    "policy": '[[policies]]\nname = "all"\nallow = ["*"]\neffects = ["read"]\n',
}
SEARCH = (
    "core.search.ranking",
    "core.search.documents",
    "core.search.memory",
    "core.search.corpus",
    "core.search.sufficiency",
)
OTHERS = (
    "review.explain",
    "core.servers.warning_light",
    "adapters.mcp.hub",
    "adapters.llm",
    "adapters.embeddings",
    "service",
)


def printed_by(script: str, folder: Path, word: str) -> Any:
    """Return what a program in a process of its own prints last, over a config in the folder."""
    (folder / "config").mkdir()
    for name, text in FILES.items():
        (folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
    words = [sys.executable, "-c", script, str(folder), word]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def loaded_by(folder: Path, step: str) -> tuple[str, set[str]]:
    said = printed_by(SCRIPT, folder, step)
    return said["source"], set(said["loaded"])


@pytest.mark.parametrize("name", SEARCH + OTHERS)
def test_a_step_that_the_mapping_settles_does_not_load(
    name: str, mapped: tuple[str, set[str]]
) -> None:
    source, loaded = mapped
    assert source == "mapping"
    assert f"bundle_router.{name}" not in loaded


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, set[str]]:
    return loaded_by(tmp_path_factory.mktemp("mapped"), "known")


def test_a_step_that_it_does_not_settle_loads_search(tmp_path: Path) -> None:
    _, loaded = loaded_by(tmp_path, "asked")
    assert loaded >= {f"bundle_router.{name}" for name in SEARCH if name != "core.search.memory"}


def test_a_first_call_loads_its_modules_and_none_after_warm_up(tmp_path: Path) -> None:
    for word in ("cold", "warm"):
        (tmp_path / word).mkdir()
    outcome, by_call, _ = printed_by(CALLS, tmp_path / "cold", "cold")
    assert outcome == "ok"
    assert {"bundle_router.engine.calls", "bundle_router.local_tools.repo"} <= set(by_call)

    assert printed_by(CALLS, tmp_path / "warm", "warm") == ["ok", [], []]
