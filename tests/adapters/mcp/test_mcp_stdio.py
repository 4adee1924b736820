"""Stdio servers that misbehave: what a call comes to, its unharmed neighbours, and nothing left
behind.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import signal
import string
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from bundle_router.adapters.mcp import McpSessions
from bundle_router.adapters.mcp.server_processes import HOMES
from bundle_router.adapters.private_folders import private_folder
from bundle_router.core.catalog import Server
from bundle_router.core.servers.transport.bounds import Bounds
from bundle_router.core.servers.transport.tool_servers import Scope

from tests.adapters.mcp.own_processes import own_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")

MIB = 1 << 20


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# --- what is permitted ----------------------------------------------------------------------------


def test_stdio_is_refused_outside_of_development_and_starts_nothing(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "echo", text="x")
        assert (result.outcome, result.code) == ("unavailable", "not_permitted")
        assert "development mode" in bench.said(result)
        assert "development mode" in sessions.status()[0].reason

    bench.run(main, bench.stdio(), development=False)
    assert bench.events.named("server.started") == []


def test_the_exact_command_is_reported_before_it_is_first_started(bench: Any) -> None:
    server = bench.stdio(env=(("API_KEY", "${THE_KEY}"),), env_names=("THE_KEY",))

    async def main(sessions: McpSessions) -> None:
        assert sessions.status()[0].command == (server.command, *server.args)
        await bench.call(sessions, "echo", text="x")

    bench.run(main, server, environ={"THE_KEY": "s3cret"})
    level, _, fields = next(row for row in bench.events.rows if row[1] == "server.started")
    assert level == "info", "a normal start warns nobody"
    assert fields["command"] == [server.command, *server.args]
    assert fields["env"] == ["API_KEY"]
    assert "s3cret" not in repr(bench.events.rows)


def test_a_server_gets_its_own_environment_and_a_home_that_goes_with_it(bench: Any) -> None:
    async def main(sessions: McpSessions) -> dict[str, str]:
        return dict(json.loads(bench.said(await bench.call(sessions, "env"))))

    environ = {"THE_KEY": "k", "PRIVATE": "p", "PATH": os.environ["PATH"]}
    seen = bench.run(main, bench.stdio(env=(("API_KEY", "key ${THE_KEY}"),)), environ=environ)
    owner = seen.pop("BUNDLE_ROUTER_OWNER")
    assert owner.startswith(f"{os.getpid()}-")
    assert owner.endswith(" s")
    assert seen.pop("API_KEY") == "key k"
    assert seen.pop("CWD") == str(bench.workspace)
    assert set(seen) - {"LC_CTYPE"} == {"PATH", "HOME", "TMPDIR", "LANG"}
    assert not Path(seen["HOME"]).exists()


LISTING = """
import os, sys
numbers = [int(name) for name in os.listdir("/proc/self/fd")]
held = []
for number in sorted(numbers):
    try:
        held.append((number, os.readlink(f"/proc/self/fd/{number}")))
    except OSError:
        pass  # the listing's own
with open("held", "w") as file:
    file.write(repr([number for number, _ in held]))
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_a_server_inherits_no_descriptor_but_its_own_three(bench: Any) -> None:
    """Not the socket either over which the next server's descriptors come."""
    server = Server(name="s", transport="stdio", command=sys.executable, args=("-I", "-c", LISTING))

    async def main(sessions: McpSessions) -> None:
        assert (await bench.call(sessions, "echo", text="x")).outcome != "ok"

    bench.run(main, server)
    assert (bench.workspace / "held").read_text() == "[0, 1, 2]"


