"""The declarations of servers.toml, bundles.toml, routes.toml and policy.toml: servers, bundles,
routes, policies.

Each value is its table, resolved: lists are tuples, tables of strings are sorted pairs. Fields
without a `key(...)` follow from the others (see `core.config`).

Annotations are values here (no `from __future__`): forms are made from them at each start, and
evaluating text costs more.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field

from bundle_router.core.catalog.config_keys import (
    REQUIRED,
    BundleId,
    BundleIds,
    Effects,
    EnvName,
    EnvNames,
    FormField,
    Line,
    ServerName,
    TaintName,
    Word,
    Words,
    key,
    key_name,
    needs_one_of,
    without_repetition,
)
from bundle_router.core.catalog.step_address import AddressedRow
from bundle_router.core.values import (
    MODES,
    BinaryRule,
    Effect,
    Mode,
    Sink,
    TaintSort,
    Trust,
)
from bundle_router.core.values.patterns import is_selected, matches

Era = Literal["auto", "handshake", "modern"]
ServerAuth = Literal["oauth"]
Feature = Literal["resources", "prompts", "completion", "results", "logging", "input"]
"""What a trusted server may pass on to agents besides its tools (see
`bundle_router.engine.relay`).
"""
_Features = Annotated[list[Feature], Field(max_length=6), AfterValidator(without_repetition)]
_Sinks = Annotated[list[Sink], Field(max_length=1), AfterValidator(without_repetition)]
_Text = Annotated[str, Field(max_length=4096)]

# --- transports -----------------------------------------------------------------------------------

Transport = Literal["streamable-http", "stdio", "sse", "local"]


@dataclass(frozen=True, slots=True)
class TransportTraits:
    """The traits of a transport.

    `takes` are the keys of a server's entry that belong to it; it `needs` the first. `speaks_http`
    and `starts_process` say what is behind it; `here` whether that can read this machine's files;
    `legacy` whether MCP has dropped it. `list_lifetime_s` is how long a list of tools holds unless
    the server says otherwise.
    """

    takes: tuple[str, ...] = ()
    speaks_http: bool = False
    starts_process: bool = False
    here: bool = False
    legacy: bool = False
    list_lifetime_s: float = 600.0

    @property
    def needs(self) -> str | None:
        return self.takes[0] if self.takes else None

    @property
    def is_remote(self) -> bool:
        """Whether there is a server at all, which speaks MCP: the tools of `local` come with the
        router.
        """
        return self.speaks_http or self.starts_process


_HTTP_KEYS: Final = ("url", "headers", "auth", "client_id")
_STDIO_KEYS: Final = ("command", "args", "env", "files", "shared")
TRANSPORTS: Final[Mapping[Transport, TransportTraits]] = {
    "streamable-http": TransportTraits(_HTTP_KEYS, speaks_http=True),
    "sse": TransportTraits(_HTTP_KEYS, speaks_http=True, legacy=True),
    # Short: a program on this machine is one that may be in the writing.
    "stdio": TransportTraits(_STDIO_KEYS, starts_process=True, here=True, list_lifetime_s=60.0),
    "local": TransportTraits(here=True),
}
"""The transports, those of a kind together.

Code asks a transport's row for its traits, never for its name.

