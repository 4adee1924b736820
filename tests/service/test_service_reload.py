"""Edits of the config while the service runs: a valid one counts from the next step on, any other
changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bundle_router import Step

from tests.profiles import rounds

pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")

ROUNDS = rounds(1_000)
STEP = {"run_id": "r", "workflow": "w", "role": "r", "step": "some"}


async def until(http: Any, seen: Any) -> Any:
    """What /readyz says once it says that."""
    while not seen(said := (await http.get("/readyz")).json()["config"]):
        pass
    return said


def test_a_valid_edit_counts_from_the_next_step_and_an_invalid_one_not_at_all(
    site: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bundle_router.service.reloading.LOOK_S", 0.05)
    routes = site.folder / "config" / "routes.toml"
    wider = routes.read_text().replace(
        'bundles = ["kit.some"]', 'bundles = ["kit.some", "kit.later"]'
    )

    async def work(router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http, site.client(endpoint) as agent:
            first = (await http.post("/v1/route", json=STEP)).json()
            before = router.catalog.revision
            assert first["catalog_revision"] == before

            routes.write_text(wider)
            edited = (await until(http, lambda config: config["revision"] != before))["revision"]
            late = {"name": "kit.late", "arguments": {"text": "x"}}
            assert (await http.post("/v1/runs/r/call", json=late)).json()[
                "outcome"
            ] == "denied"  # between steps
            assert not (await agent.call_tool("kit__echo", {"text": "still"})).is_error
            second = (await http.post("/v1/route", json=STEP)).json()
            assert second["catalog_revision"] == edited
            assert [row["id"] for row in second["bundles"]] == ["kit.some", "kit.later"]
            assert (await http.post("/v1/runs/r/call", json=late)).json()["text"] == "said x"

            routes.write_text(wider.replace("kit.later", "kit.latr"))
            config = await until(http, lambda config: config["problems"])
            assert config["revision"] == edited
            assert "kit.latr" in config["problems"][0]
            assert "routes.toml:" in config["problems"][0]
            third = (await http.post("/v1/route", json=STEP)).json()
            assert third["catalog_revision"] == edited

            routes.write_text(wider)
            assert (await until(http, lambda config: not config["problems"]))["revision"] == edited
            series = (await http.get("/metrics")).text.splitlines()
            assert 'bundle_router_config_reloads_total{outcome="adopted"} 1.0' in series
            assert 'bundle_router_config_reloads_total{outcome="refused"} 1.0' in series

    site.serve_all(work)
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [row["event"] for row in said if row["event"].startswith("config.")] == [
        "config.refused"
    ]
    kept = site.records(file="routing.jsonl")
    assert len({row["catalog_revision"] for row in kept}) == 2


def test_nothing_is_read_again_while_nothing_changed(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.service.reloading.LOOK_S", 0.002)
    looks: list[object] = []
    read: list[bool] = []

    async def work(router: Any, endpoint: Any) -> None:
        stamp, reload = router.config_stamp, router.reload

        def look() -> object:
            looks.append(stamp())
            return looks[-1]

        def read_again() -> bool:
            read.append(reload())
            return read[-1]

        router.config_stamp, router.reload = look, read_again
        while len(looks) < 20:  # noqa: ASYNC110 - what is waited for is on another thread
            await asyncio.sleep(0.002)
        assert not read
        (site.folder / "config" / "routes.toml").write_text("# none\n", encoding="utf-8")
        while not read:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.002)

    site.serve_all(work)


def test_a_writer_at_work_never_gives_a_torn_config(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-19: valid, invalid, huge and missing files, written in place and moved into place, while
    steps are routed. Every decision names a revision that was whole, and what is wrong is said.
    """
    monkeypatch.setattr("bundle_router.service.reloading.LOOK_S", 0.002)
    routes = site.folder / "config" / "routes.toml"
    valid = [
        routes.read_text(),
        routes.read_text().replace('bundles = ["kit.some"]', 'bundles = ["kit.later"]'),
    ]
    bad = ["[[routes]", "[[routes]]\nname = 1\n", "#" * 3_000_000 + "\nx", "x = 1\n" + valid[1]]
    whole = set()

    def write() -> None:
        for turn in range(ROUNDS):
            text = (*valid, *bad)[turn % 6]
            if turn % 7 == 0:
                routes.unlink(missing_ok=True)
            if turn % 2:
                beside = routes.with_suffix(".new")
                beside.write_text(text)
                beside.replace(routes)
            else:
                routes.write_text(text)
        routes.write_text(valid[0])

    async def work(router: Any, endpoint: Any) -> None:
        for text in valid:
            routes.write_text(text)
            router.reload()
            whole.add(router.catalog.revision)
        writing = asyncio.create_task(asyncio.to_thread(write))
        seen: set[str] = set()
        async with site.http(endpoint) as http:
            while not writing.done():
                answer = (
                    await http.post("/v1/route", json={**STEP, "run_id": f"r-{len(seen)}"})
                ).json()
                assert "catalog_revision" in answer, answer
                seen.add(answer["catalog_revision"])
            await writing
            for text in bad:
                routes.write_text(text)
                refused = await until(http, lambda config: bool(config["problems"]))
                assert refused["revision"] in whole
            routes.write_text(valid[0])
            end = await until(
                http, lambda config: not config["problems"] and config["revision"] in whole
            )
            assert end["revision"] in whole
        assert seen <= whole

    site.serve_all(work)


