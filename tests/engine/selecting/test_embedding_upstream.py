"""What an embedding model can do to us over HTTP, each fault played by a real server; and a router
that asks one.
"""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.learned_files import save_learned
from bundle_router.adapters.llm import LiteLlmEmbedder
from bundle_router.core.records.replayed import catalog_from, replay
from bundle_router.core.search.learned_values import LearnedValues, known_of
from bundle_router.core.search.meaning import fault_in
from bundle_router.core.search.memory import Memory
from bundle_router.core.search.ranking import Memories
from bundle_router.core.search.recall import PastText, Recollection
from bundle_router.core.search.request import Request
from bundle_router.core.values import Failure
from bundle_router.testing.upstream import Act, Exchange, ScriptedServer, body, hang, status
from bundle_router.wiring import load_catalog
from bundle_router.wiring.searching import make_search_for, open_embedder

from tests.adapters.llm.broken_upstream import (
    cut,
    drip,
    embeds,
    huge,
    redirect,
    reset,
    slow_headers,
)
from tests.engine.selecting.embedders import about

SECRET = "sk-canary-8Hs2kQ9vLx4mZ7wB"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("litellm") is None or importlib.util.find_spec("instructor") is None,
    reason="the extra bundle-router[model] is not installed",
)

Opened = Callable[[ScriptedServer], LiteLlmEmbedder]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Makes embedders that are ready to ask a server: loading is over, and nothing was sent yet."""
    kept: list[LiteLlmEmbedder] = []
    monkeypatch.setenv("CANARY_KEY", SECRET)

    def made(server: ScriptedServer) -> LiteLlmEmbedder:
        embedder = LiteLlmEmbedder(
            "openai/scripted", base_url=server.base_url, key_env="CANARY_KEY"
        )
        kept.append(embedder)
        assert embedder.embed((), timeout_s=120).failure is None
        assert server.requests == []
        return embedder

    yield made
    for embedder in kept:
        embedder.close()


def test_texts_become_vectors_in_their_order(opened: Opened) -> None:
    with ScriptedServer([embeds(about)]) as server:
        made = opened(server).embed(("source code", "a ticket"), timeout_s=60)
        (request,) = server.requests
    assert made.failure is None
    assert made.vectors == (about("source code"), about("a ticket"))
    assert request.path == "/v1/embeddings"
    assert request.json["input"] == ["source code", "a ticket"]
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert "user" not in request.json


def test_many_texts_go_out_in_batches(opened: Opened) -> None:
    texts = [f"{'code ' * (n % 5)}{n}" for n in range(70)]
    with ScriptedServer([embeds(about)]) as server:
        made = opened(server).embed(texts, timeout_s=60)
        assert [len(request.json["input"]) for request in server.requests] == [32, 32, 6]
    assert made.vectors == tuple(about(text) for text in texts)


def shuffled(exchange: Any) -> None:
    rows = [{"index": at, "embedding": [float(at), 1.0]} for at in (2, 0, 1)]
    exchange.reply(json.dumps({"object": "list", "data": rows, "model": "m", "usage": {}}).encode())


def test_vectors_are_put_in_the_order_of_their_numbers(opened: Opened) -> None:
    with ScriptedServer([shuffled]) as server:
        assert opened(server).embed("abc", timeout_s=60).vectors == (
            (0.0, 1.0),
            (1.0, 1.0),
            (2.0, 1.0),
        )


FAULTS: list[tuple[str, Act, Failure]] = [
    ("400", status(400), "bad_request"),
    ("401", status(401), "auth"),
    ("404", status(404), "bad_request"),
    ("413", status(413), "context_window"),
    ("429", status(429), "rate_limited"),
    ("500", status(500), "upstream_error"),
    ("502 in HTML", body(b"<html>bad gateway</html>", "text/html"), "upstream_error"),
    ("reset", reset(), "upstream_error"),
    ("cut", cut(), "upstream_error"),
    ("not JSON", body(b"{not json"), "upstream_error"),
    ("huge", huge(), "upstream_error"),
    (
        "20,000 rows",
        body(json.dumps({"object": "list", "data": [{}] * 20_000}).encode()),
        "upstream_error",
    ),
    ("redirect", redirect("http://127.0.0.1:9/v1/embeddings"), "upstream_error"),
    ("hang", hang(), "timeout"),
    ("drip", drip(), "timeout"),
    ("slow headers", slow_headers(), "timeout"),
]


@pytest.mark.parametrize(
    ("act", "failure"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS]
)
def test_every_fault_is_a_failure_after_one_request(
    opened: Opened, act: Act, failure: Failure, leap: Any
) -> None:
    with ScriptedServer([act, embeds(about)]) as server:
        embedder = opened(server)
        if failure == "timeout":
            leap.after(server.asked)
        made = embedder.embed(["source code"], timeout_s=59.0)
        assert len(server.requests) == 1
    assert (made.vectors, made.failure) == ((), failure)
    assert SECRET not in repr(made)
    assert "source code" not in repr(made)


def test_how_long_to_wait_is_told(opened: Opened) -> None:
    with ScriptedServer([status(429, {"Retry-After": "7"})]) as server:
        assert opened(server).embed(["x"], timeout_s=60).retry_after_s == 7.0


UNSOUND: list[tuple[str, Act]] = [
    ("NaN", embeds(lambda text: (math.nan, 1.0))),
    ("infinity", embeds(lambda text: (math.inf, 1.0))),
    ("one too few", embeds(about, lose=1)),
    ("of unequal length", embeds(lambda text: (1.0,) * len(text))),
    ("no numbers", embeds(lambda text: ("a", "b"))),  # type: ignore[arg-type, return-value]  # as servers do
    ("empty", embeds(lambda text: ())),
    ("nothing of the kind", body(b'{"hello": 1}')),
]


@pytest.mark.parametrize("act", [row[1] for row in UNSOUND], ids=[row[0] for row in UNSOUND])
def test_unsound_vectors_are_found_out(opened: Opened, act: Act) -> None:
    with ScriptedServer([act]) as server:
        made = opened(server).embed(["one", "three"], timeout_s=60)
    assert made.failure is not None or fault_in(made.vectors, 2)


@pytest.mark.parametrize("field", ["model", "error", "note"])
def test_a_long_text_beside_vectors_keeps_nobody_busy(opened: Opened, field: str) -> None:
    row = {"object": "embedding", "index": 0, "embedding": [0.1] * 200_000}
    whole = {
        "object": "list",
        "data": [row],
        "model": "m",
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }
    acts = [body(json.dumps(one).encode()) for one in (whole, {**whole, field: "x y " * 500_000})]
    with ScriptedServer(acts) as server:
        embedder = opened(server)
        assert len(embedder.embed(("a",), timeout_s=60).vectors[0]) == 200_000, (
            "vectors may be long"
        )
        began = time.process_time()
        assert embedder.embed(("a",), timeout_s=60).failure is not None
        assert time.process_time() - began < 1.5, "some 0.05 s; 5.6 by litellm's expressions"


def test_who_is_closed_asks_nobody(opened: Opened) -> None:
    with ScriptedServer([embeds(about)]) as server:
        embedder = opened(server)
        embedder.close()
        embedder.close()
        assert embedder.embed(["x"], timeout_s=1).failure == "not_ready"
        assert server.requests == []


def test_who_is_closed_while_it_waits_is_not_ready(opened: Opened) -> None:
    asked = threading.Event()

    def wait(exchange: Exchange) -> None:
        asked.set()
        exchange.wait_for_close()

    with ScriptedServer([wait]) as server, ThreadPoolExecutor(1) as pool:
        embedder = opened(server)
        waiting = pool.submit(embedder.embed, ["x"], timeout_s=60)
        assert asked.wait(60)
        embedder.close()
        made = waiting.result(60)
    assert (made.failure, made.detail) == ("not_ready", "closed")


# --- a whole router -------------------------------------------------------------------------------


def config(folder: Path, url: str, *, more: str = "") -> Path:
    folder.mkdir()
    (folder / "router.toml").write_text(
        f'[search.embeddings]\nmodel = "openai/scripted"\nbase_url = "{url}"\nkey_env ='
        f' "CANARY_KEY"\ndeadline_s = 60.0\n{more}\n[log]\ndiagnostics = "error"\n'
    )
    (folder / "routes.toml").write_text("routes = []\n")
    (folder / "policy.toml").write_text('[[policies]]\nname = "everything"\nallow = ["*"]\n')
    return folder


def routed(of: Path, runs: Path) -> dict[str, Any]:
    with Router.open(of, runs=runs) as router:
        router.warm_up_sync()
        router.route_sync(
            Step(
                run_id="r",
                workflow="x",
                role="y",
                step="z",
                goal="find where the code sets a limit",
            )
        )
    (line,) = (runs / "r" / "routing.jsonl").read_text().splitlines()
    record: dict[str, Any] = json.loads(line)
    return record


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CANARY_KEY", SECRET)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_router_is_told_of_embeddings_by_its_config_alone(place: Path) -> None:
    with ScriptedServer([embeds(about)]) as server:
        of = config(place / "config", server.base_url)
        record = routed(of, place / "runs")
        first = [request.json["input"] for request in server.requests]
        again = routed(of, place / "runs-2")
        second = [request.json["input"] for request in server.requests][len(first) :]
    assert record["search"]["embeddings"] == "used"
    revisions = {row["name"]: row["revision"] for row in record["facts"]["revisions"]}
    assert revisions["embeddings"].startswith("openai/scripted@")
    assert again["search"] == record["search"]
    assert second == [["find where the code sets a limit"]], (
        "what is unchanged is not embedded again"
    )
    assert SECRET not in json.dumps(record)


def test_a_router_that_awaited_nothing_lets_go_of_its_embedder(place: Path) -> None:
    of = config(place / "config", "http://127.0.0.1:9")
    script = f"""
