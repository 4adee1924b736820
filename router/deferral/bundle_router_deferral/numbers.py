"""Writes the proxy's numbers: one line a request, without headers, body, query or credentials."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

FILE: Final = "deferral.jsonl"
SCHEMA: Final = "bundle-router.deferral-request/1"


class NumbersLog:
    """The numbers of one proxy, in its own folder under the runs.

    A failing disk stops no request.
    """

    def __init__(self, runs: Path) -> None:
        stem = datetime.now(UTC).strftime("deferral-%Y%m%dT%H%M%S.%f")
        self.folder = runs / f"{stem}-{os.getpid()}"
        self.folder.mkdir(parents=True, mode=0o700)
        self._handle = os.open(
            self.folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600
        )
        self.requests = self.deferred = self.failures = 0

    def write(self, row: dict[str, Any]) -> None:
        self.requests += 1
        self.deferred += bool(row.get("deferred"))
        line = {
            "schema": SCHEMA,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **row,
        }
        try:
            os.write(self._handle, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError:
            self.failures += 1

    def close(self) -> None:
        os.close(self._handle)


def read_numbers(folder: Path) -> dict[str, int]:
    """Add up the numbers of one proxy."""
    sums = dict.fromkeys(
        ("requests", "deferred", "searches", "retried", "upfront_bytes", "original_upfront_bytes"),
        0,
    )
    for line in (folder / FILE).read_bytes().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        sums["requests"] += 1
        sums["deferred"] += bool(row.get("deferred"))
        for name in ("searches", "retried", "upfront_bytes", "original_upfront_bytes"):
            sums[name] += int(row.get(name) or 0)
    return sums
