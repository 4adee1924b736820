"""The shape a model has to answer in, and what its answer comes to.

Rules:
1. The shape names the places of the candidates in the question ("1", "2" …) and their ids, so a
   provider that constrains its output can't produce another. Reading checks it again, and the core
   once more: an id that is no candidate is dropped whoever sent it.
2. One class per tuple of ids, kept: instructor holds on to every class it has seen, so their number
   is bounded. Beyond the bound, and for more ids than providers accept in an enumeration, ids are
   plain text and are checked in code.
3. Asking is strict (every key required, no other allowed, as constrained output wants it); reading
   is not: where it is plain which bundles are meant, the form they are named in is no reason to
   spend a second call. A key too many or one that says nothing, an id as a number or in capitals,
   a pick that is an id alone, picks as JSON text, and the answer inside another object are read.
4. A model is sure where it says so in a word that can be read; anything else is doubt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model, model_validator

from bundle_router.core.values import Code

MAX_SHAPES: Final = 256
MAX_ENUMERATED: Final = 125
"""Candidates in one enumeration, each by two names; the large providers take 250 to 1,000."""
MAX_JUSTIFICATION: Final = 400


def _all_required(schema: dict[str, Any]) -> None:
    schema["additionalProperties"] = False
    for part in schema.get("properties", {}).values():
        part.pop("default", None)  # constrained output refuses it
    schema["required"] = list(schema.get("properties", ()))


_READING: Final = ConfigDict(extra="ignore", frozen=True, json_schema_extra=_all_required)


def _read_sure(value: object) -> bool:
    """Return whether a model calls itself sure; what can't be read is doubt (rule 4)."""
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "yes"))


def _read_text(value: object) -> object:
    """Return the empty text for null."""
    return "" if value is None else value


def _read_id(value: object) -> object:
    """Return a place or an id as it stands in the list: places are text there, ids lower case."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value.strip().lower() if isinstance(value, str) else value


def _read_need(value: object) -> object:
    """Return how much a pick is needed: one of which nothing is said is what was asked for."""
    word = "" if value is None else value
    if isinstance(word, str):
        word = word.strip().lower()
    return word or "required"


def _read_pick(value: object) -> object:
    """Return a pick for an id that stands alone."""
    return {"id": value} if isinstance(value, str | int) else value


def _read_picks(value: object) -> object:
    """Return a list of picks: from JSON text, from one pick, and nothing for null."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = _from_json(value)
    if value is None:
        return []
    return [value] if isinstance(value, str | dict) else value


def _read_answer(value: object) -> object:
    """Return the object that holds the picks: it may stand in another (`BundleChoice`,
    `properties`), be JSON text, or be a list of picks alone.
    """
    if isinstance(value, str):
        value = _from_json(value)
    if isinstance(value, list) and value:
        return {"picks": value}
    if not isinstance(value, dict) or "picks" in value:
        return value

    inner = [item for item in value.values() if isinstance(item, dict) and "picks" in item]
    return inner[0] if len(inner) == 1 else value


def _from_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _before(read: Callable[[object], object]) -> dict[str, Any]:
    """Return the validators of a class whose input is read by a function first."""
    return {read.__name__: model_validator(mode="before")(read)}


def _shape(id_type: Any) -> type[BaseModel]:
    id_read: Any = Annotated[id_type, BeforeValidator(_read_id)]
    need: Any = Annotated[Literal["required", "helpful"], BeforeValidator(_read_need)]
    pick: Any = create_model(
        "Pick",
        __config__=_READING,
        __validators__=_before(_read_pick),
        id=(id_read, ...),
        need=(need, "required"),
    )
    text: Any = Annotated[str, BeforeValidator(_read_text)]
    return create_model(
        "BundleChoice",
        __config__=_READING,
        __validators__=_before(_read_answer),
        rationale=(text, ""),
        picks=(Annotated[list[pick], BeforeValidator(_read_picks)], ...),
        sure=(Annotated[bool, BeforeValidator(_read_sure)], False),
        missing=(text, ""),
    )


class AnswerShapes:
    """The classes that answers are read into: one for each set of ids, made when asked for.

    At most `MAX_SHAPES` are made; a further set of ids gets the class that takes any.
    """

    def __init__(self) -> None:
        self._any_ids = _shape(str)
        self._made: dict[tuple[str, ...], type[BaseModel]] = {}

    def of(self, ids: Sequence[str]) -> type[BaseModel]:
        """Return the class for an answer that picks among `ids`.

        The same object for the same set of ids.
        """
        key = tuple(sorted(set(ids)))
        existing = self._made.get(key)
        if existing is not None:
            return existing
        if not key or len(key) > MAX_ENUMERATED or len(self._made) >= MAX_SHAPES:
            return self._any_ids
        places = tuple(str(place) for place in range(1, len(key) + 1))
        shape = _shape(Literal[(*places, *key)])
        return self._made.setdefault(key, shape)  # two threads may make one; one of them is kept


@dataclass(frozen=True, slots=True)
class ParsedPicks:
    """What an answer comes to."""

    ids: tuple[str, ...]
    """Permitted ids in order of preference."""
    dropped: tuple[tuple[str, Code], ...]
    """Ids over the cap."""
    justification: str
    """The model's reason, on one line."""
    sure: bool
    """Whether the model called itself sure, and picked something."""


def parse_picks(answer: BaseModel, candidates: Sequence[str], max_picks: int) -> ParsedPicks | None:
    """Without duplicates, required first, at most `max_picks`; a bundle may be named by its place.

    None when it named ids and none of them is permitted.
    """
    fields = answer.model_dump()
    # Sorting is stable: it keeps the model's order within each need.
    rows = sorted(fields["picks"], key=lambda row: row["need"] != "required")
    by_place = {str(place): id_ for place, id_ in enumerate(candidates, start=1)}
    named_ids = dict.fromkeys(by_place.get(row["id"], row["id"]) for row in rows)
    permitted = set(candidates)
    ids = [id_ for id_ in named_ids if id_ in permitted]
    if rows and not ids:
        return None
    dropped: list[tuple[str, Code]] = [(id_, "over_budget") for id_ in ids[max_picks:]]
    return ParsedPicks(
        ids=tuple(ids[:max_picks]),
        dropped=tuple(dropped),
        justification=_one_line(fields["rationale"]),
        sure=fields["sure"] and bool(ids),
    )


def _one_line(text: str) -> str:
    plain = " ".join(
        "".join(c if c.isprintable() else " " for c in text[: 4 * MAX_JUSTIFICATION]).split()
    )
    if len(plain) <= MAX_JUSTIFICATION:
        return plain
    return plain[: MAX_JUSTIFICATION - 1] + "…"
