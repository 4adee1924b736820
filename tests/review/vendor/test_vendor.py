"""Generated wrappers: formatted, typed, calling what they say, and never made of a server's
words.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bundle_router.core.catalog import Card, Server
from bundle_router.core.servers.admission.admit import admit
from bundle_router.review.vendor import drifted_wrappers, module_name, vendored_source
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tests.profiles import ALL

ROOT = Path(__file__).parents[3]
CHECKS = [
    ["ruff", "format", "--check", "--line-length", "120"],
    ["ruff", "check", "--line-length", "120"],
    *([["mypy", "--strict"]] if ALL else []),
]
"""mypy begins without what it knows of the packages, which takes seconds: in `.ci/run`."""


def cards_of(definitions: list[dict[str, Any]], server: str = "s") -> dict[str, Card]:
    found = admit(Server(server, "stdio", command="x"), definitions)
    return {tool.card.tool: tool.card for tool in found.tools}


def loaded(source: str, folder: Path) -> ModuleType:
    path = folder / f"vendored_{abs(hash(source))}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def models_of(module: ModuleType) -> list[type[BaseModel]]:
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, BaseModel)
    ]
    return [model for model in found if model is not BaseModel]


async def echo(name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return name, arguments


@pytest.fixture(scope="module")
def vendored(real_servers: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vendored")
    for row in real_servers:
        source = vendored_source(row["server"], cards_of(row["tools"], row["server"]).values())
        (folder / f"{module_name(row['server'])}.py").write_text(source, encoding="utf-8")
    return folder


@pytest.mark.parametrize("check", CHECKS)
def test_wrappers_of_real_servers_pass_the_projects_own_checks(
    vendored: Path, check: list[str]
) -> None:
    if importlib.util.find_spec(check[0]) is None:
        pytest.skip(f"{check[0]} is not installed")
    option = "--config-file" if check[0] == "mypy" else "--config"
    command = [
        sys.executable,
        "-m",
        *check,
        option,
        str(ROOT / "pyproject.toml"),
        *map(str, sorted(vendored.glob("*.py"))),
    ]
    done = subprocess.run(command, cwd=vendored, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wrappers_of_real_servers_load_and_their_models_are_whole(
    vendored: Path, tmp_path: Path
) -> None:
    for path in sorted(vendored.glob("*.py")):
        for model in models_of(loaded(path.read_text(encoding="utf-8"), tmp_path)):
            model.model_rebuild()


def test_a_wrapper_calls_its_tool_with_what_was_set_under_the_servers_names(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "class": {"type": "string"},
            "max-count": {"type": "integer"},
            "model_json_schema": {"type": "boolean"},
            "order": {"enum": ["asc", "desc"]},
            "node": {"$ref": "#/$defs/node"},
            "other": {"type": ["string", "null"]},
        },
        "required": ["class", "order"],
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/node"}, "list": {"type": "array"}},
            }
        },
    }
    definition = {"name": "list", "description": "Lists.", "inputSchema": schema}
    module = loaded(vendored_source("s", cards_of([definition]).values()), tmp_path)
    given = {"class": "c", "max-count": 3, "order": "asc", "node": {"next": {"list": [1]}}}
    arguments = module.ListArguments.model_validate(given)
    assert asyncio.run(module.list_(echo, arguments)) == ("s.list", given)
    with pytest.raises(ValidationError):
        module.ListArguments.model_validate(given | {"order": "up"})
    with pytest.raises(ValidationError):
        module.ListArguments.model_validate(given | {"unknown": 1})


def test_drift_is_told_from_the_text_alone(definitions: list[dict[str, Any]]) -> None:
    cards = cards_of(definitions)
    source = vendored_source("s", cards.values())
    assert drifted_wrappers(source, cards) == ()
    changed = {"send": replace(cards["send"], sha256="sha256:" + "0" * 64)}
    assert drifted_wrappers(source, changed) == ("read", "send")
    with pytest.raises(ValueError, match="PINS"):
        drifted_wrappers("x = 1", cards)


def test_the_same_cards_give_the_same_bytes_in_any_order(definitions: list[dict[str, Any]]) -> None:
    cards = list(cards_of(definitions).values())
    assert vendored_source("s", cards) == vendored_source("s", cards[::-1])


_hostile = st.text(max_size=30) | st.sampled_from(
    [
        '"""',
        "'''",
        '"""\nimport os\nos.system("x")\n"""',
        "\\",
        "\\N{DASH}",
        "{0}",
        "x = 1 #",
        "')\n",
        "None",
        "a | b",
        "#",
    ]
)


@given(
    description=_hostile,
    names=st.lists(_hostile, max_size=4, unique=True),
    choices=st.lists(_hostile | st.integers() | st.none(), max_size=4),
    tool=st.from_regex(r"[A-Za-z0-9_.-]{1,60}", fullmatch=True),
)
def test_a_servers_words_never_become_code(
    description: str, names: list[str], choices: list[Any], tool: str
) -> None:
    inner = {
        "type": "object",
        "description": description,
        "properties": {"x": {"enum": choices}},
        "required": names,
    }
    properties = {
        name: {"description": description, "anyOf": [{"enum": choices}, inner]} for name in names
    }
    cards = cards_of(
        [
            {
                "name": tool,
                "description": description,
                "inputSchema": {"type": "object", "properties": properties},
            }
        ]
    )
    tree = ast.parse(vendored_source("s", cards.values()))
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert called <= {"ConfigDict", "Field", "TypeVar", "call", "arguments.model_dump"}
    kinds = {type(node).__name__ for node in tree.body}
    assert kinds <= {"Expr", "ImportFrom", "AnnAssign", "Assign", "ClassDef", "AsyncFunctionDef"}
    assert sum(isinstance(node, ast.Expr) for node in tree.body) == 1
    assert {node.module for node in tree.body if isinstance(node, ast.ImportFrom)} <= {
        "__future__", "collections.abc", "typing", "pydantic",
    }  # fmt: skip
