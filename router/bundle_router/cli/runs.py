"""`bundle-router runs`: reports on recorded runs, in a runs directory or a database."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bundle_router.adapters.private_folders import temporary_root
from bundle_router.cli.output import (
    counted,
    heading,
    print_json,
    print_result,
    say,
    say_json,
    say_skipped,
    say_whole,
    table,
    tracked,
)
from bundle_router.cli.run_comparing import compare
from bundle_router.cli.run_lists import (
    AGE,
    AGE_S,
    add_facets,
    has_index,
    index_of,
    list_runs,
    reading_runs,
    show_hits,
    show_stats,
)
from bundle_router.cli.shared_arguments import (
    SkippedRuns,
    add_archive,
    add_json,
    add_opening,
    archive_of,
    config_folder,
    open_router,
    user_name,
)
from bundle_router.cli.timeline import show_records, sub_run_entries
from bundle_router.errors import ConfigError, CorruptRun, RequestError, StorageError

if TYPE_CHECKING:
    from bundle_router.adapters.archive import FolderHeads, RunArchive, VerifyReport
    from bundle_router.adapters.index import IndexBuild
    from bundle_router.core.records.call_records import Record


_SCHEMA_SUMMARY = "print the JSON Schema of a type of record, or list the types"
_CLEAR_SUMMARY = "record that what a run has seen of some taints counts no more, and why"
_SIZE = re.compile(r"(\d{1,15}(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def declare(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="verb", required=True)

    def verb(
        name: str,
        handler: Callable[[argparse.Namespace], int],
        summary: str,
        *,
        runs: int | str | None = None,
    ) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=summary, description=summary)
        sub.set_defaults(handler=handler)
        if runs is not None:
            sub.add_argument("run_id", nargs=runs, metavar="run", help="run id")
        add_archive(sub)
        add_json(sub)
        return sub

    add_facets(
        verb("list", list_runs, "list all runs, newest first, or those that the options select"),
        sorting=True,
    )
    add_facets(
        verb("stats", show_stats, "count what all runs did, or those that the options select")
    )
    search = verb("search", show_hits, "find words in goals, arguments, results and artifacts")
    search.add_argument(
        "words", nargs="+", help="words, beginnings of words, or the digits of an artifact"
    )
    search.add_argument("--limit", type=int, default=50, help="places shown (default: 50)")
    show = verb("show", _show, "show the decisions and calls of one run", runs=1)
    show.add_argument("--seq", type=int, help="one record in full")
    show.add_argument(
        "--local-time", action="store_true", help="times of day by this machine's zone, not UTC"
    )
    clearing = verbs.add_parser("clear", help=_CLEAR_SUMMARY, description=_CLEAR_SUMMARY)
    clearing.set_defaults(handler=_clear)
    clearing.add_argument("run_id", metavar="run", help="run id")
    clearing.add_argument(
        "--taint", action="append", required=True, help="what counts no more; may be repeated"
    )
    clearing.add_argument("--reason", required=True, help="why; it is recorded")
    clearing.add_argument("--by", help="who says so (default: local: and your user name)")
    clearing.add_argument("--branch", default="", help="branch of the run (default: its own)")
    add_opening(clearing)
    comparing = verb(
        "compare",
        compare,
        "show what differs between two runs: steps, tools, calls, outcomes, tokens, times, config",
    )
    comparing.add_argument("a", metavar="A", help="run id")
    comparing.add_argument("b", metavar="B", help="id of the run to compare it with")
    comparing.add_argument("--all", action="store_true", help="also print steps that do not differ")
    verify = verb(
        "verify",
        _verify,
        "check the hash chain; name the first record that was changed, dropped, reordered or"
        " cut off",
        runs="*",
    )
    verify.add_argument(
        "--secrets",
        action="store_true",
        help="list instead the lines that today's rules would redact",
    )
    add_heads(verify)
    receipt = verb(
        "receipt",
        _receipt,
        "print a record with what is needed to check it elsewhere; or check a receipt",
        runs="?",
    )
    receipt.add_argument("seq", nargs="?", type=int, help="the record's number")
    receipt.add_argument(
        "--check", type=Path, metavar="FILE", help="check the receipt in this file"
    )
    schema = verbs.add_parser(
        "schema",
        help=_SCHEMA_SUMMARY,
        description=_SCHEMA_SUMMARY,
    )
    schema.add_argument("type", nargs="?", help="the type of record; without one: list all types")
    schema.set_defaults(handler=_schema)
    add_json(schema)
    export = verb(
        "export",
        _export,
        "write decisions and calls as tables, or whole runs as run directories",
        runs="*",
    )
    export.add_argument(
        "--format",
        choices=("csv", "parquet", "directory"),
        default="csv",
        help="tables as CSV or Parquet, or whole run directories (default: csv)",
    )
    export.add_argument("--to", type=Path, required=True, help="folder to write into")
    take_in = verb(
        "import",
        _import,
        "copy whole runs from a runs directory into --store (or --runs)",
        runs="*",
    )
    take_in.add_argument(
        "--from", dest="source", required=True, help="the runs directory, or postgresql://…"
    )
    index = verb(
        "index", _index, "write all runs, or those named, to SQL tables for your queries", runs="*"
    )
    index.add_argument("--url", help="SQLAlchemy URL (default: SQLite in the runs folder)")
    public = verb(
        "publish",
        _publish,
        "write the pages of runs as files that open from a disk: read-only, no server",
        runs="+",
    )
    public.add_argument("--to", type=Path, required=True, help="folder to write into")
    public.add_argument(
        "--config", help="config folder with the rows' places (default: ./config if there is one)"
    )
    prune = verb("prune", _prune, "delete runs by age or total size, never one that is open")
    prune.add_argument("--older-than", metavar="AGE", help="e.g. 12h, 30d")
    prune.add_argument(
        "--max-size", metavar="SIZE", help="keep all runs together below this, e.g. 50MB or 1.5GiB"
    )
    add_heads(prune)
    prune.add_argument("--dry-run", action="store_true", help="say what would be deleted")


def add_heads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", help="config folder whose [records] names the folder of heads and their key"
    )
    parser.add_argument(
        "--heads", help="folder in which the heads of the runs are kept (default: as in the config)"
    )


def _show(arguments: argparse.Namespace) -> int:
    archive = archive_of(arguments)
    run_id = arguments.run_id[0]
    records = [
        record for record in archive.records(run_id) if arguments.seq in (None, record["seq"])
    ]
    if arguments.seq is not None and not records:
        raise RequestError(f"run {run_id!r} has no record {arguments.seq}")
    summary = archive.summary(run_id)
    if arguments.json:
        print_json({"run": asdict(summary), "records": records})
        return 0
    if arguments.seq is not None:
        say_json(records[0])
        return 0
    heading(
        f"run {run_id}: {summary.state}, {counted(len(records), 'record')}, opened {summary.opened}"
    )
    if summary.workspace:
        say_whole("workspace ", summary.workspace, under=10)
    if not archive.verify(run_id).ok:
        say(
            "WARNING: these records are not as they were written; `bundle-router runs verify` says"
            " where"
        )
    for torn in archive.torn(run_id):
        say(f"note: {torn.file} ends in {torn.bytes} bytes of an unfinished line")
    if summary.parent_run_id:
        say(f"sub-run of {summary.parent_run_id}: runs show {summary.parent_run_id}")
    values = list(archive.values(run_id))
    show_records(values, sub_run_entries(archive, run_id, values), local_time=arguments.local_time)
    _show_seen(values)
    say()
    say(f"one record in full: bundle-router runs show {run_id} --seq N")
    return 0


def _show_seen(records: Iterable[Record]) -> None:
    """Say what the branches have seen, as the records say it: nothing where no row asked for it."""
    from bundle_router.core.decide.taints import source_words
    from bundle_router.core.records.seen import recorded_seen

    for branch, taints in recorded_seen(records).items():
        sources = ", ".join(f"{source.taint} ({source_words(source)})" for source in taints)
        if sources:
            say_whole(f"branch {branch} has seen " if branch else "has seen ", sources, under=9)


def _clear(arguments: argparse.Namespace) -> int:
    by = arguments.by or f"local:{user_name()}"
    with open_router(arguments) as router:
        remaining = router.clear_sync(
            arguments.run_id,
            arguments.taint,
            by=by,
            reason=arguments.reason,
            branch=arguments.branch,
        )
    if arguments.json:
        print_json(
            {"run": arguments.run_id, "by": by, "seen": [asdict(source) for source in remaining]}
        )
        return 0
    names = ", ".join(source.taint for source in remaining) or "nothing"
    say(f"cleared; the next decision is made as if {names} had been seen")
    return 0


# --- checking -------------------------------------------------------------------------------------


def _verify(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.archive import UNKEYED

    archive = archive_of(arguments)
    archive.heads = _heads(arguments) or archive.heads
    if arguments.secrets:
        return _secrets(archive, arguments)
    reports = []
    skipped = SkippedRuns(archive, named=bool(arguments.run_id))
    for run_id in tracked("verifying runs", arguments.run_id or archive.run_ids()):
        with skipped.reading(run_id):
            reports.append(archive.verify(run_id, artifacts=True))
    missing = [] if arguments.run_id else archive.missing()
    if arguments.json:
        rows = [{**asdict(report), "ok": report.ok} for report in reports]
        print_json([*rows, *({"ok": False, "problems": [text]} for text in missing)])
    else:
        for report in reports:
            _show_report(
                replace(report, notes=tuple(note for note in report.notes if note != UNKEYED))
            )
        if any(UNKEYED in report.notes for report in reports):
            say(f"({UNKEYED})")
        for text in missing:
            say(text)
        say(f"{sum(r.ok for r in reports)} of {len(reports)} runs are as they were written")
    if all(report.ok for report in reports) and not missing:
        return skipped.status
    return CorruptRun.exit_code


def _heads(arguments: argparse.Namespace) -> FolderHeads | None:
    """Return the store of run heads with its key, by the options or the config, or None."""
    from bundle_router.adapters.archive import kept_heads
    from bundle_router.adapters.config_files import read_config
    from bundle_router.core.config.resolve import resolve

    heads = resolve(
        read_config(config_folder(arguments)), {}
    )  # its bundles may be of tools that only an engine knows
    if wrong := [
        problem for problem in heads.report.problems() if problem.path.startswith("records")
    ]:
        raise ConfigError(wrong)
    settings = heads.catalog.settings.records
    return kept_heads(replace(settings, heads=arguments.heads or settings.heads), arguments.runs)


def _show_report(report: VerifyReport) -> None:
    say(
        f"{report.run_id}: {'ok' if report.ok else 'BROKEN'}, {report.records} good records"
        f" ({report.state})"
    )
    if report.broken is not None:
        place = f" at {report.broken.file}:{report.broken.line}" if report.broken.line else ""
        say(f"  record {report.broken.seq} {report.broken.kind}{place}: {report.broken.detail}")
    for text in (*report.problems, *report.notes):
        say(f"  {text}")


def _secrets(archive: RunArchive, arguments: argparse.Namespace) -> int:
    """Print the places in runs that today's rules would redact, and earlier rules may have let
    pass.
    """
    from bundle_router.adapters.redaction import SecretRedactor

    redactor = SecretRedactor()
    run_ids = arguments.run_id or archive.run_ids()
    rows: list[tuple[str, str, int, list[str]]] = []
    skipped = SkippedRuns(archive, named=bool(arguments.run_id))
    for run_id in tracked("reading runs", run_ids):
        with skipped.reading(run_id):
            rows += (
                (run_id, name, number, rules)
                for name, lines in archive.texts(run_id)
                for number, line in enumerate(lines, 1)
                if (rules := redactor.rules_in(line))
            )
    if arguments.json:
        print_json([dict(zip(("run", "file", "line", "rules"), row, strict=True)) for row in rows])
    else:
        for run_id, name, number, rules in rows:
            say(f"{run_id}/{name}:{number}: {', '.join(rules)}")
        say(
            f"{counted(len(rows), 'line')} of {counted(len(run_ids), 'run')} with what would be"
            " redacted today"
        )
    return 1 if rows else skipped.status


def _receipt(arguments: argparse.Namespace) -> int:
    from bundle_router.core.records.receipt import check_receipt

    if arguments.check is None:
        if arguments.run_id is None or arguments.seq is None:
            raise RequestError(
                "name a run and a record",
                advice="bundle-router runs receipt RUN SEQ, or --check FILE",
            )
        print_json(archive_of(arguments).receipt(arguments.run_id, arguments.seq))
        return 0
    try:
        receipt = json.loads(arguments.check.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"{arguments.check} can't be read as a receipt: {error}") from None
    if isinstance(receipt, dict):
        wrong = check_receipt(receipt)
    else:
        wrong = ["it is no receipt: it is not a JSON object"]
    if arguments.json:
        print_json({"ok": not wrong, "problems": wrong})
    else:
        for problem in wrong:
            say(problem)
        if not wrong:
            head = receipt["head"]
            count = receipt["seq"] + len(receipt["later"]) + 1
            say(f"record {receipt['seq']} of run {receipt['run_id']} is as it was written")
            say(f"every copy of this run with {count} records and the head {head} contains it")
    return 5 if wrong else 0


def _schema(arguments: argparse.Namespace) -> int:
    from bundle_router.core.records.written_records import RECORDS, schema_text
    from bundle_router.core.values.spelling import Suggester

    types = [record.type for record in RECORDS]
    if arguments.type in types:
        say_json(json.loads(schema_text(arguments.type)))
    elif arguments.type is not None:
        raise RequestError(
            f"there is no type of record {arguments.type!r}",
            advice=f"{Suggester().did_you_mean(arguments.type, types)} the types are"
            f" {', '.join(types)}".lstrip(),
        )
    elif arguments.json:
        print_json({type_: json.loads(schema_text(type_)) for type_ in types})
    else:
        table(
            ("type", "is", "says"),
            [(record.type, record.place.replace("`", ""), record.meaning) for record in RECORDS],
        )
    return 0


# --- copying --------------------------------------------------------------------------------------


def _export(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.archive import Archive
    from bundle_router.adapters.export import export
    from bundle_router.adapters.index import dump, index_runs

    archive = archive_of(arguments)
    if arguments.format == "directory":
        return _copy_runs(arguments, archive, Archive(arguments.to), str(arguments.to))
    with tempfile.TemporaryDirectory(dir=temporary_root()) as folder:
        url = f"sqlite:///{folder}/export.sqlite"
        with reading_runs() as report:
            built = index_runs(archive, arguments.run_id or archive.run_ids(), url, report=report)
        paths = export(dump(url), arguments.to, arguments.format)
    if arguments.json:
        print_json([{"file": str(path), "rows": rows} for path, rows in paths])
    else:
        for path, rows in paths:
            say(f"{counted(rows, 'row')} in {path}")
    return _passed_over(built)


def _import(arguments: argparse.Namespace) -> int:
    from bundle_router.wiring.stores import open_archive

    source = open_archive(arguments.source, present=True)
    target = open_archive(arguments.store or arguments.runs)
    return _copy_runs(arguments, source, target, target.where)


def _copy_runs(
    arguments: argparse.Namespace, source: RunArchive, target: RunArchive, where: str
) -> int:
    from bundle_router.adapters.archive.run_transfer import copy_run

    count = 0
    skipped = SkippedRuns(source, named=bool(arguments.run_id))
    for run_id in tracked("copying runs", arguments.run_id or source.run_ids()):
        with skipped.reading(run_id):
            copy_run(source, run_id, target)
            count += 1
    print_result(
        arguments, {"runs": count, "to": where}, f"{counted(count, 'run')} copied to {where}"
    )
    return skipped.status


def _index(arguments: argparse.Namespace) -> int:
    if arguments.url or arguments.run_id:
        built = _fill_index(arguments)
    else:
        built = _update_index(arguments)
    print_result(
        arguments,
        asdict(built),
        f"{counted(built.decisions, 'decision')} and {counted(built.calls, 'call')} of"
        f" {counted(built.runs, 'run')} in {built.url}",
    )
    return _passed_over(built)


def _update_index(arguments: argparse.Namespace) -> IndexBuild:
    """Bring the index that lists and pages read up to date."""
    with index_of(arguments) as (index, refreshed):
        if refreshed is None:
            raise StorageError(index.stale, kind="io_error")
        return index.contents(refreshed)


def _fill_index(arguments: argparse.Namespace) -> IndexBuild:
    from bundle_router.adapters.index import index_runs, index_url

    archive = archive_of(arguments)
    with reading_runs() as report:
        return index_runs(
            archive,
            arguments.run_id or archive.run_ids(),
            arguments.url or index_url(archive),
            named=bool(arguments.run_id),
            report=report,
        )


def _publish(arguments: argparse.Namespace) -> int:
    from bundle_router.service.pages.publishing import publish
    from bundle_router.workbench.run_reader import open_reader

    with closing(
        open_reader(arguments.runs, store=arguments.store, config=config_folder(arguments))
    ) as reader:
        count = publish(reader, arguments.run_id, arguments.to)
    first = arguments.to / "index.html"
    print_result(
        arguments, {"files": count, "first": str(first)}, f"{counted(count, 'file')}; open {first}"
    )
    return 0


def _passed_over(built: IndexBuild) -> int:
    """Name the runs that could not be read; return the exit status."""
    say_skipped(why for _, why in built.problems)
    say_skipped(f"run {run_id!r} was deleted meanwhile" for run_id in built.deleted)
    return CorruptRun.exit_code if built.problems else 0


# --- deleting -------------------------------------------------------------------------------------


def _prune(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.archive import prune

    older = _seconds(arguments.older_than) if arguments.older_than else None
    size = _bytes(arguments.max_size) if arguments.max_size else None
    if older is None and size is None:
        raise RequestError(
            "prune needs an age or a size", advice="give --older-than 30d or --max-size 2GB"
        )
    time = datetime.now(UTC).isoformat()
    archive = archive_of(arguments)
    archive.heads = _heads(arguments) or archive.heads
    pruned = prune(archive, now=time, older_than_s=older, max_bytes=size, dry_run=arguments.dry_run)
    if pruned.deleted and not arguments.dry_run and has_index(arguments):
        with index_of(arguments):
            pass  # the refresh deletes rows of deleted runs
    if arguments.json:
        print_json(asdict(pruned))
        return 0
    would = "would delete" if arguments.dry_run else "deleted"
    say(f"{would} {counted(len(pruned.deleted), 'run')}, {pruned.freed_bytes:,} bytes")
    for run_id, reason in pruned.kept:
        say(f"kept {run_id}: {reason}")
    return 0


def _seconds(text: str) -> float:
    if (match := AGE.fullmatch(text)) is None:
        raise RequestError(f"{text!r} is not an age", advice="write e.g. 90m, 12h, 30d or 4w")
    return float(match[1]) * AGE_S[match[2]]


def _bytes(text: str) -> int:
    if (match := _SIZE.fullmatch(text)) is None:
        raise RequestError(f"{text!r} is not a size", advice="write e.g. 50KB, 500MB or 1.5GiB")
    return int(
        float(match[1]) * (1024 if match[3] else 1000) ** ("kmgt".find(match[2].lower() or " ") + 1)
    )
