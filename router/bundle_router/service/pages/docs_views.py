"""The values of the pages of the documentation: for templates, and as JSON."""

from __future__ import annotations

from bundle_router.errors import needs_extra
from bundle_router.service.pages.documentation import ADDRESS, Documentation, address_of
from bundle_router.service.pages.rendering import PageContent


def docs_page(documentation: Documentation, name: str) -> PageContent:
    """Return a page of the documentation with its table of contents.

    Raises RequestError where there is none of the name.
    """
    with needs_extra("the documentation", "service"):
        from markupsafe import Markup

    page = documentation.page(name)
    sections = [heading for heading in page.headings if heading.level == 2]
    values = {
        "title": page.title,
        "here": ADDRESS,
        "where": "",
        "html": Markup(page.html),  # noqa: S704 - made of our files, all of their text escaped
        "contents": tuple(documentation.contents()),
        "page": address_of(page.path),
        "sections": sections,
    }
    return PageContent("docs.html", values, {"title": page.title, "markdown": page.text})