def test_homes_of_servers_whose_router_was_killed_go_when_another_is_started(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, in_use, young = (tmp_path / f"{HOMES}{name}" for name in ("left", "in-use", "young"))
    for folder in (left, in_use, young):
        (folder / "cache").mkdir(parents=True)
    for folder in (left, in_use):
        os.utime(folder, (0, 0))
    lock = os.open(in_use, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)

        async def main(sessions: McpSessions) -> list[bool]:
            home = Path(json.loads(bench.said(await bench.call(sessions, "env")))["HOME"])
            return [folder.exists() for folder in (left, in_use, young, home)]

        assert bench.run(main, bench.stdio()) == [False, True, True, True]
        assert sorted(folder.name for folder in tmp_path.glob(f"{HOMES}*")) == [
            in_use.name,
            young.name,
        ]
    finally:
        os.close(lock)


def test_a_process_forked_from_a_router_leaves_homes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ExitStack() as held:
        home = held.enter_context(private_folder(HOMES))
        if (child := os.fork()) == 0:
            try:
                held.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert Path(home).is_dir()
    assert not Path(home).exists()


@pytest.mark.usefixtures("many_descriptors")
def test_a_server_starts_in_a_host_with_more_descriptors_than_select_knows(bench: Any) -> None:
    async def main(sessions: McpSessions) -> str:
        return str(bench.said(await bench.call(sessions, "pid")))

    assert bench.run(main, bench.stdio()).isdecimal()


def test_a_missing_credential_is_named_and_nothing_is_started(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "echo", text="x")
        assert (result.outcome, result.code) == ("unavailable", "credential_missing")
        assert "THE_KEY" in bench.said(result)

    bench.run(
        main, bench.stdio(env=(("API_KEY", "${THE_KEY}"),), env_names=("THE_KEY",)), environ={}
    )
    assert bench.events.named("server.started") == []


def test_a_program_that_is_not_there_is_said_to_be_missing(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "echo", text="x")
        assert (result.outcome, result.code) == ("unavailable", "not_started")
        assert "no-such-program" in bench.said(result)

    bench.run(main, Server(name="s", transport="stdio", command="no-such-program"))


# --- bytes ----------------------------------------------------------------------------------------


def test_noise_on_stdout_and_megabytes_on_stderr_cost_nothing_but_one_warning(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        assert bench.said(await bench.call(sessions, "echo", text="hello")) == "hello"

    bench.run(main, bench.stdio("noise"))
    warned = bench.events.named("server.noise")
    assert len(warned) == 1
    assert warned[0]["line"] == "Server ready!"


@pytest.mark.parametrize(
    ("tool", "text"),
    [("bad_utf8", "caf\N{REPLACEMENT CHARACTER}"), ("surrogate", "?!"), ("duplicate", "answer 0")],
)
def test_an_answer_that_is_not_quite_right_is_an_answer(bench: Any, tool: str, text: str) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, tool)
        assert (result.outcome, bench.said(result)) == ("ok", text)
        assert bench.said(await bench.call(sessions, "echo", text="next")) == "next"

    bench.run(main, bench.stdio())


@pytest.mark.parametrize(
    "fields", [{}, {"result": [1]}, {"result": "text"}, {"error": {"code": "x", "message": None}}]
)
def test_an_answer_that_is_no_message_ends_its_call_and_counts_against_the_server(
    bench: Any, fields: dict[str, Any]
) -> None:
    async def main(sessions: McpSessions) -> None:
        for _ in range(5):
            result = await bench.call(sessions, "answers", fields=fields)
            assert (result.outcome, result.code) == ("unavailable", "protocol_error")
            assert "may have been carried out" in bench.said(result)
        assert (await bench.call(sessions, "echo", text="x")).code == "circuit_open"

    bench.run(main, bench.stdio())


@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc":"2.0","id":#,"result":{"content":[],"structuredContent":{"a":'
        + "9" * 5_000
        + "}}}",
        '{"result":{"content":[{"type":"text","text":"\\x"}]},"jsonrpc":"2.0","id":"#"}',
        '{"jsonrpc": "2.0", "id": #, "result": {"content": [',
        '{"jsonrpc":"2.0","id":#,"result":{"content":[],' + '"a":0,' * 30_000 + "}}",
    ],
    ids=["a number of 5,000 digits", "a wrong escape", "cut off", "a comma too many"],
)
def test_an_answer_that_cant_be_parsed_ends_its_call_at_once(bench: Any, line: str) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "raw", line=line)
        assert (result.outcome, result.code) == ("unavailable", "protocol_error")
        assert "may have been carried out" in bench.said(result)
        assert bench.said(await bench.call(sessions, "echo", text="next")) == "next"

    bench.run(main, bench.stdio())


