"""`bundle-router learn`: shows what past runs teach and what it would change, and accepts it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bundle_router.cli.local import local_servers
from bundle_router.cli.output import (
    counted,
    heading,
    print_json,
    print_result,
    say,
    show_habits,
    table,
    tracked,
)
from bundle_router.cli.shared_arguments import (
    add_archive,
    add_config,
    add_json,
    archive_of,
    config_folder,
    user_name,
)
from bundle_router.core.catalog import Catalog
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.step_labels import label_of
from bundle_router.errors import CorruptRun, NotInstalled, RequestError, RouterError
from bundle_router.review.learning.labels import MAX_STEPS
from bundle_router.review.learning.proposals import AFTER
from bundle_router.review.learning.recorded_steps import PastStep, past_steps

if TYPE_CHECKING:
    from bundle_router.adapters.archive import RunArchive
    from bundle_router.core.search.learned_values import LearnedValues
    from bundle_router.core.search.ranking import Search
    from bundle_router.review.learning.fitting import MemoryFit
    from bundle_router.review.learning.report import Learning

EPILOG = """Nothing takes effect until it is accepted. `--accept` writes learned/memory.json,
tools.json and calibration.json in the config folder, which the next `Router.open` reads, and
learned/proposals.toml, which nothing reads. Delete a file to go back.
`bundle-router learn label RUN SEQ --needed ID` records a reviewer's label of one decision."""
LEAST_VERSION = 8
MANY_STEPS = 200
STEP_S = 0.05
"""Maximum seconds of learning per labelled step, with thousands of them."""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    _add_own(parser)
    verbs = parser.add_subparsers(metavar="label")
    label = verbs.add_parser(
        "label", help="say what a step needed", description="Say what a recorded step needed."
    )
    label.set_defaults(handler=_label)
    label.add_argument("run_id", metavar="run", help="run id")
    label.add_argument("seq", type=int, help="the decision's number, as `runs show` prints it")
    label.add_argument(
        "--needed", action="append", default=[], metavar="BUNDLE", help="may be repeated"
    )
    label.add_argument(
        "--not-needed", action="append", default=[], metavar="BUNDLE", help="may be repeated"
    )
    label.add_argument("--by", default=None, help="the reviewer (default: the user)")
    add_archive(label)
    add_json(label)


def _add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calibrate", action="store_true", help="fit thresholds too (takes 300 labels)"
    )
    parser.add_argument(
        "--accept",
        nargs="?",
        const="",
        metavar="VERSION",
        help=(
            "put what was learned in force; with a VERSION that was printed, only if it is still"
            " the same"
        ),
    )
    parser.add_argument(
        "--proposals", type=Path, metavar="FILE", help="write the proposals there, as TOML"
    )
    parser.add_argument(
        "--after",
        type=int,
        default=AFTER,
        help=f"propose a route after AFTER equal answers (default: {AFTER})",
    )
    add_config(parser)
    add_archive(parser)
    add_json(parser)


@dataclass(slots=True)
class _Read:
    """What was read from the runs. `unread`: runs that could not be used, with the reason."""

    steps: list[PastStep] = field(default_factory=list)
    catalogs: dict[str, Catalog] = field(default_factory=dict)
    unread: list[tuple[str, str]] = field(default_factory=list)


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.learned_files import load_learned
    from bundle_router.review.learning.report import learn
    from bundle_router.wiring.catalogs import read_catalog

    if arguments.after < 1:
        raise RequestError("--after must be at least 1")
    folder = config_folder(arguments)
    if arguments.accept is not None and folder is None:
        raise RequestError(
            "there is no config folder to keep it in", advice="make one with `bundle-router init`"
        )
    catalog, _ = read_catalog(folder, local_servers(arguments))
    values = load_learned(folder).fitted_to(catalog)
    read = _read_runs(archive_of(arguments))
    search, missing = _search(catalog, [step.request.text for step in read.steps])
    if sys.stderr.isatty() and len(read.steps) > MANY_STEPS:
        seconds = len(read.steps) * STEP_S
        print(
            f"replaying {len(read.steps):,} steps, which takes up to {seconds:,.0f} s…",
            file=sys.stderr,
        )
    learning = learn(
        read.steps,
        read.catalogs,
        catalog,
        search,
        values,
        calibrating=arguments.calibrate,
        after=arguments.after,
    )
    paths = _write(arguments, folder, learning, catalog)
    if arguments.json:
        unread = [{"run_id": run_id, "why": why} for run_id, why in read.unread]
        print_json(
            {
                **learning.to_json(),
                "search": missing or "ready",
                "unread": unread,
                "written": paths,
            }
        )
    else:
        _show(learning, read, missing)
        _show_end(learning, paths, accepted=arguments.accept is not None)
    return 0


