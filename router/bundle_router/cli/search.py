"""`bundle-router search`: shows how search ranks a request, without deciding anything.

Bundles are ranked as `route()` ranks them for the first step of a run: with the memory and the
thresholds in force, and with embeddings if the config names an embedder. Tools are ranked as by
`search_tools`.
"""

from __future__ import annotations

import argparse
from typing import Any

from bundle_router.cli.local import local_servers
from bundle_router.cli.output import print_json, say, table
from bundle_router.cli.shared_arguments import ADDRESS, add_config, add_json, config_folder
from bundle_router.core.catalog import Catalog
from bundle_router.core.search.memory import Memory
from bundle_router.core.search.ranking import NO_MEMORIES, Memories, Search
from bundle_router.core.search.request import Request
from bundle_router.core.search.sufficiency import Judgement
from bundle_router.core.values import Facts, Step
from bundle_router.errors import RequestError


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", help="what is wanted, in words")
    parser.add_argument("--tools", action="store_true", help="rank tools instead of bundles")
    parser.add_argument("--limit", type=int, default=10, help="most results (default: 10)")
    for name in ADDRESS:
        parser.add_argument(
            f"--{name}", help="rank only what policy permits there (all three, or none)"
        )
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.core.search.corpus import request_of
    from bundle_router.wiring.catalogs import load_remembering
    from bundle_router.wiring.searching import make_search_for

    is_placed = _is_placed(arguments)
    if not is_placed and not arguments.query.strip():
        raise RequestError("the query is empty", advice="say in words what is wanted")
    step = _step(arguments, is_placed)
    catalog, memories = load_remembering(config_folder(arguments), local=local_servers(arguments))
    request = request_of(step, ())
    memory = memories or NO_MEMORIES
    search = make_search_for(catalog, [request.text], memory)
    if not is_placed:
        request = Request(request.text)
    permitted = _permitted_bundles(catalog, step) if is_placed else frozenset(search.corpus.members)
    limit = max(arguments.limit, 0)
    if arguments.tools:
        ranking = _tools(catalog, search, memory, request, permitted, limit)
    else:
        ranking = _bundles(catalog, search, memory.bundles, request, permitted, step, limit)
    if arguments.json:
        print_json(ranking)
    else:
        _show(ranking)
    return 0


def _is_placed(arguments: argparse.Namespace) -> bool:
    """Return whether a step is named, and not only a query."""
    options = [name for name in ADDRESS if getattr(arguments, name) is not None]
    if options and len(options) < len(ADDRESS):
        raise RequestError(
            "--workflow, --role and --step come together", advice="give all three, or none"
        )
    return bool(options)


def _step(arguments: argparse.Namespace, placed: bool) -> Step:
    address = {name: getattr(arguments, name) if placed else "search" for name in ADDRESS}
    return Step(run_id="search", goal=arguments.query, **address)


def _permitted_bundles(catalog: Catalog, step: Step) -> frozenset[str]:
    """Return what policy permits at the step, as if every capability were present and every server
    available.
    """
    from bundle_router.core.decide.plans import Plans

    capabilities: set[str] = set()
    for bundle in catalog.bundles.values():
        capabilities.update(f"env:{name}" for name in bundle.requires_env)
        capabilities.update(f"binary:{name}" for name in bundle.requires_binary)
    facts = Facts(capabilities=frozenset(capabilities))

    verdicts = Plans(catalog).of(step, ()).verdicts
    return frozenset(id_ for id_ in catalog.bundles if verdicts.of(id_, facts).permitted)


def _bundles(
    catalog: Catalog,
    search: Search,
    memory: Memory | None,
    request: Request,
    permitted: frozenset[str],
    step: Step,
    limit: int,
) -> dict[str, Any]:
    from bundle_router.core.records.decision_record import search_json
    from bundle_router.core.search.sufficiency import judge

    ranking = search.rank_bundles(request, permitted, memory)
    rows = [
        {"id": row.id, "score": round(row.score, 6), "about": catalog.bundles[row.id].description}
        for row in ranking.scored[:limit]
    ]
    judgement = judge(catalog, step, ranking)
    return {
        "kind": "bundles",
        "ranked": rows,
        "search": search_json(judgement.use),
        "then": _what_then(catalog, judgement),
        "memory": memory.revision if memory else None,
    }


def _what_then(catalog: Catalog, judged: Judgement) -> str:
    """Return what a step gets that no route covers, and what would decide it if search does not."""
    if judged.ids:
        return f"a step that no route covers is shown {', '.join(judged.ids)}"
    order = catalog.settings.fallback.order
    models = catalog.settings.model.names
    question = f"puts the question to {models[0]}" if models and "model" in order else ""
    offer = f"is offered {', '.join(judged.shortlist)} behind search" if judged.shortlist else ""
    gets = (
        " and ".join(filter(None, (question, offer if "shortlist" in order else "")))
        or "gets [fallback] default"
    )
    by_model = "" if models else " or a model ([model] names)"
    return f"a step that no route covers {gets}; a route (routes.toml){by_model} decides it"


def _tools(
    catalog: Catalog,
    search: Search,
    memories: Memories,
    request: Request,
    permitted: frozenset[str],
    limit: int,
) -> dict[str, Any]:
    tools_of_bundles = frozenset(tool for id_ in permitted for tool in catalog.bundles[id_].tools)
    tools_of_bundles &= frozenset(search.corpus.servers)
    rows = [
        {"id": row.id, "score": round(row.score, 6), "about": catalog.cards[row.id].description}
        for row in search.rank_tools(Request(request.text), tools_of_bundles, memories, k=limit)
    ]
    memory = memories.bundles
    learned = memories.tools
    revisions = {
        "memory": memory.revision if memory else None,
        "tools": learned.revision if learned else None,
    }
    return {"kind": "tools", "ranked": rows, "search": None, **revisions}


def _show(found: dict[str, Any]) -> None:
    rows = [
        (row["id"], f"{row['score']:.2f}", row["about"].partition("\n")[0][:80])
        for row in found["ranked"]
    ]
    if rows:
        table((found["kind"].removesuffix("s"), "score>", "what it is for"), rows)
    else:
        say("nothing was found")
    if found["memory"] is not None:
        say(f"with the memory in force, {found['memory'][:19]}")
    if found["search"] is not None:
        say(f"{found['search']['verdict']}: {found['search']['why']}")
        say(found["then"])
