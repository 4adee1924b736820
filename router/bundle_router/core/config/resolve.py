"""Both stages: files in, a catalog or every problem out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bundle_router.core.catalog import Card, Catalog
from bundle_router.core.config.bundles import BundleResolver
from bundle_router.core.config.config_text import ConfigFile
from bundle_router.core.config.overlay import WrittenConfig, in_order, merge_files
from bundle_router.core.config.problem_report import Report
from bundle_router.core.config.router_settings import CheckBinary, no_check, resolve_local, resolve_settings
from bundle_router.core.config.rows import resolve_policies, resolve_routes
from bundle_router.core.config.servers import check_prefixes, includes_tool, resolve_server
from bundle_router.dataclass import dataclass, replace


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The result of both stages. The catalog may be used only when the report has no errors."""

    files: tuple[ConfigFile, ...]
    written: WrittenConfig
    catalog: Catalog
    report: Report


def resolve(
    files: Sequence[ConfigFile], cards: Mapping[str, Card], check_binary: CheckBinary = no_check
) -> ResolvedConfig:
    """Read the files, lay them over each other, check them. `cards`: the local tools', by canonical name."""
    ordered = in_order(files)
    report = Report(ordered)
    written = merge_files(ordered, report)
    local_tools = tools_by_server(cards.values())
    servers = {name: resolve_server(entry, local_tools, report) for name, entry in written.servers.items()}
    for entry in written.broken_servers:
        # Its transport may be what was wrong: reported, and what is meant is clear.
        is_process = entry.keys.isdisjoint(("transport", "url")) and not entry.keys.isdisjoint(
            ("command", "args", "env")
        )
        repaired = replace(entry.value, transport="stdio") if is_process else entry.value
        resolve_server(replace(entry, value=repaired), local_tools, report)
    check_prefixes(written.servers.values(), report)
    resolver = BundleResolver(written, servers, local_tools, report)
    bundles = resolver.resolve()
    catalog = Catalog(
        servers=servers,
        bundles=bundles,
        routes=resolve_routes(written, resolver, report),
        policies=resolve_policies(written, resolver, local_tools, report),
        settings=resolve_settings(written, resolver, report),
        local=resolve_local(written, report, check_binary),
        cards={
            name: card
            for name, card in cards.items()
            if card.server in servers
            and not servers[card.server].traits.is_remote
            and includes_tool(servers[card.server], card.tool)
        },
    )
    return ResolvedConfig(tuple(ordered), written, catalog, report)


def tools_by_server(cards: Iterable[Card]) -> dict[str, set[str]]:
    tools: dict[str, set[str]] = {}
    for card in cards:
        tools.setdefault(card.server, set()).add(card.tool)
    return tools
