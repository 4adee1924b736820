"""What the author of a tool imports: the tool itself, its context, what it returns, and how it says that it failed."""

from __future__ import annotations

from bundle_router.core.models import Data, LocalTool, Media, Text, ToolContext, ToolOutput
from bundle_router.errors import ToolFailure

__all__ = ["Data", "LocalTool", "Media", "Text", "ToolContext", "ToolFailure", "ToolOutput"]
