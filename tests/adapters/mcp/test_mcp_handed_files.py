"""Artifacts handed as files to servers: to a process where it may read, to a server elsewhere not
at all.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

READS = {
    "inputSchema": {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
    }
}


def test_a_server_elsewhere_is_not_given_a_path_and_not_called(project: Any, bench: Any) -> None:
    with bench.faults.serving() as server:
        server.faults.overlay["echo"] = READS
        project.http(server.url)
        project.pin()
        with project.open() as router:
            router.route_sync(project.step())
            (stored,) = router.call_sync("r", "s.blocks", {}).artifacts[:1]
            calls = server.faults.calls
            result = router.call_sync("r", "s.echo", {"path": stored.uri})
            assert (result.outcome, result.code) == ("invalid_arguments", "no_path")
            assert "not on this machine" in result.text
            assert server.faults.calls == calls


@pytest.mark.skipif(
    not os.environ.get("BUNDLE_ROUTER_TEST_SERVERS"),
    reason="BUNDLE_ROUTER_TEST_SERVERS names no installed servers",
)
def test_a_real_filesystem_server_reads_an_artifact_where_it_may_read_files(project: Any) -> None:
    modules = Path(
        os.environ["BUNDLE_ROUTER_TEST_SERVERS"], "node_modules", "@modelcontextprotocol"
    )
    scripts = {
        name: modules / f"server-{name}" / "dist" / "index.js"
        for name in ("filesystem", "everything")
    }
    if shutil.which("node") is None or not all(script.exists() for script in scripts.values()):
        pytest.skip("needs node and the servers 'filesystem' and 'everything'")
    may_read = project.root / "may-read"
    may_read.mkdir()

    def write(files: str) -> None:
        args = json.dumps([str(scripts["filesystem"].resolve()), str(may_read)])
        other = json.dumps([str(scripts["everything"].resolve())])
        project.write(
            f'transport = "stdio"\ncommand = "node"\nargs = {args}\n{files}',
            'tools = ["s.read_media_file", "e.get-tiny-image"]',
            more=(
                '[servers.e]\ntransport = "stdio"\ntrust = "trusted"\ncommand = "node"\nargs ='
                f" {other}\n"
            ),
        )
        project.pin()

    write('files = "may-read"\n')
    with project.open() as router:
        router.route_sync(project.step())
        (image,) = router.call_sync("r", "e.get-tiny-image", {}).artifacts
        read = router.call_sync("r", "s.read_media_file", {"path": image.uri})
        assert (read.ok, [one.uri for one in read.artifacts]) == (True, [image.uri]), read.text
        assert list(may_read.iterdir()) == []
    write("")
    with project.open() as router:
        router.route_sync(project.step("other"))
        router.call_sync("other", "e.get-tiny-image", {})
        denied = router.call_sync("other", "s.read_media_file", {"path": image.uri})
        assert denied.outcome == "tool_error", "a folder that nobody gave it is not its own to read"
