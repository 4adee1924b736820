"""A connection pooler in transaction mode is recognised, since nothing of ours holds behind it.

There a connection is to another process of the server with each transaction: locks that show who
lives are held by nobody in particular, settings and prepared statements are another's, and no
notification arrives.
"""

from __future__ import annotations

from typing import Final

import psycopg

from bundle_router.adapters.postgres.connections import BoundedConnection, Pool
from bundle_router.errors import RequestError

LOOKS: Final = 5
"""Times that is looked: other clients of the pooler may change what one look shows."""
_OF_STATEMENTS: Final = "transaction blocks not allowed in statement pooling mode"
"""What PgBouncer says in a mode that permits even less."""


def refuse_transaction_pooling(pool: Pool) -> None:
    """Raise RequestError where the way to the database is a pooler in transaction mode.

    A server names its process as a connection begins, and so does a pooler, which invents one.
    Where the two differ, a second connection shows in which mode it is. Raises psycopg.Error, and
    StorageError where no second connection is free.
    """
    with pool.lend() as one:
        if _server_process(one) == one.pgconn.backend_pid:
            return
        with pool.lend() as other:
            try:
                is_shared = any(_share_process(one, other) for _ in range(LOOKS))
            except psycopg.Error as error:
                if _OF_STATEMENTS not in str(error):
                    raise
                is_shared = True
            if is_shared:
                raise RequestError(
                    f"the pooler at {pool.where} is in transaction (or statement) mode, which a"
                    " store of runs can't use: it needs connections that stay the same",
                    advice="set pool_mode = session in PgBouncer for this database, or name the"
                    " server itself",
                )


def _share_process(one: BoundedConnection, other: BoundedConnection) -> bool:
    """Return whether two connections were seen to have one process of the server, or one of them
    two.
    """
    before = _server_process(one)
    with other.transaction():
        if _server_process(other) == before:
            return True
        return _server_process(one) != before


def _server_process(connection: BoundedConnection) -> int:
    row = connection.execute("select pg_backend_pid()", prepare=False).fetchone()
    assert row is not None  # noqa: S101 - a function of the server has a value
    return int(row[0])
