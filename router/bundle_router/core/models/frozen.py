"""The base of the values that come from outside."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Base of the pydantic values: immutable, and unknown keys are refused. Errors don't repeat what was given: it may
    hold secrets, and errors end up in logs. What validates is built when the first value is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, hide_input_in_errors=True, defer_build=True)
