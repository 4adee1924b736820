"""Change the decisive modules in one small way at a time, and see whether a test fails:
`python tests/mutants.py`.

A mutant that no test tells from the original is a survivor. Each is killed by a test, goes with
simpler code, or is argued in `tests/data/mutants.toml`. The exit status is 1 when a survivor is not
argued, or an argument is stale: its mutant is killed or no longer there.

Rules:
1. Nothing on disk is changed. pytest collects an area's tests once; for each mutant this process is
   forked, the child puts the mutant's code into the functions that exist, and runs the tests that
   enter the changed statement, to the first that fails: first those that told other mutants apart,
   then the quickest. Which enter it is seen once, with code that notes each statement it enters.
   What is argued is left out, but with `--argued`, which finds arguments that are stale.
2. What is changed: the body of functions, and the values of constants of a module (put wherever
   they were imported, and the constants made of them in the area made anew). Not: class bodies,
   defaults of parameters, decorators, annotations, messages, regular expressions.
3. The quickest tests that together take `SECONDS` of CPU have to tell it apart; what they let pass
   is tried once more, with the quickest of all that take `AGAIN` times as long. What only a longer
   search would find is found by chance.
4. A child that fails, dies or uses several times the CPU of its tests is a killed mutant.
   Hypothesis takes the same examples each time and shrinks nothing, and sets have one order, so
   that two runs say the same.

    python tests/mutants.py                     all areas: about half an hour of CPU
    python tests/mutants.py chain --part 1/4    every fourth mutant of one area
    python tests/mutants.py chain --match seal  those whose line in the list holds the text
    python tests/mutants.py --list              what would be tried
"""

from __future__ import annotations
import __future__

import argparse
import ast
import builtins
import copy
import gc
import importlib
import mmap
import os
import pickle
import re
import resource
import signal
import sys
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
HOME: Final = ROOT / "router" / "bundle_router"
ARGUED: Final = ROOT / "tests" / "data" / "mutants.toml"
SECONDS: Final = 4.0
"""CPU seconds of the tests that one mutant is tried with."""
AGAIN: Final = 10
"""How many times these seconds a mutant is tried with before it counts as a survivor, by tests that
do not enter it, too: which are the quickest changes from run to run, and what is made once is
entered by one and used by many.
"""
WORD: Final = re.compile(r"[a-z][a-z0-9_]*\Z")


@dataclass(frozen=True)
class Area:
    """Modules (paths or globs below the package) and the tests that are to tell their mutants from
    them.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def paths(self) -> list[Path]:
        return sorted({path for glob in self.modules for path in HOME.glob(glob)})


DECIDING: Final = (
    "tests/core/decide",
    "tests/core/catalog",
    "tests/core/records/test_fold.py",
    "tests/core/records/test_records.py",
)
"""The tests of what a decision is made of, and of what keeps it."""

AREAS: Final = {
    "decide": Area(
        ("core/decide/decide.py", "core/decide/step_bundles.py", "core/decide/plans.py",
         "core/catalog/step_address.py",
         "core/decide/replies.py", "core/decide/budgets.py"),
        (*DECIDING, "tests/core/exposure/test_history.py",
         "--deselect=tests/core/decide/test_decide_properties.py::test_the_generated_cases_reach_what_they_are_about"),
    ),
    "policy": Area(
        ("core/decide/policy.py", "core/decide/step_policy.py", "core/decide/ceiling.py", "core/values/patterns.py"),
        (*DECIDING, "tests/wiring/test_shipped_content.py"),
    ),
    "activation": Area(
        ("core/decide/activation.py",),
        (*DECIDING, "tests/core/exposure/test_history.py", "tests/core/exposure/test_metatools.py"),
    ),
    "chain": Area(
        ("core/records/chain.py", "core/records/heads.py", "core/records/receipt.py"),
        ("tests/core/records/test_chain.py", "tests/adapters/archive/test_kept_heads.py", "tests/adapters/archive/test_receipts.py",
         "tests/adapters/run_log/test_torn_ends.py", "tests/adapters/archive/test_recorded_runs.py", "tests/core/records/test_headers.py",
         "tests/core/records/test_clean_records.py", "tests/core/records/test_records.py"),
    ),
    "admission": Area(
        ("core/servers/admission/*.py",),
        ("tests/core/servers/test_admission.py", "tests/core/servers/test_pins.py", "tests/core/exposure/test_exposed_names.py",
         "tests/adapters/json_schema/test_json_schema.py"),
    ),
    "fold": Area(
        ("core/records/fold.py",),
        ("tests/core/records/test_fold.py",),
    ),
    "log": Area(
        ("adapters/run_log/log.py", "adapters/run_log/run_files.py"),
        ("tests/adapters/run_log/test_log_calls.py", "tests/adapters/run_log/test_log_reading.py",
         "tests/adapters/run_log/test_failing_calls.py", "tests/adapters/run_log/test_log.py",
         "--deselect=tests/adapters/run_log/test_failing_calls.py::test_whichever_call_fails_the_run_reopens_with_every_acknowledged_record"),
    ),
    "archive": Area(
        ("adapters/archive/archive.py", "adapters/archive/head_files.py"),
        ("tests/adapters/archive/test_archive.py", "tests/adapters/archive/test_kept_heads.py", "tests/adapters/archive/test_receipts.py",
         "tests/adapters/archive/test_recorded_runs.py", "tests/adapters/run_log/test_torn_ends.py", "tests/core/records/test_headers.py"),
    ),
    "redaction": Area(("adapters/redaction/*.py",), ("tests/adapters/redaction",)),
    "reuse": Area(
        ("core/results/reusable_results.py", "engine/reuse.py"),
        ("tests/core/results/test_reusable_results.py", "tests/engine/test_reuse.py"),
    ),
}  # fmt: skip


# --- what is changed ------------------------------------------------------------------------------

Make = Callable[[], ast.AST | None]
"""Makes what stands in the node's place; None: nothing (`pass`, or one item less)."""


