"""The catalog: the whole validated config as one immutable value, with its revision.

Rules:
1. A catalog is resolved: globs over known tools are expanded, compositions are flattened, every id
   it names exists.
2. Its `revision` is the digest of its canonical form, so two catalogs with the same revision decide
   the same.
3. Order has a meaning only where the config says so: `routes` (first match wins) and a route's
   `bundles`. Everything else is sorted.
4. Every config key is declared once, at the field that holds its value (see `catalog.config_keys`).
5. A key that came after the first recorded catalogs is in its class's `ADDED`: the canonical form
   omits it where it has its default, so that a config that does not use it keeps its revision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from bundle_router.core.catalog.config_keys import key_name
from bundle_router.core.catalog.config_tables import (
    TRANSPORT_KEYS,
    TRANSPORTS,
    AnswerForm,
    ApprovalRow,
    Bundle,
    Condition,
    Era,
    Feature,
    Policy,
    Reuse,
    Route,
    Server,
    StandingBounds,
    TaintStatement,
    Transport,
)
from bundle_router.core.catalog.settings import (
    MIN_LABELS,
    ActivationSettings,
    AnswerMode,
    Beside,
    Calibration,
    CallLimits,
    Durability,
    EmbeddingSettings,
    Fallback,
    FallbackStage,
    LogSettings,
    ModelChoice,
    ModelOptions,
    ModelSettings,
    OfferSettings,
    RecordSettings,
    RunSettings,
    SearchSettings,
    Settings,
    provider_key_name,
)
from bundle_router.core.values import LocalSettings, TaintSort
from bundle_router.core.values.canonical import digest, encode
from bundle_router.core.values.patterns import first_match

if TYPE_CHECKING:
    from bundle_router.core.catalog.statements import Statements

__all__ = [
    "CATALOG_SCHEMA",
    "MIN_LABELS",
    "TRANSPORTS",
    "TRANSPORT_KEYS",
    "ActivationSettings",
    "AnswerForm",
    "AnswerMode",
    "ApprovalRow",
    "Beside",
    "Bundle",
    "Calibration",
    "CallLimits",
    "Card",
    "Catalog",
    "Condition",
    "Durability",
    "EmbeddingSettings",
    "Era",
    "Fallback",
    "FallbackStage",
    "Feature",
    "LogSettings",
    "ModelChoice",
    "ModelOptions",
    "ModelSettings",
    "OfferSettings",
    "Policy",
    "RecordSettings",
    "Reuse",
    "Route",
    "RunSettings",
    "SearchSettings",
    "Server",
    "Settings",
    "Skill",
    "StandingBounds",
    "TaintStatement",
    "Transport",
    "provider_key_name",
]


CATALOG_SCHEMA: Final = "bundle-router.catalog/1"


@dataclass(frozen=True, slots=True)
class Card:
    """An admitted tool definition: what the router knows about one tool."""

    ADDED: ClassVar[tuple[str, ...]] = ("idempotent", "returns", "wraps_result")

    server: str
    """The server's name."""
    tool: str
    """The tool's name at its server."""
    description: str
    """What the tool does, as it was admitted."""
    schema: str
    """The canonical JSON text of its input schema."""
    sha256: str
    """The digest of the admitted definition."""
    tokens: int
    """Tokens of the definition in OpenAI form (cl100k_base)."""
    counted: bool = True
    """False where the tokens are estimated from the length."""
    idempotent: bool = False
    """Whether a trusted server says that calling the tool again with the same arguments changes
    nothing more.
    """
    returns: str = ""
    """The type of its results in short, by its output schema; empty where it declares none."""
    wraps_result: bool = False
    """Whether its output schema wraps a value that is no object: `{"result": …}`."""

    @property
    def name(self) -> str:
        """The canonical name, `server.tool`."""
        return f"{self.server}.{self.tool}"

    def input_schema(self) -> dict[str, Any]:
        """Return a fresh copy of the input schema."""
        loaded: dict[str, Any] = json.loads(self.schema)
        return loaded


@dataclass(frozen=True, slots=True)
class Skill:
    """A bundle's skill: its instructions (see `core.exposure.skills`)."""

    path: str
    """The path below `bundles/`, as bundles name it."""
    name: str
    """Its name, for the model."""
    description: str
    """What it is for, for the model."""
    tools: tuple[str, ...]
    """The tools it names, as written: `server.tool`, or a tool's name alone."""
    text: str
    """The instructions."""


