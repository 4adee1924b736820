"""The trees of runs: what a run's ancestors permit it, which artifacts it may read, and what a tree
has spent.

Rules:
1. A run's parent is fixed when the run begins. The ancestors' limits are looked up for each use,
   and a step can't escape them by leaving `parent_run_id` out. An ancestor that can't be looked up
   grants nothing.
2. A sub-agent is limited by its parent's present decision, and by the decision that its step names,
   where it names one.
3. A step's folder is recorded relative to the workspace of this router, and never leads out of it.
   An ancestor's folder is relative to the workspace of the router that routed the ancestor.
4. A run without a parent needs nothing of this: its steps and calls do not enter this module.
5. A tree serves one principal, unless the config says `principals = "mixed"`. Where it serves
   several, each reads the artifacts that its own calls stored, and no others.
6. A sub-agent begins each step with what its ancestors have seen. What its own calls bring in, it
   records in its ancestors before they begin; a step whose answers are checked hands them back
   through a form instead (`core.decide.hand_back`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bundle_router import __version__
from bundle_router.core.catalog import Catalog
from bundle_router.core.catalog.step_address import address_of
from bundle_router.core.decide import budgets
from bundle_router.core.decide.budgets import Totals
from bundle_router.core.decide.step_policy import refuse_unknown
from bundle_router.core.records.call_records import SubRunOpened, TaintPassed
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values import Activation, Grant, Seen, Step
from bundle_router.core.values.canonical import time_text
from bundle_router.core.values.folders import TOP, folder_seen_from, is_beneath, relative_folder
from bundle_router.engine.open_runs import NOTHING_ACTIVE, RunTable
from bundle_router.engine.run_records import OpenRun, recorded_decision
from bundle_router.errors import RequestError, UnknownRun
from bundle_router.ports import Clock

MAX_ANCESTORS: Final = 16
"""How deep sub-agents may nest. A deeper nesting is taken for a loop."""


@dataclass(frozen=True, slots=True)
class AncestorLimits:
    """The limits that a run's ancestors set: their `grants`, nearest first; their `folders`,
    relative to the workspace; and the parent's `activation`. Empty for a run without a parent.
    """

    grants: tuple[Grant, ...] = ()
    folders: tuple[str, ...] = ()
    activation: Activation = NOTHING_ACTIVE
    seen: tuple[Seen, ...] = ()
    """What the ancestors' branches have seen, where some policy row has `seen`."""

    def permits_folder(self, folder: str) -> bool:
        """Return whether every ancestor may work in the folder."""
        return all(is_beneath(folder, limit) for limit in self.folders)

    def innermost_folder(self) -> str:
        """Return the folder of a step that names none.

        Raises RequestError where the ancestors share no folder.
        """
        inner = max(self.folders, key=len, default=TOP)
        if self.permits_folder(inner):
            return inner
        raise RequestError(
            "no folder is open to this sub-agent: its ancestors are confined to"
            f" {', '.join(map(repr, self.folders))}",
            advice="route the parent's step in a folder inside its own parent's",
        )


NO_LIMITS: Final = AncestorLimits()
BroughtTaints = tuple[str, str, frozenset[str]]
"""What a sub-run brings: the tool whose call content it, the form of a checked answer, the
taints.
"""


