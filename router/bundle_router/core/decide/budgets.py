"""What the calls of one step may cost together, and when they only go round in circles.

Rules:
1. A budget belongs to a branch, workflow, role, step and key: routing the step again does not begin a new one. Others
   belong to the whole run, and to the tree of runs that begins with it.
2. Whatever is answered counts, refusals too: they cost the model as many tokens. What was refused for want of budget
   does not count, so that the counts in the records stay what they were when the budget ran out.
3. It is looked at when a call begins; a tree's once more when its start is recorded, as its runs are recorded apart.
   Calls that are under way side by side may pass bytes and time together, each by what one call may have at most.
4. A call repeats when one of the last `WINDOW` different calls asked the same and got the same answer. Repetitions in a
   row are counted until anything else is asked or answered. So waiting for something to change is no circle while it
   changes, and a circle is one up to a length of `WINDOW`.
5. Who went round in circles is refused the calls of the circle, and only those: anything else is the way out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from bundle_router.core.catalog import CallLimits
from bundle_router.core.models.canonical import digest, encode
from bundle_router.dataclass import dataclass

WINDOW: Final = 8
"""Calls that are looked back on."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What the calls of a step have come to. `result_bytes` are those of the results as they came, `elapsed_ms` the
    calls' own times added up. `recent` holds what the last calls asked and what they were answered, latest last, each
    as a hash that means something in this process only."""

    calls: int = 0
    result_bytes: int = 0
    elapsed_ms: float = 0.0
    repeats: int = 0
    recent: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As records carry it."""
        return {
            "calls": self.calls,
            "result_bytes": self.result_bytes,
            "elapsed_ms": round(self.elapsed_ms, 3),
            "repeats": self.repeats,
        }


def over_budget(limits: CallLimits, spent: Totals, asked: int) -> tuple[str, str] | None:
    """Return why no further call may begin: the key of `[limits]` that says so, and what to tell the agent. `asked` is
    the hash of what the call asks."""
    bounds = limits.calls_per_step, limits.result_bytes_per_step, limits.call_seconds_per_step
    if (over := _exceeded_bound("step", "This step", spent, bounds)) is not None:
        return over
    if spent.repeats >= limits.repeated_calls and any(asked == earlier for earlier, _ in spent.recent):
        return "repeated_calls", (
            f"This call was made before and gave the same answer, and so did the last {spent.repeats} calls. "
            "Making it again won't change that: do something else, or go on with what you have."
        )
    return None


def over_total(limits: CallLimits, run: Totals, tree: Totals | None) -> tuple[str, str] | None:
    """Return why no further call may begin in a run, or in a tree of runs (None: it is in none): as `over_budget`."""
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
        key, spent_words, limit = "calls", f"{spent.calls:,} calls", f"{calls:,}"
    elif size is not None and spent.result_bytes >= size:
        key, spent_words, limit = "result_bytes", f"results of {spent.result_bytes:,} bytes", f"{size:,}"
    elif seconds is not None and elapsed >= seconds:
        key, spent_words, limit = "call_seconds", f"{elapsed:,.0f} seconds of calls", f"{seconds:,g}"
    else:
        return None
    message = f"{who} has had {spent_words}, of at most {limit}: it gets no more."
    return f"{key}_per_{what}", f"{message} Go on with what you have, and say what is missing."


def bounds_tree(limits: CallLimits) -> bool:
    """Return whether anything is bounded for a tree of runs."""
    return any((limits.calls_per_tree, limits.result_bytes_per_tree, limits.call_seconds_per_tree))


def sum_totals(parts: Iterable[Totals]) -> Totals:
    """Return what several runs have come to."""
    total = Totals()
    for spent in parts:
        total = Totals(
            total.calls + spent.calls, total.result_bytes + spent.result_bytes, total.elapsed_ms + spent.elapsed_ms
        )
    return total


HEAD: Final = 1_000
"""Characters kept of arguments that are too large to be taken, or that are longer than `KEPT` and were refused."""
KEPT: Final = 4_000


def shorten_arguments(text: str) -> str:
    """Return what the record of a refused call holds of arguments: nobody acted on them, and there may be many."""
    return text if len(text) <= KEPT else encode({"length": len(text), "digest": digest(text), "head": text[:HEAD]})


def asked_hash(name: str, arguments: str | None) -> int:
    """Return what a call asks, as a number that means something in this process only."""
    return hash((name, shorten_arguments(arguments or "")))


def add_call(spent: Totals, result_bytes: int, elapsed_ms: float) -> Totals:
    """Return what has been spent after another call has come to its end, however often it was made."""
    return Totals(
        spent.calls, spent.result_bytes + result_bytes, spent.elapsed_ms + elapsed_ms, spent.repeats, spent.recent
    )


def count_start(spent: Totals) -> Totals:
    """After a call that was let in."""
    return Totals(spent.calls + 1, spent.result_bytes, spent.elapsed_ms, spent.repeats, spent.recent)


def count_end(spent: Totals, asked: int, answered: int, result_bytes: int, elapsed_ms: float) -> Totals:
    """After that call has come to its end."""
    pair = (asked, answered)
    return Totals(
        calls=spent.calls,
        result_bytes=spent.result_bytes + result_bytes,
        elapsed_ms=spent.elapsed_ms + elapsed_ms,
        repeats=spent.repeats + 1 if pair in spent.recent else 0,
        recent=(*(one for one in spent.recent if one != pair), pair)[-WINDOW:],
    )
