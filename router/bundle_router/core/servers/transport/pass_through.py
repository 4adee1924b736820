"""What an agent's client and a server exchange, if the operator lets the server's features through.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bundle_router.core.catalog import Feature, Server
from bundle_router.core.values import Outcome

MAX_PASSED_BYTES: Final = 768 * 1024
"""Maximum bytes of an answer that is passed on unchanged: clients refuse events over 1 MiB."""
ASKS_FOR: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""The requests that a client may be asked, with the capability each needs."""
PROGRESS: Final = "notifications/progress"
LOG: Final = "notifications/message"
CHANGED: Final[Mapping[str, Feature]] = {"resources/list": "resources", "prompts/list": "prompts"}
"""The lists, besides that of tools, whose changes are announced.

They are followed as resources, under these names.
"""

NotificationHandler = Callable[[str, Mapping[str, Any]], None]
"""Receives the method and params of a notification, on any thread; must neither block nor raise."""
Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Sends a request of the protocol to the client and returns its answer; on any event loop."""


@dataclass(frozen=True, slots=True)
class Client:
    """The agent's client during one of its requests."""

    capabilities: Mapping[str, Any] = field(default_factory=dict)
    """Its declared capabilities for input, in the protocol's form."""
    continuation: Mapping[str, Any] = field(default_factory=dict)
    """What it sent to continue a request (`inputResponses`, `requestState`)."""
    may_be_asked: bool = True
    """Whether a server may ask for input."""
    log_level: str = ""
    """The lowest level of log lines it wants; empty: none."""
    progress: bool = False
    """Whether it wants progress."""
    on_notification: NotificationHandler | None = None
    """Receives log lines and progress during the request."""
    ask: Ask | None = None
    """Asks the client in the middle of its request, as clients of the handshake era can be; None
    where this one can't.
    """

    @property
    def input_capabilities(self) -> dict[str, Any]:
        """Its capabilities for input in the middle of its request; none if it can't be asked."""
        if self.ask is None:
            return {}
        return {
            name: self.capabilities[name]
            for name in ASKS_FOR.values()
            if self.capabilities.get(name) is not None
        }


@dataclass(frozen=True, slots=True)
class ServerError:
    """A server's JSON-RPC error."""

    code: int
    """The error's number."""
    message: str
    """Its text, bounded."""
    data: Any = None
    """Any JSON value that came with it."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A server's unchanged answer: a result or an error.

    Neither: there was no answer, and `outcome`, `code` and `text` say why.
    """

    result: Mapping[str, Any] | None = None
    """The result, in the protocol's form."""
    error: ServerError | None = None
    """The error that the server answered with."""
    outcome: Outcome = "ok"
    """How the request ended, as in a record."""
    code: str = ""
    """The reason, where there was no answer."""
    text: str = ""
    """The reason in a sentence."""

    @property
    def wants_input(self) -> bool:
        """Whether the server needs input from the client before it goes on."""
        return self.result is not None and self.result.get("resultType") == "input_required"


def passes(server: Server, feature: Feature) -> bool:
    """Return whether the operator lets a feature of the server through.

    Never for an untrusted server.
    """
    return feature in server.pass_through and server.trust == "trusted"


def narrow_client(client: Client | None, server: Server) -> Client | None:
    """Return the client as the server may see it: its capabilities and notifications as far as they
    are let through.
    """
    if client is None:
        return None
    if not passes(server, "input"):
        client = replace(client, capabilities={}, continuation={}, may_be_asked=False, ask=None)
    return client if passes(server, "logging") else replace(client, log_level="")


def why_unanswerable(result: Mapping[str, Any], client: Client) -> str:
    """Return what a result asks of the client that the client may not be asked, or does not
    support; "" if nothing. A server was told its capabilities, but may ask nevertheless.
    """
    requests = result.get("inputRequests")
    if isinstance(requests, Mapping):
        questions = list(requests.values())
    elif requests is None:
        questions = []
    else:
        questions = [requests]
    if not client.may_be_asked:
        return ", ".join(sorted({_method(question) for question in questions})) or "another round"
    return ", ".join(
        sorted({_method(question) for question in questions if not can_give(client, question)})
    )


def _method(question: Any) -> str:
    return str(question.get("method"))[:50] if isinstance(question, Mapping) else "no request"


def can_give(client: Client, question: Any) -> bool:
    """Return whether the client has declared that it answers such a request."""
    capability = client.capabilities.get(ASKS_FOR.get(_method(question), ""))
    if capability is None or not isinstance(question, Mapping):
        return False
    params = question.get("params")
    if not isinstance(params, Mapping) or params.get("mode") != "url":
        return True
    return isinstance(capability, Mapping) and capability.get("url") is not None


def fits(answer: ServerReply) -> bool:
    """Return whether an answer is small enough to be passed on unchanged."""
    if answer.result is None:
        return answer.error is None or _size(answer.error.data) <= MAX_PASSED_BYTES
    return _size(answer.result) <= MAX_PASSED_BYTES


def _size(value: Any) -> int:
    """Return the bytes of the value as JSON, with everything outside ASCII escaped, as it is
    sent.
    """
    try:
        return len(json.dumps(value))
    except (RecursionError, ValueError, TypeError):
        return MAX_PASSED_BYTES + 1
