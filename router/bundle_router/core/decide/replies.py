"""Admits a selector's reply before it is used, or turns it into a failure.

Rules:
1. A selector speaks for search or a model only. A reply that claims to be the operator's mapping
   would make its picks trusted, so it becomes the failure `internal`; so does any reply that can't
   be recorded (a score that is no number, an id that is no text, a word from no closed list).
2. Each id and each score occurs once: the first mention of an id, the best score of a bundle.
3. Secrets are removed before the reply is used, not when it is written: the record holds what was
   decided on, and its digest can be computed again from there.

Admitting twice changes nothing, so a recorded reply is used as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Final

from bundle_router.core.values import (
    CODES,
    FAILURES,
    Answer,
    Candidate,
    ModelUse,
    Reason,
    Reply,
    SearchUse,
    Source,
)
from bundle_router.core.values.canonical import encode

PICKED: Final[frozenset[Reason]] = frozenset(
    ("search", "model", "model_cached", "union", "shortlist")
)
"""Reasons that a selector may give."""
_SOURCES: Final[frozenset[Source]] = frozenset(("search", "model", "shortlist"))
_MAX_SCORE: Final = 1e300


def admit_reply(reply: Reply, redact: Callable[[str], str] | None = None) -> Reply:
    """Return the reply without secrets and repetitions; or failure `internal`, with its cost, for
    an unusable one.
    """
    if not _is_sound(reply):
        failed = Reply(failure="internal", model=reply.model)
        reply = failed if _is_sound(failed) else Reply(failure="internal")
    if redact is not None:
        reply = _redact_reply(reply, redact)
    if reply.answer is None:
        return reply
    return replace(reply, answer=_each_once(reply.answer))


def _is_sound(reply: Reply) -> bool:
    """Return whether the reply keeps rule 1.

    What can be encoded can be recorded, and read again unchanged.
    """
    try:
        encode(
            [asdict(part) for part in (reply.answer, reply.model, reply.search) if part is not None]
        )
    except (TypeError, ValueError, RecursionError):
        return False
    return (
        isinstance(reply.key, str)
        and (reply.failure is None or reply.failure in FAILURES)
        and all(isinstance(name, str) and isinstance(value, str) for name, value in reply.revisions)
        and (reply.answer is None or _is_sound_answer(reply.answer))
        and (reply.search is None or _is_sound_search(reply.search))
    )


def _is_sound_answer(answer: Answer) -> bool:
    return (
        answer.reason in PICKED
        and answer.source in _SOURCES
        and isinstance(answer.justification, str)
        and all(isinstance(id_, str) for id_ in (*answer.ids, *answer.offered))
        and all(isinstance(id_, str) and code in CODES for id_, code in answer.dropped)
        and _are_scored(answer.scores)
    )


def _is_sound_search(search: SearchUse) -> bool:
    return (
        isinstance(search.why, str)
        and isinstance(search.cut, int | float)
        and _are_scored(search.ranked)
    )


def _are_scored(rows: Sequence[Candidate]) -> bool:
    """Return whether every row names a bundle, with a score that can be compared and printed or
    with none.
    """
    return all(
        isinstance(row.id, str)
        and (
            row.score is None
            or (isinstance(row.score, int | float) and abs(row.score) <= _MAX_SCORE)
        )
        for row in rows
    )


def _each_once(answer: Answer) -> Answer:
    scores = rank_candidates(answer.scores)
    dropped = dict(reversed(answer.dropped))
    return replace(
        answer,
        ids=tuple(dict.fromkeys(answer.ids)),
        scores=scores,
        dropped=tuple(
            (id_, dropped[id_]) for id_ in dict.fromkeys(id_ for id_, _ in answer.dropped)
        ),
    )


def rank_candidates(rows: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return each bundle once with its best score, best first, ties by id: the order of records and
    replays.
    """
    best: dict[str, Candidate] = {}
    for row in sorted(rows, key=lambda row: (-(row.score or 0.0), row.id)):
        best.setdefault(row.id, row)
    return tuple(best.values())


def _redact_reply(reply: Reply, redact: Callable[[str], str]) -> Reply:
    return replace(
        reply,
        answer=None if reply.answer is None else _redacted_answer(reply.answer, redact),
        model=_redacted_model(reply.model, redact),
        search=None if reply.search is None else _redacted_search(reply.search, redact),
    )


def _redacted_answer(answer: Answer, redact: Callable[[str], str]) -> Answer:
    return replace(
        answer,
        ids=tuple(redact(id_) for id_ in answer.ids),
        justification=redact(answer.justification),
        scores=tuple(replace(row, id=redact(row.id)) for row in answer.scores),
        model=_redacted_model(answer.model, redact),
        dropped=tuple((redact(id_), code) for id_, code in answer.dropped),
    )


def _redacted_model(model: ModelUse | None, redact: Callable[[str], str]) -> ModelUse | None:
    if model is None:
        return None
    answer = None if model.answer is None else redact(model.answer)
    return replace(model, name=redact(model.name), answer=answer)


def _redacted_search(search: SearchUse, redact: Callable[[str], str]) -> SearchUse:
    return replace(
        search,
        why=redact(search.why),
        ranked=tuple(replace(r, id=redact(r.id)) for r in search.ranked),
    )
