"""A client of a Bundle Router service. The names are those of the library, `bundle_router`."""

from bundle_router_client.errors import (
    CorruptRun,
    InvalidStep,
    KeyConflict,
    RequestError,
    RouterError,
    RunBusy,
    StorageError,
    UnknownArtifact,
    UnknownRun,
    Unreachable,
)
from bundle_router_client.router import Router
from bundle_router_client.values import Decision, Result, RunEnd, Step, StepPolicy, Toolset

__all__ = [
    "CorruptRun",
    "Decision",
    "InvalidStep",
    "KeyConflict",
    "RequestError",
    "Result",
    "Router",
    "RouterError",
    "RunBusy",
    "RunEnd",
    "Step",
    "StepPolicy",
    "StorageError",
    "Toolset",
    "UnknownArtifact",
    "UnknownRun",
    "Unreachable",
]
