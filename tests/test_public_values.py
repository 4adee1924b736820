"""Public values behave like values of the standard library, and public errors like exceptions: they
can be subclassed, pickled, copied, compared and changed into others.
"""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import bundle_router.errors
import pytest
from bundle_router import (
    Catalog,
    Decision,
    Result,
    Router,
    RouterError,
    Step,
    StepPolicy,
    Toolset,
    load_catalog,
)
from bundle_router.errors import ConfigError, Problem

STEP = Step(run_id="r", workflow="feature", role="planner", step="plan", labels={"team": "a"})
POLICY = StepPolicy(allow=("bundle:repo.*",))
DATACLASSES = ("catalog", "decision", "result", "toolset")
ERRORS = [
    one
    for one in vars(bundle_router.errors).values()
    if inspect.isclass(one) and issubclass(one, RouterError)
]


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return a value of each public class, as a router makes it."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "a.txt").write_text("text\n", encoding="utf-8")
    with Router.open(None, runs=folder / "runs", workspace=folder) as router:
        return {
            "decision": router.route_sync(STEP),
            "toolset": router.tools_sync("r"),
            "result": router.call_sync("r", "repo.read_file", {"path": "a.txt"}),
            "catalog": load_catalog(None),
            "step": STEP,
            "policy": POLICY,
        }


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", [*DATACLASSES, "step", "policy"])
def test_a_copy_of_a_value_equals_it(values: dict[str, Any], name: str, way: str) -> None:
    value = values[name]
    made = COPIES[way](value)
    assert type(made) is type(value)
    assert made == value
    assert repr(made) == repr(value)


@pytest.mark.parametrize("name", DATACLASSES)
def test_replace_changes_one_field_and_fields_names_them(values: dict[str, Any], name: str) -> None:
    value = values[name]
    assert replace(value) == value
    changed = {
        "catalog": ("routes", ()),
        "decision": ("justification", "because"),
        "result": ("text", "other"),
        "toolset": ("guidance", "other"),
    }[name]
    other = replace(value, **dict([changed]))
    assert other != value
    assert [one.name for one in fields(value) if getattr(one, "compare", True)] != []
    assert getattr(other, changed[0]) == changed[1]


def test_pydantic_s_own_means_change_a_step() -> None:
    other = STEP.model_copy(update={"goal": "read"})
    assert (other.goal, STEP.goal) == ("read", "")
    assert Step.model_validate(STEP.model_dump()) == STEP
    assert Step.model_validate_json(STEP.model_dump_json()) == STEP


@pytest.mark.parametrize("name", [*DATACLASSES, "step", "policy"])
def test_a_public_class_can_be_subclassed(values: dict[str, Any], name: str) -> None:
    value = values[name]

    class Narrower(type(value)):  # type: ignore[misc]
        """A value with a method of the engine's own."""

        def shout(self) -> str:
            return type(self).__mro__[1].__name__.upper()

    contents = (
        {one.name: getattr(value, one.name) for one in fields(value) if one.init}
        if name in DATACLASSES
        else value.model_dump()
    )
    made = Narrower(**contents)
    assert isinstance(made, type(value))
    assert made.shout() == type(value).__name__.upper()


def test_a_subclass_may_add_a_field(values: dict[str, Any]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Noted(Result):
        note: str = ""

    contents = {one.name: getattr(values["result"], one.name) for one in fields(Result) if one.init}
    assert Noted(**contents, note="seen").note == "seen"


@pytest.mark.parametrize(("kind", "first"), [(Step, "run_id"), (StepPolicy, "allow")])
def test_a_field_without_its_name_is_an_error_that_names_the_class(kind: Any, first: str) -> None:
    with pytest.raises(TypeError) as wrong:
        kind("r")
    name = kind.__name__
    assert str(wrong.value) == f"{name}() takes its fields by name: {name}({first}=...)"


def test_the_errors_export_their_classes_and_no_helper() -> None:
    assert sorted(bundle_router.errors.__all__) == sorted(
        [*(kind.__name__ for kind in ERRORS), "Problem"]
    )


def error_of(kind: type[RouterError]) -> RouterError:
    """Return an error with all that its class takes."""
    if kind is ConfigError:
        return ConfigError([Problem("router.toml", 1, "model.nope", "unknown key", "names")])
    named: dict[str, Any] = {
        name: {"kind": "disk_full", "pid": 7, "code": "late", "advice": "try again"}[name]
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return kind("it failed", **named)


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_a_copy_of_an_error_keeps_all_that_it_says(kind: type[RouterError], way: str) -> None:
    error = error_of(kind)
    made = COPIES[way](error)
    assert type(made) is kind
    assert vars(made) == vars(error)
    assert (str(made), made.args) == (str(error), error.args)
    assert made.__notes__ == [error.advice]


def open_invalid(folder: str) -> None:
    """Open a router over a config with an unknown key."""
    Router.open(folder, runs=f"{folder}/runs")


def test_an_error_in_a_process_pool_reaches_who_asked_and_breaks_nobody_else(
    tmp_path: Path,
) -> None:
    (tmp_path / "router.toml").write_text("[model]\nnope = 1\n", encoding="utf-8")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        failing = pool.submit(open_invalid, str(tmp_path))
        with pytest.raises(ConfigError) as raised:
            failing.result(120)
        assert [problem.path for problem in raised.value.problems] == ["model.nope"]
        assert raised.value.advice.startswith("correct what is named above")
        assert pool.submit(abs, -3).result(120) == 3


def test_a_catalog_of_a_subclass_is_taken_where_a_catalog_is(values: dict[str, Any]) -> None:
    assert isinstance(values["catalog"], Catalog)
    assert isinstance(values["decision"], Decision)
    assert isinstance(values["toolset"], Toolset)
