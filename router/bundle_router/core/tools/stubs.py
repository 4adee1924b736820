"""Programs that an agent writes against permitted tools: the stubs they are checked against, and what they ask for.

Rules:
1. A tool is a function of keyword arguments, to be awaited, named as in search but for what no identifier may hold. Its
   stub is made from the schema alone, so no text of a server reaches the type checker as code.
2. What a program calls and nobody defines is a tool that it hoped for: a gap, as a call of that name would be.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from bundle_router.core.catalog import Card
from bundle_router.core.models import Outcome
from bundle_router.dataclass import dataclass

MAX_PROGRAM: Final = 64_000
"""Characters of a program."""
MAX_MISSED: Final = 10
"""Names of one program that are recorded as gaps."""
_WORDS: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_]")


def functions(exposed: Mapping[str, str]) -> dict[str, str]:
    """Return canonical tool by function name. Of two tools that would have one name, the second gets a number."""
    made: dict[str, str] = {}
    for tool, short in sorted(exposed.items()):
        name = plain = _UNSAFE.sub("_", short)
        if not name.isidentifier() or keyword.iskeyword(name):
            name = plain = f"tool_{name}"
        number = 1
        while name in made:
            number += 1
            name = f"{plain}_{number}"
        made[name] = tool
    return made


def stubs(named: Mapping[str, str], cards: Mapping[str, Card]) -> str:
    """Return the stub of every function; of a tool whose definition is not known yet, one that takes anything."""
    rows = ["from typing import Any, Literal"]
    for name, tool in named.items():
        card = cards.get(tool)
        rows.append(f"async def {name}({_parameters(card.input_schema()) if card else '**more: Any'}) -> Any: ...")
    return "\n".join(rows) + "\n"


def _parameters(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    needed = (
        frozenset(name for name in required if isinstance(name, str)) if isinstance(required, list) else frozenset()
    )
    plain = [name for name in properties if name.isidentifier() and not keyword.iskeyword(name) and name.isascii()]
    parts = [f"{name}: {_type(properties[name])}" for name in plain if name in needed]
    parts += [f"{name}: {_type(properties[name])} = ..." for name in plain if name not in needed]
    is_open = len(plain) < len(properties) or not properties or schema.get("additionalProperties") not in (None, False)
    more = ["**more: Any"] if is_open and (properties or schema.get("additionalProperties") is not False) else []
    return ", ".join((["*", *parts] if parts else []) + more)


def _type(schema: Any, depth: int = 0) -> str:
    """Return the type of a value; `Any` for what has no plain one."""
    if not isinstance(schema, Mapping) or depth > 3:
        return "Any"
    values = schema.get("enum")
    if isinstance(values, list) and 0 < len(values) <= 20 and all(type(value) in (str, int, bool) for value in values):
        return f"Literal[{', '.join(map(repr, values))}]"
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(dict.fromkeys(_type({**schema, "type": one}, depth + 1) for one in kind[:6])) or "Any"
    if kind == "array":
        return f"list[{_type(schema.get('items'), depth + 1)}]"
    if kind == "object":
        return "dict[str, Any]"
    return _WORDS.get(kind, "Any") if isinstance(kind, str) else "Any"


def called_and_undefined(program: str, named: Iterable[str]) -> Sequence[str]:
    """Return the names that a program calls and nobody defines, in their order; none of one that is no Python."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    known = {*named, *dir(builtins)}
    called: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called[node.func.id] = None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.alias):
            known.add((node.asname or node.name).partition(".")[0])
    return [name for name in called if name not in known][:MAX_MISSED]


@dataclass(frozen=True, slots=True)
class Program:
    """A program of an agent, with the functions it may call: their names, and stubs to check it against. It may compute
    for so many seconds, use so much memory, make so many calls and print so many characters."""

    text: str
    stubs: str
    names: tuple[str, ...]
    seconds: float
    memory_bytes: int
    calls: int
    output_chars: int


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """What came of a program: what it printed, and after it why it did not end well. `code` is a short word."""

    text: str
    outcome: Outcome = "ok"
    code: str = ""
