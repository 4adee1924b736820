"""Runs that a person with the folder wrote: every hash is right, and values are of other types than
ours.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.archive import Archive
from bundle_router.cli import main
from bundle_router.core.records.call_records import read_record
from bundle_router.core.records.chain import FILES, MAX_LINE, genesis, seal
from bundle_router.core.records.read_model import RunQuery
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values.canonical import digest_of
from bundle_router.errors import CorruptRun
from bundle_router.service.pages.application import pages
from bundle_router.service.pages.views import PageViews
from bundle_router.workbench.run_reader import open_reader
from starlette.testclient import TestClient

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "data" / "runs"
GOLDEN = RECORDED / "0.1.0-first-layout" / "golden"
STATED = {"schema", "type", "run_json", "cached"}
"""Fields whose value nobody reads, or that says what a record is."""
OTHERS: dict[str, tuple[Any, ...]] = {
    "str": (True, 7, 1.5, [], ["x"], {}),
    "int": (True, "7", 1.5, [], {}),
    "float": (True, "7", [], {}),
    "bool": (0, "true", [], {}),
    "list": (True, 7, "x", {}, {"id": "x"}),
    "dict": (True, 7, "x", [], [{}]),
    "NoneType": (),
}
Place = tuple[str | int, ...]


def lines(run: Path) -> list[dict[str, Any]]:
    found = [
        json.loads(line)
        for name in FILES.values()
        for line in (run / name).read_bytes().splitlines()
    ]
    return sorted(found, key=lambda line: line["seq"])


def one_of_each() -> Iterator[dict[str, Any]]:
    """Yield lines that hold all that a record may."""
    every = [line for run in RECORDED.glob("*/*/run.json") for line in lines(run.parent)]
    yield from every
    of_call = {
        "run_id": "r",
        "call_id": "c",
        "decision_id": "d",
        "server": "s",
        "time": "t",
        "arguments": "{}",
    }
    yield of_call | {
        "type": "call.started",
        "seq": 1,
        "tool": "t",
        "key": "k",
        "attempt": 2,
        "writer": "w",
    }
    spent = {"calls": 1, "result_bytes": 2, "elapsed_ms": 1.5, "repeats": 0}
    passed = {
        "method": "prompts/get",
        "outcome": "ok",
        "code": "",
        "result": "x",
        "original_bytes": 1,
        "spent": spent,
    }
    yield of_call | passed | {"type": "request.passed", "seq": 1}
    yield {"type": "sub_run.opened", "seq": 1, "run_id": "r", "sub_run_id": "s", "time": "t"}
    model = {"name": "m", "prompt_version": "p", "key": "k", "cached": False, "attempts": 1, "failure": "timeout",
             "input_tokens": 1, "output_tokens": 1, "cost_usd": 0.1, "elapsed_ms": 1.5, "answer": "x"}  # fmt: skip
    asked = next(line for line in every if line.get("search"))
    yield asked | {
        "model": model,
        "step": asked["step"] | {"labels": [{"name": "a", "value": "b"}], "max_tools": 3},
    }


def places(value: Any, at: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield every value below another, of a list the first."""
    below = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:1])
        if isinstance(value, list)
        else ()
    )
    for name, inner in below:
        if at or name not in STATED | {"seq", "prev", "hash"}:
            yield (*at, name), inner
            yield from places(inner, (*at, name))


