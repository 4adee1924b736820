"""A server of the pages and a browser, as tests and screenshots use them."""

from __future__ import annotations

import contextlib
import functools
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, TypeVar

from bundle_router.service.pages.application import pages
from bundle_router.workbench.run_reader import RunReader

T = TypeVar("T")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


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
    listening.listen(64)
    server = uvicorn.Server(
        uvicorn.Config(pages(reader, **options), log_level="error", lifespan="off")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(300)
        listening.close()


class BrowserThread:
    """A headless Chromium of the system, in a thread of its own: driving it leaves an event loop
    running there.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="browser")
        self.browser, self._driver = self.run(self._start)

    @staticmethod
    def _start() -> tuple[Any, Any]:
        from playwright.sync_api import sync_playwright

        driver = sync_playwright().start()
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        return driver.chromium.launch(
            executable_path=CHROMIUM, args=arguments, timeout=300_000
        ), driver

    def run(self, work: Callable[[], T]) -> T:
        """Do something in the browser's thread."""
        return self._thread.submit(work).result(timeout=300)

    def close(self) -> None:
        self.run(self.browser.close)
        self.run(self._driver.stop)
        self._thread.shutdown()


def browsed(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test, which takes the fixture `browser`, in the browser's thread."""

    @functools.wraps(test)
    def moved(*args: Any, browser: BrowserThread, **named: Any) -> None:
        browser.run(lambda: test(*args, browser=browser, **named))

    return moved
