"""The base of the values that come from outside."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticKnownError


def _refuse_coercion(value: Any) -> Any:
    if isinstance(value, str | bytes | bool):
        raise PydanticKnownError("int_type")
    return value


Count = Annotated[int, Field(ge=0), BeforeValidator(_refuse_coercion)]
"""A number from 0 on; text and truth values are refused. 5.0 is whole, as in JSON Schema."""


class Frozen(BaseModel):
    """Base of the pydantic values: immutable, and unknown keys are refused. Errors don't repeat the input, which may
    hold secrets, since errors are logged. The validator is built with the first value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, hide_input_in_errors=True, defer_build=True)
