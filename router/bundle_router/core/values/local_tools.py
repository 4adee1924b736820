"""First-party tools: what they are, what they take and return, and what the config permits them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator

from bundle_router.core.values.steps import Frozen


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the model.

    With a `uri` it is the text of a resource in the result; `uri` and `mime_type` are then the
    tool's claims.

    >>> from bundle_router.tool import Text
    >>> Text("42 tests passed").text
    '42 tests passed'
    """

    text: str
    """The text."""
    uri: str = ""
    """The resource's address; empty: plain text."""
    mime_type: str = ""
    """The resource's type."""


@dataclass(frozen=True, slots=True)
class Data:
    """A JSON value for the model.

    >>> from bundle_router.tool import Data
    >>> Data({"open": [7, 12]}).value
    {'open': [7, 12]}
    """

    value: object
    """Objects, arrays, numbers, strings, booleans and null, at any depth."""


@dataclass(frozen=True, slots=True)
class Media:
    """Bytes that become an artifact.

    >>> from bundle_router.tool import Media
    >>> Media(b"GIF89a", mime_type="image/gif", name="chart.gif").name
    'chart.gif'
    """

    data: bytes
    """The bytes."""
    mime_type: str = ""
    """The tool's claim: recorded, not believed."""
    name: str = ""
    """A name for people."""


Block = Text | Data | Media


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a local tool returns.

    >>> from bundle_router.tool import Text, ToolOutput
    >>> ToolOutput((Text("2 tests failed"),), failed=True).failed
    True
    """

    blocks: tuple[Block, ...]
    """The contents in their order."""
    failed: bool = False
    """Whether it is an error that the agent should see (a failing test run, say)."""


class BinaryOption(Frozen):
    """One option that an allow-listed binary may get: `name` alone, or with a value that fully
    matches `value`.

    After the flag `--`, where a form has it, only positionals may follow.
    """

    name: str = Field(
        pattern=r"^--?[A-Za-z0-9][A-Za-z0-9_.-]*$|^--$",
        max_length=100,
        description="As written: '-k', '--tb'.",
    )
    value: str | None = Field(
        default=None,
        max_length=1000,
        description="An expression (google-re2) for all of its value. Absent: a flag.",
    )
    joined: bool = Field(
        default=True, description="The value may come as --name=value (-nvalue for one letter)."
    )
    separate: bool = Field(
        default=True, description="The value may come as the next argument; never with a '-' first."
    )
    path: bool = Field(
        default=False, description="true: the value must be a path inside the workspace."
    )


class BinaryForm(Frozen):
    """One permitted shape of a command line: fixed leading words, then options and positionals in
    any order.

    Arguments that start with `-` are only ever options.
    """

    words: tuple[str, ...] = Field(
        default=(),
        max_length=50,
        description="Words that come first, in this order: ['-m', 'pytest'].",
    )
    """`["status"]`, say; empty where any command line of these options will do."""
    options: tuple[BinaryOption, ...] = Field(
        default=(), max_length=200, description="Options that may follow, in any order."
    )
    positionals: str | None = Field(
        default=None,
        max_length=1000,
        description=(
            "An expression (google-re2) for all of each remaining argument. Absent: none may"
            " follow."
        ),
    )
    max_positionals: int = Field(default=0, ge=0, le=1000, description="Most remaining arguments.")
    paths: bool = Field(
        default=True, description="Keeps remaining arguments (up to '::') inside the workspace."
    )
    """What follows `::` is no path: pytest's ids of tests (`tests/test_a.py::test_b`)."""
    at_files: bool = Field(
        default=False, description="true permits @file, which holds further arguments."
    )
    """Without it, arguments that start with `@` are refused."""


class BinaryRule(Frozen):
    """A binary that `workspace.exec` may start, its permitted command lines, and its limits."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$",
        description="The name that agents use. Unique.",
    )
    path: str = Field(
        pattern=r"^(/.*|@python)$",
        max_length=4096,
        description=(
            "Its absolute path, or '@python' for the router's own interpreter. PATH is not"
            " searched."
        ),
    )
    forms: tuple[BinaryForm, ...] = Field(
        min_length=1,
        max_length=100,
        description="The command lines it may be given. All others are refused.",
    )
    env: tuple[str, ...] = Field(
        default=(), description="Variables passed on from the router. Never LD_*, PYTHON*, GIT_*."
    )
    """Their names. Those that make programs load or run something are refused."""
    set_env: tuple[str, ...] = Field(default=(), description="Fixed variables: 'NAME=value'.")
    reads: tuple[str, ...] = Field(
        default=(), description="Folders outside the workspace that it may read."
    )
    timeout_s: float = Field(default=60.0, gt=0, le=3600, description="Seconds one start may take.")
    memory_bytes: int = Field(
        default=4 << 30,
        ge=64 << 20,
        description="Bytes of address space of a process, and of memory of all.",
    )
    """The second bound is on the memory of all its processes together."""
    file_bytes: int = Field(
        default=256 << 20, ge=0, description="Bytes of one file; of all that it writes, twice that."
    )
    max_processes: int = Field(
        default=256, ge=1, le=100_000, description="Most processes at a time."
    )
    protect_git: bool = Field(default=True, description="true: .git is read-only while it runs.")
    hard_links: Literal["protect", "allow"] = Field(
        default="protect",
        description=(
            "'allow': started also where files with other names outside can't be kept read-only."
        ),
    )
    """Through such a file of the workspace, it can change what lies outside."""

    ADDED: ClassVar[tuple[str, ...]] = ("hard_links",)
    """Fields that recorded catalogs of before have not; see `Catalog`."""

    def to_json(self) -> dict[str, Any]:
        """Return the rule as a catalog has it: without `ADDED` fields at their default."""
        return _without_added_defaults(self)

    @field_validator("set_env")
    @classmethod
    def _set_env(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pair in value:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=[^\x00]*", pair) or pair.startswith("LD_"):
                raise ValueError(
                    f"{pair!r} is not an environment setting: write 'NAME=value' (LD_* is never"
                    " set)"
                )
        return value

    @field_validator("reads")
    @classmethod
    def _reads(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            parts = set(path.split("/")) - {"", "."}
            is_folder = path.startswith("/") and bool(parts)
            if not is_folder or ".." in parts:
                raise ValueError(f"{path!r} can't be read: write an absolute folder other than '/'")
        return value


class LocalSettings(Frozen):
    """The config of the first-party tools."""

    docs_hosts: tuple[str, ...] = ()
    """Hosts that `docs.fetch` may read from."""
    binaries: tuple[BinaryRule, ...] = ()
    """Programs that `workspace.exec` may start, and how."""
    hard_links: Literal["allow", "refuse"] = "allow"
    """`refuse`: files with hard links are not read."""
    credentials: Literal["hide", "show"] = "hide"
    """Whether files that hold credentials are hidden."""
    tokens: Literal["redact", "show"] = "redact"
    """Whether tokens are redacted in what first-party tools return."""

    ADDED: ClassVar[tuple[str, ...]] = ("credentials", "tokens")
    """Fields that recorded catalogs of before have not; see `Catalog`."""

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a catalog has them: without `ADDED` fields at their default."""
        return {
            **_without_added_defaults(self),
            "binaries": [rule.to_json() for rule in self.binaries],
        }


