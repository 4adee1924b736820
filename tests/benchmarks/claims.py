"""What is claimed of cost and quality, measured: `.ci/bench [--write] [CLAIM ...]`.

Each claim is a command of this folder, which measures it beside what it is compared with, in one run. The
table of all of them is `router/docs/explanation/claims.md`, which `--write` writes; without it the table is
printed. A name in CLAIM selects those whose command has it.

What is compared is a ratio or counted work wherever that can be: times are only worth something beside the other
times of the same run, and say what the machine was doing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "router" / "docs" / "explanation" / "claims.md"
LIMIT_S: Final = 300
COLUMNS: Final = ("claim", "figure", "beside", "command", "seconds")


@dataclass(frozen=True)
class Measured:
    """What a claim's command found."""

    figure: str
    beside: str


@dataclass(frozen=True)
class Claim:
    """One claim, and how its figure is found."""

    claim: str
    command: str
    """What follows `.venv/bin/python`."""
    read: Callable[[str], Measured]
    """Finds the figure in what the command prints. Raises ValueError, KeyError or IndexError where it is not
    there.
    """


# --- what the commands print ----------------------------------------------------------------------


def numbers_of(output: str, begins: str) -> list[float]:
    """Return the numbers of the first line that begins so, after that beginning.

    Raises ValueError where there is no such line.
    """
    for line in output.splitlines():
        if line.strip().startswith(begins):
            rest = line.strip().removeprefix(begins)
            return [
                float(word.replace(",", "")) for word in re.findall(r"-?\d[\d,]*(?:\.\d+)?", rest)
            ]
    raise ValueError(f"no line begins with {begins!r}")


def _decision(output: str) -> Measured:
    floor = json.loads(output)["floors"][0]
    return Measured(
        f"{floor['ratio_p50']:.1f} × its floor, {floor['decision_us_p50'] / 1000:.2f} ms",
        f"JSON, sha256 and one write() of the same record: {floor['floor_us_p50'] / 1000:.2f} ms",
    )


def _many_rows(output: str) -> Measured:
    small, *_, large = json.loads(output)["curve"]
    return Measured(
        f"{large['matched_us_p50'] / small['matched_us_p50']:.1f} × with"
        f" {large['bundles_and_routes']:,} bundles and routes",
        f"the same with {small['bundles_and_routes']}: {small['matched_us_p50'] / 1000:.2f} ms",
    )


def _surface(output: str) -> Measured:
    servers, tools, schemas, _meta, _guidance, together, *_ = _surface_row(output)
    return Measured(
        f"{together:,.0f} tokens for {tools:.0f} tools of {servers:.0f} servers",
        f"all schemas: {schemas:,.0f} tokens",
    )


def _surface_row(output: str) -> list[float]:
    line = next(line for line in output.splitlines() if re.match(r"\s+\d+ servers", line))
    return [float(word.replace(",", "")) for word in re.findall(r"\d[\d,]*", line)]


def _answer(output: str) -> Measured:
    tokens, _most, _tools, right, _ms = numbers_of(output, "our answer")
    schemas, _most, part = numbers_of(output, "top 10 schemas")
    return Measured(
        f"{right:.3f} hold the right tool, {tokens:.0f} tokens",
        f"ten schemas of the same ranking: {part:.3f}, {schemas:,.0f} tokens",
    )


def _query(output: str) -> Measured:
    (own,) = numbers_of(output, "rank_bundles, all permitted")
    (peer,) = numbers_of(output, "FTS5")
    (quick,) = numbers_of(output, "bm25s")
    return Measured(
        f"{own:.2f} ms of CPU over 3,598 tools", f"FTS5: {peer:.2f} ms; bm25s alone: {quick:.2f} ms"
    )


def _call(kind: str) -> Callable[[str], Measured]:
    def read(output: str) -> Measured:
        callers, sdk, _elapsed, own, _own_elapsed, ratio = _last_row(output, kind)
        return Measured(
            f"{ratio:.2f} × the CPU, {own:.2f} ms with {callers:.0f} callers",
            f"the MCP SDK's client on the same server: {sdk:.2f} ms",
        )

    return read


def _last_row(output: str, begins: str) -> list[float]:
    """Return the numbers of the last line that begins so: that of most callers."""
    return numbers_of("\n".join(reversed(output.splitlines())), begins)


def _replay(output: str) -> Measured:
    decisions, seconds, *_ = numbers_of(output, "replay:")
    return Measured(
        f"{seconds:.1f} s of CPU for {decisions:,.0f}",
        "– (read, decided again, compared byte for byte)",
    )


def _verify(output: str) -> Measured:
    megabytes, rate, floor, *_ = numbers_of(output, "verify:")
    return Measured(
        f"{floor:.2f} × the CPU, {rate:.0f} MB/s",
        f"decoding and hashing the same {megabytes:.0f} MB",
    )


def _adapters(output: str) -> Measured:
    added = {
        name: numbers_of(output, name)[:3] for name in ("pydantic-ai", "LangChain", "OpenAI Agents")
    }
    return Measured(
        ", ".join(f"{name} + {row[2]:.2f} ms" for name, row in added.items()),
        ", ".join(f"{row[0]:.2f}" for row in added.values()) + " ms of the framework alone",
    )


