"""Questions to put, and selectors to put them to."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from bundle_router.adapters.llm import LiteLlm
from bundle_router.adapters.loop import LoopThread
from bundle_router.adapters.system import SystemClock
from bundle_router.core.catalog import Bundle, Catalog, ModelOptions, ModelSettings
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.values import Activation, Facts, Reply, Step
from bundle_router.engine.asking import ModelSelector
from bundle_router.ports import Clock, ModelClient
from bundle_router.testing import FakeDiagnostics, small_catalog

IDS = ("a.one", "b.two", "c.three", "d.four", "e.five")


def catalog_of_five() -> Catalog:
    made = {}
    for id_ in IDS:
        tool = f"srv.{id_.replace('.', '_')}"
        made[id_] = Bundle(id_, f"Does {id_}", (tool,), effects=("read",), examples=(f"do {id_}",))
    return small_catalog(made)


@pytest.fixture(scope="session")
def question() -> Callable[..., Question]:
    """Makes what the core asks for a step that no route covers, over five bundles unless told
    otherwise.
    """

    def made(catalog: Catalog | None = None, **step: Any) -> Question:
        asked = {
            "run_id": "t-1",
            "workflow": "feature",
            "role": "coder",
            "step": "edit",
            "goal": "rename",
            **step,
        }
        taken = decide(Plans(catalog or catalog_of_five()), Facts(), Activation(), Step(**asked))
        assert isinstance(taken, Question)
        return taken

    return made


@pytest.fixture
def diagnostics() -> FakeDiagnostics:
    return FakeDiagnostics()


@pytest.fixture
def opened(diagnostics: FakeDiagnostics) -> Iterator[Callable[..., ModelSelector]]:
    """Makes selectors: one model for each server, in that order, warmed up.

    Closes them at the end.
    """
    kept: list[ModelSelector] = []

    def made(
        *urls: str,
        client: ModelClient | None = None,
        clock: Clock | None = None,
        answers_ttl_s: float = 0.0,
        **settings: Any,
    ) -> ModelSelector:
        # Not importorskip: that would import litellm with its own habits on.
        if client is None and not all(
            importlib.util.find_spec(name) for name in ("litellm", "instructor")
        ):
            pytest.skip("the extra bundle-router[model] is not installed")
        store = settings.pop("store", None)
        names = tuple(f"openai/model-{i}" for i in range(max(len(urls), 1)))
        options = tuple(
            ModelOptions(name, base_url=url) for name, url in zip(names, urls, strict=False)
        )
        made_of = replace(ModelSettings(names, options=options, deadline_s=60.0), **settings)
        selector = ModelSelector(
            made_of,
            client or LiteLlm(made_of.choices),
            clock or SystemClock(),
            diagnostics,
            loop=LoopThread("model"),
            answers_ttl_s=answers_ttl_s,
            store=store,
        )
        kept.append(selector)
        assert asyncio.run(selector.warm_up()) == "ready"
        return selector

    yield made
    for selector in kept:
        asyncio.run(selector.close())


@pytest.fixture(scope="session")
def ask(question: Callable[..., Question]) -> Callable[..., Reply]:
    """Puts a question (the usual one unless told otherwise) on an event loop of its own."""

    def asked(selector: ModelSelector, put: Question | None = None) -> Reply:
        return asyncio.run(selector.select(put or question(), ()))

    return asked
