"""The runs that this process has open.

No process owns a run. This process knows a run by the fold of the records it has read. It reads on
before it answers, and decides again where other processes appended first. See `run_records` for one
run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.records.fold import RunFold
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values import Activation
from bundle_router.core.values.words import shown_run_id
from bundle_router.engine.run_records import OpenRun, RunEnd
from bundle_router.errors import (
    RequestError,
    RouterError,
    StorageError,
    UnknownRun,
    expect,
)
from bundle_router.ports import Diagnostics, Redactor, RunLog, RunStore

if TYPE_CHECKING:
    from bundle_router.core.records.seen import SeenLedger

NOTHING_ACTIVE: Final = Activation()
FIRST_STEP: Final = (
    "route its first step: Router.route(), POST /v1/route or `bundle-router route --run`"
)
NO_RUN: Final = f"{FIRST_STEP}; if another machine did, both need the same store"
_STRIPES: Final = 64
"""Locks that runs share, by hash, while they are opened: enough that two runs rarely meet, few
enough to keep.
"""


class RunTable:
    """The open runs of this process, over one catalog and one store. Safe for many threads."""

    def __init__(
        self,
        catalog: Catalog,
        store: RunStore,
        diagnostics: Diagnostics,
        redactor: Redactor,
        workspace: str,
    ) -> None:
        self.store = store
        self.redactor = redactor
        self.workspace = workspace
        self._catalog = catalog
        self.diagnostics = diagnostics
        self._runs: dict[str, OpenRun] = {}
        self.ending: set[OpenRun] = set()
        """Runs that are closed while steps or calls are under way."""
        self._lock = threading.Lock()
        self._stripes = tuple(threading.Lock() for _ in range(_STRIPES))
        self._closed = False

    def quote(self, text: str) -> str:
        """Return an id for a message, in quotes and without what looks like a secret in it."""
        return repr(self.redactor.redact(text))

    def quote_run(self, run_id: str) -> str:
        """Return the id of a run that is not there, for a message (see `shown_run_id`)."""
        return shown_run_id(run_id, self.redactor.redact)

    # --- opening ----------------------------------------------------------------------------------

    def get(self, run_id: str) -> OpenRun | None:
        """Return the run if it is open here."""
        return self._runs.get(run_id)

    def hold_known(self, run_id: str) -> OpenRun | None:
        """Hold and return the run if it is open here. The caller releases it."""
        run = self._runs.get(run_id)
        if run is not None and run.uses.hold():
            return run
        return None

    def hold(self, run_id: str, begin: Callable[[], OpenRun] | None = None) -> OpenRun:
        """Open and hold a run; where it does not exist, begin it with `begin`. Blocks.

        Raises UnknownRun for a missing run without `begin`; CorruptRun, StorageError.
        """
        while True:
            run = self._find_run(run_id)
            if run is None and begin is not None:
                run = begin()
            if run is None:
                raise UnknownRun(f"no run {self.quote_run(run_id)} here", advice=NO_RUN)
            if run.uses.hold():
                return run

    def reading(self, run_id: str) -> OpenRun | None:
        """Return the run with all its records read, without holding it; None where it does not
        exist. Blocks.
        """
        run = self._runs.get(run_id) or self._find_run(run_id)
        if run is None:
            return None
        try:
            with run.lock:
                if not run.uses.has_ended:
                    run.read_on()
        except StorageError as trouble:
            if trouble.kind != "deleted" or run.uses.count:
                raise
            self._forget(run)  # it was pruned since we looked at it
            return self.reading(run_id)
        return run

    def _find_run(
        self, run_id: str, open_: Callable[[str], RunLog | None] | None = None
    ) -> OpenRun | None:
        """Return the run, opened by `open_` where it is not; None where the store has none."""
        expect("a run id", run_id, str, "use the `run_id` of the step that was routed")
        with self._stripes[hash(run_id) % _STRIPES]:
            self._refuse_closed()
            run = self._runs.get(run_id)
            if run is not None and not run.uses.has_ended:
                return run
            log = (open_ or self.store.open)(run_id)
            if log is None:
                return None
            return self._register_run(run_id, log)

    def create(self, run_id: str, header: RunHeader) -> OpenRun:
        """Begin a run in the store, or return it where another thread has just done so."""
        run = self._find_run(
            run_id, partial(self.store.create, header=header, catalog=self._catalog.text)
        )
        assert run is not None  # noqa: S101 - `create` returns a log
        return run

    def _register_run(self, run_id: str, log: RunLog) -> OpenRun:
        limits = self._catalog.settings.limits
        log_settings = self._catalog.settings.log
        run = OpenRun(
            log,
            self,
            RunFold(limits.recent_steps, self._ledger()),
            durable=log_settings.durability == "disk",
        )
        with ExitStack() as on_error:
            on_error.callback(
                log.close
            )  # else nobody would: it counts as open while this process lives
            with run.lock:
                run.read_on()
            for torn in log.healed:
                self.diagnostics.event(
                    "warning", "log.healed", run_id=run_id, file=torn.file, saved=torn.saved
                )
            with self._lock:
                self._refuse_closed()
                self._runs[run_id] = run
            on_error.pop_all()
        return run

    def _ledger(self) -> SeenLedger | None:
        """Return what keeps what the branches of a run have seen; None where no row asks for it."""
        if not self._catalog.looks_at_taints:
            return None
        from bundle_router.core.records.seen import SeenLedger  # few configs have such a row

        return SeenLedger(self._catalog)

    def keep_catalog(self, run: OpenRun, wait_s: float) -> None:
        """Make sure that the catalog of a decision is stored with the run.

        The caller holds the run's lock.
        """
        run.log.put_catalog(self._catalog.revision, self._catalog.text, wait_s=wait_s)

    # --- letting go -------------------------------------------------------------------------------

    def close(self, run_id: str) -> RunEnd:
        """Close a run if it is open here.

        Raises UnknownRun, and StorageError when its end can't be written.
        """
        with self._lock:
            run = self._runs.pop(run_id, None)
        if run is not None:
            self.ending.add(run)
            return run.close()
        self._refuse_closed()
        log = self.store.open(run_id)
        if log is None:
            raise UnknownRun(f"no run {self.quote_run(run_id)} here", advice=NO_RUN)
        return RunEnd(ended=False, others=log.close())

    def discard(self, run: OpenRun) -> None:
        """Drop a run whose last records may not be on disk.

        What is on disk counts when it is opened again.
        """
        self._forget(run)
        run.uses.is_closing = True

    def _forget(self, run: OpenRun) -> None:
        with self._lock:
            if self._runs.get(run.id) is run:
                del self._runs[run.id]

    def close_idle(self, run_id: str) -> bool:
        """Close a run if nothing of it is under way. Return whether it is not open any more."""
        run = self._runs.get(run_id)
        if run is not None and not run.close_idle():
            return False
        if run is not None:
            self._forget(run)
        return True

    def close_all(self) -> None:
        """Close every run, and open no more. Raises the first error after all are closed."""
        with self._lock:
            self._closed = True
            runs = [*self._runs.values(), *self.ending]
            self._runs.clear()
        troubles: list[RouterError] = []
        for run in runs:
            try:
                run.close()
            except RouterError as trouble:  # the other runs still want to be let go of
                troubles.append(trouble)
                if isinstance(trouble, StorageError) and trouble.kind == "unreachable":
                    # each would wait for the database as long; it lets go of them as its sessions
                    # end
                    break
        if troubles:
            raise troubles[0]

    def uses(self, run_id: str) -> bool:
        """Return whether this process made a step or a call of the run since it opened it."""
        run = self._runs.get(run_id)
        return run is not None and run.uses.is_used

    @property
    def any_used(self) -> bool:
        return any(run.uses.is_used for run in list(self._runs.values()))

    def _refuse_closed(self) -> None:
        if self._closed:
            raise RequestError("this router is closed", advice="open another with Router.open(...)")