def test_a_refusal_of_megabytes_is_a_refusal(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "refuses", count=1_500_000)
        assert (result.outcome, result.code) == ("tool_error", "rpc_error")
        assert bench.said(result).endswith("nonono […]")

    bench.run(main, bench.stdio())


def test_twenty_thousand_log_lines_in_the_middle_of_a_call_are_dropped(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "flood", count=20_000)
        assert result.outcome == "ok"

    bench.run(main, bench.stdio())
    assert {name for _, name, _ in bench.events.rows} <= {"server.started", "server.left_behind"}


def test_json_that_nests_too_deep_is_no_answer(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "deep")
        assert (result.outcome, result.code) == ("unavailable", "protocol_error")
        assert bench.said(await bench.call(sessions, "echo", text="next")) == "next"

    bench.run(main, bench.stdio())


def test_a_line_of_200_megabytes_ends_that_server_and_is_never_held(bench: Any) -> None:
    """What was read of it is bounded by the cap, so the memory is: the server is gone while it
    still writes.
    """

    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="x")
        pid = sessions.status()[0].pids[0]
        big, other = await asyncio.gather(
            bench.call(sessions, "huge_line", megabytes=200),
            bench.call(sessions, "echo", server="other", text="fine"),
        )
        assert (big.outcome, big.code) == ("tool_error", "too_large")
        assert "16,777,216 bytes" in bench.said(big)
        assert bench.said(other) == "fine"
        assert bench.said(await bench.call(sessions, "echo", text="next")) == "next"
        await bench.until(lambda: is_gone(pid))

    bench.run(main, bench.stdio(), bench.stdio(name="other"))


