"""One run, and the two flows through it: a step is routed, a tool is called. Nothing else.

Rules:
1. A decision is on disk before it is returned, and the run's state changes only after it is.
2. `call.started` is on disk before the effect, so a crash leaves evidence; `call.finished` before the result is
   returned.
3. The verdict runs again at call time, on the tool's canonical name, with fresh facts.
4. The run's lock orders its records. It is held for look-ups and one write, never while anything is awaited.
5. What an agent can see fail comes back as a `Result`; a caller's mistake, and a log that can't be written, are raised.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from router.core import activation as sticky_set
from router.core.canonical import encode
from router.core.catalog import Catalog
from router.core.config.suggest import Suggester
from router.core.decide import Question, decide, permitted_tools, plan_for
from router.core.models import (
    Activation,
    Code,
    Decision,
    Facts,
    Outcome,
    RecentStep,
    Reply,
    Step,
    Text,
)
from router.core.records import (
    CALL_SCHEMA,
    DECISION_SCHEMA,
    activation_json,
    facts_json,
    input_digest,
    outcome_json,
    reply_json,
    step_json,
)
from router.core.replay import conclude
from router.core.shaping import MediaFacts, Shaped, shape
from router.errors import RequestError
from router.ports import (
    ArtifactStore,
    Clock,
    Diagnostics,
    RawResult,
    Redactor,
    RunLog,
    Selector,
    Sessions,
    Stored,
)

READING = "kept whole with the run; ask for less at a time to see the rest"
"""What a cut result says of the part left out: there is no tool yet that reads artifacts."""


@dataclass(frozen=True, slots=True)
class Deps:
    """The ports the flows use. `sessions` is keyed by transport; `describe` says what bytes are."""

    clock: Clock
    redactor: Redactor
    diagnostics: Diagnostics
    sessions: Mapping[str, Sessions]
    describe: Callable[[bytes], MediaFacts]
    selector: Selector | None = None


@dataclass(frozen=True, slots=True)
class Current:
    """Where a run stands: its last decision and what it was taken on."""

    step: Step
    decision: Decision
    facts: Facts


@dataclass(frozen=True, slots=True)
class Result:
    """What a call came to. `text` is what the model should see, errors included; artifacts hold media and full results.

    `code` says why for an `outcome` other than `ok`: a denial code, or the tool's own word.
    """

    outcome: Outcome
    text: str
    code: str = ""
    artifacts: tuple[Stored, ...] = ()
    call_id: str = ""
    decision_id: str = ""
    tool: str = ""
    elapsed_ms: float = 0.0

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"


class Run:
    """The state of one open run, read and written under `lock`. `root` is what its local tools are confined to."""

    __slots__ = (
        "activation", "artifacts", "closing", "current", "durable", "id", "leases", "lock", "log", "parent_id",
        "recent", "root",
    )  # fmt: skip

    def __init__(
        self,
        id_: str,
        log: RunLog,
        artifacts: ArtifactStore,
        *,
        parent_id: str | None,
        activation: Activation,
        root: str,
        recent_steps: int,
        durable: bool,
    ) -> None:
        self.id = id_
        self.log = log
        self.artifacts = artifacts
        self.parent_id = parent_id
        self.activation = activation
        self.root = root
        self.durable = durable
        self.current: Current | None = None
        self.recent: deque[RecentStep] = deque(maxlen=recent_steps)
        self.lock = threading.Lock()
        self.leases = 0
        self.closing = False

    def close(self) -> None:
        """Ends the run; with calls under way, when the last of them has been recorded."""
        with self.lock:
            self.closing = True
            if self.leases == 0:
                self.log.close()

    def release(self) -> None:
        """A call that was admitted has come to its end."""
        with self.lock:
            self.leases -= 1
            if self.closing and self.leases == 0:
                self.log.close()


async def on_disk(run: Run) -> None:
    """Returns when what was recorded survives power loss, where the config asks for that; else at once."""
    if run.durable:
        await asyncio.to_thread(run.log.sync)


# --- flow 1: route -------------------------------------------------------------------------------------------------


def begin_route(deps: Deps, catalog: Catalog, facts: Facts, run: Run, step: Step) -> Decision | Question:
    """Decides and records; or gives the question that has to be put first. Never waits."""
    started = deps.clock.monotonic_ns()
    with run.lock:
        taken = decide(catalog, facts, run.activation, step)
        if isinstance(taken, Question):
            return taken
        return _record(deps, catalog, run, step, facts, taken, None, started)


async def ask(selector: Selector | None, question: Question, recent: Sequence[RecentStep]) -> Reply:
    """Puts the question, outside the run's lock. An upstream's fault is a failure in the reply, not an exception."""
    if selector is None:
        return Reply(question.key)
    return replace(await selector.select(question, recent), key=question.key)


def finish_route(
    deps: Deps, catalog: Catalog, facts: Facts, run: Run, step: Step, reply: Reply, started_ns: int
) -> Decision:
    """Settles with the reply and records. Decides again, since the activation may have moved while it was awaited."""
    with run.lock:
        taken = decide(catalog, facts, run.activation, step)
        heard: Reply | None = None
        if isinstance(taken, Question):
            heard, facts = reply, replace(facts, revisions=(*facts.revisions, *reply.revisions))
            taken = conclude(taken, reply)
        return _record(deps, catalog, run, step, facts, taken, heard, started_ns)


def _record(
    deps: Deps,
    catalog: Catalog,
    run: Run,
    step: Step,
    facts: Facts,
    decision: Decision,
    reply: Reply | None,
    started_ns: int,
) -> Decision:
    """Writes the decision, then makes it the run's current one. The caller holds the run's lock."""
    step_part, facts_part, reply_part = step_json(step), facts_json(facts), reply_json(reply)
    digest = input_digest(catalog.revision, step_part, facts_part, activation_json(decision.before), reply_part)
    seq = run.log.next_seq
    decision_id = f"{run.id}.{seq}"
    now_ns = deps.clock.monotonic_ns()
    record: dict[str, Any] = {
        "schema": DECISION_SCHEMA,
        "type": "route.decided",
        "time": deps.clock.now(),
        "run_id": run.id,
        "decision_id": decision_id,
        "catalog_revision": catalog.revision,
        "input_digest": digest,
        "principal": step.principal,
        "step": step_part,
        "facts": facts_part,
        "reply": reply_part,
        "elapsed_us": (now_ns - started_ns) // 1000,
        "monotonic_ns": now_ns,
        **outcome_json(decision),
    }
    run.log.append("routing", record)
    stamped = replace(
        decision,
        run_id=run.id,
        seq=seq,
        decision_id=decision_id,
        catalog_revision=catalog.revision,
        input_digest=digest,
    )
    run.activation = decision.after
    run.current = Current(step, stamped, facts)
    run.recent.append(RecentStep(step.role, step.step, step.goal, tuple(stamped.bundle_ids)))
    return stamped


# --- flow 2: call --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that passed exposure, policy and validation, and whose `call.started` is on disk."""

    call_id: str
    decision_id: str
    tool: str
    bundle: str
    arguments: Mapping[str, Any]
    workspace: str
    started_ns: int


