"""Who is let in (S-01 to S-04): over real sockets, since what counts is the bytes that arrive."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
from typing import Any

import pytest
from bundle_router.errors import RequestError, UnknownRun
from bundle_router.service import Keys, key_from_env, new_key
from bundle_router.service import requests as requests_under_way
from bundle_router.service.gate import Destination, destination_of, path_of, without_slash
from bundle_router.service.mcp.mount import METHODS
from bundle_router.service.requests import RequestBounds, Requests

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

INITIALIZE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
)
MAX_BODY_BYTES = RequestBounds().max_body_bytes
HOSTS = (
    "evil.com", "127.0.0.1", "localhost", "127.0.0.1:1", "localhost:@evil.com", "127.0.0.1:{port}.evil.com",
    "x/?", "x#", "a@b", "127.0.0.1:{port}@evil.com", "evil.com:{port}", "127.0.0.1:{port}, evil.com", "[::1]:{port}",
    "0.0.0.0:{port}", "LOCALHOST..:{port}", "127.1:{port}",
)  # fmt: skip
ORIGINS = (
    "null", "http://evil.com", "http://localhost:evil.com", "http://localhost:{port}.evil.com", "https://localhost:{port}",
    "http://localhost", "http://localhost:{port}/", "file://", "http://127.0.0.1:{port}, http://evil.com", "",
)  # fmt: skip
TARGETS = (
    "/", "/mcp//", "//mcp/runs/r", "/mcp/runs//r", "/mcp//runs/r", "/mcp/runs/r//", "/mcp%2fruns%2fr", "/mcp/runs%2fr",
    "/mcp/runs/%72", "/mcp/runs/../runs/r", "/mcp/runs/r/..", "/mcp/runs/..", "/mcp/runs/.", "/mcp/runs/",
    "/MCP/runs/r", "http://127.0.0.1:1/mcp/runs/r", "http://evil.com/mcp/runs/r", "/mcp/runs/r;x",
    "/mcp/runs/" + "r" * 129, "*",
)  # fmt: skip


def test_a_request_that_names_another_host_is_refused_before_its_token_is_looked_at(
    site: Any,
) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        for host in HOSTS:
            for token in (None, "wrong"):
                sent = site.request(endpoint, host=host.format(port=endpoint.port), token=token)
                answer = await site.raw(endpoint.port, sent)
                assert answer.status in (400, 421), host  # 400: no HTTP host at all
        for host in ("127.0.0.1", "localhost"):
            answer = await site.raw(
                endpoint.port, site.request(endpoint, host=f"{host}:{endpoint.port}")
            )
            assert (
                answer.status not in (400, 421)
                or "Session" in answer.body
                or "session" in answer.body
            ), answer.body

    site.serve(work)


def test_two_hosts_or_none_are_refused(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        own = f"Host: 127.0.0.1:{endpoint.port}"
        for more in (own, "Host: evil.com"):
            assert (await site.raw(endpoint.port, site.request(endpoint, more=more))).status == 421
        none = site.request(endpoint).replace(own.encode() + b"\r\n", b"")
        assert (await site.raw(endpoint.port, none)).status == 421
        old = none.replace(b"HTTP/1.1", b"HTTP/1.0")
        assert (await site.raw(endpoint.port, old)).status == 421

    site.serve(work)


def test_a_head_of_more_than_a_head_may_have_is_refused(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        many = "\r\n".join(f"X-{number}: {'y' * 100}" for number in range(400))
        for more in (many, f"X-One: {'y' * 40_000}", f"{'N' * 40_000}: y"):
            assert (await site.raw(endpoint.port, site.request(endpoint, more=more))).status == 400
        assert (
            await site.raw(endpoint.port, site.request(endpoint, target="/mcp/" + "r" * 40_000))
        ).status == 400
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.write(b"POST /mcp/runs/r HTTP/1.1\r\nX: " + b"y" * 40_000)  # and no end of it
        assert b" 400 " in await asyncio.wait_for(reader.readline(), 300)
        writer.close()

    site.serve(work)


def test_pages_of_other_origins_and_sites_are_refused_whatever_they_know(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        for origin in ORIGINS:
            more = f"Origin: {origin.format(port=endpoint.port)}"
            answer = await site.raw(endpoint.port, site.request(endpoint, more=more))
            assert answer.status == 403, origin
        for place in ("cross-site", "same-site", "cross-origin"):
            for method in (*METHODS, "OPTIONS"):
                sent = site.request(endpoint, method=method, more=f"Sec-Fetch-Site: {place}")
                assert (await site.raw(endpoint.port, sent)).status == 403
        twice = (
            f"Origin: http://localhost:{endpoint.port}\r\nOrigin: http://localhost:{endpoint.port}"
        )
        assert (await site.raw(endpoint.port, site.request(endpoint, more=twice))).status == 403

    site.serve(work)


def test_no_answer_lets_another_origin_read_it(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        preflight = "Origin: http://evil.com\r\nAccess-Control-Request-Method: POST"
        own = f"Origin: http://localhost:{endpoint.port}"
        for method in ("OPTIONS", "POST"):
            for more in (preflight, own):
                answer = await site.raw(
                    endpoint.port, site.request(endpoint, method=method, more=more)
                )
                assert not [name for name in answer.headers if name.startswith("access-control")]

    site.serve(work)


def test_every_path_and_method_is_closed_without_the_token(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        key = endpoint.key
        wrong = ("", "wrong", key[:-1], key + "A", key.lower(), "", endpoint.token("r")[:-1])
        for target in ("/", "/mcp", "/mcp/runs/r", "/mcp/runs/unknown", "/docs", "/openapi.json"):
            for method in (*METHODS, "OPTIONS", "PUT", "PATCH", "HEAD", "TRACE"):
                for token in wrong:
                    sent = site.request(endpoint, method=method, target=target, token=token)
                    answer = (
                        await site.raw(endpoint.port, sent)
                        if method != "HEAD"
                        else await _head(site, endpoint, sent)
                    )
                    assert answer.status == 401, (method, target)
                    assert answer.headers["www-authenticate"] == "bearer"

    site.serve(work)


async def _head(site: Any, endpoint: Any, sent: bytes) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    try:
        writer.write(sent)
        status = int((await reader.readline()).split()[1])
        rest = (await reader.read()).decode()
    finally:
        writer.close()
    headers = dict(line.lower().split(": ", 1) for line in rest.split("\r\n") if ": " in line)
    return type("Answer", (), {"status": status, "headers": headers})


@pytest.mark.parametrize(
    "authorization",
    [
        "Basic {key}",
        "{key}",
        "Bearer",
        "Bearer  ",
        "Bearer {key} x",
        "Bearer\t{key}",
        "Token {key}",
    ],
)
def test_the_token_counts_as_a_bearer_token_only(site: Any, authorization: str) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        more = f"Authorization: {authorization.format(key=endpoint.key)}"
        assert (
            await site.raw(endpoint.port, site.request(endpoint, token="", more=more))
        ).status == 401
        twice = f"Authorization: Bearer {endpoint.key}"
        assert (await site.raw(endpoint.port, site.request(endpoint, more=twice))).status == 401
        query = f"/mcp/runs/r?token={endpoint.key}&access_token={endpoint.key}"
        assert (
            await site.raw(endpoint.port, site.request(endpoint, token="", target=query))
        ).status == 401

    site.serve(work)


def test_a_path_is_taken_as_it_was_sent(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        assert "session" in (await site.raw(endpoint.port, site.request(endpoint))).body.lower()
        for target in TARGETS:
            answer = await site.raw(endpoint.port, site.request(endpoint, target=target))
            assert answer.status in (400, 404), (target, answer)
            assert "session" not in answer.body.lower(), (target, answer)
        nothing = await site.raw(endpoint.port, site.request(endpoint, target="/mcp/runs"))
        assert (
            nothing.sentence
            == "There is nothing here: connect to /mcp, or to /mcp/runs/ and a run's id."
        )

    site.serve(work)


@pytest.mark.parametrize("decision", [None, "r.0f3a.17"])
def test_the_path_of_a_run_leads_back_to_it_and_to_the_decision_named(decision: str | None) -> None:
    assert destination_of(path_of("r", decision).encode()) == Destination("r", decision)


@pytest.mark.parametrize(
    "path",
    [
        *(
            b"/mcp/runs/r/decisions" + end
            for end in (b"", b"/", b"/r.1/", b"/r.1/x", b"//r.1", b"/.", b"/%72", b"/r\n")
        ),
        b"/mcp/runs/decisions/r.1",
        b"/mcp/runs//decisions/r.1",
        b"/mcp/runs/r/decisions/" + b"r" * 257,
        b"/mcp/runs/r\n",
        b"/mcp/runs/\xc3\xa9",
        b"/mcp/runs/-r",
        b"mcp/runs/r",
        b"",
    ],
)
def test_only_a_run_id_names_a_run_and_only_an_id_behind_it_a_decision(path: bytes) -> None:
    assert destination_of(path) is None


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("/mcp/", "/mcp"),
        ("/mcp/runs/r/", "/mcp/runs/r"),
        ("/mcp/runs/r/decisions/r.0f3a.17/", "/mcp/runs/r/decisions/r.0f3a.17"),
        *(
            (path, path)
            for path in ("/mcp", "/mcp//", "/mcp/runs/", "/mcp/runs/r", "/mcp/runs/r//")
        ),
        *((path, path) for path in ("/", "", "/v1/runs/", "/mcpx/", "/mcp/runs/%72/")),
    ],
)
def test_one_slash_behind_an_mcp_address_is_cut_off_and_no_other(path: str, address: str) -> None:
    assert without_slash(path.encode()) == address.encode()


def test_an_address_with_a_slash_at_its_end_is_the_same_run_and_needs_the_same_token(
    site: Any,
) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        decision = await router.endpoint.decision_id("r")
        for address, token in (
            ("/mcp/runs/r", endpoint.token("r")),
            (f"/mcp/runs/r/decisions/{decision}", endpoint.token("r")),
            ("/mcp", endpoint.key),
        ):
            for target in (address, f"{address}/"):
                answers = [
                    await site.raw(
                        endpoint.port,
                        site.request(endpoint, target=target, token=each, body=INITIALIZE),
                    )
                    for each in (token, "wrong" * 8)
                ]
                assert [answer.status for answer in answers] == [200, 401], target
                assert "mcp-session-id" in answers[0].headers

    site.serve(work)


def test_forms_and_plain_text_are_no_messages(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        types = (
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "",
        )
        for type_ in (*types, "application/jsonp", "text/plain; application/json"):
            answer = await site.raw(endpoint.port, site.request(endpoint, type_=type_))
            assert (answer.status, "application/json" in answer.sentence) == (400, True), type_
        for method in ("PUT", "PATCH", "OPTIONS", "TRACE"):
            answer = await site.raw(endpoint.port, site.request(endpoint, method=method))
            assert (answer.status, answer.headers["allow"]) == (405, "get, post, delete")

    site.serve(work)


def test_a_message_that_is_too_large_is_refused_by_its_length_and_by_its_bytes(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        for length in (MAX_BODY_BYTES + 1, 10**17):
            answer = await site.raw(endpoint.port, site.request(endpoint, body=b"", length=length))
            assert (answer.status, answer.headers["connection"]) == (413, "close")
        chunk = b"%x\r\n%s\r\n" % (65_536, b"x" * 65_536)
        sent = site.request(endpoint, body=b"").replace(
            b"Content-Length: 0", b"Transfer-Encoding: chunked"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.write(sent)
        for _ in range(MAX_BODY_BYTES // 65_536 + 1):
            writer.write(chunk)
        assert (await site.read_answer(reader)).status == 413
        writer.close()

    site.serve(work)


def test_a_client_that_asks_whether_to_send_its_body_is_told_to(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        body, more = (
            b'{"jsonrpc":"2.0","method":"notifications/nothing"}',
            "EXPECT:  100-Continue \r\nMCP-Protocol-Version",
        )
        whole = site.request(endpoint, body=body, more=f"{more}: 2026-07-28")
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.write(whole.removesuffix(body))
        assert (await site.read_answer(reader)).status == 100
        writer.write(body)
        assert (await site.read_answer(reader)).status == 202
        writer.close()

    site.serve(work)


def test_what_follows_a_body_is_no_header(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        head, body = (
            (
                f"POST /mcp/runs/r HTTP/1.1\r\nHost: 127.0.0.1:{endpoint.port}\r\nContent-Type:"
                " application/json\r\nAccept: application/json,"
                " text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nTransfer-Encoding:"
                " chunked\r\n"
            ),
            '{"jsonrpc":"2.0","method":"notifications/nothing"}',
        )
        chunks = f"\r\n{len(body):x}\r\n{body}\r\n0\r\n"
        token = f"Authorization: Bearer {endpoint.key}\r\n"
        for sent, status in (
            (head + chunks + token, 401),
            (head + token + chunks + "Host: evil.example\r\n", 202),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            writer.write(f"{sent}\r\n".encode())
            assert (await site.read_answer(reader)).status == status
            writer.close()

    site.serve(work)


def test_a_body_that_does_not_arrive_costs_its_own_connection(site: Any, leap: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        slow = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(20)]
        for method, (_, writer) in zip(METHODS * 7, slow, strict=False):
            writer.write(
                site.request(endpoint, method="POST", body=b"{", length=100).replace(
                    b"POST", method.encode(), 1
                )
            )
        async with site.client(endpoint) as connected:
            assert (await connected.call_tool("kit__echo", {"text": "meanwhile"})).content[
                0
            ].text == "said meanwhile"
        leap()
        for reader, writer in slow:
            assert (await site.read_answer(reader)).status == 408
            writer.close()

    site.serve(work, body_s=59)


def test_a_head_that_does_not_arrive_costs_its_own_connection(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        whole = site.request(endpoint, target="/mcp/runs/none")
        begun = (b"", whole[:20], whole[:-5].partition(b"\r\n\r\n")[0])
        slow = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in begun]
        for start, (_, writer) in zip(begun, slow, strict=True):
            writer.write(start)
        for reader, writer in slow:
            assert await asyncio.wait_for(reader.read(), 300) == b""
            writer.close()

    site.serve(work, head_s=0.2)


def test_the_time_for_a_head_begins_with_its_first_byte_and_not_with_the_connection(
    site: Any,
) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        body, era = (
            b'{"jsonrpc":"2.0","method":"notifications/nothing"}',
            "MCP-Protocol-Version: 2026-07-28",
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        for _ in range(3):
            writer.write(site.request(endpoint, body=body, more=era))
            assert (await site.read_answer(reader)).status == 202
            await asyncio.sleep(0.3)  # idle for longer than a head may take
        writer.close()

    site.serve(work, head_s=0.2)


def test_no_message_can_name_a_process_or_a_place(site: Any) -> None:
    """S-03. Unknown keys are refused or say nothing; what exists is in files on disk."""
    keys = {
        "command": "/bin/sh",
        "args": ["-c", "touch x"],
        "transport": "stdio",
        "url": "http://127.0.0.1:1/",
        "env": {},
    }

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.client(endpoint) as connected:
            for tool in ("kit__echo", "search_tools", "call_tool", "nothing", "read_artifact"):
                for key, value in keys.items():
                    result = await connected.call_tool(tool, {key: value})
                    assert result.is_error, (tool, key)
        for method in ("tools/call", "initialize", "tools/list", "servers/add", "resources/read"):
            body = json.dumps(
                {"jsonrpc": "2.0", "id": 1, "method": method, **keys, "params": keys}
            ).encode()
            answer = await site.raw(endpoint.port, site.request(endpoint, body=body))
            assert answer.status in (200, 400), (method, answer)
            assert '"error"' in answer.body
        assert not (site.folder / "x").exists()

    site.serve(work)


def test_a_runs_own_token_opens_that_run_alone(site: Any) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        await router.route(site.step(run_id="other"))
        own, others = endpoint.token("r"), endpoint.token("other")
        assert len({own, others, endpoint.key}) == 3
        async with site.client(endpoint, token=own) as connected:
            assert (await connected.call_tool("kit__echo", {"text": "mine"})).content[
                0
            ].text == "said mine"
        for target, token in (
            ("/mcp/runs/r", others),
            ("/mcp/runs/other", own),
            ("/mcp", own),
            ("/mcp/runs/none", own),
        ):
            assert (
                await site.raw(endpoint.port, site.request(endpoint, target=target, token=token))
            ).status == 401

    site.serve(work)


def test_a_token_of_a_run_opens_none_that_is_made_anew_under_its_id_and_outlives_a_restart(
    site: Any,
) -> None:
    key = "chosen-by-an-operator-and-long-enough"
    before: dict[str, str] = {}

    async def status(router: Any, endpoint: Any, name: str, target: str = "/mcp/runs/s") -> int:
        return int(
            (
                await site.raw(
                    endpoint.port, site.request(endpoint, target=target, token=before[name])
                )
            ).status
        )

    async def first(router: Any, endpoint: Any) -> None:
        decided = (await router.route(site.step(run_id="s"))).decision_id
        before.update(
            run=endpoint.token("s"),
            decision=endpoint.token("s", decided),
            at=f"/decisions/{decided}",
        )

    async def restarted(router: Any, endpoint: Any) -> None:
        assert endpoint.token("s") == before["run"]
        assert await status(router, endpoint, "run") == 400  # let in: no handshake came before
        assert await status(router, endpoint, "decision", f"/mcp/runs/s{before['at']}") == 400

    async def anew(router: Any, endpoint: Any) -> None:
        with pytest.raises(UnknownRun):
            endpoint.token("s")
        assert await status(router, endpoint, "run") == 404
        await router.route(site.step(run_id="s"))
        for name in ("run", "decision"):
            for at in ("", before["at"]):
                assert await status(router, endpoint, name, f"/mcp/runs/s{at}") == 401
        before["run"] = endpoint.token("s")
        assert await status(router, endpoint, "run") == 400

    site.serve(first, key=key)
    site.serve(restarted, key=key)
    shutil.rmtree(site.folder / "runs" / "s")
    site.serve(anew, key=key)


def test_a_session_of_one_run_is_unknown_to_another(site: Any) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        await router.route(site.step("later", run_id="other"))
        who = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who}
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.write(site.request(endpoint, body=json.dumps(hello).encode()))
        session = (await site.read_answer(reader)).headers["mcp-session-id"]
        writer.close()
        for target in ("/mcp/runs/other", "/mcp/runs/none"):
            for method in METHODS:
                sent = site.request(
                    endpoint, target=target, method=method, more=f"Mcp-Session-Id: {session}"
                )
                assert (await site.raw(endpoint.port, sent)).status == 404

    site.serve(work)


def test_clients_that_leave_without_a_word_lock_nobody_out(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        who = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        hello = json.dumps(
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who}
        ).encode()
        ping = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"}).encode()

        async def open_one() -> str:
            answer = await site.raw(endpoint.port, site.request(endpoint, body=hello))
            assert answer.status == 200
            return str(answer.headers["mcp-session-id"])

        async def is_known(session: str) -> bool:
            sent = site.request(endpoint, body=ping, more=f"Mcp-Session-Id: {session}")
            return bool((await site.raw(endpoint.port, sent)).status == 200)

        first, second, third = [await open_one() for _ in range(3)]
        listening = site.request(endpoint, method="GET", more=f"Mcp-Session-Id: {second}")
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.write(listening)
        assert (
            b" 200 " in await reader.readline()
        )  # the second is in use, whenever it was last asked
        assert await is_known(first)
        fourth = await open_one()
        for _ in range(20):
            await open_one()
            assert await is_known(first), "used again before each of the others"
        assert await is_known(second)
        assert not await is_known(third)
        assert not await is_known(fourth)
        writer.close()

    site.serve(work, limits="[service]\nmax_sessions = 4")


def test_memory_is_given_back_once_when_a_crowd_has_gone_and_not_after_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    monkeypatch.setattr(requests_under_way, "SETTLED_S", 0.0)
    monkeypatch.setattr(requests_under_way, "give_memory_back", lambda: given.append(1))
    requests = Requests(RequestBounds())

    async def crowd(size: int) -> None:
        together = asyncio.Barrier(size)

        async def app(*_of: Any) -> None:
            await together.wait()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        asked = (
            requests.carry_out(app, {"method": "POST", "headers": ()}, receive, app)
            for _ in range(size)
        )
        await asyncio.gather(*map(asyncio.create_task, asked))

    async def work() -> None:
        for size in (10, 63, 64, 200, 10):
            await crowd(size)
            await asyncio.get_running_loop().run_in_executor(
                None, lambda: None
            )  # behind what was given to it
            await asyncio.sleep(0)
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(work())
    assert len(given) == 2
    requests_under_way.give_memory_back()  # where the C library can't, nothing happens


def test_it_listens_on_loopback_alone(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        assert endpoint.url("r") == f"http://127.0.0.1:{endpoint.port}/mcp/runs/r"
        others = {
            str(row[4][0])
            for row in socket.getaddrinfo(socket.gethostname(), None, family=socket.AF_INET)
        }
        for address in sorted((others | {"127.0.0.2"}) - {"127.0.0.1"}):
            with pytest.raises(OSError):
                await asyncio.wait_for(asyncio.open_connection(address, endpoint.port), 300)

    site.serve(work)


# --- keys -----------------------------------------------------------------------------------------


def test_new_keys_differ_and_are_keys() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(Keys(key).caller(key.encode(), None) for key in keys)
    one = Keys(keys.pop())
    assert not any(
        one.caller(one.token_for_run(run_id, b"\0\0\0\0").encode(), None) for run_id in ("", "r")
    )


@pytest.mark.parametrize(
    "key", ["", "short", "x" * 31, "x" * 513, "ü" * 40, "a b" * 20, "x" * 40 + "\n"]
)
def test_a_key_that_is_none_is_refused_and_not_repeated(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDPOINT_TOKEN", key)
    with pytest.raises(RequestError, match="ENDPOINT_TOKEN") as refused:
        key_from_env("ENDPOINT_TOKEN")
    assert len(key) < 6 or key not in f"{refused.value} {refused.value.advice}"
    with pytest.raises(RequestError):
        Keys(key)


def test_keys_do_not_show_in_what_is_printed_of_them(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> str:
        return f"{endpoint!r} {Keys(endpoint.key)!r} {endpoint.key}"

    shown, _, key = site.serve(work).rpartition(" ")
    assert key not in shown


def test_no_key_is_written_to_the_runs_or_to_standard_error(
    site: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    async def work(_router: Any, endpoint: Any) -> str:
        async with site.client(endpoint) as connected:
            await connected.call_tool("kit__echo", {"text": "x"})
        await site.raw(endpoint.port, site.request(endpoint, token=endpoint.key + "x"))
        await site.raw(endpoint.port, b"GET " + endpoint.key.encode() + b"\r\n\r\n")
        return str(endpoint.key)

    key = site.serve(work)
    written = b"".join(
        path.read_bytes() for path in (site.folder / "runs").rglob("*") if path.is_file()
    )
    assert key.encode() not in written
    assert key not in "".join(capfd.readouterr())


@pytest.mark.parametrize("key", [None, "chosen-by-an-operator-and-long-enough"])
def test_a_key_that_an_agent_or_a_tool_repeats_is_redacted(
    site: Any, capfd: pytest.CaptureFixture[str], key: str | None
) -> None:
    async def work(router: Any, endpoint: Any) -> list[str]:
        left = (await router.route(site.step(branch="left"))).decision_id
        keys = [endpoint.key, endpoint.token("r"), endpoint.token("r", left)]
        async with site.client(endpoint, token=endpoint.token("r")) as connected:
            for each in keys:
                told = base64.b64encode(f"Bearer {each}".encode()).decode()
                for text in (
                    each,
                    f"Authorization: Bearer {each}",
                    told,
                    f"http://127.0.0.1/?x={each}&y",
                ):
                    assert not (await connected.call_tool("kit__echo", {"text": text})).is_error
        await router.route(site.step(goal=f"use {keys[0]} and {keys[1]}"))
        router.endpoint.report("warning", "token.seen", keys=keys)
        return keys

    keys = site.serve(work, key=key)
    files = [path for path in (site.folder / "runs").rglob("*.jsonl") if path.is_file()]
    written = "".join(path.read_text() for path in files) + "".join(capfd.readouterr())
    assert "[redacted:token:endpoint]" in written
    assert "[redacted:router-token]" in written
    for each in keys:
        assert each not in written
        assert base64.b64encode(f"Bearer {each}".encode()).decode() not in written
