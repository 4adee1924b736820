"""The names that the author of a tool imports.

A tool is a typed function, sync or async; agents read its docstring:

    def get_ticket(number: int) -> str:
        \"\"\"Read a ticket of the tracker.\"\"\"

    Router.open(..., local={"tickets": [get_ticket]})

`tool` gives it another name or description. `LocalTool` spells everything out. `LocalServer` also
declares a bundle with the tools, for which no config file is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

from bundle_router.adapters.local.functions import local_tool
from bundle_router.core.values import (
    Data,
    LocalServer,
    LocalTool,
    Media,
    Text,
    ToolContext,
    ToolOutput,
)
from bundle_router.errors import ToolFailure

__all__ = [
    "Data",
    "LocalServer",
    "LocalTool",
    "Media",
    "Text",
    "ToolContext",
    "ToolFailure",
    "ToolOutput",
    "tool",
]


@overload
def tool(function: Callable[..., object] | LocalTool, /) -> LocalTool: ...
@overload
def tool(
    *, name: str = "", description: str = ""
) -> Callable[[Callable[..., object]], LocalTool]: ...
def tool(
    function: Callable[..., object] | LocalTool | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
) -> LocalTool | Callable[[Callable[..., object]], LocalTool]:
    """Make a tool of a typed function; used bare or as `@tool(name="…")`.

    Raises RequestError for a function that can't be described: a parameter without a type, `*args`,
    no docstring.

    >>> from bundle_router.tool import tool
    >>> @tool(name="get_ticket")
    ... def ticket(number: int) -> str:
    ...     "Read a ticket of the tracker."
    ...     return f"Ticket {number}"
    >>> ticket.name, ticket.description
    ('get_ticket', 'Read a ticket of the tracker.')
    """
    if function is not None:
        return local_tool(function)
    return lambda function: local_tool(function, name=name, description=description)
