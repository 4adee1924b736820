"""How taints go: cleared by a person, or left behind by a checked answer of a sub-agent.

Rules:
1. Who clears is never one of the run's principals: its own agent does not say what it has seen.
2. A reason is given, and recorded with the name.
3. An answer that does not fit its form is refused, and nothing of it is passed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bundle_router.core.catalog import AnswerForm, Catalog
from bundle_router.core.decide.hand_back import misfit
from bundle_router.core.decide.step_policy import refuse_unknown_taints
from bundle_router.core.decide.taints import cleared
from bundle_router.core.records.call_records import TaintCleared
from bundle_router.core.records.seen import SeenLedger
from bundle_router.core.values import Seen
from bundle_router.core.values.canonical import time_text
from bundle_router.core.values.spelling import Suggester
from bundle_router.engine.engine_ports import CallPorts
from bundle_router.engine.run_records import MOVED_AT_MOST
from bundle_router.errors import RequestError, expect

MAX_TEXT = 2_000
"""Characters of a reason."""


async def clear(
    at: CallPorts, taints: Sequence[str], by: str, reason: str, branch: str
) -> tuple[Seen, ...]:
    """Record that taints of a branch count no more, and return what it has still seen."""
    expect("taints", taints, Sequence, 'name them in a list: taints=["untrusted"]')
    for name, text in (("by", by), ("reason", reason)):
        expect(name, text, str, f"give a text: {name}=...")
        if not text.strip() or len(text) > MAX_TEXT:
            raise RequestError(
                f"{name} is empty, or longer than {MAX_TEXT:,} characters",
                advice="say who clears this, and why: it is recorded",
            )
    ledger = _ledger(at)
    refuse_unknown_taints(ledger.catalog, taints, "taints")
    names = cleared(taints, dict(ledger.catalog.taints))
    return await at.run.under_lock(partial(_clear, at, names, (by, reason, branch)))


def _clear(
    at: CallPorts, names: frozenset[str], words: tuple[str, str, str], wait_s: float
) -> tuple[Seen, ...]:
    by, reason, branch = words
    run = at.run
    ledger = _ledger(at)
    for _ in range(MOVED_AT_MOST):
        run.read_on()
        if by in run.fold.principals:
            raise RequestError(
                f"{by!r} is whom run {run.id!r} works for, and can't clear what it has seen",
                advice="another person has to say so",
            )
        present_taints = {source.taint for source in ledger.seen(branch)}
        if not present_taints & names:
            raise RequestError(
                f"run {run.id!r} has seen none of {', '.join(sorted(names))} in branch {branch!r}",
                advice="`Router.seen` says what it has seen",
            )
        record = TaintCleared(
            run_id=run.id,
            branch=branch,
            taints=tuple(sorted(present_taints & names)),
            by=by,
            reason=reason,
            time=time_text(at.ports.clock.time_ns()),
        )
        if run.append_call(record, compare=True, wait_s=wait_s) is not None:
            return ledger.seen(branch)
    raise run.moved_error()


async def hand_back(at: CallPorts, catalog: Catalog, value: object, form_name: str) -> None:
    """Pass to the parent what an answer in a form does not clear. Raises RequestError where it does
    not fit.
    """
    run = at.run
    if run.fold.hands_back != "checked" or run.parent_id is None:
        raise RequestError(
            f"run {run.id!r} hands back no checked answers",
            advice='route its steps with Step(parent_run_id=..., hands_back="checked")',
        )
    form = _form(catalog, form_name)
    wrong = misfit(form, value)
    if wrong:
        raise RequestError(
            f"the answer of run {run.id!r} is not handed back: {wrong}",
            advice="a form holds no free text; what strangers wrote stays in the sub-agent",
        )
    if run.fold.ledger is not None:
        await run.under_lock(partial(_hand_back, at, form))


def _hand_back(at: CallPorts, form: AnswerForm, wait_s: float) -> None:
    run = at.run
    run.read_on()
    ledger = _ledger(at)
    decided = run.fold.decided(run.fold.current_branch)
    if decided is None:
        return
    clears = cleared(form.clears, dict(ledger.catalog.taints))
    remaining = [source for source in ledger.seen(decided.branch) if source.taint not in clears]
    if remaining:
        taints = frozenset(source.taint for source in remaining)
        at.tree.pass_taints(run, decided, (remaining[0].tool, form.name, taints), wait_s)


def _ledger(at: CallPorts) -> SeenLedger:
    ledger = at.run.fold.ledger
    if ledger is None:
        raise RequestError(
            "no policy row has `seen`, so nothing is kept of what runs have seen",
            advice="add one: seen = ['untrusted']",
        )
    return ledger


def _form(catalog: Catalog, name: str) -> AnswerForm:
    forms = {form.name: form for form in catalog.forms}
    form = forms.get(name)
    if form is None:
        hint = Suggester().did_you_mean(name, forms)
        raise RequestError(
            f"policy.toml has no form {name!r}" + (f" ({hint})" if hint else ""),
            advice=f"declare it there: [forms.{name}]",
        )
    return form
