"""`bundle-router check`: reports whether the config is valid, and what in it is dead or risky."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bundle_router.cli.local import local_servers
from bundle_router.cli.output import print_json, say
from bundle_router.cli.shared_arguments import add_config, add_development, add_json, config_folder
from bundle_router.cli.vendor import DEFAULT_FOLDER
from bundle_router.core.catalog import Catalog
from bundle_router.core.config.config_text import MAX_BYTES, ConfigFile
from bundle_router.core.config.problem_report import excerpt_lines
from bundle_router.core.decide.unusable_tools import unused_local
from bundle_router.core.servers.pins.reviewed import Pins
from bundle_router.core.values.spelling import Suggester
from bundle_router.errors import Problem, RequestError
from bundle_router.review.example_writing.candidates import lacking_line
from bundle_router.review.unrouted import unpickable_line
from bundle_router.review.vendor import drifted_wrappers, module_name
from bundle_router.workbench.server_reviews import Review, json_of, lines_of, remote_servers, review

if TYPE_CHECKING:
    from bundle_router.workbench.model_checks import ModelCheck

FEW_BUNDLES: Final = 20
"""Bundles among which words alone tell the right one."""


def declare(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 when something is dead or risky"
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="first correct your files where there is one right answer",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="also ask every tool server whether it is still as pinned",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="with --live: also ask each model a question of under 100 tokens, which costs that",
    )
    add_development(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.config_files import displayed_path, read_config, read_content
    from bundle_router.core.config.resolve import resolve
    from bundle_router.core.exposure import skills
    from bundle_router.local_tools.workspace.grammar import problems as check_binary
    from bundle_router.review.lint import check, pin_problems, unpinned_servers
    from bundle_router.wiring.catalogs import (
        declared_files,
        local_cards,
        project_folder,
        read_catalog,
    )

    if arguments.yes and not arguments.live:
        raise RequestError("--yes is for the models", advice="give --live, too")
    local = local_servers(arguments)
    _, cards = local_cards(local)
    config = config_folder(arguments)
    fixes = _fix(config) if arguments.fix else []
    files = [*declared_files(local), *read_config(config)]
    problems = check(
        files,
        cards=cards,
        check_binary=check_binary,
        read_content=lambda name: read_content(config, name, skills.MAX_BYTES),
    )
    errors = [problem for problem in problems if problem.level == "error"]
    if errors:
        _show(arguments, _Checked(files, problems, fixes))
        return 2
    catalog, pins = read_catalog(config, local)
    problems += unused_local(local, catalog)
    problems += _missing_extras(catalog)
    problems += _missing_keys(catalog)
    problems += _unknown_providers(catalog)
    problems += _unpriced_models(catalog)
    bundles = displayed_path(project_folder(config) / "bundles")
    problems += pin_problems(catalog, pins, str(bundles / "pins"), resolve(files, cards).written)
    for folder in (bundles / "vendored", bundles.parent / DEFAULT_FOLDER):
        problems += _stale_wrappers(catalog, pins, folder)
    live_servers = remote_servers(catalog, ()) if arguments.live else []
    live = list(review(catalog, pins, live_servers, development=arguments.development))
    models = _ask_models(catalog) if arguments.yes else ()
    unpinned = unpinned_servers(catalog, pins)
    _show(arguments, _Checked(files, problems, fixes, catalog, unpinned, live, models))
    if any(row.comparison is not None and not row.clean for row in live) or (
        problems and arguments.strict
    ):
        return 1
    failed = any(row.comparison is None for row in live) or any(row.failure for row in models)
    return 4 if failed else 0


@dataclass(frozen=True, slots=True)
class _Checked:
    """The result of `check`. `catalog`: None if the config can't be used."""

    files: Sequence[ConfigFile]
    problems: Sequence[Problem]
    fixes: Sequence[str] = ()
    catalog: Catalog | None = None
    unpinned: Sequence[str] = ()
    live: Sequence[Review] = ()
    models: Sequence[ModelCheck] = ()


def _fix(config: str | None) -> list[str]:
    """Correct the project's files where there is one right answer; return a line for each
    correction.
    """
    from bundle_router.adapters.config_files import read_config
    from bundle_router.adapters.text_files import lock_folder, replace_texts
    from bundle_router.core.config.config_text import ConfigFile
    from bundle_router.core.config.fixes import fix_text

    texts: dict[Path, str] = {}
    lines = []
    folder = Path(config or "config")
    with lock_folder(folder) if folder.is_dir() else nullcontext():
        for file in read_config(config):
            for _ in range(
                9 if file.layer == "project" else 0
            ):  # one correction brings another mistake to light
                text, fixes = fix_text(file)
                if not fixes:
                    break
                file = ConfigFile(file.name, file.display_path, text)
                texts[Path(file.display_path)] = text
                lines += [f"{file.display_path}:{fix.line}: {fix.what}" for fix in fixes]
        replace_texts(texts)
    return lines


