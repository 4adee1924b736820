"""The second flow through a run: a tool is called.

Rules:
1. `call.started` is on disk before the effect, so a crash leaves evidence; `call.finished` before the result is
   returned, whatever the tool gave, and also when what it gave can't be shown or stored.
2. A call gets what its decision showed, as far as that still holds: the verdict runs again on the tool's canonical
   name, with fresh facts and under what its ancestors may have now. Nothing that improved since widens it.
3. Records are bounded. What a refused call carried is kept by size, digest and beginning.
4. What the calls of one step come to together is bounded (`router.core.budgets`), and every end says what it was.
5. What an agent can see fail comes back as a `Result`; a caller's mistake, and a log that can't be written, are raised.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from router.ancestry import Ceiling
from router.arguments import MAX_NAME, Arguments
from router.core import activation as sticky_set
from router.core import budgets
from router.core.catalog import Catalog
from router.core.decide import permitted_tools, plan_for
from router.core.exposure import waits
from router.core.folders import TOP, relative_folder
from router.core.metatools import READERS, Resolved, resolve, takes_nothing
from router.core.models import Activation, Block, Code, Facts, Outcome, Text
from router.core.records import CALL_SCHEMA
from router.core.reuse import Asked
from router.core.shaping import Blob, Part, Shaped, is_small, shape
from router.core.transport.passage import Answer, Client, fits, narrowed, passes
from router.errors import CorruptRun, RequestError, StorageError
from router.ports import RawResult, Scope, Stored
from router.results import Came
from router.run import Current, Deps, Run, on_disk

OUTDATED: Final = "the config changed since its last step was decided, so the step has to be routed again"
MAX_CODE: Final = 100
MAX_NAMED: Final = 20
"""Tools that a refusal names."""
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
    answer: Answer | None = None

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that passed exposure, policy and validation, and whose `call.started` is on disk. `arguments` is what is
    recorded of them, `asked` what the caller gave, where the tool gets something else for artifact handles (`given`,
    and `files`); `folder` is the step's, beneath the run's root; `via` names the meta-tool it came through; `joins`
    says whether the call may change the array, `joined` how it did when it began. `ready_ms` is what making its server
    ready took before: it may have had to be started, and its tools listed anew."""

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
    ready_ms: float = 0.0


# --- what a run may call now ---------------------------------------------------------------------------------------


def exposed_now(catalog: Catalog, facts: Facts, current: Current) -> dict[str, str]:
    """The tools of the current decision that are still permitted, each with the bundle that holds it.

    `facts` are fresh, with the ancestors' grants of now. What the decision did not show is not in it, even if it would
    be permitted by now: that takes another `route`.
    """
    if current.outdated:
        return {}
    ids = current.decision.bundle_ids
    shown = permitted_tools(catalog, current.facts, current.step, ids)
    if facts == current.facts:
        return shown
    still = permitted_tools(catalog, facts, current.step, ids)
    return {tool: bundle for tool, bundle in still.items() if tool in shown}


def why_not(catalog: Catalog, facts: Facts, current: Current, tool: str) -> tuple[Code, str]:
    """Why a tool is not exposed by the current decision: the first code of its best bundle, as `explain` would say."""
    holders = [bundle for bundle in catalog.bundles.values() if tool in bundle.tools]
    if not holders:
        return "unknown_bundle", "no bundle holds a tool of this name"
    if current.outdated:
        return "not_mapped", OUTDATED
    plan = plan_for(catalog, current.step, facts.grants)
    shown = set(current.decision.bundle_ids)
    first: tuple[Code, str] | None = None
    for bundle in sorted(holders, key=lambda b: b.id not in shown):
        verdict = plan.verdicts.of(bundle.id, facts)
        for row in verdict.refused:
            if row.tool == tool:
                first = first or (row.code, row.detail)
        if verdict.code is not None:
            first = first or (verdict.code, verdict.detail)
        elif tool in verdict.tools:
            if bundle.id in shown:
                return "not_mapped", "it became available after this step was decided: route the step again"
            return "not_mapped", f"bundle {bundle.id!r} holds it and is not shown at this step"
    return first or ("not_mapped", "no shown bundle holds it")


# --- admission -----------------------------------------------------------------------------------------------------


