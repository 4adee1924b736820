"""Embeddings beside search: heard when they are there in time, and never in the way when they are
not.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.embeddings import VectorStore, embed_texts, vectors_for
from bundle_router.core.records.decision_record import search_json
from bundle_router.core.search.index import Embedding
from bundle_router.core.search.meaning import Passage
from bundle_router.core.values import Failure, Reply
from bundle_router.core.values.canonical import encode
from bundle_router.engine.selecting import SearchSelector
from bundle_router.engine.selecting.goal_embedding import KEPT_GOALS
from bundle_router.testing import FakeDiagnostics

from tests.engine.selecting.catalogs import BUNDLES, SURE, TEXTS, catalog, question, search_over
from tests.engine.selecting.embedders import NOT_A_NUMBER, Embedder, Rig, about

GOAL = "docs, docs and nothing but docs"
OF_BUNDLES = len(BUNDLES) + sum(len(bundle.examples) for bundle in BUNDLES)
"""Texts of bundles that are embedded: a line each, and the examples."""


def ready(rig: Rig) -> Rig:
    rig.selector.warm_up(rig.catalog)
    return rig


def heard(rig: Rig, goal: str = GOAL) -> Reply:
    return rig.selector.consider(question(rig.catalog, goal), ()).reply


def by_words(goal: str = GOAL) -> Reply:
    of = catalog()
    return SearchSelector(search_over, FakeDiagnostics()).consider(question(of, goal), ()).reply


def without_note(reply: Reply) -> str:
    assert reply.search is not None
    return encode(
        [
            search_json(replace(reply.search, embeddings=None)),
            [row.id for row in reply.search.ranked],
        ]
    )


def test_what_an_embedder_says_ranks_and_is_recorded_with_its_revision() -> None:
    reply = heard(ready(Rig(catalog())))
    assert reply.search is not None
    assert reply.search.embeddings == "used"
    assert reply.search.evidence.likeness > 0.0
    assert dict(reply.revisions)["embeddings"] == "toy/1"
    assert without_note(reply) != without_note(by_words())


def test_a_request_and_a_document_go_in_with_the_prompts_of_the_model() -> None:
    rig = ready(Rig(catalog(), Embedder(prompts=("query: ", "passage: "))))
    texts = [*rig.embedder.seen]
    assert texts
    assert all(text.startswith("passage: ") for text in texts)
    reply = heard(rig)
    assert reply.search is not None
    assert reply.search.embeddings == "used"
    assert rig.embedder.seen[len(texts) :] == [f"query: {GOAL}"]
    past = [Passage("one", "steps", GOAL), Passage("two", "bundles", GOAL)]
    assert not isinstance(vectors_for(past, rig.embedder, VectorStore(None, "toy/1")), Embedding)
    assert rig.embedder.seen[-2:] == [f"query: {GOAL}", f"passage: {GOAL}"]


def test_without_an_embedder_nothing_is_said_of_one() -> None:
    reply = by_words()
    assert reply.search is not None
    assert reply.search.embeddings is None
    assert "embeddings" not in dict(reply.revisions)


def says(vectors: Embedding) -> Callable[[Sequence[str]], Embedding]:
    return lambda texts: vectors


def breaks(texts: Sequence[str]) -> Embedding:
    raise RuntimeError("a library's own error")


UNSOUND: list[tuple[str, Any, Failure]] = [
    ("too late", "timeout", "timeout"),
    ("429", "rate_limited", "rate_limited"),
    ("401", "auth", "auth"),
    ("500", "upstream_error", "upstream_error"),
    ("text too long", "context_window", "context_window"),
    ("not loaded", "not_ready", "not_ready"),
    ("not a number", says(NOT_A_NUMBER), "invalid_output"),
    ("another length", says(Embedding(((1.0, 2.0),))), "invalid_output"),
    ("no vector", says(Embedding(())), "invalid_output"),
    ("two vectors", says(Embedding((about("x"), about("y")))), "invalid_output"),
    ("nothing but zeros", says(Embedding(((0.0,) * 6,))), "invalid_output"),
    ("an exception", breaks, "internal"),
]


@pytest.mark.parametrize(
    ("then", "failure"), [row[1:] for row in UNSOUND], ids=[row[0] for row in UNSOUND]
)
def test_an_embedder_that_fails_leaves_the_ranking_of_words_and_its_failure(
    then: Any, failure: Failure
) -> None:
    rig = ready(Rig(catalog()))
    rig.embedder.then = then
    reply = heard(rig)
    assert reply.search is not None
    assert reply.search.embeddings == failure
    assert reply.failure is None, "search was heard; only its embedder was not"
    assert "embeddings" not in dict(reply.revisions)
    assert without_note(reply) == without_note(by_words())


@pytest.mark.parametrize(
    ("then", "failure"), [row[1:] for row in UNSOUND], ids=[row[0] for row in UNSOUND]
)
def test_a_catalog_that_can_not_be_embedded_is_searched_by_words(
    then: Any, failure: Failure
) -> None:
    rig = Rig(catalog())
    rig.embedder.then = then
    reply = heard(ready(rig))
    assert reply.search is not None
    assert reply.search.embeddings == "circuit_open"
    assert without_note(reply) == without_note(by_words())
    said = [
        fields for _, name, fields in rig.diagnostics.events if name == "embeddings.unavailable"
    ]
    assert [fields["failure"] for fields in said] == [failure]


def test_a_catalog_that_could_not_be_embedded_is_tried_again_after_a_while() -> None:
    rig = Rig(catalog())
    rig.embedder.then = "upstream_error"
    ready(rig)
    asked = len(rig.embedder.seen)
    rig.embedder.then = None
    assert heard(rig).search.embeddings == "circuit_open"  # type: ignore[union-attr]  # search was asked
    assert len(rig.embedder.seen) == asked
    rig.clock.advance(31)
    heard(rig)
    rig.selector.warm_up(rig.catalog)
    assert heard(rig).search.embeddings == "used"  # type: ignore[union-attr]  # search was asked


def test_until_the_catalog_is_embedded_words_rank_and_nobody_waits() -> None:
    rig = Rig(catalog())
    rig.release.clear()
    reply = heard(rig)
    assert reply.search is not None
    assert reply.search.embeddings == "not_ready"
    assert without_note(reply) == without_note(by_words())
    rig.release.set()
    assert heard(ready(rig)).search.embeddings == "used"  # type: ignore[union-attr]  # search was asked


def test_bundles_are_compared_while_their_tools_are_still_embedded() -> None:
    rig, wish = Rig(catalog()), "the code of a ticket"
    names = {bundle.id for bundle in BUNDLES}
    tools_asked, go_on = threading.Event(), threading.Event()

    def slow(texts: Sequence[str]) -> Embedding:
        if texts[0] != wish and texts[0].partition(":")[0] not in names:
            tools_asked.set()
            assert go_on.wait(300)
        return Embedding(tuple(about(text) for text in texts))

    rig.embedder.then = slow
    heard(rig, wish)
    assert tools_asked.wait(300)
    early = heard(rig, wish)
    assert early.search is not None
    assert early.search.embeddings == "used"
    assert without_note(early) != without_note(by_words(wish))
    go_on.set()
    late = heard(ready(rig), wish)
    assert without_note(late) != without_note(early)
    assert len(rig.embedder.seen) == len({*rig.embedder.seen}), (
        "what was embedded is not embedded again"
    )


def test_a_machine_too_busy_for_a_whole_part_is_given_less_of_it(tmp_path: Path) -> None:
    texts = [f"docs {number}" for number in range(70)]
    parts: list[int] = []

    def busy(part: Sequence[str]) -> Embedding:
        parts.append(len(part))
        return (
            Embedding(failure="timeout")
            if len(part) > 8
            else Embedding(tuple(about(text) for text in part))
        )

    embedder = Embedder()
    embedder.then = busy
    made = embed_texts(texts, embedder, VectorStore(tmp_path / "kept", "toy/1"))
    assert isinstance(made, dict)
    assert list(made) == texts
    assert parts[:2] == [32, 8]
    embedder.then = "upstream_error"
    assert isinstance(
        embed_texts(texts, embedder, VectorStore(tmp_path / "kept", "toy/1")), dict
    ), "all were kept"


def test_an_embedder_that_is_down_is_left_alone_for_a_while() -> None:
    rig = ready(Rig(catalog()))
    rig.embedder.then = "timeout"
    before = len(rig.embedder.seen)
    assert [heard(rig, f"{GOAL} {n}").search.embeddings for n in range(7)] == [  # type: ignore[union-attr]  # asked
        *["timeout"] * 5,
        "circuit_open",
        "circuit_open",
    ]
    assert len(rig.embedder.seen) == before + 5
    rig.embedder.then = None
    rig.clock.advance(31)
    assert heard(rig).search.embeddings == "used"  # type: ignore[union-attr]  # search was asked


def test_a_goal_is_embedded_once_and_a_failure_is_not_remembered() -> None:
    rig = ready(Rig(catalog()))
    rig.embedder.then = "upstream_error"
    heard(rig)
    rig.embedder.then = None
    before = len(rig.embedder.seen)
    first, second = heard(rig), heard(rig)
    assert first == second
    assert rig.embedder.seen[before:] == [GOAL]


def test_only_the_last_goals_are_kept() -> None:
    rig = ready(Rig(catalog()))
    before = len(rig.embedder.seen)
    for number in range(KEPT_GOALS + 1):
        rig.meanings.vector_of(rig.catalog, f"docs {number}")
    rig.meanings.vector_of(rig.catalog, f"docs {KEPT_GOALS}")
    assert len(rig.embedder.seen) == before + KEPT_GOALS + 1
    rig.meanings.vector_of(rig.catalog, "docs 0")
    assert len(rig.embedder.seen) == before + KEPT_GOALS + 2


def test_no_text_of_a_stranger_reaches_the_embedder() -> None:
    rig = ready(Rig(catalog()))
    assert any("source code" in text for text in rig.embedder.seen)
    assert TEXTS["strangers.mail"] == "mailbox"
    assert not any("strangers.mail: mailbox" in text for text in rig.embedder.seen)
    described = [text for text in rig.embedder.seen if "mailbox" in text]
    assert all(text.startswith("strangers.mail: Read letters") for text in described), (
        "the operator's words alone"
    )


# --- what is kept ---------------------------------------------------------------------------------


def warmed(folder: Path, **changes: Any) -> list[str]:
    """What a new process embeds of the catalog with these changes."""
    of = catalog(bundles=[replace(bundle, **changes.get(bundle.id, {})) for bundle in BUNDLES])
    rig = ready(
        Rig(
            of,
            Embedder(changes.get("revision", "toy/1")),
            VectorStore(folder, changes.get("revision", "toy/1")),
        )
    )
    assert heard(rig, SURE).search.embeddings == "used"  # type: ignore[union-attr]  # search was asked
    return [text for text in rig.embedder.seen if text != SURE]


def test_unchanged_texts_are_never_embedded_again(tmp_path: Path) -> None:
    folder = tmp_path / "embeddings"
    assert len(warmed(folder)) == OF_BUNDLES + len(TEXTS) - 1
    assert warmed(folder) == []
    changed = warmed(folder, **{"docs.fetch": {"description": "Something else altogether"}})
    assert [text.splitlines()[0] for text in changed] == ["docs.fetch: Something else altogether"]
    assert len(warmed(folder, revision="toy/2")) == OF_BUNDLES + len(TEXTS) - 1, (
        "another model's vectors are its own"
    )


def test_what_is_kept_is_ours_alone_and_holds_no_text(tmp_path: Path) -> None:
    folder = tmp_path / "embeddings"
    warmed(folder)
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"source code" not in file.read_bytes()


def damage(file: Path) -> None:
    file.write_bytes(b"not a database" * 100)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:700])


def poison(file: Path) -> None:
    with sqlite3.connect(file) as base:
        base.execute("UPDATE kept SET vector = x'0000c07f' WHERE rowid = 1")


def shorten(file: Path) -> None:
    with sqlite3.connect(file) as base:
        base.execute("UPDATE kept SET vector = substr(vector, 1, 8)  WHERE rowid = 2")


@pytest.mark.parametrize("spoil", [damage, cut, poison, shorten])
def test_a_damaged_store_is_as_good_as_none_and_whole_again_after_that(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    folder = tmp_path / "embeddings"
    warmed(folder)
    spoil(next(folder.glob("*.sqlite")))
    anew = OF_BUNDLES if spoil in (poison, shorten) else OF_BUNDLES + len(TEXTS) - 1
    assert len(warmed(folder)) == anew, "one unsound vector costs those of its stage"
    assert warmed(folder) == []


def test_a_store_that_others_may_write_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "embeddings"
    warmed(folder)
    folder.chmod(0o777)
    assert len(warmed(folder)) == OF_BUNDLES + len(TEXTS) - 1


def test_a_store_that_can_not_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert len(warmed(tmp_path / "file" / "embeddings")) == OF_BUNDLES + len(TEXTS) - 1
    assert not VectorStore(None, "toy/1").save({"a": (1.0,)})


def test_old_revisions_are_let_go_of(tmp_path: Path) -> None:
    folder = tmp_path / "embeddings"
    for number in range(6):
        VectorStore(folder, f"toy/{number}").save({"a": (1.0,)})
        for age, file in enumerate(
            sorted(folder.iterdir(), key=lambda f: f.stat().st_mtime_ns, reverse=True)
        ):
            os.utime(file, ns=(10**18 - age * 10**9,) * 2)
    assert len(list(folder.iterdir())) == 4
    assert VectorStore(folder, "toy/5").load(["a"]) == {"a": (1.0,)}
    assert VectorStore(folder, "toy/0").load(["a"]) == {}


def test_the_embedder_is_let_go_of_with_the_selector() -> None:
    rig = Rig(catalog())
    asyncio.run(rig.selector.close())
    assert rig.embedder.closed


def test_the_record_of_a_search_reads_back() -> None:
    reply = heard(ready(Rig(catalog())))
    written = json.loads(encode(search_json(reply.search)))
    assert written["embeddings"] == "used"
    assert written["evidence"]["likeness"] > 0.0
