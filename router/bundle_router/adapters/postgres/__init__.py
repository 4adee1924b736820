"""Runs in PostgreSQL: the store for engines whose workers run on several machines.

Implements `ports.RunStore`.

Rules:
1. A record is the same line as in a run directory, so the chain, `verify`, export and import need
   no other code.
2. An append is one statement, sent once. It moves the run's head if the head is the one the line
   was sealed on, and only then inserts the line. No lock or transaction is held between statements.
3. A statement whose connection broke is sent again with the same bytes. Whichever of the two
   arrives, the run holds the line once. A line that is found already written is confirmed by a
   write of our own, which waits for the same replicas as any commit.
4. A commit with a server warning (no replica confirmed it) is not acknowledged.
5. Records that are read must continue the chain that was read before. Another history, as after a
   fail-over to a replica that lacked the end, is `CorruptRun` and is never continued.
6. Everything has a deadline: connecting, a statement (in the server and here), waiting for a
   connection.
7. A session lock shows that a process is alive. A connection may break while the process goes on,
   which then takes the lock again: dead is a process whose lock others have found free for a while.
8. Artifacts up to 1 MiB are rows; larger ones are objects named by their digest, if there is an
   object store.
"""

from __future__ import annotations

from bundle_router.adapters.postgres.store import PostgresRunStore

__all__ = ["PostgresRunStore"]