@dataclass(frozen=True, eq=False)
class Catalog:
    """Everything that decisions rest on.

    Build one with `bundle_router.core.config.load`, or by hand in tests.

    It never changes, and is safe to share between threads.

    >>> from bundle_router import load_catalog
    >>> catalog = load_catalog(None)
    >>> catalog.bundles["repo.readonly"].effects
    ('read',)
    """

    servers: Mapping[str, Server] = field(default_factory=dict)
    """The servers by name."""
    bundles: Mapping[str, Bundle] = field(default_factory=dict)
    """The bundles by id."""
    routes: tuple[Route, ...] = ()
    """The rows of the mapping, in file order: the first that matches wins."""
    policies: tuple[Policy, ...] = ()
    """The policy rows: all that match a step apply."""
    approvals: tuple[ApprovalRow, ...] = ()
    """The rows of calls that wait for somebody's word: all that match a call apply."""
    settings: Settings = field(default_factory=Settings)
    """How the router itself behaves."""
    local: LocalSettings = field(default_factory=LocalSettings)
    """What the config permits first-party tools."""
    cards: Mapping[str, Card] = field(default_factory=dict)
    """The known tool definitions by canonical name (`server.tool`)."""
    skills: Mapping[str, Skill] = field(default_factory=dict)
    """The skills by path, those whose file exists."""
    taints: tuple[tuple[str, TaintSort], ...] = ()
    """The declared taints, each with the given one that it is a sort of."""
    forms: tuple[AnswerForm, ...] = ()
    """The forms for checked answers of sub-agents, by name."""

    def __post_init__(self) -> None:
        for name in ("servers", "bundles", "cards", "skills"):
            value: Mapping[str, Any] = getattr(self, name)
            object.__setattr__(self, name, MappingProxyType(dict(sorted(value.items()))))

    def __eq__(self, other: object) -> bool:
        """Two catalogs are equal where their revisions are: what they mean is the same."""
        if not isinstance(other, Catalog):
            return NotImplemented
        return self is other or self.revision == other.revision

    def __hash__(self) -> int:
        return hash(self.revision)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for `pickle` and `copy`, which can't copy a read-only mapping."""
        state = {declared.name: getattr(self, declared.name) for declared in fields(self)}
        for name, value in state.items():
            if isinstance(value, Mapping):
                state[name] = dict(value)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    @cached_property
    def text(self) -> str:
        """The canonical form (see `to_json`) as it is stored with a run: one line."""
        return encode(self.to_json()) + "\n"

    @cached_property
    def revision(self) -> str:
        """`sha256:…` of the canonical form."""
        return digest(self.text[:-1])

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """The present ids of bundles by their old ids."""
        return {alias: bundle.id for bundle in self.bundles.values() for alias in bundle.aliases}

    def id_today(self, id_: str) -> str:
        """Return the present id of the bundle with that id or old id; `id_` itself where there is
        none.
        """
        return id_ if id_ in self.bundles else self.aliases.get(id_, id_)

    def bundle(self, id_: str) -> Bundle | None:
        """Return the bundle with that id or old id."""
        current = self.bundles.get(id_)
        if current is not None:
            return current
        return self.bundles.get(self.aliases.get(id_, ""))

    @cached_property
    def tool_names(self) -> frozenset[str]:
        """The canonical names of all known tools: those in bundles, and those with a card."""
        return (
            frozenset(tool for bundle in self.bundles.values() for tool in bundle.tools)
            | self.cards.keys()
        )

    def bundles_with(self, tool: str) -> tuple[Bundle, ...]:
        """Return the bundles that name the tool, or have a glob that covers it."""
        covering = [
            bundle
            for bundle in self._open_bundles
            if first_match(bundle.patterns, tool) is not None
        ]
        by_name = self._bundles_by_tool.get(tool, ())
        return (*by_name, *(bundle for bundle in covering if tool not in bundle.tools))

    @cached_property
    def _bundles_by_tool(self) -> Mapping[str, tuple[Bundle, ...]]:
        bundles_by_tool: dict[str, tuple[Bundle, ...]] = {}
        for bundle in self.bundles.values():
            for tool in bundle.tools:
                bundles_by_tool[tool] = (*bundles_by_tool.get(tool, ()), bundle)
        return bundles_by_tool

    @cached_property
    def _open_bundles(self) -> tuple[Bundle, ...]:
        """The bundles with globs over servers that were not asked yet."""
        return tuple(bundle for bundle in self.bundles.values() if bundle.patterns)

    def approvals_of(self, tool: str) -> tuple[ApprovalRow, ...]:
        """Return the rows of approvals that are about a tool, at whichever step it is called."""
        rows = self._approvals_by_tool.get(tool)
        return self._find_approvals(tool) if rows is None else rows

    @cached_property
    def _approvals_by_tool(self) -> Mapping[str, tuple[ApprovalRow, ...]]:
        return {tool: self._find_approvals(tool) for tool in self.tool_names}

    def _find_approvals(self, tool: str) -> tuple[ApprovalRow, ...]:
        bundles = self.bundles_with(tool)
        return tuple([row for row in self.approvals if row.covers_tool(tool, bundles)])

    def skill_of(self, bundle: Bundle) -> Skill | None:
        """Return the bundle's own skill."""
        if bundle.skill is None:
            return None
        return self.skills.get(bundle.skill)

    def skills_of(self, bundle: Bundle) -> tuple[tuple[Bundle, Skill], ...]:
        """Return the bundle's skills: its own first, then those of the bundles that it is composed
        of; each once, with the bundle that brings it.
        """
        if bundle.skill is None and not bundle.bundles:
            return ()
        skills: dict[str, tuple[Bundle, Skill]] = {}
        waiting = [bundle]
        for part in waiting:
            skill = self.skill_of(part)
            if skill is not None:
                skills.setdefault(skill.path, (part, skill))
            waiting.extend(
                inner
                for id_ in part.bundles
                if (inner := self.bundles.get(id_)) is not None and inner not in waiting
            )
        return tuple(skills.values())

    @cached_property
    def looks_at_taints(self) -> bool:
        """Whether a policy row counts only once a branch has seen something."""
        return any(row.seen for row in self.policies)

    @cached_property
    def statements(self) -> Statements:
        """What is stated, or inferred, of what tools return and where their arguments go."""
        # Most configs have no row that needs it, and most runs no call that is judged by it.
        from bundle_router.core.catalog.statements import Statements

        return Statements(self)

    @cached_property
    def always(self) -> tuple[Bundle, ...]:
        return tuple(bundle for bundle in self.bundles.values() if bundle.always)

    def to_json(self) -> dict[str, object]:
        """Return the canonical form as JSON values: lists of objects, never objects keyed by
        ids.
        """
        canonical: dict[str, object] = {
            "schema": CATALOG_SCHEMA,
            "servers": [canonical_value(server) for server in self.servers.values()],
            "bundles": [canonical_value(bundle) for bundle in self.bundles.values()],
            "routes": [canonical_value(route) for route in self.routes],
            "policies": [canonical_value(policy) for policy in self.policies],
            **self._approvals_json(),
            "settings": canonical_value(self.settings),
            "local": self.local.to_json(),
            "cards": [canonical_value(card) for card in self.cards.values()],
            "skills": [asdict(skill) for skill in self.skills.values()],
        }
        return canonical | self._taints_json()

    def _taints_json(self) -> dict[str, object]:
        """Return the declared taints and forms, which catalogs without any do not have (rule 5)."""
        taints = [{"name": name, "sort": sort} for name, sort in self.taints]
        forms = [form.to_json() for form in self.forms]
        return {name: rows for name, rows in (("taints", taints), ("forms", forms)) if rows}

    def _approvals_json(self) -> dict[str, object]:
        """Return the rows of approvals, which catalogs without any do not have (rule 5)."""
        if not self.approvals:
            return {}
        return {"approvals": [canonical_value(row) for row in self.approvals]}


def canonical_value(value: Any) -> Any:
    """Return the value as `dataclasses.asdict` has it, without `ADDED` fields at their default."""
    if isinstance(value, tuple):
        return tuple(canonical_value(item) for item in value)
    if not is_dataclass(value):
        return value
    added_later = getattr(value, "ADDED", ())
    canonical = {}
    for declared in fields(value):
        field_value = getattr(value, declared.name)
        if declared.name not in added_later or field_value != declared.default:
            canonical[key_name(declared.name)] = canonical_value(field_value)
    return canonical
