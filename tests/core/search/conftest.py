"""A small catalog that reads like a real one, and what is needed to search it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.bm25 import LexicalIndex, english_stemmer
from bundle_router.core.search.documents import BundleText, ToolText, make_corpus
from bundle_router.core.search.ranking import Search
from bundle_router.core.search.text import Analyzer

DATA = Path(__file__).parents[2] / "data" / "routing"

TOOLS = (
    ToolText(
        "repo.read_file",
        "repo",
        "read_file",
        "Read the content of a file",
        ("path",),
        "path of the file",
    ),
    ToolText(
        "repo.grep",
        "repo",
        "grep",
        "Search the text of files for a pattern",
        ("pattern",),
        "regular expression",
    ),
    ToolText(
        "repo.git_log", "repo", "git_log", "Show the commits that changed a path", ("path", "limit")
    ),
    ToolText(
        "workspace.exec",
        "workspace",
        "exec",
        "Run a program in the workspace",
        ("argv",),
        "program, arguments",
    ),
    ToolText("workspace.write_file", "workspace", "writeFile", "Write a file", ("path", "content")),
    ToolText(
        "issues.create_issue",
        "issues",
        "createIssue",
        "Open a new issue in the tracker",
        ("title", "body"),
    ),
    ToolText(
        "issues.list_issues",
        "issues",
        "listIssues",
        "List the issues of a project",
        ("state", "label"),
    ),
    ToolText(
        "weather.forecast",
        "weather",
        "get_forecast",
        "Weather forecast for a place",
        ("city", "days"),
    ),
    ToolText("docs.fetch", "docs", "fetch", "Fetch a web page as Markdown", ("url",)),
)
BUNDLES = (
    BundleText("repo.readonly", "Read and search the source code", ("where is this function defined",),
               ("repo.read_file", "repo.grep", "repo.git_log")),
    BundleText("workspace.exec", "Change files and run the tests", (), ("workspace.exec", "workspace.write_file")),
    BundleText("issues.tracker", "Report and look up bugs", (), ("issues.create_issue", "issues.list_issues")),
    BundleText("weather", "What the weather will be", (), ("weather.forecast",)),
    BundleText("docs.web", "Read documentation on the web", (), ("docs.fetch",)),
)  # fmt: skip


def make_search(
    bundles: tuple[BundleText, ...] = BUNDLES, tools: tuple[ToolText, ...] = TOOLS
) -> Search:
    analyzer = Analyzer(english_stemmer())
    corpus = make_corpus(bundles, tools, analyzer)
    return Search(LexicalIndex.build(corpus.documents, revision="test"), corpus, analyzer)


@pytest.fixture(scope="session")
def search() -> Search:
    return make_search()


@pytest.fixture(scope="session")
def everything(search: Search) -> frozenset[str]:
    return frozenset(search.corpus.members)


@pytest.fixture(scope="session")
def build() -> Any:
    """`make_search`, for tests that bring their own catalog."""
    return make_search


@pytest.fixture(scope="session")
def sample() -> tuple[Search, list[dict[str, Any]]]:
    """The labelled sample of tests/data/routing: its search and its queries."""

    def rows(name: str) -> list[dict[str, Any]]:
        lines = (DATA / "bfcl_sample" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    members: dict[str, list[str]] = defaultdict(list)
    tools = rows("tools")
    for tool in tools:
        members[tool["server"]].append(tool["id"])
    bundles = tuple(
        BundleText(row["id"], row["description"], (), tuple(members[row["id"]]))
        for row in rows("servers")
    )
    texts = tuple(
        ToolText.from_schema(t["id"], t["server"], t["name"], t["description"], t["inputSchema"])
        for t in tools
    )
    return make_search(bundles, texts), rows("queries")
