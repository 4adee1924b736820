"""Input that a server needs of a client of the handshake era, which knows no results that ask: it is asked in the
middle of its request, and the server's request is made again with what it said.

Rules:
1. A server that asks for what the client can't give, or may not be asked, got no answer here: its result was refused
   before (`bundle_router.core.tools.transport.pass_through.unanswerable`).
2. There are at most `MAX_ROUNDS` rounds of at most `MAX_ASKED` questions, each answered within `ANSWER_S`.
3. What the client says goes to the server as it is, and into no record. That there was a round, its record says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

import mcp_types as types
from mcp.shared.exceptions import MCPError

from bundle_router.core.tools.transport.pass_through import Client, ServerReply
from bundle_router.serving.mcp.client import Context, is_modern, said_by

MAX_ROUNDS: Final = 8
MAX_ASKED: Final = 16

T = TypeVar("T")


async def in_rounds(
    context: Context,
    client: Client,
    ask: Callable[[Client], Awaitable[T]],
    answer_of: Callable[[T], ServerReply | None],
) -> T:
    """What comes of asking the server, once it needs nothing more of the client. In the modern era the client sees to
    its rounds itself. Raises MCPError where a round can't be gone through."""
    for _ in range(MAX_ROUNDS):
        came = await ask(client)
        answer = answer_of(came)
        if answer is None or answer.result is None or not answer.wants_input or is_modern(context):
            return came
        client = replace(client, given=await _given(context, answer.result))
    raise MCPError(types.INTERNAL_ERROR, f"The server asked for more input {MAX_ROUNDS} times, which is the limit.")


async def _given(context: Context, result: Mapping[str, Any]) -> dict[str, Any]:
    """What the client says to a result that asks, in the words of the request to come."""
    wanted = result.get("inputRequests")
    wanted = wanted if isinstance(wanted, Mapping) else {}
    if len(wanted) > MAX_ASKED:
        raise MCPError(types.INTERNAL_ERROR, f"The server asked for {len(wanted)} things at once; {MAX_ASKED} may be.")
    given: dict[str, Any] = {"inputResponses": {key: await said_by(context, one) for key, one in wanted.items()}}
    return given if result.get("requestState") is None else {**given, "requestState": result["requestState"]}
