"""What no config may cost: every bomb is refused, or read, within a second of CPU and 200 MB
(TRUST.md, S-21).

By default a tenth of each, in a third of the time; `.ci/run` has the largest size that is read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.config import config_text
from bundle_router.core.config.config_text import MAX_BYTES, MAX_COST, from_bytes, guard

from tests.profiles import ALL

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"
)

_SHARE = 1 if ALL else 10
"""Which part of the largest file bombs fill."""
_PART = 4 if ALL else 10
"""Which part of the most that is accepted is tried."""
_ROOM = (MAX_BYTES - 100) // _SHARE

_BOMBS: dict[str, Callable[[], str]] = {
    "a 40 KB line of dotted keys": lambda: "a." * 20_000 + "a = 1\n",
    "dotted keys on every line": lambda: _fill(lambda i: f"a{i}" + ".b" * 31 + " = 1\n"),
    "dotted headers on every line": lambda: _fill(lambda i: f"[a{i}" + ".b" * 31 + "]\n"),
    "an array nested 100,000 deep": lambda: "a = " + "[" * 100_000 + "]" * 100_000,
    "inline tables nested 10,000 deep": lambda: "a = " + "{a = " * 10_000 + "1" + "}" * 10_000,
    "a number of 5,000 digits": lambda: "[limits]\nrecent_steps = " + "9" * 5_000,
    "a number of 4,000 digits": lambda: "[limits]\nrecent_steps = " + "9" * 4_000,
    "a hexadecimal number as long as a file": lambda: "[limits]\nrecent_steps = 0x" + "f" * _ROOM,
    "hexadecimal numbers of 4 KB each": lambda: (
        "a = [" + ("0x" + "f" * 4000 + ",") * (_ROOM // 4003) + "]"
    ),
    "a file of new lines": lambda: "\n" * _ROOM,
    "a file of comments": lambda: "#\n" * (_ROOM // 2),
    "a file of keys": lambda: _fill(lambda i: f"a{i}=1\n"),
    "a file of tables": lambda: _fill(lambda i: f"[a{i}]\n"),
    "a file of rows": lambda: "[[routes]]\n" * (_ROOM // 11),
    "a file of wrong rows": lambda: _fill(lambda i: f"[[routes]]\nname='n{i}'\nbundels=['x']\n"),
    "a file of rows with unknown bundles": lambda: _fill(
        lambda i: f"[[routes]]\nname='n{i}'\nbundles=['x{i}']\n"
    ),
    "as many rows as may be": lambda: "".join(
        f"[[routes]]\nname='n{i}'\nbundles=['x{i}']\n" for i in range(10_000)
    ),
    "a file of elements": lambda: "a = [" + "1," * (_ROOM // 2 - 5) + "]",
    "a file of empty strings": lambda: '""' * (_ROOM // 2),
    "a file of string": lambda: 'a = "' + "x" * _ROOM + '"',
    "a file of escapes": lambda: 'a = "' + "\\n" * (_ROOM // 2 - 5) + '"',
    "strings that never end": lambda: '"""\\' * (_ROOM // 4),
    "a file of white space": lambda: "a = " + " " * _ROOM + "1",
    "more than 8 MB": lambda: "#" * (MAX_BYTES + 1),
}

_UNITS: dict[str, tuple[str, Callable[[int], str]]] = {
    "comments": ("router.toml", lambda i: "#\n"),
    "keys": ("router.toml", lambda i: f"a{i}=1\n"),
    "tables": ("router.toml", lambda i: f"[a{i}]\n"),
    "dotted keys": ("router.toml", lambda i: f"a{i}" + ".b" * 31 + "=1\n"),
    "dotted headers": ("router.toml", lambda i: f"[a{i}" + ".b" * 31 + "]\n"),
    "inline tables": ("router.toml", lambda i: f"a{i}={{b={{c={{d=1}}}}}}\n"),
    "rows": ("routes.toml", lambda i: "[[routes]]\n"),
    "rows with a wrong key": ("routes.toml", lambda i: f"[[routes]]\nname='n{i}'\nbundels=['x']\n"),
    "rows with an unknown bundle": (
        "routes.toml",
        lambda i: f"[[routes]]\nname='n{i}'\nbundles=['x{i}']\n",
    ),
    "rows with globs": (
        "routes.toml",
        lambda i: f"[[routes]]\nname='n{i}'\nrole='a{i}*'\nbundles=[]\n",
    ),
    "policies": (
        "policy.toml",
        lambda i: f"[[policies]]\nname='n{i}'\nrole='r{i}'\ndeny=['x{i}*']\n",
    ),
    "policies with globs": (
        "policy.toml",
        lambda i: (
            f"[[policies]]\nname='n{i}'\nrole='*{i % 26}'\nstep='{i % 25}*'\ndeny=['x{i}*']\n"
        ),
    ),
    "bundles": (
        "bundles.toml",
        lambda i: f"[bundles.b{i}]\ndescription='x'\ntools=['a.b']\neffects=['read']\n",
    ),
    "bundles of each other": (
        "bundles.toml",
        lambda i: f"[bundles.b{i}]\ndescription='x'\nbundles=['b{i + 1}']\n",
    ),
    "servers": ("servers.toml", lambda i: f"[servers.s{i}]\nurl='http://x/'\n"),
}
"""One line or a few of something, repeated until the guard says no."""

