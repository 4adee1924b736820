"""What the written forms are made of: their base, and the types that several files share."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from bundle_router.core.catalog import Feature
from bundle_router.core.models import BUNDLE_ID, SERVER_NAME, Effect


class Form(BaseModel):
    """Base of the written forms. TOML has types, so nothing needs coercing; only the files read are compiled."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


def needs_one_of(*keys: str) -> JsonDict:
    """What stage 2 asks for, said for editors as well: that one of the keys is there."""
    return {"anyOf": [{"required": [key]} for key in keys]}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _bundle_id(value: str) -> str:
    if not BUNDLE_ID.fullmatch(value) or len(value) > 128:
        raise ValueError(f"{value[:80]!r} is not a bundle id: lower case words joined by dots, such as 'repo.readonly'")
    return value


def _server_name(value: str) -> str:
    if not SERVER_NAME.fullmatch(value):
        raise ValueError(f"{value[:80]!r} is not a server name: lower case letters, digits, '-' and '_', at most 64")
    return value


def _env_name(value: str) -> str:
    if not value.replace("_", "a").isalnum() or value[:1].isdigit() or not value.isascii():
        raise ValueError(f"{value[:80]!r} is not the name of an environment variable")
    return value


def without_repetition(value: list[str]) -> list[str]:
    if len(set(value)) == len(value):
        return value
    seen: set[str] = set()
    for index, item in enumerate(value):
        if item in seen:
            raise PydanticCustomError("repeated", "{item} is listed twice", {"item": repr(item[:80]), "index": index})
        seen.add(item)
    return value


Line = Annotated[str, Field(min_length=1, max_length=2000)]
Word = Annotated[str, Field(min_length=1, max_length=200)]
_ONCE: Final[JsonDict] = {"uniqueItems": True}
_IS_PATTERN: Final[JsonDict] = {"pattern": r"^[^!\[\]{}|][^\[\]{}|]*$"}
Words = Annotated[list[Word], Field(max_length=1000, json_schema_extra=_ONCE), AfterValidator(without_repetition)]
BundleId = Annotated[str, AfterValidator(_bundle_id)]
BundleIds = Annotated[list[BundleId], Field(max_length=1000), AfterValidator(without_repetition)]
ServerName = Annotated[str, AfterValidator(_server_name)]
EnvName = Annotated[str, Field(max_length=200), AfterValidator(_env_name)]
EnvNames = Annotated[list[EnvName], Field(max_length=100), AfterValidator(without_repetition)]
_Pattern = Annotated[str, Field(min_length=1, max_length=200, json_schema_extra=_IS_PATTERN)]
_NameOrNames = _Pattern | Annotated[list[_Pattern], Field(min_length=1, max_length=100, json_schema_extra=_ONCE)]
Names = Annotated[
    list[Word],
    Field(min_length=1, max_length=100),
    AfterValidator(without_repetition),
    BeforeValidator(_as_list, json_schema_input_type=_NameOrNames),
]
"""One name or glob, or a list of them."""
Effects = Annotated[list[Effect], Field(min_length=1, max_length=4), AfterValidator(without_repetition)]
Features = Annotated[list[Feature], Field(max_length=6), AfterValidator(without_repetition)]
Positive = Annotated[int, Field(ge=1, le=1_000_000_000)]
