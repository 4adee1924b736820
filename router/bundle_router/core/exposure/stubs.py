"""Programs that an agent writes against permitted tools: the stubs that they are checked against,
and their gaps.

Rules:
1. A tool is an async function of keyword arguments, with its name in search made a valid
   identifier. Its stub is made from the schema alone, so no text of a server reaches the type
   checker as code.
2. An undefined function that a program calls is recorded as a gap, as a call of that name would be.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.catalog import Card
from bundle_router.core.values import Outcome

MAX_PROGRAM: Final = 64_000
"""Maximum characters of a program."""
MAX_MISSED: Final = 10
"""Maximum names of one program that are recorded as gaps."""
_WORDS: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_]")


def functions(exposed: Mapping[str, str]) -> dict[str, str]:
    """Return canonical tools by function name.

    Of two tools with one function name, the second gets a number.
    """
    names: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for tool, short in sorted(exposed.items()):
        name = plain = _UNSAFE.sub("_", short)
        if not name.isidentifier() or keyword.iskeyword(name):
            name = plain = f"tool_{name}"
        while name in names:
            numbers[plain] = numbers.get(plain, 1) + 1
            name = f"{plain}_{numbers[plain]}"
        names[name] = tool
    return names


def stubs(named: Mapping[str, str], cards: Mapping[str, Card]) -> str:
    """Return the stub of every function; a tool without a known definition accepts anything."""
    rows = ["from typing import Any, Literal"]
    for name, tool in named.items():
        card = cards.get(tool)
        rows.append(
            f"async def {name}({_parameters(card.input_schema()) if card else '**more: Any'}) ->"
            " Any: ..."
        )
    return "\n".join(rows) + "\n"


def _parameters(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        properties = {}
    required = schema.get("required")
    if not isinstance(required, list):
        required = []

    names = [name for name in properties if _is_parameter_name(name)]
    needed = [f"{name}: {_type(properties[name])}" for name in names if name in required]
    optional = [
        f"{name}: {_type(properties[name])} = ..." for name in names if name not in required
    ]
    parts = [*needed, *optional]
    if parts:
        parts.insert(0, "*")

    additional = schema.get("additionalProperties")
    takes_more = len(names) < len(properties) or additional not in (None, False)
    takes_anything = not properties and additional is not False
    if takes_more or takes_anything:
        parts.append("**more: Any")
    return ", ".join(parts)


def _is_parameter_name(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def _type(schema: Any, depth: int = 0) -> str:
    """Return the type of a value; `Any` if there is no simple one."""
    if not isinstance(schema, Mapping) or depth > 3:
        return "Any"
    values = schema.get("enum")
    if (
        isinstance(values, list)
        and 0 < len(values) <= 20
        and all(type(value) in (str, int, bool) for value in values)
    ):
        return f"Literal[{', '.join(map(repr, values))}]"
    kind = schema.get("type")
    if isinstance(kind, list):
        return (
            " | ".join(dict.fromkeys(_type({**schema, "type": one}, depth + 1) for one in kind[:6]))
            or "Any"
        )
    if kind == "array":
        return f"list[{_type(schema.get('items'), depth + 1)}]"
    if kind == "object":
        return "dict[str, Any]"
    if isinstance(kind, str):
        return _WORDS.get(kind, "Any")
    return "Any"


def called_and_undefined(program: str, named: Iterable[str]) -> Sequence[str]:
    """Return the undefined names that a program calls, in order; none if it is not valid Python."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    names = {*named, *dir(builtins)}
    called: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called[node.func.id] = None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return [name for name in called if name not in names][:MAX_MISSED]


@dataclass(frozen=True, slots=True)
class Program:
    """An agent's program, with its functions' names and stubs, and its bounds."""

    text: str
    """The program, without a fence round it."""
    stubs: str
    """Typed stubs of its functions, for the checker."""
    names: tuple[str, ...]
    """The names of its functions."""
    seconds: float
    """Seconds that it may compute."""
    memory_bytes: int
    """Memory that its interpreter may take."""
    calls: int
    """Calls that it may make."""
    output_chars: int
    """Printed characters that are kept, and characters that are kept of an error."""
    argument_chars: int
    """Characters of the arguments of one call, as JSON."""


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """The result of a program."""

    text: str
    """Its output, then why it failed if it did."""
    outcome: Outcome = "ok"
    """How it ended, as in a record."""
    code: str = ""
    """A short word for the failure."""
