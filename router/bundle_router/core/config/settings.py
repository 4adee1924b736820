"""Stage 2 for `router.toml` and the limits of local tools: written sections to the catalog's settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from bundle_router.core.catalog import ActivationSettings, CacheSettings, Fallback, Limits, LogSettings, Settings
from bundle_router.core.config.bundles import BundleResolver
from bundle_router.core.config.model import resolve_model
from bundle_router.core.config.overlay import Written
from bundle_router.core.config.report import Report
from bundle_router.core.config.search import resolve_search
from bundle_router.core.models import BinaryRule, LocalSettings

CheckBinary = Callable[[BinaryRule], Sequence[str]]

_HOST: Final = re.compile(r"(?=.{1,253}\Z)(?:\*\.)?(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+(?!\d+\Z)[a-z0-9-]{2,63}")


def no_check(rule: BinaryRule) -> Sequence[str]:
    """Finds nothing wrong: the patterns of a rule are then first compiled when it is used."""
    return ()


def resolve_settings(written: Written, resolver: BundleResolver, report: Report) -> Settings:
    """The settings: defaults, then what the shipped file sets, then what the project's does, key by key."""
    for entry in written.sections.get("fallback", ()):
        resolver.check_ids(entry, "default", entry.form.default)
    fallback = _merged(written, "fallback")
    if "default" in fallback:
        fallback["default"] = tuple(resolver.ids.get(id_, id_) for id_ in fallback["default"])
    return Settings(
        fallback=Fallback(**fallback),
        search=resolve_search(written, _merged(written, "search"), report),
        model=resolve_model(written, _merged(written, "model"), report),
        activation=ActivationSettings(**_merged(written, "activation")),
        limits=Limits(**_merged(written, "limits")),
        log=LogSettings(**_merged(written, "log")),
        cache=CacheSettings(**_merged(written, "cache")),
    )


def _merged(written: Written, section: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for entry in written.sections.get(section, ()):
        for key in entry.form.model_fields_set:
            value = getattr(entry.form, key)
            merged[key] = tuple(value) if isinstance(value, list) else value
    return merged


def resolve_local(written: Written, report: Report, check_binary: CheckBinary) -> LocalSettings:
    """What the policy file says about the first-party tools."""
    hosts: tuple[str, ...] = ()
    if written.docs is not None:
        hosts = tuple(sorted(written.docs.form.hosts))
        for index, host in enumerate(written.docs.form.hosts):
            if not _HOST.fullmatch(host):
                hint = "a name only, in lower case: 'docs.python.org'"
                where = (*written.docs.path, "hosts", index)
                report.add(written.docs.file, where, f"{host[:80]!r} is not the name of a host", hint)
    seen: set[str] = set()
    for entry in written.binaries:
        rule = entry.form
        if rule.name in seen:
            report.add(entry.file, (*entry.path, "name"), f"another binary is called {rule.name!r} already")
        seen.add(rule.name)
        for sentence in check_binary(rule):
            report.add(entry.file, entry.path, sentence)
    return LocalSettings(
        docs_hosts=hosts,
        binaries=tuple(sorted((entry.form for entry in written.binaries), key=lambda rule: rule.name)),
        hard_links=written.repo.form.hard_links if written.repo is not None else "allow",
    )