A new transport is a row here, and a function in `bundle_router.adapters.mcp.wires` that opens its
connection. A key of its own that identifies the server also belongs to
`core.servers.pins.reviewed.Origin`: else a pin would hold for another.
"""
TRANSPORT_KEYS: Final = tuple(
    dict.fromkeys(key for traits in TRANSPORTS.values() for key in traits.takes)
)
"""Every key that only some transports have."""

# --- conditions on arguments ----------------------------------------------------------------------

Scalar = str | bool | int | float
"""A value that arguments are compared with."""
_Number = Annotated[int | float, Field(allow_inf_nan=False)]
_Scalar = Annotated[str, Field(max_length=2000)] | bool | _Number
_OPERATORS: Final = ("is", "in", "at_most", "at_least", "below", "host_in", "domain_in")


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on the arguments of a call: where it looks, and one operator.

    What it comes to is said by `core.catalog.conditions`.

    >>> Condition("/amount", at_most=500).words
    'at_most 500'
    """

    JSON_SCHEMA: ClassVar[Mapping[str, Any]] = {
        "oneOf": [{"required": [operator]} for operator in _OPERATORS]
    }

    at: str = key(
        REQUIRED,
        "Where it looks, as a JSON Pointer: '/amount', '/items/0/price'. '*' stands for every item"
        " of a list: '/items/*/price'.",
        Word,
    )
    is_: Annotated[Scalar | None, Field(alias="is")] = key(
        None, "The value is this text, number or truth value.", _Scalar
    )
    in_: Annotated[tuple[Scalar, ...] | None, Field(alias="in")] = key(
        None,
        "The value is one of these.",
        Annotated[list[_Scalar], Field(min_length=1, max_length=1000)],
    )
    at_most: int | float | None = key(None, "The value is a number, and at most this.", _Number)
    at_least: int | float | None = key(None, "The value is a number, and at least this.", _Number)
    below: str | None = key(
        None,
        "The value is a relative path below this folder, by its names: 'docs'. Links are not"
        " followed.",
        Word,
    )
    host_in: tuple[str, ...] | None = key(
        None,
        "The value is an https URL of one of these hosts: 'api.example.org', or"
        " 'api.example.org:8443' for another port than 443.",
        Words,
        min_length=1,
    )
    domain_in: tuple[str, ...] | None = key(
        None,
        "The value is a bare mail address in one of these domains.",
        Words,
        min_length=1,
    )

    ADDED: ClassVar[tuple[str, ...]] = (
        "is_",
        "in_",
        "at_most",
        "at_least",
        "below",
        "host_in",
        "domain_in",
    )

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that it is written with: one, where it is valid."""
        return tuple(
            [
                key_name(field.name)
                for field in fields(self)
                if field.name != "at" and getattr(self, field.name) is not None
            ]
        )

    @property
    def operator(self) -> str:
        """The name of its operator."""
        return self.operators[0]

    @property
    def operand(self) -> Any:
        """The value that its operator compares with."""
        operator = self.operator
        return getattr(self, f"{operator}_" if operator in ("is", "in") else operator)

    @property
    def words(self) -> str:
        """Its operator and operand, as they are written: `at_most 500`."""
        return f"{self.operator} {json.dumps(self.operand, ensure_ascii=False)}"


# --- servers.toml ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reuse:
    """Results of these tools of a server (names or globs) may be used again for `ttl_s` seconds:
    within their run or, by the same principal, `across_runs`.
    """

    tools: tuple[str, ...] = key(
        ("*",),
        "The tools whose results are used again (names or globs), as far as they only read. By"
        " default all.",
        Words,
        min_length=1,
    )
    ttl_s: float = key(
        0.0, "Seconds that a result may be used again. 0: never.", absent=..., ge=0, le=86_400
    )
    across_runs: bool = key(
        False,
        "true: the runs of a principal share results. For servers that keep no state between"
        " calls.",
    )


@dataclass(frozen=True, slots=True)
class TaintStatement:
    """What calls of some tools of a server bring into the run, and where their arguments go.

    All statements that match a call unite. One replaces what would be inferred of its tools: that
    an untrusted server returns `untrusted`, and that it, and a bundle with the effect `network`,
    sends `outside` (see `core.catalog.statements`).
    """

    JSON_SCHEMA: ClassVar[Mapping[str, Any]] = needs_one_of("returns", "sends")
    ADDED: ClassVar[tuple[str, ...]] = ("when",)

    tools: tuple[str, ...] = key(
        ("*",), "The tools that it is about (names or globs). By default all.", Words, min_length=1
    )
    when: tuple[Condition, ...] = key(
        (),
        "Conditions on the arguments, which must all hold. What can't be decided counts as if they"
        " did. With them the statement adds to what is inferred, and replaces nothing.",
        list[Condition],
        max_length=20,
    )
    returns: tuple[str, ...] | None = key(
        None,
        "The taints of what they return: private, untrusted, or one of [taints] in policy.toml."
        " []: none. Absent: nothing is said, so it is inferred.",
        Words,
    )
    sends: tuple[Sink, ...] | None = key(
        None,
        "Where their arguments go: outside. []: nowhere. Absent: nothing is said, so it is"
        " inferred.",
        _Sinks,
    )


@dataclass(frozen=True, slots=True)
class Server:
    """One entry of `servers.toml`."""

    name: str
    """Its key under `[servers]`; the first part of its tools' canonical names."""
    transport: Transport = key(
        "streamable-http",
        "How to reach it: over HTTP, as a child process (stdio), over the old HTTP+SSE, or not at"
        " all (local: tools that come with the router).",
    )
    trust: Trust = key(
        "untrusted",
        "'trusted' only if you would run this server's text past your agent unread. Untrusted"
        " servers are reached through meta-tools, and bundles name their tools one by one.",
    )
    enabled: bool = key(True, "false: none of its tools can be used. The entry stays.")
    url: str | None = key(None, "Its address: https, or http on this machine only.", Line)
    command: str | None = key(None, "stdio: the program to start.", Line)
    args: tuple[str, ...] = key(
        (),
        "stdio: the program's arguments. No secrets: other users can read them.",
        list[_Text],
        max_length=200,
    )
    headers: tuple[tuple[str, str], ...] = key(
        (), "HTTP headers. Secrets only as ${ENV_NAME}: 'Bearer ${GITHUB_TOKEN}'.", dict[Word, Line]
    )
    auth: ServerAuth | None = key(
        None,
        "'oauth', instead of a header: it issues tokens, once `bundle-router login NAME` was run.",
    )
    client_id: str | None = key(
        None, "auth = 'oauth': our client id, where clients are not registered automatically.", Word
    )
    env: tuple[tuple[str, str], ...] = key(
        (), "stdio: the program's environment. Secrets only as ${ENV_NAME}.", dict[EnvName, _Text]
    )
    include: tuple[str, ...] | None = key(
        None, "Only these of its tools are used (names or globs).", Words, min_length=1
    )
    exclude: tuple[str, ...] = key((), "These of its tools are not used (names or globs).", Words)
    legacy: bool = key(False, "Must be true for transport 'sse', which MCP has dropped.")
    era: Era = key(
        "auto",
        "The version of MCP to speak with it. auto: the newest it knows, but at most 2025-11-25 for"
        " a client of that version that it may question in the middle of a call (`input` in"
        " pass_through). handshake: at most 2025-11-25. modern: 2026-07-28 or later.",
    )
    volatile: tuple[str, ...] = key(
        (), "Fields of definitions that change at every start, left out of pins.", Words
    )
    idempotent: tuple[str, ...] = key(
        (),
        "Tools (names or globs) that may be called again with the same arguments: a call with a key"
        " that began and has no recorded end is then made again. Tools that only read, and a"
        " trusted server's `idempotentHint`, need no entry.",
        Words,
    )
    ttl_s: float | None = key(None, "Seconds that its list of tools is kept.", ge=0, le=86_400)
    timeout_s: float | None = key(
        None, "Seconds one call may wait for its turn and its answer.", gt=0, le=3600
    )
    connect_s: float | None = key(
        None,
        "Seconds that connecting may take, which is also the start of its program: more where a"
        " launcher downloads it first. Absent: 30.",
        gt=0,
        le=3600,
    )
    reuse: tuple[Reuse, ...] = key(
        (),
        "Trusted servers: results that are used again for the same arguments. The first matching"
        " row counts.",
        list[Reuse],
        max_length=100,
    )
    files: str | None = key(
        None,
        "stdio: a folder it may read, relative to the workspace. Artifacts that it gets as paths"
        " are written there for the call. Absent: a temporary folder.",
        Line,
    )
    shared: int = key(
        0,
        "stdio: the number of processes that all runs share, for a server that keeps no state of"
        " its callers. 0: every run has its own process.",
        ge=0,
        le=64,
    )
    pass_through: tuple[Feature, ...] = key(
        (),
        "Trusted servers: what the MCP endpoint passes on unchanged besides tools. results: as they"
        " came, with media and progress. logging: log lines. input: its questions to the agent's"
        " client.",
        _Features,
    )
    prefix: bool = key(
        True,
        "false: its tools and prompts are shown without the server's name before theirs. For one"
        " server at most.",
    )
    results: Literal["framed", "plain"] | None = key(
        None,
        "framed: what its tools answer stands in a frame that says that it is data from outside."
        " Absent: framed where the server is untrusted, else plain.",
    )
    taints: tuple[TaintStatement, ...] = key(
        (),
        "What its tools read and where they send, for policy rows that name taints or sinks. All"
        " rows that match a call unite.",
        list[TaintStatement],
        max_length=100,
    )
    env_names: tuple[str, ...] = ()
    """Environment variables that the headers and env refer to; their values are secrets and are
    redacted everywhere.
    """

    ADDED: ClassVar[tuple[str, ...]] = (
        "connect_s",
        "era",
        "idempotent",
        "results",
        "shared",
        "taints",
    )

    @property
    def traits(self) -> TransportTraits:
        """The traits of its transport."""
        return TRANSPORTS[self.transport]

    @property
    def frames_results(self) -> bool:
        """Whether the model sees the server's results in a frame."""
        if self.results is not None:
            return self.results == "framed"
        return self.trust == "untrusted"

    def includes(self, tool: str) -> bool:
        """Return whether the server's own lists select the tool."""
        return is_selected(tool, self.include, self.exclude)