def with_value(line: dict[str, Any], at: Place, value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(line)
    holder = changed
    for name in at[:-1]:
        holder = holder[name]
    holder[at[-1]] = value
    return dict(changed)


def test_a_value_of_another_type_is_named_with_its_record_and_field_wherever_it_stands() -> None:
    seen = set()
    for line in one_of_each():
        read_record(line)
        for at, value in places(line):
            if (kind := (line["type"], at, type(value))) in seen:
                continue
            seen.add(kind)
            field = "".join(
                f"[{part}]" if isinstance(part, int) else f".{part}" for part in at
            ).lstrip(".")
            for other in OTHERS[type(value).__name__]:
                with pytest.raises(CorruptRun) as refused:
                    read_record(with_value(line, at, other))
                start = f"record {line['seq']} of run "
                assert str(refused.value).startswith(start)
                assert f" does not fit its type: field {field!r}: Input should be a valid" in str(
                    refused.value
                )
    assert len(seen) > 150


@pytest.fixture
def resealed(tmp_path: Path) -> Any:
    def write(seq: int, at: Place, value: Any) -> None:
        run = shutil.copytree(GOLDEN, tmp_path / "runs" / "golden")
        head, written = genesis("golden"), dict.fromkeys(FILES.values(), b"")
        for line in lines(GOLDEN):
            name = FILES["routing" if line["type"] == "route.decided" else "calls"]
            record = with_value(line, at, value) if line["seq"] == seq else line
            data, head = seal(
                {k: v for k, v in record.items() if k not in ("seq", "prev", "hash")},
                line["seq"],
                head,
            )
            written[name] += data
        for name, data in written.items():
            (run / name).write_bytes(data)
        header = json.loads((run / "run.json").read_bytes())
        (run / "run.json").write_text(
            RunHeader(header | {"head": head}).sealed().to_text(), "utf-8"
        )

    return write


@pytest.mark.parametrize(
    ("seq", "at", "value"),
    [
        (0, ("time",), 7),
        (0, ("justification",), []),
        (0, ("bundles", 0, "id"), 7),
        (0, ("exposure", "tokens"), "many"),
        (0, ("activation", "before"), [{"id": "x", "origin": "mapped", "used": {}}]),
        (0, ("activation", "after"), [{"id": "x", "origin": "mapped", "used": 0, "tools": [[]]}]),
        (2, ("result",), 7),
        (2, ("elapsed_ms",), "long"),
        (2, ("call_id",), ["c"]),
    ],
)
def test_every_verb_tells_in_a_sentence_what_does_not_fit(
    resealed: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    seq: int,
    at: Place,
    value: Any,
) -> None:
    resealed(seq, at, value)
    runs, to = ("--runs", str(tmp_path / "runs")), str(tmp_path / "to")
    assert main(["runs", "verify", *runs]) == 0, "its chain is right"
    why = f"record {seq} of run 'golden' does not fit its type: field"
    decided = ("replay", *runs), ("explain", "--run", "golden", "--bundle", "repo.readonly", *runs)
    for words in (("runs", "show", "golden", *runs), *(decided if seq == 0 else ())):
        capsys.readouterr()
        assert main([*words]) == 5
        assert why in capsys.readouterr().err
    for words in (
        ("runs", "show", "golden", "--seq", str(seq), *runs),
        ("runs", "list", *runs),
        ("runs", "stats", *runs),
        ("runs", "receipt", "golden", str(seq), *runs),
        ("runs", "export", "--to", to, *runs),
        ("learn", *runs),
        ("runs", "publish", "golden", "--to", f"{to}-pages", *runs),
    ):
        assert main([*words]) in (0, 5), words
    step = Step(run_id="golden", workflow="feature", role="planner", step="plan")
    with (
        Router.open(ROOT / "config", runs=tmp_path / "runs", workspace=tmp_path) as router,
        pytest.raises(CorruptRun, match=why),
    ):
        router.route_sync(step)


def test_a_catalog_of_other_types_is_told_in_a_sentence(
    resealed: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = {"bundles": 5}
    revision = digest_of(catalog)
    resealed(0, ("catalog_revision",), revision)
    run = tmp_path / "runs" / "golden"
    (run / "catalog.json").write_text(json.dumps(catalog))
    stated = {
        "catalog_revision": revision,
        "catalogs": [{"revision": revision, "file": "catalog.json"}],
    }
    header = json.loads((run / "run.json").read_bytes())
    (run / "run.json").write_text(RunHeader(header | stated).sealed().to_text(), "utf-8")
    runs = ("--runs", str(tmp_path / "runs"))
    asked = ("explain", "--run", "golden", "--seq", "0", "--bundle", "repo.readonly", *runs)
    for words, status in (
        (asked, 5),
        (("replay", *runs), 5),
        (("runs", "list", *runs), 0),
        (("learn", *runs), 0),
    ):
        capsys.readouterr()
        assert main([*words]) == status, words
        assert "a catalog does not fit its type" in capsys.readouterr().err or not status


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (("step", "constraints"), True),
        (("facts", "unavailable"), 7),
        (("bundles",), 7),
        (("step",), "x"),
    ],
)
def test_one_run_of_other_types_takes_no_other_run_from_the_lists(
    resealed: Any, tmp_path: Path, at: Place, value: Any
) -> None:
    resealed(0, at, value)
    shutil.copytree(RECORDED / "0.1.0-early", tmp_path / "runs", dirs_exist_ok=True)
    names = sorted(path.name for path in (tmp_path / "runs").glob("*/"))
    with closing(open_reader(tmp_path / "runs", config=ROOT / "config")) as reader:
        reader.refresh(now=True)
        listed = {row.run_id: row.problem for row in reader.index.runs(RunQuery()).runs}
    assert sorted(listed) == names
    if listed["golden"]:
        assert (
            f"record 0 of run 'golden' does not fit its type: field '{'.'.join(map(str, at))}'"
            in listed["golden"]
        )
    assert not any(problem for name, problem in listed.items() if name != "golden")


