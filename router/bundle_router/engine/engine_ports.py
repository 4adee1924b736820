"""The ports that the engine's flows use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bundle_router.core.exposure.meta_tools.artifact_pages import Finder
from bundle_router.core.results.shaping import MediaFacts
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
    from bundle_router.engine.reuse import ResultReuse
    from bundle_router.engine.run_records import OpenRun
    from bundle_router.engine.run_tree import RunTree


def no_patterns(pattern: str) -> Finder:
    """Refuse a regular expression: no engine for them is installed."""
    raise ValueError(
        f"regular expressions such as {shorten(pattern, 50)!r} are not searched for here"
    )


def no_queries(expression: str, value: Any) -> Any:
    """Refuse a query: no engine for them is installed."""
    raise ValueError(f"queries such as {shorten(expression, 50)!r} are not answered here")


@dataclass(frozen=True, slots=True)
class EnginePorts:
    """The ports that the flows use.

    `sessions` is keyed by transport. `describe` recognises the media type of bytes. `patterns`
    compiles a regular expression and `queries` evaluates a JSON query (both raise ValueError
    with the reason). `tools` is None without search, `results` without reuse of results,
    `scratch` where tools get no files, `programs` without code mode. `in_thread` runs slow work
    off the event loop.
    """

    clock: Clock
    redactor: Redactor
    diagnostics: Diagnostics
    sessions: Mapping[str, Sessions]
    describe: Callable[[bytes], MediaFacts]
    selector: Selector | None = None
    patterns: Callable[[str], Finder] = no_patterns
    tools: ToolSearch | None = None
    results: ResultReuse | None = None
    scratch: Callable[[], Scratch] | None = None
    programs: Programs | None = None
    queries: Callable[[str, Any], Any] = no_queries
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = lambda work: asyncio.to_thread(work)


@dataclass(frozen=True, slots=True)
class CallPorts:
    """What every part of a call uses: the engine's ports, the run, and the trees of runs."""

    ports: EnginePorts
    run: OpenRun
    tree: RunTree
