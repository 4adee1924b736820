"""One recorded session, played to the library and to the client of a service, on a loop and on a
thread: the answers are the same, field by field. `python tests/client/test_client.py` records it
anew, from the library.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import bundle_router
import pytest
from bundle_router.testing.upstream import ScriptedServer, status
from bundle_router.tool import Media, ToolContext, ToolOutput

from tests.client.session import SESSION, played
from tests.service.conftest import Words
from tests.service.mcp.test_endpoint_media import png

httpx = pytest.importorskip("httpx", reason="the client needs httpx")
pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")

import bundle_router_client as client  # noqa: E402 - after what it needs

RECORDED = Path(__file__).parents[1] / "data" / "session.json"
PICTURE = png(8)


def fit(site: Any) -> Any:
    """The kit, one tool of which draws."""

    def draw(arguments: Words, context: ToolContext) -> ToolOutput:
        return ToolOutput((Media(PICTURE, "image/png"),))

    site.kit.wait = draw
    return site


def wanted() -> list[Any]:
    found: list[Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("way", ["library", "client", "client on a thread"])
def test_a_recorded_session_goes_the_same_in_the_library_and_over_the_client(
    site: Any, way: str
) -> None:
    async def work(router: Any, endpoint: Any) -> list[Any]:
        if way == "library":
            return await played(router, bundle_router.Step, sync=False)
        async with client.Router.connect(endpoint.base, token=endpoint.key) as remote:
            return await played(remote, client.Step, sync="thread" in way)

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


def test_it_sends_its_token_and_no_login_of_netrc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login me password hunter2\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    async def work(url: str) -> None:
        async with client.Router.connect(url, token="mine") as remote:
            with pytest.raises(client.RouterError):
                await remote.close_run("r")

    with ScriptedServer([status(404)]) as server:
        asyncio.run(work(server.base_url))
        assert [one.headers["authorization"] for one in server.requests] == ["Bearer mine"]


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
        assert {
            f: s.get_default(call_default_factory=True) for f, s in own.model_fields.items()
        } == {f: s.get_default(call_default_factory=True) for f, s in library.model_fields.items()}


def test_its_methods_take_what_the_librarys_take() -> None:
    shared = [
        name
        for name in ("route", "tools", "call", "missed", "media", "close_run")
        for name in (name, f"{name}_sync")
    ]
    for name in (*shared, "artifact"):
        theirs = inspect.signature(getattr(bundle_router.Router, name)).parameters
        ours = inspect.signature(getattr(client.Router, name)).parameters
        # what a call does that waits for somebody's word (`how`) is not in the service yet
        assert [p for p in theirs if p not in ("whole", "how")] == list(ours), name
        assert all(ours[p].default == theirs[p].default for p in ours), name


def test_it_is_a_distribution_of_its_own_that_needs_httpx_and_pydantic_alone() -> None:
    root = Path(client.__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    needs = [re.split(r"[<>=]", need)[0] for need in project["dependencies"]]
    assert (project["name"], needs) == ("bundle-router-client", ["httpx", "pydantic"])
    script = (
        "import sys; sys.path = [p for p in sys.path if 'bundle' not in p.lower() or"
        f" 'site-packages' in p]\nsys.path.insert(0, {str(root)!r})\nimport bundle_router_client as"
        " c\nassert c.Router.connect('http://127.0.0.1:9', token='x')\nassert 'bundle_router' not"
        " in sys.modules and 'starlette' not in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-W", "ignore", "-c", script], check=True, cwd="/")


def closure_of(*names: str) -> set[str]:
    """These distributions and whatever they need to be imported."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in found:
            found.add(name)
            needs = [need for need in metadata.requires(name) or () if "extra ==" not in need]
            waiting += [re.split(r"[ <>=!~;(\[]", need)[0] for need in needs if is_installed(need)]
    return found


def is_installed(need: str) -> bool:
    try:
        metadata.distribution(re.split(r"[ <>=!~;(\[]", need)[0])
    except metadata.PackageNotFoundError:  # for another Python or platform
        return False
    return True


def test_its_wheel_plays_the_session_where_only_httpx_and_pydantic_are(
    site: Any, tmp_path: Path
) -> None:
    """An environment of its own, without a registry: the wheel, and links to what the two consist
    of.
    """
    pytest.importorskip("hatchling", reason="builds the wheel")
    source = tmp_path / "source"
    shutil.copytree(
        Path(client.__file__).parents[1],
        source,
        ignore=shutil.ignore_patterns("__pycache__", "dist"),
    )
    built, place = tmp_path / "dist", tmp_path / "place"
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(words, check=True, cwd=source, capture_output=True)
    (wheel,) = built.glob("bundle_router_client-*-py3-none-any.whl")
    place.mkdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(place)
    for name in closure_of("httpx", "pydantic"):
        distribution = metadata.distribution(name)
        for top in {
            file.parts[0]
            for file in distribution.files or ()
            if file.parts[0] not in ("..", "__pycache__")
        }:
            if not (place / top).exists():
                (place / top).symlink_to(Path(str(distribution.locate_file(top))))
    assert not list(place.glob("bundle_router/")), "the full package"
    session = Path(__file__).with_name("session.py")
    script = (
        f"import runpy, sys; sys.path.append({str(place)!r}); runpy.run_path({str(session)!r},"
        " run_name='__main__')"
    )

    async def work(_router: Any, endpoint: Any) -> list[Any]:
        asking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", script, endpoint.base),
            env={"SESSION_TOKEN": endpoint.key}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        said, trouble = await asking.communicate()
        assert asking.returncode == 0, trouble.decode()
        answers: list[Any] = json.loads(said)
        return answers

    for (name, given), answer, expected in zip(
        SESSION, fit(site).serve_all(work), wanted(), strict=True
    ):
        assert answer == expected, (name, given)


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    from tests.service.conftest import Site

    with TemporaryDirectory() as folder:
        recorded = fit(Site(Path(folder))).serve_all(
            lambda router, _: played(router, bundle_router.Step, sync=False)
        )
    RECORDED.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"run_id": "r", "gaol": "x"},
            ("workflow: Field required", "gaol: Extra inputs", "it takes run_id, workflow"),
        ),
        ({"constraints": "none"}, ("constraints: Input should be a valid tuple",)),
        ({"policy": {"alow": []}}, ("policy.alow: Extra inputs",)),
        (
            {"fixed_list": 0, "max_tools": "5"},
            ("fixed_list: Input should be a valid boolean", "max_tools: Input should"),
        ),
    ],
)
def test_a_wrong_step_is_one_sentence_and_an_error_of_ours(
    values: dict[str, Any], said: tuple[str, ...]
) -> None:
    with pytest.raises(client.InvalidStep) as wrong:
        client.Step(**values)
    assert isinstance(wrong.value, client.RequestError | ValueError)
    assert "\n" not in str(wrong.value)
    assert [part for part in said if part not in str(wrong.value)] == []


@pytest.mark.parametrize("value", [5.0, 5, 0, -1, 5.5, "5", b"5", True, None])
@pytest.mark.parametrize("name", ["max_bundles", "max_tools", "max_tokens"])
def test_both_steps_take_and_refuse_the_same_counts(name: str, value: Any) -> None:
    def read(kind: Any) -> Any:
        try:
            return getattr(
                kind(run_id="r", workflow="w", role="r", step="s", **{name: value}), name
            )
        except ValueError:
            return "refused"

    assert read(client.Step) == read(bundle_router.Step)
