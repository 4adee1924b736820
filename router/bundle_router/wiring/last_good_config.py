"""What a router that runs, and one that is opened, make of a config folder that has lost a file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.config.config_text import ConfigFile
from bundle_router.core.config.last_good import ConfigSnapshot, lost_files
from bundle_router.core.values.canonical import decode
from bundle_router.errors import ConfigError, RequestError, RouterError
from bundle_router.ports import Diagnostics

POLICY: Final = "policy.toml"
MAX_LOOKED_AT: Final = 5
"""Newest runs that are looked at for the policy that decided them, as some may be damaged."""
_ADVICE: Final = (
    "put the folder's own policy.toml back, or write one; `bundle-router explain` says what the"
    " policy in force permits"
)


def refuse_lost_files(
    config: str | Path | None, last_good: ConfigSnapshot, now: ConfigSnapshot
) -> None:
    """Raise ConfigError if a file is gone, or half written, that the config in force was read
    from.
    """

    def was_taken_out(file: ConfigFile) -> bool:
        return config is not None and _was_taken_out(Path(config), file)

    problems = lost_files(last_good, now, was_taken_out)
    if problems:
        raise ConfigError(problems)


def _was_taken_out(folder: Path, file: ConfigFile) -> bool:
    """Return whether the last change of the file in the folder's journal deleted this text."""
    from bundle_router.adapters.config_journal import read_changes

    try:
        changes = read_changes(folder)
    except RequestError:
        return False
    for change in reversed(changes):
        for changed in change.files:
            if changed.name == file.name:
                text = (changed.before or "").removeprefix("\ufeff").replace("\r\n", "\n")
                return changed.after_sha256 == "" and text == file.text
    return False


def warn_of_shipped_policy(
    config: str | Path | None,
    runs: str | Path | None,
    snapshot: ConfigSnapshot,
    catalog: Catalog,
    diagnostics: Diagnostics,
) -> None:
    """Say what rules now, where a config folder without a policy.toml seems to have had one: it has
    routes of its own, or the newest of the recorded runs was decided by other rows.
    """
    own_files = snapshot.own
    is_shipped_alone = all(file.layer == "shipped" for file in snapshot.files)
    if POLICY in own_files or is_shipped_alone:
        return
    if "routes.toml" in own_files:
        problem = f"{config} has a routes.toml and no policy.toml"
    else:
        former = _recorded_policies(runs)
        rows = decode(catalog.text)["policies"]
        if former is None or former == rows:
            return
        names = ", ".join(str(row.get("name", "")) for row in former)
        problem = (
            f"{config} has no policy.toml; the newest recorded run was decided by other"
            f" rows of policy than those in force ({names})"
        )
    diagnostics.event(
        "warning",
        "policy.shipped",
        problem=problem,
        in_force=f"{snapshot.policy} (shipped)",
        rows=[policy.name for policy in catalog.policies],
        advice=_ADVICE,
    )


def _recorded_policies(runs: str | Path | None) -> list[dict[str, Any]] | None:
    """Return the rows of policy of the newest run in the folder of runs; None if there is none."""
    if runs is None:
        return None
    from bundle_router.wiring.stores import open_archive

    archive = open_archive(runs)
    for run_id in _newest_runs(Path(runs), archive.run_ids()):
        try:
            revision = archive.header(run_id).catalogs[-1].revision
            policies = archive.catalog(run_id, revision).get("policies")
        except (RouterError, IndexError):  # damaged, or deleted meanwhile
            continue
        if isinstance(policies, list):
            return [row for row in policies if isinstance(row, dict)]
    return None


def _newest_runs(runs: Path, run_ids: Sequence[str]) -> list[str]:
    """Return a few of these runs, the one whose folder changed last first."""
    changed_ns: dict[str, int] = {}
    for run_id in run_ids:
        with suppress(OSError):
            changed_ns[run_id] = (runs / run_id).stat().st_mtime_ns
    return sorted(changed_ns, key=lambda run_id: changed_ns[run_id], reverse=True)[:MAX_LOOKED_AT]
