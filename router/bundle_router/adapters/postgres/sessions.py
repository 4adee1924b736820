"""A database session that shows others that this process is alive, and that receives
notifications.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from bundle_router.adapters.postgres.artifact_rows import lock_of
from bundle_router.adapters.postgres.connections import BoundedConnection, Pool, to_storage_error
from bundle_router.core.records.chain import Writer
from bundle_router.errors import StorageError

POLL_S: Final = 0.1
"""Seconds between two polls while waiting, in case a notification is lost."""
BEAT_S: Final = 2.0
"""Seconds between two looks of a process at its own session, to replace a lost one."""
BEAT_WAIT_S: Final = 3.0
"""Seconds that such a look, and then one attempt to connect, may take."""
DEAD_AFTER_S: Final = 10.0
"""Seconds without its lock after which a process counts as dead.

A process that lives has it again within `BEAT_S` and twice `BEAT_WAIT_S`.
"""

_HOLDERS: Final = """
select a.application_name from pg_locks l join pg_stat_activity a using (pid)
where l.locktype = 'advisory' and l.granted and l.mode = %s and l.objsubid = 1 and l.pid <>
        pg_backend_pid()
  and l.database = (select oid from pg_database where datname = current_database())
  and (l.classid::bigint << 32) | l.objid::bigint = %s
