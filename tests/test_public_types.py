"""What a type checker sees of the public names: no `Any` in what they return or hold, and every
keyword is one that it knows.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest
from bundle_router import Router

MODULES = (
    "bundle_router",
    "bundle_router.tool",
    "bundle_router.testing",
    "bundle_router.errors",
    "bundle_router.ports",
    "bundle_router.service",
    "bundle_router_client",
)
ADAPTERS = ("langchain", "openai_agents", "pydantic_ai", "step_tools", "temporal")
EXCEPTIONS = {
    "Fakes.records returns",  # JSON of a record, which tests read at any depth
    "MemoryRun.lines returns",  # as above
    "LocalTool.run",  # takes an instance of the tool's own form
}
ANY = re.compile(r"\bAny\b")
OURS = ("bundle_router", __name__)
"""Modules whose functions are looked at; pydantic's are not ours."""
COROUTINE = "Coroutine[Any, Any, "
"""How a coroutine is typed that nothing is sent to: its result is what counts."""


def holds_any(annotation: object) -> bool:
    return ANY.search(str(annotation).replace(COROUTINE, "Coroutine[")) is not None


def public_values(module: str) -> Iterator[tuple[str, object]]:
    home = import_module(module)
    names = getattr(home, "__all__", None) or [
        name
        for name, value in vars(home).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    ]
    for name in names:
        yield name, getattr(home, name)


def functions_of(name: str, value: object) -> Iterator[tuple[str, FunctionType]]:
    if inspect.isfunction(value):
        yield name, value
    if not inspect.isclass(value):
        return
    for member in dir(value):
        if member.startswith("_") and member not in ("__init__", "__call__"):
            continue
        found = inspect.getattr_static(value, member)
        function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        if inspect.isfunction(function) and function.__module__.startswith(OURS):
            yield f"{name}.{member}", function


def faults_of(name: str, value: object) -> Iterator[str]:
    if inspect.isclass(value):
        for field, annotation in inspect.get_annotations(value).items():
            if not field.startswith("_") and holds_any(annotation):
                yield f"{name}.{field}"
    for path, function in functions_of(name, value):
        if path.endswith(".__init__") and "if not TYPE_CHECKING" in inspect.getsource(
            import_module(function.__module__)
        ):
            continue  # type checkers derive one from the fields: the test below tries it
        signature = inspect.signature(function)
        if holds_any(signature.return_annotation):
            yield f"{path} returns"
        for parameter in signature.parameters.values():
            is_open = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if is_open and holds_any(parameter.annotation):
                yield f"{path} takes {parameter}"


@pytest.mark.parametrize("module", MODULES)
def test_no_public_name_returns_or_holds_any(module: str) -> None:
    values = list(public_values(module))
    assert values
    faults = {fault for name, value in values for fault in faults_of(name, value)}
    assert faults - EXCEPTIONS == set()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_no_adapter_takes_keywords_that_nobody_checks(adapter: str) -> None:
    path = Path(inspect.getfile(Router)).parents[1] / "ext" / f"{adapter}.py"
    assert not re.search(r"\*\*\w+: Any\b", path.read_text("utf-8"))


def test_a_fault_is_seen() -> None:
    class Loose:
        field: Any  # type: ignore[name-defined]  # noqa: F821  # never evaluated

        def read(self, **options: Any) -> dict[str, Any]:  # type: ignore[name-defined]  # noqa: F821
            raise NotImplementedError

    assert list(faults_of("Loose", Loose)) == [
        "Loose.field",
        "Loose.read returns",
        "Loose.read takes **options: 'Any'",
    ]


MISSPELT = """\
from bundle_router import Router, Step, StepPolicy
from bundle_router_client import Router as Client, Step as ClientStep

Step(run_id="r", workflow="w", role="r", step="s", gaol="g")
StepPolicy(alow=["repo.*"])
ClientStep(run_id="r", workflow="w", role="r", step="s", gaol="g")
Router.open("config", worksapce=".")


async def ask(router: Router, client: Client) -> None:
    await router.tools("r", fromat="mcp")
    await router.call("r", "repo.read_file", {}, kee="k")
    await client.tools("r", fromat="mcp")
"""


def test_a_misspelt_keyword_fails_under_mypy(tmp_path: Path) -> None:
    program = tmp_path / "engine.py"
    program.write_text(MISSPELT, "utf-8")
    root = Path(__file__).resolve().parents[1]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        str(root / "pyproject.toml"),
    ]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache"), str(program)],
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
    )
    lines = [int(line) for line in re.findall(r"engine\.py:(\d+): error", done.stdout)]
    expected = [
        number
        for number, line in enumerate(MISSPELT.splitlines(), 1)
        if re.search(r"gaol|alow|worksapce|fromat|kee=", line)
    ]
    assert sorted(set(lines)) == expected, done.stdout
