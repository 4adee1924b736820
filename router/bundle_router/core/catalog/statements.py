"""What tools return and where their arguments go: as the operator states it, or else as inferred.

Rules:
1. All statements about a tool unite. One that says what it `returns` replaces what is inferred of
   that, and one that says where it `sends` replaces what is inferred of this; one with `when` only
   adds. While the arguments are not known, a statement with `when` counts.
2. An untrusted server returns `untrusted`, and gets the arguments: it sends `outside`.
3. A bundle with the effect `network` sends `outside`, also where it only reads: an address has a
   query. Of a bundle that is composed of others this means the tools that it names itself.
4. `private` is never inferred.
5. Of a glob over tools that nobody has listed, everything is taken that may hold of one of them.
6. A tool's statements are its server's, whichever bundle it is called through: else another bundle
   would launder it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from bundle_router.core.catalog.config_tables import (
    Bundle,
    Condition,
    Server,
    TaintStatement,
)
from bundle_router.core.values.patterns import first_cover, first_match, is_glob

Holds = Callable[[Sequence[Condition]], bool]
"""Says whether the conditions of a statement hold for the arguments of a call, or may."""


class DeclaredTools(Protocol):
    """What statements are read from: a catalog."""

    @property
    def servers(self) -> Mapping[str, Server]: ...

    @property
    def bundles(self) -> Mapping[str, Bundle]: ...

    def bundles_with(self, tool: str) -> Iterable[Bundle]: ...


class Statements:
    """What is stated, or inferred, of the tools of one catalog. Each tool is looked up once."""

    def __init__(self, catalog: DeclaredTools) -> None:
        self._catalog = catalog
        self._returns: dict[str, frozenset[str]] = {}
        self._sends: dict[str, frozenset[str]] = {}
        self._looks: dict[str, bool] = {}

    def returns(self, tool: str) -> frozenset[str]:
        """Return the taints of what a tool returns (`server.tool`, or a glob over a server)."""
        taints = self._returns.get(tool)
        if taints is None:
            taints = self._returns[tool] = self._returned_by(tool)
        return taints

    def sends(self, tool: str) -> frozenset[str]:
        """Return the sinks that a tool's arguments go to (`server.tool`, or a glob)."""
        sinks = self._sends.get(tool)
        if sinks is None:
            sinks = self._sends[tool] = self._sent_by(tool)
        return sinks

    def is_stated(self, tool: str) -> tuple[bool, bool]:
        """Return whether a statement says what the tool returns, and whether one says where it
        sends.
        """
        rows = [row for row in self._covering(tool) if not row.when]
        return (
            any(row.returns is not None for row in rows),
            any(row.sends is not None for row in rows),
        )

    def of_call(self, tool: str, holds: Holds) -> tuple[frozenset[str], frozenset[str]]:
        """Return the taints of what one call returns, and the sinks that its arguments go to.
        `holds` says whether the conditions of a statement hold for its arguments, or may.
        """
        if not self.looks_at_arguments(tool):
            return self.returns(tool), self.sends(tool)
        returned = self._returned_by(tool, holds)
        return returned, self._sent_by(tool, holds)

    def looks_at_arguments(self, tool: str) -> bool:
        """Return whether a statement about the tool has conditions."""
        looks = self._looks.get(tool)
        if looks is None:
            is_known = self._server(tool) is not None
            looks = is_known and any(row.when for row in self._about(tool))
            self._looks[tool] = looks
        return looks

    def _returned_by(self, tool: str, holds: Holds | None = None) -> frozenset[str]:
        if self._server(tool) is None:
            return frozenset()
        stated = {taint for row in self._about(tool, holds) for taint in row.returns or ()}
        return frozenset({*stated, *self._inferred_returns(tool)})

    def _sent_by(self, tool: str, holds: Holds | None = None) -> frozenset[str]:
        if self._server(tool) is None:
            return frozenset()
        stated = {sink for row in self._about(tool, holds) for sink in row.sends or ()}
        return frozenset({*stated, *self._inferred_sends(tool)})

    def _inferred_returns(self, tool: str) -> tuple[str, ...]:
        server = self._server(tool)
        is_stated, _ = self.is_stated(tool)
        if is_stated or server is None or server.trust == "trusted":
            return ()
        return ("untrusted",)

    def _inferred_sends(self, tool: str) -> tuple[str, ...]:
        server = self._server(tool)
        _, is_stated = self.is_stated(tool)
        if is_stated or server is None:
            return ()
        if server.trust == "trusted" and not self._reaches_network(tool):
            return ()
        return ("outside",)

    def _reaches_network(self, tool: str) -> bool:
        return any(
            "network" in bundle.effects and self._names_itself(bundle, tool)
            for bundle in self._catalog.bundles_with(tool)
        )

    def _names_itself(self, bundle: Bundle, tool: str) -> bool:
        """Return whether the bundle names the tool itself, and does not have it from a part."""
        parts = (self._catalog.bundles.get(id_) for id_ in bundle.bundles)
        return not any(
            part is not None and (tool in part.tools or first_match(part.patterns, tool))
            for part in parts
        )

    def _server(self, tool: str) -> Server | None:
        return self._catalog.servers.get(tool.partition(".")[0])

    def _about(self, tool: str, holds: Holds | None = None) -> list[TaintStatement]:
        """Return the statements that may be about the tool: of a glob, all of its server. `holds`:
        those whose conditions hold.
        """
        server, _, short = tool.partition(".")
        rows = self._catalog.servers[server].taints
        if not is_glob(short):
            rows = tuple(row for row in rows if first_match(row.tools, short) is not None)
        if holds is None:
            return list(rows)
        return [row for row in rows if holds(row.when)]

    def _covering(self, tool: str) -> list[TaintStatement]:
        """Return the statements that are about the tool, or about all tools of the glob."""
        name, _, short = tool.partition(".")
        server = self._catalog.servers.get(name)
        if server is None or not server.taints:
            return []
        return [row for row in server.taints if first_cover(row.tools, short) is not None]
