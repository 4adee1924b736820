"""A step narrowed to a folder stays in it, also when it is swapped, moved or removed; hidden folders stay shut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bundles.repo.beneath import Opener, best_opener, open_by_openat2, open_by_walk
from bundles.repo.confinement import Root
from router.errors import ToolFailure

SECRET = "outside: must never be read\n"


@pytest.fixture(params=["openat2", "walk"])
def opener(request: pytest.FixtureRequest) -> Opener:
    if request.param == "walk":
        return open_by_walk
    if best_opener() is not open_by_openat2:
        pytest.skip("this kernel has no openat2, or a filter forbids it")
    return open_by_openat2


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A workspace with a folder `job/part` to narrow to, look-alikes beside it, and what must not be read outside."""
    top = tmp_path / "top"
    (top / "job" / "part" / "deep").mkdir(parents=True)
    (top / "job" / "part" / "inside.txt").write_text("inside\n")
    for folder in (top / "job", top / "job" / "part-evil", top / "job" / "par", tmp_path / "elsewhere"):
        folder.mkdir(exist_ok=True)
        (folder / "inside.txt").write_text(SECRET)
    (top / "job" / "link").symlink_to("part")
    (top / "alias").symlink_to("job")
    return top


def code_of(top: Path, within: str, path: str, opener: Opener) -> str:
    with pytest.raises(ToolFailure) as refused, Root(str(top), within, opener=opener) as root:
        root.read(path, max_bytes=1000)
    return refused.value.code


def test_paths_start_from_the_folder_and_end_beneath_it(tree: Path, opener: Opener) -> None:
    with Root(str(tree), "job/part", opener=opener) as root:
        assert root.read("inside.txt", max_bytes=100) == b"inside\n"
        assert root.read("deep/../inside.txt", max_bytes=100) == b"inside\n"
        assert root.read(f"{tree}/job/part/inside.txt", max_bytes=100) == b"inside\n"


@pytest.mark.parametrize("path", ["../inside.txt", "../part-evil/inside.txt", "deep/../../par/inside.txt"])
def test_what_lies_beside_it_is_out_of_reach(tree: Path, opener: Opener, path: str) -> None:
    assert code_of(tree, "job/part", path, opener) == "outside_workspace"


@pytest.mark.parametrize("name", ["job", "job/part-evil", "job/par", "elsewhere", "top/job/part/../inside.txt"])
def test_an_absolute_path_beside_it_is_refused(tree: Path, opener: Opener, name: str) -> None:
    assert code_of(tree, "job/part", f"{tree}/{name}/inside.txt", opener) == "outside_workspace"


@pytest.mark.parametrize(
    "within", ["job/link", "alias/part", "job/gone", "job/part/inside.txt", "..", "job/../job/part", "/", "job/p\0"]
)
def test_a_folder_reached_by_a_link_or_not_at_all_is_unavailable(tree: Path, opener: Opener, within: str) -> None:
    assert code_of(tree, within, "inside.txt", opener) == "workspace_unavailable"


def swap_for_link(tree: Path) -> None:
    (tree / "job" / "part").rename(tree / "kept")
    (tree / "job" / "part").symlink_to("../../elsewhere")


def swap_parent_for_link(tree: Path) -> None:
    (tree / "job").rename(tree / "kept")
    (tree / "job").symlink_to("kept")


def move_out(tree: Path) -> None:
    (tree / "job" / "part").rename(tree.parent / "moved")


def remove(tree: Path) -> None:
    (tree / "job" / "part").rename(tree.parent / "elsewhere" / "part")
    (tree / "job" / "part").write_text("a file now")


@pytest.mark.parametrize("change", [swap_for_link, swap_parent_for_link, move_out, remove])
def test_a_folder_changed_between_two_calls_is_unavailable(tree: Path, opener: Opener, change: object) -> None:
    with Root(str(tree), "job/part", opener=opener) as root:
        assert root.read("inside.txt", max_bytes=100) == b"inside\n"
    change(tree)  # type: ignore[operator]  # the four functions above
    assert code_of(tree, "job/part", "inside.txt", opener) == "workspace_unavailable"


def test_a_folder_swapped_during_a_call_is_still_the_one_that_was_opened(tree: Path, opener: Opener) -> None:
    with Root(str(tree), "job/part", opener=opener) as root:
        swap_for_link(tree)
        assert root.read("inside.txt", max_bytes=100) == b"inside\n"
        assert [entry.name for entry in root.scandir(".", limit=10)] == ["deep", "inside.txt"]
        assert (Path(root.place) / "inside.txt").read_text() == "inside\n"