def _ask_models(catalog: Catalog) -> Sequence[ModelCheck]:
    if not catalog.settings.model.names:
        return ()
    from bundle_router.workbench.model_checks import check_models

    return check_models(catalog)


def _show(arguments: argparse.Namespace, checked: _Checked) -> None:
    catalog = checked.catalog
    if arguments.json:
        print_json(
            {
                "valid": catalog is not None,
                "catalog_revision": catalog.revision if catalog is not None else None,
                "problems": [asdict(p) for p in checked.problems],
                "fixed": checked.fixes,
                "unpinned": checked.unpinned,
                "live": [json_of(row) for row in checked.live],
                "models": [asdict(row) for row in checked.models],
            }
        )
        return
    for line in checked.fixes:
        say(f"fixed: {line}")
    texts = {file.display_path: file.text.split("\n") for file in checked.files}
    for problem in checked.problems:
        say(str(problem) if problem.level == "error" else f"{problem.level}: {problem}")
        for line in excerpt_lines(problem, texts.get(problem.file, ())):
            say(line)
    if catalog is None:
        count = sum(problem.level == "error" for problem in checked.problems)
        say(f"{count} problem{'s' if count != 1 else ''}: the config can't be used")
        unknown = [
            p
            for p in checked.problems
            if p.message.startswith("unknown bundle") and not p.suggestion
        ]
        if unknown and not arguments.local:
            say("bundles of your own Python tools need --local NAME=module:TOOLS")
        return
    for row in checked.live:
        for line in lines_of(row):
            say(line)
    for check in checked.models:
        say(check.line)
    if arguments.live and catalog.settings.model.names and not checked.models:
        names = ", ".join(catalog.settings.model.names)
        say(f"not asked: {names} (--yes asks each model a question of under 100 tokens)")
    nouns = (
        ("bundle", "bundles"),
        ("route", "routes"),
        ("policy", "policies"),
        ("server", "servers"),
    )
    tables = (catalog.bundles, catalog.routes, catalog.policies, catalog.servers)
    parts = [
        f"{len(rows)} {names[len(rows) != 1]}" for rows, names in zip(tables, nouns, strict=True)
    ]
    say(f"valid: {', '.join(parts)}; revision {catalog.revision}")
    only_routed = unpickable_line(catalog)
    if only_routed:
        say(only_routed)
    few_examples = lacking_line(catalog, _own_bundles(checked.files))
    if few_examples:
        say(few_examples)
    if _lacks_embeddings(catalog):
        say(
            f"of more than {FEW_BUNDLES} bundles search finds the right one more often with a local"
            " embedding model ([search.embeddings] local, router/docs/how-to/search.md)"
        )
    for line in _keyless_lines(catalog):
        say(line)
    if config_folder(arguments) is None:
        say(
            "this is the shipped config alone: there is no config folder here (`bundle-router init`"
            " writes one)"
        )
    if checked.unpinned:
        say(
            f"not usable before they are reviewed: {', '.join(checked.unpinned)} (bundle-router"
            " pin)"
        )


def _lacks_embeddings(catalog: Catalog) -> bool:
    """Return whether many bundles are searched by words alone."""
    settings = catalog.settings
    searches = not {"search", "shortlist"}.isdisjoint(settings.fallback.order)
    bundles = sum(bundle.enabled and bundle.selectable for bundle in catalog.bundles.values())
    return searches and bundles > FEW_BUNDLES and settings.search.embeddings is None


def _own_bundles(files: Sequence[ConfigFile]) -> frozenset[str]:
    """Return the ids of the bundles that valid files of the project declare."""
    own = [file for file in files if (file.name, file.layer) == ("bundles.toml", "project")]
    return frozenset(id_ for file in own for id_ in tomllib.loads(file.text).get("bundles", {}))


def _missing_extras(catalog: Catalog) -> Iterator[Problem]:
    """Yield the extras that the config needs and this installation lacks."""
    from bundle_router.adapters.system import missing_modules

    for need in _needed_extras(catalog):
        missing = missing_modules(need.modules)
        if missing:
            yield Problem(
                need.file,
                0,
                need.path,
                f"{need.purpose} can't be used without {' and '.join(missing)}",
                f"pip install 'bundle-router[{need.extra}]'",
                "warning",
                "not-installed",
            )


class _NeededExtra(NamedTuple):
    """An extra that a config needs: its modules, what for, and the key that says so."""

    extra: str
    modules: tuple[str, ...]
    purpose: str
    file: str
    path: str


