"""A program: reads lines of JSON, each an environment and models, and prints a line with what
failed as each of the models was asked once.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import Any, Final

from bundle_router.adapters.llm import LiteLlm, LiteLlmEmbedder
from bundle_router.core.catalog import ModelChoice
from bundle_router.core.decide.asking.model_exchange import ModelRequest
from bundle_router.core.decide.asking.picks import AnswerShapes

RESOLVE: Final = socket.getaddrinfo


CLIENTS: Final = 8


async def ask(models: list[dict[str, Any]]) -> list[tuple[str | None, str]]:
    """Ask models that pick, over a few clients side by side: one would wait for most of its
    time.
    """
    groups = [models[number::CLIENTS] for number in range(min(CLIENTS, len(models)))]
    ended: list[tuple[str | None, str]] = [(None, "")] * len(models)
    for number, replies in enumerate(await asyncio.gather(*map(ask_group, groups))):
        ended[number::CLIENTS] = replies
    return ended


async def ask_group(models: list[dict[str, Any]]) -> list[tuple[str | None, str]]:
    """Ask models over one client."""
    choices = [ModelChoice(**one) for one in models]
    client = LiteLlm(choices)
    assert await client.warm_up() == "ready"
    shape = AnswerShapes().of(("a", "b"))
    replies = [await client.complete(ModelRequest(one, "system", "user", shape)) for one in choices]
    await client.close()
    return [(reply.failure, reply.detail) for reply in replies]


async def ask_with(model: dict[str, Any]) -> tuple[str | None, str]:
    """Ask one model over a client of its own, with its own variables besides."""
    variables = model.pop("variables")
    os.environ.update(variables)
    (ended,) = await ask([model])
    for name in variables:
        del os.environ[name]
    return ended


def embed(model: dict[str, Any]) -> tuple[str | None, str]:
    """Ask a model that embeds."""
    embedder = LiteLlmEmbedder(model["name"], base_url=model["base_url"], key_env=model["key_env"])
    reply = embedder.embed(("text",), timeout_s=120)
    embedder.close()
    return reply.failure, reply.detail


def refuse_names(host: Any, *more: Any, **named: Any) -> Any:
    """Resolve nothing but this machine: what a library would ask elsewhere stays here."""
    if host not in ("127.0.0.1", b"127.0.0.1"):
        raise OSError(f"{host!r} is not asked by tests")
    return RESOLVE(host, *more, **named)


def ask_all(models: list[dict[str, Any]]) -> list[tuple[str | None, str]]:
    if models[0].get("embeds"):
        return [embed(model) for model in models]
    if models[0].get("variables"):
        return [asyncio.run(ask_with(model)) for model in models]
    return asyncio.run(ask(models))


def main() -> None:
    socket.getaddrinfo = refuse_names
    usual = dict(os.environ)
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ.clear()
        os.environ.update(usual | asked["variables"])
        print(json.dumps(ask_all(asked["models"])), flush=True)
    os._exit(0)  # whatever threads the libraries left


if __name__ == "__main__":
    main()
