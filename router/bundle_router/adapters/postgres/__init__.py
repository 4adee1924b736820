"""Runs in PostgreSQL: the store for engines whose workers are on several machines. Implements `ports.RunStore`.

Rules:
1. A record is the same line as in a run directory, so the chain, `verify`, export and import need no second code.
2. An append is one statement, sent once: it moves the run's head if that is the one the line was sealed on, and only
   then inserts the line. Nothing is held between statements.
3. A statement whose connection broke is sent again with the same bytes. Whichever of the two gets there, the line
   stands in the run once; and what was found already written is confirmed by a write of our own, which waits for the
   replicas that the server waits for.
4. What the server warns of (a commit that no replica confirmed) is not acknowledged.
5. Records read have to continue the chain that was read before. Another history, as after a fail-over to a replica
   that lacked the end, is `CorruptRun`, never continued.
6. Everything ends in bounded time: connecting, a statement (in the server and here), waiting for a connection.
7. A process is known to be alive by a session lock, which the server lets go of when the connection is gone.
8. Artifacts up to 1 MiB are rows; larger ones are objects named by their digest, where an object store is given.
"""

from __future__ import annotations

from bundle_router.adapters.postgres.store import PostgresRunStore

__all__ = ["PostgresRunStore"]
