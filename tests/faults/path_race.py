"""S-13, the race: a writer swaps folders, links and files for ways out while readers open paths
beneath the root.

    python tests/faults/path_race.py [--seconds 6] [--attempts 100000]

Runs until both are reached, for each opener in turn. Every read must give what belongs inside, or
fail. Prints one line per opener; exits 1 if anything from outside was read, or if the race never
let a reader see both states.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.synchronize
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.beneath import (
    Opener,
    best_opener,
    open_by_openat2,
    open_by_walk,
)
from bundle_router.local_tools.repo.confinement import Root, read_up_to

INSIDE, OUTSIDE = b"inside", b"OUTSIDE"
PATHS = (
    "swap/deep/file",
    "leaf",
    "via/deep/file",
    "swap/../swap/deep/file",
    "moving/deep/../../safe/deep/file",
)


def build(top: Path) -> Path:
    root = top / "root"
    for folder, content in (
        (root / "safe", INSIDE),
        (top / "outside", OUTSIDE),
        (root / "moving", INSIDE),
    ):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").write_bytes(content)
    (top / "safe" / "deep").mkdir(parents=True)
    (top / "safe" / "deep" / "file").write_bytes(
        OUTSIDE
    )  # what `../..` from a moved folder would find
    (root / "leaf").write_bytes(INSIDE)
    (root / "swap").symlink_to("safe")
    (root / "via").symlink_to("swap")
    return root


def replace_link(path: Path, target: str) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.symlink_to(target)
    fresh.replace(path)


def swap_forever(top: str, stop: multiprocessing.synchronize.Event) -> None:
    """Each round makes every path lead out for a moment, by rename, so that there is always
    something there.
    """
    root = Path(top) / "root"
    while not stop.is_set():
        replace_link(root / "swap", "../outside")
        replace_link(root / "leaf", str(Path(top) / "outside" / "deep" / "file"))
        (root / "moving").rename(Path(top) / "moved")
        replace_link(root / "swap", str(Path(top) / "outside"))
        (Path(top) / "moved").rename(root / "moving")
        replace_link(root / "swap", "safe")
        fresh = root / "leaf.new"
        fresh.write_bytes(INSIDE)
        fresh.replace(root / "leaf")


def attempt(root: Root, path: str) -> str:
    try:
        with root.open_file(path) as file:
            content = read_up_to(file, 100)
    except ToolFailure as failure:
        return failure.code
    return "read" if content in (INSIDE, b"") else "ESCAPED"


def race(name: str, opener: Opener, seconds: float, attempts: int) -> bool:
    with tempfile.TemporaryDirectory(prefix="path-race-") as top:
        folder = build(Path(top))
        stop = multiprocessing.Event()
        writer = multiprocessing.Process(target=swap_forever, args=(top, stop), daemon=True)
        writer.start()
        seen: Counter[str] = Counter()
        began = time.monotonic()
        try:
            with Root(os.fspath(folder), opener=opener) as root:
                done = 0
                # A loaded machine may let the writer run late.
                while done < attempts or time.monotonic() - began < (
                    seconds if raced(seen) else 300
                ):
                    for path in PATHS:
                        seen[attempt(root, path)] += 1
                    done += len(PATHS)
        finally:
            stop.set()
            writer.join(5)
    took = time.monotonic() - began
    outcomes = ", ".join(f"{word} {number:,}" for word, number in seen.most_common())
    print(f"{name}: {done:,} attempts in {took:.1f} s, {seen['ESCAPED']} escapes ({outcomes})")
    if not raced(seen):
        print(f"{name}: the writer and the reader never met; this run shows nothing")
    return raced(seen) and seen["ESCAPED"] == 0


def raced(seen: Counter[str]) -> bool:
    return seen["read"] > 0 and seen["outside_workspace"] > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--attempts", type=int, default=100_000)
    options = parser.parse_args()
    openers: dict[str, Opener] = {"walk": open_by_walk}
    if best_opener() is open_by_openat2:
        openers["openat2"] = open_by_openat2
    results = [
        race(name, opener, options.seconds, options.attempts) for name, opener in openers.items()
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
