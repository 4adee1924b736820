"""Bundle Router: which bundles of tools a workflow step may see, and why.

    from bundle_router import Router, Step

    async with Router.open("config", runs="runs") as router:
        decision = await router.route(Step(run_id="r-42", workflow="feature", role="implementer", step="edit"))
        decision.bundle_ids

Importing this package loads nothing heavy; the names below are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bundle_router.core.catalog import Catalog
    from bundle_router.core.models import (
        Data,
        Decision,
        LocalTool,
        Media,
        Step,
        StepPolicy,
        Text,
        ToolContext,
        ToolOutput,
    )
    from bundle_router.core.tools.exposure import Toolset
    from bundle_router.engine.outcomes import Result
    from bundle_router.errors import ConfigError, CorruptRun, RequestError, RouterError, StorageError, ToolFailure
    from bundle_router.wiring import Router, load_catalog

_HOMES = {
    "Catalog": "bundle_router.core.catalog",
    "ConfigError": "bundle_router.errors",
    "CorruptRun": "bundle_router.errors",
    "Data": "bundle_router.core.models",
    "Decision": "bundle_router.core.models",
    "LocalTool": "bundle_router.core.models",
    "Media": "bundle_router.core.models",
    "RequestError": "bundle_router.errors",
    "Result": "bundle_router.engine.calls",
    "Router": "bundle_router.wiring",
    "RouterError": "bundle_router.errors",
    "Step": "bundle_router.core.models",
    "StepPolicy": "bundle_router.core.models",
    "StorageError": "bundle_router.errors",
    "Text": "bundle_router.core.models",
    "ToolContext": "bundle_router.core.models",
    "ToolFailure": "bundle_router.errors",
    "ToolOutput": "bundle_router.core.models",
    "Toolset": "bundle_router.core.tools.exposure",
    "load_catalog": "bundle_router.wiring",
}

__all__ = [
    "Catalog",
    "ConfigError",
    "CorruptRun",
    "Data",
    "Decision",
    "LocalTool",
    "Media",
    "RequestError",
    "Result",
    "Router",
    "RouterError",
    "Step",
    "StepPolicy",
    "StorageError",
    "Text",
    "ToolContext",
    "ToolFailure",
    "ToolOutput",
    "Toolset",
    "load_catalog",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'bundle_router' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
