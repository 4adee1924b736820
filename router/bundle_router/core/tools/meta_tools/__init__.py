"""The router's own tools: how an agent finds, calls and reads what does not stand in its array. Pure.

Rules:
1. Their definitions are constants: the same bytes for every catalog, run and step. What changes is in the guidance.
2. They look only inside the current decision. What is beyond it is refused by name and reason, and recorded as a gap;
   search never finds it.
3. Search gives signatures, not schemas, in a bounded number of characters; a schema is given on request, or with the
   error that wrong arguments get.
4. A name is understood as it was meant where only one tool can be meant: canonical, exposed, without its prefix, or in
   another spelling of case and separators. Where several could be, nothing is called.
5. What strangers wrote is shown as data: one line, shortened, marked.
6. An answer is a pure function of the catalog, the placement, the ranking and the question.
"""

from bundle_router.core.tools.meta_tools.artifact_pages import (
    Finder,
    describe_media,
    literal,
    queried,
    read_page,
    search_lines,
    text_of,
)
from bundle_router.core.tools.meta_tools.coercion import (
    CallTool,
    GetToolDetails,
    ListTools,
    Malformed,
    ReadArtifact,
    SearchArtifact,
    SearchTools,
    SelectTools,
    Wanted,
    parse,
)
from bundle_router.core.tools.meta_tools.definitions import (
    EXECUTE,
    META_SERVER,
    NAMES,
    READERS,
    SEEKERS,
    meta_definitions,
    meta_names,
    meta_tokens,
)
from bundle_router.core.tools.meta_tools.descriptions import (
    MetaAnswer,
    VisibleTools,
    describe_tool,
    found_text,
    list_bundle,
    list_bundles,
    selected_text,
)
from bundle_router.core.tools.meta_tools.guidance import guidance
from bundle_router.core.tools.meta_tools.resolving import Resolved, resolve
from bundle_router.core.tools.meta_tools.signatures import one_line, signature, takes_nothing

__all__ = [
    "EXECUTE",
    "META_SERVER",
    "NAMES",
    "READERS",
    "SEEKERS",
    "CallTool",
    "Finder",
    "GetToolDetails",
    "ListTools",
    "Malformed",
    "MetaAnswer",
    "ReadArtifact",
    "Resolved",
    "SearchArtifact",
    "SearchTools",
    "SelectTools",
    "VisibleTools",
    "Wanted",
    "describe_media",
    "describe_tool",
    "found_text",
    "guidance",
    "list_bundle",
    "list_bundles",
    "literal",
    "meta_definitions",
    "meta_names",
    "meta_tokens",
    "one_line",
    "parse",
    "queried",
    "read_page",
    "resolve",
    "search_lines",
    "selected_text",
    "signature",
    "takes_nothing",
    "text_of",
]
