"""Resources, prompts, completion and subscriptions as a way round policy: what the step may not
have is not reached.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

from bundle_router import Step, StepPolicy

from tests.service.mcp.relay import Entry, Notifications, Relay, relayed

HIDDEN = {
    "the decision does not show it": Entry(shown=False),
    "nothing of it is let through": Entry(pass_through=()),
}


async def attempts(connected: Any) -> list[str]:
    """Ask for everything by names that only the other server could know; what was answered, but for
    the completion of a template, which the server that is shown answers itself.
    """
    from mcp.shared.exceptions import MCPError
    from mcp_types import PromptReference, ResourceTemplateReference

    given = {"name": "a", "value": "b"}
    prompt = PromptReference(type="ref/prompt", name="other__test_simple_prompt")
    template = ResourceTemplateReference(type="ref/resource", uri="test://only-there/{id}")
    answered = []
    requests: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("read", lambda: connected.read_resource("test://only-there")),
        ("prompt", lambda: connected.get_prompt("other__test_simple_prompt")),
        ("complete", lambda: connected.complete(prompt, given)),
        ("complete a template", lambda: connected.complete(template, given)),
        ("tool", lambda: connected.call_tool("other__test_simple_text", {})),
    )
    for name, request in requests:
        try:
            result = await request()
        except MCPError:
            continue
        answered += (
            [] if getattr(result, "is_error", False) or name == "complete a template" else [name]
        )
    return answered


@pytest.mark.parametrize("case", HIDDEN)
@pytest.mark.parametrize("era", ["legacy", "auto"])
def test_a_server_beside_the_one_that_is_shown_hears_of_no_request(
    site: Any, tmp_path: Path, era: str, case: str
) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, era) as connected:
            answered = await attempts(connected)
            listed = [str(one.uri) for one in (await connected.list_resources()).resources]
            assert len(listed) == len(set(listed)), "those of one server, once"
        is_shown = HIDDEN[case].shown  # then its tools are, and nothing besides
        assert relay.servers["other"].asked == (["tools/call"] if is_shown else [])
        assert answered == (["tool"] if is_shown else [])

    relayed(
        tmp_path,
        work,
        every=Entry(prefix=True),
        other=Entry(**{**vars(HIDDEN[case]), "prefix": True}),
    )


def test_a_denial_of_the_bundle_takes_away_what_its_server_has_besides_tools(
    site: Any, tmp_path: Path
) -> None:
    async def work(relay: Relay) -> None:
        await relay.router.route(
            Step(
                run_id="r", workflow="w", role="r", step="s", policy=StepPolicy(deny=("bundle:*",))
            )
        )
        for era in ("legacy", "auto"):
            async with site.client(relay.endpoint, era) as connected:
                assert await attempts(connected) == []
        assert relay.servers["every"].asked == []

    relayed(tmp_path, work)


@pytest.mark.parametrize(
    "by", ["another process", "a decision that follows the one in the address"]
)
@pytest.mark.filterwarnings("ignore:resources/(un)?subscribe is removed")
def test_who_follows_a_resource_hears_nothing_more_once_a_decision_takes_it_away(
    site: Any, tmp_path: Path, by: str
) -> None:
    from bundle_router import Router

    async def work(relay: Relay) -> None:
        heard = Notifications("resources/updated")
        named = (
            await relay.router.endpoint.decision_id("r") if by.startswith("a decision") else None
        )
        upstream, uris = relay.servers["every"], ("test://watched-resource", "test://static-text")
        async with (
            site.client(
                relay.endpoint, "legacy", decision=named, message_handler=heard.hear
            ) as connected,
            site.client(
                relay.endpoint, "legacy", run_id="free", message_handler=heard.hear
            ) as other,
        ):
            await connected.session.subscribe_resource(uris[0])
            await other.session.subscribe_resource(uris[1])
            upstream.update(uris[0])
            assert await heard.next() == uris[0]
            narrow = Step(
                run_id="r",
                workflow="w",
                role="r",
                step="s",
                policy=StepPolicy(deny=("bundle:every.*",)),
            )
            if named:
                await relay.router.route(narrow)
            else:
                async with Router.open(
                    tmp_path / "config",
                    runs=tmp_path / "runs",
                    workspace=tmp_path / "workspace",
                    development="unpinned",
                ) as elsewhere:
                    await elsewhere.route(narrow)
            for _ in range(2):  # one at a time: changes that follow at once may be announced once
                for uri in uris:
                    upstream.update(uri)
                assert await heard.next() == uris[1]

    async def both(relay: Relay) -> None:
        await relay.router.route(Step(run_id="free", workflow="w", role="r", step="s"))
        await work(relay)

    relayed(tmp_path, both)
