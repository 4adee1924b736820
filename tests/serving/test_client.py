"""One recorded session, played to the library and to the client of a service, on a loop and on a thread: the answers
are the same, field by field. `python tests/serving/test_client.py` records it anew, from the library."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import bundle_router
import pytest
from bundle_router.core.models import Media
from bundle_router.tool import ToolContext, ToolOutput
from pydantic import TypeAdapter

from tests.serving.conftest import Words
from tests.serving.test_endpoint_media import png

httpx = pytest.importorskip("httpx", reason="the client needs httpx")
pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")

import bundle_router_client as client  # noqa: E402 - after what it needs

RECORDED = Path(__file__).parents[1] / "data" / "session.json"
PICTURE = png(8)
STEP = {"run_id": "s", "workflow": "w", "role": "r"}
KEYED = {**STEP, "step": "both", "goal": "look", "constraints": ["offline"], "labels": {"a": "ö"}, "key": "1"}
SESSION: tuple[tuple[str, dict[str, Any]], ...] = (
    ("tools", {"run_id": "s"}),
    ("route", KEYED),
    ("route", KEYED),
    ("route", {**STEP, "step": "some", "key": "1"}),
    ("tools", {"run_id": "s", "format": "openai"}),
    ("tools", {"run_id": "s", "format": "anthropic", "native": True}),
    ("call", {"run_id": "s", "name": "kit.echo", "arguments": {"text": "hello"}, "key": "c"}),
    ("call", {"run_id": "s", "name": "kit.echo", "arguments": {"text": "hello"}, "key": "c"}),
    ("call", {"run_id": "s", "name": "kit.echo", "arguments": {"text": "other"}, "key": "c"}),
    ("call", {"run_id": "s", "name": "kit__late", "arguments": '{"text": "as text"}'}),
    ("tools", {"run_id": "s"}),
    ("call", {"run_id": "s", "name": "kit.echo", "arguments": {"txt": "wrong"}}),
    ("call", {"run_id": "s", "name": "search_tools", "arguments": {"query": "say it later"}}),
    ("call", {"run_id": "s", "name": "kit.wait", "arguments": {}}),
    ("media", {"run_id": "s", "uri": "PICTURE", "format": "openai"}),
    ("media", {"run_id": "s", "uri": "PICTURE", "format": "mcp", "link": True}),
    ("artifact", {"run_id": "s", "uri": "PICTURE"}),
    ("artifact", {"run_id": "s", "uri": f"artifact:sha256:{'0' * 64}"}),
    ("missed", {"run_id": "s", "name": "nobody.knows"}),
    ("route", {**STEP, "step": "some", "policy": {"deny": ["tool:kit.echo"]}, "branch": "b", "max_tools": 5}),
    ("call", {"run_id": "s", "name": "kit.echo", "arguments": {}}),
    ("route", {**STEP, "step": "some", "policy": {"deny": ["kit.nothing"]}}),
    ("route", {**STEP, "step": "later", "messages": []}),
    ("close_run", {"run_id": "s"}),
)  # fmt: skip
"""What is asked, in order. `PICTURE`: the artifact of the picture that was returned before."""


def fit(site: Any) -> Any:
    """The kit, one tool of which draws."""

    def draw(arguments: Words, context: ToolContext) -> ToolOutput:
        return ToolOutput((Media(PICTURE, "image/png"),))

    site.kit.wait = draw
    return site


def values(library: bool) -> Any:
    return bundle_router if library else client


async def asked(router: Any, name: str, given: dict[str, Any], *, sync: bool, library: bool) -> Any:
    """What one question comes to, as JSON values; of an error its kind and what it says."""
    if name == "route":
        fields = {key: value for key, value in given.items() if key != "messages"}
        step = values(library).Step.model_validate(fields)
        more = {"messages": given["messages"]} if "messages" in given else {}
        question: Callable[[str], Any] = lambda way: getattr(router, way)(step, **more)  # noqa: E731
    else:
        question = lambda way: getattr(router, way)(**given)  # noqa: E731
    try:
        if name == "artifact":
            return (await asyncio.to_thread(question, name)).hex()
        answer = await asyncio.to_thread(question, f"{name}_sync") if sync else await question(name)
    except Exception as error:  # noqa: BLE001 - the session's errors are a part of it
        return {"error": type(error).__name__, "message": str(error).removesuffix("."), "advice": error.advice}  # type: ignore[attr-defined] # of both
    if isinstance(answer, dict):
        return answer
    shown = answer.to_json() if hasattr(answer, "to_json") else TypeAdapter(type(answer)).dump_python(answer)
    return json.loads(json.dumps(shown))


def comparable(value: Any) -> Any:
    """Without what no two sessions share: times, digests of the machine's own, ids of decisions and calls."""
    text = json.dumps(value, ensure_ascii=False)
    text = re.sub(r"\bs\.[0-9a-f]{8}\.(\d+)", r"s.NONCE.\1", text)
    text = re.sub(r'"elapsed_ms": [0-9.e-]+', '"elapsed_ms": 0', text)
    text = re.sub(r'"(catalog_revision|input_digest)": "[^"]*"', r'"\1": ""', text)
    return json.loads(text)


