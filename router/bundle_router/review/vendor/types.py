"""Converts JSON Schema to Python types: models for objects with known properties, aliases for long
types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bundle_router.core.values.schema_tree import schema_at
from bundle_router.review.vendor.naming import Names, literal, pascal

_PLAIN: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_LONG: Final = 48
"""Minimum characters of a type that gets its own name."""
_MAX_CHOICES: Final = 400
_TEXT_CHARS: Final = 600


@dataclass(frozen=True, slots=True)
class ModelField:
    """One property: its Python name, the server's name if that differs, its type, and its
    description.
    """

    name: str
    alias: str | None
    type: str
    required: bool
    description: str


@dataclass(slots=True)
class WrapperModel:
    name: str
    description: str
    open: bool
    fields: list[ModelField] = field(default_factory=list)


@dataclass(slots=True)
class Types:
    """The models and aliases of one module, in the order of their definition."""

    names: Names
    models: list[WrapperModel] = field(default_factory=list)
    aliases: list[tuple[str, str]] = field(default_factory=list)

    def model(
        self, wish: str, schema: Mapping[str, Any], root: Mapping[str, Any], refs: dict[str, str]
    ) -> str:
        """Return the name of a model for an object schema.

        `refs` are the models made for references so far.
        """
        model = WrapperModel(
            self.names.claim(wish),
            str(schema.get("description") or ""),
            bool(schema.get("additionalProperties")),
        )
        self.models.append(model)
        self._fill(model, wish, schema, root, refs)
        return model.name

    def _fill(
        self,
        made: WrapperModel,
        wish: str,
        schema: Mapping[str, Any],
        root: Mapping[str, Any],
        refs: dict[str, str],
    ) -> None:
        required = schema.get("required") or []
        names = Names()
        for key, inner in (schema.get("properties") or {}).items():
            name = names.claim(key)
            type_wish = f"{wish}{pascal(key)}"
            field_type = self.of(type_wish, inner, root, refs, ())
            field = ModelField(
                name=name,
                alias=None if name == key else key,
                type=self.name_type(type_wish, field_type),
                required=key in required,
                description=_description(inner),
            )
            made.fields.append(field)

    def of(
        self,
        wish: str,
        schema: Any,
        root: Mapping[str, Any],
        refs: dict[str, str],
        trail: tuple[str, ...],
    ) -> str:
        """Return the type of a schema.

        `trail` are the references that led here, so that a circular one ends.
        """
        if not isinstance(schema, dict):
            return "Any"
        if isinstance(schema.get("$ref"), str):
            return self._referenced(schema["$ref"], root, refs, trail)
        if isinstance(schema.get("enum"), list) or "const" in schema:
            return self._choice(schema["enum"] if "enum" in schema else [schema["const"]])
        for key in ("anyOf", "oneOf"):
            if key in schema and not schema.get("properties"):
                parts = [
                    self.of(f"{wish}{n}", inner, root, refs, trail)
                    for n, inner in enumerate(schema[key], 1)
                ]
                return self.union(wish, parts)
        if isinstance(schema.get("type"), list):
            parts = [
                self.of(f"{wish}{n}", {**schema, "type": type_name}, root, refs, trail)
                for n, type_name in enumerate(schema["type"], 1)
            ]
            return self.union(wish, parts)
        return self._type_of(wish, schema, root, refs, trail)

    def _type_of(
        self,
        wish: str,
        schema: Mapping[str, Any],
        root: Mapping[str, Any],
        refs: dict[str, str],
        trail: tuple[str, ...],
    ) -> str:
        kind = schema.get("type")
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind == "array":
            item = self.of(f"{wish}Item", schema.get("items"), root, refs, trail)
            return f"list[{self.name_type(f'{wish}Item', item)}]"
        if schema.get("properties") and not any(
            key in schema for key in ("allOf", "anyOf", "oneOf", "$ref")
        ):
            return self.model(wish, schema, root, refs)
        if kind == "object":
            value = self.of(f"{wish}Value", schema.get("additionalProperties"), root, refs, trail)
            return f"dict[str, {self.name_type(f'{wish}Value', value)}]"
        return "Any"

    def _referenced(
        self, ref: str, root: Mapping[str, Any], refs: dict[str, str], trail: tuple[str, ...]
    ) -> str:
        if ref in refs:
            return refs[ref]
        target = schema_at(root, ref)
        if not isinstance(target, dict) or ref in trail:
            return "Any"
        wish = pascal(ref.rsplit("/", 1)[-1]) or "Root"
        if target.get("properties") and target.get("type", "object") == "object":
            model = WrapperModel(
                self.names.claim(wish),
                str(target.get("description") or ""),
                bool(target.get("additionalProperties")),
            )
            refs[ref] = model.name
            self.models.append(model)
            self._fill(model, model.name, target, root, refs)
            return model.name
        return self.of(wish, target, root, refs, (*trail, ref))

    def _choice(self, values: Sequence[Any]) -> str:
        if (
            not values
            or len(values) > _MAX_CHOICES
            or not all(v is None or isinstance(v, str | int) for v in values)
        ):
            return "Any"
        literals = [literal(v) if isinstance(v, str) else repr(v) for v in values]
        return f"Literal[{', '.join(dict.fromkeys(literals))}]"

    def union(self, wish: str, parts: Sequence[str]) -> str:
        """Return `A | B` without repetitions. A union with Any is Any."""
        names = [self.name_type(wish, part) for part in dict.fromkeys(parts)]
        return "Any" if "Any" in names else " | ".join(dict.fromkeys(names))

    def name_type(self, wish: str, type_: str) -> str:
        """Return the type, or the name of an alias if the type is long."""
        if len(type_) <= _LONG:
            return type_
        for name, alias in self.aliases:
            if alias == type_:
                return name
        name = self.names.claim(wish)
        self.aliases.append((name, type_))
        return name


def _description(schema: object) -> str:
    text = schema.get("description") if isinstance(schema, dict) else None
    if not isinstance(text, str):
        return ""
    return " ".join(text.split())[:_TEXT_CHARS]
