"""What is read in a program before it runs.

Rules:
1. A Markdown fence round the whole program, and a byte order mark, are no part of it.
2. A call without `await` does nothing. It is refused where its coroutine can only be lost: the call
   is a statement of its own, or its coroutine is printed, formatted, compared, computed with, taken
   apart, or kept in a name that nothing else is done with. Coroutines that are handed on (to
   `gather`, into a list, from a function) may be awaited later, and pass.
3. For a name that nobody defined, the function that was probably meant is named.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from bundle_router.core.values.code_fence import without_fence
from bundle_router.core.values.spelling import Suggester

_READERS: Final = frozenset(
    {
        *("print", "str", "repr", "len", "list", "dict", "tuple", "set", "int", "float", "bool"),
        *("sorted", "sum", "min", "max", "any", "all", "enumerate", "iter"),
    }
)
"""Builtins that can do nothing with a coroutine."""


def plain_program(text: str) -> str:
    """Return the program that a model wrote (rule 1)."""
    return without_fence(text.removeprefix("\ufeff")).removeprefix("\ufeff")


def missing_awaits(program: str, functions: Collection[str]) -> list[str]:
    """Return a sentence for each call of a function whose coroutine is lost (rule 2), in order;
    none if the program is not valid Python.

    >>> from bundle_router.core.exposure.program_text import missing_awaits
    >>> missing_awaits("print(t__note(text=1))", ["t__note"])
    ["program.py:1:7: `await` is missing before t__note(...): nothing is called without it"]
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    coroutines = _Coroutines(tree, functions)
    return [
        f"program.py:{call.lineno}:{call.col_offset + 1}: `await` is missing before {name}(...):"
        " nothing is called without it"
        for name, call in coroutines.lost()
    ]


def meant_names(undefined: Iterable[str], functions: Collection[str]) -> list[str]:
    """Return a sentence for each undefined name that resembles a function (rule 3)."""
    sentences = []
    suggester = Suggester()
    for name in undefined:
        ends = [function for function in functions if function.endswith(f"__{name}")]
        nearest = ends[0] if len(ends) == 1 else suggester.nearest(name, functions)
        if nearest is not None:
            sentences.append(f"`{name}`: did you mean `{nearest}`?")
    return sentences


class _Coroutines:
    """The calls of functions in a program, and what becomes of their coroutines."""

    def __init__(self, tree: ast.Module, functions: Collection[str]) -> None:
        self._functions = frozenset(functions)
        self._nodes = list(ast.walk(tree))
        self._parents = {
            child: node for node in self._nodes for child in ast.iter_child_nodes(node)
        }

    def lost(self) -> Iterator[tuple[str, ast.Call]]:
        """Yield the calls whose coroutine is lost, with the function's name, in order."""
        calls = [
            (node.func.id, node)
            for node in self._nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in self._functions
        ]
        for name, call in sorted(calls, key=lambda row: (row[1].lineno, row[1].col_offset)):
            if self._is_lost(call):
                yield name, call

    def _is_lost(self, node: ast.expr) -> bool:
        parent = self._parents.get(node)
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            target = parent.targets[0]
            return isinstance(target, ast.Name) and self._is_name_lost(target.id)
        if isinstance(parent, ast.For | ast.comprehension):
            return parent.iter is node
        if isinstance(parent, ast.Call):
            reader = parent.func
            return reader is not node and isinstance(reader, ast.Name) and reader.id in _READERS
        if isinstance(parent, ast.Subscript):
            return parent.value is node
        return isinstance(
            parent,
            ast.Expr
            | ast.FormattedValue
            | ast.Attribute
            | ast.BinOp
            | ast.Compare
            | ast.UnaryOp
            | ast.If
            | ast.While,
        )

    def _is_name_lost(self, name: str) -> bool:
        uses = [
            node
            for node in self._nodes
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        ]
        return all(self._is_use_lost(use) for use in uses)

    def _is_use_lost(self, use: ast.Name) -> bool:
        is_kept_again = isinstance(self._parents.get(use), ast.Assign)  # `a = b` may go anywhere
        return not is_kept_again and self._is_lost(use)
