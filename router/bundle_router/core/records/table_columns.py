"""The tables that records are turned into: every column with its kind and its meaning.

The index, exports and `router/docs/reference/tables.md` are made from this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from bundle_router.core.catalog.step_address import PARTS

Table = Literal["runs", "decisions", "bundles", "exposures", "calls", "artifacts", "labels"]
Kind = Literal["text", "integer", "real", "boolean", "timestamp"]


class Column(NamedTuple):
    """A column of a table."""

    kind: Kind
    """What its values are. Any of them may be absent."""
    meaning: str
    """What they say, in a sentence."""


def _text(meaning: str) -> Column:
    return Column("text", meaning)


def _count(meaning: str) -> Column:
    return Column("integer", meaning)


def _number(meaning: str) -> Column:
    return Column("real", meaning)


def _flag(meaning: str) -> Column:
    return Column("boolean", meaning)


def _moment(meaning: str) -> Column:
    return Column("timestamp", meaning)


_RUN_ID: Final = _text("The id of the run.")
_SEQ: Final = _count("The number of the record in its run.")
_POSITION: Final = _count("The number of the row among those of its record, from 0.")
_UNCOUNTED: Final = "Results of which no tokens were counted, since there was no tokenizer."
_RESULT_TOKENS: Final = "as the model saw them, counted in cl100k_base as definitions are."

ROWS: Final[Mapping[Table, str]] = {
    "runs": "a run, with what its records come to",
    "decisions": "a decision, with its step",
    "bundles": "a bundle that a decision showed, offered or left out",
    "exposures": "a tool of what decisions showed; many decisions show the same",
    "calls": "a call, or a request that was passed on",
    "artifacts": "a reference of a call to stored bytes",
    "labels": "a bundle of which a reviewer said whether a step needed it",
}
"""What one row of each table is."""

TABLES: Final[Mapping[Table, Mapping[str, Column]]] = {
    "runs": {
        "run_id": _RUN_ID,
        "state": _text("`open`, `closed`, or `unreadable`, of which `problem` says why."),
        "opened": _moment("When it was opened."),
        "closed": _moment("When it was closed; absent while it is open."),
        "began": _moment("When its first step was decided; without steps, when it was opened."),
        "ended": _moment("When its last decision or call was recorded."),
        "took_ms": _number("From `began` to `ended`."),
        "parent_run_id": _text("The run that this one is a sub-agent of."),
        "parent_decision_id": _text("The decision of that run which it works under."),
        "workspace": _text("The folder that local tools were confined to."),
        "catalog_revision": _text("The revision of the config that it was opened under."),
        "workflow": _text("The workflow of its first step."),
        "principal": _text("Whom its first step was for."),
        "records": _count("Its records: decisions, and starts and ends of calls."),
        "bytes": _count("The size of its records."),
        "problem": _text("Why not all of it could be read."),
        "verified": _count("How many of its first records were found to be as they were written."),
        "tampered": _text("What is not as it was written; absent where nothing was found."),
        "decisions": _count("Its decisions."),
        "calls": _count("Its calls, and requests that were passed on."),
        "denied": _count("Those that were refused."),
        "failed": _count("Those that failed."),
        "degraded": _count("Decisions in which a fallback was used."),
        "model_failures": _count("Decisions for which a model gave no usable answer."),
        "searches": _count("Calls of `search_tools`."),
        "media": _count("Different pictures, sounds, videos and PDFs among its artifacts."),
        "labels": _count("Decisions that a reviewer labelled."),
        "tokens": _count("Tokens of the definitions shown, over its decisions."),
        "all_tokens": _count("What the definitions of all known tools would have been."),
        "result_tokens": _count(f"Tokens of its results {_RESULT_TOKENS}"),
        "results_uncounted": _count(_UNCOUNTED),
        "cost_usd": _number("What the questions to a model cost."),
    },
    "decisions": {
        "run_id": _RUN_ID,
        "seq": _SEQ,
        "time": _moment("When it was decided."),
        "decision_id": _text("The id of the decision."),
        "catalog_revision": _text("The revision of the config that it was made under."),
        "input_digest": _text("The digest of all inputs of the decision."),
        "principal": _text("Whom the step is for."),
        **{part.name: _text(f"The {part.name} of the step.") for part in PARTS},
        "goal": _text("What the step is to achieve."),
        "constraints": _text("The step's constraints, a line each."),
        "parent_run_id": _text("The run that this one is a sub-agent of."),
        "parent_decision_id": _text("The decision of that run which it works under."),
        "branch": _text("The branch of the run; absent: the default one."),
        "key": _text("The key that makes the step happen once."),
        "policy": _text("The policy of this step, as JSON."),
        "labels": _text("The step's own labels, as JSON."),
        "source": _text(
            "What decided it: `mapping`, `search`, `model`, `shortlist`, `default` or `none`."
        ),
        "degraded": _flag("Whether a fallback was used."),
        "degraded_code": _text("Why, as a [failure](codes.md#failures)."),
        "route": _text("The name of the route that matched."),
        "justification": _text("The reasons in a sentence."),
        "shown": _count("Bundles that are shown or offered."),
        "left_out": _count("Bundles and tools that are left out."),
        "evicted": _count("Bundles that left the activation."),
        "tools": _count("Tools in the array."),
        "tokens": _count("Tokens of their definitions."),
        "all_tools": _count("All known tools."),
        "all_tokens": _count("Tokens of all known definitions."),
        "exposure": _text("The digest of what was shown: `exposures.exposure`."),
        "model": _text("The model that was asked."),
        "model_failure": _text("Why it gave no usable answer."),
        "attempts": _count("How often it was asked."),
        "input_tokens": _count("Tokens of the question, as the provider counts them."),
        "output_tokens": _count("Tokens of the answer, as the provider counts them."),
        "cost_usd": _number("What the question cost."),
        "model_ms": _number("How long the question took."),
        "model_sure": _flag("Whether the model called itself sure."),
        "verdict": _text("What search came to ([verdicts](codes.md#verdicts))."),
        "probability": _number("Search's probability that its first bundle is right."),
        "threshold": _number("What the probability was compared with."),
        "doubt": _text("Why it is in doubt ([doubts](codes.md#doubts))."),
        "embeddings": _text("Whether an embedder was `used`, or why words alone were ranked by."),
        "elapsed_us": _count("How long the decision took."),
        "used": _count("Different bundles whose tools were called and answered under it."),
        "calls": _count("Calls under it."),
        "result_tokens": _count(f"Tokens of their results {_RESULT_TOKENS}"),
        "results_uncounted": _count(_UNCOUNTED),
    },
    "bundles": {
        "run_id": _RUN_ID,
        "seq": _count("The number of the decision in its run."),
        "position": _POSITION,
        "bundle": _text("The id of the bundle."),
        "tool": _text("The canonical name where one tool was left out; absent: the whole bundle."),
        "shown": _flag("Whether it is shown or offered; else it was left out."),
        "rank": _count("Its rank among those shown, from 1."),
        "reason": _text("Why it is shown ([reasons](codes.md#reasons))."),
        "code": _text("Why it was left out ([codes](codes.md#left-out))."),
        "detail": _text("The reason in words: the row that matched, the score, the limit."),
        "mode": _text("How it is presented, where that is not the bundle's own mode."),
        "calls": _count("Calls of its tools under the decision, without refused ones."),
    },
    "exposures": {
        "exposure": _text("The digest of everything that was shown."),
        "position": _count("The number of the tool in it, from 0."),
        "tool": _text("The tool's canonical name."),
        "bundle": _text("The bundle that brought it."),
        "place": _text("How it is presented ([modes](codes.md#modes))."),
        "tokens": _count("Tokens of its definition."),
    },
    "calls": {
        "run_id": _RUN_ID,
        "seq": _count("The number of its end in the run; without an end, of its start."),
        "time": _moment("When that was recorded."),
        "kind": _text("`call`, or `request` for one that an MCP client had passed on."),
        "call_id": _text("The id of the call."),
        "decision_id": _text("The decision that it was judged under."),
        "decision_seq": _count("The number of that decision in the run."),
        "server": _text("The server that it went to; `router` for the router's own tools."),
        "tool": _text("The name of the tool on its server; of a request, its method."),
        "bundle": _text("The bundle that holds the tool, of a refused call too."),
        "via": _text("The meta-tool that it came through; `missed` for a name that is not shown."),
        "key": _text("The key that makes the call happen once."),
        "branch": _text("The branch of the run; absent: the default one."),
        "attempt": _count("The number of the attempt with this key, from 1."),
        "outcome": _text("What came of it ([outcomes](codes.md#outcomes)); absent: no end."),
        "code": _text("Why it was refused or failed ([calls](codes.md#calls))."),
        "arguments": _text("The arguments as JSON, without secrets."),
        "result": _text("The text of the result, as the model saw it."),
        "result_tokens": _count(
            "Tokens of `result` (cl100k_base); absent where none were counted."
        ),
        "original_bytes": _count("The size of the result as the server sent it."),
        "kept_bytes": _count("The size of what the model saw."),
        "rule": _text("The rules that shortened it, joined by `+`; `as_is` where none did."),
        "flags": _text("Observations about the result, with blanks between."),
        "cached": _flag("Whether a kept result was reused."),
        "cached_from": _text("The call whose result that is."),
        "elapsed_ms": _number("The time at the server."),
        "ready_ms": _number("The time before that: checks, and waiting for a place."),
    },
    "artifacts": {
        "run_id": _RUN_ID,
        "seq": _count("The number of the call's end in its run."),
        "position": _POSITION,
        "uri": _text("`artifact:sha256:` and the digest, the name that a model may pass on."),
        "sha256": _text("The digest of the bytes."),
        "mime_type": _text("Their type, as checked."),
        "bytes": _count("Their number."),
        "role": _text("What they are: `media`, `embedded`, `full_result` or `program`."),
        "name": _text("The name that the tool gave them."),
        "width": _count("The width of a picture."),
        "height": _count("The height of a picture."),
        "duration_s": _number("The length of a sound or video, where cheaply known."),
    },
    "labels": {
        "run_id": _RUN_ID,
        "seq": _count("The number of the decision in its run."),
        "position": _count("The number of the row among the run's labels, from 0."),
        "decision_id": _text("The decision that was labelled."),
        "bundle": _text("The bundle that the reviewer spoke of."),
        "needed": _flag("Whether the step needed it."),
        "by": _text("Who said so."),
        "time": _moment("When."),
    },
}
"""Every table's columns in order.

A run is verified when it is indexed. Records that are added to an open run are verified when it
ends.
"""
