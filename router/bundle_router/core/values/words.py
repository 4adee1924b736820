"""The closed lists and the forms of names: a contract.

Log, command line, errors and pages use the same words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

Source = Literal["mapping", "search", "model", "shortlist", "default", "none"]
Reason = Literal[
    "mapped",
    "always",
    "sticky",
    "inherited",
    "search",
    "model",
    "model_cached",
    "union",
    "shortlist",
    "default",
]
DriftCode = Literal["pin_drift", "not_admitted", "not_listed"]
Code = Literal[
    "unknown_bundle",
    "disabled",
    "policy_denied",
    "not_allowed",
    "trust_too_low",
    "effect_not_allowed",
    "allowlist_required",
    "tainted",
    "capability_missing",
    DriftCode,
    "server_unavailable",
    "not_mapped",
    "not_offered",
    "below_floor",
    "not_selected",
    "over_budget",
    "evicted",
]
Failure = Literal[
    "timeout",
    "rate_limited",
    "upstream_error",
    "auth",
    "bad_request",
    "context_window",
    "invalid_output",
    "truncated",
    "refused",
    "circuit_open",
    "not_ready",
    "internal",
    "no_key",
    "not_sent",
    "over_limit",
]
EmbeddingUse = Literal["used", "not_ranking"] | Failure
"""The outcome of asking an embedder: its vector was used, or why there is none.

`not_ranking`: by `learn` or the config it ranks nothing (it may recall past steps).
"""
Recall = Literal["used", "not_heard", "no_embedder", "other_embedder"]
"""The outcome of recalling past steps by their meaning: compared, or why not.

`not_heard`: the embedder had no vector (see `EmbeddingUse`); the others: the config names no
embedder, or not the one they were learned with.
"""
Verdict = Literal["enough", "union", "ambiguous", "novel"]
Doubt = Literal["model_unsure", "nothing_sure"]
"""Why a decision may be wrong although nothing failed: its model said so, or nobody was sure."""
Outcome = Literal[
    "ok",
    "tool_error",
    "denied",
    "invalid_arguments",
    "timeout",
    "unavailable",
    "busy",
    "budget",
    "cancelled",
    "unknown",
]
Trust = Literal["untrusted", "trusted"]
Effect = Literal["read", "write", "exec", "network"]
TaintSort = Literal["private", "untrusted"]
"""The given taints, kinds of content that a branch of a run has seen: not everybody may know it;
strangers wrote it. A config declares further ones, each as a sort of one of these.
"""
Sink = Literal["outside"]
"""Where arguments of calls go."""
Offer = Literal["direct", "deferred", "meta", "none"]
"""How search may present an uncertain bundle.

`direct`: with its tools, where that is harmless; `none`: never.
"""

SOURCES: Final[tuple[Source, ...]] = get_args(Source)
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
CODES: Final[tuple[Code, ...]] = get_args(Code)
"""Why a bundle or tool is not shown, in the order of the tests: the first that fails is
reported.
"""
DRIFT_CODES: Final[tuple[DriftCode, ...]] = get_args(DriftCode)
"""Why a tool is not as it was reviewed, or not there."""
GAP_CODES: Final[tuple[Code, ...]] = CODES[CODES.index("not_mapped") :]
"""Refusals of tools that policy permits but that were not shown.

Other refusals are no gap: policy refused.
"""
FAILURES: Final[tuple[Failure, ...]] = get_args(Failure)
DOUBTS: Final[tuple[Doubt, ...]] = get_args(Doubt)
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
EFFECTS: Final[tuple[Effect, ...]] = get_args(Effect)
TAINT_SORTS: Final[tuple[TaintSort, ...]] = get_args(TaintSort)
SINKS: Final[tuple[Sink, ...]] = get_args(Sink)

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def not_a_run_id(text: str) -> str:
    """Return what is wrong with a text that should be a run id.

    It is not quoted: what stands where an id belongs may be a secret in the wrong place.
    """
    valid = RUN_ID.match(text)
    position = valid.end() if valid is not None else 0
    wrong = (
        f"{text[position]!r} at place {position + 1}" if position < len(text) else "nothing in it"
    )
    return f"a text of {len(text)} characters with {wrong} is not a run id"


def shown_run_id(run_id: str, redact: Callable[[str], str]) -> str:
    """Return the id of a run that is not there, for a message: without what looks like a secret,
    and not at all if it is not of the form of an id.
    """
    if RUN_ID.fullmatch(run_id) is None:
        return "[an invalid id]"
    return repr(redact(run_id))


_LAST_WORD: Final = re.compile(r"[^\s\"'`,;|&?#/\\<>()\[\]{}]*\Z")


def shorten(text: str, limit: int) -> str:
    """Return a text for a message, at most `limit` characters and `…`.

    No word is cut: what is left of half a secret is recognised by no rule of redaction.
    """
    if len(text) <= limit:
        return text
    return _LAST_WORD.sub("", text[:limit]) + "…"


RUN_ID_ADVICE: Final = (
    f"it must match {RUN_ID.pattern}; bundle_router.ext.step_tools.run_id_of(name) makes one of any"
    " name"
)
BUNDLE_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9][a-z0-9_-]*)*")
SERVER_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
TAINT_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
META_SERVER: Final = "router"
"""The server of the router's own tools in records. No other can have this name."""
WHOLE_SERVER: Final = "*"
"""Means every tool of a server in `Facts.drifted`. No tool can have this name."""
Mode = Literal["direct", "deferred", "meta", "code"]


@dataclass(frozen=True, slots=True)
class ModeTraits:
    """The traits of a mode.

    `in_array`: definitions are in the array as far as there is room; `may_join`: they may join it
    later; `by_program`: only programs call the tools; `for_untrusted`: tools of untrusted servers
    may be shown so. `meaning` is for the reference of the config; `how` tells an agent to call what
    its search found.
    """

    meaning: str
    how: str = ""
    in_array: bool = False
    may_join: bool = False
    by_program: bool = False
    for_untrusted: bool = False


MODES: Final[Mapping[Mode, ModeTraits]] = {
    "direct": ModeTraits("each one", in_array=True, may_join=True),
    "deferred": ModeTraits(
        "by name only until asked for", "They are in your tool list from now on.", may_join=True
    ),
    "meta": ModeTraits(
        "behind meta-tools, which untrusted servers need and get by default",
        "Call them by name with call_tool.",
        for_untrusted=True,
    ),
    "code": ModeTraits(
        "in programs that agents write",
        "Call them in a program (execute): await {name}(argument=...).",
        by_program=True,
    ),
}
"""How agents see a bundle's tools, from the most open mode to the least.

Code asks a mode's row for its traits: a new mode is a row, and what no trait says yet.
"""
