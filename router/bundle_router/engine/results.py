"""The arguments of a call (read, bound, filled in) and its result (shaped, artifacts stored, end recorded).

Rules:
1. Records are bounded: names and codes are cut, results are shaped, and media are artifacts.
2. Every end counts in the budgets (`core.decide.budgets`) and says what the step's calls have come to.
3. An artifact's handle in the arguments is replaced by the bytes or the file it names; only artifacts of the run and
   its ancestors count. Bytes in the arguments are recorded as artifacts.
4. A tool that wants a path gets the path of a read-only copy, which is deleted when the call has ended. Only tools on
   this machine get one: a server elsewhere can't read it, and learns nothing of our folders.
5. The arguments are unusable, and the tool is not called, if an artifact is missing, unreadable or too large, or a
   path can't be given.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bundle_router.core.catalog import Server
from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.decide.budgets import HEAD, shorten_arguments
from bundle_router.core.models import Activation, Block, Outcome
from bundle_router.core.models.artifacts import Artifact
from bundle_router.core.models.canonical import digest, encode
from bundle_router.core.records.call_records import CallFinished, ShapedSize
from bundle_router.core.tools.artifact_handles import PREFIX, Handle, encoded, file_name, fill_arguments, handles_in
from bundle_router.core.tools.meta_tools.definitions import READERS
from bundle_router.core.tools.meta_tools.resolving import resolve
from bundle_router.core.tools.shaping import Blob, Part, ShapedResult, is_small, shape
from bundle_router.core.tools.shaping.references import LONG, References
from bundle_router.core.tools.transport.pass_through import Client, ServerReply
from bundle_router.core.tools.transport.tool_servers import Scope
from bundle_router.dataclass import dataclass, replace
from bundle_router.engine.flow import EnginePorts
from bundle_router.engine.open_runs import OpenRun
from bundle_router.engine.reuse import CallOutcome
from bundle_router.engine.surface import RunState
from bundle_router.errors import CorruptRun, RequestError, StorageError
from bundle_router.ports import Redactor, Scratch

MAX_NAME: Final = 200
MAX_KEY: Final = 200
"""Characters of a name or a reason in a record."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call. `text` is recorded. `wrong` is the code, and the end of a sentence that begins "The
    arguments of … ", where they can't be used. `asked` is the value before artifact handles in it were replaced;
    `files` are the paths that replaced some. `blobs` are the bytes that `text` names by handle; they are stored when
    the call begins."""

    value: Mapping[str, Any]
    text: str
    wrong: tuple[str, str] | None = None
    asked: Mapping[str, Any] | None = None
    files: tuple[str, ...] = ()
    blobs: tuple[Blob, ...] = ()


def read_arguments(redactor: Redactor, arguments: Mapping[str, Any] | str, max_bytes: int) -> Arguments:
    """Return the arguments as an object and as the record's text, with secrets removed by name and by shape. Also takes
    an object as JSON text, which some providers send."""
    if isinstance(arguments, str):
        if len(arguments) > max_bytes:
            return _too_large(redactor, arguments, max_bytes)
        try:
            arguments = json.loads(arguments or "{}", parse_constant=_no_constant)
        except (ValueError, RecursionError) as wrong:
            return _not_json(wrong)
    if not isinstance(arguments, dict | Mapping):  # the first is quick to tell
        kind = type(arguments).__name__
        return Arguments({}, encode({"not_an_object": kind}), ("not_an_object", "must be an object, with its names."))
    value = dict(arguments)
    try:
        text = encode(value)
    except (TypeError, ValueError, RecursionError) as wrong:
        return _not_json(wrong, sorted(str(name)[:MAX_NAME] for name in list(value)[:50]))
    if len(text) > max_bytes:
        return _too_large(redactor, text, max_bytes)
    redacted = redactor.redact_value(value)
    return Arguments(value, text if redacted is value else encode(redacted))


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _not_json(wrong: Exception, names: list[str] | None = None) -> Arguments:
    reason = "they are nested too deep" if isinstance(wrong, RecursionError) else str(wrong)[:MAX_NAME]
    text = encode({"not_json": reason} | ({"names": names} if names is not None else {}))
    return Arguments({}, text, ("not_json", f"are not JSON: {reason}."))


def _too_large(redactor: Redactor, text: str, max_bytes: int) -> Arguments:
    # Redacted before it is cut: half a secret is not recognised as one.
    head = redactor.redact(text[: 16 * HEAD])[:HEAD]
    kept = encode({"too_large": len(text), "digest": digest(text), "head": head})
    return Arguments({}, kept, ("too_large", f"are {len(text):,} bytes, at most {max_bytes:,} are taken."))


# --- artifacts -----------------------------------------------------------------------------------------------------

INLINE_CHARS: Final = 32_768
"""Arguments and results of up to this size are processed on the event loop; larger ones, and media, in a thread."""
FetchArtifact = Callable[[str], bytes]
"""Returns an artifact that the run may use, by digest. Raises KeyError, CorruptRun, StorageError."""


class _Unusable(Exception):
    """The arguments can't be used: the code, and the end of a sentence that begins "The arguments of … "."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