def _without_added_defaults(value: BinaryRule | LocalSettings) -> dict[str, Any]:
    values = value.model_dump(mode="json")
    for name in value.ADDED:
        if values[name] == type(value).model_fields[name].default:
            del values[name]
    return values


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a local tool gets besides its arguments.

    >>> from bundle_router.core.values import LocalSettings
    >>> from bundle_router.tool import ToolContext
    >>> context = ToolContext("/work", LocalSettings(), timeout_s=60.0, max_bytes=8_388_608)
    >>> context.within, context.cancelled()
    ('.', False)
    """

    workspace: str
    """The absolute path of the root."""
    settings: LocalSettings
    """What the config permits first-party tools."""
    timeout_s: float
    """Seconds that are left for the whole call."""
    max_bytes: int
    """Bytes that the tool may return."""
    cancelled: Callable[[], bool] = field(default=lambda: False)
    """Returns true once the caller has gone away."""
    protected: tuple[str, ...] = ()
    """Absolute paths that no tool changes, also inside the workspace: the router's config and its
    runs.
    """
    within: str = "."
    """The folder beneath the root that confines this step's tools and that relative paths start
    from.

    It is relative, without `..`, and real, so that a symlink in it means that it was swapped after
    the decision. Tools open it at each call and hold the descriptor; they never join the two paths.
    """
    hidden: tuple[str, ...] = ()
    """Absolute paths of folders that no tool reads, lists, searches or writes. They are known by
    device and inode, so that another name for one does not help.
    """
    handed: tuple[str, ...] = ()
    """Absolute paths of files that the router itself wrote for this call, outside the workspace:
    they may be read.
    """


@dataclass(frozen=True, slots=True)
class LocalTool:
    """A first-party tool, spelled out. `tool` makes one of a typed function.

    >>> from bundle_router.tool import LocalTool, Text, ToolContext, ToolOutput
    >>> from pydantic import BaseModel
    >>> class Ticket(BaseModel):
    ...     number: int
    >>> def run(ticket: Ticket, context: ToolContext) -> ToolOutput:
    ...     return ToolOutput((Text(f"Ticket {ticket.number}"),))
    >>> LocalTool("get_ticket", "Read a ticket.", Ticket, run).name
    'get_ticket'
    """

    name: str
    """Its name, without its server."""
    description: str
    """The operator's description, for agents."""
    arguments: type[BaseModel]
    """The form of its arguments; what does not fit is refused before the call."""
    run: Callable[[Any, ToolContext], ToolOutput | Awaitable[ToolOutput]]
    """Returns a `ToolOutput`, or an awaitable of one."""


@dataclass(frozen=True, slots=True)
class LocalServer:
    """Your own tools with a server and a bundle for them, declared where the router is opened.

    The bundle holds all tools; policy and routes name it like any other. A `[servers]` or
    `[bundles]` entry of the same name in the config replaces the declaration.

    >>> from bundle_router.tool import LocalServer
    >>> def get_ticket(number: int) -> str:
    ...     "Read a ticket of the tracker."
    ...     return f"Ticket {number}"
    >>> server = LocalServer([get_ticket], "The tracker.", examples=["what is ticket 7?"])
    >>> server.effects, server.mode  # passed as Router.open(..., local={"tickets": server})
    (('read',), 'direct')
    """

    tools: Sequence[LocalTool | Callable[..., object]]
    """Typed functions or `LocalTool`s."""
    description: str
    """What the bundle is for, in your words."""
    effects: Sequence[str] = ("read",)
    """What the tools can do: of `read`, `write`, `exec`, `network`."""
    examples: Sequence[str] = ()
    """Requests that the bundle is right for, as people write them."""
    bundle: str = ""
    """The bundle's id; empty: the server's name."""
    mode: str = "direct"
    """How agents see the tools: `direct`, `deferred`, `meta` or `code`."""
