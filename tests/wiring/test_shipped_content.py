"""`bundles/`, which ships inside the wheel: skills, pins of a real server and its wrapper, all as
they are used.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bundle_router import Router, Step, load_catalog
from bundle_router.adapters.pin_file import PinFiles
from bundle_router.review.vendor import drifted_wrappers

ROOT = Path(__file__).parents[2]
WRAPPER = ROOT / "bundles" / "vendored" / "clock.py"
SERVERS = os.environ.get("BUNDLE_ROUTER_TEST_SERVERS", "")
PROGRAM = Path(SERVERS, "venv", "bin", "mcp-server-time")


def wrapper() -> ModuleType:
    """Return the vendored module, loaded from where it lies: nothing is imported by the name
    `bundles`.
    """
    spec = importlib.util.spec_from_file_location("clock_wrapper", WRAPPER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_first_party_bundle_has_a_skill_that_names_only_tools_of_it() -> None:
    catalog = load_catalog(None)
    for bundle in catalog.bundles.values():
        if bundle.trust == "trusted":
            skill = catalog.skill_of(bundle)
            assert skill is not None
            assert set(skill.tools) == set(bundle.tools)
            assert skill.name
            assert skill.description
            assert 400 < len(skill.text) < 2_000


def test_the_pins_add_up_and_the_wrapper_was_made_of_them() -> None:
    pins = PinFiles(ROOT / "bundles" / "pins").read("clock")
    assert pins is not None
    assert pins.names == {"get_current_time", "convert_time"}
    cards = {pin.tool: type("Pinned", (), {"sha256": pin.sha256}) for pin in pins.pins}
    assert drifted_wrappers(WRAPPER.read_text("utf-8"), cards) == ()  # type: ignore[arg-type]  # only sha256 is read


def test_the_wrapper_calls_by_canonical_name_with_checked_arguments() -> None:
    clock = wrapper()
    calls: list[tuple[str, dict[str, Any]]] = []

    async def call(name: str, arguments: dict[str, Any]) -> str:
        calls.append((name, arguments))
        return "12:00"

    asyncio.run(clock.get_current_time(call, clock.GetCurrentTimeArguments(timezone="UTC")))
    assert calls == [("clock.get_current_time", {"timezone": "UTC"})]
    with pytest.raises(ValueError, match="timezone"):
        clock.GetCurrentTimeArguments()


def example_of_a_program() -> str:
    """Return the example of a stdio server in the shipped servers.toml, without its '#'."""
    lines = (ROOT / "config" / "servers.toml").read_text("utf-8").splitlines()
    start = lines.index("# [servers.clock]")
    end = lines.index("#", start)
    return "\n".join(line.removeprefix("# ") for line in lines[start:end]) + "\n"


@pytest.mark.skipif(
    not PROGRAM.exists(), reason="BUNDLE_ROUTER_TEST_SERVERS names no folder with mcp-server-time"
)
def test_the_example_reaches_the_real_server_by_its_pins_and_its_wrapper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}")
    config = tmp_path / "config"
    config.mkdir()
    shutil.copytree(ROOT / "bundles" / "pins", tmp_path / "bundles" / "pins")
    (config / "servers.toml").write_text(example_of_a_program(), "utf-8")
    (config / "bundles.toml").write_text(
        '[bundles.clock]\ndescription = "What time it is."\neffects = ["read"]\n'
        'tools = ["clock.get_current_time", "clock.convert_time"]\n'
    )
    (config / "routes.toml").write_text('[[routes]]\nname = "all"\nbundles = ["clock"]\n')
    (config / "policy.toml").write_text('[[policies]]\nname = "all"\nallow = ["bundle:clock"]\n')
    clock = wrapper()

    async def ask() -> str:
        async with Router.open(
            config, runs=tmp_path / "runs", workspace=tmp_path, development=True
        ) as router:
            await router.route(Step(run_id="r", workflow="w", role="agent", step="look"))

            async def call(name: str, arguments: dict[str, Any]) -> Any:
                return await router.call("r", "call_tool", {"name": name, "arguments": arguments})

            arguments = clock.ConvertTimeArguments(
                source_timezone="UTC", target_timezone="Asia/Tokyo", time="12:00"
            )
            result = await clock.convert_time(call, arguments)
            assert result.ok, result.text
            return str(result.text)

    assert "21:00" in asyncio.run(ask())


def test_the_wheel_holds_the_data_that_modules_read(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="builds the wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("bundle_router-*-py3-none-any.whl")
    package = ROOT / "router" / "bundle_router"
    data = {
        str(path.relative_to(package.parent))
        for ending in ("toml", "json", "sql", "html")
        for path in package.rglob(f"*.{ending}")
    }
    assert {
        f"bundle_router/core/{name}.toml"
        for name in ("search/word_lists", "servers/warning_light/vocabulary")
    } <= data
    with zipfile.ZipFile(wheel) as packed:
        names = {*packed.namelist()}
    assert data - names == set()
    docs = ROOT / "router" / "docs"
    pages = {f"bundle_router/docs/{path.relative_to(docs)}" for path in docs.rglob("*.md")}
    assert "bundle_router/docs/reference/records.md" in pages
    assert pages - names == set()