def _settled(output: str) -> Measured:
    settled, right, *_ = numbers_of(output, "all")
    wrong, *_ = numbers_of(output, "absent")
    return Measured(
        f"{settled:.0%} settled without a model, {right:.0%} of them right",
        f"nothing right permitted: {wrong:.0%} settled",
    )


def _route(output: str) -> Measured:
    own, *_ = numbers_of(output, "one connection            /v1/route")[1:]
    bare, *_ = numbers_of(output, "one connection            /bare")[1:]
    return Measured(
        f"{own:.2f} ms median, {own - bare:+.2f} ms",
        f"a bare route that appends the same bytes: {bare:.2f} ms",
    )


_CALLS: Final = "tests/benchmarks/tool_calls.py --calls 320"
_RECORDED: Final = "tests/benchmarks/recorded.py --decisions 20000 --megabytes 100"
CLAIMS: Final = (
    Claim(
        "A mapped decision costs a few times what writing it down costs.",
        "tests/benchmarks/decisions.py --json",
        _decision,
    ),
    Claim(
        "A decision takes less than twice as long under a config a hundred times as large.",
        "tests/benchmarks/decisions.py --json",
        _many_rows,
    ),
    Claim(
        "What an agent carries stays small, however many tools lie behind search.",
        "tests/benchmarks/exposure.py",
        _surface,
    ),
    Claim(
        "A search answer holds the right tool as often as ten schemas do, in fewer tokens.",
        "tests/benchmarks/exposure.py",
        _answer,
    ),
    Claim(
        "Searching thousands of tools takes milliseconds.",
        "tests/benchmarks/routing/speed.py --sizes 3598 --queries 100",
        _query,
    ),
    Claim(
        "Search settles steps without a model, and is rarely wrong.",
        "tests/benchmarks/selecting.py",
        _settled,
    ),
    Claim("A tool call over HTTP costs less than the SDK's.", _CALLS, _call("modern HTTP")),
    Claim("So does a call of a stdio server.", _CALLS, _call("stdio")),
    Claim("Recorded decisions are made again quickly.", _RECORDED, _replay),
    Claim(
        "Verifying records takes a small multiple of decoding and hashing them.", _RECORDED, _verify
    ),
    Claim(
        "An adapter adds a fraction of what a framework's turn costs.",
        "tests/benchmarks/adapters.py",
        _adapters,
    ),
    Claim(
        "Routing over HTTP costs a fraction of a millisecond more than the listener.",
        "tests/benchmarks/service.py",
        _route,
    ),
)
"""What is claimed, in the order of the table."""


# --- the run --------------------------------------------------------------------------------------


def run(command: str) -> tuple[str, float]:
    """Run a command of the table; return what it printed, and the seconds it took.

    Raises ValueError where it failed.
    """
    path = [str(ROOT), *(str(ROOT / "router" / name) for name in ("", "client", "deferral"))]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, *shlex.split(command)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode not in (0, 1):  # 1: a goal was missed, and said
        raise ValueError(f"exit status {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout, time.monotonic() - started


def table(claims: list[Claim]) -> tuple[str, bool]:
    """Measure the claims; return the table, and whether every figure was found."""
    printed: dict[str, tuple[str, float] | Exception] = {}
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    is_whole = True
    for claim in claims:
        if claim.command not in printed:
            print(f"{claim.command} …", file=sys.stderr)
            try:
                printed[claim.command] = run(claim.command)
            except (ValueError, subprocess.TimeoutExpired) as error:
                printed[claim.command] = error
        found = printed[claim.command]
        try:
            if isinstance(found, Exception):
                raise found
            measured = claim.read(found[0])
            seconds = f"{found[1]:.0f}"
        except (
            ValueError,
            KeyError,
            IndexError,
            StopIteration,
            subprocess.TimeoutExpired,
        ) as error:
            measured = Measured(f"not measured: {error}", "")
            seconds = ""
            is_whole = False
        row = (claim.claim, measured.figure, measured.beside, f"`{claim.command}`", seconds)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n", is_whole


def page(rows: str) -> str:
    """Return the page with a table."""
    cores = len(os.sched_getaffinity(0))
    machine = f"{cores} cores of {platform.machine()}, {platform.system()} {platform.release()}"
    return f"""\
# What is claimed, measured

One run of `.ci/bench --write` on {datetime.now(UTC):%d %B %Y}: {machine}, Python {platform.python_version()}, a load of
{os.getloadavg()[0]:.1f} at its end. Each row is one command, from the checkout, behind `.venv/bin/python`; two rows of one command are
of one run of it. Ratios and counted work carry over to other machines; times are only worth something beside the other
times of their row.

{rows}
The data are the samples that ship. Larger sets, all other commands and what was tried and not taken:
[benchmarks](../../../tests/benchmarks/README.md).
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("only", nargs="*", metavar="CLAIM", help="a part of a command's name")
    options = parser.parse_args()
    claims = [
        claim
        for claim in CLAIMS
        if not options.only or any(part in claim.command for part in options.only)
    ]
    rows, is_whole = table(claims)
    print(rows, end="")
    if options.write and is_whole and len(claims) == len(CLAIMS):
        PAGE.write_text(page(rows), encoding="utf-8")
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