@dataclass(frozen=True)
class Mutant:
    """One change.

    `where` names the module and function, `change` what became what; `number` tells equals
    apart.
    """

    path: Path
    where: str
    change: str
    number: int
    node: int
    variant: int
    line: int
    """Where the statement begins that is changed, or whose part is."""
    constant: str
    """The module's constant whose value is changed; empty: a function is."""

    @property
    def name(self) -> str:
        return self.change + (f" #{self.number}" if self.number else "")

    def __str__(self) -> str:
        return f"{self.where}: {self.name}"


COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COUNTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
CALLED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


def variants(node: ast.AST, parent: ast.AST) -> list[Make]:
    """Return the ways in which a node is changed, each made anew from the node."""

    def with_(**fields: Any) -> Make:
        return lambda: _changed(node, **fields)

    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARED:
            return [with_(ops=[COMPARED[type(op)]()])]
        case ast.BoolOp(values=values):
            less = [[value for value in values if value is not gone] for gone in values]
            return [with_(values=left) if len(left) > 1 else _only(left[0]) for left in less]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [lambda: operand]
        case ast.BinOp(op=op, left=left, right=right) if type(op) in COUNTED and not _is_text(
            left, right
        ):
            return [with_(op=COUNTED[type(op)]())]
        case ast.Constant(value=bool() as value):
            return [with_(value=not value)]
        case ast.Constant(value=int() | float() as value) if value + 1 != value:
            return [with_(value=value + 1)]
        case ast.Constant(value=str() as value) if WORD.match(value) and not isinstance(
            parent, ast.JoinedStr
        ):
            return [with_(value="not_" + value)]
        case ast.Call(func=ast.Name(id="sorted"), args=args):
            return [lambda: ast.Call(ast.Name("list", ast.Load()), args, [])]
        case ast.Call(func=ast.Name(id=name)) if name in CALLED:
            return [with_(func=ast.Name(CALLED[name], ast.Load()))]
        case ast.comprehension(ifs=[_, *_] as ifs):
            return [with_(ifs=[one for one in ifs if one is not gone]) for gone in ifs]
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(
            node.test, ast.Compare | ast.BoolOp | ast.UnaryOp
        ):
            return [with_(test=ast.UnaryOp(ast.Not(), node.test))]
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            return [with_(value=ast.Constant(None))]
        case (
            ast.Expr(value=ast.Call())
            | ast.AugAssign()
            | ast.Raise()
            | ast.Break()
            | ast.Continue()
        ):
            return [lambda: ast.Pass()]
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            return [lambda: ast.Pass()]
    return []


def _only(node: ast.AST) -> Make:
    return lambda: node


def _changed(node: ast.AST, **fields: Any) -> ast.AST:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _is_text(*operands: ast.expr) -> bool:
    return any(
        isinstance(one, ast.JoinedStr)
        or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in operands
    )


SKIPPED: Final = (
    "annotation",
    "returns",
    "decorator_list",
    "defaults",
    "kw_defaults",
    "format_spec",
)
TYPES: Final = {"Literal", "Final", "Callable", "TypeVar", "NewType", "cast"}


