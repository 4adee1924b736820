"""What is asked of a server, and cancelled at any of its awaits, leaves nothing behind, and the
next request works.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.servers.transport.pass_through import Client

from tests.engine.cancellation import cancel_at_each_await, cancel_at_each_turn, check_records
from tests.service.mcp.relay import Entry, Relay, relayed

ENTRIES = {"modern": Entry(), "handshake": Entry(modern=False), "stdio": Entry(stdio=True)}
REQUESTS: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
    "call": lambda router: router.call("r", "every.test_simple_text"),
    "call for a client": lambda router: router.endpoint.call(
        "r", "every.test_simple_text", {}, client=Client()
    ),
    "read": lambda router: router.endpoint.ask(
        "r", "resources/read", {"uri": "test://static-text"}, Client()
    ),
    "prompt": lambda router: router.endpoint.ask(
        "r", "prompts/get", {"name": "test_simple_prompt"}, Client()
    ),
    "list": lambda router: router.endpoint.ask("r", "resources/list", {}, Client()),
}
LIMITS = (
    "max_concurrent_calls = 1\nrepeated_calls = 100000\ncalls_per_step = 100000\ncalls_per_tree ="
    " 100000"
)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_that_is_cancelled_at_any_await_leaves_nothing(
    tmp_path: Path, entry: str, request_: str
) -> None:
    async def work(relay: Relay) -> None:
        make = REQUESTS[request_]
        await make(relay.router)
        cancelled = await cancel_at_each_await(relay.router, "r", lambda: make(relay.router))
        assert cancelled > 1
        turned = await cancel_at_each_turn(relay.router, "r", lambda: make(relay.router), 40)
        assert turned > 1
        check_records(relay.router, "r", relay.records())

    relayed(tmp_path, work, limits=LIMITS, every=ENTRIES[entry])
