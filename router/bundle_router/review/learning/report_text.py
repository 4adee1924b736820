"""Proposals as TOML to paste into the config, each with its evidence as a comment.

The text is one valid document, for reading and copying: nothing reads it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bundle_router.core.catalog import Catalog
from bundle_router.core.catalog.step_address import address_json
from bundle_router.review.learning.proposals import (
    ExampleProposal,
    Proposals,
    RouteProposal,
    TrimProposal,
)
from bundle_router.review.toml_text import toml_string

HEAD = (
    "# Proposed by `bundle-router learn`. Nothing reads this file: copy what you agree with into"
    " the config."
)


def proposals_toml(proposals: Proposals, catalog: Catalog) -> str:
    """Return the proposals as TOML text."""
    return (
        "\n".join([HEAD, *_routes(proposals.routes, catalog), *_bundles(proposals, catalog)]) + "\n"
    )


def _routes(routes: Sequence[RouteProposal], catalog: Catalog) -> Iterator[str]:
    names = {route.name for route in catalog.routes}
    if routes:
        yield "\n# --- routes.toml: put these rows first; each covers one address only"
    for row in routes:
        yield ""
        yield (
            f"# {row.same} of {row.answers} answers in {row.runs} runs were this one; {row.used} of"
            " them were used."
        )
        if row.cost_usd:
            yield f"# The models took {row.cost_usd:.4f} USD for them."
        yield "[[routes]]"
        yield f"name = {toml_string(_free_name(row, names))}"
        for part, word in address_json(row.address).items():
            yield f"{part} = {toml_string(word)}"
        yield f"bundles = {_list(row.bundles)}"


def _free_name(row: RouteProposal, names: set[str]) -> str:
    plain = "-".join(filter(None, row.address))
    name = plain
    number = 2
    while name in names:
        name = f"{plain}-{number}"
        number = number + 1
    names.add(name)
    return name


def _bundles(proposals: Proposals, catalog: Catalog) -> Iterator[str]:
    trimmed = {row.bundle: row for row in proposals.trims}
    examples: dict[str, list[ExampleProposal]] = {}
    for row in proposals.examples:
        examples.setdefault(row.bundle, []).append(row)

    ids = sorted({*examples, *trimmed})
    if ids:
        yield (
            "\n# --- bundles.toml: change these keys of the bundles' entries and leave the others"
            " as they are"
        )
    for id_ in ids:
        yield f"\n[bundles.{toml_string(id_)}]"
        yield from _example_lines(examples.get(id_, []), catalog)
        if id_ in trimmed:
            yield from _trim_lines(trimmed[id_], catalog)


def _example_lines(examples: Sequence[ExampleProposal], catalog: Catalog) -> Iterator[str]:
    for row in examples:
        rank = f"ranks it {row.rank}." if row.rank is not None else "does not find it"
        model = f"a model picked it {row.answered_by_model}×, " if row.answered_by_model else ""
        runs = f"{row.runs} run{'s' if row.runs != 1 else ''} ({', '.join(row.evidence)})"
        yield f"# {toml_string(row.text)}: in {runs}, {model}and search alone {rank}"
    if examples:
        bundle = catalog.bundles[examples[0].bundle]
        yield f"examples = {_list((*bundle.examples, *(row.text for row in examples)))}"


def _trim_lines(row: TrimProposal, catalog: Catalog) -> Iterator[str]:
    bundle = catalog.bundles[row.bundle]
    words = (
        f"shown at {row.steps} steps of {row.runs} runs and never called, {row.tokens:,} tokens"
        " each time"
    )
    if row.whole:
        yield f"# All of it was {words}: take it out of the routes that name it."
        return
    yield f"# {', '.join(row.tools)}: {words}."
    if bundle.bundles or bundle.patterns:
        yield "# (It is composed of others or of globs: take them out where they come from.)"
        return
    yield f"tools = {_list([tool for tool in bundle.tools if tool not in row.tools])}"


def _list(texts: Sequence[str]) -> str:
    return "[" + ", ".join(toml_string(text) for text in texts) + "]"
