"""Admits or refuses each definition of one server's list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bundle_router.core.catalog import Card, Server
from bundle_router.core.exposure.names import exposed_names
from bundle_router.core.exposure.provider_forms import form_of
from bundle_router.core.servers.admission.admitted import (
    Admitted,
    AdmittedTool,
    DefinitionLimits,
    Fault,
    RefusedTool,
    beyond_bounds,
)
from bundle_router.core.servers.admission.cleaning import (
    cleaned,
    cleaned_schema,
    has_hidden,
    hidden_value,
)
from bundle_router.core.servers.admission.identity import VolatilePath, identity, volatile_paths
from bundle_router.core.servers.admission.references import schema_fault
from bundle_router.core.servers.admission.schemas import display_value, with_json_types
from bundle_router.core.values import EFFECTS, TOOL_NAME, Effect
from bundle_router.core.values.canonical import encode

_DEFAULTS: Final = DefinitionLimits()
_NAMED: Final = 8
"""Maximum type names in a note."""
_HINTS: Final[tuple[tuple[str, bool, Effect], ...]] = (
    ("readOnlyHint", False, "write"),
    ("destructiveHint", True, "write"),
    ("openWorldHint", True, "network"),
)


def admit(
    server: Server,
    definitions: Sequence[Any],
    instructions: str | None = None,
    limits: DefinitionLimits = _DEFAULTS,
    count: Callable[[str], int] | None = None,
) -> Admitted:
    """Return the cards of a server's raw `tools/list`, and the refusals.

    `count` counts the tokens of a text (default: estimated at four characters each).

    Tools outside the server's `include` and `exclude` do not exist: they are in neither. Raises
    VolatileError for invalid `volatile` paths of the server; nothing in `definitions` can make it
    raise.
    """
    admission = _Admission(server, volatile_paths(server.volatile), limits, count)
    return admission.of(definitions, instructions if isinstance(instructions, str) else "")


@dataclass(frozen=True, slots=True)
class _Admission:
    server: Server
    volatile: tuple[VolatilePath, ...]
    limits: DefinitionLimits
    count: Callable[[str], int] | None

    def of(self, definitions: Sequence[Any], instructions: str) -> Admitted:
        instructions_kept = instructions[: self.limits.max_instructions_chars]
        refusals: list[RefusedTool] = []
        bounded: list[Mapping[str, Any]] = []
        for index, raw in enumerate(definitions[: self.limits.max_tools]):
            fault = self._first_look(raw)
            if fault is None:
                if self.server.includes(raw["name"]):
                    bounded.append(raw)
            else:
                refusals.append(RefusedTool(_label(raw, index), *fault))
        if len(definitions) > self.limits.max_tools:
            rest = len(definitions) - self.limits.max_tools
            refusals.append(
                RefusedTool(
                    "*",
                    "too_many_tools",
                    f"{rest:,} definitions after the first {self.limits.max_tools:,}",
                )
            )
        tools: list[AdmittedTool] = []
        for raw, fault in _without_duplicates(bounded):
            card = fault or self._card(raw, instructions_kept)
            if isinstance(card, AdmittedTool):
                tools.append(card)
            else:
                refusals.append(RefusedTool(raw["name"], *card))
        return Admitted(
            self.server.name,
            tuple(sorted(tools, key=lambda tool: tool.card.tool)),
            tuple(refusals),
            instructions_kept,
        )

    def _first_look(self, raw: Any) -> Fault | None:
        """Return the fault of a single definition, found before it is compared with others."""
        if not isinstance(raw, dict):
            return "not_an_object", f"the definition is a {type(raw).__name__}"
        name = raw.get("name")
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            return (
                "bad_name",
                (
                    f"{display_value(name)} is not a name: letters, digits, '_', '-' and '.', at"
                    " most 128"
                ),
            )
        return beyond_bounds(raw, self.limits)

    def _card(self, raw: Mapping[str, Any], instructions: str) -> AdmittedTool | Fault:
        notes: list[str] = []
        schema = self._schema(raw.get("inputSchema"), notes)
        if isinstance(schema, tuple):
            return schema
        place = hidden_value(schema)
        if place is not None:
            return (
                "hidden_text",
                f"{place} holds invisible characters where they can't be taken out",
            )
        if any(
            isinstance(raw.get(key), str) and has_hidden(raw[key])
            for key in ("title", "description")
        ):
            notes.append("invisible characters were left out of its text")
        hints = raw.get("annotations")
        is_idempotent = isinstance(hints, dict) and hints.get("idempotentHint") is True
        returns, wraps_result = _returned(raw.get("outputSchema"))
        card = Card(
            server=self.server.name,
            tool=raw["name"],
            description=self._description(raw.get("description"), notes),
            schema=encode(cleaned_schema(schema)),
            sha256=identity(raw, instructions, self.volatile),
            tokens=0,
            idempotent=is_idempotent and self.server.trust == "trusted",
            returns=returns,
            wraps_result=wraps_result,
        )
        return AdmittedTool(
            card=_with_tokens(card, self.count),
            definition=encode(raw),
            title=cleaned(_title(raw))[:200],
            effects=hinted_effects(raw.get("annotations")),
            notes=tuple(notes),
        )

    def _schema(self, sent: Any, notes: list[str]) -> dict[str, Any] | Fault:
        """Return the schema as it is used: as it was sent, or else as it was certainly meant."""
        as_sent: list[str] = []
        schema, fault = self._checked(sent, as_sent)
        if fault is None:
            notes += as_sent
            return schema
        if not isinstance(sent, dict):
            return fault

        from bundle_router.core.servers.admission.repairs import repaired  # few need it

        as_meant: list[str] = ["keywords of its schema that say nothing were left out"]
        schema, fault_of_repaired = self._checked(repaired(sent), as_meant)
        if fault_of_repaired is not None:
            return fault
        notes += as_meant
        return schema

    def _checked(self, sent: Any, notes: list[str]) -> tuple[dict[str, Any], Fault | None]:
        schema = _root_schema(sent, notes)
        if isinstance(schema, tuple):
            return {}, schema
        return schema, schema_fault(schema, self.limits)

    def _description(self, text: Any, notes: list[str]) -> str:
        clean = cleaned(text) if isinstance(text, str) else ""
        max_chars = self.limits.max_description_chars
        if len(clean) <= max_chars:
            return clean
        notes.append(f"its description was cut from {len(clean):,} to {max_chars:,} characters")
        return f"{clean[:max_chars].rstrip()}\n[cut: {len(clean) - max_chars:,} more characters]"


def _returned(schema: Any) -> tuple[str, bool]:
    """Return the type of a tool's results, and whether they are wrapped; nothing for a schema with
    invisible characters, which could hide a name in another.
    """
    if not isinstance(schema, dict) or hidden_value(schema) is not None:
        return "", False
    from bundle_router.core.exposure.meta_tools.result_types import is_wrapper, result_type

    return result_type(schema), is_wrapper(schema)


def _label(raw: Any, index: int) -> str:
    name = raw.get("name") if isinstance(raw, dict) else None
    return display_value(name)[1:-1] if isinstance(name, str) else f"#{index}"


def _without_duplicates(
    bounded: Sequence[Mapping[str, Any]],
) -> list[tuple[Mapping[str, Any], Fault | None]]:
    """Return every definition with its fault if it clashes with another one."""
    counts = Counter(raw["name"] for raw in bounded)
    rows: list[tuple[Mapping[str, Any], Fault | None]] = []
    first: dict[str, str] = {}
    differing = {
        raw["name"]
        for raw in bounded
        if counts[raw["name"]] > 1 and first.setdefault(raw["name"], encode(raw)) != encode(raw)
    }
    names: set[str] = set()
    for raw in bounded:
        name = raw["name"]
        fault: Fault | None = None
        if name in differing:
            fault = (
                "duplicate",
                "listed more than once with different contents: the name is ambiguous",
            )
        elif name in names:
            fault = ("duplicate", "listed more than once with the same contents: one was kept")
        names.add(name)
        rows.append((raw, fault))
    return rows


def _root_schema(schema: Any, notes: list[str]) -> dict[str, Any] | Fault:
    """Return the input schema with JSON's type names, and with missing parts of the root added
    where that changes nothing.
    """
    if schema is None or schema == []:
        notes.append("it declares no input schema: taken as without arguments")
        schema = {}
    if not isinstance(schema, dict):
        return "bad_schema", f"the input schema is {display_value(schema)}, not an object"
    renamed: set[str] = set()
    root = dict(with_json_types(schema, renamed))
    if renamed:
        shown_names = sorted(renamed)[:_NAMED]
        notes.append(f"its schema names types that are not JSON's: read {', '.join(shown_names)}")
    if "type" not in root:
        notes.append("its input schema did not say that it is an object")
        root["type"] = "object"
    if root["type"] != "object":
        return (
            "not_object_schema",
            f"the input schema is of type {display_value(root['type'])}: arguments are an object",
        )
    root.setdefault("properties", {})
    return root


def _title(raw: Mapping[str, Any]) -> str:
    annotations = raw.get("annotations")
    inner = annotations.get("title") if isinstance(annotations, dict) else None
    return next((text for text in (raw.get("title"), inner) if isinstance(text, str)), "")


def hinted_effects(annotations: Any) -> tuple[Effect, ...]:
    """Return the effects that a tool's hints admit.

    `readOnlyHint`, which would remove one, is ignored.
    """
    if not isinstance(annotations, dict):
        return ()
    effects = {effect for name, value, effect in _HINTS if annotations.get(name) is value}
    return tuple(effect for effect in EFFECTS if effect in effects)


def _with_tokens(card: Card, count: Callable[[str], int] | None) -> Card:
    name = exposed_names((card.name,))[card.name]
    text = encode(form_of(name, card.description, card.input_schema(), "openai"))
    tokens = count(text) if count is not None else -(-len(text) // 4)
    return replace(card, tokens=tokens, counted=count is not None)


def short_description(text: str, most: int = 300) -> str:
    """Return the beginning of a description for search results: whole sentences or words, on one
    line, at most `most` characters.
    """
    line = " ".join(text[: most * 4].split())
    if len(line) <= most:
        return line
    head = line[: most - 1]
    stop = max(head.rfind(". "), head.rfind("! "), head.rfind("? ")) + 1
    return head[:stop] if stop >= most // 2 else head.rsplit(" ", 1)[0].rstrip(",;:") + "…"