@dataclass(frozen=True)
class Site:
    """A node, and where it stands: in a field of `parent`, in a function or class, in a statement,
    in the value of a constant of the module.
    """

    node: ast.AST
    parent: ast.AST
    name: str
    scope: tuple[str, ...]
    stmt: ast.stmt | None
    constant: str


def walked(node: ast.AST, above: Site | None = None) -> Iterator[Site]:
    """Yield what is below a node in one order, so that a site is known by its number."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name in SKIPPED or not isinstance(child, ast.AST) or _is_left_alone(child):
                continue
            scope = above.scope if above else ()
            constant = (above.constant if above else "") or ("" if scope else _constant(child))
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                scope = (*scope, child.name)
            stmt = child if isinstance(child, ast.stmt) else above.stmt if above else None
            site = Site(child, node, name, scope, stmt, constant)
            yield site
            yield from walked(child, site)


def _is_left_alone(node: ast.AST) -> bool:
    """Whether nothing is changed below the node: what is said of types, docstrings, what only a bug
    of ours reaches.
    """
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    called = (
        node.func
        if isinstance(node, ast.Call)
        else node.value
        if isinstance(node, ast.Subscript)
        else None
    )
    return isinstance(called, ast.Name) and called.id in TYPES


def _constant(node: ast.AST) -> str:
    match node:
        case (
            ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr())
        ):
            return "" if name == "__all__" else name
    return ""


@cache
def parsed(path: Path) -> tuple[ast.Module, list[Site]]:
    """Return a module and its sites, parsed once: each mutant changes them in a process of its
    own.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tree, list(walked(tree))


def mutants_of(path: Path) -> list[Mutant]:
    """Return every mutant of a module, in the order of its text."""
    tree, sites = parsed(path)
    within = _within_functions(tree)
    made: list[Mutant] = []
    seen: Counter[tuple[str, str]] = Counter()
    for number, site in enumerate(sites):
        in_function = id(site.node) in within
        if not in_function and (site.scope or not site.constant):
            continue
        where = f"{path.relative_to(HOME)} {'.'.join(site.scope) or site.constant}"
        for variant, make in enumerate(variants(site.node, site.parent)):
            context = (
                f" in {_text(site.parent)[:100]}" if isinstance(site.node, ast.Constant) else ""
            )
            change = f"{_text(site.node)} -> {_text(make())}{context}"
            seen[where, change] += 1
            times = seen[where, change]
            constant = "" if in_function else site.constant
            again = times if times > 1 else 0
            assert site.stmt is not None, "every node stands in a statement"
            made.append(
                Mutant(path, where, change, again, number, variant, site.stmt.lineno, constant)
            )
    return made


def _within_functions(tree: ast.Module) -> set[int]:
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    ]
    bodies = [
        one
        for node in functions
        for one in (node.body if isinstance(node.body, list) else [node.body])
    ]
    return {id(inner) for body in bodies for inner in ast.walk(body)}


def _text(node: ast.AST | None) -> str:
    if node is None:
        return "nothing"
    if isinstance(node, ast.comprehension):
        return " ".join(
            (
                f"for {ast.unparse(node.target)} in …",
                *(f"if {ast.unparse(one)}" for one in node.ifs),
            )
        )
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    return " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())


def changed(mutant: Mutant) -> ast.stmt:
    """Return the statement of the module that holds the change, with the change made.

    For a forked process.
    """
    tree, sites = parsed(mutant.path)
    site = sites[mutant.node]
    node, parent, name = site.node, site.parent, site.name
    new = variants(node, parent)[mutant.variant]()
    assert new is not None
    if isinstance(node, ast.expr | ast.stmt):
        ast.copy_location(new, node)
    top = next(stmt for stmt in reversed(tree.body) if stmt.lineno <= mutant.line)
    held = getattr(parent, name)
    if isinstance(held, list):
        held[next(at for at, one in enumerate(held) if one is node)] = new
    else:
        setattr(parent, name, new)
    return ast.fix_missing_locations(top)


def compiled(statements: list[ast.stmt], path: Path) -> CodeType:
    flags = __future__.annotations.compiler_flag
    code: CodeType = compile(
        ast.Module(statements, []), str(path), "exec", flags, dont_inherit=True
    )
    return code


# --- putting it into the functions that exist -----------------------------------------------------

Live = dict[str, dict[tuple[str, int], list[FunctionType]]]