# --- reading --------------------------------------------------------------------------------------


def _read_runs(archive: RunArchive) -> _Read:
    """Read the newest runs first, until there are enough steps; return them in the order they were
    opened.
    """
    read = _Read()
    for summary in tracked("reading runs", archive.runs()):
        if len(read.steps) >= MAX_STEPS:
            break
        try:
            read.steps[:0] = _read_run(archive, summary.run_id, read.catalogs)
        except RouterError as error:
            read.unread.append((summary.run_id, error.message))
    return read


def _read_run(archive: RunArchive, run_id: str, catalogs: dict[str, Catalog]) -> list[PastStep]:
    """Read one run.

    Raises CorruptRun, StorageError, UnknownRun. Runs that were tampered with are not used.
    """
    from bundle_router.core.records.replayed import catalog_from

    archive.check_whole(run_id)
    try:
        steps = past_steps(archive.records(run_id), archive.labels(run_id))
        for revision in {step.catalog_revision for step in steps} - catalogs.keys():
            catalogs[revision] = catalog_from(archive.catalog(run_id, revision))
    except (KeyError, TypeError, ValueError) as wrong:
        raise CorruptRun(
            f"a record does not fit its type: {type(wrong).__name__}: {wrong}"
        ) from None
    return steps


def _search(catalog: Catalog, requests: list[str]) -> tuple[Search | None, str]:
    from bundle_router.wiring.searching import make_search_for

    try:
        return make_search_for(catalog, requests), ""
    except NotInstalled as error:
        return None, error.message


# --- writing --------------------------------------------------------------------------------------


def _write(
    arguments: argparse.Namespace, folder: str | None, learning: Learning, catalog: Catalog
) -> list[str]:
    from bundle_router.adapters.learned_files import PROPOSALS, save_learned
    from bundle_router.adapters.learned_folder import FOLDER
    from bundle_router.adapters.text_files import replace_texts
    from bundle_router.review.learning.report_text import proposals_toml

    paths: list[Path] = []
    places: list[Path] = []
    if arguments.accept is not None and folder is not None:
        _check_version(arguments.accept, learning.version)
        if learning.changes:
            paths += save_learned(folder, learning.proposed)
        if learning.proposals.count:
            places.append(Path(folder, FOLDER, PROPOSALS))
    if arguments.proposals is not None:
        places.append(arguments.proposals)
    if places:
        replace_texts(dict.fromkeys(places, proposals_toml(learning.proposals, catalog)))
    return [str(path) for path in (*paths, *places)]


def _check_version(wanted: str, version: str) -> None:
    """Refuse to accept anything but the version that was printed: the logs may have grown since."""
    if wanted and (len(wanted) < LEAST_VERSION or not version.startswith(wanted)):
        raise RequestError(
            f"what the logs teach now is version {version}, not {wanted!r}: nothing was accepted",
            advice="look at it again with `bundle-router learn`, then accept that version",
        )


# --- showing --------------------------------------------------------------------------------------


def _show(learning: Learning, read: _Read, missing: str) -> None:
    kinds = ", ".join(f"{number} {kind}" for kind, number in learning.labelled.by_kind)
    steps = counted(learning.steps, "step")
    labelled = learning.labelled
    heading(f"{counted(learning.runs, 'run')}, {steps}, {len(labelled.steps)} of them labelled")
    say(f"labels: {kinds}")
    say(
        f"left out: {labelled.over_quota} over a run's quota, {labelled.obsolete} obsolete, "
        f"{labelled.unrankable} that policy does not let search pick"
    )
    for run_id, reason in read.unread:
        say(f"not learned from: {run_id}: {reason}")
    if missing:
        say(f"{missing}: no memory, no calibration and no examples")
    say()
    _show_fits(learning)
    _show_proposals(learning)


def _show_fits(learning: Learning) -> None:
    rows = list(_fit_rows(learning))
    if rows:
        table(("on steps it was not learned from", "steps>", "now>", "then>"), rows)
        say()
    for of, fitted in (("", learning.memory), ("tools", learning.tools)):
        if fitted is not None:
            state = "on" if fitted.memory is not None else "not proposed"
            say(f"memory{of and ' of '}{of}: {state}: {fitted.why}")
            if fitted.recall:
                say(f"past steps are compared {of and 'for '}{of}{of and ' '}{fitted.recall}")
    if (tried := learning.embeddings) is not None:
        say(f"embeddings: {tried.why}")
    if learning.calibration is not None:
        fit = learning.calibration
        state = "fitted" if fit.calibration is not None else "not proposed"
        say(f"calibration: {state}: {fit.why}")
    elif learning.memory is not None:
        say("calibration: not asked for (--calibrate)")


