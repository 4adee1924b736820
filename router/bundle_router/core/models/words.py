"""The closed lists and the forms of names: a contract. The same words stand in the log, on the command line, in error
text and on the review page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, get_args

from bundle_router.dataclass import dataclass

Source = Literal["mapping", "search", "model", "shortlist", "default", "none"]
Reason = Literal[
    "mapped", "always", "sticky", "inherited", "search", "model", "model_cached", "union", "shortlist", "default"
]
Code = Literal[
    "unknown_bundle",
    "disabled",
    "policy_denied",
    "not_allowed",
    "trust_too_low",
    "effect_not_allowed",
    "allowlist_required",
    "capability_missing",
    "pin_drift",
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
]
Hearing = Literal["used"] | Failure
"""What became of an embedder that was asked: its vector was used, or why there is none."""
Recall = Literal["used", "not_heard", "no_embedder", "other_embedder"]
"""What became of past steps that are remembered by their meaning: compared, or why not. `not_heard`: the embedder had
no vector (see `Hearing`); the others: the config names none, or not the one they were learned with."""
Verdict = Literal["enough", "union", "ambiguous", "novel"]
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
Offer = Literal["direct", "deferred", "meta", "none"]
"""How search may present what it is not sure of. `direct`: with its tools, where that is harmless; `none`: never."""

SOURCES: Final[tuple[Source, ...]] = get_args(Source)
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
CODES: Final[tuple[Code, ...]] = get_args(Code)
"""Why a bundle or tool is not shown, in the order the tests are made: the first that fails is the one reported."""
GAP_CODES: Final[tuple[Code, ...]] = CODES[CODES.index("not_mapped") :]
"""Refusals that policy would have permitted: the tool was only not shown. Others are no gap but policy at work."""
FAILURES: Final[tuple[Failure, ...]] = get_args(Failure)
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
EFFECTS: Final[tuple[Effect, ...]] = get_args(Effect)

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
BUNDLE_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9][a-z0-9_-]*)*")
SERVER_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
WHOLE_SERVER: Final = "*"
"""Stands for every tool of a server in `Facts.drifted`. No tool can have this name."""
Mode = Literal["direct", "deferred", "meta", "code"]


@dataclass(frozen=True, slots=True)
class ModeTraits:
    """What is particular to a mode. `in_array`: definitions stand in the array as far as there is room; `may_join`:
    they may come to stand there; `by_program`: the tools are called by programs alone; `for_untrusted`: tools of
    untrusted servers may be shown so. `meaning` is for the reference of the config."""

    meaning: str
    in_array: bool = False
    may_join: bool = False
    by_program: bool = False
    for_untrusted: bool = False


MODES: Final[Mapping[Mode, ModeTraits]] = {
    "direct": ModeTraits("each one", in_array=True, may_join=True),
    "deferred": ModeTraits("by name only until asked for", may_join=True),
    "meta": ModeTraits("behind meta-tools, which untrusted servers need and get by default", for_untrusted=True),
    "code": ModeTraits("in programs that agents write", by_program=True),
}
"""How agents see a bundle's tools, from the most open to the least. What is particular to one is asked of its row. A
new one has a field of `Placement`, too, and a sentence in `core.tools.meta_tools.descriptions`."""
