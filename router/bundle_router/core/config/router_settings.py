"""Stage 2 for `router.toml` and for the limits of local tools: lays the sections over each other,
and checks them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from bundle_router.core.catalog import (
    EmbeddingSettings,
    ModelSettings,
    SearchSettings,
    Settings,
)
from bundle_router.core.catalog.config_tables import RepoLimits
from bundle_router.core.catalog.settings import ServiceSettings
from bundle_router.core.config.bundles import BundleResolver
from bundle_router.core.config.entries import WrittenEntry
from bundle_router.core.config.overlay import WrittenConfig
from bundle_router.core.config.positions import Path
from bundle_router.core.config.problem_report import Report
from bundle_router.core.config.secrets import looks_secret
from bundle_router.core.config.servers import check_url
from bundle_router.core.values import BinaryRule, LocalSettings

CheckBinary = Callable[[BinaryRule], Sequence[str]]

_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)(?:\*\.)?(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+(?!\d+\Z)[a-z0-9-]{2,63}"
)
_ADVICE: Final = "keep it in the environment and name the variable in key_env"


def no_check(rule: BinaryRule) -> Sequence[str]:
    """Find nothing wrong: the patterns of a rule are then compiled only when it is used."""
    return ()


def resolve_settings(written: WrittenConfig, resolver: BundleResolver, report: Report) -> Settings:
    """Return the settings: defaults, then the shipped file's, then the project's, key by key."""
    settings = Settings()
    for section, entries in written.sections.items():
        for entry in entries:
            values = {key: getattr(entry.value, key) for key in entry.keys}
            settings = replace(settings, **{section: replace(getattr(settings, section), **values)})
    for entry in written.sections.get("fallback", ()):
        resolver.check_ids(entry, "default", entry.value.default)
    for entry in written.sections.get("search", ()):
        _check_search(entry, report)
    for entry in written.sections.get("model", ()):
        _check_model(entry, settings.model, report)
    for entry in written.sections.get("service", ()):
        _check_issuer(entry, report)
    default = tuple(resolver.ids.get(id_, id_) for id_ in settings.fallback.default)
    return replace(settings, fallback=replace(settings.fallback, default=default))


def _check_search(entry: WrittenEntry[SearchSettings], report: Report) -> None:
    embeddings = entry.value.embeddings
    if embeddings is None:
        return
    if (embeddings.model is None) == (embeddings.local is None):
        if embeddings.model is None:
            message = "names neither a model nor a local one"
        else:
            message = "names both a model and a local one"
        report.add_about(entry, "embeddings", message, "name one of the two")
    if embeddings.model is not None and looks_secret(embeddings.model):
        report.add_about(entry, ("embeddings", "model"), "looks like a secret written out", _ADVICE)
    local = embeddings.local
    if local is not None and not (local.startswith("/") or local.isidentifier()):
        message = f"{local[:80]!r} is neither an absolute folder nor the name of a package"
        report.add_about(entry, ("embeddings", "local"), message)
    _check_base_url(entry, ("embeddings",), embeddings, report)


def _check_issuer(entry: WrittenEntry[ServiceSettings], report: Report) -> None:
    issuer = entry.value.issuer
    if issuer is None:
        return
    for name, url, example in (
        ("issuer", issuer.issuer, "https://login.example"),
        ("keys", issuer.keys, "https://login.example/.well-known/jwks.json"),
    ):
        where = ("issuer", name)
        instead = "the issuer's keys are public: name an address without one"
        check_url(entry, where, url, report, example=example, instead=instead)


def _check_model(
    entry: WrittenEntry[ModelSettings], settings: ModelSettings, report: Report
) -> None:
    _check_base_url(entry, (), entry.value, report)
    for index, name in enumerate(entry.value.names):
        if looks_secret(name):
            report.add_about(entry, ("names", index), "looks like a secret written out", _ADVICE)
    for options in entry.value.options:
        _check_base_url(entry, ("options", options.name), options, report)
        if options.name not in settings.names:
            hint = report.suggester.did_you_mean(options.name, settings.names)
            message = f"{options.name[:80]!r} is not one of the models in names"
            report.add_about(entry, ("options", options.name), message, hint or "add it there")


def _check_base_url(
    entry: WrittenEntry[Any], where: Path, settings: EmbeddingSettings | Any, report: Report
) -> None:
    if settings.base_url is not None:
        place = (*where, "base_url")
        check_url(
            entry,
            place,
            settings.base_url,
            report,
            example="http://127.0.0.1:11434/v1",
            instead=_ADVICE,
        )


def resolve_local(
    written: WrittenConfig, report: Report, check_binary: CheckBinary
) -> LocalSettings:
    """Return the settings of the first-party tools in the policy file."""
    hosts: tuple[str, ...] = ()
    if written.docs is not None:
        hosts = tuple(sorted(written.docs.value.hosts))
        for index, host in enumerate(written.docs.value.hosts):
            if not _HOST.fullmatch(host):
                hint = "a name only, in lower case: 'docs.python.org'"
                report.add_about(
                    written.docs, ("hosts", index), f"{host[:80]!r} is not the name of a host", hint
                )
    names: set[str] = set()
    for entry in written.binaries:
        rule = entry.value
        if rule.name in names:
            report.add_about(entry, "name", f"another binary is called {rule.name!r} already")
        names.add(rule.name)
        for sentence in check_binary(rule):
            report.add_about(entry, "", sentence)
    repo = written.repo.value if written.repo is not None else RepoLimits()
    return LocalSettings(
        docs_hosts=hosts,
        binaries=tuple(
            sorted((entry.value for entry in written.binaries), key=lambda rule: rule.name)
        ),
        hard_links=repo.hard_links,
        credentials=repo.credentials,
        tokens=repo.tokens,
    )
