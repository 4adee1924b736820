"""`bundle-router tools`: shows the array of a run's current decision."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from bundle_router.cli.output import counted, print_json, say, table
from bundle_router.cli.shared_arguments import add_opening, open_router
from bundle_router.core.exposure.provider_forms import FORMATS
from bundle_router.core.values.visible import visible

if TYPE_CHECKING:
    from bundle_router.wiring import Router


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", required=True, help="run id")
    parser.add_argument(
        "--format", choices=FORMATS, default="openai", help="form of the definitions with --json"
    )
    parser.add_argument(
        "--native", action="store_true", help="with --json: leave deferred tools to the provider"
    )
    add_opening(parser)


def run(arguments: argparse.Namespace) -> int:
    with open_router(arguments) as router:
        toolset = router.tools_sync(arguments.run, format=arguments.format, native=arguments.native)
        warn_of_lost(router, arguments.run)
    if arguments.json:
        facts = {
            name: getattr(toolset, name)
            for name in ("tools", "guidance", "tokens", "all_tokens", "cap", "meta")
        }
        print_json({**facts, "deferred": [tool.name for tool in toolset.deferred]})
        return 0
    table(
        ("tool", "exposed as", "bundle", "tokens>"),
        [(t.name, t.exposed, t.bundle, t.tokens) for t in toolset.active],
    )
    meta_tokens = toolset.tokens - sum(tool.tokens for tool in toolset.active)
    if meta_tokens:
        say(f"and meta-tools, {meta_tokens:,} tokens")
    say(
        f"{counted(len(toolset.active), 'tool')} (cap {toolset.cap}), {toolset.tokens:,} tokens; "
        f"all tools: {toolset.all_tokens:,}"
    )
    if toolset.deferred:
        say(
            "deferred, in the array once asked for:"
            f" {', '.join(tool.name for tool in toolset.deferred)}"
        )
    if toolset.meta:
        say(f"behind call_tool: {', '.join(toolset.meta)}")
    return 0


def warn_of_lost(router: Router, run_id: str, *, follows: bool = False) -> None:
    """Print to standard error a line for each server of the run's step that gives no tools, and
    what to do.
    """
    if follows:
        advice = "it is asked again"
    else:
        advice = "see `bundle-router check --live`, and route again when it is up"
    for name, reason in sorted(router.endpoint.lost_servers(run_id).items()):
        print(
            visible(f"no tools of server {name!r}: {reason}; {advice}"), file=sys.stderr, flush=True
        )