def _fit_rows(learning: Learning) -> Iterator[tuple[object, ...]]:
    memory = learning.memory
    calibration = learning.calibration
    if memory is not None and memory.replay.trials:
        yield _replay_row("replay, run by run: quality (nDCG@10)", memory)
    if memory is not None and memory.before.steps:
        old = memory.before
        new = memory.after
        yield (
            "newest runs: right bundle first",
            old.steps,
            _fixed(old.first),
            _fixed(new.first),
        )
        yield (
            "newest runs: mean reciprocal rank",
            old.steps,
            _fixed(old.mrr),
            _fixed(new.mrr),
        )
    tools = learning.tools
    if tools is not None and tools.replay.trials:
        yield _replay_row("tools, replay run by run: quality", tools)
    if calibration is not None and calibration.enough:
        unfitted = calibration.before
        fitted = calibration.after
        yield (
            "settled by search alone",
            unfitted.steps,
            _percent(unfitted.share),
            _percent(fitted.share),
        )
        yield "  of these wrong", "", _percent(unfitted.error), _percent(fitted.error)
        for effect, settled in calibration.by_effect:
            yield f"  bundles that {effect}: settled", settled.steps, "", _percent(settled.share)
            yield "    of these wrong", "", "", _percent(settled.error)


def _replay_row(what: str, fitted: MemoryFit) -> tuple[object, ...]:
    replay = fitted.replay
    memory = fitted.memory
    new = replay.after if memory is not None else replay.before
    if memory is not None and memory.recollection is not None and replay.recall is not None:
        new = replay.recall.after
    return what, replay.labels, _fixed(replay.before), _fixed(new)


def _show_proposals(learning: Learning) -> None:
    proposals = learning.proposals
    say()
    if not proposals.count:
        say("proposals: none")
    if proposals.routes:
        rows = [
            (
                str(r.address),
                " ".join(r.bundles),
                f"{r.same} of {r.answers}",
                r.runs,
                r.used,
            )
            for r in proposals.routes
        ]
        table(("route to promote", "bundles", "answers>", "runs>", "used>"), rows)
    if proposals.examples:
        examples = [
            (e.bundle, e.text, e.runs, e.rank or "not found", e.answered_by_model, e.evidence[-1])
            for e in proposals.examples
        ]
        columns = ("example to add", "text", "runs>", "ranked now>", "by a model>", "such as")
        table(columns, examples)
    if proposals.trims:
        trims = [
            (t.bundle, "all of it" if t.whole else " ".join(t.tools), t.steps, t.runs, t.tokens)
            for t in proposals.trims
        ]
        table(("bundle to trim", "shown and never called", "steps>", "runs>", "tokens>"), trims)
    if proposals.count:
        say("as TOML to copy from: --proposals FILE")
    show_habits(learning.habits)


def _show_end(learning: Learning, written: list[str], *, accepted: bool) -> None:
    say()
    for path in written:
        say(f"written: {path}")
    learned_name = _name_of_learned(learning.now)
    proposed = _name_of_learned(learning.proposed)
    if not learning.changes:
        say(f"in force, unchanged: {learned_name}")
    elif accepted:
        say(f"in force from the next start on: {proposed} (it was: {learned_name})")
    else:
        say(f"in force: {learned_name}; proposed: {proposed}")
        say(
            f"to accept exactly this: bundle-router learn --accept {learning.version}, with the"
            " same options"
        )


def _name_of_learned(learned: LearnedValues) -> str:
    return ", ".join(f"{name} {version[:19]}" for name, version in learned.revisions) or "nothing"


def _fixed(value: float) -> str:
    return f"{value:.3f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


# --- a reviewer's word ----------------------------------------------------------------------------


def _label(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.system import SystemClock
    from bundle_router.core.records.replayed import catalog_from

    archive = archive_of(arguments)
    record = _decision(archive, arguments.run_id, arguments.seq)
    catalog = catalog_from(archive.catalog(arguments.run_id, record.decision.catalog_revision))
    by = user_name() if arguments.by is None else arguments.by
    correction = label_of(
        record, catalog, arguments.needed, arguments.not_needed, by, SystemClock().time_ns()
    )
    path = archive.add_label(arguments.run_id, correction)
    print_result(
        arguments,
        {"file": str(path), **correction.model_dump(mode="json", by_alias=True)},
        f"labelled decision {correction.decision_id} in {path}",
    )
    return 0


def _decision(archive: RunArchive, run_id: str, seq: int) -> DecisionRecord:
    for record in archive.decisions(run_id):
        if record.decision.seq == seq:
            return record
    raise RequestError(
        f"run {run_id!r} has no decision {seq}",
        advice=f"`bundle-router runs show {run_id}` numbers its decisions",
    )
