"""What is searched for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bundle_router.core.models import RecentStep, Step


@dataclass(frozen=True, slots=True)
class Request:
    """What is searched for. `context` is text that hints (workflow, role, step, constraints) and counts less."""

    text: str
    context: str = ""
    recent: tuple[RecentStep, ...] = ()
    address: tuple[str, ...] = ()
    """Where the step stands, as marks that memory may learn from: `workflow:…`, `role:…`, `step:…`."""
    vector: tuple[float, ...] | None = None
    """What the embedder that `Search.vectors` came from made of `text`. None: ranked by words alone."""

    @classmethod
    def of(cls, step: Step, recent: Sequence[RecentStep] = ()) -> Request:
        """Return a step's goal in full; its address and constraints as hints; the run's recent steps, latest first."""
        context = "\n".join((step.workflow, step.role, step.step, *step.constraints))
        address = (f"workflow:{step.workflow}", f"role:{step.role}", f"step:{step.step}")
        return cls(step.goal or context, context if step.goal else "", tuple(recent), address)


def marks_of(request: Request) -> tuple[str, ...]:
    """Return facts about a step that memory may learn from besides its words."""
    previous = request.recent[0].bundle_ids if request.recent else ()
    return (*request.address, *(f"previous:{id_}" for id_ in sorted(previous)))
