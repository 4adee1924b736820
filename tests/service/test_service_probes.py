"""What the service tells of itself: probes, series, spans, its log; and runs that it closes by
itself.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

import pytest
from bundle_router.errors import StorageError
from bundle_router.service.idling import IdleRuns

pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")

STEP = {"run_id": "r", "workflow": "w", "role": "r", "step": "both"}


async def ready(http: Any) -> Any:
    """Return the answer of /readyz once it is 200: what MCP takes is loaded beside."""
    while (answer := await http.get("/readyz")).status_code != 200:
        pass
    return answer


def test_probes_say_one_word_to_strangers_and_the_rest_to_a_token(site: Any) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token="") as stranger, site.http(endpoint) as http:
            assert (await stranger.get("/healthz")).json() == {"status": "ok"}
            assert (await ready(stranger)).json() == {"ready": True}
            for path in ("/metrics", "/openapi.json", "/v1/runs/r/tools"):
                assert (await stranger.get(path)).status_code == 401
            said = (await http.get("/readyz")).json()
            assert said["config"] == {
                "revision": router.catalog.revision,
                "policy": str(site.folder / "config" / "policy.toml"),
                "problems": [],
            }
            assert {"name": "kit", "available": True, "why": ""} in said["servers"]
            assert (said["store"], said["mcp"]) == ("ok", "ok")

    site.serve_all(work)


def test_who_cant_keep_a_run_is_not_ready_and_well_again_when_it_can(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        runs, aside = site.folder / "runs", site.folder / "aside"
        async with site.http(endpoint) as http:
            await ready(http)
            runs.rename(aside)
            runs.write_text("a file")
            down = await http.get("/readyz")
            assert (down.status_code, down.json()["ready"]) == (503, False)
            assert str(runs) in down.json()["store"]
            runs.unlink()
            aside.rename(runs)
            assert (await http.get("/readyz")).status_code == 200

    site.serve_all(work)


def test_series_count_decisions_calls_and_answers_by_closed_words(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http, site.client(endpoint) as agent:
            await http.post("/v1/route", json=STEP)
            await http.post("/v1/runs/r/call", json={"name": "kit.echo"})
            await agent.call_tool("kit__echo", {"text": "over MCP"})
            await http.post("/v1/runs/r/call", json={"name": 'made"up\n.name'})
            await http.get("/v1/runs/none/tools")
            lines = (await http.get("/metrics")).text.splitlines()
        assert 'bundle_router_decisions_total{degraded="false",source="mapping"} 1.0' in lines
        assert 'bundle_router_calls_total{outcome="ok",server="kit"} 2.0' in lines
        assert 'bundle_router_calls_total{outcome="denied",server=""} 1.0' in lines
        assert (
            'bundle_router_requests_total{route="/v1/runs/{run_id}/tools",status="404"} 1.0'
            in lines
        )
        assert "bundle_router_requests_under_way 1.0" in lines
        assert not [line for line in lines if "made" in line]

    site.serve_all(work)


class Collector(BaseHTTPRequestHandler):
    """Keeps the bodies that are posted to it, on its server."""

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))  # type: ignore[attr-defined] # ours
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_given: object) -> None:
        """Quietly."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    exporters = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    # Two seconds may be too short for one that has to be there.
    patient = partial(exporters.OTLPSpanExporter, timeout=300)
    monkeypatch.setattr(
        exporters, "OTLPSpanExporter", lambda endpoint, timeout: patient(endpoint=endpoint)
    )
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.bodies = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def spans_of(proto: Any, collector: Any) -> list[Any]:
    requests = [proto.ExportTraceServiceRequest.FromString(body) for body in collector.bodies]
    resources = [resource for request in requests for resource in request.resource_spans]
    return [
        span for resource in resources for scope in resource.scope_spans for span in scope.spans
    ]


def test_a_question_to_a_model_is_a_span_within_its_decision(site: Any, collector: Any) -> None:
    proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    if (
        find_spec("litellm") is None
    ):  # imported, it would ask the network for prices, and say so on standard error
        pytest.skip("needs the extra 'model'")
    from bundle_router.testing.upstream import ScriptedServer, choice, says

    async def work(router: Any, endpoint: Any) -> None:
        await router.warm_up()
        async with site.http(endpoint) as http:
            asked = {**STEP, "step": "nobody mapped", "goal": "why is the sky blue"}
            assert (await http.post("/v1/route", json=asked)).json()["source"] == "model"

    url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    with ScriptedServer([says(choice("kit.later"))]) as model:
        names = f'names = ["openai/scripted"]\nbase_url = "{model.base_url}"\ndeadline_s = 60\n'
        site.serve_all(work, f'[service]\ntraces = "{url}"\n[model]\n{names}')
    spans = {span.name: span for span in spans_of(proto, collector)}
    decision, asked = spans["decision"], spans["model"]
    assert (asked.trace_id, asked.parent_span_id) == (decision.trace_id, decision.span_id)
    told = {row.key: row.value for row in asked.attributes}
    assert told["gen_ai.request.model"].string_value == "openai/scripted"
    assert told["gen_ai.usage.input_tokens"].int_value > 0
    assert (told["failure"].string_value, told["attempts"].int_value) == ("", 1)
    assert decision.start_time_unix_nano <= asked.start_time_unix_nano < asked.end_time_unix_nano
    assert b"sky" not in b"".join(collector.bodies)