def may_hold_handles(arguments: Arguments) -> bool:
    """Return whether the arguments may contain an artifact's handle."""
    return arguments.wrong is None and PREFIX in arguments.text


@asynccontextmanager
async def with_artifacts(
    ports: EnginePorts, state: RunState, artifact: FetchArtifact, name: str, arguments: Arguments
) -> AsyncIterator[Arguments]:
    """Give the arguments with bytes or paths in place of handles, where the tool's schema asks for them. What is
    recorded does not change."""
    cards = state.catalog.cards
    card = cards.get(resolve(name, cards, state.surface.canonical).name)
    found = handles_in(arguments.value, card.input_schema()) if card is not None else ()
    if card is None or not found:
        yield arguments
        return
    scratch = ports.scratch() if ports.scratch is not None else None
    filler = ArtifactFiller(ports, state, artifact, state.catalog.servers[card.server], scratch)
    limit = state.catalog.settings.limits.max_result_bytes
    try:
        yield await asyncio.to_thread(_fill, filler, arguments, found, limit)
    finally:
        if scratch is not None:
            scratch.close()


async def without_payloads(ports: EnginePorts, arguments: Arguments) -> Arguments:
    """Return the arguments with artifacts in place of bytes (base64, `data:` URIs) in the recorded text. The tool gets
    them unchanged. The artifacts are stored when the call begins; a refused call stores none."""
    if arguments.wrong is not None or len(arguments.text) < LONG:
        return arguments
    if len(arguments.text) < INLINE_CHARS:
        return _without_blobs(ports, arguments)
    return await asyncio.to_thread(_without_blobs, ports, arguments)


def _without_blobs(ports: EnginePorts, arguments: Arguments) -> Arguments:
    references = References(ports.describe)
    value = references.value(json.loads(arguments.text))
    return replace(arguments, text=encode(value), blobs=references.blobs) if references.blobs else arguments


@dataclass(frozen=True, slots=True)
class ArtifactFiller:
    """Replaces an artifact's handle in a call's arguments."""

    ports: EnginePorts
    state: RunState
    artifact: FetchArtifact
    server: Server
    scratch: Scratch | None

    def read(self, handle: Handle) -> bytes:
        uri = f"{PREFIX}{handle.sha256}"
        try:
            return self.artifact(handle.sha256)
        except KeyError:
            raise _Unusable("not_found", f"name {uri}, which this run does not have.") from None
        except (CorruptRun, StorageError) as trouble:
            self.ports.diagnostics.event("error", "artifact.unread", run_id=self.state.run_id, uri=uri, error=trouble)
            raise _Unusable("storage", f"name {uri}, which can't be read.") from None

    def fill(self, handle: Handle, data: bytes) -> str:
        """Return the text that replaces the handle."""
        mime_type = self.ports.describe(data).mime_type
        if handle.want != "path":
            return encoded(data, handle.want, mime_type)
        if self.scratch is None or not self.server.traits.here:
            what = f"give {PREFIX}… where a path is wanted, and server {self.server.name!r} is not on this machine"
            raise _Unusable("no_path", f"{what}: it can't read the file. Give it where content is wanted instead.")
        within = str(Path(self.state.root, self.server.files)) if self.server.files is not None else ""
        try:
            return self.scratch.put(file_name(handle.sha256, mime_type), data, within=within)
        except StorageError as trouble:
            self.ports.diagnostics.event("error", "artifact.not_handed", run_id=self.state.run_id, error=trouble)
            raise _Unusable("storage", "name an artifact that can't be put into a file.") from None


def _fill(filler: ArtifactFiller, arguments: Arguments, handles: tuple[Handle, ...], max_bytes: int) -> Arguments:
    texts: dict[tuple[str | int, ...], str] = {}
    total = 0
    try:
        for handle in handles:
            data = filler.read(handle)
            total += len(data)
            if total > max_bytes:
                raise _Unusable("too_large", f"stand for over {max_bytes:,} bytes of artifacts.")
            texts[handle.place] = filler.fill(handle, data)
    except _Unusable as wrong:
        return replace(arguments, wrong=(wrong.code, wrong.sentence))
    files = dict.fromkeys(texts[handle.place] for handle in handles if handle.want == "path")
    return replace(arguments, value=fill_arguments(arguments.value, texts), asked=arguments.value, files=tuple(files))


