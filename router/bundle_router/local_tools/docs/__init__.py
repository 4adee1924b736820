"""The local server `docs`: fetches a documentation page, and searches one documentation site.

Only hosts that the operator listed are contacted (`policy.toml`; `local_tools.docs.urls` has the
rules for URLs), only at public addresses, only over HTTPS (`local_tools.docs.network`). Results are
data: cleaned, bounded, with their URL.

Failure codes, for agents and the log: `invalid_url`, `no_hosts`, `host_not_allowed`,
`invalid_settings`, `dns_failed`, `address_refused`, `connect_failed`, `tls_failed`, `timeout`,
`cancelled`, `bad_response`, `truncated`, `too_large`, `unsupported_encoding`, `too_many_redirects`,
`not_found`, `http_error`, `no_text`, `no_section`, `bad_offset`, `no_index`, `no_words`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from bundle_router.core.values import Frozen, LocalTool, ToolContext, ToolOutput

if TYPE_CHECKING:
    from bundle_router.local_tools.docs.network import Network


class FetchArguments(Frozen):
    """Arguments of `fetch`."""

    url: Annotated[
        str,
        Field(
            min_length=1, max_length=2048, description="An https URL. A #fragment picks a section."
        ),
    ]
    section: Annotated[
        str | None,
        Field(min_length=1, max_length=300, description="Only the section under this heading."),
    ] = None
    offset: Annotated[
        int, Field(ge=0, description="Start at this character, to read on where a result was cut.")
    ] = 0


class SearchArguments(Frozen):
    """Arguments of `search`."""

    site: Annotated[
        str,
        Field(
            min_length=1,
            max_length=2048,
            description="The site, or the folder of it that holds the manual.",
        ),
    ]
    query: Annotated[
        str,
        Field(min_length=1, max_length=300, description="Words to look for in titles and URLs."),
    ]
    limit: Annotated[int, Field(ge=1, le=50, description="How many pages to name.")] = 10


def tools_over(network: Network | None = None) -> tuple[LocalTool, ...]:
    """Return the tools over a network; None: the real one, created at the first call.

    Tests pass their own.
    """

    def fetch(arguments: FetchArguments, context: ToolContext) -> ToolOutput:
        from bundle_router.local_tools.docs.answers import answer_fetch, system_network

        return answer_fetch(
            arguments.url, arguments.section, arguments.offset, context, network or system_network()
        )

    def search(arguments: SearchArguments, context: ToolContext) -> ToolOutput:
        from bundle_router.local_tools.docs.answers import answer_search, system_network

        return answer_search(
            arguments.site, arguments.query, arguments.limit, context, network or system_network()
        )

    return (
        LocalTool(
            "fetch",
            "Fetch one documentation page from an allowed host. HTML becomes Markdown (main content"
            " only); text, Markdown and JSON come as they are; images, PDF and other media become"
            " artifacts. Long pages come in pieces: read on with offset, or ask for one section by"
            " its heading.",
            FetchArguments,
            fetch,
        ),
        LocalTool(
            "search",
            "Find pages of one allowed documentation site by words, through the index the site"
            " itself publishes (Sphinx, MkDocs, llms.txt or sitemap). Returns titles and URLs for"
            " fetch.",
            SearchArguments,
            search,
        ),
    )


TOOLS: Final[tuple[LocalTool, ...]] = tools_over()
