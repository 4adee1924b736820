"""What a call came to: shaped, its artifacts stored, and its end in the record.

Rules:
1. Records are bounded: names and codes are cut, results shaped, and media are artifacts.
2. Whatever ends counts in the budgets (`core.decide.budgets`), and every end says what its step's has come to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.models import Activation, Block, Outcome
from bundle_router.core.models.artifacts import Stored
from bundle_router.core.records.call_records import CallFinished, ShapedSize
from bundle_router.core.tools.meta_tools.definitions import READERS
from bundle_router.core.tools.shaping import Blob, Part, Shaped, is_small, shape
from bundle_router.core.tools.transport.pass_through import Client, ServerReply
from bundle_router.core.tools.transport.tool_servers import Scope
from bundle_router.dataclass import dataclass, replace
from bundle_router.engine.arguments import MAX_NAME, Arguments, shortened
from bundle_router.engine.flow import EnginePorts
from bundle_router.engine.open_runs import OpenRun
from bundle_router.engine.reuse import CallOutcome
from bundle_router.engine.surface import RunState
from bundle_router.errors import CorruptRun, StorageError

MAX_CODE: Final = 100
Joined = tuple[tuple[str, str], ...]
"""Tools that joined the array, each with the bundle it was asked for in the name of."""
INLINE_CHARS: Final = 32_768
"""Results up to this size are shaped on the event loop; larger ones, and media, in a thread."""
MAY_HAVE_HAPPENED: Final[frozenset[Outcome]] = frozenset(("timeout", "unavailable", "cancelled", "unknown"))
"""Ends that leave open whether the tool did what it was asked."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a call came to. Artifacts hold media and full results."""

    outcome: Outcome
    """`ok`, or how the call ended instead."""
    text: str
    """What the model is to see, errors included."""
    code: str = ""
    """Why, where the outcome is not `ok`: a denial's code, or the tool's own word."""
    artifacts: tuple[Stored, ...] = ()
    """Media and whole results that were stored."""
    call_id: str = ""
    """The id of its record; empty where it has none."""
    decision_id: str = ""
    """The decision that it was judged under."""
    tool: str = ""
    """The canonical name of the tool that was meant."""
    elapsed_ms: float = 0.0
    """Milliseconds from its beginning to its end."""
    joined: tuple[str, ...] = ()
    """Deferred tools that are in the array from now on: ask for it again before the model's next turn."""
    parts: tuple[Part, ...] = ()
    """The text in pieces where a resource came within the result, for clients that take such; else empty."""
    cached_from: str = ""
    """The call whose recorded result this is."""
    flags: tuple[str, ...] = ()
    """What was noticed (`looks_like_error`: a failure that comes as a success)."""
    retryable: bool = False
    """Whether making the same call again may help and can do no harm."""
    whole: tuple[Block, ...] | None = None
    """The result as it came, where that was asked for."""
    answer: ServerReply | None = None
    """The server's own, as it came: where the operator passes it on to a client that was named with the call."""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values, without what only this process can use (`parts`, `whole`, `answer`)."""
        row = {name: getattr(self, name) for name in _PLAIN}
        return {**row, "artifacts": [asdict(one) for one in self.artifacts], **{n: list(row[n]) for n in _LISTS}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Result:
        """Return the result that `to_json` gave. Raises KeyError or TypeError for what is not one."""
        row = {name: value[name] for name in _PLAIN} | {name: tuple(value[name]) for name in _LISTS}
        return cls(**row, artifacts=tuple(Stored(**one) for one in value["artifacts"]))


_LISTS: Final = ("joined", "flags")
_PLAIN: Final = (
    "outcome", "text", "code", "call_id", "decision_id", "tool", "elapsed_ms", "cached_from", "retryable", *_LISTS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call as it was asked for. `via` names the meta-tool it came through; `joins`: whether a deferred tool joins the
    array when it is called; `client` is who is to have the server's own answer, where that is passed on; `key` makes it
    happen once, with `digest` for what it is asked; `whole`: the unshaped result is wanted; `asked_ns` is when it was
    asked for, before its server was made ready."""

    name: str
    arguments: Arguments
    asked_ns: int
    via: str = ""
    joins: bool = True
    client: Client | None = None
    key: str = ""
    digest: str = ""
    whole: bool = False

    def with_arguments(self, arguments: Arguments) -> CallRequest:
        return self if arguments is self.arguments else replace(self, arguments=arguments)


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """A call that passed exposure, policy and validation, and whose `call.started` is on disk; until then it has no id.
    `joined` is how it changed the array when it began; `attempt` counts from 1 where it has a key; `idempotent`: making
    it again does no harm; `ready_ms` is what making its server ready took before."""

    call_id: str
    tool: str
    bundle: str
    request: CallRequest
    state: RunState
    folder: str
    scope: Scope
    started_ns: int
    joined: Joined = ()
    attempt: int = 1
    idempotent: bool = False
    ready_ms: float = 0.0


def joined_after(activation: Activation, asked: Iterable[tuple[str, Iterable[str]]]) -> Joined:
    """Return what is new in an activation after tools of bundles were asked for."""
    before = frozenset(_asked_for(activation))
    for bundle, tools in asked:
        activation = sticky_set.ask_for(activation, bundle, tools)
    return tuple(pair for pair in _asked_for(activation) if pair not in before)


def _asked_for(activation: Activation) -> Iterator[tuple[str, str]]:
    return ((entry.id, tool.name) for entry in activation.entries for tool in entry.tools)