def check_key(redactor: Redactor, key: object) -> None:
    """Check the key of a call. Raises RequestError for an invalid key, and for one that looks like a secret: it is
    recorded."""
    if not isinstance(key, str) or len(key) > MAX_KEY or redactor.redact(key) != key:
        raise RequestError(
            f"a call's key is a text of at most {MAX_KEY} characters that does not look like a secret",
            advice="records keep it as it is: use other words for it",
        )


def keyed_digest(nonce: str, arguments: Mapping[str, Any] | str, key: str | None) -> str:
    """Return the digest of a call's raw arguments, keyed with the run's nonce; empty for a call without a key."""
    if not key:
        return ""
    try:
        text = encode(json.loads(arguments or "{}") if isinstance(arguments, str) else dict(arguments))
    except (TypeError, ValueError, RecursionError):  # refused later on, and a refused call binds no key
        text = repr(arguments)
    return hmac.new(nonce.encode("utf-8"), text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class CheckedArguments:
    """What is wrong with a call's arguments, and the tool that they were checked for."""

    tool: str
    problems: Sequence[str] = ()


async def check_arguments(ports: EnginePorts, state: RunState, name: str, arguments: Arguments) -> CheckedArguments:
    """Check the arguments against the schema of the tool that the name means now. Holds no lock, since a large value
    takes long. A call that is refused for another reason is not checked."""
    resolved = resolve(name, state.exposed(), state.surface.canonical)
    tool = resolved.name
    if not resolved.known or arguments.wrong is not None:
        return CheckedArguments(tool)
    server, _, short = tool.partition(".")
    sessions = ports.sessions[state.catalog.servers[server].transport]
    return CheckedArguments(tool, await sessions.check_arguments(server, short, arguments.value))


MAX_CODE: Final = 100
Joined = tuple[tuple[str, str], ...]
"""Tools that joined the array, each with the bundle that it was asked for through."""
MAY_HAVE_HAPPENED: Final[frozenset[Outcome]] = frozenset(("timeout", "unavailable", "cancelled", "unknown"))
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
    """The text in pieces where the result contains a resource, for clients that take pieces; else empty."""
    cached_from: str = ""
    """The earlier call that this result was recorded for."""
    flags: tuple[str, ...] = ()
    """Observations about the result (`looks_like_error`: a failure that was reported as a success)."""
    retryable: bool = False
    """Whether repeating the call may help and does no harm."""
    whole: tuple[Block, ...] | None = None
    """The unshaped result, where the call asked for it."""
    answer: ServerReply | None = None
    """The server's own answer, where the operator passes it on to the client that made the call."""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values, without the fields that are of use in this process alone (`parts`, `whole`,
        `answer`)."""
        row = {name: getattr(self, name) for name in _PLAIN}
        return {**row, "artifacts": [asdict(one) for one in self.artifacts], **{n: list(row[n]) for n in _LISTS}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Result:
        """Return the result that `to_json` wrote. Raises KeyError or TypeError for anything else."""
        row = {name: value[name] for name in _PLAIN} | {name: tuple(value[name]) for name in _LISTS}
        return cls(**row, artifacts=tuple(Artifact(**one) for one in value["artifacts"]))


_LISTS: Final = ("joined", "flags")
_PLAIN: Final = (
    "outcome", "text", "code", "call_id", "decision_id", "tool", "elapsed_ms", "cached_from", "retryable", *_LISTS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call as it was requested. `via`: the meta-tool it came through. `joins`: whether a called deferred tool joins
    the array. `client`: who gets the server's own answer, where that is passed on. `key` makes the call happen once;
    `digest` identifies its contents. `whole`: keep the unshaped result. `asked_ns`: when it was requested, before
    its server was made ready."""

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
    """A call that passed exposure, policy and validation, and whose `call.started` is on disk; before that it has no
    id. `joined` is how the array changed when it began. `attempt` counts from 1 for a call with a key. `idempotent`:
    making it again does no harm. `ready_ms` is the time that making its server ready took before."""

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


def joined_after(state: RunState, activation: Activation, requested: Iterable[tuple[str, Iterable[str]]]) -> Joined:
    """Return the tools that join the array when tools of bundles are asked for, as far as the step has room. The
    router's own tools have no card and take no room."""
    before, cards = frozenset(_asked_for(activation)), state.catalog.cards
    for bundle, tools in requested:
        new = [tool for tool in tools if (bundle, tool) not in before]
        fitting = {card.name for card in state.room(activation).fitting(cards[tool] for tool in new if tool in cards)}
        fits = [tool for tool in new if tool in fitting or "." not in tool]
        activation = sticky_set.ask_for(activation, bundle, fits)
    return tuple(pair for pair in _asked_for(activation) if pair not in before)


def _asked_for(activation: Activation) -> Iterator[tuple[str, str]]:
    return ((entry.id, tool.name) for entry in activation.entries for tool in entry.tools)


def recordable_name(name: object) -> str:
    """Return a tool name that can be recorded, since an agent may ask for anything."""
    text = name if isinstance(name, str) else f"<{type(name).__name__}>"
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}…"


