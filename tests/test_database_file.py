"""SQLite files that many create at once: nothing is lost and nobody is refused."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from bundle_router.adapters.answer_store import FILE, SqlAnswers
from bundle_router.adapters.index.database import open_engine, writing
from bundle_router.deferral.hidden_store import HiddenStore
from bundle_router.testing import FakeDiagnostics

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


def serve_all(folder: Path, use: Use) -> list[bool]:
    """Return whether each of the threads, which begin together, was served."""
    together, served = threading.Barrier(THREADS), list[bool]()

    def work(number: int) -> None:
        together.wait()
        served.append(use(folder, f"name {number}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return served


@pytest.mark.parametrize("use", [answer, hide, index])
def test_a_file_that_many_create_at_once_serves_all(tmp_path: Path, use: Use) -> None:
    for count in range(ROUNDS):
        (folder := tmp_path / str(count)).mkdir()
        assert serve_all(folder, use) == [True] * THREADS
        (file,) = folder.glob("*.sqlite")
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_look_up_leaves_this_processs_locks_on_the_file(tmp_path: Path) -> None:
    """The locks are the process's, and closing any descriptor of the file drops them all."""
    begin = f"import sqlite3; sqlite3.connect({os.fspath(tmp_path / FILE)!r}, timeout=0).execute('BEGIN IMMEDIATE')"
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert SqlAnswers(tmp_path, FakeDiagnostics()).get("key") is None
        other = subprocess.run([sys.executable, "-c", begin], capture_output=True, text=True, check=False)
    assert "database is locked" in other.stderr