def test_a_result_just_under_the_cap_is_taken_and_one_over_it_is_not(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        fits = await bench.call(sessions, "big", bytes=MIB - 200)
        assert len(bench.said(fits)) == MIB - 200
        assert (await bench.call(sessions, "big", bytes=MIB)).code == "too_large"

    bench.run(main, bench.stdio(), bounds=Bounds(max_message_bytes=MIB))


def test_nothing_keeps_a_large_answer_after_its_call(bench: Any) -> None:
    """It would be in memory until the server's next message, and be freed on the loop of the
    sessions in one go.
    """

    def is_kept() -> bool:
        firsts = (
            one[0] for one in gc.get_objects() if type(one) is list and one
        )  # a dict of texts is not among them
        return any(type(one) is dict and len(str(one.get("text"))) > MIB // 2 for one in firsts)

    async def main(sessions: McpSessions) -> None:
        assert len(bench.said(await bench.call(sessions, "big", bytes=MIB))) == MIB
        async with asyncio.timeout(60):
            await bench.until(lambda: not is_kept())

    bench.run(main, bench.stdio())


def test_large_arguments_are_encoded_off_the_event_loop_and_arrive(bench: Any) -> None:
    class Watched(dict[str, Any]):
        threads: ClassVar[set[str]] = set()

        def items(self) -> Any:
            self.threads.add(threading.current_thread().name)
            return super().items()

    async def main(sessions: McpSessions) -> None:
        rows = [Watched(id=number) for number in range(5_000)]
        assert (
            bench.said(await bench.call(sessions, "echo", text="small", rows=rows[:1])) == "small"
        )
        assert "large-results" not in Watched.threads
        Watched.threads.clear()
        assert bench.said(await bench.call(sessions, "echo", text="ü", rows=rows)) == "ü"
        assert Watched.threads == {"large-results"}

    bench.run(main, bench.stdio())


# --- time and death -------------------------------------------------------------------------------


def test_a_crash_in_the_middle_of_a_call_is_said_so_and_the_next_call_works(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        crashed, other = await asyncio.gather(
            bench.call(sessions, "crash"), bench.call(sessions, "echo", server="other", text="fine")
        )
        assert (crashed.outcome, crashed.code) == ("unavailable", "connection_lost")
        assert "status 9" in bench.said(crashed)
        assert "may have been carried out" in bench.said(crashed)
        assert bench.said(other) == "fine"
        assert bench.said(await bench.call(sessions, "echo", text="next")) == "next"

    bench.run(main, bench.stdio(), bench.stdio(name="other"))


def test_a_call_that_may_have_been_carried_out_is_not_made_again(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "crash")
        assert bench.said(await bench.call(sessions, "count")) == "1"

    bench.run(main, bench.stdio())


def test_a_server_that_ends_at_once_is_started_twice_and_its_last_words_are_kept(
    bench: Any,
) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "echo", text="x")
        assert (result.outcome, result.code) == ("unavailable", "connection_lost")
        assert "status 3" in bench.said(result)

    bench.run(main, bench.stdio("exit-at-start"))
    assert len(bench.events.named("server.started")) == 2
    assert bench.events.named("server.ended")[0]["last_words"] == "nothing to serve"


def test_a_tool_that_hangs_is_given_up_in_time_and_delays_nobody(bench: Any, leap: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="started")
        hanging = asyncio.ensure_future(bench.call(sessions, "hang"))
        for i in range(20):
            assert bench.said(await bench.call(sessions, "echo", text=str(i))) == str(i)
        assert not hanging.done()
        await leap.until(hanging)
        result = await hanging
        assert (result.outcome, result.code) == ("timeout", "timeout")
        assert "longer than 60 s" in bench.said(result)

    bench.run(main, bench.stdio())


# --- a server that does not read, and callers on several threads ----------------------------------

FULL = 1_000_000
"""Characters that fit into no pipe."""


async def calls_into_a_full_pipe(
    bench: Any, sessions: McpSessions, go: Path
) -> list[asyncio.Future[Any]]:
    """Calls of `echo` that were made, and of which only the first can be written before `go` is
    there.
    """
    await bench.call(sessions, "echo", text="started")
    paused = asyncio.ensure_future(bench.call(sessions, "pause", file=str(go)))
    texts = [letter * 20_000 for letter in string.ascii_letters]
    made = [asyncio.ensure_future(bench.call(sessions, "echo", text=text)) for text in texts]
    assert len("".join(texts)) > FULL
    await bench.until(lambda: sessions.status()[0].running == len(made) + 1)
    return [paused, *made]


def test_what_a_server_does_not_read_yet_arrives_whole_once_it_does(
    bench: Any, tmp_path: Path
) -> None:
    async def main(sessions: McpSessions) -> None:
        paused, *calls = await calls_into_a_full_pipe(bench, sessions, tmp_path / "go")
        (tmp_path / "go").touch()
        said = [bench.said(result) for result in await asyncio.gather(*calls)]
        assert said == [letter * 20_000 for letter in string.ascii_letters]
        assert (await paused).outcome == "ok"

    bench.run(main, bench.stdio(), bounds=Bounds(per_server=100))


def test_a_call_that_is_given_up_while_it_is_written_spoils_no_other(
    bench: Any, tmp_path: Path
) -> None:
    async def main(sessions: McpSessions) -> None:
        paused, *calls = await calls_into_a_full_pipe(bench, sessions, tmp_path / "go")
        for call in calls[::2]:
            call.cancel()
        await bench.until(lambda: sessions.status()[0].running == len(calls) // 2 + 1)
        (tmp_path / "go").touch()
        said = [bench.said(result) for result in await asyncio.gather(*calls[1::2])]
        assert said == [letter * 20_000 for letter in string.ascii_letters[1::2]]
        await paused
        heard = json.loads(bench.said(await bench.call(sessions, "heard")))
        assert len({row["requestId"] for row in heard}) == len(calls) // 2

    bench.run(main, bench.stdio(), bounds=Bounds(per_server=100))


def test_a_server_that_dies_before_it_has_read_fails_all_calls_once(
    bench: Any, tmp_path: Path
) -> None:
    async def main(sessions: McpSessions) -> None:
        calls = await calls_into_a_full_pipe(bench, sessions, tmp_path / "go")
        os.kill(sessions.status()[0].pids[0], signal.SIGKILL)
        ends = {(result.outcome, result.code) for result in await asyncio.gather(*calls)}
        assert ends == {("unavailable", "connection_lost")}
        assert sessions.status()[0].running == 0
        assert sessions.status()[0].circuit == "closed", "it counts as one failure"
        assert bench.said(await bench.call(sessions, "echo", text="next")) == "next"

    bench.run(main, bench.stdio(), bounds=Bounds(per_server=100))


def test_lines_of_several_threads_never_mix(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="started")
        wrong: list[str] = []

        async def calls(letter: str) -> None:
            for _ in range(5):
                results = [
                    bench.call(sessions, "echo", text=letter * size) for size in (20_000, 1, 15_000)
                ]
                wrong.extend(
                    result.outcome
                    for result, size in zip(
                        await asyncio.gather(*results), (20_000, 1, 15_000), strict=True
                    )
                    if bench.said(result) != letter * size
                )

        await asyncio.gather(
            calls("a"), *(asyncio.to_thread(asyncio.run, calls(letter)) for letter in "bcdefgh")
        )
        assert wrong == []
        assert sessions.status()[0].running == 0

    bench.run(main, bench.stdio())


def test_a_caller_whose_loop_is_blocked_holds_up_no_other(bench: Any, tmp_path: Path) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="started")
        begun, over = threading.Event(), threading.Event()

        async def call_and_block() -> str:
            call = asyncio.ensure_future(bench.call(sessions, "sleep", file=str(tmp_path / "go")))
            await bench.until(lambda: sessions.status()[0].running)
            begun.set()
            assert over.wait(300)
            return str((await call).outcome)

        blocked = asyncio.ensure_future(asyncio.to_thread(asyncio.run, call_and_block()))
        await asyncio.to_thread(begun.wait, 300)
        (tmp_path / "go").touch()
        assert bench.said(await bench.call(sessions, "echo", text="mine")) == "mine"
        over.set()
        assert await blocked == "ok"

    bench.run(main, bench.stdio(), bounds=Bounds(per_server=1))


def test_each_of_the_calls_of_a_server_has_its_own_time(bench: Any, leap: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="started")
        patient, hasty = (
            asyncio.ensure_future(bench.call(sessions, "hang", left_s))
            for left_s in (6_000.0, 50.0)
        )
        await bench.until(lambda: sessions.status()[0].running == 2)
        leap()
        assert (await hasty).outcome == "timeout"
        assert not patient.done()
        assert len(json.loads(bench.said(await bench.call(sessions, "heard")))) == 1
        await leap.until(patient)
        assert (await patient).outcome == "timeout"

    bench.run(main, bench.stdio())


def test_a_server_that_hangs_while_connecting_holds_up_its_own_calls_only(
    bench: Any, leap: Any
) -> None:
    async def main(sessions: McpSessions) -> None:
        stuck = asyncio.ensure_future(bench.call(sessions, "echo", text="x"))
        assert bench.said(await bench.call(sessions, "echo", server="other", text="fine")) == "fine"
        assert not stuck.done()
        await leap.until(stuck)
        assert (await stuck).outcome == "timeout"

    bench.run(main, bench.stdio("hang-initialize"), bench.stdio(name="other"))


def test_a_server_that_takes_its_time_to_start_is_waited_for(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        assert bench.said(await bench.call(sessions, "echo", text="x")) == "x"

    bench.run(main, bench.stdio("slow-start=1"))


@pytest.mark.parametrize("flags", [(), ("ignore-eof",), ("ignore-eof", "ignore-term")])
def test_whatever_a_server_ignores_it_is_gone_after_close(
    bench: Any, flags: tuple[str, ...]
) -> None:
    async def main(sessions: McpSessions) -> int:
        await bench.call(sessions, "echo", text="x")
        return sessions.status()[0].pids[0]

    bounds = Bounds()
    assert bounds.polite_s + bounds.term_s < 5
    assert is_gone(bench.run(main, bench.stdio(*flags)))


@pytest.mark.parametrize("flags", [(), ("ignore-eof", "ignore-term")])
def test_what_a_server_started_goes_with_it_whatever_session_it_moved_to(
    bench: Any, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    written = tmp_path / "grandchild"

    async def main(sessions: McpSessions) -> int:
        await bench.call(sessions, "echo", text="x")
        await bench.until(lambda: written.exists() and written.read_text())
        pid = int(written.read_text())
        assert not is_gone(pid)
        return pid

    assert is_gone(bench.run(main, bench.stdio(f"grandchild={written}", *flags)))


def test_what_a_crashed_server_left_running_is_ended_and_does_not_hide_the_crash(
    bench: Any, tmp_path: Path
) -> None:
    """The grandchild holds the server's standard output open, so its end alone would never be
    seen.
    """
    written = tmp_path / "grandchild"

    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="x")
        await bench.until(lambda: written.exists() and written.read_text())
        assert (await bench.call(sessions, "crash")).code == "connection_lost"
        await bench.until(lambda: is_gone(int(written.read_text())))

    bench.run(main, bench.stdio(f"grandchild={written}"))


_HIDDEN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "import os, sys, time; "
            "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)", sys.argv[1]], {})
    os._exit(0)
os.wait()
os.execv(sys.executable, [sys.executable, "-S", *sys.argv[2:]])
"""


def test_a_process_that_left_its_group_session_parent_and_environment_still_ends_with_its_server(
    bench: Any, tmp_path: Path
) -> None:
    """One supervisor adopts the orphans of all servers, and ends those of the one that is
    closed.
    """

    def hiding(name: str) -> Server:
        server = bench.stdio(name=name)
        arguments = ("-S", "-c", _HIDDEN, str(tmp_path / name), *server.args[1:])
        return Server(name=name, transport="stdio", command=sys.executable, args=arguments)

    async def main(sessions: McpSessions) -> int:
        for name in ("s", "other"):
            await bench.call(sessions, "echo", text="x", server=name, scope=Scope(run_id=name))
            await bench.until(lambda path=tmp_path / name: path.exists() and path.read_text())
        first, second = (int((tmp_path / name).read_text()) for name in ("s", "other"))
        await sessions.close_run("s")
        assert is_gone(first)
        assert not is_gone(second)
        return second

    assert is_gone(bench.run(main, hiding("s"), hiding("other")))


def test_all_servers_have_one_supervisor_and_outlive_it_by_nothing(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        scopes = [Scope(run_id=f"r-{number}") for number in range(5)]
        pids = [int(bench.said(await bench.call(sessions, "pid", scope=scope))) for scope in scopes]
        below = own_processes()
        (supervisor,) = set(below) - set(pids)
        os.kill(supervisor, signal.SIGKILL)
        await bench.until(lambda: all(is_gone(pid) for pid in pids))
        after = [
            int(bench.said(await bench.call(sessions, "pid", scope=scope))) for scope in scopes
        ]
        assert len(set(own_processes()) - set(after)) == 1

    bench.run(main, bench.stdio())


def test_a_router_whose_standard_streams_are_closed_starts_servers_all_the_same() -> None:
    """Descriptors 0, 1 and 2 are the next to be given out: none may be what the supervisor is
    spoken to through.
    """
    script = (
        "import asyncio, os, sys\nwritten = os.dup(1)\nfrom bundle_router.adapters.mcp import"
        " ConnectionSetting, open_mcp_sessions\nfrom bundle_router.core.catalog import Server\nfrom"
        " bundle_router.testing import FakeClock, FakeDiagnostics\nasync def main():\n    server ="
        " Server(name='s', transport='stdio', command=sys.executable, args=tuple(sys.argv[1:]))\n  "
        "  setting = ConnectionSetting(development=True)\n    s = open_mcp_sessions({'s': server},"
        " setting, clock=FakeClock(), diagnostics=FakeDiagnostics())\n    await s.prepare()\n   "
        " for number in (0, 1, 2): os.close(number)\n    result = await s.call('s', 'echo',"
        " {'text': 'hello'}, timeout_s=30)\n    os.write(written, repr(result).encode())\n    await"
        " s.close()\nasyncio.run(main())\n"
    )
    arguments = [
        sys.executable,
        "-c",
        script,
        "-S",
        str(Path(__file__).with_name("fault_server.py")),
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
    assert "hello" in done.stdout


def test_runs_have_processes_of_their_own_that_end_with_the_run(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        one, two = Scope(run_id="r-1"), Scope(run_id="r-2")
        first = int(bench.said(await bench.call(sessions, "pid", scope=one)))
        assert int(bench.said(await bench.call(sessions, "pid", scope=one))) == first
        second = int(bench.said(await bench.call(sessions, "pid", scope=two)))
        assert first != second
        await sessions.close_run("r-1")
        assert is_gone(first)
        assert not is_gone(second)

    bench.run(main, bench.stdio())


def test_runs_share_as_many_processes_as_the_operator_allows_and_no_run_ends_them(
    bench: Any,
) -> None:
    async def main(sessions: McpSessions) -> None:
        scopes = [Scope(run_id=f"r-{n}", principal=f"p-{n % 3}") for n in range(20)]
        calls = [bench.call(sessions, "sleep", s=0.05, scope=scope) for scope in scopes]
        assert {result.outcome for result in await asyncio.gather(*calls)} == {"ok"}
        assert sessions.status()[0].connections == 2
        pids = {int(bench.said(await bench.call(sessions, "pid", scope=scope))) for scope in scopes}
        assert len(pids) == 1, "one that is idle is preferred"
        for scope in scopes:
            await sessions.close_run(scope.run_id)
        assert sessions.status()[0].connections == 2

    bench.run(main, bench.stdio(shared=2))


def test_a_crash_of_a_shared_process_ends_each_call_with_a_word_and_counts_once(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        scopes = [Scope(run_id=f"r-{n}") for n in range(12)]
        await bench.call(sessions, "echo", text="x", scope=scopes[0])
        sleeping = [
            asyncio.ensure_future(bench.call(sessions, "sleep", s=30, scope=scope))
            for scope in scopes
        ]
        await bench.until(lambda: sessions.status()[0].running == len(scopes))
        crashed = await bench.call(sessions, "crash", scope=Scope(run_id="r-x"))
        ends = [
            (result.outcome, result.code) for result in (crashed, *await asyncio.gather(*sleeping))
        ]
        assert set(ends) == {("unavailable", "connection_lost")}
        assert bench.said(await bench.call(sessions, "echo", text="y", scope=scopes[0])) == "y"

    bench.run(main, bench.stdio(shared=1))


def test_cancelling_one_callers_call_leaves_the_others_of_a_shared_process_alone(
    bench: Any,
) -> None:
    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="x")
        go = bench.workspace / "go"
        one, two = (asyncio.ensure_future(bench.call(sessions, "sleep", file=str(go), scope=Scope(run_id=run_id)))
                    for run_id in ("r-1", "r-2"))  # fmt: skip
        await bench.until(lambda: sessions.status()[0].running == 2)
        one.cancel()
        go.touch()
        assert (await two).outcome == "ok"
        assert sessions.status()[0].connections == 1

    bench.run(main, bench.stdio(shared=1))


def test_a_run_that_is_closed_during_a_call_lets_the_call_end(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        scope = Scope(run_id="r-1")
        await bench.call(sessions, "echo", text="x", scope=scope)
        go = bench.workspace / "go"
        sleeping = asyncio.ensure_future(bench.call(sessions, "sleep", file=str(go), scope=scope))
        await bench.until(lambda: sessions.status()[0].running)
        await sessions.close_run("r-1")
        go.touch()
        assert (await sleeping).outcome == "ok"
        await bench.until(lambda: sessions.status()[0].connections == 0)

    bench.run(main, bench.stdio())


def test_an_idle_server_is_stopped_and_started_again_when_it_is_needed(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        first = int(bench.said(await bench.call(sessions, "pid")))
        bench.clock.advance(Bounds().idle_s + 1)
        assert bench.said(await bench.call(sessions, "echo", server="other", text="x")) == "x"
        await bench.until(lambda: is_gone(first))
        assert int(bench.said(await bench.call(sessions, "pid"))) != first

    bench.run(main, bench.stdio(), bench.stdio(name="other"))


def test_a_router_that_is_killed_takes_its_servers_with_it(bench: Any, tmp_path: Path) -> None:
    written = tmp_path / "grandchild"
    script = (
        "import asyncio, os, sys, signal\nfrom bundle_router.adapters.mcp import ConnectionSetting,"
        " open_mcp_sessions\nfrom bundle_router.core.catalog import Server\nfrom"
        " bundle_router.testing import FakeClock\nclass Quiet:\n    def event(self, *a, **f):"
        " pass\nasync def main():\n    server = Server(name='s', transport='stdio',"
        " command=sys.executable, args=tuple(sys.argv[1:]))\n    setting ="
        " ConnectionSetting(development=True)\n    s = open_mcp_sessions({'s': server}, setting,"
        " clock=FakeClock(), diagnostics=Quiet())\n    for tool in ('pid', 'env'):\n        r ="
        " await s.call('s', tool, {}, timeout_s=30)\n        print(r.blocks[0].text, flush=True)\n "
        "   sys.stdin.read(1)\n    os.kill(os.getpid(), signal.SIGKILL)\nasyncio.run(main())\n"
    )
    server = bench.stdio("ignore-eof", "ignore-term", f"grandchild={written}")

    async def main() -> None:
        root = Path(__file__).parents[3]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script, *server.args),
            cwd=root,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        pid = int(await process.stdout.readline())
        home = Path(json.loads(await process.stdout.readline())["HOME"])
        assert home.is_dir()  # noqa: ASYNC240 - nothing else runs on this loop
        await bench.until(lambda: written.exists() and written.read_text())
        process.stdin.write(b"x")
        process.stdin.close()
        assert await process.wait() == -9
        async with asyncio.timeout(300):
            await bench.until(
                lambda: is_gone(pid) and is_gone(int(written.read_text())) and not home.exists()
            )

    asyncio.run(main())


def test_a_request_from_the_server_for_what_was_not_offered_is_refused_and_harmless(
    bench: Any,
) -> None:
    async def main(sessions: McpSessions) -> None:
        assert (await bench.call(sessions, "asks")).outcome == "ok"

    bench.run(main, bench.stdio())


def test_processes_of_a_router_that_is_gone_are_reported_and_left_alone(bench: Any) -> None:
    """A marked process whose owner's pid and start time fit no live process."""

    async def main(sessions: McpSessions) -> None:
        env = {"BUNDLE_ROUTER_OWNER": "1-12345 lost", "PATH": os.environ["PATH"]}
        left = await asyncio.create_subprocess_exec("sleep", "60", env=env)
        try:
            await bench.until(lambda: b"sleep" in Path(f"/proc/{left.pid}/cmdline").read_bytes())
            await bench.call(sessions, "echo", text="x")
            assert {"server": "lost", "pid": left.pid, "command": "sleep 60"} in bench.events.named(
                "server.left_behind"
            )
            assert left.returncode is None
        finally:
            left.kill()
            await left.wait()

    bench.run(main, bench.stdio())


@pytest.mark.parametrize("levels", [90, 150, 300])
@pytest.mark.parametrize("over", ["stdio", "http", "events"])
def test_a_schema_that_is_nested_deep_costs_its_tool_and_not_the_list(
    project: Any, bench: Any, levels: int, over: str
) -> None:
    with ExitStack() as stack:
        if over == "stdio":
            project.stdio(f"deep_list={levels}", tools='tools = ["s.*"]')
        else:
            server = stack.enter_context(
                bench.faults.serving(bench.faults.Faults(deep_list=levels))
            )
            server.events = over == "events"
            project.http(server.url, tools='tools = ["s.*"]')
        router = stack.enter_context(project.open(development="unpinned"))
        router.route_sync(project.step())
        shown = [tool.name for tool in router.tools_sync("r").active]
        assert ("s.echo" in shown, "s.deep_one" in shown) == (True, False)
        assert router.call_sync("r", "s.echo", {"text": "x"}).text == "x"