async def shape_blocks(
    ports: EnginePorts, max_chars: int, blocks: Sequence[Block], *, release: bool = False
) -> ShapedResult:
    """Return the blocks shaped for the model, large ones off the event loop. `release`: nobody needs them any more."""
    if is_small(blocks, INLINE_CHARS):
        return shape(blocks, max_chars, ports.describe)
    count = sys.getrefcount if release else None
    shaped: ShapedResult = await ports.in_thread(lambda: shape(blocks, max_chars, ports.describe, count))
    return shaped


async def store(run: OpenRun, blobs: Sequence[Blob]) -> tuple[Artifact, ...]:
    """Store the artifacts of a result, or of arguments, with the run."""
    if not blobs:
        return ()
    return await asyncio.to_thread(lambda: tuple([blob.stored_as(run.artifacts.put(blob.data)) for blob in blobs]))


def ended_by(error: BaseException) -> tuple[Outcome, str]:
    """Return the outcome and the code of a call that an exception ended."""
    if isinstance(error, asyncio.CancelledError):
        return "cancelled", "cancelled"
    return "tool_error", "storage" if isinstance(error, StorageError | CorruptRun) else "internal"


def finish_call(
    ports: EnginePorts, run: OpenRun, call: AdmittedCall, outcome: CallOutcome, wait_s: float, *, refused: bool = False
) -> Result:
    """Record the end of a call and return its result. The caller holds the run's lock. `refused`: the call was not
    made, so only the beginning of its arguments is kept. A call without an id gets this record's."""
    elapsed_ms = max(0.0, (ports.clock.monotonic_ns() - call.started_ns) / 1e6 - outcome.queued_ms)

    def record_of(call_id: str) -> CallFinished:
        ended = call if call.call_id else replace(call, call_id=call_id)
        return _finished_record(ports, run, ended, outcome, elapsed_ms, refused=refused)

    record = run.append_end(record_of, wait_s=wait_s)
    return result_of(record, outcome, idempotent=call.idempotent)


def _finished_record(
    ports: EnginePorts, run: OpenRun, call: AdmittedCall, outcome: CallOutcome, elapsed_ms: float, *, refused: bool
) -> CallFinished:
    """Return the record of a call's end, under the run's present state."""
    shaped = outcome.shaped
    joined = (*call.joined, *outcome.joined, *_readers(run, call, shaped))
    fields = call_fields(ports, run, call)
    if refused:
        fields["arguments"] = shorten_arguments(fields["arguments"])
    return CallFinished(
        **fields,
        outcome=outcome.outcome,
        code=recordable_name(outcome.code)[:MAX_CODE],
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
    """Return the result that a record describes; `again`: as the result of an earlier call. `outcome` adds what no
    record holds, where the call was made here."""
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
    """Return the tools that read artifacts; they join the array with the first result that has more to read."""
    kinds = [blob.facts.mime_type for blob in shaped.blobs if blob.role != "full_result"]
    has_more = len(kinds) < len(shaped.blobs) or any(kind.startswith(("text/", "application/json")) for kind in kinds)
    if not call.request.joins or not has_more:
        return ()
    activation = run.fold.activation(call.state.decided.branch)
    known = {tool for _, tool in _asked_for(activation)}
    joined = joined_after(call.state, activation, ((call.bundle, READERS),))
    return tuple(pair for pair in joined if pair[1] not in known)


def call_fields(ports: EnginePorts, run: OpenRun, call: AdmittedCall) -> dict[str, Any]:
    """Return the fields that both records of a call have."""
    server, _, short = call.tool.partition(".")
    return {
        "time": ports.clock.now(),
        "monotonic_ns": ports.clock.monotonic_ns(),
        "run_id": run.id,
        "call_id": call.call_id,
        "decision_id": call.state.decided.decision.decision_id,
        "server": server,
        "tool": short,
        "bundle": call.bundle,
        "via": call.request.via,
        "arguments": call.request.arguments.text,
        "key": call.request.key,
        "branch": call.state.decided.branch,
        "attempt": call.attempt,
    }