from bundle_router import Router, Step

with Router.open({str(of)!r}, runs={str(place / "none")!r}):
    pass
with Router.open({str(of)!r}, runs={str(place / "runs")!r}) as router:
    router.route_sync(Step(run_id="r", workflow="x", role="y", step="z"))
"""
    # In a process of its own: what is being imported when the router closes is imported by halves.
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_replay_needs_no_embedder(place: Path) -> None:
    with ScriptedServer([embeds(about)]) as server:
        record = routed(config(place / "config", server.base_url), place / "runs")
    recorded = catalog_from(json.loads((place / "runs" / "r" / "catalog.json").read_text()))
    assert replay(record, recorded).outcome == "identical"


def test_a_router_whose_embedder_is_down_searches_by_words(place: Path) -> None:
    with ScriptedServer([status(500)]) as server:
        down = routed(config(place / "config", server.base_url), place / "runs")
    plain = place / "plain"
    config(plain, "http://127.0.0.1:9")
    (plain / "router.toml").write_text("# as shipped\n")
    words = routed(plain, place / "runs-2")
    assert (down["search"]["embeddings"], words["search"]["embeddings"]) == ("circuit_open", None)
    assert [row["id"] for row in down["candidates"]] == [row["id"] for row in words["candidates"]]
    assert [row["id"] for row in down["bundles"]] == [row["id"] for row in words["bundles"]]


# --- remembered steps -----------------------------------------------------------------------------

GOAL = "find where the code sets a limit"


def remembering(of: Path, embedder: str) -> Memory:
    """A memory in force, in which people who wanted what GOAL wants needed the tool for
    documentation.
    """
    catalog = load_catalog(of)
    steps = [PastText(f"code {n} code", ("docs.fetch",), f"run-{n}") for n in range(9)]
    memory = Memory(recollection=Recollection.of(steps, embedder, 4.0))
    save_learned(of, LearnedValues(memory, known_of(memory, catalog)))
    return memory


def opened_with(of: Path) -> str:
    embedder = open_embedder(load_catalog(of))
    assert embedder is not None
    revision = embedder.revision
    embedder.close()
    return revision


def test_a_router_recalls_what_was_accepted_and_its_replay_needs_no_embedder(place: Path) -> None:
    with ScriptedServer([embeds(about)]) as server:
        of = config(place / "config", server.base_url)
        before = routed(of, place / "runs")
        memory = remembering(of, opened_with(of))
        record = routed(of, place / "runs-2")
        sent = [text for request in server.requests for text in request.json["input"]]
        again = routed(of, place / "runs-3")
        assert (
            len([text for request in server.requests for text in request.json["input"]])
            == len(sent) + 1
        )
    assert {f"code {n} code" for n in range(9)} <= set(sent)
    assert before["candidates"][0]["id"] != "docs.fetch"
    assert record["candidates"][0]["id"] == "docs.fetch"
    assert (before["search"].get("recall"), record["search"]["recall"]) == (None, "used")
    assert again["search"] == record["search"]
    assert {"name": "memory", "revision": memory.revision} in record["facts"]["revisions"]
    recorded = catalog_from(json.loads((place / "runs-2" / "r" / "catalog.json").read_text()))
    assert replay(record, recorded).outcome == "identical"


def test_a_memory_of_another_embedder_is_of_words_alone_sends_nothing_and_says_so(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer([embeds(about)]) as server:
        of = config(place / "config", server.base_url)
        before = routed(of, place / "runs")
        remembering(of, "another/1")
        told = (
            (of / "router.toml")
            .read_text()
            .replace('diagnostics = "error"', 'diagnostics = "warning"')
        )
        (of / "router.toml").write_text(told)
        record = routed(of, place / "runs-2")
        sent = [text for request in server.requests for text in request.json["input"]]
    assert not any(text.startswith("code ") for text in sent)
    assert record["candidates"] == before["candidates"]
    assert record["search"]["recall"] == "other_embedder"
    assert "memory.not_recalled" in capfd.readouterr().err
    (of / "router.toml").write_text('[log]\ndiagnostics = "warning"\n')
    assert routed(of, place / "runs-3")["search"]["recall"] == "no_embedder"
    assert "memory.not_recalled" in capfd.readouterr().err


def test_a_memory_whose_embedder_is_down_is_of_words_alone(place: Path) -> None:
    with ScriptedServer([status(500)]) as server:
        of = config(place / "config", server.base_url)
        before = routed(of, place / "runs")
        remembering(of, opened_with(of))
        record = routed(of, place / "runs-2")
    assert (record["search"]["embeddings"], record["search"]["recall"]) == (
        "circuit_open",
        "not_heard",
    )
    assert record["candidates"] == before["candidates"]


# --- offline: what is known beforehand ------------------------------------------------------------


def test_evaluation_understands_its_requests_as_a_router_does(place: Path) -> None:
    with ScriptedServer([embeds(about)]) as server:
        catalog = load_catalog(config(place / "config", server.base_url))
        goals = ["find where the code sets a limit", "open the ticket"]
        search = make_search_for(catalog, goals)
        sent = [text for request in server.requests for text in request.json["input"]]
        everyone = frozenset(search.corpus.members)
        found = search.rank_bundles(Request(goals[0]), everyone)
        again = make_search_for(catalog, goals)
        assert [text for request in server.requests for text in request.json["input"]] == sent, (
            "nothing is new"
        )
    assert set(goals) <= set(sent)
    assert found.evidence.likeness > 0.0
    assert found == again.rank_bundles(Request(goals[0]), everyone)
    assert search.rank_bundles(Request("never said before"), everyone).evidence.likeness == 0.0


def test_steps_that_tools_are_recalled_by_are_embedded_too(place: Path) -> None:
    with ScriptedServer([embeds(about)]) as server:
        of = config(place / "config", server.base_url)
        catalog, (tool, *_) = load_catalog(of), load_catalog(of).bundles["docs.fetch"].tools
        steps = [PastText(f"code {n} code", (tool,), f"run-{n}") for n in range(9)]
        recalled = Memories(tools=Memory(recollection=Recollection.of(steps, opened_with(of), 4.0)))
        search = make_search_for(catalog, [GOAL], recalled)
        sent = [text for request in server.requests for text in request.json["input"]]
    everything = frozenset(search.corpus.servers)
    assert {step.text for step in steps} <= set(sent)
    assert search.rank_tools(Request(GOAL), everything)[0].id != tool
    assert search.rank_tools(Request(GOAL), everything, recalled)[0].id == tool


def test_evaluation_goes_on_by_words_when_the_embedder_is_down(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer([status(500)]) as server:
        catalog = load_catalog(config(place / "config", server.base_url))
        search = make_search_for(catalog, ["find where the code sets a limit"])
    assert (search.vectors, search.understood) == (None, {})
    assert search.rank_bundles(
        Request("find where the code sets a limit"), frozenset(search.corpus.members)
    ).scored
    capsys.readouterr()
