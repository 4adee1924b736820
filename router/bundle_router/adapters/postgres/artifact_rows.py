"""The artifacts of runs in PostgreSQL: one copy of equal bytes, deleted with the last run that
names it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Final

import psycopg

from bundle_router.adapters.postgres.connections import Pool, is_away, to_storage_error
from bundle_router.adapters.postgres.objects import ObjectStore
from bundle_router.core.values.artifacts import ArtifactFile, check_digest, check_size
from bundle_router.errors import CorruptRun, StorageError

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_ROW_BYTES: Final = 1024 * 1024
"""Bytes above which an artifact goes to the object store, if there is one."""
_TRIES: Final = 5

_PUT: Final = """
with kept as (
    insert into router_artifacts (sha256, size, data) values (%(sha256)s, %(size)s, %(data)s)
    on conflict (sha256) do update set size = excluded.size returning sha256
)
insert into router_run_artifacts select %(run_id)s, sha256 from kept on conflict do nothing
"""


_FREE: Final = """
delete from router_artifacts a where sha256 = %s and not exists
    (select from router_run_artifacts r where r.sha256 = a.sha256)
returning data is null
"""


def lock_of(text: str) -> int:
    """Return the number of the advisory lock for a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


class PostgresArtifacts:
    """The artifacts of one run. Implements `ports.ArtifactStore`; several threads may use it."""

    def __init__(self, pool: Pool, run_id: str, objects: ObjectStore | None) -> None:
        self._pool = pool
        self._run_id = run_id
        self._objects = objects

    def put(self, data: bytes) -> str:
        """See `ports.ArtifactStore.put`."""
        check_size(len(data), MAX_BYTES)
        sha256 = hashlib.sha256(data).hexdigest()
        self._put(sha256, data)
        return sha256

    def _put(self, sha256: str, data: bytes) -> None:
        """Store the bytes.

        Retries if the connection was lost, or if a prune deleted the row meanwhile.
        """
        is_object = self._objects is not None and len(data) > MAX_ROW_BYTES
        values = {
            "run_id": self._run_id,
            "sha256": sha256,
            "size": len(data),
            "data": None if is_object else data,
        }
        deadline = time.monotonic() + 4 * self._pool.wait_s
        for attempt in range(_TRIES):
            try:
                with self._pool.lend(deadline) as connection, connection.transaction():
                    if (
                        is_object and self._objects is not None
                    ):  # under the lock: no prune may delete it before its row
                        connection.execute("select pg_advisory_xact_lock(%s)", (lock_of(sha256),))
                        self._objects.put(sha256, data)
                    connection.execute(_PUT, values)
                return
            except psycopg.errors.ForeignKeyViolation:
                if attempt == _TRIES - 1:
                    raise StorageError(f"run {self._run_id!r} is gone", kind="deleted") from None
            except psycopg.Error as error:
                if not is_away(error) or attempt == _TRIES - 1 or time.monotonic() > deadline:
                    raise to_storage_error(
                        f"store artifact {sha256}", self._pool.where, error
                    ) from None
                self._pool.drop_idle()
                time.sleep(0.05 * 2**attempt)

    def get(self, sha256: str) -> bytes:
        """Return the bytes.

        Raises RequestError for an invalid digest, KeyError, CorruptRun, StorageError.
        """
        check_digest(sha256)
        rows = self._pool.fetch(
            "select data from router_artifacts natural join router_run_artifacts where run_id = %s"
            " and sha256 = %s",
            (self._run_id, sha256),
            doing="read an artifact",
        )
        if not rows:
            raise KeyError(sha256)
        (data,) = rows[0]
        if data is None:
            if self._objects is None:
                raise CorruptRun(
                    f"artifact {sha256} has no bytes in the database, and the store's URL names no"
                    " object store",
                    advice="name it in the store's URL: …?objects=s3://bucket/prefix",
                )
            data = self._objects.get(sha256)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptRun(f"artifact {sha256} of run {self._run_id!r} does not have this digest")
        return bytes(data)

    def iter(self) -> Iterator[ArtifactFile]:
        """Yield every artifact of the run, by digest, with its size."""
        query = (
            "select sha256, size from router_artifacts join router_run_artifacts using (sha256)"
            " where run_id = %s"
        )
        yield from (
            ArtifactFile(sha256, size)
            for sha256, size in sorted(self._pool.fetch(query, (self._run_id,)))
        )

    def problems(self) -> Iterator[str]:
        """Check all artifacts of the run, and yield the errors, one sentence each."""
        for artifact in self.iter():
            try:
                self.get(artifact.sha256)
            except CorruptRun as error:
                yield error.message
            except KeyError:
                yield f"artifact {artifact.sha256} is gone from the object store"


def free_artifacts(pool: Pool, objects: ObjectStore | None, digests: Sequence[str]) -> None:
    """Delete those artifacts that no run names any more.

    An object is deleted after its row, under a lock that a writer of the same bytes takes first.
    """
    for sha256 in digests:
        try:
            with pool.lend() as connection:
                row = connection.execute(_FREE, (sha256,)).fetchone()
                if objects is None or row is None or not row[0]:
                    continue
                with connection.transaction():
                    connection.execute("select pg_advisory_xact_lock(%s)", (lock_of(sha256),))
                    artifact_row = connection.execute(
                        "select 1 from router_artifacts where sha256 = %s", (sha256,)
                    ).fetchone()
                    if artifact_row is None:
                        objects.delete(sha256)
        except psycopg.errors.ForeignKeyViolation:
            continue  # a run names it meanwhile
        except psycopg.Error as error:
            raise to_storage_error("free an artifact", pool.where, error) from None