def admit_call(
    deps: Deps,
    catalog: Catalog,
    facts: Facts,
    run: Run,
    names: Mapping[str, str],
    name: str,
    arguments: Mapping[str, Any],
) -> Admitted | Result:
    """Resolves, judges and validates a call and records its start; or records the refusal and returns it."""
    started = deps.clock.monotonic_ns()
    with run.lock:
        current = run.current
        if current is None:
            raise RequestError(
                f"run {run.id!r} has no decision yet, so no tool is exposed", advice="call route() for its first step"
            )
        # Under the decision's own ceiling, and under what the parent may have by now.
        fresh = replace(facts, grants=tuple(dict.fromkeys((*current.facts.grants, *facts.grants))))
        tool = names.get(name, name)
        exposed = permitted_tools(catalog, fresh, current.step, current.decision.bundle_ids)
        admitted = Admitted(
            call_id=f"{run.id}.{run.log.next_seq}",
            decision_id=current.decision.decision_id,
            tool=tool,
            bundle=exposed.get(tool, ""),
            arguments=arguments,
            workspace=current.step.workspace or run.root,
            started_ns=started,
        )
        refusal = _refusal(deps, catalog, fresh, current, exposed, tool, arguments)
        if refusal is not None:
            outcome, code, text = refusal
            return _finish(deps, run, admitted, outcome, code, shape_text(deps, catalog, text), ())
        record = _call_record(deps, run, "call.started", admitted)
        run.log.append("calls", record)
        run.activation = sticky_set.touch(run.activation, admitted.bundle)
        run.leases += 1
        return admitted


def shape_text(deps: Deps, catalog: Catalog, text: str) -> Shaped:
    """A refusal's text, under the same cap and cleaning as any result."""
    return shape((Text(text),), catalog.settings.limits.max_result_chars, deps.describe, reading=READING)


def _refusal(
    deps: Deps,
    catalog: Catalog,
    facts: Facts,
    current: Current,
    exposed: Mapping[str, str],
    tool: str,
    arguments: Mapping[str, Any],
) -> tuple[Outcome, str, str] | None:
    if tool not in exposed:
        code, detail = why_not(catalog, facts, current, tool)
        hint = Suggester().nearest(tool, exposed)
        more = f" Did you mean {hint!r}?" if hint else f" This step has: {', '.join(exposed) or 'no tools'}."
        return "denied", code, f"{tool!r} is not available at this step ({code}: {detail}).{more}"
    limits = catalog.settings.limits
    if not isinstance(arguments, Mapping):
        return "invalid_arguments", "not_an_object", f"The arguments of {tool!r} must be an object, with its names."
    try:
        size = len(encode(dict(arguments)))
    except (TypeError, ValueError, RecursionError) as wrong:
        return "invalid_arguments", "not_json", f"The arguments of {tool!r} are not JSON: {_reason(wrong)}."
    if size > limits.max_argument_bytes:
        return (
            "invalid_arguments",
            "too_large",
            f"The arguments of {tool!r} are {size:,} bytes, at most {limits.max_argument_bytes:,} are taken.",
        )
    server = tool.partition(".")[0]
    wrong_arguments = deps.sessions[catalog.servers[server].transport].check_arguments(
        server, tool.partition(".")[2], arguments
    )
    if wrong_arguments:
        card = catalog.cards.get(tool)
        schema = f"\nIts schema: {card.schema}" if card else ""
        return (
            "invalid_arguments",
            "invalid_arguments",
            f"The arguments of {tool!r} do not fit: {'; '.join(wrong_arguments)}.{schema}",
        )
    return None