def _needed_extras(catalog: Catalog) -> Iterator[_NeededExtra]:
    settings = catalog.settings
    authorized = [server.name for server in remote_servers(catalog, ()) if server.auth is not None]
    if authorized:
        purpose = f"servers with auth ({', '.join(authorized)})"
        yield _NeededExtra("mcp", ("mcp", "httpx2"), purpose, "servers.toml", "servers")
    if settings.model.names:
        yield _NeededExtra(
            "model", ("litellm", "instructor"), "models", "router.toml", "model.names"
        )
    embeddings = settings.search.embeddings
    if embeddings and embeddings.local:
        purpose = "a local embedding model"
        yield _NeededExtra(
            "embeddings", ("tokenizers",), purpose, "router.toml", "search.embeddings"
        )


@dataclass(frozen=True, slots=True)
class _ModelAddress:
    """A model elsewhere that the config names, and how it is reached."""

    where: str
    """The key of router.toml that names it."""
    name: str
    base_url: str | None
    key_env: str | None


def _model_addresses(catalog: Catalog) -> Iterator[_ModelAddress]:
    settings = catalog.settings
    for choice in settings.model.choices:
        yield _ModelAddress("model", choice.name, choice.base_url, choice.key_env)
    embeddings = settings.search.embeddings
    if embeddings is not None and embeddings.model is not None:
        yield _ModelAddress(
            "search.embeddings", embeddings.model, embeddings.base_url, embeddings.key_env
        )


def _missing_keys(catalog: Catalog) -> Iterator[Problem]:
    """Yield the models that are not asked because their key can't be used."""
    from bundle_router.adapters.llm.credentials import key_problem

    for model in _model_addresses(catalog):
        problem = key_problem(model.name, model.key_env, model.base_url)
        if problem:
            yield Problem(
                "router.toml",
                0,
                model.where,
                f"{model.name!r} is not asked: {problem}",
                "set the variable where the router runs",
                "warning",
                "no-key",
            )


def _unknown_providers(catalog: Catalog) -> Iterator[Problem]:
    """Yield the models that can't be asked, because nobody knows who provides them."""
    addresses = {model.name: model for model in _model_addresses(catalog)}
    if not addresses:
        return
    from bundle_router.adapters.llm import without_provider

    for name, providers in without_provider(addresses).items():
        prefix, slash, rest = name.partition("/")
        nearest = Suggester().nearest(prefix, providers) if slash else None
        if nearest is not None:
            advice = f"did you mean '{nearest}/{rest}'?"
        else:
            advice = (
                f"write its provider before it: 'openai/{name}' for any OpenAI-compatible server"
            )
        yield Problem(
            "router.toml",
            0,
            addresses[name].where,
            f"{name!r} can't be asked: litellm knows no such provider or model",
            advice,
            "warning",
            "no-provider",
        )


def _unpriced_models(catalog: Catalog) -> Iterator[Problem]:
    """Yield the models that a limit of costs does not bound, because nobody knows their price."""
    model = catalog.settings.model
    if model.max_cost_per_day is None or not model.names:
        return
    from bundle_router.adapters.llm import without_price

    for name in without_price(model.names):
        yield Problem(
            "router.toml",
            0,
            "model.max_cost_per_day",
            f"{name!r} has no price in litellm's list and counts as free: this does not bound it",
            "bound it by [model] max_questions_per_run",
            "risk",
            "no-price",
        )


def _keyless_lines(catalog: Catalog) -> Iterator[str]:
    """Yield a line for each model that is asked without a key."""
    for model in _model_addresses(catalog):
        if model.base_url is not None and model.key_env is None:
            yield (
                f"no key is sent to {model.base_url} for {model.name!r}: [{model.where}] has"
                " base_url and no key_env"
            )


def _stale_wrappers(catalog: Catalog, pins: Mapping[str, Pins], folder: Path) -> Iterator[Problem]:
    """Yield vendored wrappers whose definitions differ from the pinned ones."""
    from bundle_router.adapters.text_files import read_within

    for name in pins:
        path = folder / f"{module_name(name)}.py"
        if not path.is_file():
            continue
        cards = {card.tool: card for card in catalog.cards.values() if card.server == name}
        try:
            text = read_within(folder, path, MAX_BYTES).decode("utf-8")
            stale = drifted_wrappers(text, cards)
        except (OSError, ValueError, SyntaxError) as wrong:
            yield Problem(
                str(path), 0, "", f"is no vendored module: {wrong}", "", "warning", "stale-wrapper"
            )
            continue
        if stale:
            message = f"wraps other definitions than are pinned: {', '.join(stale[:10])}"
            yield Problem(
                str(path),
                0,
                "PINS",
                message,
                f"bundle-router vendor {name}",
                "warning",
                "stale-wrapper",
            )
