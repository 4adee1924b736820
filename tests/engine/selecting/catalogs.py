"""A catalog that search can tell apart, and selectors over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from bundle_router.adapters.bm25 import LexicalIndex, english_stemmer
from bundle_router.core.catalog import (
    Bundle,
    Card,
    Catalog,
    Fallback,
    ModelSettings,
    Policy,
    SearchSettings,
    Server,
    Settings,
)
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.replayed import conclude
from bundle_router.core.search.corpus import corpus_of, texts_of
from bundle_router.core.search.ranking import Search
from bundle_router.core.search.text import Analyzer
from bundle_router.core.values import (
    Activation,
    Answer,
    Decision,
    Facts,
    Failure,
    ModelUse,
    RecentStep,
    Reply,
    Step,
)
from bundle_router.core.values.canonical import digest
from bundle_router.engine.selecting import SearchSelector, StagedSelector
from bundle_router.ports import Diagnostics, Readiness
from bundle_router.testing import FakeDiagnostics

ANALYZER = Analyzer(english_stemmer())

BUNDLES = (
    Bundle("repo.readonly", "Read the source code of the repository", ("repo.grep", "repo.read"),
           examples=("find where the retry limit is set",), effects=("read",)),
    Bundle("docs.fetch", "Look things up in the public documentation of libraries", ("docs.fetch",),
           effects=("read", "network")),
    Bundle("issues.write", "Open and close tickets in the issue tracker", ("issues.close", "issues.open"),
           effects=("read", "write")),
    Bundle("shell.run", "Compile the project and run its tests", ("shell.run",), effects=("exec",)),
    Bundle("strangers.mail", "Read letters in the mailbox", ("strangers.mail",), effects=("read",), trust="untrusted",
           mode="meta"),
)  # fmt: skip
TEXTS = {
    "repo.grep": "Search the text of files for a pattern",
    "repo.read": "Read a file of the repository",
    "docs.fetch": "Fetch a page of documentation",
    "issues.open": "Open a ticket in the tracker",
    "issues.close": "Close a ticket in the tracker",
    "shell.run": "Run the tests",
    "strangers.mail": "mailbox",
}
SURE = "look up the public documentation of this library"
NOVEL = "qwxyz frobnicate the zorkmid"
WRITES = "open a ticket in the issue tracker"
RUNS = "compile the project and run its tests"
EITHER = "read and search the source code or the public documentation of languages"
"""Two bundles are plausible, and both only read."""
LIKELY = "read the code of this library in the documentation"
"""The same two, and less likely one of them."""
UNSURE = "read the source code and open a ticket"
"""Two bundles are plausible, and one of them writes."""


def card(name: str, description: str, *, tokens: int = 100) -> Card:
    server, _, tool = name.partition(".")
    return Card(server, tool, description, '{"type":"object"}', digest(name), tokens)


def catalog(*, tokens: int = 100, bundles: Sequence[Bundle] = BUNDLES, **settings: Any) -> Catalog:
    """Everything permitted. Keywords: `order`, `default`, `beside`, and the fields of
    `SearchSettings`.
    """
    model = ModelSettings(beside=settings.pop("beside", "doubt"))
    fallback = Fallback(
        settings.pop("order", ("search", "model", "default")), settings.pop("default", ())
    )
    servers = {
        name: Server(name, "streamable-http" if name == "strangers" else "local",
                     "untrusted" if name == "strangers" else "trusted")
        for name in sorted({tool.partition(".")[0] for bundle in bundles for tool in bundle.tools})
    }  # fmt: skip
    return Catalog(
        servers=servers,
        bundles={bundle.id: bundle for bundle in bundles},
        policies=(Policy("everything", allow=("*",)),),
        settings=Settings(fallback=fallback, search=SearchSettings(**settings), model=model),
        cards={name: card(name, text, tokens=tokens) for name, text in TEXTS.items()},
    )


def search_over(catalog: Catalog) -> Search:
    texts = texts_of(catalog)
    corpus = corpus_of(texts, ANALYZER)
    return Search(LexicalIndex.build(corpus.documents, revision=texts.revision()), corpus, ANALYZER)


def step(goal: str, **more: Any) -> Step:
    return Step.model_validate(
        {"run_id": "r", "workflow": "w", "role": "x", "step": "y", "goal": goal, **more}
    )


def question(of: Catalog, goal: str, **more: Any) -> Question:
    asked = decide(Plans(of), Facts(), Activation(), step(goal, **more))
    assert isinstance(asked, Question)
    return asked


class Model:
    """Answers with bundle ids, sure of them or not (None: an older record), or fails with a word."""

    def __init__(self, says: Sequence[str] | Failure, *, sure: bool | None = False) -> None:
        self.asked = 0
        self.closed = False
        self._says = says
        self._sure = sure

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply:
        self.asked += 1
        if not isinstance(self._says, str):
            use = ModelUse("m", attempts=1, sure=self._sure)
            return Reply(
                answer=Answer(tuple(self._says), "model", "model", "because", model=use), model=use
            )
        failure: Failure = self._says  # type: ignore[assignment]  # a Failure is a Literal of strings
        return Reply(failure=failure, model=ModelUse("m", failure=failure, attempts=1))

    async def warm_up(self) -> Readiness:
        return "ready"

    async def close(self) -> None:
        self.closed = True


def staged(
    of: Catalog,
    model: Model | None = None,
    *,
    make: Callable[[Catalog], Search] = search_over,
    diagnostics: Diagnostics | None = None,
) -> StagedSelector:
    search = SearchSelector(make, diagnostics or FakeDiagnostics())
    return StagedSelector(of.settings.fallback.order, search=search, model=model)


def settled(
    of: Catalog, goal: str, model: Model | None = None, **more: Any
) -> tuple[Reply, Decision]:
    """What the stages say to a goal, and the decision it leads to."""
    asked = question(of, goal, **more)
    reply = asyncio.run(staged(of, model).select(asked, ()))
    return reply, conclude(asked, reply)
