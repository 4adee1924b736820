"""What `run.json` says of a run, and how it is known to be what was written.

Rules:
1. What was stated when the run was opened (every field but `CHANGING`) stays as it is for good. Its digest stands in
   the run's first record as `run_json`, so the chain covers it.
2. `seal` is the digest of all the rest of the file, taken at each writing.
3. Neither has a key: they find accidents and careless hands. A run without them is an older one, and is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bundle_router.core.models.canonical import digest_of

SCHEMA: Final = "bundle-router.run/1"
CHANGING: Final = frozenset(
    ("durability", "catalogs", "healed", "reopened", "restored", "closed", "head", "count", "seal")
)
"""The fields that later writings of the file add or change."""


def workspace_of(header: Mapping[str, Any]) -> str | None:
    """The workspace that the run was last opened with; None for a run of before it was recorded."""
    stated = [
        header.get("workspace"),
        *(again.get("workspace") for again in header.get("reopened", ()) if isinstance(again, dict)),
    ]
    return next((place for place in reversed(stated) if isinstance(place, str)), None)


def is_early(header: Mapping[str, Any]) -> bool:
    """Whether the run was begun before the first layout that is kept for good (the oldest of `tests/data/runs`)."""
    return "seal" not in header and "workspace" not in header


def opening_digest(header: Mapping[str, Any]) -> str:
    """The digest of what was stated when the run was opened."""
    return digest_of({name: value for name, value in header.items() if name not in CHANGING})


def sealed(header: Mapping[str, Any]) -> dict[str, Any]:
    """The header with its seal, as it is written."""
    rest = {name: value for name, value in header.items() if name != "seal"}
    return {**rest, "seal": digest_of(rest)}


def is_edited(header: Mapping[str, Any]) -> bool:
    """True when the header has a seal and is not what was sealed."""
    return "seal" in header and sealed(header)["seal"] != header["seal"]


def faults(header: Mapping[str, Any], first: Mapping[str, Any] | None) -> list[str]:
    """What is wrong with a header, one sentence each; `first` is the run's first record, if it has one."""
    found = ["it was changed after it was written"] if is_edited(header) else []
    stated = (first or {}).get("run_json")
    if stated is not None and stated != opening_digest(header) and "restored" not in header:
        found.append("what it says of the opening of the run is not what the first record says")
    return found
