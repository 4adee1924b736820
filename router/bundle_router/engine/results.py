"""The result of a call: shaped, its artifacts stored, its end recorded.

Rules:
1. Records are bounded: names and codes are cut, results are shaped, and media are artifacts.
2. Every end counts in the budgets (`core.decide.budgets`) and says what the step's calls have come
   to.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.decide.budgets import shorten_arguments
from bundle_router.core.exposure.meta_tools.definitions import READERS
from bundle_router.core.records.call_records import CallFinished, CallStarted, ShapedSize
from bundle_router.core.results.reusable_results import may_repeat
from bundle_router.core.results.shaping import Blob, Part, ShapedResult, is_small, shape
from bundle_router.core.servers.transport.pass_through import Client, ServerReply, fits
from bundle_router.core.servers.transport.tool_servers import CallOutcome, Scope
from bundle_router.core.values import Activation, Block, Outcome
from bundle_router.core.values.artifacts import Artifact
from bundle_router.core.values.canonical import budget_left, time_text
from bundle_router.engine.arguments import INLINE_CHARS, MAX_NAME, Arguments
from bundle_router.engine.engine_ports import EnginePorts
from bundle_router.engine.run_records import OpenRun
from bundle_router.engine.surface import RunState
from bundle_router.errors import CorruptRun, StorageError
from bundle_router.ports import Clock, Redactor

MAX_CODE: Final = 100
Joined = tuple[tuple[str, str], ...]
"""Tools that joined the array, each with the bundle that it was asked for through."""
MAY_HAVE_HAPPENED: Final[frozenset[Outcome]] = frozenset(
    ("timeout", "unavailable", "cancelled", "unknown")
)
"""Outcomes that leave open whether the tool did its work."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call. Artifacts hold its media and its full text."""

    outcome: Outcome
    """`ok`, or how else the call ended."""
    text: str
    """The text for the model, errors included."""
    code: str = ""
    """The reason of an outcome other than `ok`: a denial's code, or the tool's own."""
    artifacts: tuple[Artifact, ...] = ()
    """Media and full results that were stored."""
    call_id: str = ""
    """The id of the call's record; empty where it has none."""
    decision_id: str = ""
    """The decision that the call was judged under."""
    tool: str = ""
    """The canonical name of the called tool."""
    elapsed_ms: float = 0.0
    """Milliseconds that the call took."""
    joined: tuple[str, ...] = ()
    """Deferred tools that joined the array: get the array again before the model's next turn."""
    parts: tuple[Part, ...] = ()
    """The text in pieces where the result contains a resource, for clients that take pieces; else
    empty.
    """
    cached_from: str = ""
    """The earlier call that this result was recorded for."""
    flags: tuple[str, ...] = ()
    """Observations about the result (`looks_like_error`: a failure that was reported as a
    success).
    """
    retryable: bool = False
    """Whether repeating the call may help and does no harm."""
    whole: tuple[Block, ...] | None = None
    """The unshaped result, where the call asked for it."""
    answer: ServerReply | None = None
    """The server's own answer, where the operator passes it on to the client that made the call."""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    def to_json(self) -> dict[str, object]:
        """Return this as JSON values, without the fields that are of use in this process alone
        (`parts`, `whole`, `answer`).
        """
        row = {name: getattr(self, name) for name in _PLAIN}
        return {
            **row,
            "artifacts": [asdict(one) for one in self.artifacts],
            **{n: list(row[n]) for n in _LISTS},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Result:
        """Return the result that `to_json` wrote.

        Raises KeyError or TypeError for anything else.
        """
        row = {name: value[name] for name in _PLAIN} | {name: tuple(value[name]) for name in _LISTS}
        return cls(**row, artifacts=tuple(Artifact(**one) for one in value["artifacts"]))


_LISTS: Final = ("joined", "flags")
_PLAIN: Final = (
    "outcome",
    "text",
    "code",
    "call_id",
    "decision_id",
    "tool",
    "elapsed_ms",
    "cached_from",
    "retryable",
    *_LISTS,
)


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call as it was requested.

    `via`: the meta-tool it came through. `joins`: whether a called deferred tool joins the array.
    `client`: who gets the server's own answer, where that is passed on. `key` makes the call happen
    once; `digest` identifies its contents. `whole`: keep the unshaped result. `asked_ns`: when it
    was requested, before its server was made ready.
    """

    name: str
    arguments: Arguments
    asked_ns: int
    via: str = ""
    joins: bool = True
    client: Client | None = None
    key: str = ""
    digest: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """A call that passed exposure, policy and validation, and whose `call.started` is on disk
    (`started`); before that it has no id. `joined` is how the array changed when it began.
    `attempt` counts from 1 for a call with a key. `ready_ms` is the time that making its server
    ready took before.
    """

    tool: str
    bundle: str
    request: CallRequest
    state: RunState
    scope: Scope
    started_ns: int
    joined: Joined = ()
    attempt: int = 1
    ready_ms: float = 0.0
    started: CallStarted | None = None

    @property
    def call_id(self) -> str:
        return self.started.call_id if self.started is not None else ""


def joined_after(
    state: RunState, activation: Activation, requested: Iterable[tuple[str, Iterable[str]]]
) -> Joined:
    """Return the tools that join the array when tools of bundles are asked for, as far as the step
    has room. The router's own tools have no card and take no room.
    """
    before = frozenset(_asked_for(activation))
    cards = state.catalog.cards
    for bundle, tools in requested:
        new = [tool for tool in tools if (bundle, tool) not in before]
        fitting = {
            card.name
            for card in state.room(activation).fitting(cards[tool] for tool in new if tool in cards)
        }
        joining = [tool for tool in new if tool in fitting or "." not in tool]
        activation = sticky_set.ask_for(activation, bundle, joining)
    return tuple(pair for pair in _asked_for(activation) if pair not in before)


def _asked_for(activation: Activation) -> Iterator[tuple[str, str]]:
    return ((entry.id, tool.name) for entry in activation.entries for tool in entry.tools)


def recordable_name(name: object) -> str:
    """Return a tool name that can be recorded, since an agent may ask for anything."""
    text = name if isinstance(name, str) else f"<{type(name).__name__}>"
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}…"


MAX_LOOKED_AT: Final = 16 * MAX_NAME
"""Characters of a name in which secrets are looked for, before it is cut: half a secret is not
recognised as one.
"""


def called_name(redactor: Redactor, name: object) -> str:
    """Return the name of a tool that an agent asked for, bounded and without secrets.

    Done before anything takes the name apart: a record holds server and tool on their own, and
    half a secret is not recognised as one. `__` stands for a dot in the names that agents are
    shown.
    """
    text = name if isinstance(name, str) else recordable_name(name)
    head = text[:MAX_LOOKED_AT]
    clean = redactor.redact(head)
    dotted = clean.replace("__", ".")
    redacted = redactor.redact(dotted)
    if redacted != dotted:
        clean = redacted
    return recordable_name(clean)


async def shape_blocks(
    ports: EnginePorts,
    max_chars: int,
    blocks: Sequence[Block],
    *,
    release: bool = False,
    framed: bool = False,
) -> ShapedResult:
    """Return the blocks shaped for the model, large ones off the event loop.

    `release`: nobody needs them any more. `framed`: an untrusted server says it.
    """
    if is_small(blocks, INLINE_CHARS):
        return shape(blocks, max_chars, ports.describe, framed=framed)
    count = sys.getrefcount if release else None
    shaped: ShapedResult = await ports.in_thread(
        lambda: shape(blocks, max_chars, ports.describe, count, framed=framed)
    )
    return shaped


async def may_pass(ports: EnginePorts, answer: ServerReply) -> bool:
    """Return whether an answer is small enough to be passed on unchanged.

    A large one is looked at in a thread.
    """
    if budget_left(answer.result, INLINE_CHARS) >= 0:
        return fits(answer)
    fitting: bool = await ports.in_thread(lambda: fits(answer))
    return fitting


async def store(run: OpenRun, blobs: Sequence[Blob]) -> tuple[Artifact, ...]:
    """Store the artifacts of a result, or of arguments, with the run."""
    if not blobs:
        return ()
    return await asyncio.to_thread(
        lambda: tuple([blob.stored_as(run.artifacts.put(blob.data)) for blob in blobs])
    )


def ended_by(error: BaseException) -> tuple[Outcome, str]:
    """Return the outcome and the code of a call that an exception ended."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled", "cancelled"
    return "tool_error", "storage" if isinstance(error, StorageError | CorruptRun) else "internal"


def finish_call(
    ports: EnginePorts,
    run: OpenRun,
    call: AdmittedCall,
    outcome: CallOutcome,
    wait_s: float,
    *,
    refused: bool = False,
) -> Result:
    """Record the end of a call and return its result.

    The caller holds the run's lock. `refused`: the call was not made, so only the beginning of its
    arguments is kept. A call without an id gets this record's.
    """
    elapsed_ms = max(0.0, (ports.clock.monotonic_ns() - call.started_ns) / 1e6 - outcome.queued_ms)

    record_of = partial(_finished_record, ports.clock, run, call, outcome, elapsed_ms, refused)
    record = run.append_end(record_of, wait_s=wait_s)
    run.passing.pop(id(call.request), None)
    idempotent = record.outcome in MAY_HAVE_HAPPENED and may_repeat(call.state.catalog, call.tool)
    return result_of(record, outcome, idempotent=idempotent)


def _finished_record(
    clock: Clock,
    run: OpenRun,
    call: AdmittedCall,
    outcome: CallOutcome,
    elapsed_ms: float,
    refused: bool,
    place: str,
) -> CallFinished:
    """Return the record of a call's end, under the run's present state.

    `place` is the id of a call that has none.
    """
    shaped = outcome.shaped
    joined = (*call.joined, *outcome.joined, *_readers(run, call, shaped))
    if call.started is not None:
        fields = call.started.shared()
    else:
        fields = call_fields(call.state, call.request, call.tool, call.bundle)
        fields |= {"call_id": place, "attempt": call.attempt}
    if refused:
        fields["arguments"] = shorten_arguments(fields["arguments"])
    return CallFinished(
        **fields,
        time=time_text(clock.time_ns()),
        monotonic_ns=clock.monotonic_ns(),
        outcome=outcome.outcome,
        code=outcome.code and recordable_name(outcome.code)[:MAX_CODE],
        result=None if outcome.outcome == "cancelled" else shaped.text,
        artifacts=outcome.stored,
        shaped=ShapedSize(
            shaped.original_bytes, shaped.kept_bytes, shaped.rule, tuple(shaped.flags)
        ),
        joined=joined,
        elapsed_ms=round(elapsed_ms, 3),
        ready_ms=round(call.ready_ms + outcome.queued_ms, 3),
        cached_from=outcome.source,
    )


def result_of(
    record: CallFinished,
    outcome: CallOutcome | None = None,
    *,
    idempotent: bool,
    again: bool = False,
) -> Result:
    """Return the result that a record describes; `again`: as the result of an earlier call.

    `outcome` adds what no record holds, where the call was made here.
    """
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


def _readers(run: OpenRun, call: AdmittedCall, shaped: ShapedResult) -> Joined:
    """Return the tools that read artifacts; they join the array with the first result that has more
    to read.
    """
    kinds = [blob.facts.mime_type for blob in shaped.blobs if blob.role != "full_result"]
    has_more = len(kinds) < len(shaped.blobs) or any(
        kind.startswith(("text/", "application/json")) for kind in kinds
    )
    if not call.request.joins or not has_more:
        return ()
    activation = run.fold.activation(call.state.decided.branch)
    known = {tool for _, tool in _asked_for(activation)}
    joined = joined_after(call.state, activation, ((call.bundle, READERS),))
    return tuple(pair for pair in joined if pair[1] not in known)


def call_fields(state: RunState, request: CallRequest, tool: str, bundle: str) -> dict[str, Any]:
    """Return the fields that every record of a call has, beside its id."""
    server, _, short = tool.partition(".")
    return {
        "run_id": state.run_id,
        "decision_id": state.decided.decision.decision_id,
        "server": server,
        "tool": short,
        "bundle": bundle,
        "via": request.via,
        "arguments": request.arguments.text,
        "key": request.key,
        "branch": state.decided.branch,
    }
