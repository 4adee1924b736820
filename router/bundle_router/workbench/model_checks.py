"""Asks each model of a config one short question, to see whether it answers as routing needs it.

The question holds nothing of a step, a config or a person: it asks for one JSON object. It is
answered in the model's own mode, so that name, key, address and structured output are all needed
for it. It counts towards no limit of `[model]`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from bundle_router.core.catalog import Catalog, ModelChoice
from bundle_router.core.decide.asking.model_exchange import ModelReply, ModelRequest
from bundle_router.core.values import Failure
from bundle_router.ports import ModelClient, Readiness
from bundle_router.review.sentences import FAILURES

SYSTEM: Final = "You are asked whether you can answer in JSON."
QUESTION: Final = 'Answer with the object {"ready": true} and nothing else.'


def _closed(schema: dict[str, Any]) -> None:
    schema["additionalProperties"] = False  # constrained output wants it


class ReadyAnswer(BaseModel):
    """What a model is asked for."""

    model_config = ConfigDict(extra="ignore", frozen=True, json_schema_extra=_closed)

    ready: bool
    """What it says of itself; that it says so is enough."""


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """What asking one model came to."""

    model: str
    """The model, as litellm names it."""
    failure: Failure | None
    """Why it gave no usable answer; None: it gave one."""
    advice: str = ""
    """What to look at; empty without a failure."""
    elapsed_ms: float = 0.0
    """Milliseconds that the question took."""
    input_tokens: int = 0
    """Tokens sent, as the provider counts them."""
    output_tokens: int = 0
    """Tokens received, as the provider counts them."""
    cost_usd: float = 0.0
    """US dollars, as far as the model's price is known."""

    @property
    def line(self) -> str:
        """The outcome in a line."""
        if self.failure is None:
            counts = f"{self.input_tokens} tokens sent, {self.output_tokens} received"
            return f"{self.model}: answers as asked ({self.elapsed_ms:,.0f} ms; {counts})"
        return f"{self.model}: {self.failure}: {FAILURES[self.failure]} {self.advice}".rstrip()


def check_models(catalog: Catalog) -> tuple[ModelCheck, ...]:
    """Ask each model that `[model]` names, one after the other, each within `deadline_s`.

    Whatever fails is in the result, a missing library too.
    """
    from bundle_router.adapters.llm import LiteLlm
    from bundle_router.adapters.loop import CLEAN_UP_S, LoopThread

    settings = catalog.settings.model
    loop = LoopThread("bundle-router-model", abandon_after_s=CLEAN_UP_S + 1)
    client = LiteLlm(settings.choices)
    try:
        readiness = loop.submit(client.warm_up()).result()
        asking = ask_models(client, settings.choices, settings.deadline_s, readiness)
        return loop.submit(asking).result()
    finally:
        loop.submit(client.close()).result()
        loop.close()


async def ask_models(
    client: ModelClient, models: Sequence[ModelChoice], deadline_s: float, readiness: Readiness
) -> tuple[ModelCheck, ...]:
    """Ask each model over a client that is as ready as it says."""
    if readiness != "ready":
        advice = "It needs the extra: pip install 'bundle-router[model]'."
        if readiness != "missing":
            advice = "litellm and instructor are installed and can't be loaded: see the log."
        return tuple(ModelCheck(model.name, "not_ready", advice) for model in models)
    return tuple([await _ask(client, model, deadline_s) for model in models])


async def _ask(client: ModelClient, model: ModelChoice, deadline_s: float) -> ModelCheck:
    request = ModelRequest(model, SYSTEM, QUESTION, ReadyAnswer)
    began = time.perf_counter()
    try:
        async with asyncio.timeout(deadline_s):
            reply = await client.complete(request)
    except TimeoutError:
        reply = ModelReply(failure="timeout", detail=f"[model] deadline_s is {deadline_s:g}")
    return ModelCheck(
        model.name,
        reply.failure,
        _advice(model, reply) if reply.failure is not None else "",
        (time.perf_counter() - began) * 1e3,
        reply.input_tokens,
        reply.output_tokens,
        reply.cost_usd,
    )


def _advice(model: ModelChoice, reply: ModelReply) -> str:
    """Return what to look at after a failure: what the client says of it, else the setting that is
    the usual cause.
    """
    if reply.detail:
        return f"{reply.detail[:1].upper()}{reply.detail[1:].rstrip('.')}."
    place = model.base_url or "its provider's address"
    key = f"${model.key_env}" if model.key_env else "the variable that its provider goes by"
    usual = {
        "auth": f"Look at the key in {key}.",
        "bad_request": f"Look at the model's name, and at [model] mode, for {place}.",
        "invalid_output": f"[model] mode is {model.mode!r}; try 'tools', 'json' or 'md_json'.",
        "truncated": f"[model] max_output_tokens is {model.max_output_tokens}; raise it.",
        "upstream_error": f"Look whether {place} is right and can be reached from here.",
        "refused": "Try another model, or [model] mode.",
    }
    return usual.get(str(reply.failure), "")