@dataclass(frozen=True, slots=True)
class ServersFile:
    """Where tools come from."""

    servers: dict[str, Server] = key({}, "One table per server.", dict[ServerName, Server])


# --- bundles.toml ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bundle:
    """One resolved bundle: a named set of tools.

    The `tools` of a resolved one are canonical names (`server.tool`), sorted and without
    repetition: its own and those of the bundles it is composed of. Its `companions` are among them.

    >>> from bundle_router.testing import Bundle, small_catalog
    >>> notes = Bundle("notes", "Notes on the work.", ("notes.add",), effects=("write",))
    >>> small_catalog({"notes": notes}).bundles["notes"].effects
    ('write',)
    """

    TABLES: ClassVar[Mapping[str, str]] = {
        "requires": "What must be present on this machine, or the bundle is left out."
    }
    JSON_SCHEMA: ClassVar[Mapping[str, object]] = {
        **needs_one_of("tools", "bundles"),
        "dependencies": {"tools": ["effects"]},
    }
    ADDED: ClassVar[tuple[str, ...]] = ("words",)

    id: str
    """Its key under `[bundles]`, by which routes and policies name it."""
    description: str = key(
        REQUIRED,
        "What it is for, in your words. The router's model reads this, and only this.",
        Line,
    )
    tools: tuple[str, ...] = key(
        (), "'server.tool', or a glob 'server.get_*' where the server is trusted.", Words
    )
    avoid: str = key("", "When not to pick it.", max_length=2000)
    examples: tuple[str, ...] = key(
        (), "Requests it is right for, as people write them.", list[Line], max_length=100
    )
    words: tuple[str, ...] = key(
        (),
        "Further words by which search finds it, as in your team's other languages: 'Rechnung',"
        " 'facture'.",
        Words,
    )
    bundles: tuple[str, ...] = key(
        (), "Bundles that it is composed of; their tools come with it.", BundleIds
    )
    patterns: tuple[str, ...] = ()
    """Globs over servers whose tools are not known yet."""
    servers: tuple[str, ...] = ()
    """The servers of its tools, by name."""
    mode: Mode = key(
        "direct",
        "How agents see its tools:"
        f" {'; '.join(f'{traits.meaning} ({name})' for name, traits in MODES.items())}.",
        absent=None,
    )
    effects: tuple[Effect, ...] = key(
        (),
        "What its tools can do. Policies depend on it, so a bundle that names tools must state it.",
        Effects,
        absent=None,
    )
    requires_env: tuple[str, ...] = key(
        (), "Environment variables that must be set.", EnvNames, table="requires"
    )
    requires_binary: tuple[str, ...] = key(
        (), "Programs that must be on the path.", Words, table="requires"
    )
    companions: tuple[str, ...] = key(
        (), "Tools ('server.tool') that are shown first, and with any other.", Words
    )
    always: bool = key(False, "true: every step gets it, if policy permits.")
    selectable: bool = key(True, "false: search and the model may not pick it; routes may.")
    skill: str | None = key(
        None, "A SKILL.md under bundles/, whose text agents get with the bundle.", max_length=400
    )
    max_tokens: int | None = key(
        None,
        "Most tokens of definitions to show: its companions, and the tools that search ranks best"
        " for the step. The rest is deferred. `check` warns if not all of them fit.",
        ge=1,
        le=1_000_000_000,
    )
    aliases: tuple[str, ...] = key((), "Its former ids.", BundleIds)
    enabled: bool = key(True, "false: it is not used. The entry stays.")
    trust: Trust = "trusted"
    """The lowest trust of the servers of its tools."""


