"""`/mcp` without a run: an agent that has nothing but the address and a token (DESIGN, section
10).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import run
from tests.service.mcp.test_endpoint_runs import META_TOOLS, names, text
from tests.service.test_service_security import token_file

pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")

ERAS = ("legacy", "auto")
ANN, BEN, CALLER, ENGINE, READER = (
    f"{name}-{'x' * 40}" for name in ("ann", "ben", "caller", "engine", "reader")
)
TOKENS = (
    (ANN, ["call"], "ann", "role = 'reader'\n"),
    (BEN, ["call"], "ben", "role = 'helper'\n"),
    (CALLER, ["call"], "", ""),
    (ENGINE, ["route", "call"], "", ""),
    (READER, ["review"], "", "role = 'reader'\n"),
)
POLICY = """
[[policies]]
name = "steps of an engine"
workflow = "w"
allow = ["*"]

[[policies]]
name = "agents that come by themselves"
workflow = "mcp"
role = ["reader", "endpoint", "engine"]
allow = ["bundle:kit.some"]

[[policies]]
name = "those that help"
role = "helper"
allow = ["bundle:kit.later"]
"""


@pytest.fixture
def site(site: Any) -> Any:
    (site.folder / "config" / "policy.toml").write_text(POLICY, encoding="utf-8")
    return site


def own_runs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of the tokens' own runs."""
    files = sorted((folder / "runs").glob("mcp-*/routing.jsonl"))
    return {
        file.parent.name: sorted(
            (
                json.loads(line)
                for each in (file, file.with_name("tool-calls.jsonl"))
                if each.exists()
                for line in each.read_text(encoding="utf-8").splitlines()
            ),
            key=lambda row: row["seq"],
        )
        for file in files
    }


async def searched(connected: Any) -> str:
    return text(await connected.call_tool("search_tools", {"query": "say it again"}))


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("whole", [True, False])
def test_a_client_with_an_address_and_a_token_finds_and_calls_what_its_policy_permits(
    site: Any, era: str, whole: bool
) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.client(endpoint, era, run_id=None) as connected:
            assert await names(connected) == META_TOOLS
            assert "kit__echo" in await searched(connected)
            called = await connected.call_tool(
                "call_tool", {"name": "kit.echo", "arguments": {"text": "hello"}}
            )
            assert (text(called), called.is_error) == ("said hello", False)
            refused = await connected.call_tool("call_tool", {"name": "kit.late"})
            assert refused.is_error
            assert "'kit.late' is not available" in text(refused)
            assert await names(connected) == META_TOOLS

    (site.serve_all if whole else site.serve)(work)
    ((run_id, rows),) = own_runs(site.folder).items()
    assert run_id.startswith("mcp-endpoint-")
    decided, *calls = rows
    assert (decided["step"]["workflow"], decided["step"]["role"], decided["source"]) == (
        "mcp",
        "endpoint",
        "shortlist",
    )
    assert [bundle["id"] for bundle in decided["bundles"]] == ["kit.some"]
    assert [(row["tool"], row["outcome"]) for row in calls if row["type"] == "call.finished"] == [
        ("search_tools", "ok"),
        ("echo", "ok"),
        ("late", "denied"),
    ]


@pytest.mark.parametrize("era", ERAS)
def test_each_token_has_a_run_of_its_own_under_its_own_policy(site: Any, era: str) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async def found(token: str) -> str:
            async with site.client(endpoint, era, run_id=None, token=token) as connected:
                return await searched(connected)

        told = await asyncio.gather(*(found(token) for token in (ANN, BEN, ENGINE, ANN)))
        assert [("kit__echo" in one, "kit__late" in one) for one in told] == [
            (True, False), (False, True), (True, False), (True, False),
        ]  # fmt: skip
        (bens,) = (run_id for run_id in own_runs(site.folder) if run_id.startswith("mcp-ben-"))
        async with site.http(endpoint, token=ANN) as http:
            answer = await http.get(f"/v1/runs/{bens}/tools")
            assert (answer.status_code, answer.json()["code"]) == (404, "unknown_run")

    site.serve_all(work, tokens=token_file(site.folder, TOKENS))
    runs = own_runs(site.folder)
    assert [run_id.split("-")[1] for run_id in runs] == ["ann", "ben", "engine"]
    assert [rows[0].get("principal") or "" for rows in runs.values()] == ["ann", "ben", ""]
    assert [
        len([row for row in rows if row["type"] == "route.decided"]) for rows in runs.values()
    ] == [1, 1, 1]


def test_who_has_no_token_no_scope_or_no_place_there_is_told_so_and_begins_nothing(
    site: Any,
) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async def asked(token: str, **more: Any) -> tuple[int, str]:
            answer = await site.raw(
                endpoint.port, site.request(endpoint, target="/mcp", token=token, **more)
            )
            return answer.status, answer.sentence

        for token in ("", "wrong" * 9, endpoint.token("r")):
            assert (await asked(token))[0] == 401
        assert await asked(READER) == (
            403,
            (
                "This request needs the scope 'call', which this token lacks. (use a token that"
                " has it)"
            ),
        )
        status, said = await asked(CALLER)
        assert (status, "needs the scope 'route'" in said, "`role` in the token file" in said) == (
            403,
            True,
            True,
        )
        assert (await asked(ANN, method="PUT"))[0] == 405
        assert (await asked(ANN, type_="text/plain"))[0] == 400
        assert (
            await site.raw(endpoint.port, site.request(endpoint, target="/mcp/x", token=ANN))
        ).status == 404

    site.serve_all(work, tokens=token_file(site.folder, TOKENS))
    assert not own_runs(site.folder)


