"""Declares a config key once, at the field of the catalog that holds its value.

A field with a `key(...)` may be written in a config file; one without follows from other keys. From
these declarations `core.config.written_forms` makes what stage 1 accepts, the JSON Schemas for
editors, and the reference (`router/docs/reference/config.md`). The catalog itself never looks at
them, so a catalog that an older version recorded is read unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from bundle_router.core.values import BUNDLE_ID, SERVER_NAME, TAINT_NAME, TAINT_SORTS, Effect

T = TypeVar("T")

SAME: Final = object()
REQUIRED: Final[Any] = MISSING
"""The default of a field that has none."""
KEY: Final = "key"
"""Where a field's metadata has its `Key`."""


@dataclass(frozen=True, slots=True)
class Key:
    """What config files may say about one field.

    `written`: its type in TOML, where that differs from the field's. `absent`: the documented
    meaning of an absent key: `SAME` as the field's default, `None` for one that follows from other
    keys, `...` for a required key. `table`: the inner table that contains it (`requires_env` is
    `env` in the table `requires`). `bounds`: arguments of pydantic's Field.
    """

    description: str
    written: Any = None
    absent: object = SAME
    table: str = ""
    bounds: Mapping[str, Any] = field(default_factory=dict)


def key(
    default: T,
    description: str,
    written: Any = None,
    *,
    absent: object = SAME,
    table: str = "",
    **bounds: Any,
) -> T:
    """Declare a config key: `ttl_s: float = key(60.0, "Seconds ...", ge=0)`.

    `default`: that of the field.
    """
    declared = {KEY: Key(description, written, absent, table, bounds)}
    if default == {}:
        return cast("T", field(default_factory=dict, metadata=declared))
    return field(default=default, metadata=declared)


def key_name(field_name: str) -> str:
    """Return the key of a field: a word that Python keeps for itself has a `_` behind it there.

    >>> key_name("is_")
    'is'
    """
    return field_name.removesuffix("_")


def needs_one_of(*keys: str) -> JsonDict:
    """Return the part of a JSON Schema that requires one of the keys."""
    return {"anyOf": [{"required": [name]} for name in keys]}


# --- the types that several keys share ------------------------------------------------------------


def _bundle_id(value: str) -> str:
    if not BUNDLE_ID.fullmatch(value) or len(value) > 128:
        raise ValueError(
            f"{value[:80]!r} is not a bundle id: lower case words joined by dots, such as"
            " 'repo.readonly'"
        )
    return value


def _server_name(value: str) -> str:
    if not SERVER_NAME.fullmatch(value):
        raise ValueError(
            f"{value[:80]!r} is not a server name: lower case letters, digits, '-' and '_', at"
            " most 64"
        )
    return value


def _taint_name(value: str) -> str:
    if value in TAINT_SORTS:
        raise ValueError(f"{value!r} is given already: declare sorts of it under other names")
    if not TAINT_NAME.fullmatch(value):
        raise ValueError(
            f"{value[:80]!r} is not a taint's name: lower case letters, digits, '-' and '_', at"
            " most 64"
        )
    return value


def _env_name(value: str) -> str:
    if not value.replace("_", "a").isalnum() or value[:1].isdigit() or not value.isascii():
        raise ValueError(f"{value[:80]!r} is not the name of an environment variable")
    return value


def without_repetition(value: list[str]) -> list[str]:
    """Return the list. Raises at the first repeated item."""
    if len(set(value)) == len(value):
        return value
    distinct: set[str] = set()
    for index, item in enumerate(value):
        if item in distinct:
            raise PydanticCustomError(
                "repeated", "{item} is listed twice", {"item": repr(item[:80]), "index": index}
            )
        distinct.add(item)
    return value


Line = Annotated[str, Field(min_length=1, max_length=2000)]
Word = Annotated[str, Field(min_length=1, max_length=200)]
_ONCE: Final[JsonDict] = {"uniqueItems": True}
_IS_PATTERN: Final[JsonDict] = {"pattern": r"^[^!\[\]{}|][^\[\]{}|]*$"}
Words = Annotated[
    list[Word], Field(max_length=1000, json_schema_extra=_ONCE), AfterValidator(without_repetition)
]
BundleId = Annotated[str, AfterValidator(_bundle_id)]
BundleIds = Annotated[list[BundleId], Field(max_length=1000), AfterValidator(without_repetition)]
ServerName = Annotated[str, AfterValidator(_server_name)]
TaintName = Annotated[str, AfterValidator(_taint_name)]
FormField = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
_Language = Annotated[str, Field(max_length=35, pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$")]
Languages = Annotated[
    list[_Language],
    Field(max_length=10, json_schema_extra=_ONCE),
    AfterValidator(without_repetition),
]
"""Codes of languages, as BCP 47 has them: `de`, `pt-BR`."""
EnvName = Annotated[str, Field(max_length=200), AfterValidator(_env_name)]
EnvNames = Annotated[list[EnvName], Field(max_length=100), AfterValidator(without_repetition)]
_Pattern = Annotated[str, Field(min_length=1, max_length=200, json_schema_extra=_IS_PATTERN)]
_NameOrNames = (
    _Pattern
    | Annotated[list[_Pattern], Field(min_length=1, max_length=100, json_schema_extra=_ONCE)]
)
Names = Annotated[
    list[Word],
    Field(min_length=1, max_length=100),
    AfterValidator(without_repetition),
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value,
        json_schema_input_type=_NameOrNames,
    ),
]
"""One name or glob, or a list of them."""
Effects = Annotated[
    list[Effect], Field(min_length=1, max_length=4), AfterValidator(without_repetition)
]
ModelName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
Weight = Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]
