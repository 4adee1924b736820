"""A server of the pages and a browser, as tests and screenshots use them."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from bundle_router.serving.pages import pages
from bundle_router.wiring.run_reader import RunReader

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def missing() -> str:
    """Why no browser can be driven here; empty where one can."""
    if find_spec("playwright") is None:
        return "playwright is not installed"
    return "" if CHROMIUM else "chromium is not installed; .ci/run installs it"


@contextlib.contextmanager
def served(reader: RunReader, **options: Any) -> Iterator[str]:
    """Serve the pages on a free port of this machine; the address they are at."""
    import uvicorn

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(pages(reader, **options), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium of the system."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield found
        finally:
            found.close()
