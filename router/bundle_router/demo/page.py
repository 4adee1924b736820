"""A page for a browser to look at: one chart, drawn by the browser, served on the loopback while it is looked at."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

_BARS: Final = (("Mon", 3), ("Tue", 5), ("Wed", 4), ("Thu", 8), ("Fri", 6), ("Sat", 9), ("Sun", 12))
_STYLE: Final = (
    "body{font-family:sans-serif;margin:48px;background:#f5f1e8;color:#22303c}"
    ".chart{display:flex;align-items:flex-end;gap:24px;height:360px;border-bottom:3px solid #22303c}"
    ".bar{flex:1;background:#d9643a;color:#fff;text-align:center;padding-top:8px}.bar:last-child{background:#2a7f78}"
)


def page(bars: Sequence[tuple[str, int]] = _BARS) -> bytes:
    """Return the page as HTML, nothing of it from elsewhere."""
    most = max(value for _, value in bars)
    drawn = "".join(
        f'<div class="bar" style="height:{340 * value // most}px">{day} {value}</div>' for day, value in bars
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Slugs made</title><style>{_STYLE}</style>'
        f'<link rel="icon" href="data:,"><h1>Slugs made, by day</h1><div class="chart">{drawn}</div></html>'
    ).encode()


@contextmanager
def serving() -> Iterator[str]:
    """Give the page's address, on 127.0.0.1 and a free port, until the end of the block."""
    body = page()

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(0.05,), name="bundle-router-demo-page", daemon=True
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