def why_not(catalog: Catalog, facts: Facts, current: Current, tool: str) -> tuple[Code, str]:
    """Why a tool is not exposed by the current decision: the first code of its best bundle, as `explain` would say."""
    holders = [bundle for bundle in catalog.bundles.values() if tool in bundle.tools]
    if not holders:
        return "unknown_bundle", "no bundle holds a tool of this name"
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
        elif tool in verdict.tools and bundle.id not in shown:
            return "not_mapped", f"bundle {bundle.id!r} holds it and is not shown at this step"
    return first or ("not_mapped", "no shown bundle holds it")


async def perform(deps: Deps, catalog: Catalog, run: Run, admitted: Admitted) -> Result:
    """Carries out an admitted call: bounded, shaped, artifacts stored, and recorded whatever happens."""
    try:
        return await _perform(deps, catalog, run, admitted)
    finally:
        run.release()


async def _perform(deps: Deps, catalog: Catalog, run: Run, admitted: Admitted) -> Result:
    server, _, short = admitted.tool.partition(".")
    entry = catalog.servers[server]
    timeout = entry.timeout_s or catalog.settings.limits.call_timeout_s
    session = deps.sessions[entry.transport]
    try:
        await on_disk(run)
        raw = await session.call(server, short, admitted.arguments, workspace=admitted.workspace, timeout_s=timeout)
    except asyncio.CancelledError:
        _finish_locked(deps, run, admitted, "cancelled", "cancelled", Shaped.empty(), ())
        raise
    result = conclude_call(deps, catalog, run, admitted, raw)
    await on_disk(run)
    return result


def conclude_call(deps: Deps, catalog: Catalog, run: Run, admitted: Admitted, raw: RawResult) -> Result:
    """Shapes a raw result, stores what became an artifact, and records the end of the call."""
    shaped = shape(raw.blocks, catalog.settings.limits.max_result_chars, deps.describe, reading=READING)
    stored = tuple(
        run.artifacts.put(blob.data, claimed_type=blob.claimed_type, name=blob.name) for blob in shaped.blobs
    )
    return _finish_locked(deps, run, admitted, raw.outcome, raw.code, shaped, stored)


def _finish_locked(
    deps: Deps, run: Run, admitted: Admitted, outcome: Outcome, code: str, shaped: Shaped, stored: tuple[Stored, ...]
) -> Result:
    with run.lock:
        return _finish(deps, run, admitted, outcome, code, shaped, stored)


def _finish(
    deps: Deps, run: Run, admitted: Admitted, outcome: Outcome, code: str, shaped: Shaped, stored: tuple[Stored, ...]
) -> Result:
    elapsed_ms = (deps.clock.monotonic_ns() - admitted.started_ns) / 1e6
    record = _call_record(deps, run, "call.finished", admitted)
    record |= {
        "outcome": outcome,
        "code": code,
        "result": None if outcome == "cancelled" else shaped.text,
        "artifacts": [
            {"uri": s.uri, "sha256": s.sha256, "mime_type": s.mime_type, "bytes": s.bytes, "role": blob.role}
            for s, blob in zip(stored, shaped.blobs, strict=False)
        ],
        "shaped": {
            "original_bytes": shaped.original_bytes,
            "kept_bytes": shaped.kept_bytes,
            "rule": shaped.rule,
            "flags": list(shaped.flags),
        },
        "elapsed_ms": round(elapsed_ms, 3),
        "cached": False,
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
    )


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
        "arguments": _as_text(admitted.arguments),
    }


def _as_text(arguments: Mapping[str, Any]) -> str:
    """The arguments as one JSON string. What is not JSON was refused; its names are all that is kept of it."""
    if not isinstance(arguments, Mapping):
        return encode({"not_an_object": type(arguments).__name__})
    try:
        return encode(dict(arguments))
    except (TypeError, ValueError, RecursionError) as wrong:
        return encode({"not_json": _reason(wrong), "names": sorted(str(name)[:200] for name in list(arguments)[:50])})


def _reason(wrong: Exception) -> str:
    return "they are nested too deep" if isinstance(wrong, RecursionError) else str(wrong)
