"""The decision API as an engine meets it: over a socket, beside what the library says of the same
run.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any

import bundle_router_client as client
import pytest
from bundle_router import Decision, Result, Step, Toolset
from bundle_router.errors import UnknownRun
from bundle_router.tool import Media, ToolContext, ToolOutput

from tests.service.conftest import Words

pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")

STEP = {"run_id": "r", "workflow": "w", "role": "r", "step": "both"}
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)


def test_what_the_api_says_is_what_the_library_says(site: Any) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            answer = await http.post("/v1/route", json={**STEP, "goal": "ö", "labels": {"a": "b"}})
            decided = Decision.from_json(answer.json())
            assert answer.status_code == 200
            assert decided.bundle_ids == ["kit.some", "kit.later"]
            record = site.records(file="routing.jsonl")[-1]
            assert (record["decision_id"], record["step"]["goal"]) == (decided.decision_id, "ö")
            ids = {"bundle_ids": ["kit.some", "kit.later"], "offered": []}
            assert answer.json() == {**json.loads(json.dumps(decided.to_json())), **ids}

            listed = await http.get("/v1/runs/r/tools", params={"format": "anthropic"})
            assert Toolset.from_json(listed.json()) == await router.tools("r", format="anthropic")
            again = await http.get(
                "/v1/runs/r/tools",
                params={"format": "anthropic"},
                headers={"If-None-Match": listed.headers["etag"]},
            )
            assert (again.status_code, again.content) == (304, b"")

            called = await http.post(
                "/v1/runs/r/call", json={"tool": "kit.late", "arguments": {"text": "x"}}
            )
            result = Result.from_json(called.json())
            assert (result.text, result.outcome, result.joined) == ("said x", "ok", ("kit.late",))
            assert site.records()[-1]["call_id"] == result.call_id
            text = await http.post(
                "/v1/runs/r/call", json={"tool": "kit__echo", "arguments": '{"text": "y"}'}
            )
            assert text.json()["text"] == "said y"
            denied = await http.post("/v1/runs/r/call", json={"tool": "kit.none"})
            assert (denied.status_code, denied.json()["outcome"]) == (200, "denied")
            older = {"tool": "kit.echo", "decision": decided.decision_id}
            assert (await http.post("/v1/runs/r/call", json=older)).json()[
                "decision_id"
            ] == decided.decision_id

            missed = await http.post("/v1/runs/r/missed", json={"tool": "nobody.knows"})
            assert (missed.status_code, missed.json()["code"]) == (200, "unknown_bundle")
            for body in ({"tool": "nobody.knows", "name": "kit.echo"}, {}):
                for path in ("/v1/runs/r/call", "/v1/runs/r/missed"):
                    assert (await http.post(path, json=body)).status_code == 422
            by_its_old_key = {"name": "nobody.knows"}
            again = await http.post("/v1/runs/r/missed", json=by_its_old_key)
            assert again.json()["text"] == missed.json()["text"]
            older_call = {"name": "kit__echo", "arguments": {"text": "z"}}
            assert (await http.post("/v1/runs/r/call", json=older_call)).json()["text"] == "said z"
            ended = await http.post("/v1/runs/r/close")
            assert ended.json() == {"ended": True, "others": []}
            run = json.loads((site.folder / "runs" / "r" / "run.json").read_text())
            assert run["closed"]

    site.serve_all(work)


def test_the_agents_own_history_counts_in_place_of_what_the_run_remembers(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            await http.post("/v1/route", json={**STEP, "step": "later"})
            said = (
                await http.post("/v1/route", json={**STEP, "step": "some", "messages": []})
            ).json()
            assert [row["id"] for row in said["bundles"]] == ["kit.some"]
            assert "messages" not in site.records(file="routing.jsonl")[-1]["step"]

    site.serve_all(work)


def test_a_key_makes_a_step_and_a_call_happen_once(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            for key in ("k-1", '"k-1"'):
                routed = await http.post("/v1/route", json=STEP, headers={"Idempotency-Key": key})
                assert routed.json()["seq"] == 1
                call = {"tool": "kit.echo", "arguments": {"text": "once"}}
                called = await http.post(
                    "/v1/runs/r/call", json=call, headers={"Idempotency-Key": key}
                )
                assert called.json()["text"] == "said once"
            assert (await http.post("/v1/route", json={**STEP, "key": "k-1"})).json()["seq"] == 1
            assert len([row for row in site.records() if row["type"] == "call.started"]) == 1
            other = await http.post(
                "/v1/route", json={**STEP, "goal": "x"}, headers={"Idempotency-Key": "k-1"}
            )
            assert (other.status_code, other.json()["code"]) == (422, "key_conflict")
            assert "goal" in other.json()["detail"]
            two = await http.post(
                "/v1/route", json={**STEP, "key": "a"}, headers={"Idempotency-Key": "b"}
            )
            assert (two.status_code, two.json()["code"]) == (400, "refused")

    site.serve_all(work)


CALL = {"tool": "kit.echo"}
CHILD = {**STEP, "run_id": "child"}
JSON = {"content-type": "application/json"}
PROBLEMS: dict[str, tuple[str, str, dict[str, Any], int, str]] = {
    "no json": ("POST", "/v1/route", {"content": b"{", "headers": JSON}, 400, "malformed"),
    "a form": ("POST", "/v1/route", {"data": {"run_id": "r"}}, 415, "unsupported_type"),
    "an unknown key": ("POST", "/v1/route", {"json": {**STEP, "command": "/bin/sh"}}, 422, "invalid"),
    "no step": ("POST", "/v1/route", {"json": {"run_id": "r"}}, 422, "invalid"),
    "no run id": ("POST", "/v1/route", {"json": {**STEP, "run_id": "../x"}}, 422, "invalid"),
    "a number for a flag": ("POST", "/v1/route", {"json": {**STEP, "fixed_list": 0}}, 422, "invalid"),
    "a text for a number": ("POST", "/v1/route", {"json": {**STEP, "max_tools": "5"}}, 422, "invalid"),
    "a flag for a number": ("POST", "/v1/route", {"json": {**STEP, "max_tools": True}}, 422, "invalid"),
    "another word for a flag": ("GET", "/v1/runs/r/tools?native=yes", {}, 422, "invalid"),
    "an unknown bundle": ("POST", "/v1/route", {"json": {**STEP, "policy": {"deny": ["kit.som"]}}}, 400, "refused"),
    "an unknown parent": ("POST", "/v1/route", {"json": {**CHILD, "parent_run_id": "no"}}, 404, "unknown_run"),
    "a long key": ("POST", "/v1/route", {"json": STEP, "headers": {"Idempotency-Key": "x" * 201}}, 400, "malformed"),
    "an unknown run": ("GET", "/v1/runs/none/tools", {}, 404, "unknown_run"),
    "a run that is none": ("GET", "/v1/runs/-/tools", {}, 404, "unknown_run"),
    "an unknown format": ("GET", "/v1/runs/r/tools?format=x", {}, 422, "invalid"),
    "an unknown parameter": ("GET", "/v1/runs/r/tools?url=http://x", {}, 422, "invalid"),
    "a parameter twice": ("GET", "/v1/runs/r/tools?native=true&native=false", {}, 422, "invalid"),
    "an unknown decision": ("GET", "/v1/runs/r/tools?decision=x", {}, 400, "refused"),
    "a call of an unknown run": ("POST", "/v1/runs/none/call", {"json": CALL}, 404, "unknown_run"),
    "a call that names a server": ("POST", "/v1/runs/r/call", {"json": {**CALL, "server": "sh"}}, 422, "invalid"),
    "an unknown artifact": ("GET", f"/v1/runs/r/artifacts/{'0' * 64}", {}, 404, "unknown_artifact"),
    "no digest": ("GET", "/v1/runs/r/artifacts/..%2f..%2fx", {}, 404, "not_found"),
    "an unknown method": ("PUT", "/v1/route", {"json": STEP}, 405, "method_not_allowed"),
    "an unknown place": ("GET", "/v1/nothing", {}, 404, "not_found"),
}  # fmt: skip


def test_what_cant_be_done_is_a_problem_with_a_code_and_advice(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            for name, (method, path, sent, status, code) in PROBLEMS.items():
                answer = await http.request(method, path, **sent)
                said = answer.json()
                assert (answer.status_code, said["code"]) == (status, code), name
                assert answer.headers["content-type"] == "application/problem+json", name
                assert said["type"] == f"urn:bundle-router:problem:{code}"
                assert said["status"] == status
                assert said["detail"].endswith("."), name
                assert said["advice"], name
                assert "Value error" not in said["detail"], name
            wrong = (
                await http.post("/v1/route", json={**STEP, "step": "", "key": "secret" * 99})
            ).json()
            assert [row["pointer"] for row in wrong["errors"]] == ["/step", "/key"]
            assert all(
                f"{row['pointer']}: {row['detail']}" in wrong["detail"] for row in wrong["errors"]
            )
            assert "secret" not in json.dumps(wrong)
            long = "x" * 20_000
            wrong = (
                await http.post(
                    "/v1/route", json={**STEP, "run_id": long, long: 3, "labels": {long: 3}}
                )
            ).json()
            assert len(wrong["errors"]) == 3
            assert len(json.dumps(wrong)) < 5_000

    site.serve_all(work)


def test_who_goes_away_is_not_worked_for_and_the_record_says_so(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        body = json.dumps({"name": "kit.wait"}).encode()
        _reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.write(site.request(endpoint, target="/v1/runs/r/call", body=body))
        await asyncio.to_thread(site.kit.arrived.acquire)
        writer.close()
        await writer.wait_closed()
        async with site.http(endpoint) as http:
            while not [row for row in site.records() if row["type"] == "call.finished"]:
                await http.get("/healthz")
        assert [row["outcome"] for row in site.records() if row["type"] == "call.finished"] == [
            "cancelled"
        ]
        async with site.http(endpoint) as http:
            series = (await http.get("/metrics")).text
        assert 'bundle_router_calls_total{outcome="cancelled",server="kit"} 1.0' in series

    site.serve_all(work)


def test_the_end_of_a_run_that_never_began_is_refused_and_one_that_was_ended_stays_so(
    site: Any,
) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            unknown = await http.post("/v1/runs/ghost/close")
            ended = [(await http.post("/v1/runs/r/close")).json()["ended"] for _ in range(2)]
        assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_run")
        assert ended == [True, False]
        with pytest.raises(UnknownRun, match="ghost"):
            await router.close_run("ghost")

    site.serve_all(work)


@pytest.mark.parametrize("way", ["library", "client"])
def test_the_end_of_a_run_that_its_step_did_not_begin_hides_not_why(site: Any, way: str) -> None:
    def close_on_a_thread(router: Any, *, missing_ok: bool = True) -> Any:
        try:
            raise LookupError("why")
        except LookupError:
            return router.close_run_sync("ghost", missing_ok=missing_ok)

    async def route_and_close(router: Any, step: Any) -> None:
        try:
            await router.route(step)
        finally:
            assert not (await router.close_run("ghost", missing_ok=True)).ended

    async def work(library: Any, endpoint: Any) -> None:
        async with client.Router.connect(endpoint.base, token=endpoint.key) as remote:
            router, new = (library, Step) if way == "library" else (remote, client.Step)
            step = new(run_id="ghost", workflow="w", role="r", step="s", parent_run_id="absent")
            with pytest.raises(Exception, match="absent"):  # each has an error of its own
                await route_and_close(router, step)
            assert not (await asyncio.to_thread(close_on_a_thread, router)).ended
            with pytest.raises(Exception, match="ghost"):
                await asyncio.to_thread(router.close_run_sync, "ghost")
            with pytest.raises(
                Exception, match="ghost"
            ) as wrong:  # in a `finally` too, unless it says so
                await asyncio.to_thread(close_on_a_thread, router, missing_ok=False)
            assert isinstance(wrong.value.__context__, LookupError)

    site.serve_all(work)


def test_beyond_so_many_requests_one_is_told_when_to_come_back(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            waiting = asyncio.create_task(http.post("/v1/runs/r/call", json={"tool": "kit.wait"}))
            await asyncio.to_thread(site.kit.arrived.acquire)
            refused = await http.get("/v1/runs/r/tools")
            assert (refused.status_code, refused.json()["code"]) == (503, "busy")
            assert refused.headers["retry-after"] == "1"
            site.kit.door.set()
            assert (await waiting).json()["text"] == "waited"
            assert (await http.get("/v1/runs/r/tools")).status_code == 200

    site.serve_all(work, "[service]\nmax_requests = 1\n")


def test_a_request_that_takes_too_long_is_ended(site: Any, leap: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            asked = asyncio.create_task(http.post("/v1/runs/r/call", json={"tool": "kit.wait"}))
            await asyncio.to_thread(site.kit.arrived.acquire)
            leap()
            late = await asked
            assert (late.status_code, late.json()["code"]) == (504, "timed_out")
            assert site.records()[-1]["outcome"] == "cancelled"

    site.serve_all(work, "[service]\nrequest_s = 59\n")


def test_a_call_under_way_when_the_service_stops_is_recorded(site: Any) -> None:
    ended: list[bytes] = []

    async def work(_router: Any, endpoint: Any) -> threading.Thread:
        connection = socket.create_connection(("127.0.0.1", endpoint.port))
        connection.sendall(
            site.request(endpoint, target="/v1/runs/r/call", body=b'{"tool": "kit.wait"}')
        )
        await asyncio.to_thread(site.kit.arrived.acquire)

        def read_to_the_end() -> None:
            with connection:
                ended.append(connection.recv(1000))

        reading = threading.Thread(target=read_to_the_end)
        reading.start()
        return reading

    site.serve_all(work).join(300)
    assert [line.split()[1] for line in ended] == [b"503"]
    assert [row["outcome"] for row in site.records() if row["type"] == "call.finished"] == [
        "cancelled"
    ]


def test_artifacts_are_inert_and_media_come_in_a_providers_form(site: Any) -> None:
    def draw(arguments: Words, context: ToolContext) -> ToolOutput:
        return ToolOutput((Media(PNG, "image/png"),))

    def page(arguments: Words, context: ToolContext) -> ToolOutput:
        return ToolOutput((Media(b"<html><script>alert(1)</script>" + b" " * 2000, "image/png"),))

    site.kit.echo, site.kit.wait = draw, page

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            shown = {}
            for name in ("kit.echo", "kit.wait"):
                result = (await http.post("/v1/runs/r/call", json={"tool": name})).json()
                (stored,) = result["artifacts"]
                answer = await http.get(f"/v1/runs/r/artifacts/{stored['sha256']}")
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert "sandbox" in answer.headers["content-security-policy"]
                shown[name] = (
                    answer.headers["content-type"],
                    answer.headers["content-disposition"],
                    stored["sha256"],
                )
            assert shown["kit.echo"][:2] == ("image/png", "inline")
            assert shown["kit.wait"][:2] == ("application/octet-stream", "attachment")
            part = await http.get(
                f"/v1/runs/r/media/{shown['kit.echo'][2]}", params={"format": "anthropic"}
            )
            assert part.json()["type"] == "image"
            gone = await http.get(f"/v1/runs/r/media/{'0' * 64}")
            assert (gone.status_code, gone.json()["code"]) == (404, "unknown_artifact")

    site.serve_all(work)


def test_what_was_decided_and_which_bundles_there_are_is_told(site: Any) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            bundles = (await http.get("/v1/bundles")).json()
            assert bundles["revision"] == router.catalog.revision
            assert [row["id"] for row in bundles["bundles"]] == sorted(router.catalog.bundles)

            unknown = await http.get("/v1/runs/nobody")
            assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_run")
            await http.post("/v1/route", json={**STEP, "run_id": "s"})
            await http.post(
                "/v1/runs/r/call", json={"tool": "kit.echo", "arguments": {"text": "x"}}
            )

            listed = (await http.get("/v1/runs")).json()
            assert (listed["total"], [row["run_id"] for row in listed["runs"]]) == (2, ["s", "r"])
            assert (await http.get("/v1/runs", params={"tool": "kit.echo"})).json()["total"] == 1
            assert (await http.get("/v1/runs", params={"folder": "/etc"})).status_code == 422
            wrong = await http.get("/v1/runs", params={"since": "banana"})
            assert (wrong.status_code, wrong.json()["advice"]) == (
                400,
                "e.g. 2026-01-31",
            ), wrong.text
            assert (await http.get("/v1/runs", params={"since": "2026-01-31"})).status_code == 200
            told = (await http.get("/v1/runs/r")).json()
            assert (told["run"]["run_id"], len(told["decisions"]), len(told["calls"])) == (
                "r",
                1,
                1,
            )
            assert (await http.get("/v1/runs/r", params={"start": "1"})).json()["decisions"] == []

    site.serve_all(work)
