"""The pages of the library of bundles: its servers, a search, and a server's tools."""

from __future__ import annotations

import re

import pytest
from bundle_router.service.pages.application import pages
from bundle_router.workbench.run_reader import RunReader
from starlette.testclient import TestClient


@pytest.fixture
def client(reader: RunReader) -> TestClient:
    return TestClient(pages(reader), base_url="http://127.0.0.1")


def test_the_catalog_leads_to_all_servers_of_the_library(client: TestClient) -> None:
    assert 'href="/library"' in client.get("/catalog").text
    page = client.get("/library").text
    assert len(set(re.findall(r'href="(/library/[^"#]+)"', page))) == 53
    rows = {row["server"]: row for row in client.get("/library.json").json()["servers"]}
    assert rows["github-ref"]["tools"] == {"read": 14, "write": 11, "risky": 1, "run": 0}


def test_a_search_finds_tools_by_all_words_in_any_of_their_texts(client: TestClient) -> None:
    hits = client.get("/library.json?q=Github-Ref+MERGE").json()["hits"]
    assert [(hit["server"], hit["bundle"], hit["name"]) for hit in hits] == [
        ("github-ref", "risky", "merge_pull_request")
    ]
    page = client.get("/library?q=github-ref+merge").text
    assert "1 tool with" in page
    assert 'href="/library/github-ref#risky"' in page
    assert "0 tools with" in client.get("/library?q=no+such+tool+anywhere").text
    many = client.get("/library?q=e").text
    assert "These are the first 100" in many


def test_what_is_searched_is_shown_as_text(client: TestClient) -> None:
    page = client.get("/library", params={"q": "<script>"}).text
    assert "&lt;script&gt;" in page
    assert "<script>" not in page


def test_a_server_shows_each_tool_with_effects_clause_and_digest(client: TestClient) -> None:
    page = client.get("/library/github-ref").text
    listed = client.get("/library/github-ref.json").json()
    (merge,) = listed["bundles"]["risky"]["tools"]
    assert merge["name"] == "merge_pull_request"
    assert merge["effects"] == ["write", "network"]
    assert merge["clause"] in page
    assert f'title="{merge["sha256"]}"' in page
    assert "MIT" in page


def test_where_readers_differed_both_clauses_are_shown(client: TestClient) -> None:
    page = client.get("/library/kubernetes").text
    assert "readers differed" in page
    assert "the other reader: Manage the rollout of a resource" in page
