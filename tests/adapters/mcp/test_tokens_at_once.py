"""Files of tokens that several threads change at the same moment."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest
from bundle_router.adapters.mcp.tokens import TokenFile, default_folder
from bundle_router.core.catalog import Server
from bundle_router.errors import RequestError
from bundle_router.service.tokens import AccessTokens
from bundle_router.workbench.logins import log_out

from tests.at_once import at_once

MANY = 4
ROUNDS = 25
URL = "https://tools.example/mcp"


def test_of_many_tokens_of_one_name_one_is_added(tmp_path: Path) -> None:
    for count in range(ROUNDS):
        tokens = AccessTokens(tmp_path / f"{count}.toml")
        done = at_once(MANY, lambda _, tokens=tokens: tokens.add("alice", ["call"]))  # type: ignore[misc]
        assert sum(isinstance(one, str) for one in done) == 1
        assert sum(isinstance(one, RequestError) for one in done) == MANY - 1
        assert [row.caller.name for row in tokens.read()] == ["alice"]


def test_oauth_tokens_that_many_write_at_once_are_whole(tmp_path: Path) -> None:
    def write(number: int) -> list[object]:
        file, seen = TokenFile(tmp_path, URL, ""), list[object]()
        for count in range(ROUNDS):
            file.write(tokens={"access_token": f"{number}-{count}"})
            seen.append(file.read("tokens"))
        return seen

    done = at_once(MANY, write)
    assert [one for one in done if isinstance(one, BaseException) or None in one] == []
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def times_open(path: str) -> int:
    return sum(os.path.realpath(fd) == path for fd in Path("/proc/self/fd").iterdir())


def test_a_logout_waits_for_a_refresh_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    file = TokenFile(default_folder(os.environ), URL, "")
    file.write(tokens={"access_token": "old"})
    server, left = Server(name="s", transport="streamable-http", url=URL), list[bool]()
    leaving = threading.Thread(target=lambda: left.append(log_out(server, "")))
    with file.path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        leaving.start()
        while (
            leaving.is_alive()
            and sum(os.path.realpath(fd) == lock.name for fd in Path("/proc/self/fd").iterdir()) < 2
        ):
            os.sched_yield()
        file.write(tokens={"access_token": "new"})
    leaving.join()
    assert left == [True]
    assert file.read("tokens") is None