async def played(router: Any, *, sync: bool, library: bool) -> list[Any]:
    answers: list[Any] = []
    picture = ""
    for name, given in SESSION:
        filled = {key: picture if value == "PICTURE" else value for key, value in given.items()}
        answer = await asked(router, name, filled, sync=sync, library=library)
        if isinstance(answer, dict) and answer.get("artifacts"):
            picture = answer["artifacts"][0]["uri"]
        answers.append(comparable(answer))
    return answers


def wanted() -> list[Any]:
    found: list[Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("way", ["library", "client", "client on a thread"])
def test_a_recorded_session_goes_the_same_in_the_library_and_over_the_client(site: Any, way: str) -> None:
    async def work(router: Any, endpoint: Any) -> list[Any]:
        if way == "library":
            return await played(router, sync=False, library=True)
        async with client.Router.connect(endpoint.base, token=endpoint.key) as remote:
            return await played(remote, sync="thread" in way, library=False)

    answers = fit(site).serve_all(work)
    for (name, given), answer, expected in zip(SESSION, answers, wanted(), strict=True):
        assert answer == expected, (name, given)


def test_a_list_that_did_not_change_is_not_sent_again(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with client.Router.connect(endpoint.base, token=endpoint.key) as remote:
            shown = await remote.tools("r")
            assert shown is not None
            assert await remote.tools("r", if_changed=shown.digest) is None
            assert await asyncio.to_thread(remote.tools_sync, "r", if_changed=shown.digest) is None

    site.serve_all(work)


def test_what_stands_between_is_an_error_that_says_when_to_try_again(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with client.Router.connect(endpoint.base, token="wrong") as stranger:
            with pytest.raises(client.RequestError) as refused:
                await stranger.tools("r")
            assert (refused.value.status, refused.value.code) == (401, "unauthorized")
        async with client.Router.connect(endpoint.base, token=endpoint.key) as remote:
            waiting = asyncio.create_task(remote.call("r", "kit.wait", {}))
            await asyncio.to_thread(site.kit.arrived.acquire)
            with pytest.raises(client.RunBusy) as busy:
                await remote.tools("r")
            assert (busy.value.code, busy.value.retry_after_s) == ("busy", 1.0)
            site.kit.door.set()
            assert (await waiting).ok
            with pytest.raises(client.RequestError, match="printable"):
                await remote.call("r", "kit.echo", {}, key="ö")

    site.serve_all(work, "[service]\nmax_requests = 1\n")

    async def alone() -> None:
        async with client.Router.connect("http://127.0.0.1:9", token="x") as nobody:
            with pytest.raises(client.Unreachable):
                await nobody.close_run("r")

    asyncio.run(alone())


PAIRS = ("Step", "StepPolicy", "Decision", "Toolset", "Result")


@pytest.mark.parametrize("name", PAIRS)
def test_its_values_have_the_librarys_fields_and_defaults(name: str) -> None:
    library, own = getattr(bundle_router, name), getattr(client, name)
    only_there = {"Result": {"parts", "whole", "answer"}}.get(name, set())
    only_here = {"Toolset": {"digest"}}.get(name, set())
    if is_dataclass(library):
        named = {field: spec.default for field, spec in library.__dataclass_fields__.items()}
        assert set(own.model_fields) == (set(named) - only_there) | only_here
        for field, spec in own.model_fields.items():
            if not spec.is_required() and field in named:
                assert spec.default == named[field], field
    else:
        assert {f: s.get_default(call_default_factory=True) for f, s in own.model_fields.items()} == {
            f: s.get_default(call_default_factory=True) for f, s in library.model_fields.items()
        }


def test_its_methods_take_what_the_librarys_take() -> None:
    shared = [
        name for name in ("route", "tools", "call", "missed", "media", "close_run") for name in (name, f"{name}_sync")
    ]
    for name in (*shared, "artifact"):
        theirs = inspect.signature(getattr(bundle_router.Router, name)).parameters
        ours = inspect.signature(getattr(client.Router, name)).parameters
        assert [p for p in theirs if p != "whole"] == list(ours), name
        assert all(ours[p].default == theirs[p].default for p in ours), name


def test_it_is_a_distribution_of_its_own_that_needs_httpx_and_pydantic_alone() -> None:
    root = Path(client.__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    needs = [re.split(r"[<>=]", need)[0] for need in project["dependencies"]]
    assert (project["name"], needs) == ("bundle-router-client", ["httpx", "pydantic"])
    script = (
        "import sys; sys.path = [p for p in sys.path if 'bundle' not in p.lower() or 'site-packages' in p]\n"
        f"sys.path.insert(0, {str(root)!r})\n"
        "import bundle_router_client as c\nassert c.Router.connect('http://127.0.0.1:9', token='x')\n"
        "assert 'bundle_router' not in sys.modules and 'starlette' not in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-W", "ignore", "-c", script], check=True, cwd="/")


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    from tests.serving.conftest import Site

    with TemporaryDirectory() as folder:
        recorded = fit(Site(Path(folder))).serve_all(lambda router, _: played(router, sync=False, library=True))
    RECORDED.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
