"""What a run did, in order: each step with what it saw and why, under it its calls and what came of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from bundle_router.cli.output import excerpt, heading, say, say_whole
from bundle_router.cli.wording import heard
from bundle_router.core.records.records import model_from, search_from

MAX_TOLD: Final = 600
"""Characters of what an agent was told instead of a result: the reason comes first, then what would have been there."""


def show_records(records: Sequence[dict[str, Any]]) -> None:
    """Decisions, calls and requests passed on. A call stands under its end, or its start where no end was recorded."""
    finished = {record["call_id"]: record["seq"] for record in records if record.get("type") == "call.finished"}
    started = {record["call_id"]: record for record in records if record.get("type") == "call.started"}
    for record in records:
        kind = record.get("type")
        if kind == "route.decided":
            _show_step(record)
        elif kind == "call.started" and record["call_id"] not in finished:
            say(f"{record['seq']:>6}  call {record['server']}.{record['tool']}  → started, and no end was recorded")
            say(excerpt("        with ", str(record.get("arguments") or "")))
        elif kind == "call.finished":
            _show_call(record, finished, started.get(record["call_id"], {}))
        elif kind == "request.passed":
            _show_passed(record)


def _show_step(record: dict[str, Any]) -> None:
    step = record["step"]
    say()
    degraded = " (degraded)" if record["degraded"] else ""
    heading(f"{record['seq']:>4}  {step['workflow']} / {step['role']} / {step['step']}  ← {record['source']}{degraded}")
    for name, text in _asked(record):
        say(excerpt(f"      {name}: ", text))
    for line in (record["justification"], *heard(search_from(record), model_from(record))):
        say_whole("      ", line, under=8)
    for bundle in record["bundles"]:
        say_whole("      + ", f"{bundle['id']}  ({bundle['reason']}: {bundle['evidence']})", under=10)
    for row in record["left_out"]:
        why = f"{row.get('tool') or row['id']}  ({row['code']}: {row['detail']})"
        say_whole("      - ", why, under=10)
    exposure = record["exposure"]
    say(f"      {exposure['tools']} of {exposure['all_tools']} tools, {exposure['tokens']:,} tokens")


def _show_call(record: dict[str, Any], finished: dict[str, int], started: dict[str, Any]) -> None:
    code, source = _code(record), record.get("cached_from")
    again = f", the result of {finished.get(source, source)} again" if source else ""
    code += "".join(f" ({flag.replace('_', ' ')})" for flag in (record.get("shaped") or {}).get("flags", ()))
    say(f"{record['seq']:>6}  call {record['server']}.{record['tool']}  → {record['outcome']}{code}, "
        f"{record['elapsed_ms']:.1f} ms{again}")  # fmt: skip
    arguments = record.get("arguments") or started.get("arguments")
    if arguments:
        say(excerpt("        with ", str(arguments)))
    if record.get("result"):
        _show_result(record)
    _show_artifacts(record)


def _show_passed(record: dict[str, Any]) -> None:
    say(f"{record['seq']:>6}  {record['method']} of {record['server']}  → {record['outcome']}{_code(record)}, "
        f"{record['elapsed_ms']:.1f} ms")  # fmt: skip
    say(excerpt("        with ", str(record["arguments"])))
    _show_result(record)
    _show_artifacts(record)


def _code(record: dict[str, Any]) -> str:
    """The code beside the outcome, where it says more than that."""
    return f" {record['code']}" if record["code"] not in ("", record["outcome"]) else ""


def _show_result(record: dict[str, Any]) -> None:
    """What the agent got: a line of it, or, where that was not what it asked for, what it was told."""
    text = str(record["result"] or "")
    if record["outcome"] == "ok":
        say(excerpt("        gave ", text))
    else:
        told = text if len(text) <= MAX_TOLD else f"{text[:MAX_TOLD].rstrip()} … ({len(text):,} characters)"
        say_whole("        gave ", told, under=13)


def _show_artifacts(record: dict[str, Any]) -> None:
    for artifact in record["artifacts"]:
        say(f"        artifact {artifact['mime_type']} {artifact['bytes']:,} bytes  {artifact['sha256'][:16]}…")


def _asked(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What the engine said of the step beside where it stands, as far as it said anything."""
    step = record["step"]
    if step.get("goal"):
        yield "goal", step["goal"]
    for constraint in step.get("constraints") or ():
        yield "constraint", constraint
    if step.get("policy"):
        yield "its own policy", json.dumps({k: v for k, v in step["policy"].items() if v}, ensure_ascii=False)
    if record.get("principal"):
        yield "principal", record["principal"]
    labels = [f"{row['name']}={row['value']}" for row in step.get("labels") or () if isinstance(row, dict)]
    if labels:
        yield "labels", " ".join(labels)