class RunTree:
    """The trees that the open runs are in, over one catalog. Safe for many threads."""

    def __init__(self, runs: RunTable, catalog: Catalog, clock: Clock) -> None:
        self._runs = runs
        self._catalog = catalog
        self._clock = clock
        self.is_bounded = budgets.bounds_tree(catalog.settings.limits)

    def begin_run(self, step: Step) -> OpenRun:
        """Begin the step's run, as a sub-run of its parent where it names one. Blocks."""
        run_id = step.run_id
        parent_id = step.parent_run_id
        if parent_id == run_id:
            raise RequestError(f"run {run_id!r} can't be its own parent")
        self.refuse_other_principal(parent_id, step.principal)
        self.folder(
            step, self.limits(parent_id, step.parent_decision_id)
        )  # what is refused leaves nothing behind
        stated = {"parent_run_id": parent_id, "workspace": self._runs.workspace}
        header = RunHeader(
            {"bundle_router": __version__, "catalog_revision": self._catalog.revision, **stated}
        )
        if parent_id is not None and (self.is_bounded or self._catalog.looks_at_taints):
            # Before it begins: a run that nobody knows of would spend, or read, beside the tree.
            self._tell_root(parent_id, run_id)
        return self._runs.create(run_id, header)

    def refuse_other_principal(self, run_id: str | None, principal: str) -> None:
        """Raise RequestError where a run or one of its ancestors serves another principal than
        this, unless the config lets a tree serve several.
        """
        if self._catalog.settings.runs.principals == "mixed":
            return
        for _ in range(MAX_ANCESTORS):
            run = self._runs.reading(run_id) if run_id is not None else None
            if run is None:
                return
            run.refuse_other_principal(principal)
            run_id = run.parent_id

    def limits_of(self, run: OpenRun, step: Step) -> AncestorLimits:
        """Return the ancestors' limits for a step of a run that is open (see `limits`).

        Raises RequestError too for a step that names another parent than the run has.
        """
        if step.parent_run_id is not None and step.parent_run_id != (parent_id := run.parent_id):
            present_parent = f"a sub-agent of {parent_id!r}" if parent_id else "not a sub-agent"
            raise RequestError(
                f"run {run.id!r} is {present_parent}, this step names {step.parent_run_id!r} as its"
                " parent",
                advice="give the sub-agent a run of its own",
            )
        decision_id = step.parent_decision_id
        if decision_id:
            with run.lock:
                decision_id = None if run.fold.branch_of(decision_id) is not None else decision_id
        return self.limits(run.parent_id, decision_id)

    def limits(self, parent_id: str | None, decision_id: str | None) -> AncestorLimits:
        """Return the ancestors' limits for a run whose step names a decision of its parent, or
        None.

        Raises UnknownRun for an ancestor that can't be looked up, and RequestError for an
        ancestor's policy that the present config does not understand: a denial would be lost.
        """
        if parent_id is None:
            return NO_LIMITS
        grants: list[Grant] = []
        folders: list[str] = []
        activation: Activation | None = None
        sources: list[Seen] = []
        for _ in range(MAX_ANCESTORS):
            run, decided = self._decided_of(parent_id, decision_id)
            with run.lock:
                present = run.fold.decided(decided.branch) or decided
                activation = activation or run.fold.activation(decided.branch)
                if run.fold.ledger is not None:
                    sources += [
                        replace(source, run=source.run or run.id)
                        for source in run.fold.ledger.seen(decided.branch)
                    ]
            records = {record.decision.decision_id: record for record in (present, decided)}
            for record in records.values():
                grants.append(Grant(address_of(record.step), record.step.policy))
                folders.append(self._folder_of(run, record))
            parent_id = run.parent_id
            decision_id = present.parent_decision_id or None
            if parent_id is None:
                break
        else:
            raise RequestError(
                f"sub-agents are nested more than {MAX_ANCESTORS} deep below run {parent_id!r}"
            )
        for grant in grants:
            refuse_unknown(self._catalog, grant.policy, "the step policy of an ancestor run")
        return AncestorLimits(
            tuple(grants), tuple(folders), activation or NOTHING_ACTIVE, tuple(sources)
        )

    def _decided_of(self, run_id: str, decision_id: str | None) -> tuple[OpenRun, DecisionRecord]:
        """Return an ancestor with all its records read, and its named decision (None: its present
        one).
        """
        run = self._runs.reading(run_id)
        if run is None:
            raise _no_decision(self._runs.quote_run(run_id))
        with run.lock:
            branch = run.branch_of(decision_id)
            present = run.fold.decided(branch)
            if present is None:
                raise _no_decision(self._runs.quote_run(run_id))
            if not decision_id or decision_id == present.decision.decision_id:
                return run, present
            return run, recorded_decision(run, decision_id)

    def _folder_of(self, run: OpenRun, decided: DecisionRecord) -> str:
        root = decided.root or run.log.header.last_workspace or self._runs.workspace
        folder = folder_seen_from(self._runs.workspace, root, decided.step.workspace)
        if folder is None:
            raise RequestError(
                f"the parent run {run.id!r} works in {decided.step.workspace or TOP!r} of {root!r},"
                f" which is not inside {self._runs.workspace!r}",
                advice="open the router with the workspace that the parent was routed in",
            )
        return folder

    def folder(self, step: Step, limits: AncestorLimits) -> str:
        """Return the folder that the step's local tools are confined to, beneath the workspace;
        never a wider one.

        The name is resolved now. At every call the folder is opened beneath the workspace again,
        without following links.
        """
        if step.workspace is None:
            return limits.innermost_folder()
        base = Path(self._runs.workspace, limits.innermost_folder())
        try:
            path = (base / step.workspace).resolve()
            folder = relative_folder(self._runs.workspace, str(path)) if path.is_dir() else None
        except (OSError, ValueError):  # no path at all: a NUL in it, or names that are too long
            folder = None
        if folder is None or not limits.permits_folder(folder):
            raise RequestError(
                f"the step's workspace {step.workspace!r} is not a folder inside {str(base)!r}",
                advice="name a folder beneath the router's workspace, or leave it out",
            )
        return folder

    def artifact(self, run_id: str, sha256: str, principal: str | None = None) -> bytes:
        """Return the bytes of an artifact of the run, or of its nearest ancestor that has it and,
        where a principal is named, lets it be read by that one.

        Raises UnknownRun, KeyError when none of them has such an artifact, CorruptRun,
        StorageError.
        """
        current_id: str | None = run_id
        for _ in range(MAX_ANCESTORS + 1):
            run = self._runs.reading(current_id) if current_id is not None else None
            if run is None:
                if current_id == run_id:
                    raise UnknownRun(
                        f"there is no run {self._runs.quote_run(run_id)}",
                        advice="`bundle-router runs list` lists them",
                    )
                break  # no ancestor is left, or one was pruned
            current_id = run.parent_id
            if principal is not None and not run.fold.may_read(sha256, principal):
                continue
            with suppress(KeyError):
                return run.artifacts.get(sha256)
        raise KeyError(sha256)

    def is_framed(self, run_id: str, sha256: str) -> bool:
        """Return whether an artifact is of a result that the model of the run, or of an ancestor,
        saw in a frame.
        """
        current_id: str | None = run_id
        for _ in range(MAX_ANCESTORS + 1):
            run = self._runs.reading(current_id) if current_id is not None else None
            if run is None:
                return False
            if sha256 in run.fold.framed_artifacts:
                return True
            current_id = run.parent_id
        return False

    # --- taints -----------------------------------------------------------------------------------

    def artifact_taints(self, run: OpenRun, arguments: str) -> frozenset[str]:
        """Return the taints of the artifacts of the run, or of its ancestors, that a text of
        arguments names. The run's own records are not read: its lock may be held.
        """
        taints: frozenset[str] = frozenset()
        current: OpenRun | None = run
        for _ in range(MAX_ANCESTORS + 1):
            if current is None:
                break
            if current.fold.ledger is not None:
                taints |= current.fold.ledger.artifacts(arguments)
            parent_id = current.parent_id
            current = self._runs.reading(parent_id) if parent_id is not None else None
        return taints

    def pass_taints(
        self, run: OpenRun, decided: DecisionRecord, content: BroughtTaints, wait_s: float
    ) -> None:
        """Record in the run's ancestors, up to the root, the taints that a call is about to bring
        in, as far as they have not seen them. What a step with checked answers brings is passed on
        in a form alone. The caller holds the run's lock.
        """
        _, form, _ = content
        for _ in range(MAX_ANCESTORS):
            if run.parent_id is None or (decided.step.hands_back and not form):
                return
            form = ""
            parent = self._hold(run.parent_id)
            if parent is None:
                return  # it was pruned: nobody reads there any more
            try:
                present = self._pass_to(parent, run.id, decided, content, wait_s)
            finally:
                parent.release()
            if present is None:
                return
            run = parent
            decided = present

    def _hold(self, run_id: str) -> OpenRun | None:
        run = self._runs.get(run_id)
        if run is None or run.uses.has_ended:
            run = self._runs.reading(run_id)
        if run is None or not run.uses.hold():
            return None
        return run

    def _pass_to(
        self,
        parent: OpenRun,
        from_run: str,
        decided: DecisionRecord,
        content: BroughtTaints,
        wait_s: float,
    ) -> DecisionRecord | None:
        """Record what comes from a sub-run in the parent's branch that the sub-run's decision hangs
        at. Return the parent's present decision.
        """
        tool, form, taints = content
        with parent.lock:
            parent.read_on()
            ledger = parent.fold.ledger
            named_branch = parent.fold.branch_of(decided.parent_decision_id)
            branch = parent.fold.current_branch if named_branch is None else named_branch
            if ledger is not None:
                missing = taints - {source.taint for source in ledger.seen(branch)}
                if missing:
                    record = TaintPassed(
                        run_id=parent.id,
                        branch=branch,
                        from_run=from_run,
                        taints=tuple(sorted(missing)),
                        tool=tool,
                        form=form,
                        time=time_text(self._clock.time_ns()),
                    )
                    parent.append_call(record, compare=False, wait_s=wait_s)
            return parent.fold.decided(branch)

    # --- what it has spent ------------------------------------------------------------------------

    def spent(self, run: OpenRun) -> Totals:
        """Return the totals of the run's tree of runs."""
        root = self._root_of(run.id)
        runs = [run]
        if root is not None:
            runs = [root]
            for id_ in root.fold.sub_runs:
                sub_run = self._runs.reading(id_)
                if sub_run is not None:
                    runs.append(sub_run)

        under_way = Totals(calls=sum(len(each.passing) for each in runs))
        return budgets.sum_totals((under_way, *(each.fold.run_spent for each in runs)))

    def _root_of(self, run_id: str) -> OpenRun | None:
        run = self._runs.reading(run_id)
        for _ in range(MAX_ANCESTORS):
            if run is None or run.parent_id is None:
                break
            run = self._runs.reading(run.parent_id)
        return run

    def _tell_root(self, parent_id: str, run_id: str) -> None:
        """Record in the root of a tree that a run begins below it, so that the tree's totals
        include it.
        """
        root = self._root_of(parent_id)
        if root is not None and run_id not in root.fold.sub_runs and root.uses.hold():
            try:
                record = SubRunOpened(
                    run_id=root.id, sub_run_id=run_id, time=time_text(self._clock.time_ns())
                )
                root.under_lock_sync(
                    lambda wait_s: root.append_call(record, compare=False, wait_s=wait_s)
                )
            finally:
                root.release()


def _no_decision(quoted_id: str) -> UnknownRun:
    return UnknownRun(
        f"the parent run {quoted_id} has no decision, so there is nothing its sub-agent may have",
        advice="route the parent's step first",
    )
