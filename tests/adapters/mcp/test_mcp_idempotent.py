"""`idempotentHint`: whose word counts when a keyed call that nobody heard the end of is asked for
again.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from bundle_router import load_catalog

HINT = {"idempotentHint": True}


@pytest.mark.parametrize(
    ("trust", "annotations", "more", "is_made_again"),
    [
        ("trusted", HINT, "", True),
        ("trusted", {"idempotentHint": False}, "", False),
        ("trusted", {"idempotentHint": "true"}, "", False),
        ("trusted", {}, 'idempotent = ["gate"]', True),
        ("untrusted", HINT, "", False),
        ("untrusted", HINT, 'idempotent = ["gate"]', True),
    ],
)
def test_a_retry_is_carried_out_again_where_a_trusted_server_or_the_operator_says_so(
    project: Any,
    bench: Any,
    leap: Any,
    trust: str,
    annotations: dict[str, Any],
    more: str,
    is_made_again: bool,
) -> None:
    with bench.faults.serving() as server:
        listed = bench.faults.tool("gate", annotations=annotations)
        server.faults.extra_tools.append(listed)
        project.http(server.url, tools='tools = ["s.gate"]', trust=trust, more=more, timeout_s=60.0)
        bundles = project.config / "bundles.toml"
        bundles.write_text(bundles.read_text().replace('effects = ["read"]', 'effects = ["write"]'))
        project.pin()
        gate = server.faults.gates["x"] = threading.Event()
        with project.open() as router, ThreadPoolExecutor(1) as thread:
            router.route_sync(project.step())
            call = thread.submit(router.call_sync, "r", "s.gate", {"text": "x"}, key="k")
            asyncio.run(bench.until(lambda: server.faults.at_gate))
            while not call.done():
                leap()
                wait([call], 0.05)
            first = call.result()
            assert (first.outcome, first.retryable) == ("timeout", is_made_again)
            gate.set()
            again = router.call_sync("r", "s.gate", {"text": "x"}, key="k")
            assert (again.outcome, again.cached_from) == (
                ("ok", "") if is_made_again else ("timeout", first.call_id)
            )
        assert server.faults.calls == 1 + is_made_again


def test_a_pins_digest_is_of_the_definition_alone_and_a_card_without_the_hint_is_recorded_as_before(
    project: Any, bench: Any
) -> None:
    digests = set()
    with bench.faults.serving() as server:
        for trust in ("trusted", "untrusted"):
            for overlay in ({}, {"echo": {"annotations": HINT}}):
                server.faults.overlay = overlay
                project.http(server.url, tools='tools = ["s.echo"]', trust=trust)
                project.pin()
                catalog = load_catalog(project.config)
                cards: Any = catalog.to_json()["cards"]
                (row,) = [row for row in cards if row["server"] == "s" and row["tool"] == "echo"]
                assert row.get("idempotent") == (True if overlay and trust == "trusted" else None)
                digests.add((bool(overlay), catalog.cards["s.echo"].sha256))
    assert len(digests) == 2
