"""The log of one run. See `bundle_router.adapters.postgres` for the rules."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import psycopg

from bundle_router.adapters.postgres.artifact_rows import PostgresArtifacts
from bundle_router.adapters.postgres.connections import (
    PAUSE_S,
    UnconfirmedCommit,
    is_away,
    to_storage_error,
)
from bundle_router.adapters.postgres.sessions import WriterSession
from bundle_router.core.records.chain import (
    Appended,
    BadLine,
    File,
    Head,
    RepairedTail,
    Writer,
    encode_record,
    genesis,
    seal_text,
    unseal,
    with_opening,
)
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values.canonical import decode, encode, time_text
from bundle_router.errors import CorruptRun, KeyConflict, RunBusy, StorageError
from bundle_router.ports import Clock

Record = Mapping[str, Any]
BATCH: Final = 1000
"""Lines per fetch."""
CONFIRMED_BY: Final = "update router_runs set head = head where run_id = %s"

_APPEND: Final = """
with moved as (
    update router_runs set next_seq = %(seq)s + 1, head = %(hash)s, ended = null
    where run_id = %(run_id)s and next_seq = %(seq)s and head = %(prev)s returning run_id
), written as (
    insert into router_records (run_id, seq, file, kind, key, branch, attempt, line)
    select run_id, %(seq)s, %(file)s, %(kind)s, %(key)s, %(branch)s, %(attempt)s, %(line)s from
        moved
)
(select null as line, case when %(notify)s then pg_notify('router_runs', run_id) end from moved)
union all
(select line, null from router_records
 where run_id = %(run_id)s and seq >= %(seq)s and not exists (select from moved) order by seq limit
        1000)
