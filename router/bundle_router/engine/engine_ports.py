"""The ports that the engine's flows use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bundle_router.core.values.words import shorten
from bundle_router.ports import (
    Clock,
    Diagnostics,
    Programs,
    Redactor,
    Scratch,
    Selector,
    Sessions,
    ToolSearch,
)

if TYPE_CHECKING:
    from bundle_router.core.exposure.meta_tools.artifact_pages import Finder
    from bundle_router.core.values.artifacts import MediaFacts
    from bundle_router.engine.reuse import ResultReuse
    from bundle_router.engine.run_records import OpenRun
    from bundle_router.engine.run_tree import RunTree


def no_patterns(pattern: str) -> Finder:
    """Refuse a regular expression: no engine for them is installed.

    >>> from bundle_router.engine.engine_ports import no_patterns
    >>> no_patterns("a.*")
    Traceback (most recent call last):
    ValueError: regular expressions such as 'a.*' are not searched for here
    """
    raise ValueError(
        f"regular expressions such as {shorten(pattern, 50)!r} are not searched for here"
    )


def no_queries(expression: str, value: Any) -> Any:
    """Refuse a query: no engine for them is installed.

    >>> from bundle_router.engine.engine_ports import no_queries
    >>> no_queries("a.b", {})
    Traceback (most recent call last):
    ValueError: queries such as 'a.b' are not answered here
    """
    raise ValueError(f"queries such as {shorten(expression, 50)!r} are not answered here")


@dataclass(frozen=True, slots=True)
class EnginePorts:
    """The ports that the flows use."""

    clock: Clock
    """Reads the time."""
    redactor: Redactor
    """Removes secrets from what is recorded and returned."""
    diagnostics: Diagnostics
    """Tells the operator about events."""
    sessions: Mapping[str, Sessions]
    """What calls tools, by the server's transport."""
    describe: Callable[[bytes], MediaFacts]
    """Recognises the media type of bytes."""
    selector: Selector | None = None
    """Answers what the mapping can't; None: nobody is asked."""
    patterns: Callable[[str], Finder] = no_patterns
    """Compiles a regular expression; raises ValueError with the reason."""
    tools: ToolSearch | None = None
    """Ranks tools for a query; None: without search."""
    results: ResultReuse | None = None
    """Results that may be used again; None: none are."""
    scratch: Callable[[], Scratch] | None = None
    """Makes a folder for the files of one call; None: tools get no files."""
    programs: Programs | None = None
    """Runs agents' programs; None: without code mode."""
    queries: Callable[[str, Any], Any] = no_queries
    """Evaluates a JSON query; raises ValueError with the reason."""
    approvals: Literal["ask", "refuse"] = "ask"
    """What becomes of a call that would wait for somebody's word."""
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = lambda work: asyncio.to_thread(work)
    """Runs slow work off the event loop."""


@dataclass(frozen=True, slots=True)
class CallPorts:
    """What every part of a call uses: the engine's ports, the run, and the trees of runs."""

    ports: EnginePorts
    """The engine's ports."""
    run: OpenRun
    """The run that the call belongs to."""
    tree: RunTree
    """The runs above and below it."""