@pytest.mark.parametrize("era", ERAS)
def test_an_edited_config_counts_from_the_next_request_on(site: Any, era: str) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        async with site.client(endpoint, era, run_id=None) as connected:
            assert "kit__late" not in await searched(connected)
            policy = site.folder / "config" / "policy.toml"
            policy.write_text(
                POLICY.replace("bundle:kit.some", "bundle:kit.later"), encoding="utf-8"
            )
            assert await asyncio.to_thread(router.reload)
            told = await searched(connected)
            assert ("kit__late" in told, "kit__echo" in told) == (True, False)

    site.serve(work)
    ((_, rows),) = own_runs(site.folder).items()
    assert [[b["id"] for b in row["bundles"]] for row in rows if row["type"] == "route.decided"] == [
        ["kit.some"], ["kit.later"],
    ]  # fmt: skip


def test_what_comes_to_be_available_is_offered_with_the_next_request(
    site: Any, monkeypatch: Any
) -> None:
    bundles = site.folder / "config" / "bundles.toml"
    needs = bundles.read_text(encoding="utf-8").replace(
        '"kit.wait"]', '"kit.wait"]\nrequires = { env = ["KIT_KEY"] }'
    )
    bundles.write_text(needs, encoding="utf-8")

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.client(endpoint, run_id=None) as connected:
            assert "kit__echo" not in await searched(connected)
            monkeypatch.setenv("KIT_KEY", "a key that is long enough")
            assert "kit__echo" in await searched(connected)

    site.serve(work, limits="[cache]\ncapabilities_ttl_s = 0\n")


def test_a_closed_run_is_followed_by_another_but_not_under_an_open_session(site: Any) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        async def close() -> None:
            for run_id in own_runs(site.folder):
                await router.close_run(run_id)

        async with site.client(endpoint, "auto", run_id=None) as connected:
            await searched(connected)
            await close()
            await searched(connected)
        assert len(own_runs(site.folder)) == 2
        await close()
        async with site.client(endpoint, "legacy", run_id=None) as connected:
            await searched(connected)
            await close()
            await searched(connected)
        assert len(own_runs(site.folder)) == 3

    site.serve(work)
    routed = [
        [row["type"] for row in rows].count("route.decided")
        for rows in own_runs(site.folder).values()
    ]
    assert sorted(routed) == [1, 1, 2]


def test_a_service_that_was_started_again_begins_another_run_and_leaves_the_first_closed(
    site: Any,
) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.client(endpoint, "auto", run_id=None) as connected:
            await searched(connected)

    for _ in range(2):
        site.serve(work)
    assert [
        [row["type"] for row in rows].count("route.decided")
        for rows in own_runs(site.folder).values()
    ] == [1, 1]
    closed = [
        json.loads((site.folder / "runs" / run_id / "run.json").read_text())
        for run_id in own_runs(site.folder)
    ]
    assert all("closed" in header for header in closed)


def test_a_route_for_the_place_says_what_is_shown_and_the_declared_order_is_kept(site: Any) -> None:
    route = '[[routes]]\nname = "mine"\nworkflow = "mcp"\nrole = "reader"\nbundles = ["kit.some"]\n'
    (site.folder / "config" / "routes.toml").write_text(route, encoding="utf-8")

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.client(endpoint, "auto", run_id=None, token=ANN) as connected:
            assert await names(connected) == (*META_TOOLS, "kit__echo", "kit__wait")
        async with site.client(endpoint, "auto", run_id=None, token=BEN) as connected:
            assert await names(connected) == META_TOOLS
            assert "kit__late" not in await searched(connected)

    site.serve_all(work, '[fallback]\norder = ["search"]\n', tokens=token_file(site.folder, TOKENS))
    assert [rows[0]["source"] for rows in own_runs(site.folder).values()] == ["mapping", "none"]


def test_all_that_policy_permits_is_there_however_much_it_is_and_replays(site: Any) -> None:
    more = "".join(
        f'\n[bundles."kit.more{n}"]\ndescription = "Number {n}."\ntools = ["kit.echo"]\neffects ='
        ' ["read"]\n'
        for n in range(20)
    )
    bundles = site.folder / "config" / "bundles.toml"
    bundles.write_text(bundles.read_text(encoding="utf-8") + more, encoding="utf-8")
    (site.folder / "config" / "policy.toml").write_text(
        '[[policies]]\nname = "all"\nallow = ["*"]\n', encoding="utf-8"
    )

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.client(endpoint, run_id=None) as connected:
            assert await names(connected) == META_TOOLS
            assert text(await connected.call_tool("call_tool", {"name": "kit.late"})) == "said "

    site.serve(work)
    ((_, rows),) = own_runs(site.folder).items()
    assert {f"kit.more{n}" for n in range(20)} <= {bundle["id"] for bundle in rows[0]["bundles"]}
    assert {bundle["reason"] for bundle in rows[0]["bundles"]} == {"shortlist"}
    run(site.folder, "replay", "--runs", "runs", code=0)  # 1 where a decision comes out otherwise
