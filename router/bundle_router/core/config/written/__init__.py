"""The written form: exactly what each config file may say. The first of the two stages, and the source of the schemas.

Rules:
1. Unknown keys are refused, and nothing is coerced: `"yes"` is not true, `"5"` is not a number.
2. A key that is absent is None here or its documented default; what follows from other keys is settled in `resolve`.
3. Every key carries the sentence that editors show. Bounds stand here and nowhere else.
"""

from __future__ import annotations

from typing import Final

from bundle_router.core.config.written.entries import BundlesFile, PolicyFile, RoutesFile, ServersFile
from bundle_router.core.config.written.forms import Form
from bundle_router.core.config.written.settings import RouterFile

FORMS: Final[dict[str, type[Form]]] = {
    "servers.toml": ServersFile,
    "bundles.toml": BundlesFile,
    "routes.toml": RoutesFile,
    "policy.toml": PolicyFile,
    "router.toml": RouterFile,
}

__all__ = ["FORMS", "Form"]
