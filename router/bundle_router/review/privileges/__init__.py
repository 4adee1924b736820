"""The privilege diff of two catalogs: who may see and call what, and what an edit widens.

See `differences`.
"""

from bundle_router.review.privileges.differences import privilege_diff
from bundle_router.review.privileges.privilege_rows import (
    EFFECT_SIGNS,
    Addresses,
    Kind,
    PrivilegeDiff,
    PrivilegeRow,
    row_json,
    sentence,
)

__all__ = [
    "EFFECT_SIGNS",
    "Addresses",
    "Kind",
    "PrivilegeDiff",
    "PrivilegeRow",
    "privilege_diff",
    "row_json",
    "sentence",
]
