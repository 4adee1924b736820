"""Stores models' answers in a SQLite file beside the runs, for reuse by other processes. The `AnswerStore` port.

Rules:
1. It is a cache: if anything is wrong with the file, there is no answer, and nothing is raised. That is reported once.
2. A stored answer has no authority: it is processed like any answer, and the core keeps only candidates.
3. It is as private as the runs beside it. It has one table; a file of another version is left alone and not used.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Lock
from typing import Any, Final

from bundle_router.ports import Diagnostics

FILE: Final = "answers.sqlite"
MAX_TEXT: Final = 65_536
"""Maximum characters of an answer that is stored."""
BUSY_MS: Final = 500
"""Milliseconds that a look-up waits for another process's write, since a question has a deadline."""


class SqlAnswers:
    """Answers by question key, in `folder/answers.sqlite`. The file is created with the first answer."""

    def __init__(self, folder: str | Path, diagnostics: Diagnostics) -> None:
        self._path = Path(folder) / FILE
        self._diagnostics = diagnostics
        self._lock = Lock()
        self._opened: tuple[Any, Any] | None = None
        self._warned = False

    def get(self, key: str) -> str | None:
        """Return the stored answer; None if it is too old, or from the future because the clock was set back."""
        if not self._path.exists():
            return None
        from sqlalchemy.exc import SQLAlchemyError
        from sqlmodel import select

        now = time.time()
        try:
            engine, table = self._open()
            with engine.connect() as connection:
                row = connection.execute(
                    select(table.c.text).where(table.c.key == key, table.c.until > now, table.c.made <= now)
                ).first()
        except (SQLAlchemyError, OSError) as error:
            self._warn_unusable(error)
            return None
        return str(row[0]) if row is not None else None

    def put(self, key: str, text: str, ttl_s: float) -> None:
        """Store the text, and delete expired answers."""
        if len(text) > MAX_TEXT:
            return
        from sqlalchemy.dialects.sqlite import insert
        from sqlalchemy.exc import SQLAlchemyError

        now = time.time()
        values = {"text": text, "made": now, "until": now + ttl_s}
        try:
            engine, table = self._open()
            with engine.begin() as connection:
                connection.execute(table.delete().where(table.c.until <= now))
                connection.execute(
                    insert(table).values(key=key, **values).on_conflict_do_update(index_elements=["key"], set_=values)
                )
        except (SQLAlchemyError, OSError) as error:
            self._warn_unusable(error)

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened[0].dispose()
                self._opened = None

    def _open(self) -> tuple[Any, Any]:
        """Return the engine and the table, created on first use: importing SQLModel takes a quarter of a second."""
        with self._lock:
            if self._opened is None:
                from sqlalchemy import event
                from sqlmodel import create_engine

                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
                engine = create_engine(f"sqlite:///{self._path}")

                @event.listens_for(engine, "connect")
                def _pragmas(connection: Any, _record: Any) -> None:
                    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={BUSY_MS}"):
                        connection.execute(f"PRAGMA {pragma}")

                from sqlalchemy.schema import CreateIndex, CreateTable

                table = _table()
                with engine.begin() as connection:  # `create(checkfirst=True)` fails if another process creates it now
                    connection.execute(CreateTable(table, if_not_exists=True))
                    for index in table.indexes:
                        connection.execute(CreateIndex(index, if_not_exists=True))
                self._opened = engine, table
            return self._opened

    def _warn_unusable(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            cause = str(getattr(error, "orig", None) or type(error).__name__).splitlines()[0]
            self._diagnostics.event("warning", "answers.unusable", path=str(self._path), cause=cause)


_TABLE: list[Any] = []
_DECLARING: Final = Lock()


def _table() -> Any:
    """Return the SQLModel table, declared once per process for all stores and threads."""
    with _DECLARING:
        if not _TABLE:
            from sqlmodel import Field, SQLModel

            class StoredAnswer(SQLModel, table=True):
                __tablename__ = "answers_1"
                key: str = Field(primary_key=True)
                text: str
                made: float
                until: float = Field(index=True)

            _TABLE.append(StoredAnswer.__table__)  # type: ignore[attr-defined]  # put there by SQLAlchemy
        return _TABLE[0]
