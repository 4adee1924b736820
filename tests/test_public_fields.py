"""Every field of a public value has a description where an IDE looks for it: right below it, or as
the description of a config key.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
from bundle_router import Catalog, Decision, Result, Step, StepPolicy, Toolset
from bundle_router.core.catalog import Bundle, Card, Policy, Route, Server, Settings
from bundle_router.core.values.artifacts import Artifact
from bundle_router.core.values.decisions import Chosen
from bundle_router.errors import Problem
from bundle_router.tool import Data, LocalServer, LocalTool, Media, Text, ToolContext
from bundle_router_client import Result as ClientResult

from tests.public_names import described_fields, field_names, public_values


def undescribed(value: type) -> list[str]:
    """Return the fields of a value that have no description."""
    return [name for name in field_names(value) if name not in described_fields(value)]


@pytest.mark.parametrize("name", sorted(public_values()))
def test_every_field_of_a_public_value_has_a_description(name: str) -> None:
    value = public_values()[name]
    assert field_names(value) != []
    assert undescribed(value) == []


def test_the_public_values_are_those_that_programs_meet() -> None:
    met = {
        *(Step, StepPolicy, Decision, Toolset, Result, Catalog),
        *(Bundle, Card, Policy, Route, Server, Settings),  # held by a catalog
        *(Artifact, Chosen),  # held by a result, by a decision
        *(Data, LocalServer, LocalTool, Media, Text, ToolContext),
        *(Problem, ClientResult),
    }
    assert met - set(public_values().values()) == set()


def test_a_field_without_a_description_is_seen() -> None:
    assert undescribed(Half) == ["second"]


@dataclass(frozen=True)
class Half:
    """A value that describes one of its fields."""

    first: int
    """The one that is described."""
    second: int


@pytest.mark.parametrize("first", ["", "Step(run_id='r', workflow='w', role='r', step='s');"])
def test_the_signature_of_a_step_names_its_fields_before_and_after_the_first_use(
    first: str,
) -> None:
    program = (
        f"import inspect; from bundle_router import Step; {first}"
        " print(list(inspect.signature(Step).parameters))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert said == f"{list(Step.model_fields)}\n"
