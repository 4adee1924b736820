"""The questions about held calls over many runs, and answers on their store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, get_args

from bundle_router.adapters.archive import RunArchive
from bundle_router.core.records.approval_records import ApprovalAsked
from bundle_router.core.values.approvals import Approval, ApprovalState
from bundle_router.engine.answers import approver_here, words
from bundle_router.engine.engine import Engine
from bundle_router.errors import RequestError, UnknownRun
from bundle_router.wiring.stores import open_archive

if TYPE_CHECKING:
    from bundle_router.wiring.endpoint_access import EndpointAccess

_ASKED: Final = f'"type":"{ApprovalAsked.type}"'.encode()


def list_approvals(engine: Engine, run_id: str | None, state: str | None) -> tuple[Approval, ...]:
    """Return the questions in a state (None: in any), the soonest bound first. Blocks.

    Raises UnknownRun, and RequestError for a word that is no state.
    """
    states = get_args(ApprovalState)
    if state is not None and state not in states:
        raise RequestError(f"unknown state {state!r}", advice=f"use one of {', '.join(states)}")
    archive = open_archive(engine.runs.store)
    questions = list(engine.approvals(run_id)) if run_id is not None else []
    below = archive.run_ids() if run_id is None else _below(archive, run_id)
    for id_ in below:
        with suppress(UnknownRun):  # pruned meanwhile
            if _has_questions(archive, id_):
                questions += engine.approvals(id_)
    fitting = [question for question in questions if state in (None, question.state)]
    return tuple(sorted(fitting, key=lambda question: (question.answer_by, question.id)))


def _below(archive: RunArchive, run_id: str) -> Iterator[str]:
    """Yield the runs below a run, at any depth."""
    for sub_run in archive.sub_runs(run_id):
        yield sub_run.run_id
        yield from _below(archive, sub_run.run_id)


def _has_questions(archive: RunArchive, run_id: str) -> bool:
    return any(_ASKED in line for lines in archive.lines(run_id).values() for line in lines)


# --- answers on the store itself ------------------------------------------------------------------


async def grant_here(
    access: EndpointAccess, approval_id: str, *, user: str, binding: str, reason: str
) -> Approval:
    """Grant a held call as the user of this machine, which nothing proves: not where a row names
    approvers. Raises as `Router.grant` does.
    """
    approver = approver_here(user)
    text = words("reason", reason)
    return await access.answer(
        approval_id,
        lambda answers, wait_s: answers.grant(approval_id, approver, binding, text, wait_s),
    )


async def refuse_here(
    access: EndpointAccess, approval_id: str, *, user: str, reason: str, advice: str
) -> Approval:
    """Refuse a held call as the user of this machine. Raises as `Router.refuse` does."""
    approver = approver_here(user)
    texts = words("reason", reason), words("advice", advice)
    return await access.answer(
        approval_id, lambda answers, wait_s: answers.refuse(approval_id, approver, texts, wait_s)
    )