"""
"""Returns one row without a line if the line was written; else the existing lines from that place
on, as far as they were committed when the statement began.
"""


class PostgresRunLog:
    """One run as one process reads and appends it. Implements `ports.RunLog`.

    The position (`next_seq`, `head`) is after the last record that the caller received. `_waiting`
    holds records that were read but not delivered, because the operation that read them failed.
    """

    def __init__(
        self,
        header: RunHeader,
        session: WriterSession,
        artifacts: PostgresArtifacts,
        clock: Clock,
    ) -> None:
        self._pool = session.pool
        self._session = session
        self._artifacts = artifacts
        self._clock = clock
        self._run_id = run_id = header.run_id
        self.header = header
        self.path = f"{self._pool.where}#{run_id}"
        self.id_prefix = f"{run_id}.{header.nonce[:8]}" if header.nonce else run_id
        self.healed: tuple[RepairedTail, ...] = ()
        self.head = genesis(run_id)
        self._read_to = 0
        self._waiting: list[Record] = []
        self._catalogs: set[str] = {header.catalog_revision}
        self._has_begun = self._is_closed = False

    # --- reading ----------------------------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        """Number of records that the caller has received."""
        return self._read_to - len(self._waiting)

    def news(self) -> Iterator[Record]:
        """Yield the records after the position, in order.

        Raises CorruptRun if they do not continue the chain.
        """
        while self._fetch():
            yield from self._hand_out()
        yield from self._hand_out()

    def _hand_out(self) -> list[Record]:
        records = self._waiting
        self._waiting = []
        return records

    def _fetch(self) -> int:
        """Read new records into `_waiting`, at most one batch; return their number."""
        rows = self._pool.fetch(
            "select next_seq, head from router_runs where run_id = %s", (self._run_id,)
        )
        if not rows:
            raise self._deleted()
        next_seq, head = rows[0]
        if (next_seq, head) == (self._read_to, self.head):
            return 0
        if next_seq <= self._read_to:
            raise self._other_history(next_seq)
        lines = self._pool.fetch(
            "select line from router_records where run_id = %s and seq >= %s order by seq limit %s",
            (self._run_id, self._read_to, BATCH),
        )
        for (line,) in lines:
            self._take(line)
        return len(lines)

    def _take(self, line: str) -> None:
        """Advance the position by one line, which must continue the chain."""
        try:
            sealed = unseal(line.encode("ascii"))
        except (BadLine, UnicodeEncodeError) as error:
            raise CorruptRun(
                f"record {self._read_to} of {self.path}: {error}",
                advice="`bundle-router runs verify` names the first bad record",
            ) from None
        if sealed.seq != self._read_to or sealed.prev != self.head:
            raise self._other_history(sealed.seq)
        self._waiting.append(sealed.record)
        self._read_to = sealed.seq + 1
        self.head = sealed.hash

    def _deleted(self) -> StorageError:
        advice = "close it; the next step begins a new run"
        return StorageError(f"run {self._run_id!r} was deleted", kind="deleted", advice=advice)

    def _other_history(self, there: int) -> CorruptRun:
        return CorruptRun(
            f"{self.path} does not continue what was read of it before (record {self._read_to - 1},"
            f" found {there}): the database holds another history",
            advice=(
                "a replica that lacked the end was promoted, or a copy put back: use a new run id"
                " for this work"
            ),
        )

    def record(self, seq: int) -> Record:
        """Read again one record before the position. Raises KeyError."""
        query = "select line from router_records where run_id = %s and seq = %s"
        rows = self._pool.fetch(query, (self._run_id, seq)) if 0 <= seq < self.next_seq else []
        if not rows:
            raise KeyError(seq)
        return unseal(rows[0][0].encode("ascii")).record

    def wait(self, timeout_s: float) -> None:
        """Return when there may be new records, at the latest after `timeout_s`."""
        self._session.wait_for(self._run_id, timeout_s)

    # --- appending --------------------------------------------------------------------------------

    def append(
        self, file: File, record: dict[str, Any], *, only_at: int | None = None, wait_s: float = 5.0
    ) -> Appended:
        """Seal and write one record after all others; with `only_at`, only if there are no new
        ones.

        Raises RunBusy if others kept appending for `wait_s`; KeyConflict if the run has a record of
        this type and key; StorageError, ValueError, TypeError. After `unreachable` nobody knows
        whether the record was written: it was not acknowledged, and if it was written it comes as a
        new record.
        """
        if self._is_closed:
            raise StorageError(
                f"run {self._run_id!r} is closed", kind="io_error", advice="open it again"
            )
        deadline = time.monotonic() + wait_s
        text = encode_record(record)
        if not self._has_begun:
            self.begin()
        while only_at is None or (only_at == self._read_to and not self._waiting):
            seq = self._read_to
            line, hash_ = seal_text(
                with_opening(text, self.header.opening_digest) if seq == 0 else text, seq, self.head
            )
            foreign_lines = self._write(file, record, seq, line, hash_, deadline)
            if foreign_lines is None:
                self._read_to = seq + 1
                self.head = hash_
                return Appended(tuple(self._hand_out()), seq, hash_)
            for foreign_line in foreign_lines:
                self._take(foreign_line)
            while self._fetch():
                pass
            if time.monotonic() >= deadline:
                raise RunBusy(
                    f"other processes kept appending to {self.path} for {wait_s:g} s",
                    advice="try again: nothing was written",
                )
        while self._fetch():
            pass
        return Appended(tuple(self._hand_out()), None)

    def _write(
        self, file: File, record: dict[str, Any], seq: int, line: bytes, hash_: str, deadline: float
    ) -> list[str] | None:
        """Send the statement until it is answered.

        Return None if the run holds the line, written by us; else the lines of others from that
        place on, as far as they are known yet.

        After a broken connection the outcome is unknown. The same bytes are sent again; at most one
        of the two can be written. If the head did not move on the second try, the line at `seq`
        tells whether the first one was written.
        """
        key = str(record.get("key") or "")
        ends_keyed_call = file == "calls" and key != "" and record.get("type") != "call.started"
        values = {
            "run_id": self._run_id,
            "seq": seq,
            "prev": self.head,
            "hash": hash_,
            "file": file,
            "kind": str(record.get("type", "")),
            "key": _key_column(key),
            # for readers of the table
            "branch": str(record.get("branch") or "").replace("\0", "") or None,
            "attempt": int(record.get("attempt") or 1),
            "line": line[:-1].decode("ascii"),
            "notify": ends_keyed_call,
        }
        is_doubtful = False
        looks = 0
        pause = PAUSE_S
        while True:
            try:
                with self._pool.lend(deadline) as connection:
                    rows = connection.execute(_APPEND, values).fetchall()
                    lines = [record_line for record_line, _ in rows]
                    is_ours = is_doubtful and values["line"] in lines[:1]
                    if is_ours:
                        connection.execute(
                            CONFIRMED_BY, (self._run_id,)
                        )  # waits for the replicas, as every commit
                    if connection.warned:
                        raise UnconfirmedCommit(
                            f"{self.path}: {connection.warned}",
                            kind="unreachable",
                            advice="try again",
                        )
                    if is_ours or lines == [None]:
                        return None
                    if lines or not is_doubtful or looks == 2:
                        return lines
                    # the statement that moved the head has committed by now: read again whose it
                    # was
                    looks += 1
            except psycopg.errors.UniqueViolation as error:
                if error.diag.constraint_name == "router_records_key":
                    raise KeyConflict(
                        f"run {self._run_id!r} has a {values['kind']} of key {key!r}"
                    ) from None
                return []
            except (psycopg.Error, UnconfirmedCommit) as error:
                is_unreachable = isinstance(error, UnconfirmedCommit) or is_away(error)
                is_doubtful = is_doubtful or is_unreachable
                if not is_unreachable or time.monotonic() + pause >= deadline:
                    if isinstance(error, UnconfirmedCommit):
                        raise
                    raise to_storage_error("append to a run", self._pool.where, error) from None
                self._pool.drop_idle()
                time.sleep(pause)
                pause = min(pause * 2, 0.5)

    # --- what stands beside the records -----------------------------------------------------------

    def put_catalog(self, revision: str, text: str, *, wait_s: float = 5.0) -> None:
        """Store the text of a catalog revision with the run, before a decision names it."""
        if revision in self._catalogs:
            return
        self._pool.fetch(
            """
            with kept as (insert into router_catalogs values (%(revision)s, %(text)s) on conflict
            do nothing)
            insert into router_run_catalogs select %(run_id)s, %(revision)s,
                (select count(*) from router_run_catalogs where run_id = %(run_id)s) on conflict do
                nothing
            """,
            {"run_id": self._run_id, "revision": revision, "text": text},
            doing="store a catalog",
        )
        self._catalogs.add(revision)

    def artifacts(self) -> PostgresArtifacts:
        return self._artifacts

    def sync(self) -> None:
        """Do nothing: appended records are committed."""

    # --- its end ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Announce to other processes, until `close`, that this process works on the run.

        Raises StorageError (`deleted`) if the run was deleted meanwhile, also if there is another
        one of its id.
        """
        if not self._has_begun:
            self._session.enter(self._run_id)
            rows = self._pool.fetch(
                "select header from router_runs where run_id = %s", (self._run_id,)
            )
            if [RunHeader(decode(text)).opening_digest for (text,) in rows] != [
                self.header.opening_digest
            ]:
                self._session.leave(self._run_id)
                raise self._deleted()
            self._has_begun = True

    def close(self) -> tuple[Writer, ...]:
        """Close the run.

        If no other process has it open, write its end; else return those processes.
        """
        if self._is_closed:
            return ()
        self._is_closed = True
        if not self._has_begun:
            return ()
        writers = self._session.leave(self._run_id)
        if not writers:
            self._write_end()
        return writers

    def _write_end(self) -> None:
        """Write `run.json` for the end of the run, unless records were appended meanwhile."""
        rows = self._pool.fetch(
            "select next_seq, head from router_runs where run_id = %s", (self._run_id,)
        )
        if not rows:
            return
        count, head = rows[0]
        query = (
            "select revision from router_run_catalogs where run_id = %s order by position, revision"
        )
        revisions = [revision for (revision,) in self._pool.fetch(query, (self._run_id,))]
        header_revisions = {entry.revision for entry in self.header.catalogs}
        later = [revision for revision in revisions if revision not in header_revisions]
        last_header = (
            self.header.with_catalogs(later)
            .end(time_text(self._clock.time_ns()), Head(count, head))
            .sealed()
        )
        self._pool.fetch(
            "update router_runs set ended = %s where run_id = %s and next_seq = %s and head = %s",
            (last_header.to_text(), self._run_id, count, head),
            doing="close a run",
        )

    def __repr__(self) -> str:
        return f"PostgresRunLog({self.path!r}, next_seq={self.next_seq})"


def _key_column(key: str) -> str | None:
    """Return a record's key as its column holds it; None without a key.

    Texts hold no NUL in the database. A key with one is escaped and padded to more than any key's
    length, so that it is no other's.
    """
    if "\0" in key:
        return encode(key).ljust(201)
    return key or None