@contextmanager
def swapping(tree: Path) -> Iterator[None]:
    """Swaps the folder for a link that leads outside, and back, until the block ends."""
    part, kept, link = tree / "job" / "part", tree / "job" / "kept", tree / "job" / "way-out"
    link.symlink_to("../../elsewhere")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            part.rename(kept)
            link.rename(part)
            part.rename(link)
            kept.rename(part)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_folder_swapped_all_the_time_never_leads_outside(tree: Path, opener: Opener) -> None:
    seen = {"inside\n": 0, "workspace_unavailable": 0}
    with swapping(tree):
        for _ in range(50_000):
            try:
                with Root(str(tree), "job/part", opener=opener) as root:
                    text = root.read("inside.txt", max_bytes=100).decode()
            except ToolFailure as failure:
                text = failure.code
            seen[text] += 1  # a KeyError here is the secret, or a refusal for another reason
            if sum(seen.values()) >= 2_000 and min(seen.values()) > 20:
                break
    assert min(seen.values()) > 0, f"the race was never met: {seen}"


# --- hidden folders -------------------------------------------------------------------------------------------------


@pytest.fixture
def hiding(tree: Path) -> Iterator[Root]:
    (tree / "runs" / "r1").mkdir(parents=True)
    (tree / "runs" / "r1" / "routing.jsonl").write_text(SECRET)
    (tree / "runs-old").mkdir()
    (tree / "runs-old" / "notes.txt").write_text("mine\n")
    (tree / "to-runs").symlink_to("runs")
    (tree / "to-record").symlink_to("runs/r1/routing.jsonl")
    (tree / "job" / "up").symlink_to("../runs/r1")
    with Root(str(tree), hidden=[f"{tree}/runs", f"{tree}/not-there"]) as root:
        yield root


@pytest.mark.parametrize(
    "path",
    [
        "runs/r1/routing.jsonl",
        "runs",
        "./runs/../runs/r1/routing.jsonl",
        "job/../runs/r1/routing.jsonl",
        "to-runs/r1/routing.jsonl",
        "to-runs",
        "to-record",
        "job/up/routing.jsonl",
        "runs/../job/inside.txt",
    ],
)
def test_a_hidden_folder_is_not_entered_by_any_name(hiding: Root, path: str) -> None:
    for use in (lambda: hiding.read(path, max_bytes=1000), lambda: hiding.scandir(path, limit=10)):
        with pytest.raises(ToolFailure) as refused:
            use()
        assert refused.value.code == "hidden"


def test_a_hidden_folder_is_left_out_of_a_listing_and_counted(hiding: Root) -> None:
    names = [entry.name for entry in hiding.scandir(".", limit=100)]
    assert names == ["alias", "job", "runs-old", "to-record", "to-runs"]
    assert len(hiding.met) == 1
    assert hiding.read("runs-old/notes.txt", max_bytes=100) == b"mine\n"


def test_a_hidden_folder_stays_hidden_under_a_new_name(tree: Path, hiding: Root) -> None:
    (tree / "runs").rename(tree / "innocent")
    with pytest.raises(ToolFailure, match="router's own records"):
        hiding.read("innocent/r1/routing.jsonl", max_bytes=1000)
    assert "innocent" not in [entry.name for entry in hiding.scandir(".", limit=100)]


@pytest.mark.parametrize("within", ["runs", "runs/r1"])
def test_no_step_is_narrowed_to_a_hidden_folder(tree: Path, hiding: Root, within: str) -> None:
    for opener in (open_by_walk, best_opener()):
        with pytest.raises(ToolFailure) as refused:
            Root(str(tree), within, hidden=[f"{tree}/runs"], opener=opener)
        assert refused.value.code == "workspace_unavailable"
        assert "hidden" in refused.value.message


def test_no_descriptor_stays_open(tree: Path, hiding: Root, opener: Opener) -> None:
    before = open_descriptors()
    for path in ("runs/r1", "to-record", "job/part"):
        for within in (".", "job/part", "job/link", "runs"):
            try:
                with Root(str(tree), within, hidden=[f"{tree}/runs"], opener=opener) as root:
                    root.scandir(path, limit=10)
            except ToolFailure:
                pass
    assert open_descriptors() == before


def open_descriptors() -> int:
    return sum(Path(f"/dev/fd/{number}").exists() for number in range(256))
