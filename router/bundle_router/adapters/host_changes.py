"""What the library changes of the process that it runs in: every setting, with the reason.

A library leaves its host alone, so nothing else outside the command line and `serve` changes the
interpreter's collector, switch interval, recursion limit, signal handlers, modules, environment,
warnings filters or foreign loggers. `tests/test_host_process.py` compares a process with this
table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Setting = Literal["environment", "warnings", "logger"]


@dataclass(frozen=True, slots=True)
class HostChange:
    """One setting of the host's process that the library changes, and why."""

    setting: Setting
    """`environment`: a variable that is set where the host has not. `warnings`: a filter that
    ignores messages. `logger`: a filter, or a level, on a logger of another library."""
    names: tuple[str, ...]
    """The variables, the beginnings of the messages, or the loggers."""
    begins: str
    """When it happens, and stays so."""
    reason: str


LITELLM_VARIABLES: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_MODE": "PRODUCTION",
}
LITELLM_LOGGERS: Final = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
MODEL_LOGGERS: Final = (
    *LITELLM_LOGGERS,
    "instructor",
    "instructor.v2.retry",
    "httpx",
    "openai._base_client",
)
SDK_LOGGERS: Final = (
    "client",
    "httpx2",
    "mcp.client.auth.oauth2",
    "mcp.client.client",
    "mcp.client.sse",
    "mcp.client.streamable_http",
    "mcp.shared.direct_dispatcher",
    "mcp.shared.dispatcher",
    "mcp.shared.jsonrpc_dispatcher",
)
SEARCH_LOGGER: Final = "bm25s"

HOST_CHANGES: Final = (
    HostChange(
        "environment",
        tuple(LITELLM_VARIABLES),
        "when litellm is loaded",
        "its import would fetch a price list over the network and read any `.env` file",
    ),
    HostChange(
        "environment",
        ("TIKTOKEN_CACHE_DIR",),
        "while a review of servers loads the tokenizer, and not after it",
        "the tokenizer would fetch a vocabulary that litellm has brought",
    ),
    HostChange(
        "warnings",
        ("Items? ", "coroutine ", "Pydantic serializer warnings:"),
        "when litellm is loaded, and with each question to a model",
        "pydantic and litellm warn of litellm's own types, and quote the answers of models",
    ),
    HostChange(
        "logger",
        MODEL_LOGGERS,
        "when litellm is loaded",
        "a filter keeps the prompts, answers and keys of our own questions out of the host's log;"
        " another keeps what litellm prints by itself off standard output",
    ),
    HostChange(
        "logger",
        (
            "asyncio",
            "backoff",
            "uvicorn.access",
            "uvicorn.error",
            "apscheduler.executors.default",
            "apscheduler.scheduler",
            "LiteLLM Proxy.stdout",
        ),
        "when litellm is loaded",
        "litellm adds a filter of its own, which takes keys out of what they write",
    ),
    HostChange(
        "logger",
        SDK_LOGGERS,
        "when MCP servers are used",
        "a filter keeps records of our own sessions out of the host's log: they quote requests and"
        " servers unredacted",
    ),
    HostChange(
        "logger",
        (SEARCH_LOGGER,),
        "when search is used",
        "the library sets its own logger to DEBUG; it is set to WARNING again",
    ),
)
