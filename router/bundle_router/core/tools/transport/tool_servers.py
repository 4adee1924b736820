"""What goes to a tool server and what comes back, whatever the transport."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bundle_router.core.models import Block, Outcome
from bundle_router.core.tools.admission import Admitted
from bundle_router.core.tools.transport.pass_through import Client, ServerReply
from bundle_router.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class RawResult:
    """What a tool gave before shaping. `outcome` is `ok` or what went wrong; `code` is the tool's own word for it.
    `answer` is the server's own, where it was asked for a client that is to have it. `queued_ms` is how long the call
    waited here for its turn."""

    blocks: tuple[Block, ...]
    outcome: Outcome = "ok"
    code: str = ""
    answer: ServerReply | None = None
    queued_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Scope:
    """For whom a server is used. Runs share no process and no session that a server keeps; principals share nothing.
    `client`: the agent's own, where the server's answers are passed on to it as they come."""

    run_id: str = ""
    principal: str = ""
    client: Client | None = None


EVERYONE = Scope()


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Where a local tool may work: `workspace` is the root it is confined to (an absolute path), `within` the folder
    beneath it that the step may work in. `files` are absolute paths of files that are handed over with the arguments:
    the tool may read them although they lie elsewhere."""

    workspace: str = ""
    within: str = "."
    files: tuple[str, ...] = ()


NOWHERE = CallPlace()


NOTHING_ADMITTED: Final = Admitted("", ())


@dataclass(frozen=True, slots=True)
class Listing:
    """A server's tool definitions as they came: untrusted, bounded in number and size, each with a `name` of its own
    and an `inputSchema` that is an object. `rejected` says which were not taken and why; `cut` why there may be more.

    `admitted` is what admission made of it. `stale`: past its lifetime, or the server said that it `changed`; a new one
    is being read. `error`: why the last attempt to read it came to nothing. `listed_ns` is on the monotonic clock.
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
    """A server as it stands now. `circuit` is `closed`, `open` (left alone for `retry_in_s`) or `half_open`; `reason`
    says why it can't be used, empty when it can. `command` is what was, or would be, started for a stdio server.
    `again_s`: after this many seconds `reason` may be another with nothing having happened here."""

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
    last_error: str = ""
    command: tuple[str, ...] = ()
    again_s: float | None = None
