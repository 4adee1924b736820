"""What the house is measured by, beside its goals: `python tests/house.py [--names]`.

A goal that is not met yet has a ceiling, a little above what was measured when it was written:
above it tests/test_architecture.py fails, so that nobody makes it worse. Lower a ceiling when you
have come below it; `--names` says what was counted.

    rooms       folders and modules at the top of the package, which are the top of the import graph
    enters      modules whose code runs in a mapped `route`, and in the first `call` of its run,
                warm, over the shipped config; and how often one is entered again that was left
                before
    parameters  functions that take more than seven, `self` and `cls` not counted
    packed      functions of five statements and more with over 0.8 branches a statement: a branch is an `if`,
                `for`, `while`, `except`, `case`, conditional expression, `assert`, each further term of `and` and
                `or`, each `for` and `if` of a comprehension. No formatter changes that
    ternaries   conditional expressions; nested ones; assignments of several values at once
    names       local and public names that are adverbs or participles (`WEAK_WORDS`)
    frames      our own functions that are under way when the end of a call is written
    loads       modules that `Router.open` and a first mapped `route` load
    private     files of tests that import a name which no program is to use
    one name    public classes that have their name with another one
    one stem    modules that have their name with one of a neighbouring room: of one that imports
                theirs, or is imported
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "bundle_router"
HOME: Final = ROOT / "router" / PACKAGE
DEFERRAL: Final = "bundle_router_deferral"
"""The package of a distribution that stands on the router."""
HOMES: Final = (HOME, ROOT / "router" / "deferral" / DEFERRAL)
MAX_PARAMETERS: Final = 7
STEP: Final = {"workflow": "feature", "role": "planner", "step": "plan"}


@dataclass(frozen=True)
class Measure:
    """One thing that is measured. `names` is what was counted, where that can be named."""

    what: str
    value: float
    goal: float | None
    ceiling: float
    names: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return "" if self.goal is None else "met" if self.value <= self.goal else "not met"


# --- modules and imports --------------------------------------------------------------------------


def name_of(path: Path) -> str:
    """Return the dotted name of a module of the two packages, whose path is relative to the
    checkout.
    """
    parts = path.with_suffix("").parts
    start = parts.index(DEFERRAL if DEFERRAL in parts else PACKAGE)
    return ".".join(parts[start:-1] if parts[-1] == "__init__" else parts[start:])


NAMES: Final = {
    name_of(path): path
    for path in sorted(p.relative_to(ROOT) for home in HOMES for p in home.rglob("*.py"))
}
"""Every module of the router and of what stands on it, and its path.

The client in `router/client` is a distribution of its own, with the library's names.
"""


PRODUCT: Final = tuple(sorted(p.relative_to(ROOT) for p in (ROOT / "router").rglob("*.py")))
"""Every module below `router/`, the distributions beside the package included."""
WEAK_WORDS: Final = Path("tests/data/weak_words.txt")
"""Adverbs and participles, which say less than a noun or a verb would."""


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a module, parsed."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def layer_of(module: str) -> str:
    """Return the room at the top of the router that a module is in, or the other package."""
    if module.partition(".")[0] == DEFERRAL:
        return DEFERRAL
    return module.partition(".")[2].partition(".")[0] or "__init__"


def room_of(module: str) -> str:
    """Return the layer that a module is in, for the core its inner one."""
    parts = module.split(".")
    return ".".join(parts[1:3]) if parts[1:2] == ["core"] and len(parts) > 3 else layer_of(module)


@cache
def imports_of(path: Path) -> set[str]:
    """Return the dotted names imported anywhere in the module, `from x import y` as `x.y` where
    that is a module.
    """
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in NAMES else str(node.module) for name in whole)
    return found


def all_imports() -> dict[str, set[str]]:
    """Return what each module imports. Reads the whole package."""
    return {name: imports_of(path) for name, path in NAMES.items()}


# --- what is counted ------------------------------------------------------------------------------


def rooms() -> list[str]:
    return sorted({layer_of(name) for name in NAMES} - {"__init__", "__main__", DEFERRAL})


def tests_of_parts() -> tuple[str, ...]:
    """Return the files of tests that import a name of ours that is not public."""
    return tuple(
        path.relative_to(ROOT).as_posix()
        for path in files_of_tests()
        if any(not is_public(module, name) for module, name in names_imported(path))
    )


def files_of_tests() -> list[Path]:
    return sorted((ROOT / "tests").rglob("test_*.py"))


def names_imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import of the packages; of a whole module no name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((one.name, "") for one in node.names if one.name.startswith(PACKAGE))


def is_public(module: str, name: str) -> bool:
    from tests.public_names import MODULES

    shipped = (*MODULES, f"{PACKAGE}.ext", f"{PACKAGE}.testing")
    is_known = module in shipped or module.startswith(f"{PACKAGE}.testing.")
    return is_known and not name.startswith("_")


def long_signatures() -> list[str]:
    """Return functions with more than seven parameters, as `path:line name (count)`."""
    found = []
    for path in NAMES.values():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = len([each for each in taken if each.arg not in ("self", "cls")])
                if count > MAX_PARAMETERS:
                    found.append(f"{path}:{node.lineno} {node.name} ({count})")
    return found


def shared_class_names() -> list[str]:
    """Return public classes that have their name with another one, as `Name: modules`."""
    homes = defaultdict(list)
    for name, path in NAMES.items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    return [
        f"{name}: {', '.join(modules)}"
        for name, modules in sorted(homes.items())
        if len(modules) > 1
    ]


def shared_stems() -> list[str]:
    """Return modules of one stem in rooms of which one imports the other, as `stem: modules`."""
    neighbours = {
        frozenset((room_of(name), room_of(imported)))
        for name, imports in all_imports().items()
        for imported in imports & NAMES.keys()
    }
    homes = defaultdict(list)
    for name, path in NAMES.items():
        if path.stem not in ("__init__", "__main__"):
            homes[path.stem].append(name)
    found = []
    for stem, modules in sorted(homes.items()):
        beside = [
            one
            for one in modules
            if any(
                room_of(one) != room_of(other) and {room_of(one), room_of(other)} in neighbours
                for other in modules
            )
        ]
        if beside:
            found.append(f"{stem}: {', '.join(beside)}")
    return found


# --- how it reads ---------------------------------------------------------------------------------

BRANCHES: Final = (
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert),
    ast.match_case,
)
MAX_BRANCHES: Final = 0.8
"""The branches a statement from which on a function counts as packed."""
MIN_STATEMENTS: Final = 5
Function = ast.FunctionDef | ast.AsyncFunctionDef


def branches(function: ast.AST) -> int:
    """Return the number of branches in a function and in those within it."""
    count = 0
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
    return count


def statements(function: Function) -> int:
    """Return the number of statements in a function, its docstring not counted."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return sum(isinstance(node, ast.stmt) for row in body for node in ast.walk(row))


