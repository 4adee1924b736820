"""What redaction costs: `python tests/benchmarks/redaction.py` prints microseconds per text, and
for one construction.

Each figure is the best of several rounds, so that a busy machine disturbs little. "Clean" texts
hold no secret; "probed" ones look as if they might; the megabytes are the worst kinds of each that
we know.

With `--sources MEGABYTES`: CPU of each megabyte of the standard library's sources, in pieces of
1,500 characters, the first time and again, and what the process has grown by (Linux). New text
makes new states of the automata.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time

PROSE = (
    "Rename the feature flag in src/router/settings.py and update every call site; keep the public"
    " interface stable, then run the tests of the affected packages and summarise for the reviewer"
    " what changed and why. "
)
TOKEN = "ghp_" + "aB3dE5gH7" * 4
DIRTY = (
    f"{PROSE} token={TOKEN} Authorization: Bearer {TOKEN[4:]} postgresql://u:hunter2@db/app {PROSE}"
)
RECORD = {
    "type": "route.decided",
    "run_id": "r-42",
    "catalog_revision": "sha256:" + "9f86d081884c7d65" * 4,
    "step": {
        "workflow": "feature",
        "role": "implementer",
        "step": "edit",
        "goal": PROSE,
        "constraints": ["no network"],
    },
    "bundles": [
        {"id": f"repo.part{n}", "rank": n, "reason": "mapped", "evidence": "route edit"}
        for n in range(6)
    ],
    "left_out": [
        {"id": f"x.part{n}", "code": "policy_denied", "detail": "policy base"} for n in range(12)
    ],
}


def best_us(call: Callable[[], object], *, least_s: float = 0.02, rounds: int = 5) -> float:
    """Microseconds per call, the best round of several."""
    call()
    start = perf_counter()
    call()
    count = max(1, int(least_s / max(perf_counter() - start, 1e-7)))
    best = float("inf")
    for _ in range(rounds):
        start = perf_counter()
        for _ in range(count):
            call()
        best = min(best, (perf_counter() - start) / count)
    return best * 1e6


def megabyte(text: str) -> str:
    return (text * (1_000_000 // len(text) + 1))[:1_000_000]


def source_megabytes(count: int) -> Iterator[list[str]]:
    pieces: list[str] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        text = "" if "site-packages" in path.parts else path.read_text("utf-8", "replace")
        pieces += (text[at : at + 1_500] for at in range(0, len(text), 1_500))
        if sum(map(len, pieces)) >= 1_000_000:
            yield pieces
            count -= 1
            if not count:
                return
            pieces = []


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure_sources(megabytes: int) -> None:
    from bundle_router.adapters.redaction import SecretRedactor

    redactor = SecretRedactor()
    redactor.redact(PROSE)
    before = resident_mb()
    for name in ("first", "again"):
        print(f"{name}, CPU seconds a megabyte:", end="")
        for pieces in source_megabytes(megabytes):
            started = process_time()
            for piece in pieces:
                redactor.redact(piece)
            print(f" {process_time() - started:.2f}", end="", flush=True)
        print(f"; {resident_mb() - before:.0f} MB more than before")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", type=int, metavar="MEGABYTES")
    megabytes = parser.parse_args().sources
    if megabytes:
        measure_sources(megabytes)
    else:
        measure_texts()


def measure_texts() -> None:
    start = process_time()
    from bundle_router.adapters.redaction import SecretRedactor

    imported = process_time()
    redactor = SecretRedactor(
        {"VENDOR_KEY": "correct horse/battery+staple", "OTHER": "another-value-of-some-length"}
    )
    built = process_time()
    redactor.redact(PROSE)
    warm = process_time()

    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()} on"
        f" {sys.platform}, ",
        end="",
    )
    print(f"google-re2 {version('google-re2')}")
    print(
        f"CPU ms: import {(imported - start) * 1e3:.1f}, construction"
        f" {(built - imported) * 1e3:.1f}, ",
        end="",
    )
    print(f"first text {(warm - built) * 1e3:.1f}")

    noise = base64.b64encode(random.Random(0).randbytes(750_000)).decode()
    encoded = json.dumps(RECORD)
    cases: dict[str, Callable[[], object]] = {
        "clean 200 characters": lambda: redactor.redact(PROSE[:200]),
        "clean 1,000 characters": lambda: redactor.redact((PROSE * 6)[:1000]),
        "clean, 40 texts in one look": lambda: redactor.redact_many([PROSE[:25]] * 40),
        f"clean record as a value ({len(encoded)} characters)": lambda: redactor.redact_value(
            RECORD
        ),
        "clean record, encoded (are_clean)": lambda: redactor.are_clean([encoded]),
        "probed 1,000 characters": lambda: redactor.redact(
            (PROSE * 5)[:950] + " the key: see_the_manual of it"
        ),
        "dirty 1,000 characters": lambda: redactor.redact((DIRTY + PROSE * 4)[:1000]),
        "clean 1 MB": lambda: redactor.redact(megabyte(PROSE)),
        "dirty 1 MB": lambda: redactor.redact(megabyte(DIRTY)),
        "1 MB of base64 noise": lambda: redactor.redact(noise),
        "1 MB of URL escapes": lambda: redactor.redact(megabyte("%41%2F")),
        "1 MB of key beginnings": lambda: redactor.redact(megabyte("-----BEGIN PRIVATE KEY-----")),
        "1 MB of names and signs": lambda: redactor.redact(megabyte("password = token: secret, ")),
        "1 MB of curl": lambda: redactor.redact(megabyte("curl -H curl -u ")),
        "1 MB without a break": lambda: redactor.redact("a" * 1_000_000),
        "1 MB of nested base64": lambda: redactor.redact(nested(1_000_000)),
    }
    for name, call in cases.items():
        large = "1 MB" in name
        cost = best_us(call, rounds=2 if large else 5)
        print(f"{name:<50} {cost / 1e3:>10.1f} ms" if large else f"{name:<50} {cost:>10.2f} us")


def nested(size: int) -> str:
    text = "password: x " * (size // 30)
    for _ in range(3):
        text = base64.b64encode(text.encode()).decode()
    return text[:size]


if __name__ == "__main__":
    main()
