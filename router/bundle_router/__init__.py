"""Bundle Router: decides which bundles of tools a workflow step may see, and records why.

    from bundle_router import Router, Step

    async with Router.open("config", runs="runs") as router:
        step = Step(run_id="r-42", workflow="feature", role="implementer", step="edit")
        decision = await router.route(step)
        decision.bundle_ids

Importing this package loads nothing heavy: the names below load at first use. So do its modules for
other readers: `errors`, `tool` (for authors of tools), `service` (the MCP endpoint), `ext` (for
frameworks) and `testing` (fakes).
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bundle_router.core.catalog import Catalog
    from bundle_router.core.exposure.placements import Toolset
    from bundle_router.core.values import Decision, Step, StepPolicy
    from bundle_router.core.values.approvals import Approval
    from bundle_router.engine.results import Result
    from bundle_router.errors import RouterError
    from bundle_router.wiring import Router, load_catalog

_HOMES: Final = {
    "Approval": "bundle_router.core.values.approvals",
    "Catalog": "bundle_router.core.catalog",
    "Decision": "bundle_router.core.values",
    "Result": "bundle_router.engine.results",
    "Router": "bundle_router.wiring",
    "RouterError": "bundle_router.errors",
    "Step": "bundle_router.core.values",
    "StepPolicy": "bundle_router.core.values",
    "Toolset": "bundle_router.core.exposure.placements",
    "load_catalog": "bundle_router.wiring",
}
_MODULES: Final = ("errors", "ext", "service", "testing", "tool")

__version__ = "0.1.0"
__all__ = [
    "Approval",
    "Catalog",
    "Decision",
    "Result",
    "Router",
    "RouterError",
    "Step",
    "StepPolicy",
    "Toolset",
    "load_catalog",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"bundle_router.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'bundle_router' has no attribute {name!r}")
    if _HOMES[name] == "bundle_router.wiring":
        import_module("bundle_router.errors").refuse_windows(sys.platform)
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