@dataclass(frozen=True, slots=True)
class BundlesFile:
    """Named sets of tools."""

    bundles: dict[str, Bundle] = key({}, "One table per bundle.", dict[BundleId, Bundle])


# --- routes.toml ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route(AddressedRow):
    """One row of the mapping.

    Each part of its address is a tuple of names or globs; empty means any. `ask` is None, or the
    candidates (globs over bundle ids) that search and the model may add.

    >>> from bundle_router import Step
    >>> from bundle_router.testing import Route, fake_router, small_catalog
    >>> catalog = small_catalog({"notes": ["notes.add"]}, routes=[Route("all", bundles=("notes",))])
    >>> with fake_router(catalog) as router:
    ...     decision = router.route_sync(Step(run_id="r-1", workflow="w", role="r", step="s"))
    >>> [bundle.id for bundle in decision.bundles]
    ['notes']
    """

    JSON_SCHEMA: ClassVar[Mapping[str, object]] = needs_one_of("bundles", "ask")

    bundles: tuple[str, ...] = key(
        (), "The step's bundles, in this order. [] gives it none.", Words, absent=None
    )
    ask: tuple[str, ...] | None = key(
        None,
        "Bundles (ids or globs) that search and the model may add to those.",
        Words,
        min_length=1,
    )


