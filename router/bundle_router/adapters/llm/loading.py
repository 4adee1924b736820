"""Importing litellm and instructor: the one module that does.

litellm's import takes seconds of CPU, fetches a price list, reads a `.env` file that lies about and prints to standard
output when something fails. It is imported in a thread, only where a model is configured, with all of that switched
off; what the host application has set itself is left as it is.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import sys
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from bundle_router.adapters.llm.wire import allowance

if TYPE_CHECKING:
    from aiohttp import ClientSession

_HABITS: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_MODE": "PRODUCTION",
}
_MALFORMED: Final = (
    r"(?s)Pydantic serializer warnings:.*(?:CompletionUsage|\[Choice\]|Expected `(?:Choice|ChatCompletion\w*)`"
    r"|field_name='(?:\w*_tokens|usage|choices|message|content|tool_calls|arguments)')"
)
OUR_THREADS: Final = ("bundle-router-import", "bundle-router-model", "bundle-router-embedder")
"""The threads on which only our own calls run. (Tools of the host have threads of ours too.)"""
_LITELLM: Final = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
_LOGGERS: Final = (*_LITELLM, "instructor", "instructor.v2.retry", "httpx", "openai._base_client")


@dataclass(frozen=True, slots=True)
class Libraries:
    """The two modules, ready to use."""

    litellm: Any
    instructor: Any

    def handler(self, session: ClientSession) -> Any:
        """litellm's own HTTP client over a session of ours. New connections that it opens go by the same session."""
        from litellm.llms.custom_httpx.aiohttp_transport import LiteLLMAiohttpTransport
        from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

        transport = LiteLLMAiohttpTransport(client=session, owns_session=False)
        return AsyncHTTPHandler(transport=transport, follow_redirects=False)


def installed() -> bool:
    """Return whether both can be imported, without importing them."""
    return all(importlib.util.find_spec(name) is not None for name in ("litellm", "instructor"))


class _NotOurs(logging.Filter):
    """Keeps what the libraries say about our own calls out of the host's log: prompts, answers, errors with keys. Our
    own are those under an allowance, and whatever happens on threads of ours (imports, litellm's workers)."""

    def filter(self, record: logging.LogRecord) -> bool:
        return allowance.get() is None and threading.current_thread().name not in OUR_THREADS


class _NotOnStdout(logging.Filter):
    """litellm's own handler writes what is no warning to standard output, also from threads that know nothing of us.
    The host's handlers still get it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING


_NOT_OURS: Final = _NotOurs()
_NOT_ON_STDOUT: Final = _NotOnStdout()


def _import() -> Libraries:
    for name, value in _HABITS.items():
        os.environ.setdefault(name, value)
    for name in _LOGGERS:  # before the import, which has something to say already
        logging.getLogger(name).addFilter(_NOT_OURS)
    is_hosts = "litellm" in sys.modules
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(litellm|instructor|openai)\b")
        import instructor
        import litellm

        _ = instructor.from_litellm  # it loads its parts on first use
    silence_warnings()
    litellm.suppress_debug_info = True
    if not is_hosts:
        for handler in (handler for name in _LITELLM for handler in logging.getLogger(name).handlers):
            handler.addFilter(_NOT_ON_STDOUT)
    return Libraries(litellm, instructor)


def silence_warnings() -> None:
    """Ignore three warnings that are not ours to act on: what pydantic remarks on litellm's types when it first builds
    one, the coroutine that litellm drops when a call is cancelled while it is still being prepared, and what pydantic
    remarks on a completion with parts of the wrong type, of which it quotes some."""
    warnings.filterwarnings("ignore", message=r"Items? .* on TypedDict class .* `ReadOnly`", category=UserWarning)
    warnings.filterwarnings("ignore", message=r"coroutine '\w+\.a?completion' was never", category=RuntimeWarning)
    warnings.filterwarnings("ignore", message=_MALFORMED, category=UserWarning)


async def load() -> Libraries | Literal["broken"]:
    """Return both libraries, imported in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Libraries | Literal["broken"]] = loop.create_future()

    def work() -> None:
        outcome: Libraries | Literal["broken"]
        try:
            outcome = _import()
        except Exception:  # noqa: BLE001 - an import runs anyone's code; whatever it raises, there is no model then
            outcome = "broken"

        def settle() -> None:
            if not done.done():
                done.set_result(outcome)

        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            return  # the loop was closed meanwhile

    threading.Thread(target=work, name="bundle-router-import", daemon=True).start()
    return await done