def test_the_overview_stands_where_a_decision_has_no_source(resealed: Any, tmp_path: Path) -> None:
    resealed(0, ("source",), None)
    with closing(open_reader(tmp_path / "runs", config=ROOT / "config")) as reader:
        reader.refresh(now=True)
        assert not reader.index.runs(RunQuery()).runs[0].problem
        assert PageViews(reader).overview({}).status == 200


def test_half_a_character_in_a_record_is_replaced_on_its_page(
    resealed: Any, tmp_path: Path
) -> None:
    resealed(9, ("activation", "before", 0, "origin"), "\ud800")
    with closing(open_reader(tmp_path / "runs", config=ROOT / "config")) as reader:
        reader.refresh(now=True)
        assert TestClient(pages(reader)).get("/runs/golden/9").status_code == 200


def test_a_record_that_names_another_run_is_not_shown_as_this_ones(
    resealed: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resealed(0, ("run_id",), "other")
    assert main(["runs", "show", "golden", "--runs", str(tmp_path / "runs")]) == 5
    assert (
        "record 0 of run 'golden' names another run in its field 'run_id'"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    ("file", "status"), [("run.json", 0), ("catalog.json", 0), ("routing.jsonl", 5)]
)
def test_a_number_that_json_does_not_have_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, status: int, number: str
) -> None:
    path = shutil.copytree(GOLDEN, tmp_path / "runs" / "golden") / file
    path.write_text(path.read_text("utf-8").replace("{", f'{{"x": {number}, ', 1), "utf-8")
    runs = ("--runs", str(tmp_path / "runs"))
    assert main(["runs", "verify", *runs]) == 5
    assert "golden: BROKEN" in capsys.readouterr().out
    assert main(["runs", "list", *runs]) == 0
    assert main(["runs", "show", "golden", "--json", *runs]) == status
    assert main(["runs", "receipt", "golden", "0", *runs]) in (0, 5)
    step = Step(run_id="golden", workflow="feature", role="planner", step="plan")
    if file == "run.json":
        with (
            Router.open(ROOT / "config", runs=tmp_path / "runs", workspace=tmp_path) as router,
            pytest.raises(CorruptRun),
        ):
            router.route_sync(step)


def test_a_text_without_line_ends_is_looked_through_in_pieces(tmp_path: Path) -> None:
    run = shutil.copytree(GOLDEN, tmp_path / "runs" / "golden")
    with (run / FILES["calls"]).open("ab") as file:
        for _ in range(2):
            file.write(b" " * MAX_LINE)
    texts = dict.fromkeys(
        name for name, lines in Archive(tmp_path / "runs").texts("golden") for _ in lines
    )
    longest = max(
        len(line) for _, lines in Archive(tmp_path / "runs").texts("golden") for line in lines
    )
    assert FILES["calls"] in texts
    assert longest == MAX_LINE


def test_holes_of_a_file_are_not_looked_through(tmp_path: Path) -> None:
    run = shutil.copytree(GOLDEN, tmp_path / "runs" / "golden")
    secret = "ghp_" + "0aB1" * 9
    with (run / FILES["calls"]).open("r+b") as file:
        written = file.seek(0, os.SEEK_END)
        file.seek(MAX_LINE)
        file.write(secret.encode())
        file.truncate(MAX_LINE * 2)
    lines = {name: list(lines) for name, lines in Archive(tmp_path / "runs").texts("golden")}[
        FILES["calls"]
    ]
    assert secret in lines[-1]
    assert sum(map(len, lines)) < written + (1 << 20)