@dataclass(frozen=True)
class Reading:
    """What was counted in the product's source."""

    lines: int
    functions: int
    """Functions of `MIN_STATEMENTS` statements and more."""
    packed: tuple[str, ...]
    ternaries: int
    nested_ternaries: tuple[str, ...]
    packed_assignments: int
    """Assignments of two or more values to as many names."""
    wide_assignments: tuple[str, ...]
    """Those of three and more."""
    names: int
    weak_names: tuple[str, ...]

    def share_of_packed(self) -> float:
        return round(100 * len(self.packed) / self.functions, 1)

    def per_thousand_lines(self, count: int) -> float:
        return round(1000 * count / self.lines, 1)

    def share_of_weak_names(self) -> float:
        return round(100 * len(self.weak_names) / self.names, 1)


def packed_width(node: ast.AST) -> int:
    """Return how many written values a statement assigns to as many names; 0 for another one."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return 0
    return len(node.value.elts) if isinstance(node.targets[0], ast.Tuple) else 0


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and name of each local name that is assigned, and of each public definition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node.lineno, node.name


def reading() -> Reading:
    """Count how the product reads. Raises AssertionError where there is nothing to count."""
    weak = frozenset((ROOT / WEAK_WORDS).read_text(encoding="utf-8").split())
    lines = functions = ternaries = assignments = names = 0
    packed: list[tuple[float, str]] = []
    nested, wide, weak_names = [], [], []
    for path in PRODUCT:
        tree = tree_of(path)
        lines += (ROOT / path).read_text(encoding="utf-8").count("\n")
        for node in ast.walk(tree):
            place = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, Function) and statements(node) >= MIN_STATEMENTS:
                functions += 1
                ratio = branches(node) / statements(node)
                if ratio > MAX_BRANCHES:
                    packed.append((ratio, f"{place} {node.name} ({ratio:.2f})"))
            elif isinstance(node, ast.IfExp):
                ternaries += 1
                within = (node.body, node.orelse, node.test)
                if any(isinstance(part, ast.IfExp) for part in within):
                    nested.append(place)
            elif (width := packed_width(node)) > 1:
                assignments += 1
                if width > 2:
                    wide.append(place)
        for number, name in names_in(tree):
            names += 1
            if name.strip("_") in weak:
                weak_names.append(f"{path}:{number} {name}")
    assert min(lines, functions, names) > 0, "nothing was measured"
    ordered = tuple(place for _, place in sorted(packed, reverse=True))
    return Reading(
        *(lines, functions, ordered, ternaries, tuple(nested), assignments, tuple(wide)),
        *(names, tuple(weak_names)),
    )


def modules_loaded() -> list[str]:
    """Return the modules of the package that a fresh process has after a first mapped route."""
    program = (
        "import sys, tempfile\n"
        "from bundle_router import Router, Step\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    with Router.open(None, runs=folder + '/runs', workspace=folder) as router:\n"
        f"        router.route_sync(Step(run_id='r', **{STEP!r}))\n"
        "        loaded = [name for name in sys.modules if name.startswith('bundle_router')]\n"
        "print(*loaded)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return sorted(done.stdout.split())


# --- what a route and a call go through -----------------------------------------------------------


@dataclass
class Passage:
    """The modules of the package that were entered, in order, each once for as long as it is not
    left.
    """

    entered: list[str] = field(default_factory=list)
    written_below: list[tuple[str, ...]] = field(default_factory=list)
    """Our own frames at each write to a file, outermost first."""

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.entered)))

    @property
    def again(self) -> int:
        """How often a module was entered that had been left before."""
        return len(self.entered) - len(self.modules)

    def see(self, frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "c_call" and argument is os.write:
            self.written_below.append(own_frames(frame))
        if (
            event == "call"
            and file.startswith(str(HOME))
            and (not self.entered or self.entered[-1] != file)
        ):
            self.entered.append(file)


def own_frames(frame: FrameType | None) -> tuple[str, ...]:
    """Return the functions of the package that are under way, outermost first."""
    found = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(HOME)):
            found.append(f"{frame.f_code.co_filename} {frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(reversed(found))


@contextmanager
def watched(passage: Passage) -> Iterator[None]:
    """Have every Python function that this thread enters seen."""
    sys.setprofile(passage.see)
    try:
        yield
    finally:
        sys.setprofile(None)


def passages() -> Mapping[str, Passage]:
    """Return what a mapped `route` and a `call` go through, in a router that has done both before.

    Its clock stands still: a second later it would look again whether pins and installed programs
    are as they were, and whether a second passes in between is a matter of how busy the machine is.
    """
    from bundle_router import Router, Step

    async def measured(folder: Path) -> dict[str, Passage]:
        found = {"route": Passage(), "call": Passage()}
        (folder / "a.txt").write_text("text\n", encoding="utf-8")
        async with Router.open(ROOT / "config", runs=folder / "runs", workspace=folder) as router:
            for run_id in ("warm", "seen"):
                ways = found if run_id == "seen" else {"route": Passage(), "call": Passage()}
                with watched(ways["route"]):
                    await router.route(Step(run_id=run_id, **STEP))
                with watched(ways["call"]):
                    await router.call(run_id, "repo.read_file", {"path": "a.txt"})
        return found

    still = patch(
        "bundle_router.adapters.system.SystemClock.monotonic_ns", return_value=time.monotonic_ns()
    )
    with tempfile.TemporaryDirectory() as folder, still:
        return asyncio.run(measured(Path(folder)))


def measures() -> list[Measure]:
    """Return everything that is measured, with its goal and, while that is not met, the ceiling."""
    ways = passages()
    route, call = ways["route"], ways["call"]
    end = call.written_below[-1]
    signatures, classes, stems, top = (
        long_signatures(),
        shared_class_names(),
        shared_stems(),
        rooms(),
    )
    read, loaded = reading(), modules_loaded()
    of_parts = tests_of_parts()
    return [
        Measure("% of functions are packed", read.share_of_packed(), 3, 1.8, read.packed),
        Measure("nested ternaries", len(read.nested_ternaries), 0, 0, read.nested_ternaries),
        Measure(
            "assignments of three values", len(read.wide_assignments), 0, 0, read.wide_assignments
        ),
        Measure("ternaries per 1,000 lines", read.per_thousand_lines(read.ternaries), 15, 14.6),
        Measure(
            "packed assignments per 1,000",
            read.per_thousand_lines(read.packed_assignments),
            2,
            2,
        ),
        Measure(
            "% of names are adverbs or participles",
            read.share_of_weak_names(),
            2.5,
            2.2,
            read.weak_names,
        ),
        Measure("modules that a first route loads", len(loaded), 110, 132, tuple(loaded)),
        Measure("rooms", len(top), 15, 15, tuple(top)),
        Measure("a route enters", len(route.modules), 15, 15, route.modules),
        Measure("  and again", route.again, None, 58),
        Measure("a call enters", len(call.modules), 24, 24, call.modules),
        Measure("  and again", call.again, None, 110),
        Measure("frames from a call to its end", len(end), 16, 16, end),
        Measure("functions of more than 7 parameters", len(signatures), 0, 0, tuple(signatures)),
        Measure("class names of more than one class", len(classes), 0, 0, tuple(classes)),
        Measure(
            "% of test files import private names",
            round(100 * len(of_parts) / len(files_of_tests()), 1),
            50,
            78.4,
            of_parts,
        ),
        Measure("stems in neighbouring rooms", len(stems), 0, 0, tuple(stems)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", action="store_true", help="say what was counted")
    names = parser.parse_args().names
    print(f"{'':38}{'now':>8}{'goal':>8}{'ceiling':>9}")
    for row in measures():
        goal = "" if row.goal is None else f"{row.goal:,}"
        print(f"{row.what:38}{row.value:>8,}{goal:>8}{row.ceiling:>9,}   {row.verdict}".rstrip())
        for name in row.names if names else ():
            print(f"    {name.removeprefix(f'{HOME}/')}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