"""


class WriterSession:
    """One permanent connection that shows others that this process lives.

    It holds the lock of this process's token, and one for each run that is open here. It can be
    lost while nobody uses it, so a thread looks at it from time to time, replaces a lost one and
    takes the locks again. Others count a process as dead only when they have found its lock free
    for `dead_after_s`.
    """

    def __init__(self, pool: Pool, *, dead_after_s: float = DEAD_AFTER_S) -> None:
        self.pool = pool
        self._dead_after_s = dead_after_s
        self._lock = threading.RLock()
        self._connection: BoundedConnection | None = None
        self._token = secrets.token_hex(8)
        self._holds_token = False
        """Whether the present connection has the token's lock. The server may take a while to find
        out that the former one is gone, which has it until then.
        """
        self._open: Counter[str] = Counter()
        self._tables = ""
        self._missed: dict[str, _Missed] = {}
        """The processes whose locks nobody held at the last look, by their tokens."""
        self._beating: threading.Thread | None = None
        self._closing = threading.Event()

    def lock_of(self, run_id: str) -> int:
        """Return the number of a run's lock: two sets of tables in one database may have runs of
        one id.
        """
        if not self._tables:
            self._tables = str(self.pool.fetch("select 'router_runs'::regclass::oid::bigint")[0][0])
        return lock_of(f"run:{self._tables}:{run_id}")

    @property
    def token(self) -> str:
        with self._lock:
            self._live_session()
            return self._token

    def is_alive(self, token: str) -> bool:
        """Return whether the process of a token may live: whether it is this one, or its lock was
        held not long ago.

        Looks that lie further apart than `dead_after_s` do not count together: between them the
        database may have been away, for that process as well.
        """
        if token == self._token:
            return True
        is_held = bool(self.pool.fetch(_HOLDERS, ("ExclusiveLock", lock_of(f"writer:{token}"))))
        with self._lock:
            missed = self._missed.pop(token, None)
            if is_held:
                return True
            now_s = time.monotonic()
            if missed is None or now_s - missed.last_s > self._dead_after_s:
                missed = _Missed(now_s, now_s)
            self._missed[token] = replace(missed, last_s=now_s)
            return now_s - missed.first_s < self._dead_after_s

    def enter(self, run_id: str) -> None:
        """Take the run's shared lock, which shows that this process works on it."""
        with self._lock:
            if self._open[run_id] == 0:
                self._run("select pg_advisory_lock_shared(%s)", run_id)
            self._open[run_id] += 1

    def leave(self, run_id: str) -> tuple[Writer, ...]:
        """Release the run's lock; return the other processes that work on the run."""
        with self._lock:
            self._open[run_id] -= 1
            if self._open[run_id] <= 0:
                del self._open[run_id]
                self._run("select pg_advisory_unlock_shared(%s)", run_id)
        return self.writers_of(run_id)

    def writers_of(self, run_id: str) -> tuple[Writer, ...]:
        """Return the processes that work on a run."""
        return tuple(
            _writer(name)
            for (name,) in self.pool.fetch(_HOLDERS, ("ShareLock", self.lock_of(run_id)))
        )

    def _run(self, statement: str, run_id: str) -> None:
        connection = self._live_session()
        connection.deadline = time.monotonic() + self.pool.wait_s
        try:
            connection.execute(statement, (self.lock_of(run_id),))
        except psycopg.Error as error:
            connection.close()
            raise to_storage_error("keep a session", self.pool.where, error) from None

    def _live_session(self, wait_s: float | None = None) -> BoundedConnection:
        """Return the session, after replacing a lost one. The caller holds the lock.

        Raises StorageError where it can't be replaced within `wait_s` (by default the pool's).
        """
        connection = self._connection
        if connection is not None and not connection.closed and not _is_cut(connection):
            return connection
        deadline = time.monotonic() + (self.pool.wait_s if wait_s is None else wait_s)
        pause = 0.05
        while True:
            if (
                self._connection is not None
            ):  # the session is lost, or failed while opening: close its socket now
                with contextlib.suppress(psycopg.Error):
                    self._connection.close()
            try:
                self._connection = connection = self.pool.connect(
                    wait_s=deadline - time.monotonic()
                )
                connection.deadline = deadline
                self._holds_token = False
                self._take_token(connection)
                for run_id in self._open:
                    connection.execute(
                        "select pg_advisory_lock_shared(%s)", (self.lock_of(run_id),)
                    )
                self._begin_to_beat()
                return connection
            except psycopg.Error as error:
                if time.monotonic() + pause >= deadline:
                    raise to_storage_error("begin a session", self.pool.where, error) from None
                time.sleep(pause)
                pause = min(2 * pause, 0.5)

    def _take_token(self, connection: BoundedConnection) -> None:
        row = connection.execute(
            "select pg_try_advisory_lock(%s)", (lock_of(f"writer:{self._token}"),)
        ).fetchone()
        self._holds_token = row == (True,)

    def _begin_to_beat(self) -> None:
        if self._beating is None and not self._closing.is_set():
            self._beating = threading.Thread(target=self._beat, name="writer-session", daemon=True)
            self._beating.start()

    def _beat(self) -> None:
        while not self._closing.wait(BEAT_S):
            with self._lock, contextlib.suppress(StorageError):
                if not self._closing.is_set():
                    self._look_at_session()

    def _look_at_session(self) -> None:
        """Replace the session where it was lost, also if nobody told us so."""
        connection = self._live_session(BEAT_WAIT_S)
        connection.deadline = time.monotonic() + BEAT_WAIT_S
        try:
            if self._holds_token:
                connection.execute("select 1")
            else:
                self._take_token(connection)
        except psycopg.Error:
            connection.close()
            self._live_session(BEAT_WAIT_S)

    def wait_for(self, run_id: str, timeout_s: float) -> None:
        """Return at a notification of any run, or after the timeout; at the latest after the
        polling interval.
        """
        until = time.monotonic() + min(timeout_s, POLL_S)
        connection: Any = None
        try:
            with self.pool.lend(until + self.pool.wait_s) as connection:
                connection.execute("listen router_runs")
                for notice in connection.notifies(timeout=max(0.0, until - time.monotonic())):
                    if notice.payload == run_id:
                        break
                connection.deadline = time.monotonic() + self.pool.wait_s
                connection.execute("unlisten *")
        except psycopg.Error:
            time.sleep(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
        if self._beating is not None:
            self._beating.join()


@dataclass(frozen=True, slots=True)
class _Missed:
    """When a process's lock was found free, in monotonic seconds."""

    first_s: float
    """The first of the looks that count together."""
    last_s: float
    """The last of them."""


def _is_cut(connection: BoundedConnection) -> bool:
    """Return whether the server has ended the session: then there is unrequested data to read."""
    try:
        for _ in range(4):  # the server's last message, then the end of the stream
            if connection.pgconn.status == psycopg.pq.ConnStatus.OK:
                poll = select.poll()  # not `select`, which can't take descriptors over 1,023
                poll.register(connection.pgconn.socket, select.POLLIN)
                if not poll.poll(0):
                    break
                connection.pgconn.consume_input()
                connection.pgconn.is_busy()  # parses what was read
        return connection.is_ended or connection.pgconn.status != psycopg.pq.ConnStatus.OK
    except (psycopg.Error, OSError, ValueError):
        return True


def _writer(application: str) -> Writer:
    """Return the owner of a session, from its application name `bundle-router PID@HOST`."""
    pid, _, host = application.removeprefix("bundle-router ").partition("@")
    is_this_host = host == socket.gethostname()[: len(host)] and bool(host)
    if is_this_host and pid == str(os.getpid()):
        return Writer(os.getpid(), "another router of this process")
    if is_this_host:
        name = f"process {pid}"
    elif host:
        name = f"process {pid} on {host}"
    else:
        name = application
    return Writer(int(pid) if is_this_host and pid.isdigit() else 0, name)
