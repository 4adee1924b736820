"""Judges which requests deferred their tools, and why others did not.

Pure; the causes are data (`causes.toml`).

Rules:
1. The state comes from the best evidence: the recorded request, else a prompt snapshot, else a
   successful search, else an inventory together with a known mode; else it is unknown, and unknown
   is never a finding.
2. What a transcript recorded takes precedence over what the config says today.
3. A cause counts only in the versions in which it existed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from bundle_router_deferral.transcript import Evidence, RequestFacts, State

SWITCH: Final = "ENABLE_TOOL_SEARCH"
NO_BETAS: Final = "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS"
BASE_URL: Final = "ANTHROPIC_BASE_URL"
VERTEX: Final = "CLAUDE_CODE_USE_VERTEX"
ENVIRONMENT: Final = (SWITCH, NO_BETAS, BASE_URL, VERTEX)
"""The only environment variables whose values are read; of the base URL, only the host."""
FIRST_PARTY: Final = "api.anthropic.com"
PLAIN_BETAS: Final = frozenset(("claude-code-20250219", "interleaved-thinking-2025-05-14"))
"""Betas that 2.1.329 still sends with experimental betas disabled."""
INVENTORY_SINCE: Final = (2, 1, 121)
SHAPES_SINCE: Final = (2, 1, 300)
DEFAULT_SHARE: Final = 10
WINDOW_TOKENS: Final = 200_000

Mode = Literal["unset", "on", "off", "auto", "auto-100"]


class VersionedRow(BaseModel):
    """A row of data for the versions from `since` to `until`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    since: str = Field(default="", alias="from")
    until: str = ""

    def exists_in(self, version: str) -> bool:
        """Return whether the row applies to that version; an unreadable version counts as
        recent.
        """
        number = version_number(version) or (9, 9, 9)
        first = version_number(self.since)
        last = version_number(self.until)
        return (first is None or number >= first) and (last is None or number <= last)


class CauseRow(VersionedRow):
    """One row of the table of causes."""

    id: str
    title: str
    type: str
    """Command for a cause without a plan of `apply`."""
    fix: str


class BuiltinRow(VersionedRow):
    """Built-in tools that are deferred."""

    names: frozenset[str]


class CauseTable(BaseModel):
    """The table of causes, and the built-in tools that are deferred."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    builtins: tuple[BuiltinRow, ...]
    causes: tuple[CauseRow, ...]

    def __getitem__(self, cause: str) -> CauseRow:
        return next(row for row in self.causes if row.id == cause)

    def deferrable(self, version: str) -> frozenset[str]:
        """Return the built-in tools that a version defers."""
        return frozenset[str]().union(
            *(row.names for row in self.builtins if row.exists_in(version))
        )


def parse_table(text: str) -> CauseTable:
    """Read the table of causes from TOML."""
    return CauseTable.model_validate(tomllib.loads(text))


def version_number(version: str) -> tuple[int, ...] | None:
    """Return `2.1.329` as numbers; None for any other text."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return tuple(int(part) for part in match.groups()) if match else None


@dataclass(frozen=True, slots=True)
class SearchMode:
    """The mode of ENABLE_TOOL_SEARCH. `share` is auto's percentage of the context window."""

    mode: Mode
    share: int = DEFAULT_SHARE


def search_mode(value: str | None) -> SearchMode:
    """Parse ENABLE_TOOL_SEARCH as Claude Code 2.1.329 does: unknown values mean on."""
    if value is None:
        return SearchMode("unset")
    word = value.strip().lower()
    if word in ("false", "0", "no", "off"):
        return SearchMode("off")
    if not word.startswith("auto"):
        return SearchMode("on")
    share = re.fullmatch(r"auto:(\d{1,9})", word)
    number = int(share[1]) if share else DEFAULT_SHARE
    if number == 0:
        return SearchMode("on", 0)
    if number >= 100:
        return SearchMode("auto-100", 100)
    return SearchMode("auto", number)


def is_truthy(value: str | None) -> bool:
    return value is not None and value.strip().lower() in ("1", "true", "yes", "on")


_GENERATION: Final = re.compile(
    r"claude-(?:(?P<old>\d)(?:-(?P<old_minor>\d))?-(?:opus|sonnet|haiku|instant)"
    r"|(?P<family>[a-z]+)-(?P<major>\d{1,2})(?:-(?P<minor>\d{1,2}))?(?!\d)|(?P<oldest>instant|v?2))"
)


def generation(model: str) -> tuple[str, int, int] | None:
    """Return a Claude model's family, generation and minor version; None for other names."""
    match = _GENERATION.search(model.replace("_", "-").lower())
    if match is None:
        return None
    if match["oldest"]:
        return match["oldest"], 2, 0
    if match["old"]:
        return "claude", int(match["old"]), int(match["old_minor"] or 0)
    return match["family"], int(match["major"]), int(match["minor"] or 0)


