"""The catalog that stands beside the records of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter

from bundle_router.core.catalog import Bundle, Card, Catalog, Policy, Route, Server, Settings, Skill
from bundle_router.core.models import LocalSettings

T = TypeVar("T")


def catalog_from(value: Mapping[str, Any]) -> Catalog:
    """Return the catalog that a `catalog.json` holds. Raises pydantic's ValidationError on what is not one."""

    def each(kind: type[T], rows: str) -> tuple[T, ...]:
        return TypeAdapter(tuple[kind, ...]).validate_python(value.get(rows, ()))  # type: ignore[valid-type]  # a runtime type

    return Catalog(
        servers={server.name: server for server in each(Server, "servers")},
        bundles={bundle.id: bundle for bundle in each(Bundle, "bundles")},
        routes=each(Route, "routes"),
        policies=each(Policy, "policies"),
        settings=TypeAdapter(Settings).validate_python(value.get("settings", {})),
        local=LocalSettings.model_validate(value.get("local", {})),
        cards={card.name: card for card in each(Card, "cards")},
        skills={skill.path: skill for skill in each(Skill, "skills")},
    )