@dataclass(frozen=True, slots=True)
class RoutesFile:
    """Which step gets which bundles. The first row that matches wins."""

    routes: tuple[Route, ...] = key((), "Rows in order.", list[Route])


# --- policy.toml ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Policy(AddressedRow):
    """One policy row. All rows that match a step apply: denials unite, allowances intersect.

    `allow=None`: the row grants nothing and only narrows. `effects=None`: it does not look at
    effects. One with `seen` never grants.

    >>> from bundle_router import Step
    >>> from bundle_router.testing import Policy, Route, fake_router, small_catalog
    >>> catalog = small_catalog(
    ...     {"notes": ["notes.add"]},
    ...     routes=[Route("all", bundles=("notes",))],
    ...     policies=[Policy("planners write", role=("planner",), allow=("notes",))],
    ... )
    >>> with fake_router(catalog) as router:
    ...     decision = router.route_sync(Step(run_id="r-1", workflow="w", role="tester", step="s"))
    >>> [(row.id, row.code) for row in decision.left_out]
    [('notes', 'not_allowed')]
    """

    JSON_SCHEMA: ClassVar[Mapping[str, object]] = needs_one_of(
        "allow", "deny", "min_trust", "effects"
    )

    allow: tuple[str, ...] | None = key(
        None,
        "The most that may be seen: 'bundle:docs.*' (or 'docs.*'), 'tool:docs.fetch',"
        " 'sends:outside' (every tool that sends there). Absent: the row only narrows.",
        Words,
        json_schema_extra={"minItems": 1},
    )
    deny: tuple[str, ...] = key(
        (),
        "What may never be seen, by patterns as in `allow`. Deny beats allow, whatever the order.",
        Words,
    )
    min_trust: Trust | None = key(None, "'trusted' keeps tools of untrusted servers out.")
    effects: tuple[Effect, ...] | None = key(
        None, "Only bundles whose effects are all in this list.", Effects
    )
    untrusted_in_code: bool | None = key(
        None,
        'Whether programs (`mode = "code"`) may call untrusted servers\' tools: if one row says so,'
        " and none no.",
    )
    seen: tuple[str, ...] = key(
        (),
        "Taints: private, untrusted, or of [taints]. The row counts only once the step's branch has"
        " seen all of them, and then it only narrows: its `allow` grants nothing.",
        Words,
        absent=None,
        min_length=1,
    )
    enforce: bool = key(
        True,
        "false, for a row with `seen`: it refuses nothing, and records say what it would have"
        " refused (`would`).",
    )

    ADDED: ClassVar[tuple[str, ...]] = (
        *AddressedRow.ADDED,
        "untrusted_in_code",
        "seen",
        "enforce",
    )


