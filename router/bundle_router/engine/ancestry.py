"""What a sub-agent may have at most: what each of its ancestors may have now.

Rules:
1. The chain is walked anew for every step, every listing and every call. Nothing an ancestor was granted once outlives
   what it may have now.
2. A run's parent stands in its `run.json` from the moment it exists, so that it can't be shed, by whatever is left out
   later.
3. An ancestor that can't be looked up has nothing to give: its sub-agents are refused.
4. An ancestor's folder lies in the workspace of the router that it was routed by: a sub-agent that another router, with
   a wider workspace, is asked to route gets no more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bundle_router.core.models import Activation, Grant, Step
from bundle_router.core.models.folders import TOP, is_beneath, seen_from
from bundle_router.errors import RequestError

MAX_ANCESTORS: Final = 16
"""How deep sub-agents may nest. Deeper is a loop, not a plan."""


NOTHING: Final = Activation()


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands: the step it was last routed for, what is sticky, whose sub-agent it is, and the workspace
    (`root`) that its step's folder is beneath."""

    step: Step
    activation: Activation
    parent_id: str | None
    root: str


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a run's ancestors leave it. `grants` nearest first; `folders` are theirs, beneath the workspace's root;
    `activation` is its parent's. Empty for a run that is nobody's sub-agent."""

    grants: tuple[Grant, ...] = ()
    folders: tuple[str, ...] = ()
    activation: Activation = NOTHING

    def holds(self, folder: str) -> bool:
        """Whether every ancestor may work in the folder."""
        return all(is_beneath(folder, ceiling) for ceiling in self.folders)

    def folder(self) -> str:
        """The folder for a step that names none: the innermost. Raises RequestError when there is no such folder."""
        inner = max(self.folders, key=len, default=TOP)
        if self.holds(inner):
            return inner
        raise RequestError(
            f"no folder is open to this sub-agent: its ancestors are confined to {', '.join(map(repr, self.folders))}",
            advice="route the parent's step in a folder inside its own parent's",
        )


def ceiling_of(parent_id: str | None, root: str, standing: Callable[[str], Standing]) -> Ceiling:
    """Walks up from the parent. Raises what `standing` raises for a run it can't look up, and RequestError for a chain
    that is too long."""
    grants: list[Grant] = []
    folders: list[str] = []
    activation: Activation | None = None
    while parent_id is not None:
        if len(grants) >= MAX_ANCESTORS:
            raise RequestError(f"run {parent_id!r} is {MAX_ANCESTORS} sub-agents up; nesting ends there")
        at = standing(parent_id)
        folder = seen_from(root, at.root, at.step.workspace)
        if folder is None:
            raise RequestError(
                f"the parent run {parent_id!r} works in {at.step.workspace or TOP!r} of {at.root!r}, which is not "
                f"inside {root!r}",
                advice="open the router with the workspace that the parent was routed in",
            )
        grants.append(Grant(at.step.workflow, at.step.role, at.step.step, at.step.policy))
        folders.append(folder)
        activation = activation or at.activation
        parent_id = at.parent_id
    return Ceiling(tuple(grants), tuple(folders), activation or NOTHING)


__all__ = ["MAX_ANCESTORS", "Ceiling", "Standing", "ceiling_of"]
