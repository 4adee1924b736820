"""Turns litellm's results into an answer with its cost, and its exceptions into one of the closed
failures.

Only the failure leaves this module, never an exception's text: it may hold the prompt, the answer
and the key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from bundle_router.core.decide.asking.answer_text import json_text
from bundle_router.core.decide.asking.model_breaker import MAX_TEXT, classify
from bundle_router.core.decide.asking.model_exchange import MAX_RAW, ModelReply
from bundle_router.core.values import Failure
from bundle_router.core.values.retry_after import retry_after_s

MAX_COST_USD: Final = 1_000.0
"""Maximum plausible cost of one call. A higher one results from a made-up token count."""


class UnusableAnswer(Exception):
    """The model's reply is unusable. Raised through instructor, so it holds only the failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure: Failure = failure


_SETTINGS: Final = {
    "max_tokens": 'max_output_tokens = "none"',
    "max_completion_tokens": 'max_output_tokens = "none"',
    "temperature": 'temperature = "none"',
    "response_format": 'mode = "md_json"',
    "tool_choice": 'mode = "md_json"',
    "tools": 'mode = "md_json"',
}
"""The setting of `[model]` that leaves out a parameter, by the parameter."""


def advice_on(error: BaseException, failure: Failure) -> str:
    """Return which setting leaves out the parameter that a refusal names; empty if it names none.

    Nothing of the provider's text is in it.
    """
    if failure != "bad_request":
        return ""
    text = str(error)[:MAX_TEXT]
    for parameter, setting in _SETTINGS.items():
        if re.search(rf"\b{parameter}\b", text):
            return f"it refuses {parameter}: [model] {setting} leaves it out"
    return ""


def failure_of(error: BaseException) -> tuple[Failure, float | None]:
    """Return the failure for an exception of litellm, or of the layers below it, and its
    Retry-After.
    """
    status = getattr(error, "status_code", None)
    number = status if isinstance(status, int) else None
    failure = classify(number, type(error).__name__, str(error)[:MAX_TEXT])
    headers = getattr(error, "litellm_response_headers", None) or getattr(error, "headers", None)
    if not isinstance(headers, Mapping):
        return failure, None
    for name, text in headers.items():
        if str(name).lower() == "retry-after":
            return failure, retry_after_s(str(text), datetime.now(UTC))
    return failure, None


def check(response: Any) -> str:
    """Return the text of a completion, after leaving only its JSON in place.

    Raises UnusableAnswer.
    """
    choices = getattr(response, "choices", None)
    if not choices:
        raise UnusableAnswer("invalid_output")
    first = choices[0]
    message = getattr(first, "message", None)
    if _refusal(message) or getattr(first, "finish_reason", None) == "content_filter":
        raise UnusableAnswer("refused")
    if getattr(first, "finish_reason", None) == "length":
        raise UnusableAnswer("truncated")
    called = getattr(message, "tool_calls", None)
    if called:
        function = called[0].function
        function.arguments = _unquoted(str(function.arguments or ""))
        return str(function.arguments)
    content = _content_of(message)
    if message is None or not content.strip():
        raise UnusableAnswer("invalid_output")
    message.content = json_text(content)
    return content


def _content_of(message: Any) -> str:
    """Return the text of a message.

    Some servers leave the content empty and put the answer where a model's thoughts belong.
    """
    content = getattr(message, "content", None)
    if isinstance(content, str) and content.strip():
        return content
    thoughts = getattr(message, "reasoning_content", None)
    if isinstance(thoughts, str) and json_text(thoughts).startswith("{"):
        return thoughts
    return ""


def _unquoted(arguments: str) -> str:
    """Return the arguments of a tool call; those that are JSON text in JSON text only once."""
    if not arguments.lstrip().startswith('"'):
        return arguments
    try:
        inner = json.loads(arguments)
    except ValueError:
        return arguments
    return inner if isinstance(inner, str) else arguments


def _refusal(message: Any) -> bool:
    fields = getattr(message, "provider_specific_fields", None)
    refusal = fields.get("refusal") if isinstance(fields, Mapping) else None
    return bool(refusal or getattr(message, "refusal", None))


def raw_of(response: Any) -> str | None:
    """Return the model's reply for the record: its text, refusal or tool call's arguments, cut to
    the maximum.
    """
    for text in _texts_of(response):
        if isinstance(text, str) and text:
            # Valid Unicode: a second call sends it back to the model, and JSON on the wire allows
            # no lone surrogates.
            return text[:MAX_RAW].encode("utf-8", "replace").decode("utf-8")
    return None


def _texts_of(response: Any) -> Iterator[object]:
    """Yield what may be a response's text: its content, a tool call's arguments, a refusal."""
    choices = getattr(response, "choices", None)
    message = getattr(choices[0], "message", None) if choices else None
    yield getattr(message, "content", None)
    yield getattr(message, "reasoning_content", None)
    calls = getattr(message, "tool_calls", None)
    if calls:
        yield calls[0].function.arguments
    fields = getattr(message, "provider_specific_fields", None)
    if isinstance(fields, Mapping):
        yield fields.get("refusal")


CHARACTERS_A_TOKEN: Final = 3
"""For the estimate where a server counts nothing; English text has about four, JSON about three."""


def metered(litellm: Any, response: Any, model: str, sent: str, reply: ModelReply) -> ModelReply:
    """Return the reply with the call's usage: the provider's token counts, the cost by litellm's
    price list (0: no price is known).

    Where the counts are absent or can't be true they stay 0, but the question was not free: its
    cost is then estimated from the lengths of the text that was `sent` and of the answer.
    """
    usage = getattr(response, "usage", None)
    prompt_tokens = _count(getattr(usage, "prompt_tokens", 0))
    output_tokens = _count(getattr(usage, "completion_tokens", 0))
    try:
        if prompt_tokens:
            cost = float(
                litellm.completion_cost(completion_response=response, model=model, base_model=model)
            )
        else:
            cost = _estimated_cost(litellm, model, sent, raw_of(response) or "")
    except Exception:  # noqa: BLE001 - it raises bare Exception for every model that it has no price for
        cost = 0.0
    return ModelReply(
        answer=reply.answer,
        failure=reply.failure,
        raw=reply.raw,
        retry_after_s=reply.retry_after_s,
        input_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cost_usd=cost if 0.0 <= cost <= MAX_COST_USD else 0.0,
    )


def _estimated_cost(litellm: Any, model: str, sent: str, answer: str) -> float:
    prices = litellm.cost_per_token(
        model=model,
        prompt_tokens=len(sent) // CHARACTERS_A_TOKEN,
        completion_tokens=len(answer) // CHARACTERS_A_TOKEN,
    )
    return float(sum(prices))


def _count(value: object) -> int:
    if isinstance(value, int) and 0 <= value < 1 << 53:
        return value
    return 0
