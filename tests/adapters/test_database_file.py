"""SQLite files that many create at once: nothing is lost and nobody is refused."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from bundle_router.adapters.answer_store import FILE, SqlAnswers
from bundle_router.adapters.disk_cache import DiskCache
from bundle_router.adapters.embeddings import VectorStore
from bundle_router.adapters.index.database import open_engine, writing
from bundle_router.testing import FakeDiagnostics
from bundle_router_deferral.hidden_store import HiddenStore

from tests.at_once import at_once
from tests.house import NAMES, ROOT

Use = Callable[[Path, str], bool]
THREADS = 4
ROUNDS = 30


def answer(folder: Path, name: str) -> bool:
    diagnostics = FakeDiagnostics()
    store = SqlAnswers(folder, diagnostics)
    store.put(name, "an answer", 60.0)
    return store.get(name) is not None and not diagnostics.events


def hide(folder: Path, name: str) -> bool:
    store = HiddenStore(folder / "hidden.sqlite")
    try:
        store.refuse(name)
        return store.refused(name) and not store.failures
    finally:
        store.close()


def index(folder: Path, name: str) -> bool:
    engine = open_engine(f"sqlite:///{folder}/index.sqlite")
    try:
        with writing(engine) as connection:
            connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS names (name TEXT)")
            return connection.exec_driver_sql("INSERT INTO names VALUES (?)", (name,)).rowcount == 1
    finally:
        engine.dispose()


def embed(folder: Path, name: str) -> bool:
    store = VectorStore(folder, "revision")
    return store.save({name: (1.0, 2.0)}) and store.load([name]) == {name: (1.0, 2.0)}


@pytest.mark.parametrize("use", [answer, hide, index, embed])
def test_a_file_that_many_create_at_once_serves_all(tmp_path: Path, use: Use) -> None:
    for count in range(ROUNDS):
        (folder := tmp_path / str(count)).mkdir()
        served = at_once(
            THREADS,
            lambda number, use=use, folder=folder: use(folder, f"name {number}"),  # type: ignore[misc]
        )
        assert served == [True] * THREADS
        (file,) = folder.glob("*.sqlite")
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_look_up_leaves_this_processs_locks_on_the_file(tmp_path: Path) -> None:
    """The locks are the process's, and closing any descriptor of the file drops them all."""
    begin = (
        f"import sqlite3; sqlite3.connect({os.fspath(tmp_path / FILE)!r}, timeout=0).execute('BEGIN"
        " IMMEDIATE')"
    )
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert SqlAnswers(tmp_path, FakeDiagnostics()).get("key") is None
        other = subprocess.run(
            [sys.executable, "-c", begin], capture_output=True, text=True, check=False
        )
    assert "database is locked" in other.stderr


def test_no_module_opens_a_file_beside_sqlite() -> None:
    texts = {name: (ROOT / path).read_text(encoding="utf-8") for name, path in NAMES.items()}
    opening = [
        name for name, text in texts.items() if "import sqlite3" in text and "os.open(" in text
    ]
    assert opening == ["bundle_router.adapters.database_file"]


TABLES = ("CREATE TABLE IF NOT EXISTS sums (name TEXT PRIMARY KEY, value INTEGER)",)


def _values(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    return connection.execute("SELECT name, value FROM sums").fetchall()


def test_a_look_up_in_a_cache_makes_no_file(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "new" / "sums.sqlite", TABLES)
    assert cache.read(1.0, _values) is None
    assert list(tmp_path.iterdir()) == []


def test_a_change_of_a_cache_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    causes: list[str] = []
    cache = DiskCache(tmp_path / "sums.sqlite", TABLES, tell=causes.append)

    def one(connection: sqlite3.Connection) -> bool:
        connection.execute("INSERT INTO sums VALUES ('one', 1)")
        return True

    def one_again_and_two(connection: sqlite3.Connection) -> bool:
        connection.execute("INSERT INTO sums VALUES ('two', 2)")
        return one(connection)

    assert cache.change(1.0, one)
    assert cache.change(1.0, one_again_and_two) is None
    assert cache.change(1.0, one_again_and_two) is None
    assert cache.read(1.0, _values) == [("one", 1)]
    assert causes == ["IntegrityError: UNIQUE constraint failed: sums.name"]


def test_adding_to_a_cache_loses_nothing_that_others_add_meanwhile(tmp_path: Path) -> None:
    def add(connection: sqlite3.Connection) -> int:
        row = connection.execute("SELECT value FROM sums WHERE name = 'one'").fetchone()
        value = 1 if row is None else row[0] + 1
        connection.execute("INSERT OR REPLACE INTO sums VALUES ('one', ?)", (value,))
        return int(value)

    def add_in_a_thread(_: int) -> int | None:
        return DiskCache(tmp_path / "sums.sqlite", TABLES).change(4.0, add)

    assert set(at_once(8, add_in_a_thread)) == {1, 2, 3, 4, 5, 6, 7, 8}