def live_functions() -> Live:
    """Return the functions that exist, by file and by name and line."""
    gc.unfreeze()
    gc.collect()
    found: Live = defaultdict(lambda: defaultdict(list))
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(str(HOME)):
            found[thing.__code__.co_filename][
                thing.__code__.co_qualname, thing.__code__.co_firstlineno
            ].append(thing)
    gc.freeze()  # a child that looked through all of it would copy it
    return found


def codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from codes(constant)


def put(mutant: Mutant, live: Live, paths: Sequence[Path]) -> bool:
    """Put a mutant in place of the original, in this process.

    False: it changes nothing that exists.
    """
    statement = changed(mutant)
    for path in paths:
        _clear_caches(module_of(path))
    if mutant.constant:
        value = statement.value  # type: ignore[attr-defined] # `_constant` knows those that have one
        return _put_constant(mutant.path, mutant.constant, value, paths)
    return put_code(compiled([statement], mutant.path), live[str(mutant.path)])


def put_code(module: CodeType, live: Mapping[tuple[str, int], Sequence[FunctionType]]) -> bool:
    """Put a module's code into the functions that exist; whether that changes one."""
    is_changed = False
    for code in codes(module):
        for function in live.get((code.co_qualname, code.co_firstlineno), ()):
            if function.__code__ != code and len(function.__code__.co_freevars) == len(
                code.co_freevars
            ):
                function.__code__ = code
                is_changed = True
    return is_changed


def module_of(path: Path) -> ModuleType:
    parts = path.relative_to(ROOT / "router").with_suffix("").parts
    return importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def _clear_caches(holder: object) -> None:
    for kept in list(vars(holder).values()):
        kept = getattr(kept, "__func__", kept)
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()
        elif isinstance(kept, type) and kept.__module__ == getattr(holder, "__name__", ""):
            _clear_caches(kept)


def _put_constant(path: Path, name: str, value: ast.expr, paths: Sequence[Path]) -> bool:
    """Give a constant its new value wherever it was imported, and then those of the area that are
    made of it.
    """
    module = module_of(path)
    old = module.__dict__[name]
    new = eval(compile(ast.Expression(value), str(path), "eval"), module.__dict__)
    for other in list(sys.modules.values()):
        names = getattr(other, "__dict__", {})
        if names.get(name) is old:
            names[name] = new
    for path in paths:
        if module_of(path).__dict__.get(name) is new:
            for stmt in parsed(path)[0].body:
                made = _constant(stmt)
                value_of: Any = getattr(stmt, "value", None)
                if made and any(
                    isinstance(one, ast.Name) and one.id == name for one in ast.walk(value_of)
                ):
                    _put_constant(path, made, value_of, paths)
    return bool(module.__dict__[name] is new)


# --- running the tests ----------------------------------------------------------------------------


@dataclass
class Entered:
    """What one test entered: statements by file and line, and the CPU seconds it took."""

    statements: frozenset[tuple[str, int]]
    seconds: float
    failed: bool


