"""The only module that imports litellm and instructor.

litellm's import takes seconds of CPU, fetches a price list, reads any `.env` file and prints errors
to standard output. So it is imported in a thread, only if a model is configured, with all of that
switched off. What stays changed of the host's process stands in `host_changes`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from bundle_router.adapters.host_changes import (
    LITELLM_LOGGERS,
    LITELLM_VARIABLES,
    MODEL_LOGGERS,
)
from bundle_router.adapters.llm.credentials import NO_KEY
from bundle_router.adapters.llm.wire import allowance

if TYPE_CHECKING:
    from aiohttp import ClientSession

_MALFORMED: Final = (
    r"(?s)Pydantic serializer warnings:.*(?:CompletionUsage|\[Choice\]|Expected"
    r" `(?:Choice|ChatCompletion\w*)`"
    r"|field_name='(?:\w*_tokens|usage|choices|message|content|tool_calls|arguments)')"
)
OUR_THREADS: Final = ("bundle-router-import", "bundle-router-model", "bundle-router-embedder")
"""The threads that run only our own calls. (Threads of ours also run tools of the host.)"""


Way = Literal["handler", "session", "openai"]
"""How a provider's part of litellm takes our session: as litellm's HTTP client, as it is, or as a
client of the OpenAI library.
"""
WAYS: Final[tuple[Way, ...]] = get_args(Way)
_AZURE: Final = ("azure", "azure_text")


def ways_for(model: str, usual: tuple[Way, ...]) -> tuple[Way, ...]:
    """Return the ways to try for a model, in order: for Azure's only the one that it takes, since a
    wrong one leaves an open session of litellm's behind.
    """
    if model.partition("/")[0] in _AZURE:
        return ("openai",)
    return usual


@dataclass(frozen=True, slots=True)
class Libraries:
    """The two imported modules."""

    litellm: Any
    instructor: Any

    def handler(self, session: ClientSession) -> Any:
        """Return litellm's HTTP client over our session.

        New connections that it opens use the same session.
        """
        from litellm.llms.custom_httpx.aiohttp_transport import LiteLLMAiohttpTransport
        from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

        transport = LiteLLMAiohttpTransport(client=session, owns_session=False)
        return AsyncHTTPHandler(transport=transport, follow_redirects=False)

    def forget_clients(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the clients of a loop out of litellm's cache, which has their loop in its keys."""
        cache = self.litellm.in_memory_llm_clients_cache
        for key in list(cache.cache_dict):
            if str(key).endswith(f"-{id(loop)}"):
                cache.delete_cache(key)

    def client_argument(
        self,
        way: Way,
        handler: Any,
        session: ClientSession,
        *,
        model: str,
        key: str | None,
        base_url: str | None,
    ) -> dict[str, Any]:
        """Return the argument by which litellm takes our session; none where it takes it as it
        is.
        """
        if way == "handler":
            return {"client": handler}
        if way == "openai" and base_url is not None:
            return {"client": self.openai_client(session, model, key or NO_KEY, base_url)}
        return {}

    def openai_client(self, session: ClientSession, model: str, key: str, base_url: str) -> Any:
        """Return an OpenAI client over our session, for providers that litellm reaches by one.

        Azure has a client of its own.
        """
        import httpx
        import openai
        from litellm.llms.custom_httpx.aiohttp_transport import LiteLLMAiohttpTransport

        transport = LiteLLMAiohttpTransport(client=session, owns_session=False)
        http_client = httpx.AsyncClient(transport=transport, trust_env=False)
        if model.partition("/")[0] in _AZURE:
            version = os.environ.get("AZURE_API_VERSION")
            return openai.AsyncAzureOpenAI(
                api_key=key,
                azure_endpoint=base_url,
                api_version=version or self.litellm.AZURE_DEFAULT_API_VERSION,
                http_client=http_client,
                max_retries=0,
            )
        return openai.AsyncOpenAI(
            api_key=key, base_url=base_url, http_client=http_client, max_retries=0
        )