def test_a_step_that_waits_for_its_run_to_be_opened_outlives_an_edit(site: Any) -> None:
    routes = site.folder / "config" / "routes.toml"
    thread, may_open = ThreadPoolExecutor(1), threading.Event()

    async def work() -> None:
        asyncio.get_running_loop().set_default_executor(thread)
        async with site.open() as router:
            before = router.catalog.revision
            thread.submit(may_open.wait)
            routing = asyncio.create_task(router.route(Step(**STEP)))
            await asyncio.sleep(0)  # it waits for the thread now
            routes.write_text(
                routes.read_text() + "[[routes]]\nname = 'n'\nstep = 'n'\nbundles = []\n"
            )
            assert router.reload()
            retiring = asyncio.create_task(router.retire())
            await asyncio.sleep(0)
            may_open.set()
            assert (await routing).catalog_revision == before != router.catalog.revision
            await retiring

    asyncio.run(work())


def test_what_was_opened_over_a_former_config_is_closed_with_its_last_run(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.engine.versions.GRACE_S", 0)

    async def work(router: Any, endpoint: Any) -> None:
        routes = site.folder / "config" / "routes.toml"
        async with site.http(endpoint) as http:
            for number in range(5):
                routes.write_text(
                    routes.read_text()
                    + f"# {number}\n[[routes]]\nname = 'n{number}'\nbundles = []\n"
                )
                router.reload()  # or the service saw the edit first
                assert f"n{number}" in {route.name for route in router.catalog.routes}
                assert not router.reload(), "nothing was edited since"
                assert (
                    await http.post("/v1/route", json={**STEP, "run_id": "r"})
                ).status_code == 200
                await router.retire()
                assert len(router._versions._first) == 1

    site.serve_all(work)


def test_the_token_stays_redacted_after_an_edit(site: Any) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        routes = site.folder / "config" / "routes.toml"
        routes.write_text(routes.read_text() + "[[routes]]\nname = 'n'\nstep='n'\nbundles = []\n")
        assert router.reload()
        async with site.http(endpoint) as http:
            await http.post("/v1/route", json={**STEP, "goal": f"use {endpoint.key}"})
            await http.post(
                "/v1/runs/r/call", json={"name": "kit.echo", "arguments": {"text": endpoint.key}}
            )
        kept = "".join(path.read_text() for path in (site.folder / "runs" / "r").glob("*.jsonl"))
        assert endpoint.key not in kept
        assert "[redacted:" in kept

    site.serve_all(work, key="a-key-that-an-operator-chose-and-nothing-else")


@pytest.mark.parametrize(
    ("settings", "models"),
    [("", ()), ('[model]\nnames = ["openai/scripted"]\n', ("openai/scripted",))],
)
def test_what_the_first_step_and_call_need_is_loaded_before_anybody_asks(
    settings: str, models: tuple[str, ...], site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = asyncio.Event()

    async def warm_up(_router: Any) -> bool:
        loaded.set()
        return True

    async def work(router: Any, _endpoint: Any) -> None:
        assert router.catalog.settings.model.names == models
        await loaded.wait()

    monkeypatch.setattr("bundle_router.wiring.Router.warm_up", warm_up)
    site.serve_all(work, settings)
