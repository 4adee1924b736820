"""One run, and the first of the two flows through it: a step is routed. Calls are in `bundle_router.engine.calls`.

Rules:
1. A decision is on disk before it is returned, and the run's state changes only after it is. Where it has to survive
   power loss and does not get there, the run stands where it stood before.
2. The run's lock orders its records. It is held for look-ups and one write, never while anything is awaited.
3. What is recorded is what was decided on: whatever a selector says is redacted before it is heard.
4. A caller's mistake, and a log that can't be written, are raised.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.budgets import Spent
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.replies import admitted
from bundle_router.core.models import Activation, Decision, Facts, RecentStep, Reply, Step
from bundle_router.core.records.records import (
    DECISION_SCHEMA,
    activation_json,
    facts_json,
    input_digest,
    outcome_json,
    reply_json,
    step_json,
)
from bundle_router.core.records.replay import conclude
from bundle_router.core.tools.meta_tools import Finder
from bundle_router.core.tools.shaping import MediaFacts
from bundle_router.engine.reuse import Results
from bundle_router.errors import StorageError
from bundle_router.ports import (
    ArtifactStore,
    Clock,
    Diagnostics,
    Redactor,
    RunLog,
    Scratch,
    Selector,
    Sessions,
    ToolSearch,
)


def no_patterns(pattern: str) -> Finder:
    """Where there is no engine for regular expressions."""
    raise ValueError(f"regular expressions such as {pattern[:50]!r} are not searched for here")


@dataclass(frozen=True, slots=True)
class Deps:
    """The ports the flows use. `sessions` is keyed by transport; `describe` says what bytes are; `patterns` makes a
    finder of a regular expression (ValueError, in words, where it can't); `tools` is None where there is no search,
    `results` where no result is used again, `scratch` where no file can be handed to a tool."""

    clock: Clock
    redactor: Redactor
    diagnostics: Diagnostics
    sessions: Mapping[str, Sessions]
    describe: Callable[[bytes], MediaFacts]
    selector: Selector | None = None
    patterns: Callable[[str], Finder] = no_patterns
    tools: ToolSearch | None = None
    results: Results | None = None
    scratch: Callable[[], Scratch] | None = None


@dataclass(frozen=True, slots=True)
class Current:
    """Where a run stands: its last decision and what it was taken on. `outdated`: under another config than the one in
    force, so that nobody can say any more what it showed."""

    step: Step
    decision: Decision
    facts: Facts
    outdated: bool = False


class Run:
    """The state of one open run. Written under `lock`, and read under it where two reads have to agree.

    `root` is what its local tools are confined to.
    """

    __slots__ = (
        "__weakref__", "_on_trouble", "activation", "artifacts", "closing", "current", "durable", "ended", "id",
        "leases", "lock", "log", "parent_id", "recent", "root", "settled", "spent", "told", "unsettled",
    )  # fmt: skip

    def __init__(
        self,
        id_: str,
        log: RunLog,
        artifacts: ArtifactStore,
        *,
        parent_id: str | None,
        root: str,
        recent_steps: int,
        durable: bool,
        on_trouble: Callable[[StorageError], None],
    ) -> None:
        self.id = id_
        self.log = log
        self.artifacts = artifacts
        self.parent_id = parent_id
        self.root = root
        self.durable = durable
        self._on_trouble = on_trouble
        self.activation = Activation()
        self.current: Current | None = None
        self.recent: deque[RecentStep] = deque(maxlen=recent_steps)
        self.lock = threading.Lock()
        self.leases = 0
        self.spent = Spent()
        self.told: tuple[str, frozenset[str]] = ("", frozenset())  # a decision, and the tools it gave signatures of
        self.closing = False
        self.ended = False
        self.settled: tuple[int, Current | None, Activation] = (-1, None, self.activation)
        self.unsettled: dict[int, tuple[int, Current | None, Activation]] = {}

    # --- its end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the run; with steps or calls under way, when the last of them has been recorded."""
        with self.lock:
            self.closing = True
            self._end_if_idle()

    def close_idle(self) -> bool:
        """Ends the run unless steps or calls are under way; whether it has ended."""
        with self.lock:
            if self.leases == 0:
                self.closing = True
                self._end_if_idle()
            return self.ended

    def hold(self) -> bool:
        """Keeps the run open until `release`; False when its end has come."""
        with self.lock:
            self.leases += not self.ended
            return not self.ended

    def reopen(self) -> bool:
        """Takes the end back while steps or calls are still under way; False when it has come."""
        with self.lock:
            self.closing = self.closing and self.ended
            return not self.ended

    def release(self) -> None:
        """A step or call that held the run has come to its end."""
        with self.lock:
            self.leases -= 1
            if not self.closing:
                return
            try:
                self._end_if_idle()
            except StorageError as trouble:  # it must not take the place of what the last call came to
                self._on_trouble(trouble)

    def _end_if_idle(self) -> None:
        if self.leases == 0 and not self.ended:
            self.ended = True
            self.log.close()

    # --- where it stands -------------------------------------------------------------------------------------------

    def restore(self, current: Current, activation: Activation, spent: Spent) -> None:
        """Puts a run that was opened again where its last decision, and the calls since, left it."""
        self.current, self.activation, self.spent = current, activation, spent
        self._remember(current)
        self.settled = (current.decision.seq, current, activation)

    def _remember(self, current: Current) -> None:
        step = current.step
        self.recent.append(RecentStep(step.role, step.step, step.goal, tuple(current.decision.bundle_ids)))

    def stand(self, current: Current, activation: Activation) -> None:
        """Makes a decision the current one. The caller holds the lock."""
        self.current, self.activation, self.spent = current, activation, Spent()
        self._remember(current)
        if self.durable:
            seq = current.decision.seq
            self.unsettled[seq] = (seq, current, activation)

    def settle(self, seq: int) -> None:
        """The decision of that number survives power loss."""
        with self.lock:
            self.settled = max(self.settled, self.unsettled.pop(seq), key=lambda state: state[0])

    def withdraw(self, seq: int) -> None:
        """The decision of that number was not returned, so the run goes back to the last that was."""
        with self.lock:
            del self.unsettled[seq]
            if self.current is not None and self.current.decision.seq >= seq:
                _, self.current, self.activation = self.settled
                self.recent.pop()


async def on_disk(run: Run) -> None:
    """Returns when what was recorded survives power loss, where the config asks for that; else at once."""
    if run.durable:
        await asyncio.to_thread(run.log.sync)


# --- flow 1: route -------------------------------------------------------------------------------------------------


def begin_route(
    deps: Deps,
    catalog: Catalog,
    facts: Facts,
    run: Run,
    step: Step,
    inherited: Activation,
    derived: Activation | None = None,
) -> Decision | Question:
    """Decides and records; or gives the question that has to be put first. Never waits.

    `inherited` is what a run starts from that has no decision yet, `derived` what takes the place of its own activation
    (None: nothing).
    """
    started = deps.clock.monotonic_ns()
    with run.lock:
        if run.current is None:
            run.activation = inherited
        if derived is not None:
            run.activation = derived
        taken = decide(catalog, facts, run.activation, step)
        if isinstance(taken, Question):
            return taken
        return _record(deps, catalog, run, step, facts, taken, None, started)


async def ask(deps: Deps, question: Question, recent: Sequence[RecentStep]) -> Reply:
    """Puts the question, outside the run's lock. An upstream's fault is a failure in the reply, not an exception.

    What comes back is without secrets and can be recorded: what is decided on is what stands in the log.
    """
    if deps.selector is None:
        return Reply(question.key)
    said = await deps.selector.select(question, recent)
    reply = replace(admitted(said, deps.redactor.redact), key=question.key)
    if reply.failure == "internal" != said.failure:
        deps.diagnostics.event("error", "reply.refused", run_id=question.step.run_id, step=question.step.step)
    return reply


def finish_route(deps: Deps, run: Run, question: Question, reply: Reply, started_ns: int) -> Decision:
    """Settles with the reply and records."""
    with run.lock:
        # The activation may have moved while the reply was awaited; nothing else of the question can.
        taken = conclude(replace(question, activation=run.activation), reply)
        facts = replace(question.facts, revisions=(*question.facts.revisions, *reply.revisions))
        return _record(deps, question.catalog, run, question.step, facts, taken, reply, started_ns)


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
    run.stand(Current(step, stamped, facts), decision.after)
    return stamped
