"""The values of a surface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Place = Literal["direct", "deferred", "meta"]
"""Where a permitted tool is: in the array, behind search until it is asked for, or behind `call_tool` for good."""


@dataclass(frozen=True, slots=True)
class Placed:
    """One permitted tool (canonical name), the bundle it is shown for, and what its definition costs in tokens."""

    name: str
    bundle: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the permitted tools of a decision are. `direct` is in the order of the array, the others in the decision's.

    `activated` holds the direct ones that are there because the run asked for them. `reading_from` says before which of
    the direct ones the tools that read artifacts stand; None where there is nothing to read yet.
    """

    direct: tuple[Placed, ...] = ()
    deferred: tuple[Placed, ...] = ()
    meta: tuple[Placed, ...] = ()
    activated: frozenset[str] = frozenset()
    reading_from: int | None = None

    @property
    def behind(self) -> bool:
        """Whether anything is to be had by search: the agent then needs the tools that find it, and to be told."""
        return bool(self.deferred or self.meta or self.activated)


@dataclass(frozen=True, slots=True)
class ActiveTool:
    """One tool the agent sees: its canonical and exposed names, and the bundle it is shown for."""

    name: str
    exposed: str
    bundle: str
    tokens: int


@dataclass(frozen=True, slots=True)
class SkillText:
    """Instructions that come with a shown bundle, in an operator's words. `tools` are the exposed names of those tools
    that they name and that are permitted."""

    bundle: str
    name: str
    description: str
    tools: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Toolset:
    """What `Router.tools()` returns.

    `tools` is the array in the provider's form; `guidance` is the text the model should be told about the surface
    (empty when every permitted tool is in `tools`); `tokens` is what the array costs (cl100k_base, OpenAI form);
    `active` says which tools of the catalog are in it; `cap` is the activation's cap in tools; `all_tokens` is what
    showing every tool of the catalog would cost. `deferred` and `meta` are the canonical names of permitted tools that
    are not in the array (`deferred` ones join it when asked for), `skills` the instructions that come with the shown
    bundles.
    """

    tools: tuple[dict[str, Any], ...]
    guidance: str
    tokens: int
    active: tuple[ActiveTool, ...]
    cap: int
    all_tokens: int
    deferred: tuple[str, ...] = ()
    meta: tuple[str, ...] = ()
    skills: tuple[SkillText, ...] = ()
