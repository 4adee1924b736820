"""The run store. See `bundle_router.adapters.postgres` for the rules."""

from __future__ import annotations

import secrets
import threading
from typing import Final

import psycopg

from bundle_router.adapters.postgres.artifact_rows import PostgresArtifacts
from bundle_router.adapters.postgres.connections import Pool, to_storage_error, without_objects
from bundle_router.adapters.postgres.objects import ObjectStore
from bundle_router.adapters.postgres.pooling import refuse_transaction_pooling
from bundle_router.adapters.postgres.run_rows import PostgresRunLog
from bundle_router.adapters.postgres.schema import migrate
from bundle_router.adapters.postgres.sessions import DEAD_AFTER_S, WriterSession
from bundle_router.core.records.chain import genesis
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values import RUN_ID
from bundle_router.core.values.canonical import decode, time_text
from bundle_router.core.values.words import RUN_ID_ADVICE, not_a_run_id
from bundle_router.errors import RequestError, StorageError
from bundle_router.ports import Clock


class PostgresRunStore:
    """The runs of one database. Implements `ports.RunStore`; many threads may use it.

    `url` is libpq's (several hosts with `target_session_attrs=read-write` follow a fail-over), with
    one additional parameter, `objects`: the URL of an object store for artifacts over 1 MiB.
    `wait_s` bounds every statement and every attempt to connect. `dead_after_s` says for how long a
    process has to be without its lock before it counts as dead (see `WriterSession`). The tables
    are created or migrated on first use.
    """

    blocks: Final = True

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        wait_s: float = 5.0,
        dead_after_s: float = DEAD_AFTER_S,
    ) -> None:
        plain, objects = without_objects(url)
        self.place = url
        """The URL, for `open_archive`."""
        self._clock = clock
        self.pool = Pool(plain, wait_s=wait_s)
        self._objects_url = objects
        self._objects: ObjectStore | None = None
        self._session = WriterSession(self.pool, dead_after_s=dead_after_s)
        self._ready = False
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Create or migrate the tables, once. Raises StorageError, RequestError."""
        with self._lock:
            if self._ready:
                return
            try:
                refuse_transaction_pooling(self.pool)
                with self.pool.lend() as connection:
                    migrate(connection)
            except psycopg.Error as error:
                raise to_storage_error("prepare the tables", self.pool.where, error) from None
            self._objects = ObjectStore(self._objects_url) if self._objects_url else None
            self._ready = True

    @property
    def objects(self) -> ObjectStore | None:
        return self._objects

    @property
    def writer(self) -> str:
        """Token of this process, alive as long as the process."""
        self.prepare()
        return self._session.token

    def is_alive(self, writer: str) -> bool:
        """Return whether the token's process may still be running: whether its session held its
        lock during the last seconds.
        """
        return self._session.is_alive(writer)

    def check(self) -> None:
        """Check that the database answers. Raises StorageError."""
        self.prepare()
        self.pool.fetch("select 1", doing="look whether it is there")

    def open(self, run_id: str) -> PostgresRunLog | None:
        """Return an existing run; None if there is none.

        Raises RequestError, CorruptRun, StorageError.
        """
        if not RUN_ID.fullmatch(run_id):
            raise RequestError(not_a_run_id(run_id), advice=RUN_ID_ADVICE)
        self.prepare()
        rows = self.pool.fetch(
            "select header from router_runs where run_id = %s", (run_id,), doing="open a run"
        )
        if not rows:
            return None
        header = RunHeader(decode(rows[0][0]))
        return PostgresRunLog(header, self._session, self.artifacts(run_id), self._clock)

    def create(self, run_id: str, *, header: RunHeader, catalog: str) -> PostgresRunLog:
        """Begin a run, or open it if it exists. All or nothing."""
        if not RUN_ID.fullmatch(run_id):
            raise RequestError(not_a_run_id(run_id), advice=RUN_ID_ADVICE)
        self.prepare()
        opened = time_text(self._clock.time_ns())
        first_header = header.begin(
            run_id, opened=opened, nonce=header.nonce or secrets.token_hex(16), durability="disk"
        )
        self.pool.fetch(
            """
            with kept as (insert into router_catalogs values (%(revision)s, %(catalog)s) on
            conflict do nothing),
            begun as (
                insert into router_runs (run_id, head, opened, header)
                values (%(run_id)s, %(head)s, %(opened)s, %(header)s) on conflict do nothing
                returning run_id
            )
            insert into router_run_catalogs select run_id, %(revision)s, 0 from begun
            """,
            {
                "run_id": run_id,
                "head": genesis(run_id),
                "opened": opened,
                "header": first_header.sealed().to_text(),
                "revision": header.catalog_revision,
                "catalog": catalog,
            },
            doing="begin a run",
        )
        try:
            if (log := self.open(run_id)) is not None:
                log.begin()
                return log
        except StorageError as error:
            if error.kind != "deleted":
                raise
        return self.create(
            run_id, header=header, catalog=catalog
        )  # it was pruned before it was locked here

    def artifacts(self, run_id: str) -> PostgresArtifacts:
        return PostgresArtifacts(self.pool, run_id, self._objects)

    def close(self) -> None:
        """Close the session and every connection."""
        self._session.close()
        self.pool.close()
