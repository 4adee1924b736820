"""A small pool of connections to PostgreSQL. Every operation has a deadline."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bundle_router.errors import RequestError, StorageError

T = TypeVar("T")

MAX_CONNECTIONS: Final = 16
CONNECT_S: Final = 3
PAUSE_S: Final = 0.05
"""Seconds before the first retry to connect; doubled up to half a second."""
LOST: Final = (psycopg.OperationalError, psycopg.InterfaceError)
"""The server, or the way to it, is gone.

(`is_away` tells them from a statement's errors that are `OperationalError` too.)
"""


_OPTION: Final = re.compile(r"(?:\\.|[^\s\\])+", re.DOTALL)
"""A word of libpq's options: a backslash is before a blank that belongs to it."""


class UnconfirmedCommit(StorageError):
    """The statement was carried out, but the server could not confirm that it is durable."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose statements all end by `deadline` (monotonic seconds)."""

    deadline: float = float("inf")
    warned: str = ""
    is_ended: bool = False
    """Whether the server has announced the end of the session."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Run one exchange with the server.

        After `deadline`, abandon the connection and raise OperationalError.
        """
        seconds_left = max(0.001, min(self.deadline - time.monotonic(), 3600.0))
        wait_s = seconds_left if timeout is None else min(seconds_left, timeout)
        return super().wait(gen, interval, wait_s)


def without_objects(url: str) -> tuple[str, str]:
    """Split a URL into the part for libpq and the object store's URL, from its parameter `objects`
    ("" if absent).
    """
    try:
        parts = urlsplit(url.replace("postgresql+psycopg://", "postgresql://", 1))
    except ValueError as wrong:
        raise RequestError(
            f"the store's URL can't be read: {wrong}", advice="write postgresql://…"
        ) from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise RequestError(
            f"{parts.scheme or url[:20]!r} is not a store",
            advice="give a folder, or postgresql://…",
        )
    query = parse_qsl(parts.query, keep_blank_values=True)
    objects = next((value for name, value in query if name == "objects"), "")
    remaining_query = urlencode(
        [(name, value) for name, value in query if name != "objects"], quote_via=quote
    )  # libpq: no `+`
    return urlunsplit(parts._replace(query=remaining_query)), objects


def settings_of_options(options: str) -> dict[str, str] | None:
    """Return the settings of libpq's `options` (`-c name=value`); None where there is anything
    else among them.

    >>> settings_of_options(r"-csearch_path=a,b --work-mem=1MB -c TimeZone=Etc/GMT\\ 0")
    {'search_path': 'a,b', 'work_mem': '1MB', 'TimeZone': 'Etc/GMT 0'}
    """
    settings = {}
    words = iter([re.sub(r"\\(.)", r"\1", word) for word in _OPTION.findall(options)])
    for word in words:
        if word == "-c":
            setting = next(words, "")
        elif word.startswith(("-c", "--")):
            setting = word[2:]
        else:
            return None
        name, is_setting, value = setting.partition("=")
        if not is_setting:
            return None
        settings[name.replace("-", "_")] = value
    return settings


def is_away(error: psycopg.Error) -> bool:
    """Return whether the connection or the server is gone, so that the statement's outcome is
    unknown.
    """
    if isinstance(error, pg.QueryCanceled | pg.LockNotAvailable | pg.DiskFull | pg.OutOfMemory):
        return False
    return isinstance(error, LOST)


def to_storage_error(doing: str, where: str, error: psycopg.Error) -> StorageError:
    """Return the StorageError for an error of the database."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, pg.DiskFull):
        kind = "disk_full"
        advice = "free space for the database, then try again; no restart is needed"
    elif isinstance(error, pg.ReadOnlySqlTransaction):
        kind = "read_only"
        advice = "the server is a replica: name the primary, or all hosts and target_session_attrs"
    elif isinstance(error, LOST):
        kind = "unreachable"
        advice = "look whether the database is up and can be reached; then try again"
    else:
        kind = "io_error"
        advice = "look at the database's log"
    return StorageError(f"can't {doing} in {where}: {reason}", kind=kind, advice=advice)


class Pool:
    """A pool that lends each connection to one thread at a time. It connects on first use."""

    def __init__(self, url: str, *, wait_s: float) -> None:
        self.wait_s = wait_s
        self.conninfo, settings = self._without_options(url)
        self._settings = {"statement_timeout": f"{int(wait_s * 1000)}ms", **settings}
        """What each connection is set to: a limit for every statement, and what the URL's options
        say.
        """
        self.where = self._describe_url(url)
        self._idle: list[BoundedConnection] = []
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = False

    @staticmethod
    def _describe_url(url: str) -> str:
        """Return the URL without user, password and parameters, for messages."""
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host", "")
        return f"postgresql://{host}{parts.path}"

    @staticmethod
    def _without_options(url: str) -> tuple[str, dict[str, str]]:
        """Return the URL as libpq keywords, and the settings of its options.

        Options that are not all settings stay in the keywords. PgBouncer refuses options at the
        start of a connection, or throws them away.
        """
        try:
            words = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            raise RequestError(
                "the store's URL is not one that PostgreSQL's library takes"
            ) from None
        settings = settings_of_options(str(words.get("options") or ""))
        if settings is None:
            return make_conninfo("", **words), {}
        words.pop("options", None)
        settings.pop("application_name", None)  # ours says which process it is
        return make_conninfo("", **words), settings

    def connect(self, *, wait_s: float | None = None) -> BoundedConnection:
        """Return a new connection. Raises psycopg.OperationalError."""
        wait_s = self.wait_s if wait_s is None else wait_s
        connection = BoundedConnection.connect(
            self.conninfo,
            autocommit=True,
            connect_timeout=max(2, min(CONNECT_S, round(wait_s))),
            application_name=f"bundle-router {os.getpid()}@{socket.gethostname()}"[:63],
            tcp_user_timeout=int(self.wait_s * 1000),
            keepalives_idle=10,
        )

        def note(diagnostic: pg.Diagnostic) -> None:
            connection.is_ended = connection.is_ended or diagnostic.severity_nonlocalized in (
                "FATAL",
                "PANIC",
            )
            if diagnostic.severity_nonlocalized == "WARNING":
                connection.warned = diagnostic.message_primary or "the server warned"

        connection.add_notice_handler(note)
        connection.prepare_threshold = 1
        connection.deadline = time.monotonic() + wait_s
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: BoundedConnection) -> None:
        calls = ", ".join(["set_config(%s, %s, false)"] * len(self._settings))
        values = [text for setting in self._settings.items() for text in setting]
        connection.execute(f"select {calls}".encode(), values, prepare=False)

    @contextmanager
    def lend(self, deadline: float | None = None) -> Iterator[BoundedConnection]:
        """Lend a connection for the block. A failed connection is closed, not lent again.

        Raises psycopg.OperationalError if none can be opened, StorageError if all are in use for
        too long.
        """
        deadline = time.monotonic() + self.wait_s if deadline is None else deadline
        if not self._room.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise StorageError(
                f"all connections to {self.where} are in use",
                kind="unreachable",
                advice="try again",
            )
        try:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = self.connect(wait_s=deadline - time.monotonic())
            connection.deadline = deadline
            connection.warned = ""
            try:
                yield connection
            except BaseException:  # a connection that was interrupted in mid-exchange is unusable
                with suppress(psycopg.Error):
                    connection.close()
                raise
            with self._lock:
                if self._closed or connection.broken or connection.closed:
                    connection.close()
                else:
                    self._idle.append(connection)
        finally:
            self._room.release()

    def drop_idle(self) -> None:
        """Close the idle connections: after one was lost, the others to that server are lost
        too.
        """
        with self._lock:
            idle = self._idle
            self._idle = []
        for connection in idle:
            connection.close()

    def fetch(
        self, query: str, parameters: Any = (), *, doing: str = "read a run"
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a statement that may safely be sent twice."""
        deadline = time.monotonic() + self.wait_s
        pause = PAUSE_S
        while True:
            try:
                with self.lend(deadline) as connection:
                    cursor = connection.execute(query, parameters)
                    if cursor.description is None:
                        return []
                    return cursor.fetchall()
            except psycopg.Error as error:
                if not is_away(error) or time.monotonic() + pause >= deadline:
                    raise to_storage_error(doing, self.where, error) from None
                self.drop_idle()
                time.sleep(pause)
                pause = min(pause * 2, 0.5)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.drop_idle()
