"""Every field of the values that an engine holds has a description where an IDE looks for it: right
below it.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from dataclasses import fields, is_dataclass

import pytest
from bundle_router import Decision, Result, Step, Toolset


@pytest.mark.parametrize("value", [Step, Decision, Toolset, Result])
def test_every_field_has_a_description(value: type) -> None:
    (tree,) = ast.parse(inspect.getsource(value)).body
    assert isinstance(tree, ast.ClassDef)
    described = {
        row.target.id
        for row, below in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(row, ast.AnnAssign)
        and isinstance(row.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
    named = {one.name for one in fields(value)} if is_dataclass(value) else set(Step.model_fields)
    assert named - described == set()


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
