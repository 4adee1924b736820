"""`bundle-router runs compare`: what differs between two runs."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Final

from bundle_router.cli.output import counted, excerpt, heading, print_json, say, say_whole, table
from bundle_router.review.run_comparison import (
    CallPair,
    ComparedCall,
    ComparedStep,
    ConfigDifference,
    RunComparison,
    StepPair,
    ValueDifference,
)

SHORT: Final = 60
"""Maximum characters of a value that stands beside another on one line."""


def compare(arguments: argparse.Namespace) -> int:
    """Print two runs beside each other."""
    from bundle_router.workbench.compared_runs import compare_runs
    from bundle_router.workbench.run_reader import open_reader

    with closing(open_reader(arguments.runs, store=arguments.store)) as reader:
        reader.refresh(now=True)
        comparison = compare_runs(reader, arguments.a, arguments.b)
    if arguments.json:
        print_json(comparison.to_json())
    else:
        _show(comparison, all_steps=arguments.all)
    return 0


def _show(comparison: RunComparison, *, all_steps: bool) -> None:
    a_id, b_id = comparison.a.run_id, comparison.b.run_id
    table(
        ("", f"A {a_id}", f"B {b_id}"), [(row.field, row.a, row.b) for row in comparison.totals()]
    )
    for config in comparison.configs:
        _show_config(config)
    if not comparison.aligned:
        say("config: not compared, as no step is in both runs")
    elif not comparison.configs:
        say("config: the same revision")
    differing = comparison.differing
    say()
    say(f"{len(differing):,} of {counted(len(comparison.pairs), 'step')} differ")
    for pair in comparison.pairs if all_steps else differing:
        _show_pair(pair)
    if differing:
        say()
        say(f"- only in {a_id}, + only in {b_id}; one record in full: runs show RUN --seq N")


def _show_config(config: ConfigDifference) -> None:
    say()
    say_whole(
        "",
        f"config of {counted(config.steps, 'step')}: {config.a_revision[:19]} →"
        f" {config.b_revision[:19]}",
        under=2,
    )
    if config.unknown:
        say_whole("  ", config.unknown, under=4)
    for line in (*config.edits, *config.powers):
        say_whole("  ", line, under=4)


def _show_pair(pair: StepPair) -> None:
    say()
    if pair.a is None and pair.b is not None:
        heading(f"+ {pair.b.seq:>4}  {_name(pair.b)}")
    elif pair.b is None and pair.a is not None:
        heading(f"- {pair.a.seq:>4}  {_name(pair.a)}")
    elif pair.a is not None and pair.b is not None:
        suffix = "" if pair.differs else "  the same"
        heading(f"{pair.a.seq} / {pair.b.seq}  {_name(pair.a)}  (aligned by {pair.by}){suffix}")
    for names in pair.sets:
        for sign, changed in (("-", names.only_a), ("+", names.only_b)):
            if changed:
                say_whole(f"      {names.field} {sign} ", ", ".join(changed), under=10)
    for difference in pair.differences:
        _show_difference("      ", difference)
    _show_time("      ", pair)
    for call in pair.calls:
        if call.differs:
            _show_call(call)


def _show_call(pair: CallPair) -> None:
    if pair.a is not None and pair.b is not None:
        say(f"      {pair.a.seq} / {pair.b.seq}  call {pair.a.tool}")
        for difference in pair.differences:
            _show_difference("          ", difference)
        _show_time("          ", pair)
    elif pair.a is not None:
        say(
            excerpt(
                f"    - {pair.a.seq}  call {pair.a.tool} → {_outcome(pair.a)} ", pair.a.arguments
            )
        )
    elif pair.b is not None:
        say(
            excerpt(
                f"    + {pair.b.seq}  call {pair.b.tool} → {_outcome(pair.b)} ", pair.b.arguments
            )
        )


def _show_difference(indent: str, difference: ValueDifference) -> None:
    longest = max(len(difference.a), len(difference.b))
    if longest <= SHORT and "\n" not in difference.a + difference.b:
        say(f"{indent}{difference.field}: {difference.a or 'none'} → {difference.b or 'none'}")
        return
    say(excerpt(f"{indent}{difference.field} - ", difference.a))
    say(excerpt(f"{indent}{difference.field} + ", difference.b))


def _show_time(indent: str, pair: StepPair | CallPair) -> None:
    if pair.time is None:
        return
    notable = f" ({pair.longer} took notably longer)" if pair.longer else ""
    say(f"{indent}time: {pair.time.a} → {pair.time.b}{notable}")


def _name(step: ComparedStep) -> str:
    name = " / ".join(word for word in step.address if word)
    if step.branch:
        name += f" (branch {step.branch})"
    return f"{name} [{step.key}]" if step.key else name


def _outcome(call: ComparedCall) -> str:
    return call.outcome or "no end"
