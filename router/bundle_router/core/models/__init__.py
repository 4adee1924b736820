"""The values that cross the boundaries: steps in, decisions out, and what tools take and return.

Rules:
1. Everything here is immutable: a recorded value can't change after it was recorded.
2. Inputs from outside (`Step`) are pydantic models that refuse unknown keys; values made inside are frozen dataclasses.
3. The closed lists (`REASONS`, `CODES`, `SOURCES`, `FAILURES`) are a contract: the log, the command line, error texts
   and the pages use the same words.
"""

from __future__ import annotations

from bundle_router.core.models.decisions import (
    Activation,
    Answer,
    AskedTool,
    Candidate,
    Chosen,
    Decision,
    Entry,
    Exposure,
    LeftOut,
    ModelUse,
    RecentStep,
    Reply,
    SearchUse,
)
from bundle_router.core.models.local_tools import (
    BinaryForm,
    BinaryOption,
    BinaryRule,
    Block,
    Data,
    LocalServer,
    LocalSettings,
    LocalTool,
    Media,
    Text,
    ToolContext,
    ToolOutput,
)
from bundle_router.core.models.steps import MAX_GOAL, MAX_ITEMS, Drift, Facts, Frozen, Grant, Step, StepPolicy
from bundle_router.core.models.words import (
    BUNDLE_ID,
    CODES,
    DRIFT_CODES,
    EFFECTS,
    FAILURES,
    META_SERVER,
    MODES,
    OUTCOMES,
    REASONS,
    RUN_ID,
    SERVER_NAME,
    SOURCES,
    TOOL_NAME,
    WHOLE_SERVER,
    Code,
    Effect,
    EmbeddingUse,
    Failure,
    Mode,
    Offer,
    Outcome,
    Reason,
    Recall,
    Source,
    Trust,
    Verdict,
)

__all__ = [
    "BUNDLE_ID", "CODES", "DRIFT_CODES", "EFFECTS", "FAILURES", "MAX_GOAL", "MAX_ITEMS", "META_SERVER", "MODES",
    "OUTCOMES", "REASONS", "RUN_ID", "SERVER_NAME", "SOURCES", "TOOL_NAME", "WHOLE_SERVER", "Activation", "Answer",
    "AskedTool", "BinaryForm", "BinaryOption", "BinaryRule", "Block", "Candidate", "Chosen", "Code", "Data", "Decision",
    "Drift", "Effect", "EmbeddingUse", "Entry", "Exposure", "Facts", "Failure", "Frozen", "Grant", "LeftOut",
    "LocalServer", "LocalSettings", "LocalTool", "Media", "Mode", "ModelUse", "Offer", "Outcome", "Reason", "Recall",
    "RecentStep", "Reply", "SearchUse", "Source", "Step", "StepPolicy", "Text", "ToolContext", "ToolOutput",
    "Trust", "Verdict",
]  # fmt: skip
