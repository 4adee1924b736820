"""The runs of this process: opened or gone on with, where they stand, and what their ancestors leave them.

Rules:
1. A run's parent is fixed when its directory is made. What its ancestors leave it is looked up anew each time it is
   asked for (`bundle_router.engine.ancestry`), and it can't shed them by leaving `parent_run_id` out.
2. A step's folder is recorded relative to the workspace this router was opened with, and never leads out of it.
3. What would be refused is refused before anything is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide import activation as sticky_set
from bundle_router.core.decide import budgets
from bundle_router.core.decide.step_policy import refuse_unknown
from bundle_router.core.models import Activation, Step
from bundle_router.core.models.canonical import encode
from bundle_router.core.models.folders import relative_folder
from bundle_router.core.records.header import workspace_of
from bundle_router.core.records.records import activation_from, decision_from, facts_from, step_from
from bundle_router.engine.ancestry import MAX_ANCESTORS, Ceiling, Standing, ceiling_of
from bundle_router.engine.open_runs import OpenRuns
from bundle_router.engine.run import Current, Run
from bundle_router.errors import RequestError, StorageError, UnknownRun
from bundle_router.ports import Diagnostics, RunLog, RunStore

NO_CEILING: Final = Ceiling()
FIRST_STEP: Final = "route its first step: Router.route(), or `bundle-router route --run`"


class Runs:
    """Runs over one catalog and one store. `versions` go into the header of each new run."""

    def __init__(
        self, catalog: Catalog, store: RunStore, diagnostics: Diagnostics, workspace: str, versions: Mapping[str, str]
    ) -> None:
        self._catalog = catalog
        self._catalog_text = encode(catalog.to_json()) + "\n"
        self._store = store
        self._diagnostics = diagnostics
        self._workspace = workspace
        self._versions = dict(versions)
        self._open = OpenRuns()

    def get(self, run_id: str) -> Run | None:
        """The run, if it is open here."""
        return self._open.get(run_id)

    def open(self, run_id: str, step: Step | None) -> Run:
        """Opens a run: a new one for a step, or one on disk to go on with. Callers may race; one opens it."""
        return self._open.open(run_id, lambda: self._opened(run_id, step))

    def close(self, run_id: str) -> None:
        """Ends a run and lets go of its directory. A run that is not open is left alone."""
        self._open.close(run_id)

    def holds(self, run_id: str) -> bool:
        """Whether the run is open here, or has an end that has not come yet."""
        return self._open.holds(run_id)

    def __len__(self) -> int:
        return len(self._open)

    def let_go(self, run_id: str) -> bool:
        """Ends the run if nothing of it is under way; whether it has ended."""
        return self._open.let_go(run_id)

    def retire(self) -> None:
        """Opens no other run from now on: to `open` one raises `openruns.Retired`."""
        self._open.retire()

    def close_all(self) -> None:
        """Ends every run and opens no other."""
        self._open.close_all()

    def artifact(self, run_id: str, sha256: str) -> bytes:
        """The bytes of an artifact of the run, open or not, or else of the nearest of its ancestors that has it.

        Raises UnknownRun, KeyError when none of them has such an artifact, CorruptRun, StorageError.
        """
        lineage = 0
        at: str | None = run_id
        while at is not None and lineage <= MAX_ANCESTORS:
            try:
                run = self.get(at)
                return run.artifacts.get(sha256) if run is not None else self._store.read_artifact(at, sha256)
            except KeyError:
                at, lineage = self._parent_of(at), lineage + 1
            except UnknownRun:
                if lineage == 0:
                    raise
                break  # an ancestor that was pruned
        raise KeyError(sha256)

    def _parent_of(self, run_id: str) -> str | None:
        run = self.get(run_id)
        if run is not None:
            return run.parent_id
        header = self._store.header(run_id)
        return _parent_id(header, self._store.last_decision(run_id) if header is None else None)

    def _opened(self, run_id: str, step: Step | None) -> Run:
        header, record = self._store.header(run_id), None
        if header is None:  # a new run, or one whose `run.json` power loss took: its decisions name its parent too
            record = self._store.last_decision(run_id)
            if record is None and step is None:
                raise UnknownRun(f"no run {run_id!r} here", advice=FIRST_STEP)
        if header is None and record is None:
            parent_id = step.parent_run_id if step is not None else None
        else:
            parent_id = _parent_id(header, record)
        if parent_id == run_id:
            raise RequestError(f"run {run_id!r} can't be its own parent")
        if step is not None:  # what would be refused is refused before anything is written
            self.check_parent(run_id, parent_id, step)
            self.folder(step, self.ceiling(parent_id))
        return self._create(run_id, parent_id)

    def _create(self, run_id: str, parent_id: str | None) -> Run:
        header = {
            **self._versions,
            "catalog_revision": self._catalog.revision,
            "parent_run_id": parent_id,
            "workspace": self._workspace,
        }
        log = self._store.open(run_id, header=header, catalog=self._catalog_text)
        try:
            return self._taken_up(run_id, log)
        except BaseException:
            with contextlib.suppress(StorageError):  # what is raised says why; the lock has to go in any case
                log.close()
            raise

    def _taken_up(self, run_id: str, log: RunLog) -> Run:
        """The run of a log that was just opened, where its records left it."""
        for torn in log.healed:
            self._diagnostics.event("warning", "log.healed", run_id=run_id, file=torn.file, saved=torn.saved)
        run = Run(
            run_id,
            log,
            log.artifacts(),
            parent_id=log.header.get("parent_run_id"),
            root=self._workspace,
            recent_steps=self._catalog.settings.limits.recent_steps,
            durable=self._catalog.settings.log.durability == "disk",
            on_trouble=lambda trouble: self._diagnostics.event(
                "error", "run.end_not_written", run_id=run_id, error=trouble
            ),
        )
        # Asked of the log and not of the directory: nobody else can write the run any more.
        record = log.last_decision()
        if record is not None:
            calls = self._store.calls_since(run_id, record["seq"])
            after = activation_from(record["activation"]["after"])
            run.restore(self._current(record), sticky_set.resumed(after, calls), budgets.resumed(calls))
        return run

    def _resumed(self, run_id: str, decided: Mapping[str, Any]) -> Activation:
        """The activation of a run as its records leave it: that of its last decision, and what its calls made of it."""
        after = activation_from(decided["activation"]["after"])
        return sticky_set.resumed(after, self._store.calls_since(run_id, decided["seq"]))

    def _current(self, record: Mapping[str, Any]) -> Current:
        """Where a record leaves a run. Tools that were added to its bundles since were not part of the decision."""
        outdated = record["catalog_revision"] != self._catalog.revision
        return Current(step_from(record), decision_from(record), facts_from(record), outdated)

    def check_parent(self, run_id: str, parent_id: str | None, step: Step) -> None:
        if step.parent_run_id is not None and step.parent_run_id != parent_id:
            was = f"a sub-agent of {parent_id!r}" if parent_id else "not a sub-agent"
            raise RequestError(
                f"run {run_id!r} is {was}, this step names {step.parent_run_id!r} as its parent",
                advice="give the sub-agent a run of its own",
            )

    def _standing(self, run_id: str) -> Standing:
        """Where a run stands now: the open one, or else its directory."""
        run = self.get(run_id)
        if run is not None:
            with run.lock:
                if run.current is not None:
                    return Standing(run.current.step, run.activation, run.parent_id, run.root)
        record, header = self._store.last_decision(run_id), self._store.header(run_id)
        if record is None or header is None:
            raise UnknownRun(
                f"the parent run {run_id!r} has no decision, so there is nothing its sub-agent may have",
                advice="route the parent's step first",
            )
        activation = self._resumed(run_id, record)
        root = workspace_of(header) or self._workspace
        return Standing(step_from(record), activation, header.get("parent_run_id"), root)

    def ceiling(self, parent_id: str | None) -> Ceiling:
        """What the ancestors leave. Raises RequestError while the policy of one is not understood: another config may
        be in force by now, and a denial that means nothing under it would be lost."""
        if parent_id is None:
            return NO_CEILING
        ceiling = ceiling_of(parent_id, self._workspace, self._standing)
        for grant in ceiling.grants:
            refuse_unknown(self._catalog, grant.policy, "the step policy of an ancestor run")
        return ceiling

    def folder(self, step: Step, ceiling: Ceiling) -> str:
        """The folder the step's local tools are confined to, beneath the workspace. It can only be narrowed.

        As it is on disk now: what it names is opened beneath the workspace, without following links, at every call.
        """
        if step.workspace is None:
            return ceiling.folder()
        base = Path(self._workspace, ceiling.folder())
        try:
            asked = (base / step.workspace).resolve()
            folder = relative_folder(self._workspace, str(asked)) if asked.is_dir() else None
        except (OSError, ValueError):  # a name that no file system has: with a NUL, a lone surrogate, too long
            folder = None
        if folder is None or not ceiling.holds(folder):
            raise RequestError(
                f"the step's workspace {step.workspace!r} is not a folder inside {str(base)!r}",
                advice="name a folder beneath the router's workspace, or leave it out",
            )
        return folder

    def stands(self, run_id: str) -> tuple[Current, Activation, str | None]:
        """Where a run stands, and its parent. Read from its directory, without opening it, when it is not open."""
        run = self.get(run_id)
        current = None
        if run is not None:
            with run.lock:
                current, activation, parent_id = run.current, run.activation, run.parent_id
        elif (record := self._store.last_decision(run_id)) is not None:
            current, activation = self._current(record), self._resumed(run_id, record)
            parent_id = _parent_id(self._store.header(run_id), record)
        if current is None:
            raise UnknownRun(f"run {run_id!r} has no decision yet", advice=FIRST_STEP)
        return current, activation, parent_id


def _parent_id(header: Mapping[str, Any] | None, record: Mapping[str, Any] | None) -> str | None:
    """Whose sub-agent a run is: its header says it, and, where that was lost, its last decision."""
    if header is not None:
        found: str | None = header.get("parent_run_id")
        return found
    return step_from(record).parent_run_id if record is not None else None
