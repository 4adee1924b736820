"""What servers.toml, bundles.toml, routes.toml and policy.toml may say."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from bundle_router.core.catalog import ServerAuth, Transport
from bundle_router.core.config.written.forms import (
    BundleId,
    BundleIds,
    Effects,
    EnvName,
    EnvNames,
    Features,
    Form,
    Line,
    Names,
    Positive,
    ServerName,
    Word,
    Words,
    needs_one_of,
)
from bundle_router.core.models import BinaryRule, Mode, Trust

# --- servers.toml --------------------------------------------------------------------------------------------------


class WrittenReuse(Form):
    tools: Annotated[Words, Field(min_length=1)] = Field(
        default=["*"],
        description="Of these of its tools (names or globs), as far as they only read. The default is all.",
    )
    ttl_s: float = Field(ge=0, le=86_400, allow_inf_nan=False, description="Seconds a result is used again. 0: never.")
    across_runs: bool = Field(
        default=False,
        description="true shares results among the runs of a principal: for servers that keep nothing between calls.",
    )


class WrittenServer(Form):
    transport: Transport = Field(
        default="streamable-http",
        description="How to reach it: over HTTP, as a child process (stdio), over the old HTTP+SSE, or local: "
        "tools that come with the router.",
    )
    trust: Trust = Field(
        default="untrusted",
        description="'trusted' only if you would run this server's text past your agent unread. Untrusted servers are "
        "reached through meta-tools, and bundles name their tools one by one.",
    )
    enabled: bool = Field(default=True, description="false takes all its tools away without deleting the entry.")
    url: Line | None = Field(default=None, description="Where it listens. https, or http on this machine only.")
    command: Line | None = Field(default=None, description="stdio: the program to start.")
    args: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=200)] | None = Field(
        default=None, description="stdio: its arguments. Secrets do not belong here: other users can read them."
    )
    headers: dict[Word, Line] | None = Field(
        default=None, description="HTTP headers. Secrets only as ${ENV_NAME}: 'Bearer ${GITHUB_TOKEN}'."
    )
    auth: ServerAuth | None = Field(
        default=None,
        description="'oauth': it hands out tokens of its own, after `bundle-router login NAME`. Instead of a header.",
    )
    client_id: Word | None = Field(
        default=None, description="auth = 'oauth': our id there, where it does not register clients by itself."
    )
    env: dict[EnvName, Annotated[str, Field(max_length=4096)]] | None = Field(
        default=None, description="stdio: its environment. Secrets only as ${ENV_NAME}."
    )
    include: Annotated[Words, Field(min_length=1)] | None = Field(
        default=None, description="Only these of its tools exist for us (names or globs)."
    )
    exclude: Words = Field(default_factory=list, description="These of its tools do not exist for us (names or globs).")
    legacy: bool = Field(default=False, description="Must be true for transport 'sse', which MCP has given up.")
    volatile: Words = Field(
        default_factory=list, description="Card fields that change at every start and are left out of pins."
    )
    ttl_s: float | None = Field(
        default=None, ge=0, le=86_400, allow_inf_nan=False, description="Seconds its tool list is kept."
    )
    timeout_s: float | None = Field(
        default=None, gt=0, le=3600, allow_inf_nan=False, description="Seconds one call may take."
    )
    files: Line | None = Field(
        default=None,
        description="stdio: a folder it may read, relative to the workspace. Artifacts that are given to it as paths "
        "are put there for the call. Absent: a temporary folder.",
    )
    reuse: Annotated[list[WrittenReuse], Field(max_length=100)] = Field(
        default_factory=list,
        description="Trusted servers: results used again for the same arguments. The first row that fits counts.",
    )
    pass_through: Features = Field(
        default_factory=list,
        description="What agents get of it unaltered at the MCP endpoint, besides its tools: its resources, prompts "
        "and completion; results as they came (media and all, with progress); log lines; and its questions to the "
        "agent's client (input). Trusted servers only.",
    )
    prefix: bool = Field(
        default=True,
        description="false exposes its tools and prompts under their own names, without the server's before them. For "
        "one server at most.",
    )


class ServersFile(Form):
    """Where tools come from."""

    servers: dict[ServerName, WrittenServer] = Field(default_factory=dict, description="One table per server.")


# --- bundles.toml --------------------------------------------------------------------------------------------------


class WrittenRequires(Form):
    env: EnvNames = Field(default_factory=list, description="Environment variables that must be set.")
    binary: Words = Field(default_factory=list, description="Programs that must be on the path.")


class WrittenBundle(Form):
    model_config = ConfigDict(
        json_schema_extra={**needs_one_of("tools", "bundles"), "dependencies": {"tools": ["effects"]}}
    )

    description: Line = Field(
        description="In your words: what it is for. The router's model reads this, and only this."
    )
    avoid: Annotated[str, Field(max_length=2000)] = Field(default="", description="When not to pick it.")
    examples: Annotated[list[Line], Field(max_length=100)] = Field(
        default_factory=list, description="Intents it is right for, as people write them."
    )
    tools: Words = Field(
        default_factory=list, description="'server.tool', or a glob 'server.get_*' where the server is trusted."
    )
    bundles: BundleIds = Field(
        default_factory=list, description="Bundles this one is made of; their tools come with it."
    )
    mode: Mode | None = Field(
        default=None,
        description="How agents see its tools: each one (direct, the default), by name only until asked for "
        "(deferred), or behind meta-tools (meta, which untrusted servers need and get by default).",
    )
    effects: Effects | None = Field(
        default=None,
        description="What its tools can do. Policies rest on it, so a bundle with tools of its own must say it.",
    )
    requires: WrittenRequires = Field(
        default_factory=WrittenRequires, description="What must be present on this machine, or the bundle is left out."
    )
    companions: Words = Field(
        default_factory=list, description="Tools ('server.tool') that must come along to make sense."
    )
    always: bool = Field(default=False, description="true: every step that policy permits it to gets it.")
    selectable: bool = Field(default=True, description="false: search and the model may not pick it; routes may.")
    skill: Annotated[str, Field(max_length=400)] | None = Field(
        default=None, description="A SKILL.md under bundles/ whose text goes with it."
    )
    max_tokens: Positive | None = Field(
        default=None,
        description="Tokens of definitions it shows at most: its companions, and what search ranks best for the step. "
        "The rest is deferred. `check` warns when not all of them fit.",
    )
    aliases: BundleIds = Field(default_factory=list, description="Ids it had before.")
    enabled: bool = Field(default=True, description="false takes it out of use without deleting the entry.")


class BundlesFile(Form):
    """Named sets of tools."""

    bundles: dict[BundleId, WrittenBundle] = Field(default_factory=dict, description="One table per bundle.")


# --- routes.toml ---------------------------------------------------------------------------------------------------


class _Addressed(Form):
    name: Word = Field(description="What the log calls this row. Unique in the file.")
    workflow: Names | None = Field(default=None, description="Names or globs; leave out for any.")
    role: Names | None = Field(default=None, description="Names or globs; leave out for any.")
    step: Names | None = Field(default=None, description="Names or globs; leave out for any.")


class WrittenRoute(_Addressed):
    model_config = ConfigDict(json_schema_extra=needs_one_of("bundles", "ask"))

    bundles: Words | None = Field(default=None, description="What the step gets, in this order. [] gives it nothing.")
    ask: Annotated[Words, Field(min_length=1)] | None = Field(
        default=None, description="Bundles (ids or globs) that search and the model may add to those."
    )


class RoutesFile(Form):
    """Which step gets which bundles. The first row that matches wins."""

    routes: list[WrittenRoute] = Field(default_factory=list, description="Rows in order.")


# --- policy.toml ---------------------------------------------------------------------------------------------------


class WrittenPolicy(_Addressed):
    model_config = ConfigDict(json_schema_extra=needs_one_of("allow", "deny", "min_trust", "effects"))

    allow: Words | None = Field(
        default=None,
        json_schema_extra={"minItems": 1},
        description="What may be seen at most: 'bundle:docs.*', 'tool:docs.fetch'. Absent: only narrows.",
    )
    deny: Words = Field(
        default_factory=list, description="What may never be seen. Deny beats allow, whatever the order."
    )
    min_trust: Trust | None = Field(default=None, description="'trusted' keeps tools of untrusted servers out.")
    effects: Effects | None = Field(default=None, description="Only bundles whose effects are all in this list.")


class WrittenDocs(Form):
    hosts: Words = Field(default_factory=list, description="Hosts docs.fetch may read from. Nothing else is reachable.")


class WrittenRepo(Form):
    hard_links: Literal["allow", "refuse"] = Field(
        default="allow", description="'refuse': files with more than one name are not read (they may live outside)."
    )


class PolicyFile(Form):
    """Who may see what. All rows that match apply: denials unite, allowances intersect."""

    policies: list[WrittenPolicy] = Field(default_factory=list, description="Rows; order does not matter.")
    docs: WrittenDocs = Field(default=WrittenDocs(), description="Limits of the docs tools.")
    repo: WrittenRepo = Field(default=WrittenRepo(), description="Limits of the repo tools.")
    binaries: list[BinaryRule] = Field(default_factory=list, description="Programs workspace.exec may start, and how.")
