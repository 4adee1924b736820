"""`bundle-router runs`: what run directories say."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle_router.cli.arguments import add_json, add_runs
from bundle_router.cli.attempts import EachRun
from bundle_router.cli.output import heading, print_json, say, say_json, table
from bundle_router.cli.timeline import show_records
from bundle_router.errors import RequestError

if TYPE_CHECKING:
    from bundle_router.adapters.archive import Archive, VerifyReport

SUMMARY = "list, show, verify, export, index or prune run directories"

_AGE = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)")
_AGE_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?b?|b)?", re.IGNORECASE)
_SIZE_B = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12} | {
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def declare(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="runs_verb", metavar="verb", required=True)

    def verb(name: str, summary: str, *, one: str = "") -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=summary, description=summary)
        if one:
            sub.add_argument("run_id", nargs=one, metavar="run", help="run id")
        add_runs(sub)
        add_json(sub)
        return sub

    verb("list", "all runs, newest first")
    show = verb("show", "the decisions and calls of one run", one=1)  # type: ignore[arg-type]  # argparse takes a number
    show.add_argument("--seq", type=int, help="one record in full")
    verify = verb(
        "verify", "check the hash chain; name the first record that was changed, dropped, reordered or cut off", one="*"
    )
    verify.add_argument(
        "--secrets", action="store_true", help="look for what today's rules would redact; exit status 1 where it is"
    )
    export = verb("export", "write decisions and calls as CSV or Parquet, one file each", one="*")
    export.add_argument("--format", choices=("csv", "parquet"), default="csv")
    export.add_argument("--to", type=Path, required=True, help="folder to write decisions.* and calls.* into")
    index = verb("index", "fill the SQL index, a deletable cache: with all runs, or only those named", one="*")
    index.add_argument("--url", help="SQLAlchemy URL (default: SQLite in the runs folder)")
    prune = verb("prune", "delete runs by age or total size, never one that is open")
    prune.add_argument("--older-than", metavar="AGE", help="e.g. 12h, 30d")
    prune.add_argument("--max-size", metavar="SIZE", help="keep all runs together below this, e.g. 50MB or 1.5GiB")
    prune.add_argument("--dry-run", action="store_true", help="say what would be deleted")


def run(arguments: argparse.Namespace) -> int:
    verbs = {"list": _list, "show": _show, "verify": _verify, "export": _export, "index": _index, "prune": _prune}
    return verbs[arguments.runs_verb](arguments)


def _list(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.archive import Archive

    runs = Archive(arguments.runs).runs()
    if arguments.json:
        print_json([asdict(run) for run in runs])
    elif not runs:
        say(f"no runs in {arguments.runs}")
    else:
        rows = [(r.run_id, r.state, r.opened[:19].replace("T", " "), r.records, f"{r.bytes:,}", r.parent_run_id or "",
                 r.problem) for r in runs]  # fmt: skip
        table(("run", "state", "opened (UTC)", "records>", "bytes>", "parent", "problem"), rows)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.archive import Archive

    archive = Archive(arguments.runs)
    run_id = arguments.run_id[0]
    records = list(archive.records(run_id))
    if arguments.seq is not None:
        records = [record for record in records if record["seq"] == arguments.seq]
        if not records:
            raise RequestError(f"run {run_id!r} has no record {arguments.seq}")
    if arguments.json:
        print_json({"run": asdict(archive.summary(run_id)), "records": records})
        return 0
    if arguments.seq is not None:
        say_json(records[0])
        return 0
    summary = archive.summary(run_id)
    heading(f"run {run_id}: {summary.state}, {len(records)} records, opened {summary.opened}")
    if summary.workspace:
        say(f"workspace {summary.workspace}")
    if not archive.verify(run_id).ok:
        say("WARNING: these records are not as they were written; `bundle-router runs verify` says where")
    for torn in archive.torn(run_id):
        say(f"note: {torn.file} ends in {torn.bytes} bytes of an unfinished line")
    show_records(list(archive.values(run_id)))
    say()
    say(f"one record in full: bundle-router runs show {run_id} --seq N")
    return 0


def _chosen(arguments: argparse.Namespace) -> list[str]:
    from bundle_router.adapters.archive import Archive

    return arguments.run_id or Archive(arguments.runs).run_ids()


def _verify(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.archive import UNKEYED, Archive

    archive = Archive(arguments.runs)
    if arguments.secrets:
        return _secrets(archive, _chosen(arguments), as_json=arguments.json)
    reports = [_with_artifacts(archive, archive.verify(run_id)) for run_id in _chosen(arguments)]
    if arguments.json:
        print_json([{**asdict(report), "ok": report.ok} for report in reports])
    else:
        for report in reports:
            _show_report(replace(report, notes=tuple(note for note in report.notes if note != UNKEYED)))
        if reports:
            say(f"({UNKEYED})")
        say(f"{sum(r.ok for r in reports)} of {len(reports)} runs are as they were written")
    return 0 if all(report.ok for report in reports) else 5


def _secrets(archive: Archive, run_ids: list[str], *, as_json: bool) -> int:
    """Say where lines of runs hold what today's rules would redact. Earlier rules may have let it pass."""
    from bundle_router.adapters.redaction import SecretRedactor

    redactor = SecretRedactor()
    found = [
        (run_id, path.name, number, rules)
        for run_id in run_ids
        for path in sorted(Path(archive.path(run_id)).glob("*.json*"))
        for number, line in enumerate(path.read_text("utf-8", "surrogateescape").splitlines(), 1)
        if (rules := redactor.rules_in(line))
    ]
    if as_json:
        print_json([dict(zip(("run", "file", "line", "rules"), row, strict=True)) for row in found])
    else:
        for run_id, name, number, rules in found:
            say(f"{run_id}/{name}:{number}: {', '.join(rules)}")
        say(f"{len(found)} lines of {len(run_ids)} runs hold what would be redacted today")
    return 1 if found else 0