def installed() -> bool:
    """Return whether both are installed, without importing them."""
    return all(importlib.util.find_spec(name) is not None for name in ("litellm", "instructor"))


def has_price(model: str) -> bool:
    """Return whether litellm's list has a price above 0 for a model.

    Call it once the libraries are loaded.
    """
    try:
        import litellm

        return (
            sum(litellm.cost_per_token(model=model, prompt_tokens=1_000, completion_tokens=1_000))
            > 0.0
        )
    except Exception:  # noqa: BLE001 - it raises bare Exception for every model that it has no price for
        return False


def without_price(models: Iterable[str]) -> list[str]:
    """Return the models for which litellm's list has no price; none where it can't be loaded.

    Imports litellm, which takes seconds.
    """
    if not installed():
        return []
    _import()
    return [model for model in models if not has_price(model)]


def without_provider(models: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the models that litellm can't tell the provider of, with the providers that it knows;
    none where it can't be loaded. What a provider calls its models is not checked.

    Imports litellm, which takes seconds.
    """
    if not installed():
        return {}
    _import()
    import litellm

    providers = tuple(sorted(str(getattr(row, "value", row)) for row in litellm.provider_list))
    return {
        model: providers
        for model in models
        if model.partition("/")[0] not in providers and model not in litellm.model_cost
    }


class _NotOurs(logging.Filter):
    """Keeps the libraries' records of our own calls out of the host's log: prompts, answers, errors
    with keys. Our own calls are those with an allowance, and everything on our threads (imports,
    litellm's workers).
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return allowance.get() is None and threading.current_thread().name not in OUR_THREADS


class _NotOnStdout(logging.Filter):
    """Keeps litellm's own handler from writing records below warnings to standard output, also from
    unrelated threads. The host's handlers still get them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING


_NOT_OURS: Final = _NotOurs()
_NOT_ON_STDOUT: Final = _NotOnStdout()


def _import() -> Libraries:
    for name, value in LITELLM_VARIABLES.items():
        os.environ.setdefault(name, value)
    for name in MODEL_LOGGERS:  # before the import, which logs already
        logging.getLogger(name).addFilter(_NOT_OURS)
    is_hosts = "litellm" in sys.modules
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", category=DeprecationWarning, module=r"(litellm|instructor|openai)\b"
        )
        import instructor
        import litellm

        _ = instructor.from_litellm  # instructor loads its parts on first use
    silence_warnings()
    litellm.suppress_debug_info = True
    if not is_hosts:
        for name in LITELLM_LOGGERS:
            for handler in logging.getLogger(name).handlers:
                handler.addFilter(_NOT_ON_STDOUT)
    return Libraries(litellm, instructor)


def silence_warnings() -> None:
    """Ignore three warnings that we can't act on: pydantic's about litellm's types when it first
    builds one; the coroutine that litellm drops when a call is cancelled while it is prepared; and
    pydantic's about a completion with parts of the wrong type, some of which it quotes.
    """
    warnings.filterwarnings(
        "ignore", message=r"Items? .* on TypedDict class .* `ReadOnly`", category=UserWarning
    )
    warnings.filterwarnings(
        "ignore", message=r"coroutine '\w+\.a?completion' was never", category=RuntimeWarning
    )
    warnings.filterwarnings("ignore", message=_MALFORMED, category=UserWarning)


async def load() -> Libraries | Literal["broken"]:
    """Import both libraries in a thread that does not keep the process from ending, and return
    them.
    """
    loop = asyncio.get_running_loop()
    loading: asyncio.Future[Libraries | Literal["broken"]] = loop.create_future()

    def work() -> None:
        outcome: Libraries | Literal["broken"]
        try:
            outcome = _import()
        except Exception:  # noqa: BLE001 - an import runs anyone's code; whatever it raises, there is no model then
            outcome = "broken"

        def settle() -> None:
            if not loading.done():
                loading.set_result(outcome)

        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            return  # the loop was closed meanwhile

    threading.Thread(target=work, name="bundle-router-import", daemon=True).start()
    return await loading
