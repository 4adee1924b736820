"""Every public class and function shows how it is used, and what it shows is run."""

from __future__ import annotations

import doctest
import inspect
import os
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pytest

from tests.public_names import public_objects

FLAGS: Final = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FRAMEWORK: Final = "needs the framework's loop and a model: its module shows it, tests/ext plays it"
MADE_BY_THE_ENGINE: Final = "made by the engine, never by a user"
FROM_A_SERVICE: Final = "read from a service's answer; router/client/README.md shows it"
EXCEPTIONS: Final = {
    "bundle_router.engine.engine_ports.EnginePorts": MADE_BY_THE_ENGINE,
    "bundle_router.engine.engine_ports.CallPorts": MADE_BY_THE_ENGINE,
    "bundle_router.ports.WholeRun": "made by one store for another when runs are copied",
    "bundle_router.testing.memory_store.MemoryRun": "made by MemoryRunStore",
    "bundle_router.testing.memory_store.MemoryRunLog": "made by MemoryRunStore",
    "bundle_router.ext.langchain.RoutedState": FRAMEWORK,
    "bundle_router.ext.langchain.RoutedTools": FRAMEWORK,
    "bundle_router.ext.openai_agents.RoutedAgent": FRAMEWORK,
    "bundle_router.ext.openai_agents.RunOptions": FRAMEWORK,
    "bundle_router.ext.pydantic_ai.RoutedToolset": FRAMEWORK,
    "bundle_router.ext.pydantic_ai.StepToolset": FRAMEWORK,
    "bundle_router.ext.temporal.ActivityOptions": FRAMEWORK,
    "bundle_router.ext.temporal.RouterOptions": FRAMEWORK,
    "bundle_router.ext.temporal.activities": FRAMEWORK,
    "bundle_router.ext.temporal.call": FRAMEWORK,
    "bundle_router.ext.temporal.close_run": FRAMEWORK,
    "bundle_router.ext.temporal.missed": FRAMEWORK,
    "bundle_router.ext.temporal.route": FRAMEWORK,
    "bundle_router.ext.temporal.run_worker": FRAMEWORK,
    "bundle_router.ext.temporal.tools": FRAMEWORK,
    "bundle_router_client.router.Router": "needs a service; router/client/README.md shows it",
    "bundle_router_client.values.Decision": FROM_A_SERVICE,
    "bundle_router_client.values.Toolset": FROM_A_SERVICE,
}
"""Those without an example, and why. Errors and ports have none either: a user catches the former
by the tree in `errors`, and implements the latter by their contracts.
"""


def shows_itself(value: object) -> bool:
    """Return whether an example is asked for: not of an error, nor of a port."""
    if not inspect.isclass(value):
        return True
    return not issubclass(value, BaseException) and not getattr(value, "_is_protocol", False)


EXAMPLES: Final = {
    name: doctest.DocTestParser().get_doctest(inspect.getdoc(value) or "", {}, name, None, None)
    for name, value in public_objects().items()
    if shows_itself(value) and name not in EXCEPTIONS
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_public_name_shows_how_it_is_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert EXAMPLES[name].examples != []
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    with patch.dict(os.environ):
        run = doctest.DocTestRunner(optionflags=FLAGS).run(EXAMPLES[name], out=said.append)
    assert run.failed == 0, "".join(said)
    assert run.attempted == len(EXAMPLES[name].examples)


def test_an_exception_names_what_is_public_and_has_no_example() -> None:
    assert set(EXCEPTIONS) - set(public_objects()) == set()
    shown = [name for name in EXCEPTIONS if ">>>" in (public_objects()[name].__doc__ or "")]
    assert shown == []