_MEASURE = """
import json, os, resource, sys, time
from bundle_router.core.config import from_bytes
from bundle_router.review.lint import check

def measure(name, data):
    # Processor time and address space: a bomb that goes off ends this process, not the machine.
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    started = time.process_time()
    problems = check([from_bytes(name, name, data, "project")], cards={})
    spent = time.process_time() - started
    # ru_maxrss would count the parent too, whose pages the child has before it becomes this program.
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
    first = str(problems[0]) if problems else ""
    print(json.dumps({"cpu_s": spent, "rss_mb": peak / 1024, "first": first, "count": len(problems)}), flush=True)

# What a check loads and builds the first time is no cost of a bomb.
check([from_bytes("routes.toml", "routes.toml", b"[[routes]]\\nname='n'\\nbundels=['x']\\n", "project")], cards={})
while line := sys.stdin.buffer.readline():
    name, size = json.loads(line)
    data = sys.stdin.buffer.read(size)
    child = os.fork()
    if child == 0:
        measure(name, data)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        print(json.dumps({"status": status}), flush=True)
"""


@pytest.fixture(scope="module")
def cost_of() -> Iterator[Callable[[str, str], dict[str, Any]]]:
    """What it costs a process of its own, with everything imported, to check one file."""
    command = [sys.executable, "-c", _MEASURE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as measuring:
        files, costs = measuring.stdin, measuring.stdout
        assert files is not None
        assert costs is not None

        def measured(name: str, text: str) -> dict[str, Any]:
            data = text.encode()
            files.write(json.dumps([name, len(data)]).encode() + b"\n" + data)
            files.flush()
            cost: dict[str, Any] = json.loads(costs.readline())
            assert "status" not in cost, cost
            return cost

        yield measured


def _fill(line: Callable[[int], str], size_wanted: int = _ROOM - 200) -> str:
    lines, size, index = [], 0, 0
    while size < size_wanted:
        lines.append(line(index))
        size += len(lines[-1])
        index += 1
    return "".join(lines)


def _assert_cheap(cost: dict[str, Any], part: int) -> None:
    """A program that has imported all has 26 MB of these 80, which is 216 MB for a quarter made
    whole.
    """
    assert cost["rss_mb"] < (200 if part == 1 else 80), cost
    max_cpu_s = 3.0 if part == 1 else 1.0
    # CPU of that process alone, not time on the wall. About 0.9 s was measured for the worst of
    # full size; the rest is room for slower and busier machines. Without the caps these inputs cost
    # tens of seconds.
    assert cost["cpu_s"] < max_cpu_s or cost["cpu_s"] < max_cpu_s * _slowness(), cost
    assert len(cost["first"]) < 400
    assert cost["count"] <= 101


@pytest.mark.parametrize("name", _BOMBS)
def test_a_bomb_costs_less_than_a_second_and_200_megabytes(name: str, cost_of: Any) -> None:
    text = _BOMBS[name]()
    cost = cost_of("router.toml" if text.startswith("[limits]") else "routes.toml", text)
    _assert_cheap(cost, _SHARE)
    # A tenth of the file of new lines is an empty file, of which there is nothing to say.
    assert cost["first"] or (_SHARE > 1 and not text.strip()), "nothing was said"


@pytest.mark.parametrize("name", _UNITS)
def test_the_most_of_it_that_is_accepted_costs_less_than_a_second_and_200_megabytes(
    name: str, cost_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, unit = _UNITS[name]
    monkeypatch.setattr(config_text, "MAX_COST", MAX_COST // _PART)
    text = _fill(unit, 2_000_000 // _PART)
    refused = guard(from_bytes(file, file, text.encode(), "project"))
    assert refused is not None, "not enough to be refused: this is not the most"
    rows = (refused.line - 1) // unit(0).count("\n")  # whole ones: of a wrong file little is read
    lines = text.split("\n")[: rows * unit(0).count("\n")]
    accepted = "\n".join(lines) + "\n"
    assert guard(from_bytes(file, file, accepted.encode(), "project")) is None
    _assert_cheap(cost_of(file, accepted), _PART)


def _slowness() -> float:
    """How much slower than the machine the limit was set on this one is, by a fixed amount of the
    same kind of work.
    """
    import time
    import tomllib

    text = "".join(f"a{i} = {i}\n" for i in range(20_000))
    spent = []
    for _ in range(3):
        started = time.process_time()
        tomllib.loads(text)
        spent.append(time.process_time() - started)
    return max(1.0, min(spent) / 0.06)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "c/x.toml: is empty"),
        (b"a = '\xff'", "c/x.toml:1: byte 0xff is not UTF-8"),
        (b"a = 1\r\nb = '\xc3'", "c/x.toml:2: byte 0xc3 is not UTF-8"),
        ("a = 1".encode("utf-16"), "c/x.toml:1: is UTF-16"),
        (b"#" * (MAX_BYTES + 1), "c/x.toml: is larger than 8 MiB"),
    ],
)
def test_bytes_that_are_not_a_config_file_are_named(data: bytes, said: str) -> None:
    file = from_bytes("x.toml", "c/x.toml", data, "project")
    assert str(file.fault).startswith(said)
    assert file.text == ""


def test_a_byte_order_mark_and_windows_line_ends_are_read_as_if_they_were_not_there() -> None:
    assert (
        from_bytes("x.toml", "x.toml", b"\xef\xbb\xbfa = 1\r\nb = 2\r\n", "project").text
        == "a = 1\nb = 2\n"
    )
