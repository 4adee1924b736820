"""What a launcher downloads below its home stays for the server's next start, within bounds."""

from __future__ import annotations

import fcntl
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.mcp import server_caches
from bundle_router.adapters.mcp.server_caches import cache_folder, kept_caches
from bundle_router.adapters.mcp.server_processes import ServerCommand, environment
from bundle_router.core.catalog import Server
from bundle_router.core.servers.transport.bounds import Bounds

LAUNCHER = """
import os
package = os.path.join(os.environ["HOME"], ".npm", "package")
login = os.path.join(os.environ["HOME"], ".login")
with open("found", "a") as file:
    file.write(f"{os.path.exists(package)} {os.path.exists(login)} ")
open(package, "w").close()
open(login, "w").close()
"""


def test_the_next_process_finds_what_was_downloaded_and_nothing_else(
    bench: Any, tmp_path: Path
) -> None:
    argv = ("-I", "-c", LAUNCHER)
    server = Server(name="s", transport="stdio", command=sys.executable, args=argv)

    async def main(sessions: Any) -> None:
        assert (await bench.call(sessions, "echo", text="x")).outcome != "ok"

    for _ in range(2):
        bench.run(main, server, environ={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    found = (bench.workspace / "found").read_text().split()
    assert found[:2] == ["False", "False"]
    assert found[-2:] == ["True", "False"]
    (folder,) = (tmp_path / "cache" / "bundle-router" / "servers").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_each_server_command_and_principal_has_its_own_folder() -> None:
    environ = {"HOME": "/home/ann"}
    whose = [
        ("s", ("npx", "a"), ""),
        ("t", ("npx", "a"), ""),
        ("s", ("npx", "b"), ""),
        ("s", ("npx", "a"), "ann"),
    ]
    folders = {cache_folder(environ, *one) for one in whose}
    assert len(folders) == len(whose)
    assert {str(folder.parent) for folder in folders if folder} == {
        "/home/ann/.cache/bundle-router/servers"
    }
    assert cache_folder(environ, *whose[0]) == cache_folder(environ, *whose[0])


@pytest.mark.parametrize("environ", [{}, {"HOME": "here"}, {"XDG_CACHE_HOME": "here"}])
def test_a_user_without_a_home_has_none(environ: dict[str, str]) -> None:
    assert cache_folder(environ, "s", ("npx",), "") is None


def used(home: Path, cache: Path) -> bool:
    """Use a cache for one process; return whether the home led into it."""
    home.mkdir()
    with kept_caches(str(home), cache):
        is_led = (home / ".npm").is_symlink()
        if is_led:
            (home / ".npm" / "package").touch()
        return is_led


def test_npm_gets_the_true_path_of_its_cache_unless_the_config_sets_one(tmp_path: Path) -> None:
    """Through a link, npx installs anew at each start, although it finds its cache."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    with kept_caches(str(home), tmp_path / "linked" / "s") as caches:
        assert caches == {"npm_config_cache": str(tmp_path / "real" / "s" / ".npm")}
        command = ServerCommand("s", ("npx",), {}, "/", "/bin", 1.0, 1.0)
        assert environment(command, str(home), caches).items() >= caches.items()
        for name in ("npm_config_cache", "NPM_CONFIG_CACHE"):
            own = {name: "/own"}
            found = environment(replace(command, env=own), str(home), caches)
            assert own.items() <= found.items()
            assert len({"npm_config_cache", "NPM_CONFIG_CACHE"} & found.keys()) == 1
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    with kept_caches(str(tmp_path / "other"), tmp_path / "file" / "s") as caches:
        assert caches == {}


def test_a_folder_that_others_may_use_or_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o770)
    assert not used(tmp_path / "one", shared)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert not used(tmp_path / "two", link)
    blocked = tmp_path / "file"
    blocked.touch()
    assert not used(tmp_path / "three", blocked / "cache")
    assert used(tmp_path / "four", tmp_path / "own")


@pytest.mark.parametrize("bound", ["MAX_BYTES", "MAX_FILES"])
def test_a_folder_beyond_its_bounds_is_deleted_when_nobody_uses_it(
    bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_caches, bound, 20)
    cache = tmp_path / "cache"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    home = tmp_path / "home"
    home.mkdir()
    with kept_caches(str(home), cache):
        for number in range(21):
            (home / ".npm" / str(number)).write_text("x" * 10)
        (home / ".cache" / "out").symlink_to(elsewhere)
    assert not cache.exists()
    assert (elsewhere / "kept").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "home"]
    assert used(tmp_path / "next", cache), "and is made anew"


def test_a_folder_that_another_process_uses_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_caches, "MAX_FILES", 0)
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    descriptor = os.open(cache, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        assert used(tmp_path / "home", cache)
        assert cache.is_dir()
    finally:
        os.close(descriptor)


def test_a_folder_without_a_file_and_one_that_was_not_used_for_long_go(tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    assert used(tmp_path / "one", caches / "old")
    assert used(tmp_path / "two", caches / "young")
    os.utime(caches / "old", (0, 0))
    (tmp_path / "home").mkdir()
    with kept_caches(str(tmp_path / "home"), caches / "empty"):
        pass
    assert [folder.name for folder in caches.iterdir()] == ["young"]


def test_a_folder_is_measured_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    assert used(tmp_path / "one", cache)
    monkeypatch.setattr(server_caches, "MAX_FILES", 0)
    assert used(tmp_path / "two", cache)
    assert cache.is_dir(), "measured just now"
    os.utime(cache / "measured", (0, 0))
    assert used(tmp_path / "three", cache)
    assert not cache.exists()


SLOW = """
import runpy, sys, time
time.sleep(0.6)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(("connect_s", "outcome"), [(20.0, "ok"), (None, "timeout")])
def test_an_entry_says_how_long_its_server_may_take_to_start(
    connect_s: float | None, outcome: str, bench: Any
) -> None:
    fault_server = bench.stdio(connect_s=connect_s)
    server = replace(fault_server, args=("-c", SLOW, *fault_server.args[1:]))

    async def main(sessions: Any) -> Any:
        return await bench.call(sessions, "echo", text="x")

    result = bench.run(main, server, bounds=Bounds(connect_s=0.3))
    assert result.outcome == outcome