def can_search(model: str) -> bool | None:
    """Return whether a model accepts deferred tools: generation 4.5 or later.

    None for an unknown model.
    """
    version = generation(model)
    return None if version is None else version[1:] >= (4, 5)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting's value and its place: a file and key path, or `environment`."""

    value: str
    where: str


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Today's settings of one project: the named variables, and where the search tool is denied."""

    variables: Mapping[str, Setting]
    denied: str = ""

    def value(self, name: str) -> str | None:
        setting = self.variables.get(name)
        return None if setting is None else setting.value

    def where(self, name: str) -> str:
        setting = self.variables.get(name)
        return "" if setting is None else setting.where

    @property
    def gateway(self) -> str:
        """The host of a base URL that leads elsewhere than to the vendor; "" without one."""
        host = self.value(BASE_URL)
        return host if host is not None and _is_foreign(host) else ""


@dataclass(frozen=True, slots=True)
class RequestJudgement:
    """A request's state with its evidence; if it is off, also why, and where that is set."""

    state: State
    evidence: Evidence
    cause: str = ""
    where: str = ""
    detail: str = ""


def judge(request: RequestFacts, settings: AgentSettings, table: CauseTable) -> RequestJudgement:
    """Return the state of a request and, if it is off, the cause."""
    state = request.state
    evidence = request.evidence
    if state == "unknown":
        state, evidence = _by_inventory(request, settings)
    if state != "off":
        return RequestJudgement(state, evidence)
    for cause, place, detail in _causes(request, settings):
        if table[cause].exists_in(request.version):
            return RequestJudgement("off", evidence, cause, place, detail)
    return RequestJudgement("off", evidence, "unexplained")


def _by_inventory(request: RequestFacts, settings: AgentSettings) -> tuple[State, Evidence]:
    """Judge by the inventory, which is evidence only with a known mode: `auto` writes one and
    defers nothing.
    """
    number = version_number(request.version)
    if number is None or not INVENTORY_SINCE <= number < SHAPES_SINCE:
        return "unknown", "none"
    mode = search_mode(settings.value(SWITCH)).mode
    if request.inventory:
        if mode == "on":
            return "on", "inventory"
        return "unknown", "none"
    if mode in ("off", "auto-100"):
        return "off", "inventory"
    if mode == "unset" and _is_foreign(settings.value(BASE_URL)):
        return "off", "inventory"
    return "unknown", "none"


def _is_foreign(host: str | None) -> bool:
    """Return whether a base URL leads elsewhere than to the vendor."""
    return host not in (None, "", FIRST_PARTY)


def _causes(request: RequestFacts, settings: AgentSettings) -> list[tuple[str, str, str]]:
    """Return the matching causes, the best supported first, each with its place and a detail."""
    causes: list[tuple[str, str, str]] = []
    if request.after_refusal:
        causes.append(
            ("held-off" if request.after_refusal == "held" else "endpoint-refused", "", "recorded")
        )
    causes.append(("old-version", "", request.version))
    model = generation(request.model)
    if model is not None and (model[1] < 4 or (model[0] == "haiku" and model[1:] < (4, 5))):
        causes.append(("model-unsupported", "", request.model))
    if request.inventory:  # the other causes leave no inventory
        causes.append(("auto-below-threshold", settings.where(SWITCH), "recorded"))
    if is_truthy(settings.value(NO_BETAS)):
        causes.append(("experimental-betas-disabled", settings.where(NO_BETAS), ""))
    elif request.betas is not None and set(request.betas) <= PLAIN_BETAS:
        causes.append(
            ("experimental-betas-disabled", "", "recorded: no beta beyond the basic ones was sent")
        )
    if settings.denied:
        causes.append(("toolsearch-denied", settings.denied, ""))
    mode = search_mode(settings.value(SWITCH))
    cause = {"off": "env-off", "auto-100": "auto-100", "auto": "auto-below-threshold"}.get(
        mode.mode
    )
    if cause is not None:
        causes.append((cause, settings.where(SWITCH), f"{SWITCH}={settings.value(SWITCH)}"))
    if request.vertex or is_truthy(settings.value(VERTEX)):
        causes.append(("vertex", settings.where(VERTEX), ""))
        if model is not None and model[1:] < (4, 5):
            causes.append(("model-unsupported", "", request.model))
    host = settings.value(BASE_URL)
    number = version_number(request.version) or (0,)
    if _is_foreign(host) and (mode.mode == "unset" or number < (2, 1, 72)):
        causes.append(("base-url-gate", settings.where(BASE_URL), str(host)))
    if model is not None and model[1:] < (4, 5):
        causes.append(("model-unsupported", "", request.model))
    return causes
