"""The pin file: `bundles/pins/<server>.json`, written for people who review changes line by line.

ASCII only, so that invisible characters show as `\\u202e` in every editor and diff; one key a line;
tools by name.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from pydantic import Field, StrictBool, StrictInt, ValidationError

from bundle_router.core.servers.admission import VolatileError, identity, volatile_paths
from bundle_router.core.servers.admission.admitted import DefinitionLimits, beyond_bounds
from bundle_router.core.servers.pins.reviewed import Origin, Pin, Pins
from bundle_router.core.values import SERVER_NAME, TOOL_NAME, Frozen
from bundle_router.core.values.canonical import encode
from bundle_router.errors import CorruptPins

SCHEMA: Final = "bundle-router.pins/1"
_BOUNDS: Final = DefinitionLimits()


class _WrittenPin(Frozen):
    tool: str = Field(pattern=f"^(?:{TOOL_NAME.pattern})$")
    sha256: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    tokens: StrictInt = Field(ge=0)
    counted: StrictBool = True
    definition: dict[str, Any]


class _WrittenPins(Frozen):
    schema_: Literal["bundle-router.pins/1"] = Field(alias="schema")
    server: str = Field(pattern=f"^(?:{SERVER_NAME.pattern})$")
    origin: Origin
    volatile: tuple[str, ...] = ()
    instructions: str = ""
    tools: tuple[_WrittenPin, ...] = Field(max_length=5_000)


def pins_to_text(pins: Pins) -> str:
    """Return the text of the pin file. The same pins always give the same bytes."""
    origin = {name: getattr(pins.origin, name) for name in Origin.__slots__}
    written = {
        "schema": SCHEMA,
        "server": pins.server,
        "origin": {name: value for name, value in origin.items() if value},
        "volatile": list(pins.volatile),
        "instructions": pins.instructions,
        "tools": [
            {
                "tool": pin.tool,
                "sha256": pin.sha256,
                "tokens": pin.tokens,
                "counted": pin.counted,
                "definition": json.loads(pin.definition),
            }
            for pin in sorted(pins.pins, key=lambda pin: pin.tool)
        ],
    }
    return json.dumps(written, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def pins_from_text(text: str, name: str) -> Pins:
    """Parse the pins in the text; `name` is the file's name in messages. Raises CorruptPins."""
    try:
        written = _WrittenPins.model_validate(
            json.loads(text, object_pairs_hook=_without_repetition)
        )
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _corrupt_pins(name, f"{where}: {first['msg']}") from None
    except (ValueError, RecursionError) as wrong:
        raise _corrupt_pins(name, f"is not JSON ({wrong})") from None
    pins = Pins(
        server=written.server,
        origin=written.origin,
        instructions=written.instructions,
        pins=tuple(_check_pin(row, written, name) for row in written.tools),
        volatile=written.volatile,
    )
    if len(pins.names) != len(pins.pins):
        raise _corrupt_pins(name, "pins a tool twice")
    return pins


def _check_pin(row: _WrittenPin, written: _WrittenPins, name: str) -> Pin:
    """Return the pin after checking that its digest matches its text."""
    if row.definition.get("name") != row.tool or beyond_bounds(row.definition, _BOUNDS) is not None:
        raise _corrupt_pins(name, f"the text beside {row.tool!r} is not a definition of it")
    try:
        digest = identity(row.definition, written.instructions, volatile_paths(written.volatile))
    except VolatileError as wrong:
        raise _corrupt_pins(name, str(wrong)) from None
    if digest != row.sha256:
        raise _corrupt_pins(name, f"the text of {row.tool!r} is not what its digest was made of")
    return Pin(row.tool, row.sha256, encode(row.definition), row.tokens, row.counted)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _corrupt_pins(name: str, what: str) -> CorruptPins:
    return CorruptPins(
        f"{name}: {what}",
        advice=(
            "restore it from version control, or review the server again with `bundle-router pin`"
        ),
    )
