"""JSON Schema, drafts 4 to 2020-12: finds the errors of a value.

The library (jsonschema-rs) is quick, but holds the GIL and can't be stopped. So a check is begun
only if its work has a bound (see `work_bounds`), and then it needs no thread.

Rules:
1. A schema is untrusted. References are resolved inside it only; nothing is ever fetched.
2. Patterns run in linear time.
3. A value is checked if that takes at most `CHECK_STEPS` (about 40 ms on the caller's event loop, a
   few µs for nearly every call). Its errors are described if that takes at most `ERROR_STEPS`.
4. What can't be checked within these bounds raises `Unchecked`, and so does a schema that contains
   itself, or can't be compiled, such as draft 4's exclusive limits in a newer draft. The caller
   leaves the verdict to the server that wrote the schema. A `pattern` of another dialect
   (look-around, back-references) is not checked, the rest of its schema is.
5. `format`, `contentEncoding` and similar keywords are annotations, which refuse nothing.
6. A required property that has a default counts as given: servers fill it in.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bundle_router.adapters.json_schema.work_bounds import (
    Unchecked,
    Work,
    holds_inexact,
    sizes_of,
    steps_for,
    steps_for_errors,
    work_of,
)
from bundle_router.core.servers.admission.schemas import display_value
from bundle_router.core.values.schema_tree import rebuilt

if TYPE_CHECKING:
    from bundle_router.adapters.json_schema.validators import Validator

CHECK_STEPS: Final = 1_500_000
"""Maximum steps of one check, of about 25 ns each."""
ERROR_STEPS: Final = 30_000
"""Maximum steps of describing the errors of one value, of about 1 µs each."""
MAX_VALUES: Final = 100_000
"""Maximum values in one value: counting them takes up to 30 ms."""
MAX_SENTENCES: Final = 20
KEPT: Final = 512

_ANNOTATIONS: Final = frozenset(("contentEncoding", "contentMediaType", "contentSchema", "format"))


class JsonSchema:
    """A compiled schema, which threads may share. Raises Unchecked if it can't be compiled."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.foreign_patterns: list[str] = []
        """Patterns of other dialects, which no text is checked against."""
        self._work: Work = work_of(root)
        self._compares_items = any(level.unique for level in self._work)
        try:
            self._validator = self._compiled(root)
        except (ValueError, RecursionError) as wrong:
            reason = str(wrong).splitlines()[0][:200]
            raise Unchecked(f"its schema can't be compiled ({reason})") from None

    def _compiled(self, root: Mapping[str, Any]) -> Validator:
        from bundle_router.adapters.json_schema.validators import compiled

        draft = _draft(root.get("$schema"))
        prepared = rebuilt(dict(root), _prepared)
        try:
            return compiled(prepared, draft)
        except ValueError:
            readable = rebuilt(prepared, self._without_foreign_pattern)
            if not self.foreign_patterns:
                raise
            return compiled(readable, draft)

    def _without_foreign_pattern(self, schema: dict[str, Any]) -> dict[str, Any]:
        from bundle_router.adapters.json_schema.validators import compiled

        pattern = schema.get("pattern")
        try:
            compiled({"pattern": pattern} if isinstance(pattern, str) else {}, 2020)
        except ValueError:
            self.foreign_patterns.append(str(pattern))
            return {key: value for key, value in schema.items() if key != "pattern"}
        return schema

    def problems(self, value: Any, *, patience: int = 1) -> list[str]:
        """Return the errors of the value, one sentence each, at most 20.

        `patience` multiplies the size that is checked and the time that it may take. Raises
        Unchecked if finding out would take longer, or if the value is no JSON.
        """
        sizes = sizes_of(value, patience * MAX_VALUES)
        if steps_for(self._work, sizes) > patience * CHECK_STEPS:
            raise Unchecked("they are too large")
        if self._compares_items and holds_inexact(value):
            raise Unchecked("they hold a large number where items must be unique")
        try:
            if self._validator.is_valid(value):
                return []
            if steps_for_errors(self._work, sizes) > ERROR_STEPS:
                return ["arguments: they do not fit the schema, and are too large to say where"]
            return self._sentences(value)
        except ValueError as wrong:
            raise Unchecked(f"they are no JSON ({wrong})") from None

    def _sentences(self, value: Any) -> list[str]:
        from bundle_router.adapters.json_schema.error_sentences import sentence_of

        sentences: dict[str, None] = {}
        for error in self._validator.iter_errors(value):
            sentences[sentence_of(error)] = None
            if len(sentences) == MAX_SENTENCES:
                break
        return list(sentences)


class SchemaChecker:
    """Checks values, and caches the last schemas. Threads may share it.

    A value that can't be checked counts as valid.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Mapping[str, Any], JsonSchema | None]] = OrderedDict()

    def problems(self, name: str, schema: Mapping[str, Any], value: Any) -> Sequence[str]:
        """Return the errors of the value, one sentence each.

        `name` identifies the schema in the cache.
        """
        ready = self._kept_schema(name, schema)
        if ready is None:
            return ()
        try:
            return ready.problems(value)
        except Unchecked:
            return ()

    def _kept_schema(self, name: str, schema: Mapping[str, Any]) -> JsonSchema | None:
        with self._lock:
            entry = self._kept.pop(name, None)
            if entry is None or entry[0] is not schema:
                entry = (schema, _compiled(schema))
            self._kept[name] = entry
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return entry[1]


def unchecked_reason(schema: Mapping[str, Any]) -> str:
    """Return why values are not checked against the schema, or not against all of it; empty if they
    are.
    """
    try:
        patterns = JsonSchema(schema).foreign_patterns
    except Unchecked as reason:
        return str(reason)
    if patterns:
        return f"the pattern {display_value(patterns[0])} is of another dialect"
    return ""


def _compiled(schema: Mapping[str, Any]) -> JsonSchema | None:
    try:
        return JsonSchema(schema)
    except Unchecked:
        return None


def _prepared(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema for the library: without addresses, annotations that some drafts check, and
    required properties that have a default.
    """
    copy = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
    copy.pop("$schema", None)
    for key in ("$id", "id"):  # references inside the schema would be read relative to them
        address = copy.get(key)
        if isinstance(address, str) and not address.startswith("#"):
            del copy[key]

    properties = copy.get("properties")
    required = copy.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        copy["required"] = [name for name in required if not _has_default(properties.get(name))]
    return copy


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _draft(uri: Any) -> int:
    """Return 4, 6, 7, 2019 or 2020; the newest if the schema names no draft or an unknown one."""
    older = (("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019))
    return next((draft for name, draft in older if isinstance(uri, str) and name in uri), 2020)


__all__ = ["CHECK_STEPS", "JsonSchema", "SchemaChecker", "Unchecked", "unchecked_reason"]
