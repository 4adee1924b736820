"""Values that go to and come from a tool server, for every transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.results.shaping import ShapedResult
from bundle_router.core.servers.admission import Admitted
from bundle_router.core.servers.transport.pass_through import Client, ServerReply
from bundle_router.core.values import Block, Outcome
from bundle_router.core.values.artifacts import Artifact


@dataclass(frozen=True, slots=True)
class RawResult:
    """A tool's result before shaping.

    `outcome` is `ok` or the kind of failure; `code` is the tool's own word for it. `answer` is the
    server's unchanged answer, if a client is to have it. `queued_ms`: its wait here.
    """

    blocks: tuple[Block, ...]
    outcome: Outcome = "ok"
    code: str = ""
    answer: ServerReply | None = None
    queued_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Scope:
    """On whose behalf a server is used.

    Runs share no process and no session with state; principals share nothing. `client`: the agent's
    own, if the server's answers are passed on to it.
    """

    run_id: str = ""
    principal: str = ""
    client: Client | None = None


EVERYONE = Scope()


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Where a local tool may work: `workspace` is the root it is confined to (an absolute path),
    `within` the folder below it that the step may use. `files` are absolute paths of files passed
    with the arguments: the tool may read them although they are elsewhere.
    """

    workspace: str = ""
    within: str = "."
    files: tuple[str, ...] = ()


NOWHERE = CallPlace()


NOTHING_ADMITTED: Final = Admitted("", ())


@dataclass(frozen=True, slots=True)
class Listing:
    """A server's raw tool definitions: untrusted, bounded in number and size, each with a unique
    `name` and an `inputSchema` that is an object. `rejected` names those not taken, and why; `cut`
    says why there may be more.

    `admitted` is the result of admission. `stale`: expired, or the server said that it `changed`; a
    new one is being read. `error`: why the last attempt to read it failed. `listed_ns` is on the
    monotonic clock.
    """

    server: str
    tools: tuple[Mapping[str, Any], ...]
    instructions: str = ""
    name: str = ""
    version: str = ""
    protocol: str = ""
    rejected: tuple[tuple[str, str], ...] = ()
    cut: str = ""
    listed_ns: int = 0
    stale: bool = False
    changed: bool = False
    error: str = ""
    admitted: Admitted = NOTHING_ADMITTED


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The present state of a server.

    `circuit` is `closed`, `open` (not contacted for `retry_in_s`) or `half_open`; `reason` says why
    it can't be used, empty if it can. `command` is the start command of a stdio server. `again_s`:
    seconds after which `reason` may change without an event here.
    """

    server: str
    transport: str
    connections: int = 0
    pids: tuple[int, ...] = ()
    running: int = 0
    waiting: int = 0
    circuit: str = "closed"
    retry_in_s: float = 0.0
    tools: int | None = None
    reason: str = ""
    command: tuple[str, ...] = ()
    again_s: float | None = None


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of making a call, shaped.

    `source`: the call that the result came from, if another. `answer`: the server's own, for an
    agent's client. `whole`: the unshaped result, if asked for. `queued_ms`: the time the call
    waited for its turn.
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
