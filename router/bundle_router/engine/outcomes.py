"""What a call came to: shaped, its artifacts stored, and its end in the record.

Rules:
1. Records are bounded: names and codes are cut, results shaped, and media are artifacts.
2. Whatever ends counts in the step's budget (`core.decide.budgets`), and every end says what that has come to.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.decide import budgets
from bundle_router.core.models import Activation, Block, Outcome, Text
from bundle_router.core.records.records import CALL_SCHEMA
from bundle_router.core.tools.meta_tools import READERS
from bundle_router.core.tools.shaping import Blob, Part, Shaped, is_small, shape
from bundle_router.core.tools.transport.passage import ServerReply
from bundle_router.engine.arguments import MAX_NAME, shortened
from bundle_router.engine.run import Deps, Run
from bundle_router.errors import CorruptRun, StorageError
from bundle_router.ports import RawResult, Scope, Stored

MAX_CODE: Final = 100
Joined = tuple[tuple[str, str], ...]
"""Tools that joined the array, each with the bundle it was asked for in the name of."""
INLINE_CHARS: Final = 32_768
"""Results up to this size are shaped on the event loop; larger ones, and media, in a thread."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a call came to. `text` is what the model should see, errors included; artifacts hold media and full results.

    `code` says why for an `outcome` other than `ok`: a denial code, or the tool's own word. `joined` names deferred
    tools that are in the array from now on: ask for it again before the model's next turn. `parts` is the text in
    pieces where a resource came within the result, for clients that take such; else empty. `cached_from` is the call
    whose result was used again instead of making this one. `flags` say what was noticed (`looks_like_error`: a failure
    that comes as a success). `answer` is the server's own, as it came: only where the
    operator passes its results on, to a client that was named with the call.
    """

    outcome: Outcome
    text: str
    code: str = ""
    artifacts: tuple[Stored, ...] = ()
    call_id: str = ""
    decision_id: str = ""
    tool: str = ""
    elapsed_ms: float = 0.0
    joined: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    cached_from: str = ""
    flags: tuple[str, ...] = ()
    answer: ServerReply | None = None

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that passed exposure, policy and validation, and whose `call.started` is on disk. `arguments` is what is
    recorded of them, `asked` what the caller gave, where the tool gets something else for artifact handles (`given`,
    and `files`); `blobs` are bytes that are recorded by their handles; `folder` is the step's, beneath the run's root;
    `via` names the meta-tool it came through; `joins` says whether the call may change the array, `joined` how it did
    when it began. `ready_ms` is what making its server ready took before: it may have had to be started, and its tools
    listed anew."""

    call_id: str
    decision_id: str
    tool: str
    bundle: str
    given: Mapping[str, Any]
    arguments: str
    folder: str
    scope: Scope
    started_ns: int
    via: str = ""
    joins: bool = True
    joined: Joined = ()
    asked: Mapping[str, Any] | None = None
    files: tuple[str, ...] = ()
    blobs: tuple[Blob, ...] = ()
    ready_ms: float = 0.0


def ask_for(activation: Activation, asked: Iterable[tuple[str, Iterable[str]]]) -> tuple[Activation, Joined]:
    """The activation after tools of bundles were asked for, and those that are new in it."""
    before = frozenset(_asked_for(activation))
    for bundle, tools in asked:
        activation = sticky_set.ask_for(activation, bundle, tools)
    return activation, tuple(pair for pair in _asked_for(activation) if pair not in before)


def _asked_for(activation: Activation) -> Iterator[tuple[str, str]]:
    return ((entry.id, tool.name) for entry in activation.entries for tool in entry.tools)


def _rows(joined: Joined) -> list[dict[str, str]]:
    return [{"bundle": bundle, "tool": tool} for bundle, tool in joined]


def recordable(name: object) -> str:
    """A tool name that can be recorded: an agent may ask for anything."""
    text = name if isinstance(name, str) else f"<{type(name).__name__}>"
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}…"


async def shape_result(deps: Deps, catalog: Catalog, run: Run, raw: RawResult) -> tuple[Shaped, tuple[Stored, ...]]:
    """The result as the model sees it, and its artifacts, stored."""
    shaped = await shape_blocks(deps, catalog, raw.blocks)
    return shaped, await store(run, shaped.blobs)


@lru_cache(maxsize=1)
def _shaping_thread(_process: int) -> ThreadPoolExecutor:
    """One large result at a time in a process: two threads at it would only take the interpreter from event loops."""
    return ThreadPoolExecutor(1, "bundle-router-shaping")


async def shape_blocks(deps: Deps, catalog: Catalog, blocks: Sequence[Block]) -> Shaped:
    """What the blocks are to the model. Off the event loop where that takes a while."""
    max_chars = catalog.settings.limits.max_result_chars
    if is_small(blocks, INLINE_CHARS):
        return shape(blocks, max_chars, deps.describe)
    thread = _shaping_thread(os.getpid())
    return await asyncio.get_running_loop().run_in_executor(thread, shape, blocks, max_chars, deps.describe)


async def store(run: Run, blobs: Sequence[Blob]) -> tuple[Stored, ...]:
    """The artifacts of a result, or of arguments, stored with the run."""
    if not blobs:
        return ()
    return await asyncio.to_thread(lambda: tuple(_kept(run, blob) for blob in blobs))


