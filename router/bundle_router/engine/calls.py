"""The second flow through a run: a tool is called.

Rules:
1. `call.started` is on disk before the effect, so a crash leaves evidence; `call.finished` before the result is
   returned, whatever the tool gave, and also when what it gave can't be shown or stored.
2. A call gets what its decision showed, as far as that still holds: the verdict runs again on the tool's canonical
   name, with fresh facts and under what its ancestors may have now. Nothing that improved since widens it.
3. Records are bounded. What a refused call carried is kept by size, digest and beginning.
4. What the calls of one step come to together is bounded (`core.decide.budgets`), and every end says what it was.
5. What an agent can see fail comes back as a `Result`; a caller's mistake, and a log that can't be written, are raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.models import Activation, Facts, Outcome, Text
from bundle_router.core.models.folders import TOP, relative_folder
from bundle_router.core.tools.exposure import as_presented, waits
from bundle_router.core.tools.meta_tools import Resolved, resolve, takes_nothing
from bundle_router.core.tools.reuse import ReusableCall
from bundle_router.core.tools.shaping import Shaped, shape
from bundle_router.core.tools.transport.passage import Client, fits, narrowed, passes
from bundle_router.engine.ancestry import Ceiling
from bundle_router.engine.arguments import Arguments
from bundle_router.engine.exposed import exposed_now, why_not
from bundle_router.engine.outcomes import (
    Admitted,
    Joined,
    Result,
    ask_for,
    call_record,
    ended_by,
    finish_call,
    recordable,
    shape_blocks,
    spend,
    store,
)
from bundle_router.engine.reuse import Came
from bundle_router.engine.run import Current, Deps, Run, on_disk
from bundle_router.errors import RequestError, StorageError
from bundle_router.ports import RawResult, Scope

MAX_NAMED: Final = 20
"""Tools that a refusal names."""


@dataclass(frozen=True, slots=True)
class CheckedArguments:
    """What is wrong with a call's arguments, and for which tool that was checked."""

    tool: str
    problems: Sequence[str] = ()


async def check_arguments(
    deps: Deps, catalog: Catalog, facts: Facts, run: Run, names: Mapping[str, str], name: str, given: Arguments
) -> CheckedArguments:
    """Checks the arguments against the schema of the tool that the name means now. Holds no lock: a large value may
    take long, and a call that is refused for another reason is not checked at all."""
    current = run.current
    if current is None:
        return CheckedArguments("")
    resolved = resolve(recordable(name), exposed_now(catalog, facts, current), names)
    tool = resolved.name
    if not resolved.known or given.wrong is not None:
        return CheckedArguments(tool)
    server, _, short = tool.partition(".")
    sessions = deps.sessions[catalog.servers[server].transport]
    return CheckedArguments(tool, await sessions.check_arguments(server, short, given.value))


def admit_call(
    deps: Deps,
    catalog: Catalog,
    facts: Facts,
    ceiling: Ceiling,
    run: Run,
    names: Mapping[str, str],
    name: str,
    given: Arguments,
    checked: CheckedArguments,
    *,
    via: str = "",
    joins: bool = True,
    client: Client | None = None,
    asked_ns: int | None = None,
) -> Admitted | Result | None:
    """Resolves and judges a call and records its start; or records the refusal and returns it.

    None when the name means another tool by now than the one its arguments were checked for: check them again.

    `asked_ns` is when it was asked for, before its server was made ready (None: now).

    `via` names the meta-tool it came through. `joins`: whether a deferred tool joins the array when it is called.
    `client`: who is to have the server's own answer, where that is passed on.
    """
    started = deps.clock.monotonic_ns()
    asked = recordable(name)
    with run.lock:
        current = run.current
        if current is None:
            raise RequestError(
                f"run {run.id!r} has no decision yet, so no tool is exposed", advice="call route() for its first step"
            )
        exposed = exposed_now(catalog, facts, current)
        meant = resolve(asked, exposed, names)
        tool = meant.name
        if tool != checked.tool:
            return None
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
            blobs=given.blobs,
        )
        refused = spend(deps, catalog, run, admitted)
        if refused is not None:
            return refused
        refusal = _refusal(catalog, facts, current, exposed, meant, given, checked)
        if refusal is None and (folder is None or not ceiling.holds(folder)):
            refusal = _no_folder(current)
        if refusal is not None:
            outcome, code, text = refusal
            shaped = shape((Text(text),), catalog.settings.limits.max_result_chars, deps.describe)
            return finish_call(deps, run, admitted, outcome, code, shaped, (), refused=True)
        activation = sticky_set.touch(run.activation, admitted.bundle)
        if joins:
            activation, joined = _with_called(catalog, current, activation, admitted)
            admitted = replace(admitted, joined=joined)
        run.log.append("calls", call_record(deps, run, "call.started", admitted))
        run.activation = activation
        run.leases += 1
        return admitted


def _listening(catalog: Catalog, exposed: Mapping[str, str], tool: str, client: Client | None) -> Client | None:
    """The client, as far as the tool's server may know it; None where its results are not passed on."""
    if client is None or tool not in exposed:
        return None
    server = catalog.servers[tool.partition(".")[0]]
    return narrowed(client, server) if passes(server, "results") else None


def _with_called(
    catalog: Catalog, current: Current, activation: Activation, admitted: Admitted
) -> tuple[Activation, Joined]:
    """A deferred tool that is called joins the array, with its bundle's companions."""
    modes = {chosen.id: chosen.mode for chosen in current.decision.bundles}
    bundle = as_presented(catalog.bundles[admitted.bundle], modes.get(admitted.bundle))
    if not waits(catalog, bundle, admitted.tool):
        return activation, ()
    companions = [tool for tool in bundle.companions if waits(catalog, bundle, tool)]
    return ask_for(activation, ((bundle.id, (admitted.tool, *companions)),))


def _refusal(
    catalog: Catalog,
    facts: Facts,
    current: Current,
    exposed: Mapping[str, str],
    meant: Resolved,
    given: Arguments,
    checked: CheckedArguments,
) -> tuple[Outcome, str, str] | None:
    tool = meant.name
    if not meant.known:
        code, detail = why_not(catalog, facts, current, tool)
        outcome: Outcome = "unavailable" if code == "server_unavailable" else "denied"
        return outcome, code, f"{tool!r} is not available at this step ({code}: {detail}). {_hint(meant, exposed)}"
    if given.wrong is not None:
        kind, sentence = given.wrong
        return "invalid_arguments", kind, f"The arguments of {tool!r} {sentence}"
    if checked.problems:
        card = catalog.cards.get(tool)
        schema = "" if card is None else "\nIt takes none." if takes_nothing(card) else f"\nIts schema: {card.schema}"
        return (
            "invalid_arguments",
            "invalid_arguments",
            f"The arguments of {tool!r} do not fit: {'; '.join(checked.problems)}.{schema}",
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


async def perform(deps: Deps, catalog: Catalog, run: Run, admitted: Admitted) -> Result:
    """Carries out an admitted call: bounded, shaped, artifacts stored, and recorded whatever happens."""
    try:
        with _recorded(deps, run, admitted):
            await store(run, admitted.blobs)
            came = await _came_to(deps, catalog, run, admitted)
            stored = await store(run, came.shaped.blobs)
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
        outcome, code = ended_by(ended)
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
    asked = ReusableCall(
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
