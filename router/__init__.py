"""Bundle Router: which bundles of tools a workflow step may see, and why.

    from router import Router, Step

    async with Router.open("config", runs="runs") as router:
        decision = await router.route(Step(run_id="r-42", workflow="feature", role="implementer", step="edit"))
        decision.bundle_ids

Importing this package loads nothing heavy; the names below are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from router.core.catalog import Catalog
    from router.core.exposure import Toolset
    from router.core.models import Data, Decision, LocalTool, Media, Step, StepPolicy, Text, ToolContext, ToolOutput
    from router.errors import ConfigError, CorruptRun, RequestError, RouterError, StorageError, ToolFailure
    from router.outcomes import Result
    from router.wiring import Router, load_catalog

_HOMES = {
    "Catalog": "router.core.catalog",
    "ConfigError": "router.errors",
    "CorruptRun": "router.errors",
    "Data": "router.core.models",
    "Decision": "router.core.models",
    "LocalTool": "router.core.models",
    "Media": "router.core.models",
    "RequestError": "router.errors",
    "Result": "router.calls",
    "Router": "router.wiring",
    "RouterError": "router.errors",
    "Step": "router.core.models",
    "StepPolicy": "router.core.models",
    "StorageError": "router.errors",
    "Text": "router.core.models",
    "ToolContext": "router.core.models",
    "ToolFailure": "router.errors",
    "ToolOutput": "router.core.models",
    "Toolset": "router.core.exposure",
    "load_catalog": "router.wiring",
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
        raise AttributeError(f"module 'router' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
