"""Budgets of calls, for a step, a run and a tree of runs; and loops of repeated calls.

Rules:
1. A step's budget belongs to its branch, workflow, role, step and key: routing the step again does
   not renew it. Other budgets belong to the whole run, and to the tree of runs that begins with it.
2. Every answered call counts, refused ones too: they cost the model as many tokens. A call that a
   budget refused does not count, so that the recorded totals stay as they were when the budget ran
   out.
3. Budgets are checked when a call begins; a tree's once more when the start is recorded, as its
   runs have separate records. Concurrent calls may exceed bytes and time together, each by the
   limits of one call.
4. A call repeats when one of the last `WINDOW` different calls asked the same and got the same
   answer. Repetitions in a row count until a call asks or gets something else. So polling is no
   loop while the answer changes, and a loop is found up to a length of `WINDOW` calls.
5. In a loop only the loop's own calls are refused: any other call leads out of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.catalog import CallLimits
from bundle_router.core.values.canonical import digest, encode

WINDOW: Final = 8
"""Last calls that are compared."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of a step's calls."""

    calls: int = 0
    """Calls that began."""
    result_bytes: int = 0
    """Bytes of their results before these were shortened."""
    elapsed_ms: float = 0.0
    """Milliseconds of the calls' own times, added up."""
    repeats: int = 0
    """How often in a row a call and its answer were those of an earlier one."""
    recent: tuple[tuple[int, int], ...] = ()
    """A hash of each of the last calls' questions and answers, latest last; valid in this process
    only.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the totals in the form of the records."""
        return {
            "calls": self.calls,
            "result_bytes": self.result_bytes,
            "elapsed_ms": round(self.elapsed_ms, 3),
            "repeats": self.repeats,
        }


def over_budget(limits: CallLimits, spent: Totals, question: int) -> tuple[str, str] | None:
    """Return why no further call may begin: the key of `[limits]`, and the text for the agent; None
    where one may. `question` is the hash of the call's question.
    """
    bounds = limits.calls_per_step, limits.result_bytes_per_step, limits.call_seconds_per_step
    if (over := _exceeded_bound("step", "This step", spent, bounds)) is not None:
        return over
    if spent.repeats >= limits.repeated_calls and any(
        question == earlier for earlier, _ in spent.recent
    ):
        return (
            "repeated_calls",
            (
                "This call was made before and gave the same answer, and so did the last"
                f" {spent.repeats} calls. Making it again won't change that: do something else, or"
                " go on with what you have."
            ),
        )
    return None


def over_total(limits: CallLimits, run: Totals, tree: Totals | None) -> tuple[str, str] | None:
    """Return why no further call may begin in a run or its tree of runs (None: it has none), as
    `over_budget` does.
    """
    bounds = limits.calls_per_run, limits.result_bytes_per_run, limits.call_seconds_per_run
    over = _exceeded_bound("run", "This run", run, bounds)
    if over is not None or tree is None:
        return over
    bounds = limits.calls_per_tree, limits.result_bytes_per_tree, limits.call_seconds_per_tree
    return _exceeded_bound("tree", "This run and those it belongs with", tree, bounds)


def _exceeded_bound(
    what: str, who: str, spent: Totals, bounds: tuple[int | None, int | None, float | None]
) -> tuple[str, str] | None:
    calls, size, seconds = bounds
    elapsed = spent.elapsed_ms / 1000
    if calls is not None and spent.calls >= calls:
        key = "calls"
        spent_words = f"{spent.calls:,} calls"
        limit = f"{calls:,}"
    elif size is not None and spent.result_bytes >= size:
        key = "result_bytes"
        spent_words = f"results of {spent.result_bytes:,} bytes"
        limit = f"{size:,}"
    elif seconds is not None and elapsed >= seconds:
        key = "call_seconds"
        spent_words = f"{elapsed:,.0f} seconds of calls"
        limit = f"{seconds:,g}"
    else:
        return None
    message = f"{who} has had {spent_words}, of at most {limit}: it gets no more."
    return f"{key}_per_{what}", f"{message} Go on with what you have, and say what is missing."


def bounds_tree(limits: CallLimits) -> bool:
    """Return whether any limit applies to a tree of runs."""
    return any((limits.calls_per_tree, limits.result_bytes_per_tree, limits.call_seconds_per_tree))


def sum_totals(parts: Iterable[Totals]) -> Totals:
    """Return the sum of several runs' totals."""
    runs = tuple(parts)
    calls = sum(run.calls for run in runs)
    size = sum(run.result_bytes for run in runs)
    return Totals(calls, size, sum(run.elapsed_ms for run in runs))


HEAD: Final = 1_000
"""Characters that are kept of arguments that are too large, or that are longer than `KEPT` and were
refused.
"""
KEPT: Final = 4_000


def shorten_arguments(text: str) -> str:
    """Shorten the arguments of a refused call for the record: nothing acted on them, and there may
    be many.
    """
    if len(text) <= KEPT:
        return text
    return encode({"length": len(text), "digest": digest(text), "head": text[:HEAD]})


def asked_hash(name: str, arguments: str | None) -> int:
    """Return a hash of a call's question, valid in this process only."""
    return hash((name, shorten_arguments(arguments or "")))


def add_call(spent: Totals, result_bytes: int, elapsed_ms: float) -> Totals:
    """Return the totals after a call ended, which counts once however many attempts it took."""
    return Totals(
        spent.calls,
        spent.result_bytes + result_bytes,
        spent.elapsed_ms + elapsed_ms,
        spent.repeats,
        spent.recent,
    )


def count_start(spent: Totals) -> Totals:
    """Return the totals after a call was admitted."""
    return Totals(
        spent.calls + 1, spent.result_bytes, spent.elapsed_ms, spent.repeats, spent.recent
    )


def count_end(
    spent: Totals, question: int, answered: int, result_bytes: int, elapsed_ms: float
) -> Totals:
    """Return the totals after an admitted call ended."""
    pair = (question, answered)
    different = tuple(recent for recent in spent.recent if recent != pair)
    is_again = len(different) < len(spent.recent)
    return Totals(
        calls=spent.calls,
        result_bytes=spent.result_bytes + result_bytes,
        elapsed_ms=spent.elapsed_ms + elapsed_ms,
        repeats=spent.repeats + 1 if is_again else 0,
        recent=(*different, pair)[-WINDOW:],
    )
