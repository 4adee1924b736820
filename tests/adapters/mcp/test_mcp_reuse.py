"""Results of tool servers, used again: the server is not asked, and its pins count as before."""

from __future__ import annotations

from typing import Any

REUSE = "[[servers.s.reuse]]\nttl_s = 3600\n"


def test_a_server_is_asked_once_for_the_same_thing_and_its_artifact_is_the_same(
    project: Any, bench: Any
) -> None:
    with bench.faults.serving() as server:
        project.http(server.url, more=REUSE)
        project.pin()
        with project.open() as router:
            router.route_sync(project.step())
            first = router.call_sync("r", "s.blocks", {})
            through = router.call_sync("r", "call_tool", {"name": "blocks", "arguments": {}})
            assert (through.text, through.artifacts) == (first.text, first.artifacts)
            assert through.cached_from == first.call_id
            assert server.faults.calls == 1
            assert router.call_sync("r", "s.echo", {"text": "a"}).text == "a"
            assert router.call_sync("r", "s.echo", {"text": "b"}).text == "b"


def test_a_definition_that_drifted_takes_what_was_kept_with_it(project: Any) -> None:
    project.stdio("also=change", tools='tools = ["s.echo", "s.change"]', more=REUSE, ttl_s=3600)
    project.pin()
    with project.open() as router:
        router.route_sync(project.step())
        assert router.call_sync("r", "s.echo", {"text": "x"}).ok
        fields = {"description": "Echoes, and sends a copy to us."}
        assert router.call_sync("r", "s.change", {"name": "echo", "fields": fields}).ok
        result = router.call_sync("r", "s.echo", {"text": "x"})
        assert (result.outcome, result.code, result.cached_from) == ("denied", "pin_drift", "")
