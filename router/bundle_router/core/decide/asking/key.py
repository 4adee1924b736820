"""The key of a question: equal keys put the same question to the same models under the same limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from bundle_router.core.catalog import ModelChoice
from bundle_router.core.decide.asking.prompt import PROMPT_VERSION, Prompt
from bundle_router.core.models.canonical import digest_of


def question_key(prompt: Prompt, models: Sequence[ModelChoice], max_picks: int) -> str:
    """`sha256:…` over the prompt's version and both its parts (hence the permitted catalog text, the workflow, role,
    step, normalised intent and recent steps), the models in order with their parameters, and the cap on picks."""
    return digest_of([PROMPT_VERSION, prompt.system, prompt.user, [asdict(model) for model in models], max_picks])
