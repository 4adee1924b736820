"""What `serve` loads before its first answer: what an MCP request or a page of runs needs comes
with the first one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOADED_AT_THE_FIRST_ANSWER = """
import asyncio, json, sys, threading, urllib.error, urllib.request
from bundle_router import Router
from bundle_router.service import endpoint, serve
from bundle_router.service.pages.service_pages import PageSources, service_pages

may_load = threading.Event()
load = endpoint.import_module
endpoint.import_module = lambda name: may_load.wait(300) and load(name)


def status(url, key):
    headers = {"Authorization": f"Bearer {key}"}
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=300).status
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)["mcp"]


async def main():
    async with Router.open(None, runs="runs") as router:
        away = router.endpoint.unusable_servers
        with service_pages(PageSources(runs="runs", store=None, config=None, away=away)) as pages:
            async with serve(router, pages=pages) as here:
                assert await asyncio.to_thread(status, here.base + "/healthz", here.key) == 200
                print([name for name in ("mcp", "sqlalchemy", "jinja2") if name in sys.modules])
                loading = 503, "the MCP SDK is still being loaded"
                assert await asyncio.to_thread(status, here.base + "/readyz", here.key) == loading
                may_load.set()
                while (said := await asyncio.to_thread(status, here.base + "/readyz", here.key)) != 200:
                    assert said == loading, said
                assert await asyncio.to_thread(status, here.base + "/", here.key) == 200


asyncio.run(main())
print("mcp" in sys.modules, "sqlalchemy" in sys.modules)
"""


def test_the_first_answer_waits_for_neither_the_sdk_nor_the_index(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED_AT_THE_FIRST_ANSWER],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.stdout.split("\n")[:2], done.stderr[-2000:]) == (["[]", "True True"], "")
