"""What a server has besides tools, and its results as they came, through the endpoint: where the
operator lets them.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

from bundle_router.errors import StorageError

from tests.command_line import run
from tests.service.mcp.everything_server import LARGE, PNG, PROMPTS, RESOURCES, TOOLS
from tests.service.mcp.relay import EVERYTHING, Entry, Notifications, Relay, relayed

ERAS = ("legacy", "auto")
METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602
REFUSED = -32600
ONE = {"every": Entry()}


async def refused(request: Any) -> Any:
    """The error of a request that is refused."""
    from mcp.shared.exceptions import MCPError

    with pytest.raises(MCPError) as told:
        await request
    return told.value.error


# --- resources, prompts, completion ---------------------------------------------------------------


def test_what_a_resource_brings_in_is_recorded_and_the_next_request_that_leaves_is_refused(
    site: Any, tmp_path: Path
) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, "auto") as connected:
            (text,) = (await connected.read_resource("test://static-text")).contents
            assert text.text == RESOURCES["test://static-text"]["text"]
            told = await refused(connected.read_resource("test://static-text"))
            assert "tainted" in told.message
            assert "every.resources/read, record" in told.message
            read, denied = relay.passed()
            assert (read["outcome"], read["returns"]) == ("ok", ["untrusted"])
            assert (denied["outcome"], denied["code"]) == ("denied", "tainted")
            assert "returns" not in denied

    taints = '[{ returns = ["untrusted"], sends = ["outside"] }]'
    relayed(tmp_path, work, every=Entry(taints=taints))


@pytest.mark.parametrize("era", ERAS)
def test_resources_are_listed_read_and_recorded_and_their_media_are_artifacts(
    site: Any, tmp_path: Path, era: str
) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, era) as connected:
            assert [str(one.uri) for one in (await connected.list_resources()).resources] == list(
                RESOURCES
            )
            (template,) = (await connected.list_resource_templates()).resource_templates
            assert template.uri_template == "test://template/{id}/data"
            (text,) = (await connected.read_resource("test://static-text")).contents
            assert text.text == RESOURCES["test://static-text"]["text"]
            (blob,) = (await connected.read_resource("test://static-binary")).contents
            assert blob.blob == PNG
            (filled,) = (await connected.read_resource("test://template/7/data")).contents
            assert '"7"' in filled.text
            one, two, three = relay.passed()
            assert [row["method"] for row in (one, two, three)] == ["resources/read"] * 3
            assert (one["server"], one["outcome"], one["code"]) == ("every", "ok", "")
            assert one["arguments"] == '{"uri":"test://static-text"}'
            assert RESOURCES["test://static-text"]["text"] in one["result"]
            (artifact,) = two["artifacts"]
            assert (artifact["mime_type"], PNG in two["result"]) == ("image/png", False)
            assert relay.router.artifact("r", artifact["uri"]) == base64.b64decode(PNG)

    relayed(tmp_path, work)


@pytest.mark.parametrize("era", ERAS)
def test_prompts_are_listed_got_and_completed_and_recorded(
    site: Any, tmp_path: Path, era: str
) -> None:
    from mcp_types import PromptReference

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, era) as connected:
            assert [one.name for one in (await connected.list_prompts()).prompts] == list(PROMPTS)
            got = await connected.get_prompt(
                "test_prompt_with_arguments", {"arg1": "a", "arg2": "b"}
            )
            assert got.messages[0].content.text == "Prompt with arguments: arg1='a', arg2='b'"
            reference = PromptReference(type="ref/prompt", name="test_prompt_with_arguments")
            completed = await connected.complete(reference, {"name": "arg1", "value": "test"})
            assert completed.completion.values == ["test", "testing", "tested"]
            assert [(row["method"], row["outcome"]) for row in relay.passed()] == [
                ("prompts/get", "ok"),
                ("completion/complete", "ok"),
            ]

    relayed(tmp_path, work)


def test_what_was_passed_on_is_told_of_by_runs_show(site: Any, tmp_path: Path) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            await connected.read_resource("test://static-binary")

    relayed(tmp_path, work)
    shown = run(tmp_path, "runs", "show", "r", "--runs", tmp_path / "runs").stdout
    assert "resources/read of every  → ok" in shown
    assert "artifact image/png" in shown


def test_what_a_server_refuses_is_refused_in_its_words_and_recorded(
    site: Any, tmp_path: Path
) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            error = await refused(connected.read_resource("test://nothing"))
            assert (error.code, error.data) == (INVALID_PARAMS, {"uri": "test://nothing"})
            (row,) = relay.passed()
            assert (row["outcome"], row["code"]) == ("tool_error", "invalid_params")

    relayed(tmp_path, work)


def test_a_secret_in_what_is_asked_for_stays_out_of_the_record(site: Any, tmp_path: Path) -> None:
    secret = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            await refused(connected.read_resource(f"test://nothing/{secret}"))

    relayed(tmp_path, work)
    assert secret not in (tmp_path / "runs" / "r" / "tool-calls.jsonl").read_text(encoding="utf-8")


# --- who gets nothing -----------------------------------------------------------------------------

CASES = {
    "nothing is let through": Entry(pass_through=()),
    "another feature is let through": Entry(pass_through=("logging",)),
    "the run's decision does not show the server": Entry(shown=False),
    "no tool of the server is there": Entry(tools=("no_such_tool",)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("era", ERAS)
def test_nothing_is_passed_on_and_none_of_it_is_said_to_be_there_when(
    site: Any, tmp_path: Path, era: str, case: str
) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, era) as connected:
            said = connected.server_capabilities
            assert (said.resources, said.prompts, said.completions) == (None, None, None)
            for request in (
                connected.list_resources(),
                connected.read_resource("test://static-text"),
                connected.list_prompts(),
                connected.get_prompt("test_simple_prompt"),
            ):
                assert (await refused(request)).code == METHOD_NOT_FOUND
            assert relay.passed() == []

    relayed(tmp_path, work, every=CASES[case], other=Entry(pass_through=(), prefix=True))


def test_with_the_next_decision_goes_what_it_does_not_show_any_more(
    site: Any, tmp_path: Path
) -> None:
    from bundle_router import Step, StepPolicy

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            assert (await connected.read_resource("test://static-text")).contents
            narrow = StepPolicy(deny=("bundle:every.*",))
            await relay.router.route(
                Step(run_id="r", workflow="w", role="r", step="s", policy=narrow)
            )
            assert (
                await refused(connected.read_resource("test://static-text"))
            ).code == METHOD_NOT_FOUND

    relayed(tmp_path, work)


# --- several servers ------------------------------------------------------------------------------


def test_of_several_servers_lists_are_joined_and_each_request_goes_to_its_own(
    site: Any, tmp_path: Path
) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            prompts = [one.name for one in (await connected.list_prompts()).prompts]
            assert prompts == [*(f"aside__{name}" for name in PROMPTS), *PROMPTS]
            assert len((await connected.list_resources()).resources) == 2 * len(RESOURCES)
            await connected.get_prompt("aside__test_simple_prompt")
            await connected.get_prompt("test_simple_prompt")
            await connected.read_resource("test://static-text")
            await connected.read_resource("test://template/1/data")
            assert (await refused(connected.read_resource("test://nobodys"))).code == INVALID_PARAMS
            assert [(row["server"], row["method"]) for row in relay.passed()] == [
                ("aside", "prompts/get"),
                ("every", "prompts/get"),
                ("aside", "resources/read"),
                ("aside", "resources/read"),
            ]

    relayed(tmp_path, work, every=Entry(), aside=Entry(prefix=True))


# --- results as they came -------------------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
def test_tools_go_by_their_own_names_and_results_come_as_they_were_while_the_record_holds_artifacts(
    site: Any, tmp_path: Path, era: str
) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, era) as connected:
            listed = [tool.name for tool in (await connected.list_tools()).tools]
            assert set(TOOLS) <= set(listed)
            assert not any("__" in name for name in listed)
            result = await connected.call_tool("test_multiple_content_types", {})
            assert [block.type for block in result.content] == ["text", "image", "resource"]
            assert result.content[1].data == PNG
            assert (await connected.call_tool("test_error_handling", {})).is_error

    async def checked(relay: Relay) -> None:
        await work(relay)
        finished = [row for row in relay.records() if row["type"] == "call.finished"]
        assert [(row["server"], row["tool"], row["outcome"]) for row in finished] == [
            ("every", "test_multiple_content_types", "ok"),
            ("every", "test_error_handling", "tool_error"),
        ]
        (artifact,) = finished[0]["artifacts"]
        assert relay.router.artifact("r", artifact["uri"]) == base64.b64decode(PNG)
        assert PNG not in finished[0]["result"]

    relayed(tmp_path, checked)


@pytest.mark.parametrize("era", ERAS)
def test_results_are_in_the_routers_form_where_they_are_not_let_through(
    site: Any, tmp_path: Path, era: str
) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, era) as connected:
            result = await connected.call_tool("every__test_image_content", {})
            assert "artifact:sha256:" in result.content[0].text

    relayed(
        tmp_path, work, every=Entry(pass_through=("resources", "input", "logging"), prefix=True)
    )


def test_what_is_too_large_to_pass_as_it_came_is_shaped_or_refused_and_kept_whole(
    site: Any, tmp_path: Path
) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint) as connected:
            shown = (await connected.call_tool("test_large", {})).content[0].text
            assert "full result: artifact:sha256:" in shown
            assert len(shown) < 20_000
            error = await refused(connected.read_resource("test://large"))
            assert "more than 786,432 bytes" in error.message
            (row,) = relay.passed()
            (artifact,) = row["artifacts"]
            assert artifact["bytes"] >= LARGE * len("a line of many\n")

    relayed(tmp_path, work)


@pytest.mark.parametrize("era", ERAS)
def test_progress_reaches_the_client_before_the_result(site: Any, tmp_path: Path, era: str) -> None:
    async def work(relay: Relay) -> None:
        told: list[float] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            told.append(progress)

        async with site.client(relay.endpoint, era) as connected:
            await connected.call_tool("test_tool_with_progress", {}, progress_callback=hear)
            assert told == [0, 50, 100]

    relayed(tmp_path, work)


def test_log_lines_reach_a_client_that_asked_for_them_and_no_other(
    site: Any, tmp_path: Path
) -> None:
    from mcp.shared.exceptions import MCPDeprecationWarning

    async def work(relay: Relay) -> None:
        heard: list[str] = []
        others: list[str] = []

        async def hear(line: Any) -> None:
            heard.append(line.data)

        async def overhear(line: Any) -> None:
            others.append(line.data)

        endpoint = relay.endpoint
        async with (
            site.client(endpoint, "legacy", logging_callback=hear) as one,
            site.client(endpoint, "legacy", logging_callback=overhear) as two,
        ):
            with pytest.warns(MCPDeprecationWarning, match="logging"):
                await asyncio.gather(one.set_logging_level("info"), two.set_logging_level("error"))
            await asyncio.gather(
                one.call_tool("test_tool_with_logging", {}), two.call_tool("test_simple_text", {})
            )
            await two.call_tool("test_tool_with_logging", {})
            assert (len(heard), others) == (3, [])

    relayed(tmp_path, work)


@pytest.mark.parametrize("era", ["handshake", "modern"])
def test_log_lines_and_progress_of_a_process_reach_the_client_that_wants_them(
    site: Any, tmp_path: Path, era: str
) -> None:
    from bundle_router import Step
    from mcp.shared.exceptions import MCPDeprecationWarning

    async def work(relay: Relay) -> None:
        heard: asyncio.Queue[str] = asyncio.Queue()
        told: asyncio.Queue[float] = asyncio.Queue()

        async def hear(line: Any) -> None:
            heard.put_nowait(line.data)

        async def progress(done: float, total: float | None, message: str | None) -> None:
            told.put_nowait(done)

        while not (
            await relay.router.tools("r")
        ).tools:  # a busy machine does not start it in the 5 s it is waited for
            await relay.router.route(Step(run_id="r", workflow="w", role="r", step="s"))
        assert (await relay.router.call("r", "every.test_simple_text", {})).ok, (
            "the process is there"
        )
        async with site.client(relay.endpoint, "legacy", logging_callback=hear) as connected:
            await connected.call_tool("test_tool_with_logging", {})
            with pytest.warns(MCPDeprecationWarning, match="logging"):
                await connected.set_logging_level("info")
            await connected.call_tool("test_tool_with_logging", {})
            await connected.call_tool("test_tool_with_progress", {}, progress_callback=progress)
            assert (heard.qsize(), told.qsize()) == (3, 3), "none before the client asked for any"

    relayed(tmp_path, work, every=Entry(stdio=True, era=era))


@pytest.mark.parametrize("modern", [True, False], ids=["modern server", "older server"])
def test_changes_of_the_lists_of_resources_and_prompts_reach_clients_of_both_eras(
    site: Any, tmp_path: Path, modern: bool
) -> None:
    from mcp.client.subscriptions import PromptsListChanged, ResourcesListChanged, listen

    async def work(relay: Relay) -> None:
        heard = Notifications("list_changed")
        async with (
            site.client(relay.endpoint, "legacy", message_handler=heard.hear) as old,
            site.client(relay.endpoint) as new,
            listen(new.session, prompts_list_changed=True, resources_list_changed=True) as stream,
        ):
            assert old.server_capabilities.prompts.list_changed
            assert new.server_capabilities.resources.list_changed
            await old.list_prompts()
            relay.servers["every"].change_lists()
            told = {await heard.next() for _ in range(2)}
            assert told == {
                "notifications/resources/list_changed",
                "notifications/prompts/list_changed",
            }
            events = [await asyncio.wait_for(anext(stream), 300) for _ in range(2)]
            assert sorted(map(type, events), key=str) == sorted(
                (PromptsListChanged, ResourcesListChanged), key=str
            )

    relayed(tmp_path, work, every=Entry(modern=modern))


# --- input of the client --------------------------------------------------------------------------


def test_a_server_of_which_input_is_not_let_through_learns_nothing_of_the_client(
    site: Any, tmp_path: Path
) -> None:
    async def elicit(_context: Any, _params: Any) -> Any:
        raise AssertionError("nobody may ask")

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, elicitation_callback=elicit) as connected:
            (block,) = (
                await connected.call_tool("test_input_required_result_capabilities", {})
            ).content
            assert block.text == "The client can give nothing."

    relayed(
        tmp_path, work, every=Entry(pass_through=tuple(one for one in EVERYTHING if one != "input"))
    )


@pytest.mark.parametrize("era", ERAS)
def test_a_server_learns_exactly_what_the_client_can_give(
    site: Any, tmp_path: Path, era: str
) -> None:
    from mcp_types import ElicitResult

    async def elicit(_context: Any, _params: Any) -> Any:
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, era, elicitation_callback=elicit) as connected:
            (block,) = (
                await connected.call_tool("test_input_required_result_capabilities", {})
            ).content
            assert block.text == "The client gave: named."
            error = await refused(connected.call_tool("test_missing_capability", {}))
            assert "sampling" in error.message

    relayed(tmp_path, work, every=Entry(era="modern"))


@pytest.mark.parametrize("era", ERAS)
def test_what_a_server_needs_is_asked_of_the_client_and_each_round_is_recorded(
    site: Any, tmp_path: Path, era: str
) -> None:
    from mcp_types import ElicitResult

    async def elicit(_context: Any, _params: Any) -> Any:
        return ElicitResult(action="accept", content={"name": "Ada", "color": "green"})

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, era, elicitation_callback=elicit) as connected:
            (block,) = (
                await connected.call_tool("test_input_required_result_multi_round", {})
            ).content
            assert block.text == "Both steps are done."
            finished = [row for row in relay.records() if row["type"] == "call.finished"]
            assert [row["code"] for row in finished] == ["input_required", "input_required", ""]
            assert "Ada" not in str(finished)

    relayed(tmp_path, work, every=Entry(era="modern"))


def test_a_prompt_may_need_input_too_of_a_client_of_the_handshake_era(
    site: Any, tmp_path: Path
) -> None:
    from mcp_types import ElicitResult

    async def elicit(_context: Any, _params: Any) -> Any:
        return ElicitResult(action="accept", content={"context": "tests"})

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, "legacy", elicitation_callback=elicit) as connected:
            got = await connected.get_prompt("test_input_required_result_prompt")
            assert "tests" in got.messages[0].content.text
            assert [row["code"] for row in relay.passed()] == ["input_required", ""]

    relayed(tmp_path, work, every=Entry(era="modern"))


@pytest.mark.parametrize("era", ERAS)
def test_a_client_that_can_give_nothing_is_not_asked(site: Any, tmp_path: Path, era: str) -> None:
    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, era) as connected:
            result = await connected.call_tool("test_input_required_result_elicitation", {})
            assert result.is_error
            assert "asked for more input (elicitation/create)" in result.content[0].text

    relayed(tmp_path, work)


@pytest.mark.parametrize("era", ERAS)
def test_a_server_of_which_input_is_not_let_through_can_not_ask_though_it_tries(
    site: Any, tmp_path: Path, era: str
) -> None:
    async def elicit(_context: Any, _params: Any) -> Any:
        raise AssertionError("nobody may ask")

    async def work(relay: Relay) -> None:
        async with site.client(relay.endpoint, era, elicitation_callback=elicit) as connected:
            result = await connected.call_tool("test_streaming_elicitation", {})
            assert (result.is_error, "asked for more input" in result.content[0].text) == (
                True,
                True,
            )
            error = await refused(connected.get_prompt("test_input_required_result_prompt"))
            assert "asked for more input" in error.message
            ended = [row for row in relay.records() if row["type"] != "call.started"]
            assert [(row["outcome"], row["code"]) for row in ended] == [
                ("tool_error", "input_required")
            ] * 2

    relayed(
        tmp_path, work, every=Entry(pass_through=tuple(one for one in EVERYTHING if one != "input"))
    )


@pytest.mark.parametrize("modern", [True, False])
def test_a_client_of_the_handshake_era_is_asked_in_mid_call_for_what_it_gives(
    site: Any, tmp_path: Path, modern: bool
) -> None:
    """By a server that knows both eras, too: it is spoken to in this one, for this client."""
    from mcp_types import ElicitResult

    asked: list[str] = []

    async def elicit(_context: Any, params: Any) -> Any:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"name": "Ann"})

    async def work(relay: Relay) -> None:
        async with (
            site.client(relay.endpoint, "legacy", elicitation_callback=elicit) as able,
            site.client(relay.endpoint, "legacy") as unable,
        ):
            (told,) = (await able.call_tool("test_elicitation", {"message": "Who?"})).content
            assert "Ann" in told.text
            (came,) = (await able.call_tool("test_sampling", {"prompt": "Say."})).content
            assert "needs a client that is able to do sampling" in came.text
            (came,) = (await unable.call_tool("test_elicitation", {"message": "Who?"})).content
            assert "Ann" not in came.text
            assert asked == ["Who?"]
            assert "Ann" not in json.dumps(
                [row for row in relay.records() if row["type"] == "call.started"]
            )

    relayed(tmp_path, work, every=Entry(modern=modern))


def test_a_server_of_the_handshake_era_that_asks_a_modern_client_in_mid_call_is_refused(
    site: Any, tmp_path: Path
) -> None:
    async def asked(_context: Any, _params: Any = None) -> Any:
        raise AssertionError("nobody may ask")

    async def work(relay: Relay) -> None:
        able = {
            "elicitation_callback": asked,
            "sampling_callback": asked,
            "list_roots_callback": asked,
        }
        async with site.client(relay.endpoint, "auto", **able) as connected:
            (told,) = (await connected.call_tool("test_elicitation", {"message": "Who?"})).content
            assert told.text == "This tool needs a client that is able to do elicitation/create."
            (came,) = (await connected.call_tool("test_asks_unasked", {})).content
            assert json.loads(came.text) == {
                "sampling/createMessage": REFUSED,
                "elicitation/create": REFUSED,
                "roots/list": REFUSED,
            }
            finished = [row for row in relay.records() if row["type"] == "call.finished"]
            assert [row["outcome"] for row in finished] == ["tool_error", "ok"]

    relayed(tmp_path, work, every=Entry(modern=False))


# --- what changes ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:resources/(un)?subscribe is removed")
def test_a_client_of_the_handshake_era_hears_of_a_resource_it_follows_until_it_does_not(
    site: Any, tmp_path: Path
) -> None:
    async def work(relay: Relay) -> None:
        heard = Notifications("resources/updated")
        upstream = relay.servers["every"]
        async with site.client(relay.endpoint, "legacy", message_handler=heard.hear) as connected:
            assert connected.server_capabilities.resources.subscribe
            await connected.session.subscribe_resource("test://watched-resource")
            upstream.update("test://static-text")
            upstream.update("test://watched-resource")
            assert await heard.next() == "test://watched-resource"
            (row,) = relay.passed()
            assert (row["method"], row["outcome"]) == ("resources/subscribe", "ok")
            await connected.session.unsubscribe_resource("test://watched-resource")
            await connected.session.subscribe_resource("test://static-text")
            upstream.update("test://watched-resource")
            upstream.update("test://static-text")
            assert await heard.next() == "test://static-text"

    relayed(tmp_path, work)


@pytest.mark.filterwarnings("ignore:resources/(un)?subscribe is removed")
def test_changes_that_a_server_of_the_handshake_era_tells_of_reach_clients_of_both(
    site: Any, tmp_path: Path
) -> None:
    from mcp.client.subscriptions import ResourceUpdated, listen

    async def work(relay: Relay) -> None:
        heard = Notifications("resources/updated")
        upstream, uri = relay.servers["every"], "test://watched-resource"
        async with site.client(relay.endpoint, "legacy", message_handler=heard.hear) as old:
            await old.session.subscribe_resource(uri)
            async with (
                site.client(relay.endpoint) as new,
                listen(new.session, resource_subscriptions=[uri]) as stream,
            ):
                upstream.update("test://static-text")
                upstream.update(uri)
                assert await heard.next() == uri
                assert await asyncio.wait_for(anext(stream), 300) == ResourceUpdated(uri=uri)
            assert list(upstream.subscribed) == [uri], (
                "once for both, and still for the one that stays"
            )
            error = await refused(old.session.subscribe_resource("test://nobodys"))
            assert "Resource not found" in error.message
            assert [(row["method"], row["outcome"]) for row in relay.passed()] == [
                ("resources/subscribe", "ok"),
                ("resources/subscribe", "unavailable"),
            ]
            await old.session.unsubscribe_resource(uri)
            while upstream.subscribed:  # noqa: ASYNC110 - what is waited for is on another thread
                await asyncio.sleep(0.01)

    relayed(tmp_path, work, every=Entry(modern=False))


def test_a_listener_of_the_modern_era_hears_of_the_resources_it_named_while_the_decision_holds(
    site: Any, tmp_path: Path
) -> None:
    from bundle_router import Step, StepPolicy
    from mcp.client.subscriptions import ResourceUpdated, listen

    async def work(relay: Relay) -> None:
        upstream = relay.servers["every"]
        async with (
            site.client(relay.endpoint) as connected,
            listen(connected.session, resource_subscriptions=["test://watched-resource"]) as stream,
        ):
            upstream.update("test://watched-resource")
            assert await asyncio.wait_for(anext(stream), 300) == ResourceUpdated(
                uri="test://watched-resource"
            )
            assert upstream.followed == ["test://watched-resource"]
            narrow = StepPolicy(deny=("bundle:every.*",))
            await relay.router.route(
                Step(run_id="r", workflow="w", role="r", step="s", policy=narrow)
            )
            assert "resources" not in (await relay.router.endpoint.passes("r"))
            async with site.client(relay.endpoint) as other:
                await other.list_tools()  # the decision is known to the endpoint by now
            while upstream.followed:  # noqa: ASYNC110 - what is waited for is on another thread
                await asyncio.sleep(0.01)

    relayed(tmp_path, work)


def test_what_leaves_no_record_is_not_followed(site: Any, tmp_path: Path) -> None:
    async def work(relay: Relay) -> None:
        upstream = relay.servers["every"]
        log = relay.folder / "runs" / "r" / "tool-calls.jsonl"
        log.unlink(missing_ok=True)
        log.mkdir()
        with pytest.raises(StorageError):
            await relay.router.endpoint.follow("r", "test://watched-resource", lambda: None)
        while upstream.followed:  # noqa: ASYNC110 - what is waited for is on another thread
            await asyncio.sleep(0.01)
        log.rmdir()

    relayed(tmp_path, work)
