"""What is passed between an agent's client and a server, where the operator lets a server's own through. Pure."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from bundle_router.core.catalog import Feature, Server
from bundle_router.core.models import Outcome
from bundle_router.dataclass import dataclass, field, replace

MAX_PASSED_BYTES: Final = 768 * 1024
"""An answer with more is not passed on as it came: clients refuse events over 1 MiB."""
ASKS_FOR: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""What a client may be asked, and the capability that it takes."""
PROGRESS: Final = "notifications/progress"
LOG: Final = "notifications/message"
CHANGED: Final[Mapping[str, Feature]] = {"resources/list": "resources", "prompts/list": "prompts"}
"""The lists beside that of tools whose changes are told of: followed as a resource is, by these in place of a URI."""

NotificationHandler = Callable[[str, Mapping[str, Any]], None]
"""Called with the method and the params of a notification, from any thread; must neither block nor raise."""
Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Asks a client something, as a request of its protocol, and gives its answer; on any event loop."""


@dataclass(frozen=True, slots=True)
class Client:
    """The agent's client, as far as one request of it goes.

    `capabilities`: what it can give when a server asks for input, in the protocol's words. `given`: what it sent along
    with the request to go on with one (`inputResponses`, `requestState`). `may_be_asked`: whether a server may ask for
    any. `log_level`: from which level on it wants log lines (""; none). `progress`: whether it wants progress.
    `on_notification` gets both while the request lasts. `ask` is there where it can be asked in the middle of its
    request, as clients of the handshake era can.
    """

    capabilities: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    may_be_asked: bool = True
    log_level: str = ""
    progress: bool = False
    on_notification: NotificationHandler | None = None
    ask: Ask | None = None

    @property
    def gives(self) -> dict[str, Any]:
        """What it can give in the middle of its request: the capabilities for that, none where it can't be asked."""
        if self.ask is None:
            return {}
        return {name: self.capabilities[name] for name in ASKS_FOR.values() if self.capabilities.get(name) is not None}


@dataclass(frozen=True, slots=True)
class ServerError:
    """A JSON-RPC error in a server's own words. `message` is bounded; `data` is any JSON value."""

    code: int
    message: str
    data: Any = None


@dataclass(frozen=True, slots=True)
class ServerReply:
    """What a server answered, as it came: a result or an error. Neither: there was no answer, and `outcome`, `code` and
    `text` say why in the words of a record."""

    result: Mapping[str, Any] | None = None
    error: ServerError | None = None
    outcome: Outcome = "ok"
    code: str = ""
    text: str = ""

    @property
    def wants_input(self) -> bool:
        """Whether the server needs something of the client before it goes on."""
        return self.result is not None and self.result.get("resultType") == "input_required"


def passes(server: Server, feature: Feature) -> bool:
    """Return whether the operator lets this of the server through. Never anything of one that is not trusted."""
    return feature in server.pass_through and server.trust == "trusted"


def narrow_client(client: Client | None, server: Server) -> Client | None:
    """Return the client as the server may know it: what it could give and hear, as far as is let through."""
    if client is None:
        return None
    if not passes(server, "input"):
        client = replace(client, capabilities={}, given={}, may_be_asked=False, ask=None)
    return client if passes(server, "logging") else replace(client, log_level="")


def why_unanswerable(result: Mapping[str, Any], client: Client) -> str:
    """Return what a result asks of the client that it may not be asked, or has not said that it can give; "": nothing.
    A server was told, and may ask nevertheless."""
    requests = result.get("inputRequests")
    asked = list(requests.values()) if isinstance(requests, Mapping) else [] if requests is None else [requests]
    if not client.may_be_asked:
        return ", ".join(sorted({_method(one) for one in asked})) or "another round"
    return ", ".join(sorted({_method(one) for one in asked if not can_give(client, one)}))


def _method(asked: Any) -> str:
    return str(asked.get("method"))[:50] if isinstance(asked, Mapping) else "no request"


def can_give(client: Client, asked: Any) -> bool:
    """Return whether a client has said that it answers such a request."""
    capability = client.capabilities.get(ASKS_FOR.get(_method(asked), ""))
    if capability is None or not isinstance(asked, Mapping):
        return False
    params = asked.get("params")
    opens_a_page = isinstance(params, Mapping) and params.get("mode") == "url"
    return not opens_a_page or (isinstance(capability, Mapping) and capability.get("url") is not None)


def fits(answer: ServerReply) -> bool:
    """Return whether an answer is small enough to be passed on as it came."""
    if answer.result is None:
        return answer.error is None or _size(answer.error.data) <= MAX_PASSED_BYTES
    return _size(answer.result) <= MAX_PASSED_BYTES


def _size(value: Any) -> int:
    """Return bytes of JSON, with everything outside ASCII escaped, as it is sent."""
    try:
        return len(json.dumps(value))
    except (RecursionError, ValueError, TypeError):
        return MAX_PASSED_BYTES + 1