def admit_call(
    deps: Deps,
    catalog: Catalog,
    facts: Facts,
    ceiling: Ceiling,
    run: Run,
    names: Mapping[str, str],
    name: str,
    given: Arguments,
    *,
    via: str = "",
    joins: bool = True,
    client: Client | None = None,
    asked_ns: int | None = None,
) -> Admitted | Result:
    """Resolves, judges and validates a call and records its start; or records the refusal and returns it.

    `asked_ns` is when it was asked for, before its server was made ready (None: now).

    `via` names the meta-tool it came through. `joins`: whether a deferred tool joins the array when it is called.
    `client`: who is to have the server's own answer, where that is passed on.
    """
    started = deps.clock.monotonic_ns()
    asked = _name(name)
    with run.lock:
        current = run.current
        if current is None:
            raise RequestError(
                f"run {run.id!r} has no decision yet, so no tool is exposed", advice="call route() for its first step"
            )
        exposed = exposed_now(catalog, facts, current)
        meant = resolve(asked, exposed, names)
        tool = meant.name
        folder = relative_folder(run.root, current.step.workspace)
        admitted = Admitted(
            call_id=f"{run.id}.{run.log.next_seq}",
            decision_id=current.decision.decision_id,
            tool=tool,
            bundle=exposed.get(tool, ""),
            given=given.value,
            arguments=given.text,
            folder=folder or TOP,
            scope=Scope(run.id, current.step.principal, _listening(catalog, exposed, tool, client)),
            started_ns=started,
            ready_ms=0.0 if asked_ns is None else (started - asked_ns) / 1e6,
            via=via,
            joins=joins,
            asked=given.asked,
            files=given.files,
        )
        refused = spend(deps, catalog, run, admitted)
        if refused is not None:
            return refused
        refusal = _refusal(deps, catalog, facts, current, exposed, meant, given)
        if refusal is None and (folder is None or not ceiling.holds(folder)):
            refusal = _no_folder(current)
        if refusal is not None:
            outcome, code, text = refusal
            shaped = shape((Text(text),), catalog.settings.limits.max_result_chars, deps.describe)
            return finish_call(deps, run, admitted, outcome, code, shaped, ())
        activation = sticky_set.touch(run.activation, admitted.bundle)
        if joins:
            activation, joined = _with_called(catalog, activation, admitted)
            admitted = replace(admitted, joined=joined)
        run.log.append("calls", _call_record(deps, run, "call.started", admitted))
        run.activation = activation
        run.leases += 1
        return admitted


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
    return finish_call(deps, run, admitted, "budget", code, shaped, (), counts=False)


def _asked(admitted: Admitted) -> int:
    return hash((admitted.tool, admitted.arguments))


def _listening(catalog: Catalog, exposed: Mapping[str, str], tool: str, client: Client | None) -> Client | None:
    """The client, as far as the tool's server may know it; None where its results are not passed on."""
    if client is None or tool not in exposed:
        return None
    server = catalog.servers[tool.partition(".")[0]]
    return narrowed(client, server) if passes(server, "results") else None


def _with_called(catalog: Catalog, activation: Activation, admitted: Admitted) -> tuple[Activation, Joined]:
    """A deferred tool that is called joins the array, with its bundle's companions."""
    bundle = catalog.bundles[admitted.bundle]
    if not waits(catalog, bundle, admitted.tool):
        return activation, ()
    companions = [tool for tool in bundle.companions if waits(catalog, bundle, tool)]
    return ask_for(activation, ((bundle.id, (admitted.tool, *companions)),))


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


def _refusal(
    deps: Deps,
    catalog: Catalog,
    facts: Facts,
    current: Current,
    exposed: Mapping[str, str],
    meant: Resolved,
    given: Arguments,
) -> tuple[Outcome, str, str] | None:
    tool = meant.name
    if not meant.known:
        code, detail = why_not(catalog, facts, current, tool)
        outcome: Outcome = "unavailable" if code == "server_unavailable" else "denied"
        return outcome, code, f"{tool!r} is not available at this step ({code}: {detail}). {_hint(meant, exposed)}"
    if given.wrong is not None:
        kind, sentence = given.wrong
        return "invalid_arguments", kind, f"The arguments of {tool!r} {sentence}"
    server, _, short = tool.partition(".")
    wrong = deps.sessions[catalog.servers[server].transport].check_arguments(server, short, given.value)
    if wrong:
        card = catalog.cards.get(tool)
        schema = "" if card is None else "\nIt takes none." if takes_nothing(card) else f"\nIts schema: {card.schema}"
        return (
            "invalid_arguments",
            "invalid_arguments",
            f"The arguments of {tool!r} do not fit: {'; '.join(wrong)}.{schema}",
        )
    return None


def _hint(meant: Resolved, exposed: Mapping[str, str]) -> str:
    if meant.hint:
        return meant.hint
    some = list(exposed)[:MAX_NAMED]
    more = f" and {len(exposed) - len(some)} more" if len(exposed) > len(some) else ""
    return f"This step has: {', '.join(some) or 'no tools'}{more}."


def _no_folder(current: Current) -> tuple[Outcome, str, str]:
    return "denied", "policy_denied", f"The step's folder {current.step.workspace!r} is not open to it any more."


def _name(name: object) -> str:
    """A tool name that can be recorded: an agent may ask for anything."""
    text = name if isinstance(name, str) else f"<{type(name).__name__}>"
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}…"


# --- the call ------------------------------------------------------------------------------------------------------


