"""The form of a library file: what the tools of one server can do, as people read it.

A file is `bundles/library/<server>.toml`. Its README says how definitions are read. Rules:
1. A tool is in one bundle: that of the strictest kind (`read`, `write`, `risky`, `run`, in this
   order) that either of two readers gave it. Its effects are those that either named.
2. A `read` bundle holds no tool that writes or executes. Each tool of a `write` bundle writes, and
   none executes. Each tool of a `risky` bundle writes. Each tool of a `run` bundle executes.
3. A digest is the one that a pin has of the same definition, without volatile parts; where a
   server's definitions vary with the machine (`varies`), that part stands for any.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, Field, ValidationError, model_validator

from bundle_router.core.values import EFFECTS, SERVER_NAME, TOOL_NAME, Effect, Frozen

Kind = Literal["read", "write", "risky", "run"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""What the tools of a bundle can do, from the mildest to the strictest.

`read`: look. `write`: change what can be changed back. `risky`: destroy, cost money, or reach
people. `run`: execute what the caller writes.
"""

_ALLOWED_EFFECTS: Final[dict[Kind, frozenset[Effect]]] = {
    "read": frozenset(("read", "network")),
    "write": frozenset(("read", "write", "network")),
    "risky": frozenset(EFFECTS),
    "run": frozenset(EFFECTS),
}
_NEEDED_EFFECT: Final[dict[Kind, Effect | None]] = {
    "read": None,
    "write": "write",
    "risky": "write",
    "run": "exec",
}


def _one_line(text: str) -> str:
    """Return a text that can stand in a comment. Raises ValueError."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("is not one line of printable text")
    return text


def _without_repetition(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(texts)) != len(texts):
        raise ValueError("something stands there twice")
    return texts


def _in_order(effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
    if effects != tuple(effect for effect in EFFECTS if effect in effects):
        raise ValueError(f"are not in the order {', '.join(EFFECTS)}")
    return effects


Line = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_one_line)]
_Clause = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_one_line)]
_Effects = Annotated[tuple[Effect, ...], Field(min_length=1), AfterValidator(_in_order)]
_Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}$")]


class LibraryTool(Frozen):
    """What one tool can do, and the words of its definition that say so."""

    name: str = Field(pattern=f"^(?:{TOOL_NAME.pattern})$")
    """Its name at the server."""
    effects: _Effects
    """What either reader found that it can do."""
    clause: _Clause
    """The words that decided for the stricter reader."""
    milder_clause: _Clause | None = None
    """The words that decided for the other reader, where the two differed."""
    differed: bool = False
    """Whether the readers differed in the kind or in the effects."""
    unsure: bool = False
    """Whether a reader was unsure, and took the stricter reading."""
    sha256: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    """The digest of the definition that was read, together with the server's instructions."""


class LibraryBundle(Frozen):
    """Tools of one kind, and the texts by which search and people find them."""

    description: Line
    """What it is for, in an operator's words."""
    avoid: Line
    """When not to pick it."""
    examples: Annotated[tuple[Line, ...], Field(min_length=6, max_length=10)]
    """Wishes that it is right for, as people word them."""
    words: dict[
        _Language,
        Annotated[tuple[Line, ...], Field(min_length=1), AfterValidator(_without_repetition)],
    ] = Field(min_length=1)
    """Key words of such wishes, by language."""
    tools: Annotated[tuple[LibraryTool, ...], Field(min_length=1)]
    """Its tools, by name."""


class LibraryServer(Frozen):
    """The reviewed bundles of one server."""

    schema_: Literal["bundle-router.library/1"] = Field(alias="schema")
    """The version of this form."""
    revision: int = Field(ge=1)
    """Grows with each change of the file."""
    server: str = Field(pattern=f"^(?:{SERVER_NAME.pattern})$")
    """The name of the file; a config may call such a server otherwise."""
    package: Line
    """The package that was read, as its registry names it."""
    registry: Literal["npm", "pypi"]
    """Where the package is published."""
    versions: Annotated[tuple[Line, ...], Field(min_length=1)]
    """The versions whose definitions these are."""
    read_on: date
    """The day on which they were read."""
    licence: Line
    """The licence of the package, as it names it: clauses are quotations from it."""
    varies: tuple[Literal["time zone"], ...] = ()
    """What the server writes into its definitions of the machine it runs on, and what digests
    therefore leave out: names of time zones, in quotes.
    """
    bundles: dict[Kind, LibraryBundle] = Field(min_length=1)
    """The bundles by kind; a kind without tools is left out."""

    @model_validator(mode="after")
    def _check_tools(self) -> LibraryServer:
        names: set[str] = set()
        examples: set[str] = set()
        for kind, bundle in self.bundles.items():
            for tool in bundle.tools:
                if tool.name in names:
                    raise ValueError(f"tool {tool.name!r} stands there twice")
                names.add(tool.name)
                _check_effects(kind, tool)
            repeated = examples.intersection(bundle.examples)
            if repeated or len(set(bundle.examples)) != len(bundle.examples):
                raise ValueError(f"an example of {kind!r} stands there twice")
            examples.update(bundle.examples)
        return self

    @property
    def source(self) -> str:
        """What was read, in words: package, versions, registry and day."""
        versions = ", ".join(self.versions)
        return f"{self.package} {versions} ({self.registry}), read on {self.read_on.isoformat()}"

    def tools(self) -> Iterator[tuple[Kind, LibraryTool]]:
        """Yield every tool with the kind of its bundle, from the mildest kind."""
        for kind in KINDS:
            if kind in self.bundles:
                for tool in self.bundles[kind].tools:
                    yield kind, tool


def _check_effects(kind: Kind, tool: LibraryTool) -> None:
    too_many = sorted(set(tool.effects) - _ALLOWED_EFFECTS[kind])
    if too_many:
        raise ValueError(f"tool {tool.name!r} of {kind!r} has the effect {too_many[0]!r}")
    needed = _NEEDED_EFFECT[kind]
    if needed is not None and needed not in tool.effects:
        raise ValueError(f"tool {tool.name!r} of {kind!r} lacks the effect {needed!r}")


class LibraryProblem(ValueError):
    """A library file can't be read; the message says which, where and why."""


def library_server(text: str, name: str) -> LibraryServer:
    """Return what a library file says; `name` is the file's name. Raises LibraryProblem."""
    try:
        server = LibraryServer.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as wrong:
        raise LibraryProblem(f"{name}: {wrong}") from None
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise LibraryProblem(f"{name}: {place}: {first['msg']}") from None
    if re.sub(r"\.toml$", "", name) != server.server:
        raise LibraryProblem(f"{name}: server: is {server.server!r}, and names another file")
    return server
