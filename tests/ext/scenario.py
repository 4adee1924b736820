"""One agent loop for every adapter: what its model asks for turn by turn, and what has to have come
of it.

Each adapter's test plays `TURNS` with its framework's own test model, notes what the model saw, and
has it checked.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bundle_router import Router, Step
from bundle_router.tool import LocalServer, Media

CONFIG: Final = {
    "routes": (
        '[[routes]]\nname = "writing"\nworkflow = "letters"\nbundles = ["notes", "archive"]\n'
    ),
    "policy": (
        """
[[policies]]
name = "writers"
role = "writer"
allow = ["bundle:notes", "bundle:archive"]
deny = ["tool:notes.burn"]
effects = ["read", "write"]

[[policies]]
name = "readers"
role = "reader"
allow = ["bundle:notes", "bundle:archive"]
deny = ["tool:notes.burn", "tool:notes.add"]
effects = ["read", "write"]
"""
    ),
}


@dataclass(frozen=True)
class Asked:
    """A call that the model asks for."""

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


TURNS: Final[tuple[tuple[Asked, ...], ...]] = (
    (
        Asked("c1", "notes__add", {"text": "first"}),
        Asked("c2", "notes__draw"),
        Asked("c3", "notes__add", {"text": "x"}),
    ),
    (Asked("c4", "notes__everything"),),
    (Asked("c5", "notes__burn"),),
    (Asked("c6", "no_such_tool"),),
    (Asked("c7", "search_tools", {"query": "a letter by its date"}),),
    (Asked("c8", "archive__find_letter", {"date": "1848-03-01"}),),
    (Asked("c9", "delegate", {"task": "add a note"}),),
)
"""What the model asks for: several at once, a picture, an oversized result, a denied tool, one that
there is not, a search, what it found, a sub-agent. The turn after the last is its answer.
"""
SUB_TURNS: Final[tuple[tuple[Asked, ...], ...]] = (
    (Asked("s1", "notes__add", {"text": "by the sub-agent"}),),
)

SAME_ID_TURNS: Final[tuple[tuple[Asked, ...], ...]] = (
    (Asked("call", "notes__add", {"text": "again"}),),
) * 3
"""Turns of a model whose server gives every call the same id."""

REFUSED: Final = "not available at this step"


@dataclass
class Seen:
    """What a model saw: for each turn the names in its array and its messages as text; `told` is
    the guidance.
    """

    arrays: list[list[str]] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    pictures: int = 0
    told: str = ""


class Notebook:
    """Tools with a visible effect: `notes` counts what was really done, over all workers of a test.

    The first two notes wait for each other: they fail in a framework that makes the calls of a turn
    one after the other.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._together = threading.Barrier(2)

    def servers(self) -> dict[str, LocalServer]:
        def add(text: str) -> str:
            """Add a note."""
            if text in ("first", "x"):
                self._together.wait(600)
            self.notes.append(text)
            return f"note {len(self.notes)}"

        def draw() -> Media:
            """Draw the notes as a picture."""
            return Media(picture(), "image/png")

        def everything() -> str:
            """Give all notes that there ever were."""
            return "\n".join(f"line {number} of the notes" for number in range(20_000))

        def burn() -> str:
            """Burn the notes."""
            raise AssertionError("policy denies it")

        async def find_letter(date: str) -> str:
            """Find a letter by its date."""
            return f"the letter of {date}"

        return {
            "notes": LocalServer(
                [add, draw, everything, burn], "Write notes.", effects=["read", "write"]
            ),
            "archive": LocalServer([find_letter], "Find letters in the archive.", mode="deferred"),
        }


def picture() -> bytes:
    """Return a PNG of one pixel."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0\0")),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


HELD: Final = """
[[approvals]]
name = "somebody reads a note before it is added"
calls = ["tool:notes.add"]
"""
"""A row of policy that holds the calls of a tool."""
HELD_TURNS: Final[tuple[tuple[Asked, ...], ...]] = ((Asked("h1", "notes__add", {"text": "held"}),),)


def opened(folder: Path, notebook: Notebook, policy: str = "") -> Router:
    """Return a router over a folder: another worker each time. `policy`: further rows."""
    (folder / "config").mkdir(exist_ok=True)
    for name, text in {**CONFIG, "policy": CONFIG["policy"] + policy}.items():
        (folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
    return Router.open(
        folder / "config",
        runs=folder / "runs",
        local=notebook.servers(),
        workspace=folder / "config",
    )


def step(run_id: str = "r", role: str = "writer", **more: Any) -> Step:
    return Step(run_id=run_id, workflow="letters", role=role, step="write", **more)


def sub_step(number: int = 1) -> Step:
    """The sub-agent's: a reader, which is less than its parent."""
    return step(f"r-sub-{number}", "reader", parent_run_id="r", key="delegated")


def check(
    seen: Seen,
    sub: Seen,
    notebook: Notebook,
    folder: Path,
    *,
    refused: str = REFUSED,
    again: bool = False,
) -> None:
    """See that the loop came to what it has to come to, once.

    `refused` is in the answer to a name that is in no list: some frameworks give their own.
    `again`: it may be that a loop before this one found what was to be found.
    """
    first, last = seen.arrays[0], seen.arrays[-1]
    assert "notes__add" in first
    assert "notes__burn" not in first
    assert again or "archive__find_letter" not in first
    assert "archive__find_letter" in seen.arrays[5], "found by search, it joined in mid loop"
    assert last[: len(first)] == first, "the array grows at its end"
    assert sorted(notebook.notes) == ["first", "x"], "each note once, and the sub-agent's never"
    assert seen.pictures == 1
    everything = seen.results["c4"]
    assert "line 3 of the notes" in everything
    assert "artifact:sha256:" in everything
    assert len(everything) < 60_000
    assert refused in seen.results["c5"]
    assert "no_such_tool" in seen.results["c6"]
    assert "find_letter" in seen.results["c7"]
    assert seen.results["c8"] == "the letter of 1848-03-01"
    assert "notes__add" not in sub.arrays[0], "a reader may not write, although its parent may"
    assert refused in sub.results["s1"]
    found = records(folder)
    assert [record["type"] for record in found].count("route.decided") == 1
    denied = [record for record in found if record.get("outcome") == "denied"]
    gaps = {".".join(filter(None, (record["server"], record["tool"]))) for record in denied}
    assert gaps == {"notes.burn", "no_such_tool"}


def records(folder: Path, run_id: str = "r") -> list[dict[str, Any]]:
    """Return a run's records of both files, in their order."""
    home = folder / "runs" / run_id
    lines = [
        json.loads(line)
        for name in ("routing", "tool-calls")
        for line in _lines(home / f"{name}.jsonl")
    ]
    return sorted(lines, key=lambda record: record["seq"])


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