async def perform(deps: Deps, catalog: Catalog, run: Run, admitted: Admitted) -> Result:
    """Carries out an admitted call: bounded, shaped, artifacts stored, and recorded whatever happens."""
    try:
        with _recorded(deps, run, admitted):
            came = await _came_to(deps, catalog, run, admitted)
            stored = await store(run, came.shaped)
        with run.lock:
            result = finish_call(deps, run, admitted, came.outcome, came.code, came.shaped, stored, source=came.source)
        await on_disk(run)
        return replace(result, answer=came.answer) if came.answer is not None and fits(came.answer) else result
    finally:
        run.release()


@contextlib.contextmanager
def _recorded(deps: Deps, run: Run, admitted: Admitted) -> Iterator[None]:
    """Records an end for a call that comes to none by itself: cancelled, its result not storable, or a defect."""
    try:
        yield
    except BaseException as ended:
        cancelled = isinstance(ended, asyncio.CancelledError)
        outcome: Outcome = "cancelled" if cancelled else "tool_error"
        code = "cancelled" if cancelled else "storage" if isinstance(ended, StorageError | CorruptRun) else "internal"
        try:
            with run.lock:
                finish_call(deps, run, admitted, outcome, code, Shaped.empty(), ())
        except StorageError as trouble:  # what ended the call is what its caller has to hear
            deps.diagnostics.event("error", "call.unrecorded", run_id=run.id, call_id=admitted.call_id, error=trouble)
        raise


async def _came_to(deps: Deps, catalog: Catalog, run: Run, admitted: Admitted) -> Came:
    """What the tool gave, shaped; or what it gave to the same call before, where the operator permits that."""

    async def work() -> Came:
        raw = await _carry_out(deps, catalog, run, admitted)
        return Came(raw.outcome, raw.code, await shape_blocks(deps, catalog, raw.blocks), answer=raw.answer)

    if deps.results is None:
        return await work()
    if admitted.scope.client is not None:
        # What a client has as it came may be a question to it, answered in the next call of the same arguments.
        return await deps.results.past(catalog, admitted.tool, work)
    is_local = catalog.servers[admitted.tool.partition(".")[0]].transport == "local"
    asked = Asked(
        tool=admitted.tool,
        arguments=admitted.given if admitted.asked is None else admitted.asked,
        principal=admitted.scope.principal,
        run_id=run.id,
        where=(run.root, admitted.folder) if is_local else (),
    )
    return await deps.results.through(catalog, asked, admitted.call_id, work)


async def _carry_out(deps: Deps, catalog: Catalog, run: Run, admitted: Admitted) -> RawResult:
    server, _, short = admitted.tool.partition(".")
    entry = catalog.servers[server]
    await on_disk(run)
    return await deps.sessions[entry.transport].call(
        server,
        short,
        admitted.given,
        workspace=run.root,
        within=admitted.folder,
        timeout_s=entry.timeout_s or catalog.settings.limits.call_timeout_s,
        scope=admitted.scope,
        files=admitted.files,
    )


async def shape_result(deps: Deps, catalog: Catalog, run: Run, raw: RawResult) -> tuple[Shaped, tuple[Stored, ...]]:
    """The result as the model sees it, and its artifacts, stored."""
    shaped = await shape_blocks(deps, catalog, raw.blocks)
    return shaped, await store(run, shaped)


async def shape_blocks(deps: Deps, catalog: Catalog, blocks: Sequence[Block]) -> Shaped:
    """What the blocks are to the model. Off the event loop where that takes a while."""
    max_chars = catalog.settings.limits.max_result_chars
    if is_small(blocks, INLINE_CHARS):
        return shape(blocks, max_chars, deps.describe)
    return await asyncio.to_thread(shape, blocks, max_chars, deps.describe)


async def store(run: Run, shaped: Shaped) -> tuple[Stored, ...]:
    """The artifacts of a result, stored with the run."""
    if not shaped.blobs:
        return ()
    return await asyncio.to_thread(lambda: tuple(_kept(run, blob) for blob in shaped.blobs))


def _kept(run: Run, blob: Blob) -> Stored:
    stored = run.artifacts.put(blob.data, claimed_type=blob.claimed_type, name=blob.name)
    return replace(stored, role=blob.role)


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
) -> Result:
    """Records the end of a call. The caller holds the run's lock. `source` is the call whose result is used again;
    `counts`: whether it is one in the step's budget."""
    joined = (*admitted.joined, *joined, *_readers(run, admitted, shaped))
    elapsed_ms = (deps.clock.monotonic_ns() - admitted.started_ns) / 1e6
    code = _name(code)[:MAX_CODE]
    if counts and run.current is not None and run.current.decision.decision_id == admitted.decision_id:
        answered = hash((outcome, code, shaped.text))
        run.spent = budgets.ended(run.spent, _asked(admitted), answered, shaped.original_bytes, elapsed_ms)
    record = _call_record(deps, run, "call.finished", admitted)
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


def _call_record(deps: Deps, run: Run, type_: str, admitted: Admitted) -> dict[str, Any]:
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