FieldKind = Literal["integer", "number", "date", "boolean", "identifier"]
"""What a field of a form may hold, besides one of its own words."""
_Choice = FieldKind | Annotated[list[Word], Field(min_length=1, max_length=100)]


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A form for checked answers of sub-agents: fields that hold no free text.

    What an answer in this form has seen of `clears` is not passed to the parent.
    """

    name: str
    """Its key under `[forms]`."""
    fields: tuple[tuple[str, FieldKind | tuple[str, ...]], ...] = key(
        (),
        "What it may have: a list of words, or integer, number, date, boolean, or identifier"
        " (letters, digits, '-', '_' and '.', at most 64). A field may be left out.",
        dict[FormField, _Choice],
        absent=...,
        min_length=1,
        max_length=32,
    )
    clears: tuple[str, ...] = key(
        (), "The taints that do not pass through it, with the sorts of them.", Words
    )

    def to_json(self) -> dict[str, object]:
        """Return the form as a catalog has it: each field with its kind, or with its words."""
        rows: list[dict[str, object]] = []
        for name, choice in self.fields:
            if isinstance(choice, str):
                rows.append({"name": name, "kind": choice})
            else:
                rows.append({"name": name, "words": list(choice)})
        return {"name": self.name, "fields": rows, "clears": list(self.clears)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "AnswerForm":
        """Return the form that `to_json` wrote."""
        fields = [
            (row["name"], row["kind"] if "kind" in row else tuple(row["words"]))
            for row in value["fields"]
        ]
        return cls(value["name"], tuple(fields), tuple(value["clears"]))


@dataclass(frozen=True, slots=True)
class StandingBounds:
    """The most that one grant in advance may cover: the table `standing` of an approvals row."""

    calls: int = key(1, "Calls that it may cover.", absent=..., ge=1, le=10_000)
    within_s: float = key(3_600.0, "Seconds that it may last.", absent=..., gt=0, le=30 * 86_400)
    where: tuple[Condition, ...] = key(
        (), "Conditions that it must keep to, beside its own.", list[Condition], max_length=20
    )


@dataclass(frozen=True, slots=True)
class ApprovalRow(AddressedRow):
    """One row of calls that wait for somebody's word.

    All rows that cover a call have to be answered. What makes it an exception is in `unless`.
    """

    calls: tuple[str, ...] = key(
        (),
        "The calls that wait: 'tool:bank.transfer', 'bundle:bank.*', or 'effect:write' for tools"
        " that every bundle with them says can write.",
        Words,
        absent=...,
        min_length=1,
    )
    unless: tuple[Condition, ...] = key(
        (),
        "The calls that do not wait: those for which all of these hold. What can't be decided"
        " waits.",
        list[Condition],
        max_length=20,
    )
    approvers: tuple[str, ...] | None = key(
        None,
        "Who may answer: 'token:NAME', 'role:ROLE' of the token file, 'self' (the step's own"
        " principal), 'client' (who sits at the agent's client). Absent: any token with the scope"
        " `approve`.",
        Words,
        min_length=1,
    )
    persons: int = key(1, "How many of them have to grant it.", ge=1, le=5)
    answer_within_s: float = key(
        86_400.0, "Seconds after which an unanswered question has expired.", gt=0, le=90 * 86_400
    )
    use_within_s: float = key(
        3_600.0, "Seconds after which an unused grant has expired.", gt=0, le=90 * 86_400
    )
    standing: StandingBounds | None = key(
        None, "The most that a grant in advance may cover. Absent: there is none."
    )
    message: str = key("", "What whoever answers should look at.", max_length=2000)
    enforce: bool = key(
        True, "false: calls do not wait; their records say that this row would have held them."
    )

    def covers_tool(self, tool: str, bundles: Sequence[Bundle]) -> bool:
        """Return whether the row is about a tool, which these bundles have."""
        return any(_is_about(pattern, tool, bundles) for pattern in self.calls)


def _is_about(pattern: str, tool: str, bundles: Sequence[Bundle]) -> bool:
    """Return whether a pattern of calls covers a tool, which these bundles have."""
    kind, _, name = pattern.partition(":")
    if kind == "effect":
        return _may_all(name, bundles)
    names = [tool] if kind == "tool" else [bundle.id for bundle in bundles]
    return any(matches(name, one) for one in names)


def _may_all(effect: str, bundles: Sequence[Bundle]) -> bool:
    """Return whether every bundle declares the effect: a tool has only what all of them have."""
    return bool(bundles) and all(effect in bundle.effects for bundle in bundles)


@dataclass(frozen=True, slots=True)
class DocsLimits:
    """The table `[docs]`."""

    hosts: tuple[str, ...] = key(
        (), "Hosts docs.fetch may read from. Nothing else is reachable.", Words
    )


@dataclass(frozen=True, slots=True)
class RepoLimits:
    """The table `[repo]`."""

    hard_links: Literal["allow", "refuse"] = key(
        "allow", "'refuse': files with hard links are not read (another name may be outside)."
    )
    credentials: Literal["hide", "show"] = key(
        "hide",
        "'show': the repo tools show files that hold credentials, and workspace.exec reads them.",
    )
    tokens: Literal["redact", "show"] = key(
        "redact",
        "'show': tokens and passwords stay in what repo, docs and workspace tools return.",
    )

    ADDED: ClassVar[tuple[str, ...]] = ("credentials", "tokens")


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """Who may see what. All rows that match apply: denials unite, allowances intersect."""

    policies: tuple[Policy, ...] = key((), "Rows; order does not matter.", list[Policy])
    taints: dict[str, TaintSort] = key(
        {},
        "Further taints, each as a sort of a given one: customer = 'private'. At most 14.",
        dict[TaintName, TaintSort],
        absent=None,
    )
    approvals: tuple[ApprovalRow, ...] = key(
        (), "Calls that wait for somebody's word. Rows; order does not matter.", list[ApprovalRow]
    )
    forms: dict[str, AnswerForm] = key(
        {},
        "Forms in which a sub-agent's checked answer is handed back (`Router.hand_back`).",
        dict[TaintName, AnswerForm],
        absent=None,
    )
    docs: DocsLimits = key(DocsLimits(), "Limits of the docs tools.", absent=None)
    repo: RepoLimits = key(RepoLimits(), "Limits of the repo tools.", absent=None)
    binaries: tuple[BinaryRule, ...] = key(
        (), "Programs that workspace.exec may start, and how.", list[BinaryRule]
    )
