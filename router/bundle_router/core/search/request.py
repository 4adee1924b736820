"""The input of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bundle_router.core.catalog.step_address import address_json, address_of
from bundle_router.core.values import RecentStep, Step


@dataclass(frozen=True, slots=True)
class Request:
    """The input of a search.

    `context` is text that gives hints (workflow, role, step, constraints) and counts less.
    """

    text: str
    context: str = ""
    recent: tuple[RecentStep, ...] = ()
    address: tuple[str, ...] = ()
    """The step's address as marks that memory may learn from: `workflow:…`, `role:…`, `step:…`."""
    vector: tuple[float, ...] | None = None
    """Vector of `text`, by the embedder of `Search.vectors`. None: words alone rank."""

    @classmethod
    def of(cls, step: Step, recent: Sequence[RecentStep] = ()) -> Request:
        """Return the request of a step: its goal, its address and constraints as hints, and recent
        steps.
        """
        address = address_json(address_of(step))
        context = "\n".join((*address.values(), *step.constraints))
        marks = tuple([f"{name}:{word}" for name, word in address.items()])
        return cls(step.goal or context, context if step.goal else "", tuple(recent), marks)


def marks_of(request: Request) -> tuple[str, ...]:
    """Return facts about a step that memory may learn from besides its words."""
    previous = request.recent[0].bundle_ids if request.recent else ()
    return (*request.address, *(f"previous:{id_}" for id_ in sorted(previous)))
