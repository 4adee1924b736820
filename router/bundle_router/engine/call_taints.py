"""What a call brings into its branch, and which rows with `seen` refuse it.

Rules:
1. A call is judged with what its branch has seen by now, and with the taints of the artifacts in
   its arguments, whether or not the branch read them.
2. It is refusals where the rows refuse it in every shown bundle that holds the tool.
3. A recorded result is taken on as if its tool had been called.

The caller holds the run's lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from bundle_router.core.catalog import Bundle
from bundle_router.core.decide.ceiling import Layer
from bundle_router.core.decide.taints import TaintTest
from bundle_router.core.records.call_records import TaintPassed
from bundle_router.core.records.fold import KeyedCall
from bundle_router.core.records.seen import HANDLE_START, SeenLedger
from bundle_router.core.values import Seen
from bundle_router.core.values.canonical import time_text
from bundle_router.engine.call_refusals import tainted_call
from bundle_router.engine.engine_ports import CallPorts
from bundle_router.engine.results import NO_TAINTS, CallTaints, Refusal
from bundle_router.engine.surface import CallTarget, RunState, verdicts_of


def taints_of_call(
    at: CallPorts, state: RunState, target: CallTarget, arguments: str
) -> CallTaints:
    """Return what the rows say of a call with these arguments, as they are recorded."""
    ledger = at.run.fold.ledger
    assert ledger is not None, "some row has `seen`"  # noqa: S101 - the caller looked
    content = ledger.plain_calls.get(target.tool)
    returned, sinks = content or ledger.call(target.tool, arguments)
    of_artifacts: frozenset[str] = frozenset()
    if HANDLE_START in arguments:
        of_artifacts = at.tree.artifact_taints(at.run, arguments)
    layers: tuple[Layer, ...] = ()
    if of_artifacts or ledger.by_branch.get(state.decided.branch):
        layers = verdicts_of(state, state.facts, state.plans).ceiling.tainted
    refusals: dict[Layer, str] = {}
    if layers:
        sources = ledger.seen(state.decided.branch)
        if of_artifacts:
            place = at.run.log.next_seq
            sources = (
                *sources,
                *(Seen(taint, target.tool, place) for taint in sorted(of_artifacts)),
            )
        test = TaintTest(state.catalog, layers, sources)
        if test.in_force:
            refusals = _refusals(test, _holders(state, target), target.tool, sinks)
    if not (refusals or returned or of_artifacts or sinks):
        return NO_TAINTS
    enforced = [detail for layer, detail in refusals.items() if layer.is_enforced]
    return CallTaints(
        returns=tuple(sorted(returned | of_artifacts)),
        sends=tuple(sorted(sinks)),
        would=tuple(layer.row for layer in refusals if not layer.is_enforced),
        refusal=tainted_call(target.tool, enforced[0]) if enforced else None,
    )


def taints_of_request(at: CallPorts, state: RunState, name: str, _wait_s: float) -> Refusal | None:
    """Return why a request for what a server has besides tools is refusals; None where it is not.
    A request goes through no bundle, so only its server and its sinks are judged.
    """
    ledger = _ledger(at)
    layers = verdicts_of(state, state.facts, state.plans).ceiling.tainted
    test = TaintTest(state.catalog, layers, ledger.seen(state.decided.branch))
    server = state.catalog.servers[name.partition(".")[0]]
    for layer in test.in_force:
        sink = layer.deny.sink(state.catalog.statements.sends(name))
        is_low = layer.min_trust == "trusted" and server.trust == "untrusted"
        if layer.is_enforced and (sink is not None or is_low):
            return tainted_call(name, f"{layer.name} refuses it, and {test.sources_of(layer)}")
    return None


def take_on_result(at: CallPorts, state: RunState, known: KeyedCall, wait_s: float) -> None:
    """Record that the branch takes on the recorded result of a call of another branch."""
    ledger = _ledger(at)
    branch = state.decided.branch
    taints = ledger.keyed(known.call_id)
    missing = taints - {source.taint for source in ledger.seen(branch)}
    if missing:
        record = TaintPassed(
            run_id=at.run.id,
            branch=branch,
            from_run=at.run.id,
            taints=tuple(sorted(missing)),
            tool=known.name,
            time=time_text(at.ports.clock.time_ns()),
        )
        at.run.append_call(record, compare=False, wait_s=wait_s)


def _ledger(at: CallPorts) -> SeenLedger:
    ledger = at.run.fold.ledger
    assert ledger is not None, "some row has `seen`"  # noqa: S101 - the callers looked
    return ledger


def _holders(state: RunState, target: CallTarget) -> list[Bundle]:
    """Return the shown bundles that hold the tool, the one that it is called through first."""
    bundles = [state.catalog.bundle(id_) for id_ in (target.bundle, *state.bundle_ids)]
    return [bundle for bundle in bundles if bundle is not None and target.tool in bundle.tools]


def _refusals(
    test: TaintTest, holders: Iterable[Bundle], tool: str, sinks: frozenset[str]
) -> dict[Layer, str]:
    """Return the rows that refuse the tool in every bundle, each with the first reason."""
    refusals: dict[Layer, str] | None = None
    for bundle in holders:
        by_layer = dict(test.refusals_of_call(bundle, tool, sinks))
        if refusals is None:
            refusals = by_layer
        refusals = {layer: detail for layer, detail in refusals.items() if layer in by_layer}
    return refusals or {}
