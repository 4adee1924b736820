"""`bundle-router demo --mcp` with real servers (see tests/adapters/mcp/real_servers.py for how they are
installed).
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.adapters.mcp.real_servers import FOLDER, INSTALLED, browser, marked, npm, pypi

pytestmark = INSTALLED

FAULTS = (
    ("its process ends", "unavailable: connection_lost"),
    ("it never answers", "timeout: timeout"),
    ("invalid UTF-8", "ok"),
    ("answers twice", "ok"),
    ("200 MB", "tool_error: too_large"),
    ("output schema", "ok"),
    ("base64 within text", "ok"),
)


@dataclass(frozen=True)
class Demo:
    """One run of the demo: its folder, what it printed, and the processes that it left."""

    folder: Path
    said: str
    left: list[str]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    npm("everything")
    pypi("time")
    folder = tmp_path_factory.mktemp("demo")
    process = subprocess.Popen(
        [sys.executable, "-m", "bundle_router", "demo", "--mcp"], cwd=folder,
        env={**os.environ, "BUNDLE_ROUTER_TEST_SERVERS": str(Path(FOLDER).resolve())},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        said, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, said + errors
    return Demo(folder, said, marked(process.pid))


def test_the_demo_pins_and_calls_what_is_installed(demo: Demo) -> None:
    assert re.search(
        r"everything\.get-tiny-image +ok .*artifact image/png \d+x\d+, [\d,]+ bytes", demo.said
    )
    assert re.search(r"time\.get_current_time +ok", demo.said), (
        "a stranger's tool, through call_tool"
    )
    assert re.search(r"everything\.echo +denied: pin_drift", demo.said)


def test_the_demo_leaves_no_process_behind(demo: Demo) -> None:
    assert "Processes left behind: none" in demo.said
    assert demo.left == []


@pytest.mark.parametrize(("fault", "outcome"), FAULTS)
def test_the_demo_survives(fault: str, outcome: str, demo: Demo) -> None:
    (row,) = [row for row in demo.said.split("A server in trouble")[1].splitlines() if fault in row]
    assert re.search(rf"  {outcome}  .*  ok +ok +\d+$", row), (
        "and the next call works, and another server's did"
    )


def test_the_demo_shows_what_a_real_browser_drew_as_an_artifact(demo: Demo, tmp_path: Path) -> None:
    browser(tmp_path)
    assert "Skipped:" not in demo.said
    row = re.search(
        r"browser\.browser_take_screenshot +image/png (\d+)x(\d+) +[\d,]+ +([0-9a-f]{64})",
        demo.said,
    )
    assert row is not None
    (stored,) = demo.folder.glob(f"runs/demo-mcp-*/artifacts/sha256/{row[3][:2]}/{row[3]}")
    data = stored.read_bytes()
    assert hashlib.sha256(data).hexdigest() == row[3]
    width, height, pixels = decoded(data)
    assert (width, height) == (int(row[1]), int(row[2]))
    colours = {pixels[n : n + 3] for n in range(0, len(pixels), 3)}
    assert {bytes.fromhex(colour) for colour in ("f5f1e8", "d9643a", "2a7f78")} < colours, (
        "paper, bars, the last bar"
    )


def decoded(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and RGB pixels of a PNG with eight bits a colour, neither interlaced nor
    transparent.
    """
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    width, height, *form = struct.unpack(">IIBBBBB", data[16:29])
    assert form == [8, 2, 0, 0, 0]
    raw, stride, above, out = zlib.decompress(packed), width * 3, bytes(width * 3), bytearray()
    for y in range(height):
        start = y * (stride + 1)
        above = unfiltered(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), above)
        out += above
    return width, height, bytes(out)


def unfiltered(kind: int, row: bytearray, above: bytes) -> bytes:
    """A row of pixels of three bytes, its filter undone (RFC 2083, 6)."""
    for x in range(len(row) if kind else 0):
        left, up, corner = (row[x - 3], above[x], above[x - 3]) if x >= 3 else (0, above[x], 0)
        if kind == 4:
            guess = left + up - corner
            near = min(
                (abs(guess - left), 0, left),
                (abs(guess - up), 1, up),
                (abs(guess - corner), 2, corner),
            )[2]
            row[x] = (row[x] + near) & 255
        else:
            row[x] = (row[x] + (0, left, up, (left + up) // 2)[kind]) & 255
    return bytes(row)
