"""Templates, their filters, and the targets of links: addresses of the server, or neighbouring
files.

Rules:
1. The template engine escapes everything. Only `charts` and `docs_views` make `Markup`, from
   numbers and escaped text.
2. Untrusted text is shown with its control and invisible characters spelled out (`visible`).
3. A page links only to pages that `Links` knows. Files link to files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from bundle_router.core.records.read_model import duration_text
from bundle_router.core.values.visible import visible
from bundle_router.errors import needs_extra
from bundle_router.review.sentences import sentence_of
from bundle_router.service.pages import charts
from bundle_router.service.pages.documentation import entry_of

if TYPE_CHECKING:
    from jinja2 import Environment

NAV: Final = (
    ("/", "Overview"),
    ("/runs", "Runs"),
    ("/steps", "Steps"),
    ("/calls", "Calls"),
    ("/matrix", "Matrix"),
    ("/catalog", "Catalog"),
)
"""The navigation at the top of every page, in order: address and name."""
SERVED_NAV: Final = (*NAV, ("/docs", "Docs"))
"""The same of a service, which has pages that are not published."""
GOOD: Final = frozenset(("ok", "closed", "mapping", "direct"))
BAD: Final = frozenset(
    ("denied", "tool_error", "timeout", "unavailable", "unreadable", "unknown", "budget")
)
EXCERPT: Final = 600
"""Maximum characters of a text in a list; its own page shows all."""


@dataclass(frozen=True, slots=True)
class PageContent:
    """The answer of one address: a template with its values for people, the same facts as JSON for
    programs.
    """

    template: str
    values: Mapping[str, Any]
    json: Any
    status: int = 200


@dataclass(frozen=True, slots=True)
class Links:
    """The targets of links.

    `files`: published pages, address to file; None on a server. `at`: the file that contains the
    link.
    """

    base: str = ""
    files: Mapping[str, str] | None = None
    at: str = ""
    nav: tuple[tuple[str, str], ...] = field(default=NAV)

    def to(self, address: str, **query: object) -> str:
        """Return the link to an address; empty if its page was not published."""
        values = {name: value for name, value in query.items() if value not in ("", None)}
        if values:
            address += f"?{urlencode(values, doseq=True)}"
        if self.files is None:
            return self.base + address

        if address not in self.files:
            return ""
        folder = os.path.dirname(self.at) or "."  # noqa: PTH120 - text
        return os.path.relpath(self.files[address], folder)

    def asset(self, name: str) -> str:
        return self.to(f"/assets/{name}")


def render(page: PageContent, links: Links) -> str:
    """Return the HTML of a page."""
    values = {"links": links, "to": links.to, "static": links.files is not None, **page.values}
    return environment().get_template(page.template).render(values)


@cache
def environment() -> Environment:
    """Return the template engine. Raises NotInstalled."""
    with needs_extra("rendering pages", "service"):
        from jinja2 import Environment, PackageLoader, StrictUndefined

    jinja = Environment(
        loader=PackageLoader("bundle_router.service.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "visible": visible_text,
        "excerpt": excerpt,
        "number": number,
        "short": charts.short_number,
        "clock": clock,
        "took": duration_text,
        "moment": moment,
        "pretty": pretty_json,
        "size": size,
        "sentence": sentence_of,
        "entry": entry_of,
        "tone": tone,
        "percent": percent,
    }
    jinja.filters.update(filters)
    jinja.globals.update(share_bar=charts.share_bar)
    return jinja


def asset_bytes(name: str) -> bytes:
    """Return the bytes of a file that pages load."""
    return files("bundle_router.service.pages").joinpath("assets", name).read_bytes()


def json_text(value: Any) -> str:
    """Return JSON that is safe anywhere in HTML: ASCII only, without `<`."""
    text = json.dumps(value, default=_plain, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)


def error_page(message: str, advice: str, where: str, status: int) -> PageContent:
    """Return a page that explains an error."""
    title = "Not found" if status == 404 else "Not possible"
    # the page links to the list of runs, which says what the command does
    is_linked = advice.startswith("`bundle-router runs list`")
    values = {
        "title": title,
        "here": "",
        "where": where,
        "message": message,
        "advice": "" if is_linked else advice,
        "stale": "",
    }
    return PageContent("error.html", values, {"error": message, "advice": advice}, status)


# --- filters --------------------------------------------------------------------------------------


def visible_text(text: object) -> str:
    """Return a text with control and invisible characters spelled out; line ends stay."""
    return "\n".join(visible(line) for line in ("" if text is None else str(text)).split("\n"))


def excerpt(text: object, length: int = EXCERPT) -> str:
    """Return the beginning of a text, made visible, with the number of omitted characters."""
    full = "" if text is None else str(text)
    return visible_text(
        full if len(full) <= length else f"{full[:length].rstrip()} … ({len(full):,} characters)"
    )


def number(value: object) -> str:
    """Return a whole number with thousands separators; a dash for none."""
    return f"{value:,.0f}" if isinstance(value, int | float) else "–"


def percent(part: float, total: float) -> str:
    return f"{part / total:.0%}" if total else "–"


def clock(time: object) -> str:
    """Return the time of day of an RFC 3339 time, in UTC."""
    return visible(str(time)[11:19]) if time else ""


def moment(time: object) -> str:
    return visible(f"{str(time)[:10]} {clock(time)}") if time else ""


def pretty_json(value: object) -> str:
    """Return JSON laid out for people; a text that holds JSON is parsed, any other text is kept."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return visible_text(value)
    return visible_text(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def size(count: object) -> str:
    """Return a number of bytes in few characters."""
    if not isinstance(count, int | float):
        return "–"
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next(
        (f"{count / limit:.1f} {unit}" for limit, unit in units if count >= limit), f"{count:.0f} B"
    )


def tone(word: object) -> str:
    """Return the CSS class of a word's colour. The word itself is always shown too."""
    if word in GOOD:
        return "good"
    if word in BAD:
        return "bad"
    if word:
        return "warn"
    return ""
