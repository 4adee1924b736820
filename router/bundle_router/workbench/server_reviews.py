"""Reviews of tool servers before they are approved: their present lists, compared with their
pins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bundle_router.adapters.json_schema import unchecked_reason
from bundle_router.core.catalog import Catalog, Server
from bundle_router.core.exposure.provider_schemas import provider_notes
from bundle_router.core.servers.admission.admitted import Admitted, AdmittedTool
from bundle_router.core.servers.admission.cleaning import reveal, reveal_line
from bundle_router.core.servers.pins.compare import Comparison, compare, report_lines
from bundle_router.core.servers.pins.reviewed import Pins
from bundle_router.errors import RequestError

if TYPE_CHECKING:
    from bundle_router.core.servers.warning_light import LightFinding
    from bundle_router.core.servers.warning_light.inspect import Light

MAX_LINES: Final = 40
"""Lines of a server's text that are shown."""


@dataclass(frozen=True, slots=True)
class Review:
    """The review of one server.

    `admitted` and `comparison` are None where it could not be asked; `error` says why. `again`:
    other servers' tools, known by now, changed its warnings.
    """

    server: Server
    pins: Pins | None
    admitted: Admitted | None = None
    comparison: Comparison | None = None
    lights: tuple[Light, ...] = ()
    error: str = ""
    again: bool = False

    @property
    def command(self) -> str:
        """The command that is started, or the address that is asked."""
        return " ".join((self.server.command or "", *self.server.args)) or self.server.url or ""

    @property
    def clean(self) -> bool:
        """Whether the server was asked and equals its pins."""
        return self.comparison is not None and self.pins is not None and self.comparison.clean

    @property
    def added(self) -> dict[str, AdmittedTool]:
        """The tools that have no pin, by name."""
        if self.admitted is None or self.comparison is None:
            return {}
        names = self.comparison.of("added")
        return {tool.card.tool: tool for tool in self.admitted.tools if tool.card.tool in names}

    def unchecked(self) -> dict[str, str]:
        """Return why arguments are left to the server to check, by the names of such tools."""
        if self.admitted is None:
            return {}
        reasons = {
            tool.card.tool: unchecked_reason(tool.card.input_schema())
            for tool in self.admitted.tools
        }
        return {name: reason for name, reason in reasons.items() if reason}

    def provider_notes(self) -> dict[str, tuple[str, ...]]:
        """Return what providers refuse in definitions and what becomes of it, by tools' names."""
        if self.admitted is None:
            return {}
        notes = {
            tool.card.tool: provider_notes(tool.card.schema, tool.card.input_schema())
            for tool in self.admitted.tools
        }
        return {name: rows for name, rows in notes.items() if rows}


def remote_servers(catalog: Catalog, names: Sequence[str]) -> list[Server]:
    """Return the named servers, or all remote ones that are on and have their credentials.

    Raises RequestError.
    """
    if not names:
        return [server for server in catalog.servers.values() if _is_usable(server)]
    servers = []
    for name in dict.fromkeys(names):
        server = catalog.servers.get(name)
        if server is None:
            raise RequestError(
                f"there is no server {name!r}", advice="see servers.toml, or `bundle-router check`"
            )
        if not server.traits.is_remote:
            raise RequestError(
                f"{name!r} is local: its tools are the program's own, and are not pinned"
            )
        servers.append(server)
    return servers


def _is_usable(server: Server) -> bool:
    """Return whether a server is remote, on, and has the values of the variables it names."""
    if not server.traits.is_remote or not server.enabled:
        return False
    return all(os.environ.get(name) for name in server.env_names)


def review(
    catalog: Catalog,
    pins: dict[str, Pins],
    servers: Sequence[Server],
    *,
    development: bool,
    together: bool = True,
) -> Iterator[Review]:
    """Yield the reviews of the servers.

    With `together`: in their order, once all have answered. Else each when its server has answered;
    one to which a later server's tools add a warning comes again. Starts processes (stdio) only
    with `development`; ends them.
    """
    from bundle_router.core.servers.warning_light import Neighbourhood
    from bundle_router.core.servers.warning_light.inspect import is_affected, lights
    from bundle_router.wiring.toolservers import admitted_now

    if not servers:
        return
    everyone = Neighbourhood(catalog.cards.values())
    later = Neighbourhood(())
    reviews = []
    answers: Iterable[tuple[Server, Admitted | str]] = admitted_now(
        catalog, servers, development=development
    )
    if together:
        answers = sorted(answers, key=lambda answer: servers.index(answer[0]))
        everyone.add(
            tool.card for _, found in answers if not isinstance(found, str) for tool in found.tools
        )
    for server, found in answers:
        server_pins = pins.get(server.name)
        if isinstance(found, str):
            yield Review(server, server_pins, error=found)
            continue
        everyone.add(tool.card for tool in found.tools if not together)
        comparison = compare(server_pins, found, server)
        yield Review(
            server, server_pins, found, comparison, tuple(lights(found, comparison, everyone))
        )
        reviews.append((server, found, comparison))
    for server, found, comparison in () if together else reversed(reviews):
        if is_affected(found, comparison, later):
            verdicts = tuple(lights(found, comparison, everyone))
            yield Review(server, pins.get(server.name), found, comparison, verdicts, again=True)
        later.add(tool.card for tool in found.tools)


# --- for people and programs ----------------------------------------------------------------------


