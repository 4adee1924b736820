"""The keywords of JSON Schema.

Each reports the errors of a value, and returns whether the value fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import chain, repeat
from operator import ge, gt, le, lt
from typing import Any

from bundle_router.adapters.json_schema.verdicts import (
    KEYWORDS,
    MAX_SENTENCES,
    Keyword,
    KeywordRow,
    Unchecked,
    ValueCheck,
    ValuePlace,
    display_value,
)


def _all_fit(place: ValuePlace, verdicts: Iterable[bool]) -> bool:
    """Return whether all verdicts are true. If errors are reported, all are evaluated."""
    return min(verdicts, default=True) if place.reports else all(verdicts)


# --- keywords: any value --------------------------------------------------------------------------


def _type(check: ValueCheck, names: Any, _schema: Mapping[str, Any], place: ValuePlace) -> bool:
    value = place.value
    kind = place.kind
    check.spend(len(names) // 8)
    for name in names if isinstance(names, list) else (names,):
        if name == kind or (
            name == "integer"
            and kind == "number"
            and (isinstance(value, int) or value.is_integer())
        ):
            return True
    if isinstance(names, list):
        wanted = ", ".join(repr(name) for name in names[:20])
    else:
        wanted = repr(names)
    return check.report(place, f"{display_value(value)} is not of type {wanted}")


def _enum(check: ValueCheck, values: Any, _schema: Mapping[str, Any], place: ValuePlace) -> bool:
    if check.canonical(place.value) in check.schema.equals(values, check):
        return True
    some = ", ".join(display_value(value) for value in values[:20]) + (
        ", …" if len(values) > 20 else ""
    )
    return check.report(place, f"{display_value(place.value)} is not one of [{some}]")


def _const(check: ValueCheck, wanted: Any, _schema: Mapping[str, Any], place: ValuePlace) -> bool:
    fine = check.canonical(place.value) == check.canonical(wanted)
    return fine or check.report(place, f"{display_value(wanted)} was expected")


def _reference(
    check: ValueCheck, reference: Any, _schema: Mapping[str, Any], place: ValuePlace
) -> bool:
    check.spend(1)
    return check.fits_other(
        check.schema.target("#" if reference is True else reference, check), place
    )


def _all_of(check: ValueCheck, schemas: Any, _schema: Mapping[str, Any], place: ValuePlace) -> bool:
    return _all_fit(place, (check.fits_other(schema, place) for schema in schemas))


def _any_of(check: ValueCheck, schemas: Any, _schema: Mapping[str, Any], place: ValuePlace) -> bool:
    fine = False
    for schema in schemas:
        if check.fits_other(schema, place, quietly=True):
            fine = True
            if place.seen is None:
                break
    return fine or check.report(
        place, f"{display_value(place.value)} is not valid under any of the given schemas"
    )


def _one_of(check: ValueCheck, schemas: Any, _schema: Mapping[str, Any], place: ValuePlace) -> bool:
    fitting = 0
    for schema in schemas:
        fitting += check.fits_other(schema, place, quietly=True)
        if fitting > 1:
            break
    count = "valid under more than one" if fitting else "not valid under any"
    return fitting == 1 or check.report(
        place, f"{display_value(place.value)} is {count} of the given schemas"
    )


def _not(check: ValueCheck, schema: Any, _schema: Mapping[str, Any], place: ValuePlace) -> bool:
    refused = not check.fits(
        schema, ValuePlace(place.value, place.parent, place.name, False, None, place.kind)
    )
    return refused or check.report(
        place, f"{display_value(place.value)} matches a schema that it must not match"
    )


def _if(check: ValueCheck, condition: Any, schema: Mapping[str, Any], place: ValuePlace) -> bool:
    branch = "then" if check.fits_other(condition, place, quietly=True) else "else"
    return branch not in schema or check.fits_other(schema[branch], place)


# --- keywords: numbers and texts ------------------------------------------------------------------


def _number(limit: Any) -> int | float:
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise Unchecked("a limit is a number")
    return limit


def _limit(
    holds: Callable[[Any, Any], bool], words: str, size_of: Callable[[Any], Any] = len
) -> Keyword:
    """Return a keyword that limits a value's size.

    `words` may contain `{value}`, `{size}` and `{limit}`.
    """

    def check_limit(
        check: ValueCheck, limit: Any, _schema: Mapping[str, Any], place: ValuePlace
    ) -> bool:
        size = size_of(place.value)
        if holds(size, _number(limit)):
            return True
        value = display_value(place.value)
        wanted = display_value(limit)
        return check.report(place, words.format(value=value, size=size, limit=wanted))

    return check_limit


def _bound(
    holds: Callable[[Any, Any], bool], words: str, exclusive: Keyword | None = None, by: str = ""
) -> Keyword:
    """Return a keyword that bounds a number.

    In draft 4, `by: true` in the schema makes the bound exclusive.
    """
    bound = _limit(holds, words, lambda value: value)

    def check_bound(
        check: ValueCheck, limit: Any, schema: Mapping[str, Any], place: ValuePlace
    ) -> bool:
        if exclusive is None:
            return isinstance(limit, bool) or bound(check, limit, schema, place)
        return (exclusive if schema.get(by) is True else bound)(check, limit, schema, place)

    return check_bound


_ABOVE = _bound(gt, "{value} is less than or equal to the minimum of {limit}")
_BELOW = _bound(lt, "{value} is greater than or equal to the maximum of {limit}")


def _multiple_of(
    check: ValueCheck, divisor: Any, _schema: Mapping[str, Any], place: ValuePlace
) -> bool:
    if _number(divisor) == 0:
        raise Unchecked("nothing is a multiple of 0")
    check.spend(4 + sum(n.bit_length() for n in (place.value, divisor) if isinstance(n, int)) // 16)
    try:
        # Compares decimal notation, not binary values: 0.0075 is a multiple of 0.0001.
        fine = Fraction(repr(place.value)) % Fraction(repr(divisor)) == 0
    except ValueError:
        raise Unchecked("a number that is none, or is too long") from None
    return fine or check.report(
        place, f"{display_value(place.value)} is not a multiple of {display_value(divisor)}"
    )


def _pattern(
    check: ValueCheck, pattern: Any, _schema: Mapping[str, Any], place: ValuePlace
) -> bool:
    fine = check.matches(pattern, place.value) is not False
    return fine or check.report(
        place, f"{display_value(place.value)} does not match {display_value(pattern)}"
    )


# --- keywords: arrays -----------------------------------------------------------------------------


def _items(check: ValueCheck, _argument: Any, schema: Mapping[str, Any], place: ValuePlace) -> bool:
    """Check `prefixItems`, `items` and `additionalItems` together: each item against its schema."""
    items = schema.get("items", True)
    rest = schema.get("items")
    prefix = schema.get("prefixItems", ()) if check.schema.draft >= 2020 else ()
    if isinstance(items, list):
        prefix = items
        rest = schema.get("additionalItems")
    inner = prefix if rest is None else chain(prefix, repeat(rest))
    parts = enumerate(zip(inner, place.value, strict=False))
    fine = _all_fit(
        place, (check.part_fits(schema, place, index, item) for index, (schema, item) in parts)
    )
    if place.seen is not None:
        place.seen.prefix = max(place.seen.prefix, len(prefix))
        place.seen.all_items |= rest is not None
    return fine


def _contains(check: ValueCheck, wanted: Any, schema: Mapping[str, Any], place: ValuePlace) -> bool:
    quiet = ValuePlace(place.value, place.parent, place.name, False, None, place.kind)
    found = [
        index
        for index, item in enumerate(place.value)
        if check.part_fits(wanted, quiet, index, item)
    ]
    if place.seen is not None and check.schema.draft >= 2020:
        place.seen.indexes.update(found)
    counted = check.schema.draft >= 2019
    if counted:
        least, maximum = (schema.get("minContains", 1), schema.get("maxContains"))
    else:
        least, maximum = (1, None)
    if len(found) < _number(least):
        return check.report(
            place, f"{len(found)} of its items are as {_number(least)} of them must be"
        )
    fine = maximum is None or len(found) <= _number(maximum)
    return fine or check.report(place, f"{len(found)} of its items are as {maximum} of them may be")


def _unique_items(
    check: ValueCheck, unique: Any, _schema: Mapping[str, Any], place: ValuePlace
) -> bool:
    if unique is not True:
        return True
    met: set[str] = set()
    for item in place.value:
        text = check.canonical(item)
        if text in met:
            return check.report(
                place, f"{display_value(item)} is in it more than once: its items must be unique"
            )
        met.add(text)
    return True


def _unevaluated_items(
    check: ValueCheck, inner: Any, _schema: Mapping[str, Any], place: ValuePlace
) -> bool:
    seen = place.seen
    assert seen is not None  # noqa: S101 - `fits` made one, since the keyword is there
    if seen.all_items:
        return True
    check.spend(len(place.value))
    left = [index for index in range(seen.prefix, len(place.value)) if index not in seen.indexes]
    seen.all_items = True
    return _each(
        check, place, inner, ((index, place.value[index]) for index in left), "Unevaluated items"
    )


# --- keywords: objects ----------------------------------------------------------------------------


def _properties(
    check: ValueCheck, _argument: Any, schema: Mapping[str, Any], place: ValuePlace
) -> bool:
    """Check `properties`, `patternProperties` and `additionalProperties` together: each name
    against its schemas.
    """
    properties = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    additional = schema.get("additionalProperties")
    extra: list[str] = []
    fine = True
    for name, value in place.value.items():
        check.spend(1)
        inner = [properties[name]] if name in properties else []
        unsure = False
        for pattern, other in patterns.items():
            matched = check.matches(pattern, name)
            unsure |= matched is None
            if matched:
                inner.append(other)
        if not inner and not unsure and additional is not None:
            extra.append(name)
        elif place.seen is not None and (inner or unsure):
            place.seen.names.add(name)
        for other in inner:
            fine &= check.part_fits(other, place, name, value)
        if not (fine or place.reports):
            return False
    if additional is not None:
        fine &= _each(
            check,
            place,
            additional,
            ((name, place.value[name]) for name in extra),
            "Additional properties",
        )
        if place.seen is not None:
            place.seen.all_names = True
    return fine


def _each(
    check: ValueCheck, place: ValuePlace, schema: Any, parts: Iterable[tuple[Any, Any]], what: str
) -> bool:
    """Return whether each part fits the schema.

    If it is `false`, one sentence names the first parts.
    """
    if schema is False:
        names = [name for name, _ in parts]
        some = ", ".join(display_value(name) for name in names[:5]) + (
            ", …" if len(names) > 5 else ""
        )
        verb = "was" if len(names) == 1 else "were"
        return not names or check.report(
            place, f"{what} are not allowed ({some} {verb} unexpected)"
        )
    return _all_fit(place, (check.part_fits(schema, place, name, value) for name, value in parts))


def _unevaluated_properties(
    check: ValueCheck, inner: Any, _schema: Mapping[str, Any], place: ValuePlace
) -> bool:
    seen = place.seen
    assert seen is not None  # noqa: S101 - `fits` made one, since the keyword is there
    if seen.all_names:
        return True
    check.spend(len(place.value))
    left = ((name, value) for name, value in place.value.items() if name not in seen.names)
    seen.all_names = True
    return _each(check, place, inner, left, "Unevaluated properties")


def _property_names(
    check: ValueCheck, inner: Any, _schema: Mapping[str, Any], place: ValuePlace
) -> bool:
    return _all_fit(place, (check.part_fits(inner, place, name, name) for name in place.value))


def _required(check: ValueCheck, names: Any, _schema: Mapping[str, Any], place: ValuePlace) -> bool:
    check.spend(len(names) // 8)
    missing = [name for name in names if name not in place.value]
    for name in missing[:MAX_SENTENCES]:
        check.report(place, f"{display_value(name)} is a required property")
    return not missing


def _dependencies(
    check: ValueCheck, needs: Any, _schema: Mapping[str, Any], place: ValuePlace
) -> bool:
    """Check `dependentRequired`, `dependentSchemas`, and the older `dependencies`."""
    check.spend(len(needs))
    fine = True
    for name, needed in needs.items():
        if name not in place.value:
            continue
        if isinstance(needed, list):
            check.spend(len(needed) // 8)
            missing = [other for other in needed if other not in place.value]
            fits = not missing or check.report(
                place, f"{display_value(missing[0])} is a dependency of {display_value(name)}"
            )
        else:
            fits = check.fits_other(needed, place)
        fine &= fits
    return fine


KEYWORDS.update(
    {
        "type": KeywordRow("", _type),
        "enum": KeywordRow("", _enum),
        "const": KeywordRow("", _const, since=6),
        "$ref": KeywordRow("", _reference),
        "$dynamicRef": KeywordRow("", _reference, since=2020),
        "$recursiveRef": KeywordRow("", _reference, since=2019, until=2019),
        "allOf": KeywordRow("", _all_of),
        "anyOf": KeywordRow("", _any_of),
        "oneOf": KeywordRow("", _one_of),
        "not": KeywordRow("", _not),
        "if": KeywordRow("", _if, since=7),
        "minimum": KeywordRow(
            "number",
            _bound(ge, "{value} is less than the minimum of {limit}", _ABOVE, "exclusiveMinimum"),
        ),
        "maximum": KeywordRow(
            "number",
            _bound(
                le, "{value} is greater than the maximum of {limit}", _BELOW, "exclusiveMaximum"
            ),
        ),
        "exclusiveMinimum": KeywordRow("number", _ABOVE),
        "exclusiveMaximum": KeywordRow("number", _BELOW),
        "multipleOf": KeywordRow("number", _multiple_of),
        "minLength": KeywordRow("string", _limit(ge, "{value} is too short")),
        "maxLength": KeywordRow("string", _limit(le, "{value} is too long")),
        "pattern": KeywordRow("string", _pattern),
        "minItems": KeywordRow(
            "array", _limit(ge, "it has {size} items, at least {limit} are expected")
        ),
        "maxItems": KeywordRow(
            "array", _limit(le, "it has {size} items, at most {limit} are allowed")
        ),
        "uniqueItems": KeywordRow("array", _unique_items),
        "contains": KeywordRow("array", _contains, since=6),
        "minProperties": KeywordRow("object", _limit(ge, "it has too few properties")),
        "maxProperties": KeywordRow("object", _limit(le, "it has too many properties")),
        "required": KeywordRow("object", _required),
        "propertyNames": KeywordRow("object", _property_names, since=6),
        "dependencies": KeywordRow("object", _dependencies, until=7),
        "dependentRequired": KeywordRow("object", _dependencies, since=2019),
        "dependentSchemas": KeywordRow("object", _dependencies, since=2019),
        "prefixItems": KeywordRow("array", _items, since=2020, joint=True),
        "items": KeywordRow("array", _items, joint=True),
        "properties": KeywordRow("object", _properties, joint=True),
        "patternProperties": KeywordRow("object", _properties, joint=True),
        "additionalProperties": KeywordRow("object", _properties, joint=True),
        "unevaluatedItems": KeywordRow("array", _unevaluated_items, since=2019),
        "unevaluatedProperties": KeywordRow("object", _unevaluated_properties, since=2019),
    }
)
"""In the order of evaluation: `unevaluated*` come last, because they depend on all others."""
