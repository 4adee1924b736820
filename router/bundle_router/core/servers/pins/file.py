"""The pin file: `bundles/pins/<server>.json`, written for people who review changes line by line.

ASCII only, so that invisible characters show as `\\u202e` in every editor and diff; one key a line;
tools by name.

How it grows: a reader ignores keys that it does not know, of the file and of a pin, so a later
version may add some. What an earlier reader must not ignore raises the schema's number. An origin
and a definition are read in full or not at all.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from pydantic import ConfigDict, Field, StrictBool, StrictInt, ValidationError

from bundle_router.core.servers.admission.admitted import DefinitionLimits, beyond_bounds
from bundle_router.core.servers.admission.identity import VolatileError, identity, volatile_paths
from bundle_router.core.servers.pins.reviewed import Origin, Pin, PinReview, Pins
from bundle_router.core.values import SERVER_NAME, TOOL_NAME, Frozen
from bundle_router.core.values.canonical import encode
from bundle_router.errors import CorruptPins

SCHEMA: Final = "bundle-router.pins/1"
_BOUNDS: Final = DefinitionLimits()
_HANDSHAKE: Final = "handshake"
"""Value of `era` for a server that can't be asked for its era; else the key is left out."""


class _WrittenApproval(Frozen):
    model_config = ConfigDict(extra="ignore")

    at: str = Field(max_length=40)
    by: str = Field(max_length=200)


class _WrittenPin(Frozen):
    model_config = ConfigDict(extra="ignore")

    tool: str = Field(pattern=f"^(?:{TOOL_NAME.pattern})$")
    sha256: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    tokens: StrictInt = Field(ge=0)
    counted: StrictBool = True
    definition: dict[str, Any]
    approved: _WrittenApproval | None = None


class _WrittenPins(Frozen):
    model_config = ConfigDict(extra="ignore")

    schema_: Literal["bundle-router.pins/1"] = Field(alias="schema")
    server: str = Field(pattern=f"^(?:{SERVER_NAME.pattern})$")
    origin: Origin
    volatile: tuple[str, ...] = ()
    instructions: str = ""
    era: str = Field("", max_length=40)
    tools: tuple[_WrittenPin, ...] = Field(max_length=5_000)


def pins_to_text(pins: Pins) -> str:
    """Return the text of the pin file. The same pins always give the same bytes."""
    origin = {name: getattr(pins.origin, name) for name in Origin.__slots__}
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "server": pins.server,
        "origin": {name: value for name, value in origin.items() if value},
        "volatile": list(pins.volatile),
        "instructions": pins.instructions,
    }
    if pins.begins_with_handshake:
        document["era"] = _HANDSHAKE
    document["tools"] = [_written_pin(pin) for pin in sorted(pins.pins, key=lambda pin: pin.tool)]
    return json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def _written_pin(pin: Pin) -> dict[str, Any]:
    row = {
        "tool": pin.tool,
        "sha256": pin.sha256,
        "tokens": pin.tokens,
        "counted": pin.counted,
    }
    if pin.approval is not None:
        row["approved"] = {"at": pin.approval.at, "by": pin.approval.by}
    return {**row, "definition": json.loads(pin.definition)}


def pins_from_text(text: str, name: str) -> Pins:
    """Parse the pins in the text; `name` is the file's name in messages. Raises CorruptPins."""
    try:
        document = _WrittenPins.model_validate(
            json.loads(text, object_pairs_hook=_without_repetition)
        )
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _corrupt_pins(name, f"{place}: {first['msg']}") from None
    except (ValueError, RecursionError) as wrong:
        raise _corrupt_pins(name, f"is not JSON ({wrong})") from None
    pins = Pins(
        server=document.server,
        origin=document.origin,
        instructions=document.instructions,
        pins=tuple(_check_pin(row, document, name) for row in document.tools),
        volatile=document.volatile,
        begins_with_handshake=document.era == _HANDSHAKE,
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
    approval = None
    if row.approved is not None:
        approval = PinReview(row.approved.at, row.approved.by)
    definition = encode(row.definition)
    return Pin(row.tool, row.sha256, definition, row.tokens, row.counted, approval)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("an object has a key twice")
    return mapping


def _corrupt_pins(name: str, what: str) -> CorruptPins:
    return CorruptPins(
        f"{name}: {what}",
        advice=(
            "restore it from version control, or review the server again with `bundle-router pin`"
        ),
    )