def run_item(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run one test; whether it passed or was skipped."""
    from _pytest.runner import runtestprotocol

    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def observed(
    items: Sequence[pytest.Item], live: Live, paths: Sequence[Path]
) -> tuple[list[Entered], list[str]]:
    """Run each test, and see which statements of the files it enters, and which modules they import
    in the end. For a forked process.
    """
    entered: set[tuple[str, int]] = set()
    setattr(builtins, NOTE, lambda file, line: entered.add((file, line)))
    for path in paths:
        tree = ast.fix_missing_locations(Noting(str(path)).visit(parsed(path)[0]))
        put_code(compiled(tree.body, path), live[str(path)])
    found = []
    for item, following in zip(items, [*items[1:], None], strict=True):
        entered.clear()
        begin = time.process_time()
        passed = run_item(item, following)
        found.append(Entered(frozenset(entered), time.process_time() - begin, not passed))
    return found, list(sys.modules)


NOTE: Final = "__entered__"


class Noting(ast.NodeTransformer):
    """Has each statement of a function say that it is entered."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.visit_FunctionDef(node)  # type: ignore[arg-type] # the same fields

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody") if self.depth else ():
            held = getattr(node, name, None)
            if isinstance(held, list):
                setattr(node, name, [one for stmt in held for one in (self._note(stmt), stmt)])
        return node

    def _note(self, stmt: ast.stmt) -> ast.stmt:
        where: list[ast.expr] = [ast.Constant(self.file), ast.Constant(stmt.lineno)]
        return ast.copy_location(ast.Expr(ast.Call(ast.Name(NOTE, ast.Load()), where, [])), stmt)


def in_child(work: Callable[[], bytes], cpu: float) -> tuple[int, bytes]:
    """Run in a forked process. Returns its status (0: it came to its end) and what it gave."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        code = 3
        try:
            os.setpgid(0, 0)
            _limit_cpu(cpu)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            said = work()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(said)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    limit = threading.Timer(60 + 20 * cpu, _end, [pid])
    limit.start()
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    status = os.waitpid(pid, 0)[1]
    limit.cancel()
    _end(pid)
    return status, said


def _end(pid: int) -> None:
    """End the child's own process group, with what it started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class Runner:
    """The plugin that takes the place of pytest's own loop."""

    def __init__(self, area: Area, mutants: Sequence[Mutant], seconds: float) -> None:
        self.area = area
        self.mutants = mutants
        self.seconds = seconds
        self.paths = area.paths()
        self.survivors: list[Mutant] = []
        self.is_mutant = False
        self.running = memoryview(mmap.mmap(-1, 8)).cast("q")
        """The number of the test that a child runs."""
        self.killers: list[int] = []
        """Tests that told a mutant apart, the latest first."""
        self.error = "pytest ran nothing"

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        from hypothesis import (
            Phase,
            settings,
        )  # not before: pytest wants to be the first to import it

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "mutants", phases=phases, database=None, derandomize=True, report_multiple_bugs=False
        )
        settings.load_profile("mutants")  # tests/profiles.py makes its own of this one

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """End the child at the first failure, before it is told in words."""
        if (
            self.is_mutant
            and call.excinfo
            and not call.excinfo.errisinstance(pytest.skip.Exception)
        ):
            os._exit(1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for path in self.paths:
            module_of(path)
        live, items, self.error = live_functions(), session.items, ""
        status, said = in_child(lambda: pickle.dumps(observed(items, live, self.paths)), 3600)
        if status:
            self.error = "the tests did not come to their end without a change"
            return True
        entered: list[Entered]
        entered, names = pickle.loads(said)
        failed = [item.nodeid for item, one in zip(items, entered, strict=True) if one.failed]
        if failed:
            self.error = f"these tests fail without a change: {', '.join(failed)}"
            return True
        for name in names:  # so that no child has to
            if name not in sys.modules:
                with suppress(ImportError):
                    importlib.import_module(name)
        live = live_functions()
        order = sorted(range(len(items)), key=lambda at: entered[at].seconds)
        for number, mutant in enumerate(self.mutants, 1):
            entering = [at for at in order if _enters(entered[at], mutant)]
            begin, verdict = time.monotonic(), "survived"
            first = _within(self.seconds, entering, entered)
            first.sort(
                key=lambda at: self.killers.index(at) if at in self.killers else len(self.killers)
            )
            others = [at for at in _within(AGAIN * self.seconds, order, entered) if at not in first]
            for chosen in (first, others):
                if verdict == "survived" and chosen:
                    verdict = self._verdict(
                        mutant, [(at, items[at], entered[at].seconds) for at in chosen], live
                    )
            print(
                f"{number}/{len(self.mutants)} {verdict:9} {time.monotonic() - begin:6.1f} s "
                f" {mutant}",
                flush=True,
            )
            if verdict in ("survived", "unseen"):
                self.survivors.append(mutant)
        return True

    def _verdict(
        self, mutant: Mutant, chosen: Sequence[tuple[int, pytest.Item, float]], live: Live
    ) -> str:
        if not chosen:
            return "unseen"

        def work() -> bytes:
            self.is_mutant = True
            if not put(mutant, live, self.paths):
                return b"unseen"
            following = [item for _, item, _ in chosen[1:]]
            for (number, item, seconds), after in zip(chosen, [*following, None], strict=True):
                self.running[0] = number
                _limit_cpu(time.process_time() + 2 + 8 * seconds)
                if not run_item(item, after):
                    os._exit(1)
            return b"survived"

        self.running[0] = -1
        status, said = in_child(work, 5 + 4 * sum(seconds for _, _, seconds in chosen))
        if not status:
            return said.decode()
        if (killer := self.running[0]) >= 0:
            self.killers = [killer, *(at for at in self.killers if at != killer)]
        return "killed"


def _limit_cpu(seconds: float) -> None:
    """End this process when it has used so much, to the second."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, resource.RLIM_INFINITY))


def _within(seconds: float, order: Sequence[int], entered: Sequence[Entered]) -> list[int]:
    """Return the first of the tests that together take no longer than a mutant may; at least
    one.
    """
    ends = list(accumulate(entered[at].seconds for at in order))
    return [at for at, end in zip(order, ends, strict=True) if end <= seconds or at == order[0]]


def _enters(entered: Entered, mutant: Mutant) -> bool:
    """Whether a test enters the statement; what looks at a constant may enter none of its
    module.
    """
    return bool(mutant.constant) or (str(mutant.path), mutant.line) in entered.statements


# --- the command ----------------------------------------------------------------------------------


def argued() -> dict[tuple[str, str], str]:
    """Return why a survivor survives, by where it stands and what it changes."""
    rows = tomllib.loads(ARGUED.read_text(encoding="utf-8")).get("survivor", [])
    return {(row["at"], change): row["why"] for row in rows for change in row["mutants"]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; none: all"
    )
    parser.add_argument(
        "--part", default="1/1", metavar="K/N", help="every N-th mutant, from the K-th"
    )
    parser.add_argument("--match", default="", help="only mutants whose line holds this text")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="only mutants that a line of the file names"
    )
    parser.add_argument(
        "--tests",
        action="append",
        metavar="FILE",
        help="tests to try them with, not all of the area's",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="CPU seconds of tests for one mutant (default: %(default)s)",
    )
    parser.add_argument(
        "--argued",
        action="store_true",
        help="try those that are argued, too: arguments can be stale",
    )
    parser.add_argument("--list", action="store_true", help="print them, and try none")
    asked = parser.parse_args()
    if "PYTHONHASHSEED" not in os.environ:
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "1"}
        )
    unknown = [name for name in asked.areas if name not in AREAS]
    if unknown:
        parser.error(f"unknown area {unknown[0]!r}: there are {', '.join(AREAS)}")
    os.chdir(ROOT)
    why, wrong = argued(), 0
    for name in asked.areas or AREAS:
        every = [mutant for path in AREAS[name].paths() for mutant in mutants_of(path)]
        names = {(mutant.where, mutant.name) for mutant in every}
        here = {path.relative_to(HOME).as_posix() for path in AREAS[name].paths()}
        for at, change in sorted(why.keys() - names):
            if at.split()[0] in here:
                print(f"stale     {at}: {change} is argued, and there is no such mutant")
                wrong += 1
        first, step = map(int, asked.part.split("/"))
        again = asked.again.read_text(encoding="utf-8") if asked.again else ""
        meant = [
            one for one in every if asked.match in str(one) and (not again or f"{one}\n" in again)
        ]
        tried_too = [one for one in meant if asked.argued or (one.where, one.name) not in why]
        chosen = tried_too[first - 1 :: step]
        if asked.list:
            print(*chosen, sep="\n")
        elif chosen:
            area = (
                AREAS[name]
                if asked.tests is None
                else replace(AREAS[name], tests=tuple(asked.tests))
            )
            wrong += tried(
                name, Runner(area, chosen, asked.seconds), why, len(meant) - len(tried_too)
            )
    return 1 if wrong else 0


def tried(name: str, runner: Runner, why: dict[tuple[str, str], str], left_out: int) -> int:
    """Try the mutants of one area, but for those `left_out` as they are argued; how many of them
    are wrong.
    """
    mutants = runner.mutants
    pytest.main(
        [
            "-p",
            "no:terminal",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=--import-mode=importlib --disable-plugin-autoload -p hypothesispytest",
            "--assert=plain",
            *runner.area.tests,
        ],
        plugins=[runner],
    )
    if runner.error:
        print(f"{name}: {runner.error}")
        return 1
    left = {(mutant.where, mutant.name) for mutant in runner.survivors}
    new = [mutant for mutant in runner.survivors if (mutant.where, mutant.name) not in why]
    stale = [
        one for one in mutants if (one.where, one.name) in why and (one.where, one.name) not in left
    ]
    for mutant in new:
        print(f"SURVIVED  {mutant}")
    for mutant in stale:
        print(f"stale     {mutant} is argued, and was killed")
    argued_ones = f"{left_out + len(left) - len(new)} argued ({left_out} of them not tried)"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{name}: {len(mutants) + left_out} mutants, {len(mutants) - len(left)} killed,"
        f" {argued_ones}, {len(new)} not"
    )
    print(f"{name}: {used.ru_utime + used.ru_stime:.0f} s of CPU by now", flush=True)
    return len(new) + len(stale)


if __name__ == "__main__":
    sys.exit(main())
