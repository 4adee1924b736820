"""Checks a schema's references: they must stay inside it, must not loop, and must not multiply.

1. Only `#`, `#/pointer` and `#anchor` are references. Anything else would have to be fetched, and
   is refused.
2. A reference must lead to a schema that was itself checked.
3. Recursion through a property or an item is fine, because values end. Recursion that stays on one
   value (only through `$ref`, `anyOf` and the like) would never end, and is refused.
4. The size of a schema is counted with every reference written out. Ten schemas that each name the
   next one ten times are ten billion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bundle_router.core.servers.admission.admitted import DefinitionLimits, Fault
from bundle_router.core.servers.admission.schemas import (
    display_value,
    keyword_fault,
)
from bundle_router.core.values.schema_tree import (
    SAME_VALUE,
    Place,
    anchor_names,
    pointer,
    subschemas,
    target_of,
)

_REFS: Final = ("$ref", "$dynamicRef", "$recursiveRef")


def schema_fault(root: dict[str, Any], limits: DefinitionLimits) -> Fault | None:
    """Return the first fault that makes the schema unusable, or None.

    The value must be within the bounds.
    """
    schemas = _Schemas(root)
    return (
        schemas.collect(limits)
        or schemas.astray_fault()
        or schemas.cycle_fault()
        or schemas.expansion_fault(limits)
    )


class _Schemas:
    """The schemas in one schema, by identity: in parsed JSON one dict object is never in two
    places.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._places: dict[int, Place] = {}
        self._schemas: list[dict[str, Any]] = []
        self._anchors: dict[str, dict[str, Any]] = {}

    def collect(self, limits: DefinitionLimits) -> Fault | None:
        waiting: list[tuple[Place, Any]] = [((), self._root)]
        while waiting:
            place, schema = waiting.pop()
            if isinstance(schema, bool):
                continue
            if not isinstance(schema, dict):
                return "bad_schema", f"{pointer(place)} is {display_value(schema)}, not a schema"
            fault = keyword_fault(schema, limits)
            if fault is not None:
                code, key, detail = fault
                return code, f"{pointer((*place, key))} {detail}"
            base = schema.get("$id", "#")
            if place and not (isinstance(base, str) and base.startswith("#")):
                return (
                    "remote_ref",
                    (
                        f"{pointer(place)} sets an address of its own ($id), which references would"
                        " follow"
                    ),
                )
            self._places[id(schema)] = place
            self._schemas.append(schema)
            for name in anchor_names(schema):
                self._anchors.setdefault(name, schema)
            waiting.extend(
                ((*place, *where), inner) for where, inner in reversed(list(subschemas(schema)))
            )
        return None

    def astray_fault(self) -> Fault | None:
        for schema in self._schemas:
            for key in _REFS:
                if key not in schema:
                    continue
                ref = schema[key]
                place = pointer((*self._places[id(schema)], key))
                if key == "$recursiveRef" and ref is True:
                    ref = "#"
                if not isinstance(ref, str):
                    return "bad_schema", f"{place} is {display_value(ref)}, not text"
                if not ref.startswith("#"):
                    return "remote_ref", f"{place} leads outside the schema: {display_value(ref)}"
                target = target_of(self._root, self._anchors, ref)
                if not isinstance(target, bool) and id(target) not in self._places:
                    return "broken_ref", f"{place} leads to no schema: {display_value(ref)}"
        return None

    def cycle_fault(self) -> Fault | None:
        finished: set[int] = set()
        for start in self._schemas:
            trail = {id(start): iter(self._on_the_same_value(start))}
            while trail:
                current = next(reversed(trail))
                for child in trail[current]:
                    if id(child) in trail:
                        return (
                            "endless_ref",
                            f"{pointer(self._places[id(child)])} leads in a circle to itself",
                        )
                    if id(child) not in finished:
                        trail[id(child)] = iter(self._on_the_same_value(child))
                        break
                else:
                    del trail[current]
                    finished.add(current)
        return None

    def expansion_fault(self, limits: DefinitionLimits) -> Fault | None:
        sizes: dict[int, int] = {}
        trail = {id(self._root): (iter(self._subschemas_of(self._root)), [1])}
        while trail:
            current = next(reversed(trail))
            children, count = trail[current]
            for child in children:
                if id(child) in trail:
                    count.append(1)
                elif id(child) in sizes:
                    count.append(sizes[id(child)])
                else:
                    trail[id(child)] = (iter(self._subschemas_of(child)), [1])
                    break
            else:
                del trail[current]
                sizes[current] = min(sum(count), limits.max_expanded_nodes + 1)
                if trail:
                    next(reversed(trail.values()))[1].append(sizes[current])
        if sizes[id(self._root)] > limits.max_expanded_nodes:
            return (
                "endless_ref",
                f"its references multiply to more than {limits.max_expanded_nodes:,} schemas",
            )
        return None

    def _targets(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        for key in _REFS:
            if key in schema:
                yield (
                    self._root
                    if schema[key] is True
                    else target_of(self._root, self._anchors, schema[key])
                )

    def _on_the_same_value(self, schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        inner = (child for place, child in subschemas(schema) if place[0] in SAME_VALUE)
        yield from (child for child in (*self._targets(schema), *inner) if isinstance(child, dict))

    def _subschemas_of(self, schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        inner = (child for _, child in subschemas(schema))
        yield from (child for child in (*self._targets(schema), *inner) if isinstance(child, dict))