def _kept(run: Run, blob: Blob) -> Stored:
    stored = run.artifacts.put(blob.data, claimed_type=blob.claimed_type, name=blob.name)
    return replace(stored, role=blob.role)


def _asked(admitted: Admitted) -> int:
    return hash((admitted.tool, admitted.arguments))


def spend(deps: Deps, catalog: Catalog, run: Run, admitted: Admitted) -> Result | None:
    """Takes a call out of the step's budget; or records that there is none left for it, and gives what it comes to.
    The caller holds the run's lock."""
    limits = catalog.settings.limits
    over = budgets.over_budget(limits, run.spent, _asked(admitted))
    if over is None:
        run.spent = budgets.begun(run.spent)
        return None
    code, text = over
    shaped = shape((Text(text),), limits.max_result_chars, deps.describe)
    return finish_call(deps, run, admitted, "budget", code, shaped, (), counts=False, refused=True)


def ended_by(ended: BaseException) -> tuple[Outcome, str]:
    """The outcome and the code of what came to no end by itself."""
    if isinstance(ended, asyncio.CancelledError):
        return "cancelled", "cancelled"
    return "tool_error", "storage" if isinstance(ended, StorageError | CorruptRun) else "internal"


def finish_call(
    deps: Deps,
    run: Run,
    admitted: Admitted,
    outcome: Outcome,
    code: str,
    shaped: Shaped,
    stored: tuple[Stored, ...],
    *,
    joined: Joined = (),
    source: str = "",
    counts: bool = True,
    refused: bool = False,
) -> Result:
    """Records the end of a call. The caller holds the run's lock. `source` is the call whose result is used again;
    `counts`: whether it is one in the step's budget; `refused`: whether it never began."""
    joined = (*admitted.joined, *joined, *_readers(run, admitted, shaped))
    elapsed_ms = (deps.clock.monotonic_ns() - admitted.started_ns) / 1e6
    code = recordable(code)[:MAX_CODE]
    if counts and run.current is not None and run.current.decision.decision_id == admitted.decision_id:
        answered = hash((outcome, code, shaped.text))
        run.spent = budgets.ended(run.spent, _asked(admitted), answered, shaped.original_bytes, elapsed_ms)
    record = call_record(deps, run, "call.finished", admitted)
    record |= {"arguments": shortened(admitted.arguments)} if refused else {}
    record |= {
        "outcome": outcome,
        "code": code,
        "result": None if outcome == "cancelled" else shaped.text,
        "artifacts": [artifact_record(one) for one in stored],
        "shaped": {
            "original_bytes": shaped.original_bytes,
            "kept_bytes": shaped.kept_bytes,
            "rule": shaped.rule,
            "flags": list(shaped.flags),
        },
        "joined": _rows(joined),
        "elapsed_ms": round(elapsed_ms, 3),
        "ready_ms": round(admitted.ready_ms, 3),
        "spent": run.spent.to_json(),
        "cached": source != "",
        "cached_from": source or None,
    }
    run.log.append("calls", record)
    return Result(
        outcome=outcome,
        text=shaped.text,
        code=code,
        artifacts=stored,
        call_id=admitted.call_id,
        decision_id=admitted.decision_id,
        tool=admitted.tool,
        elapsed_ms=elapsed_ms,
        joined=tuple(tool for _, tool in joined),
        parts=shaped.parts,
        cached_from=source,
        flags=shaped.flags,
    )


def artifact_record(stored: Stored) -> dict[str, Any]:
    """What is recorded of an artifact: what its bytes are, and, where they say something, the tool's own words."""
    record = {
        "uri": stored.uri,
        "sha256": stored.sha256,
        "mime_type": stored.mime_type,
        "bytes": stored.bytes,
        "role": stored.role,
    }
    more = {
        "claimed_type": stored.claimed_type[:MAX_CODE],
        "name": stored.name[:MAX_NAME],
        "width": stored.width,
        "height": stored.height,
        "duration_s": stored.duration_s,
    }
    return record | {key: value for key, value in more.items() if value not in ("", None)}


def _readers(run: Run, admitted: Admitted, shaped: Shaped) -> Joined:
    """With the first result that can be read on, the tools that read it join the array."""
    if not admitted.joins or not any(_is_readable(blob) for blob in shaped.blobs):
        return ()
    known = {tool for _, tool in _asked_for(run.activation)}
    run.activation, joined = ask_for(run.activation, ((admitted.bundle, READERS),))
    return tuple(pair for pair in joined if pair[1] not in known)


def _is_readable(blob: Blob) -> bool:
    return blob.role == "full_result" or blob.facts.mime_type.startswith(("text/", "application/json"))


def call_record(deps: Deps, run: Run, type_: str, admitted: Admitted) -> dict[str, Any]:
    server, _, short = admitted.tool.partition(".")
    return {
        "schema": CALL_SCHEMA,
        "type": type_,
        "time": deps.clock.now(),
        "monotonic_ns": deps.clock.monotonic_ns(),
        "run_id": run.id,
        "call_id": admitted.call_id,
        "decision_id": admitted.decision_id,
        "server": server,
        "tool": short,
        "bundle": admitted.bundle,
        "via": admitted.via,
        "arguments": admitted.arguments,
    }