def test_spans_of_decisions_and_calls_reach_a_collector_below_the_callers(
    site: Any, collector: Any
) -> None:
    proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            sent = {"traceparent": f"00-{trace}-{parent}-01", "baggage": "user=someone"}
            await http.post("/v1/route", json={**STEP, "goal": "a-goal-of-ours"}, headers=sent)
            await http.post(
                "/v1/runs/r/call", json={"name": "kit.echo", "arguments": {"text": "an-argument"}}
            )

    url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    site.serve_all(work, f'[service]\ntraces = "{url}"\n')
    spans = {span.name: span for span in spans_of(proto, collector)}
    assert sorted(spans) == ["call", "decision"]
    decision = spans["decision"]
    assert (decision.trace_id.hex(), decision.parent_span_id.hex()) == (trace, parent)
    attributes = {row.key: row.value.string_value for row in decision.attributes}
    record = site.records(file="routing.jsonl")[-1]
    assert (attributes["decision_id"], attributes["source"]) == (record["decision_id"], "mapping")
    assert decision.end_time_unix_nano > decision.start_time_unix_nano
    told = b"".join(collector.bodies)
    assert not [word for word in (b"a-goal-of-ours", b"an-argument", b"someone") if word in told]


def test_a_cancelled_call_is_a_span_too_and_names_nothing_that_a_request_made_up(
    site: Any, collector: Any, leap: Any
) -> None:
    proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            asked = asyncio.create_task(http.post("/v1/runs/r/call", json={"name": "kit__wait"}))
            await asyncio.to_thread(site.kit.arrived.acquire)
            leap()
            assert (await asked).status_code == 504

    url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    site.serve_all(work, f'[service]\ntraces = "{url}"\nrequest_s = 59\n')
    [call] = [span for span in spans_of(proto, collector) if span.name == "call"]
    told = {row.key: row.value.string_value for row in call.attributes}
    assert (told["tool"], told["outcome"], told["run_id"]) == ("kit.wait", "cancelled", "r")


def test_the_log_has_a_line_for_each_decision_call_and_answer(
    site: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            await http.post("/v1/route", json=STEP)
            await http.post(
                "/v1/runs/r/call", json={"name": "kit.echo", "arguments": {"text": "an-argument"}}
            )

    site.serve_all(work, '[log]\ndiagnostics = "info"\n')
    err = capfd.readouterr().err
    lines = {row["event"]: row for row in map(json.loads, err.splitlines())}
    assert (
        lines["step.routed"]["decision_id"] == site.records(file="routing.jsonl")[-1]["decision_id"]
    )
    assert lines["tool.called"]["outcome"] == "ok"
    answered = lines["request.answered"]
    assert (answered["route"], answered["status"]) == ("/v1/runs/{run_id}/call", 200)
    assert "an-argument" not in err


def test_a_run_that_nobody_asks_for_is_closed_and_goes_on_with_its_next_step(site: Any) -> None:
    async def work(router: Any, endpoint: Any) -> None:
        path = site.folder / "runs" / "r" / "run.json"
        async with site.http(endpoint) as http:
            await http.post("/v1/route", json=STEP)
            while not json.loads(path.read_text()).get("closed"):
                await http.get("/healthz")
            assert (await http.post("/v1/route", json=STEP)).json()["seq"] == 2

    site.serve_all(work, "[service]\nidle_run_s = 0.05\n")


def test_a_run_in_use_is_not_idle_and_one_that_cant_be_closed_costs_only_itself() -> None:
    closed: list[str] = []
    said: list[str] = []

    async def close(run_id: str) -> bool:
        closed.append(run_id)
        if run_id == "broken":
            raise StorageError("no", kind="io_error")
        return True

    async def main() -> None:
        idle = IdleRuns(1e-9, close, lambda level, event, **fields: said.append(f"{level} {event}"))
        try:
            with idle.use("busy"):
                for run_id in ("broken", "done"):
                    with idle.use(run_id):
                        pass
                await asyncio.to_thread(idle.note, "noted")
                await asyncio.to_thread(idle.note, "busy")
                await idle.close_idle()
            assert sorted(closed) == ["broken", "done", "noted"]
        finally:
            await idle.end()

    asyncio.run(main())
    assert "warning run.idle_not_closed" in said
