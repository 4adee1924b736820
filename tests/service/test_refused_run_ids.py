"""A run id that is refused is quoted on no surface with what looks like a secret in it (S-46)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.errors import RouterError

from tests.command_line import watch

WORD = "4nT9xV2mK4pL8nR3"
IDS = {
    "a token": "ghp_" + WORD * 2 + "kL9x",
    "a token with dots": "hvs." + WORD * 6,
    "a JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + WORD * 2 + "4nT9xV2mK4p",
    "a header": f"Bearer ghp_{WORD * 2}kL9x",
    "a URL with a password": f"postgres://app:{WORD}@db.example/runs",
    "a key with a slash": f"AKIA/{WORD * 2}",
    "too long": f"x-{WORD * 20}",
}
"""Ids of the right form and of none. Of each, `WORD` must be seen nowhere."""
STEP = {"workflow": "feature", "role": "reviewer", "step": "review"}

LIBRARY: dict[str, Callable[[Router, str], object]] = {
    "a step": lambda router, id_: router.route_sync(Step(run_id=id_, **STEP)),
    "a parent": lambda router, id_: router.route_sync(
        Step(run_id="child", parent_run_id=id_, **STEP)
    ),
    "tools": lambda router, id_: router.tools_sync(id_),
    "a call": lambda router, id_: router.call_sync(id_, "repo.read_file", {}),
    "a missed call": lambda router, id_: router.missed_sync(id_, "x"),
    "an artifact": lambda router, id_: router.artifact(id_, "artifact:sha256:" + "0" * 64),
    "media": lambda router, id_: router.media_sync(id_, "artifact:sha256:" + "0" * 64),
    "the end of a run": lambda router, id_: router.close_run_sync(id_),
}
VERBS: tuple[tuple[str, ...], ...] = (
    ("route", "--run", "{}", "--workflow", "w", "--role", "r", "--step", "s"),
    ("tools", "--run", "{}"),
    ("call", "--run", "{}", "repo.read_file"),
    ("explain", "--bundle", "repo.readonly", "--run", "{}"),
    ("runs", "show", "{}"),
    ("runs", "verify", "{}"),
    ("runs", "publish", "{}", "--to", "published"),
    ("runs", "receipt", "{}", "0"),
    ("replay", "{}"),
    ("learn", "label", "{}", "0", "--needed", "repo.readonly"),
    ("serve", "--run", "{}", "--mcp-only"),
)


@pytest.mark.parametrize("name", IDS)
def test_no_error_of_the_library_quotes_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    runs = tmp_path / "runs"
    with Router.open(None, runs=runs, workspace=tmp_path) as router:
        for what, attempt in LIBRARY.items():
            with pytest.raises(RouterError) as refused:
                attempt(router, IDS[name])
            error = refused.value
            said = f"{error} {error!r} {error.advice} {error.__cause__!r}"
            assert WORD not in said, (what, said)
            assert "run" in said, (what, said)
    assert WORD not in capfd.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if WORD in path.name]


@pytest.mark.parametrize("name", IDS)
def test_no_command_prints_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "runs").mkdir()
    with Router.open(None, runs=tmp_path / "runs", workspace=tmp_path) as router:
        router.route_sync(Step(run_id="r", **STEP))
    for words in VERBS:
        command = [word.replace("{}", IDS[name]) for word in words]
        status, out, err = watch(tmp_path, *command, on_line=lambda _line: None)
        assert status in (3, 4), (words, err)  # refused, not misread as other arguments
        assert WORD not in out + err, (words, out, err)


@pytest.mark.parametrize("name", IDS)
def test_no_answer_and_no_log_line_of_the_service_holds_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")
    import asyncio
    from urllib.parse import quote

    import httpx2
    from bundle_router.service import serve
    from bundle_router.service.pages.service_pages import PageSources, service_pages

    id_, wrong = IDS[name], []

    async def main(pages: Any) -> None:
        opened = Router.open(None, runs=tmp_path / "runs", workspace=tmp_path)
        async with opened as router, serve(router, pages=pages) as endpoint:
            await router.route(Step(run_id="r", **STEP))
            headers = {"authorization": f"Bearer {endpoint.key}"}
            async with httpx2.AsyncClient(
                base_url=endpoint.base, headers=headers, timeout=60
            ) as http:
                ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
                for path in (id_, quote(id_, safe="")):
                    for method, target, body in (
                        ("POST", "/v1/route", {"run_id": id_, **STEP}),
                        ("POST", "/v1/route", {"run_id": "c", "parent_run_id": id_, **STEP}),
                        ("GET", f"/v1/runs/{path}", None),
                        ("GET", f"/v1/runs/{path}/tools", None),
                        ("POST", f"/v1/runs/{path}/call", {"name": "repo.read_file"}),
                        ("POST", f"/v1/runs/{path}/close", None),
                        ("GET", f"/v1/runs/{path}/artifacts/{'0' * 64}", None),
                        ("GET", f"/runs/{path}", None),
                        ("GET", f"/runs/{path}/0", None),
                        ("GET", f"/runs/{path}.json", None),
                        ("POST", f"/mcp/runs/{path}", ping),
                        ("POST", f"/mcp/runs/{path}/decisions/{path}.1", ping),
                    ):
                        sent: Any = {} if body is None else {"json": body}
                        answer = await http.request(method, target, **sent)
                        if answer.status_code < 400 or WORD in answer.text + str(answer.headers):
                            at = answer.text.find(WORD)
                            shown = answer.text[max(0, at - 200) : at + 60]
                            wrong.append((method, target, answer.status_code, shown))

    with service_pages(PageSources(tmp_path / "runs")) as pages:
        asyncio.run(main(pages))
    assert not wrong, wrong
    assert WORD not in capfd.readouterr().err