def _with_artifacts(archive: Archive, report: VerifyReport) -> VerifyReport:
    """The report, and what is wrong with the bytes that the good records refer to."""
    from bundle_router.adapters.artifacts import ArtifactReader

    reader = ArtifactReader(archive.path(report.run_id))
    wrong = [text for text in reader.problems() if not text.endswith("it can be deleted")]
    present = {artifact.sha256 for artifact in reader.iter()}
    if report.broken is None:
        named = {row["sha256"] for record in archive.records(report.run_id) for row in record.get("artifacts", ())}
        wrong += [f"artifact {sha256} is gone" for sha256 in sorted(named - present)]
    return replace(report, problems=(*report.problems, *wrong))


def _show_report(report: Any) -> None:
    say(f"{report.run_id}: {'ok' if report.ok else 'BROKEN'}, {report.records} good records ({report.state})")
    if report.broken is not None:
        at = f" at {report.broken.file}:{report.broken.line}" if report.broken.line else ""
        say(f"  record {report.broken.seq} {report.broken.kind}{at}: {report.broken.detail}")
    for text in (*report.problems, *report.notes):
        say(f"  {text}")


def _export(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.archive import Archive
    from bundle_router.adapters.export import export

    archive = Archive(arguments.runs)
    each = EachRun()
    runs = (each.all(archive.records(run_id)) for run_id in _chosen(arguments))
    written = export(runs, arguments.to, arguments.format)
    if arguments.json:
        print_json([{"file": str(path), "rows": rows} for path, rows in written])
    else:
        for path, rows in written:
            say(f"{rows} rows in {path}")
    return each.status


def _index(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.archive import Archive
    from bundle_router.adapters.index import rebuild, sqlite_url

    archive = Archive(arguments.runs)
    each = EachRun()
    runs = ((run_id, each.all(archive.records(run_id))) for run_id in _chosen(arguments))
    built = rebuild(runs, arguments.url or sqlite_url(arguments.runs), named=bool(arguments.run_id))
    if arguments.json:
        print_json(asdict(built))
    else:
        say(f"{built.decisions} decisions and {built.calls} calls of {built.runs} runs in {built.url}")
    return each.status


def _prune(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.archive import Archive, prune

    older = _seconds(arguments.older_than) if arguments.older_than else None
    size = _bytes(arguments.max_size) if arguments.max_size else None
    if older is None and size is None:
        raise RequestError("nothing to go by", advice="give --older-than 30d or --max-size 2GB")
    now = datetime.now(UTC).isoformat()
    done = prune(Archive(arguments.runs), now=now, older_than_s=older, max_bytes=size, dry_run=arguments.dry_run)
    if arguments.json:
        print_json(asdict(done))
        return 0
    would = "would delete" if arguments.dry_run else "deleted"
    say(f"{would} {len(done.deleted)} runs, {done.freed_bytes:,} bytes")
    for run_id, why in done.kept:
        say(f"kept {run_id}: {why}")
    return 0


def _seconds(text: str) -> float:
    found = _AGE.fullmatch(text)
    if found is None:
        raise RequestError(f"{text!r} is not an age", advice="write e.g. 90m, 12h, 30d or 4w")
    return float(found[1]) * _AGE_S[found[2]]


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        raise RequestError(f"{text!r} is not a size", advice="write e.g. 50KB, 500MB or 1.5GiB")
    unit = (found[2] or "b").lower()
    return int(float(found[1]) * _SIZE_B[unit if unit.endswith("b") else f"{unit}b"])
