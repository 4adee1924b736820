"""A run served under a decision that its address names: what the agents of branches are given."""

from __future__ import annotations

from typing import Any

import pytest
from bundle_router import StepPolicy
from bundle_router.errors import RequestError

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

ERAS = ("legacy", "auto")


async def direct(connected: Any) -> list[str]:
    return [
        tool.name for tool in (await connected.list_tools()).tools if tool.name.startswith("kit__")
    ]


async def said(connected: Any, name: str) -> tuple[str, bool]:
    result = await connected.call_tool("call_tool", {"name": name, "arguments": {"text": "x"}})
    return result.content[0].text, bool(result.is_error)


@pytest.mark.parametrize("era", ERAS)
def test_the_agents_of_two_branches_see_and_call_each_what_its_own_decision_shows(
    site: Any, era: str
) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        left = (await router.route(site.step("some", branch="left"))).decision_id
        without = StepPolicy(
            deny=("kit.some",)
        )  # a branch begins with what the default one has active
        right = (await router.route(site.step("later", branch="right", policy=without))).decision_id
        async with (
            site.client(endpoint, era, decision=left, token=endpoint.token("r", left)) as one,
            site.client(endpoint, era, decision=right, token=endpoint.token("r", right)) as other,
        ):
            assert (await direct(one), await direct(other)) == (["kit__echo", "kit__wait"], [])
            assert await said(one, "kit.echo") == await said(other, "kit.late") == ("said x", False)
            for agent, name in ((one, "kit.late"), (other, "kit.echo")):
                text, is_error = await said(agent, name)
                assert is_error
                assert f"'{name}' is not available at this step" in text
        rows = [row for row in site.records() if row["type"] == "call.finished"]
        assert [(row["decision_id"], row["outcome"]) for row in rows] == [
            (left, "ok"), (right, "ok"), (left, "denied"), (right, "denied"),
        ]  # fmt: skip

    site.serve(work)


@pytest.mark.parametrize("era", ERAS)
def test_a_named_decision_is_refused_from_when_its_branch_decides_again(
    site: Any, era: str
) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        first = (await router.route(site.step("some", branch="left"))).decision_id
        async with site.client(endpoint, era, decision=first) as connected:
            assert await direct(connected) == ["kit__echo", "kit__wait"]
            await router.route(site.step("later"))  # another branch
            assert await said(connected, "kit.echo") == ("said x", False)
            second = (await router.route(site.step("later", branch="left"))).decision_id
            with pytest.raises(Exception, match="branch 'left' has decided again"):
                await connected.list_tools()
            text, is_error = await said(connected, "kit.echo")
            assert is_error
            assert "branch 'left' has decided again" in text
        for unknown in ("r.none.7", "other.1"):
            path = endpoint.url("r", unknown).partition(str(endpoint.port))[2]
            answer = await site.raw(endpoint.port, site.request(endpoint, target=path))
            assert (answer.status, "has no decision" in answer.sentence) == (404, True)
        async with site.client(endpoint, era, decision=second) as connected:
            assert await said(connected, "kit.late") == ("said x", False)

    site.serve(work)


def test_those_who_listen_are_told_when_the_decision_they_were_served_under_is_over(
    site: Any,
) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        first = (await router.route(site.step("some", branch="left"))).decision_id
        async with site.client(endpoint, decision=first) as connected:
            await direct(connected)
            async with connected.listen(tools_list_changed=True) as heard:
                await router.route(site.step("later", branch="left"))
                assert type(await anext(heard)).__name__ == "ToolsListChanged"

    site.serve(work)


def test_a_decisions_token_opens_the_run_under_that_decision_alone(site: Any) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        left, right = [
            (await router.route(site.step(branch=branch))).decision_id
            for branch in ("left", "right")
        ]
        opened = {
            (token, to): (
                await site.raw(
                    endpoint.port,
                    site.request(
                        endpoint,
                        target=endpoint.url("r", to).partition(str(endpoint.port))[2],
                        token=endpoint.token("r", token),
                    ),
                )
            ).status
            != 401
            for token in (None, left, right)
            for to in (None, left, right)
        }
        assert opened == {(token, to): token in (None, to) for token, to in opened}

    site.serve(work)


def test_media_is_had_under_a_decision_while_that_is_open(site: Any) -> None:
    async def work(router: Any, _endpoint: Any) -> None:
        decision = (await router.route(site.step("some", branch="left"))).decision_id
        whole = await router.call("r", "kit.echo", {"text": "line\n" * 10_000}, decision=decision)
        (stored,) = whole.artifacts
        given = await router.media("r", stored.uri, format="mcp", decision=decision)
        assert given == await router.media("r", stored.uri, format="mcp")
        await router.route(site.step("later", branch="left"))
        for named, why in ((decision, "has decided again"), ("r.none.7", "has no decision")):
            with pytest.raises(RequestError, match=why):
                await router.media("r", stored.uri, format="mcp", decision=named)

    site.serve(work)
