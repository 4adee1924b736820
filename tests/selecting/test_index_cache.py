"""Indexes kept on disk: found again, never trusted blindly, never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bundle_router.adapters.bm25 import LexicalIndex
from bundle_router.adapters.index_cache import KEPT, IndexCache, cache_folder
from bundle_router.core.search.corpus import outline_of, texts_of
from bundle_router.core.search.ranking import Search
from bundle_router.core.search.request import Request
from bundle_router.wiring.searching import MIN_CACHED, make_search

from tests.selecting.catalogs import ANALYZER, SURE, catalog, search_over

REVISION = "sha256:" + "a" * 64


def read(folder: Path) -> str | None:
    file = folder / "text"
    return file.read_text(encoding="utf-8") if file.exists() else None


def write(text: str = "kept") -> object:
    return lambda folder: (folder / "text").write_text(text, encoding="utf-8")


def filled(folder: Path) -> IndexCache:
    cache = IndexCache(folder)
    assert cache.save(REVISION, write())  # type: ignore[arg-type]  # what write_text gives is not looked at
    return cache


def test_what_was_kept_is_found_under_its_revision_only(tmp_path: Path) -> None:
    cache = filled(tmp_path / "made" / "when" / "needed")
    assert cache.load(REVISION, read) == "kept"
    assert cache.load("sha256:" + "b" * 64, read) is None
    assert cache.load("sha256:../" + "b" * 64, read) is None


def test_a_second_writer_leaves_what_the_first_one_kept(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    assert cache.save(REVISION, write("other"))  # type: ignore[arg-type]  # as above
    assert cache.load(REVISION, read) == "kept"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a" * 64], "nothing half written stays"


def test_what_can_not_be_read_makes_room_for_what_can(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    (tmp_path / ("a" * 64) / "text").unlink()
    assert cache.load(REVISION, read) is None
    assert cache.save(REVISION, write("anew"))  # type: ignore[arg-type]  # as above
    assert cache.load(REVISION, read) == "anew"


def test_what_a_killed_writer_left_goes_after_a_while(tmp_path: Path) -> None:
    old, new = tmp_path / ".new-old", tmp_path / ".new-new"
    for half in (old, new):
        half.mkdir(parents=True)
    os.utime(old, (0, 0))
    filled(tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_writer_that_fails_keeps_nothing_and_raises_nothing(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        (folder / "text").write_text("half", encoding="utf-8")
        raise OSError(28, "No space left on device")

    cache = IndexCache(tmp_path)
    assert not cache.save(REVISION, full)
    assert cache.load(REVISION, read) is None
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for folder in (tmp_path / "file" / "below", None):
        cache = IndexCache(folder)
        assert not cache.save(REVISION, write())  # type: ignore[arg-type]  # as above
        assert cache.load(REVISION, read) is None


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_folder_that_others_may_write_is_not_read(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "index"
    cache = filled(folder)
    folder.chmod(mode)
    assert cache.load(REVISION, read) is None
    folder.chmod(0o700)
    (folder / ("a" * 64)).chmod(mode)
    assert cache.load(REVISION, read) is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    filled(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert IndexCache(tmp_path / "link").load(REVISION, read) is None


def test_the_newest_stay(tmp_path: Path) -> None:
    cache = IndexCache(tmp_path)
    for n in range(KEPT + 3):
        assert cache.save(f"sha256:{n:064d}", write())  # type: ignore[arg-type]  # as above
        os.utime(tmp_path / f"{n:064d}", (n, n))
    kept = {int(entry.name) for entry in tmp_path.iterdir()}
    assert len(kept) == KEPT
    assert max(kept) == KEPT + 2


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/home/x"}, "/cache/bundle-router/index"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/x"}, "/home/x/.cache/bundle-router/index"),
        ({"HOME": "/home/x"}, "/home/x/.cache/bundle-router/index"),
        ({}, None),
    ],
)
def test_it_lies_where_caches_belong(
    variables: dict[str, str], folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == (Path(folder) if folder else None)


def test_a_kept_index_ranks_as_the_one_it_was_kept_from(tmp_path: Path) -> None:
    fresh = search_over(catalog())
    texts = texts_of(catalog())
    index = LexicalIndex.build(fresh.corpus.documents, revision=REVISION)
    cache = IndexCache(tmp_path)
    assert cache.save(REVISION, index.save)
    kept = cache.load(REVISION, lambda folder: LexicalIndex.load(folder, revision=REVISION))
    assert kept is not None
    again = Search(kept, outline_of(texts), ANALYZER)
    everything = frozenset(fresh.corpus.members)
    assert again.rank_bundles(Request(SURE), everything) == fresh.rank_bundles(
        Request(SURE), everything
    )


def test_only_large_catalogs_leave_something_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.benchmarks.decisions import catalog_of

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    make_search(catalog())
    assert list(tmp_path.iterdir()) == []
    large = catalog_of(MIN_CACHED // 4, 0)
    first = make_search(large)
    (kept,) = (tmp_path / "bundle-router" / "index").iterdir()
    assert first.index.revision.endswith(kept.name)
    second = make_search(large)
    request, everything = Request("what set 3 is for"), frozenset(large.bundles)
    assert second.corpus.documents == ()
    assert second.rank_bundles(request, everything) == first.rank_bundles(request, everything)