def lines_of(reviewed: Review, *, full: bool = False) -> Iterator[str]:
    """Yield the review for a terminal: the changes, field by field, and the warning light's
    findings. `full` adds the whole text of tools without pins, in ASCII.
    """
    if reviewed.comparison is None or reviewed.admitted is None:
        yield f"{reviewed.server.name}: can't be reviewed: {reviewed.error}"
        return
    if reviewed.again:
        yield (
            f"{reviewed.server.name}: look at it again, now that all servers have listed their"
            " tools:"
        )
        yield from _warnings(reviewed)
        return
    if reviewed.clean:
        yield f"{reviewed.server.name}: as it was reviewed ({len(reviewed.admitted.tools)} tools)"
        yield from _unchecked(reviewed)
        return
    if reviewed.pins is None:
        yield f"{reviewed.server.name}: never reviewed; {reviewed.command}"
        if reviewed.admitted.instructions:
            yield "  its instructions, which no agent is shown:"
            yield from _quoted(reviewed.admitted.instructions)
        for row in reviewed.admitted.refused:
            yield f"  refused  {reviewed.server.name}.{row.name}  {row.code}: {row.detail}"
    else:
        yield from report_lines(reviewed.comparison)
    for tool in reviewed.added.values():
        yield from _new_tool(tool)
    if full:
        changed = {
            change.tool for change in reviewed.comparison.tools if change.kind != "unchanged"
        }
        for tool in reviewed.admitted.tools:
            if tool.card.tool in changed:
                yield from json.dumps(
                    json.loads(tool.definition), indent=1, ensure_ascii=True
                ).splitlines()
    yield from _unchecked(reviewed)
    yield from _warnings(reviewed)


def _unchecked(reviewed: Review) -> Iterator[str]:
    """Yield the tools whose arguments no one but their server checks, or checks in full, and those
    that a provider refuses as they are.
    """
    for tool, reason in reviewed.unchecked().items():
        yield (
            f"  unchecked  {reviewed.server.name}.{tool}: its arguments are left to the server to"
            f" check: {reveal_line(reason)}"
        )
    for tool, notes in reviewed.provider_notes().items():
        for note in notes:
            yield f"  provider  {reviewed.server.name}.{tool}: {reveal_line(note)}"


def _warnings(reviewed: Review) -> Iterator[str]:
    """Yield the warnings: once for the server's own instructions, then tool by tool."""
    name = reviewed.server.name
    findings = [finding for light in reviewed.lights for finding in light.verdict.findings]
    of_server = dict.fromkeys(filter(_is_of_server, findings))
    if of_server:
        yield f"  WARNING  {name}: its instructions speak to the model"
        yield from map(_finding, of_server)
    for light in reviewed.lights:
        verdict = light.verdict
        of_tool = [finding for finding in verdict.findings if not _is_of_server(finding)]
        if not of_tool:
            continue
        yield (
            f"  WARNING  {name}.{light.tool}: its text {verdict.charge} (score {verdict.score:g})"
        )
        yield from map(_finding, of_tool)


def _is_of_server(finding: LightFinding) -> bool:
    return finding.where == "/instructions"


def _finding(finding: LightFinding) -> str:
    return (
        f"    {finding.rule} at {reveal_line(finding.where)}: {finding.meaning}: {finding.seen!r}"
    )


def _new_tool(tool: AdmittedTool) -> Iterator[str]:
    """Yield a new tool's description, with invisible characters spelled out."""
    definition = json.loads(tool.definition)
    arguments = reveal_line(", ".join(tool.card.input_schema()["properties"])) or "no arguments"
    yield f"  new      {tool.card.name} ({arguments}; {tool.card.tokens:,} tokens)"
    text = definition.get("description")
    yield from _quoted(text if isinstance(text, str) else "")
    yield from (f"    note: {note}" for note in tool.notes)


def _quoted(text: str) -> Iterator[str]:
    """Yield the lines of a text, invisible characters spelled out; of a long one the first, and
    what is left out.
    """
    lines = reveal(text).splitlines()
    yield from (f"    | {line}" for line in lines[:MAX_LINES])
    if len(lines) > MAX_LINES:
        yield f"    … {len(lines) - MAX_LINES:,} more lines (--json has them all)"


def json_of(reviewed: Review) -> dict[str, Any]:
    """Return the review as JSON values."""
    compared = reviewed.comparison
    added = reviewed.added
    is_new = reviewed.admitted is not None and reviewed.pins is None
    return {
        "server": reviewed.server.name,
        "pinned": reviewed.pins is not None,
        "clean": reviewed.clean,
        "error": reviewed.error,
        "instructions": (
            reviewed.admitted.instructions if is_new and reviewed.admitted is not None else ""
        ),
        "server_differences": _differences(compared.server) if compared is not None else [],
        "tools": [
            {
                "tool": c.tool,
                "kind": c.kind,
                "detail": c.detail,
                "differences": _differences(c.differences),
            }
            | {"definition": json.loads(added[c.tool].definition) if c.tool in added else None}
            | {"notes": list(added[c.tool].notes) if c.tool in added else []}
            for c in (compared.tools if compared is not None else ())
            if c.kind != "unchanged"
        ],
        "unchecked": [
            {"tool": tool, "reason": reason} for tool, reason in reviewed.unchecked().items()
        ],
        "providers": [
            {"tool": tool, "notes": list(notes)}
            for tool, notes in reviewed.provider_notes().items()
        ],
        "warnings": [
            {"tool": light.tool, "score": light.verdict.score}
            | {
                "findings": [
                    {"rule": f.rule, "where": f.where, "seen": f.seen}
                    for f in light.verdict.findings
                ]
            }
            for light in reviewed.lights
        ],
    }


def _differences(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"path": row.path, "before": row.before, "after": row.after} for row in rows]
