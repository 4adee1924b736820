"""Values that go to and come from a tool server, for every transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bundle_router.core.servers.admission.admitted import Admitted
from bundle_router.core.values import Block, Outcome

if TYPE_CHECKING:
    from bundle_router.core.results.shaping import ShapedResult
    from bundle_router.core.servers.transport.pass_through import Client, ServerReply
    from bundle_router.core.values.artifacts import Artifact


@dataclass(frozen=True, slots=True)
class RawResult:
    """A tool's result before shaping."""

    blocks: tuple[Block, ...]
    """The contents in their order."""
    outcome: Outcome = "ok"
    """`ok`, or the kind of failure."""
    code: str = ""
    """The tool's own word for the failure."""
    answer: ServerReply | None = None
    """The server's unchanged answer, if a client is to have it."""
    queued_ms: float = 0.0
    """Milliseconds that the call waited here before it was sent."""


@dataclass(frozen=True, slots=True)
class Scope:
    """On whose behalf a server is used.

    Runs share no process and no session with state; principals share nothing.
    """

    run_id: str = ""
    """The run; empty: none."""
    principal: str = ""
    """The person or service that the run is for; empty: none."""
    client: Client | None = None
    """The agent's own client, if the server's answers are passed on to it."""


EVERYONE = Scope()


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Where a local tool may work."""

    workspace: str = ""
    """The root that it is confined to, an absolute path."""
    within: str = "."
    """The folder below the root that the step may use."""
    files: tuple[str, ...] = ()
    """Absolute paths of files passed with the arguments: the tool may read them although they are
    elsewhere.
    """


NOWHERE = CallPlace()


NOTHING_ADMITTED: Final = Admitted("", ())


@dataclass(frozen=True, slots=True)
class Listing:
    """A server's raw tool definitions: untrusted, bounded in number and size, each with a unique
    `name`.
    """

    server: str
    """The server's name in the config."""
    tools: tuple[Mapping[str, Any], ...]
    """The definitions, as the server sent them."""
    instructions: str = ""
    """The server's text about itself."""
    name: str = ""
    """The name that the server gives itself."""
    version: str = ""
    """The server's version of itself."""
    protocol: str = ""
    """The protocol's version that was agreed on."""
    rejected: tuple[tuple[str, str], ...] = ()
    """The tools that were not taken, each with the reason."""
    cut: str = ""
    """Why there may be more tools; empty where these are all."""
    listed_ns: int = 0
    """When it was read, on the monotonic clock."""
    stale: bool = False
    """Whether it expired or `changed`; a new one is being read."""
    changed: bool = False
    """Whether the server said that its list changed."""
    error: str = ""
    """Why the last attempt to read it failed."""
    admitted: Admitted = NOTHING_ADMITTED
    """The result of admitting the definitions."""
    begins_with_handshake: bool = False
    """Whether the server ends at the question for its era, or does not answer it."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The present state of a server."""

    server: str
    """The server's name in the config."""
    transport: str
    """Its transport, as in the config."""
    connections: int = 0
    """Open connections."""
    pids: tuple[int, ...] = ()
    """The processes that run it."""
    running: int = 0
    """Calls under way."""
    waiting: int = 0
    """Calls that wait for their turn."""
    circuit: str = "closed"
    """`closed`, `open` (not contacted for `retry_in_s`) or `half_open` (the next call is the test).
    """
    retry_in_s: float = 0.0
    """Seconds until it is contacted again."""
    tools: int | None = None
    """Tools of the last list; None: not listed yet."""
    reason: str = ""
    """Why it can't be used; empty if it can."""
    command: tuple[str, ...] = ()
    """The start command of a stdio server."""
    again_s: float | None = None
    """Seconds after which `reason` may change without an event here."""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of making a call, shaped.

    `source`: the call that the result came from, if another. `answer`: the server's own, for an
    agent's client. `whole`: the unshaped result, if asked for. `queued_ms`: the time the call
    waited for its turn. `returns`: taints of the result that its call's start does not say.
    """

    outcome: Outcome
    code: str
    shaped: ShapedResult
    source: str = ""
    answer: ServerReply | None = None
    stored: tuple[Artifact, ...] = ()
    joined: tuple[tuple[str, str], ...] = ()
    whole: tuple[Block, ...] | None = None
    queued_ms: float = 0.0
    returns: tuple[str, ...] = ()