def recordable(name: object) -> str:
    """Return a tool name that can be recorded: an agent may ask for anything."""
    text = name if isinstance(name, str) else f"<{type(name).__name__}>"
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}…"


async def shape_blocks(ports: EnginePorts, max_chars: int, blocks: Sequence[Block]) -> Shaped:
    """Return what the blocks are to the model. Off the event loop where that takes a while."""
    if is_small(blocks, INLINE_CHARS):
        return shape(blocks, max_chars, ports.describe)
    shaped: Shaped = await ports.in_thread(lambda: shape(blocks, max_chars, ports.describe))
    return shaped


async def store(run: OpenRun, blobs: Sequence[Blob]) -> tuple[Stored, ...]:
    """Store the artifacts of a result, or of arguments, with the run."""
    if not blobs:
        return ()
    return await asyncio.to_thread(lambda: tuple(_kept(run, blob) for blob in blobs))


def _kept(run: OpenRun, blob: Blob) -> Stored:
    stored = run.artifacts.put(blob.data, claimed_type=blob.claimed_type, name=blob.name)
    return replace(stored, role=blob.role)


def ended_by(ended: BaseException) -> tuple[Outcome, str]:
    """Return the outcome and the code of what came to no end by itself."""
    if isinstance(ended, asyncio.CancelledError):
        return "cancelled", "cancelled"
    return "tool_error", "storage" if isinstance(ended, StorageError | CorruptRun) else "internal"


def finish_call(
    ports: EnginePorts, run: OpenRun, call: AdmittedCall, outcome: CallOutcome, *, refused: bool = False, wait_s: float
) -> Result:
    """Record the end of a call and return what it came to. The caller holds the run's lock. `refused`: it was not
    made, so that its arguments are kept by their beginning alone. A call without an id is given that of this record:
    nothing began it."""
    elapsed_ms = max(0.0, (ports.clock.monotonic_ns() - call.started_ns) / 1e6 - outcome.queued_ms)

    def record_of(call_id: str) -> CallFinished:
        ended = call if call.call_id else replace(call, call_id=call_id)
        return _finished(ports, run, ended, outcome, elapsed_ms, refused=refused)

    record = run.append_end(record_of, wait_s=wait_s)
    return result_of(record, outcome, idempotent=call.idempotent)


def _finished(
    ports: EnginePorts, run: OpenRun, call: AdmittedCall, outcome: CallOutcome, elapsed_ms: float, *, refused: bool
) -> CallFinished:
    """Return the record of a call's end, as the run stands now."""
    shaped = outcome.shaped
    joined = (*call.joined, *outcome.joined, *_readers(run, call, shaped))
    fields = call_fields(ports, run, call)
    if refused:
        fields["arguments"] = shortened(fields["arguments"])
    return CallFinished(
        **fields,
        outcome=outcome.outcome,
        code=recordable(outcome.code)[:MAX_CODE],
        result=None if outcome.outcome == "cancelled" else shaped.text,
        artifacts=outcome.stored,
        shaped=ShapedSize(shaped.original_bytes, shaped.kept_bytes, shaped.rule, tuple(shaped.flags)),
        joined=joined,
        elapsed_ms=round(elapsed_ms, 3),
        ready_ms=round(call.ready_ms + outcome.queued_ms, 3),
        cached_from=outcome.source,
    )


def result_of(
    record: CallFinished, outcome: CallOutcome | None = None, *, idempotent: bool, again: bool = False
) -> Result:
    """Return the result that a record tells of; `again`: as that of a call that was made before. `outcome` is what the
    call came to here, with what no record holds."""
    return Result(
        outcome=record.outcome,
        text=record.result or "",
        code=record.code,
        artifacts=record.artifacts,
        call_id=record.call_id,
        decision_id=record.decision_id,
        tool=record.name,
        elapsed_ms=record.elapsed_ms,
        joined=tuple(tool for _, tool in record.joined),
        parts=outcome.shaped.parts if outcome is not None else (),
        cached_from=(record.cached_from or record.call_id) if again else record.cached_from,
        flags=record.shaped.flags if record.shaped is not None else (),
        retryable=record.outcome == "busy" or (idempotent and record.outcome in MAY_HAVE_HAPPENED),
        whole=outcome.whole if outcome is not None else None,
        answer=outcome.answer if outcome is not None else None,
    )


def _readers(run: OpenRun, call: AdmittedCall, shaped: Shaped) -> Joined:
    """With the first result that can be read on, the tools that read it join the array."""
    if not call.request.joins or not any(_is_readable(blob) for blob in shaped.blobs):
        return ()
    activation = run.fold.activation(call.state.decided.branch)
    known = {tool for _, tool in _asked_for(activation)}
    return tuple(pair for pair in joined_after(activation, ((call.bundle, READERS),)) if pair[1] not in known)


def _is_readable(blob: Blob) -> bool:
    return blob.role == "full_result" or blob.facts.mime_type.startswith(("text/", "application/json"))


def call_fields(ports: EnginePorts, run: OpenRun, call: AdmittedCall) -> dict[str, Any]:
    """Return what both records of a call say."""
    server, _, short = call.tool.partition(".")
    return {
        "time": ports.clock.now(),
        "monotonic_ns": ports.clock.monotonic_ns(),
        "run_id": run.id,
        "call_id": call.call_id,
        "decision_id": call.state.decided.id,
        "server": server,
        "tool": short,
        "bundle": call.bundle,
        "via": call.request.via,
        "arguments": call.request.arguments.text,
        "key": call.request.key,
        "branch": call.state.decided.branch,
        "attempt": call.attempt,
    }
