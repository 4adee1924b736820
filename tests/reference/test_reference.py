"""The generated pages and schemas are those of this version; each page has an entry for all that there
is and for nothing else, and each record that is written fits its schema.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, get_args

import bundle_router
import pytest
from bundle_router import Step, errors
from bundle_router.cli import VERBS, main, parser
from bundle_router.core.catalog import CallLimits
from bundle_router.core.config.written_forms import FILES, schema
from bundle_router.core.records.call_records import SubRunOpened
from bundle_router.core.records.field_types import FieldForm
from bundle_router.core.records.heads import StoredHead
from bundle_router.core.records.receipt import make_receipt
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.core.records.table_columns import TABLES
from bundle_router.core.records.written_records import RECORDS
from bundle_router.core.values import CODES, FAILURES, OUTCOMES, REASONS, SOURCES
from bundle_router.core.values.words import EmbeddingUse, Recall, Verdict
from bundle_router.errors import (
    STORAGE_FAULTS,
    STORAGE_KINDS,
    ConfigError,
    CorruptRun,
    RequestError,
    RouterError,
)
from bundle_router.review import sentences
from bundle_router.service.api.openapi import openapi_document

from tests import schema_check
from tests.public_names import public_objects
from tests.reference.codes_page import EXIT_STATUSES, http_codes, rules, sections
from tests.reference.commands_page import verbs_of
from tests.reference.examples import examples, paths
from tests.reference.markdown import entries, headings
from tests.reference.pages import FOLDER, PAGES
from tests.reference.record_schemas import SCHEMAS, schema_texts
from tests.reference.records_page import unit_of
from tests.schema_check import misfits_of

HOME = Path(bundle_router.__file__).parent
RECORDED = Path(__file__).parents[1] / "data" / "runs" / "0.1.0-first-layout"


def stored(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_each_generated_page_is_that_of_this_version(name: str) -> None:
    assert stored(name) == PAGES[name](), "run .ci/generate"


# --- Python ---------------------------------------------------------------------------------------


def test_every_public_class_and_function_has_one_entry() -> None:
    public = Counter(name.rpartition(".")[2] for name in public_objects())
    assert Counter(entries(stored("python.md"), level=3)) == public


# --- commands -------------------------------------------------------------------------------------


def every_verb(parent: argparse.ArgumentParser, words: str = "") -> Iterator[tuple[str, Any]]:
    for name, verb in verbs_of(parent):
        yield f"{words}{name}", verb
        yield from every_verb(verb, f"{words}{name} ")


def test_every_verb_has_one_entry() -> None:
    shown = [text for level, text in headings(stored("commands.md")) if level > 1]
    assert shown == [words for words, _ in every_verb(parser())]
    assert {words for words in shown if " " not in words} == set(VERBS)


@pytest.mark.parametrize(
    ("words", "verb"), list(every_verb(parser())), ids=lambda value: str(value)[:30]
)
def test_every_argument_says_what_it_is(words: str, verb: argparse.ArgumentParser) -> None:
    silent = [
        action.dest
        for action in verb._actions
        if not action.help and not isinstance(action, argparse._SubParsersAction)
    ]
    assert silent == [], words


# --- tables ---------------------------------------------------------------------------------------


def test_every_column_has_one_entry_with_a_sentence() -> None:
    columns = [(name, spec) for table in TABLES.values() for name, spec in table.items()]
    assert entries(stored("tables.md")) == [name for name, _ in columns]
    assert [name for name, spec in columns if not spec.meaning.endswith(".")] == []


# --- config ---------------------------------------------------------------------------------------


def test_every_key_has_an_entry_with_its_meaning() -> None:
    text = stored("config.md")
    keys = set()
    for name in FILES:
        whole = schema(name)
        for node in (whole, *whole["definitions"].values()):
            for key, row in node["properties"].items():
                if node is whole:
                    assert f"[{key}" in text
                else:
                    keys.add(key)
                    assert f"| `{key}` |" in text
                assert row["description"].replace("|", "\\|") in text
    assert set(entries(text)) == keys


# --- errors ---------------------------------------------------------------------------------------


def test_every_error_has_one_entry_and_a_remedy_of_its_own() -> None:
    assert sorted(entries(stored("errors.md"), level=2)) == sorted({*errors.__all__} - {"Problem"})
    for name in {*errors.__all__} - {"Problem"}:
        assert "remedy" in vars(getattr(errors, name)), name


def test_every_kind_of_storage_error_has_an_entry() -> None:
    raised = {
        word.value
        for node in calls("StorageError", "storage_error", "failed")
        for word in (node.args[2:3] if name_of(node) == "failed" else keywords(node, "kind"))
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    }
    assert raised <= set(STORAGE_KINDS)
    assert {kind for kind, _ in STORAGE_FAULTS.values()} <= set(STORAGE_KINDS)
    assert entries(stored("errors.md")) == list(STORAGE_KINDS)


# --- records --------------------------------------------------------------------------------------


def test_every_field_of_every_record_has_one_entry() -> None:
    shown = stored("records.md").split("\n## ")[1:]
    assert [section.partition("\n")[0] for section in shown] == [record.type for record in RECORDS]
    for record, section in zip(RECORDS, shown, strict=True):
        assert entries(section) == [path for path, _ in paths(record.form())]


def test_an_example_is_of_a_field_that_there_is() -> None:
    for record in RECORDS:
        known = examples()[record.type]
        assert known.keys() <= {path for path, _ in paths(record.form())}
        assert len(known) >= 5


@pytest.mark.parametrize(
    ("name", "form", "unit"),
    [
        ("elapsed_ms", float, "ms"),
        ("step.max_tokens", (int, None), "tokens"),
        ("spent.result_bytes", int, "bytes"),
        ("time", str, "UTC"),
        ("model.cost_usd", float, "US dollars"),
        ("seq", int, ""),
        ("bundles", [str], ""),
    ],
)
def test_a_unit_stands_beside_what_has_one(name: str, form: Any, unit: str) -> None:
    assert unit_of(name, FieldForm(form, "")) == unit


# --- schemas of records ------------------------------------------------------------------------


def test_the_stored_schemas_are_those_of_the_records() -> None:
    stored = {path.name: path.read_text("utf-8") for path in SCHEMAS.iterdir()}
    assert stored == schema_texts(), "run .ci/generate"


def lines_of(name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(RECORDED.glob(f"*/{name}"))
        for line in path.read_text("utf-8").splitlines()
    ]


def test_every_record_that_an_earlier_version_wrote_fits_its_schema() -> None:
    records = [*lines_of("routing.jsonl"), *lines_of("tool-calls.jsonl")]
    assert {record["type"] for record in records} == {
        "route.decided",
        "call.started",
        "call.finished",
    }
    headers = [json.loads(path.read_text("utf-8")) for path in RECORDED.glob("*/run.json")]
    assert len(headers) == 3
    misfits = [misfits_of(record["type"], record) for record in records]
    misfits += [misfits_of("run", header) for header in headers]
    assert [found for found in misfits if found] == []


def test_every_catalog_of_the_config_cases_fits_its_schema() -> None:
    data = RECORDED.parents[1]
    files = [*data.glob("config/*/catalog.json"), *RECORDED.glob("*/catalog.json")]
    assert data / "config" / "every-key" / "catalog.json" in files
    misfits = [misfits_of("catalog", json.loads(path.read_text("utf-8"))) for path in files]
    assert [found for found in misfits if found] == []


def test_what_is_written_beside_the_log_fits_its_schema() -> None:
    label = StepLabel(decision_id="r.ab.0", needed=("repo.readonly",), by="ann", time="now")
    assert misfits_of("label", label.model_dump(mode="json", by_alias=True)) == []
    head = StoredHead("r", 1, 2, "sha256:0").sign(b"key")
    assert misfits_of("head", json.loads(head.to_line())) == []
    line = (RECORDED / "golden" / "routing.jsonl").read_text("utf-8").splitlines()[0]
    assert misfits_of("receipt", make_receipt(RunHeader({}), [line], {}, "sha256:0")) == []


@pytest.mark.parametrize(
    ("changed", "misfit"),
    [
        ({"added": 1}, "Additional properties are not allowed ('added' was unexpected)"),
        ({"sub_run_id": 5}, '5 is not of type "string"'),
        ({"type": "sub_run.closed"}, '"sub_run.closed" is not one of'),
    ],
)
def test_a_record_with_a_field_that_its_schema_does_not_have_is_found(
    changed: dict[str, Any], misfit: str
) -> None:
    record = SubRunOpened(run_id="r", sub_run_id="s", time="now").to_json()
    record |= {"seq": 3, "prev": "sha256:0", "hash": "sha256:1"}
    assert misfits_of("sub_run.opened", record) == []
    (found,) = misfits_of("sub_run.opened", record | changed)
    assert misfit in found


def test_each_record_that_a_test_writes_is_checked() -> None:
    wrong: Any = 5
    SubRunOpened(run_id=wrong, sub_run_id="s", time="now").to_json()
    RunHeader({"bundle_router": "0.1.0", "run_id": "r", "schema": "other"}).sealed()
    misfits = schema_check.MISFITS.copy()
    schema_check.MISFITS.clear()
    assert misfits[0] == 'sub_run.opened: run_id: 5 is not of type "string"'
    assert any(text.startswith("run: schema:") for text in misfits[1:])


def test_the_command_prints_a_schema_or_names_the_types(
    capsys: pytest.CaptureFixture[str],
) -> None:
    types = [record.type for record in RECORDS]
    assert main(["runs", "schema", "route.decided"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["left_out"]["description"] == (
        "Bundles and tools that are not shown, each with the first test it failed."
    )
    assert main(["runs", "schema"]) == 0
    listed = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in listed] == types
    assert main(["runs", "schema", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == types
    assert main(["runs", "schema", "call.strated"]) == 3
    said = capsys.readouterr().err
    assert "did you mean 'call.started'?" in said
    assert ", ".join(types) in said


def test_the_step_that_is_recorded_has_every_field_of_a_step() -> None:
    schema = next(record for record in RECORDS if record.type == "route.decided").form()
    beside = {"run_id", "principal", "key", "branch", "parent_decision_id", "fixed_list"}
    beside |= {"approvals"}
    assert {*schema["step"].form, *beside} == {*Step.model_fields}
    assert beside <= schema.keys()


# --- HTTP -----------------------------------------------------------------------------------------


def test_every_route_and_value_of_the_service_has_one_entry() -> None:
    document = openapi_document()
    routes = [
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
    ]
    assert sorted(entries(stored("http.md"), level=3)) == sorted(
        [*routes, *document["components"]["schemas"]]
    )


# --- codes ----------------------------------------------------------------------------------------


def name_of(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def keywords(call: ast.Call, name: str) -> list[ast.expr]:
    return [word.value for word in call.keywords if word.arg == name]


@cache
def every_call() -> dict[str, list[ast.Call]]:
    """Return the calls in the package, by the names of the functions."""
    found: dict[str, list[ast.Call]] = {}
    for path in HOME.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                found.setdefault(name_of(node), []).append(node)
    return found


def calls(*names: str) -> list[ast.Call]:
    """Return the calls of the functions with these names in the package."""
    return [call for name in names for call in every_call()[name]]


def texts(nodes: list[ast.expr]) -> set[str]:
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_closed_word_has_an_entry_in_its_order() -> None:
    found = {title: list(words) for title, _, words in sections()}
    assert found["Reasons"] == list(REASONS)
    assert found["Left out"] == list(CODES)
    assert found["Sources"] == list(SOURCES)
    assert found["Failures"] == list(FAILURES)
    assert found["Outcomes"] == list(OUTCOMES)
    assert found["Verdicts"] == list(get_args(Verdict))
    embedding_words = get_args(get_args(EmbeddingUse)[0])
    assert found["Recall"] == list(dict.fromkeys((*embedding_words, *get_args(Recall))))
    page = stored("codes.md").split("\n## ")[1:]
    assert [(part.partition("\n")[0], entries(part)) for part in page] == list(found.items())


def test_every_code_of_a_call_has_a_sentence() -> None:
    given = set[str]()
    for call in calls("ToolFailure"):
        given |= texts(keywords(call, "code"))
    for call in calls("CallOutcome", "RawResult", "ProgramEnd", "ServerReply"):
        is_raw = name_of(call) in ("RawResult", "ProgramEnd")
        given |= texts(call.args[2:3] if is_raw else call.args[1:2])
        given |= texts(keywords(call, "code"))
    limits = {one.name for one in fields(CallLimits)}
    spent = {name for name in limits if name.endswith(("_per_step", "_per_run", "_per_tree"))}
    known = {*sentences.CALL_CODES, *CODES}
    assert given - {""} - known == set()
    assert {*spent, "repeated_calls"} <= known


def test_every_rule_of_a_check_has_a_sentence() -> None:
    given = set[str]()
    for call in calls("Problem"):
        given |= texts(call.args[6:7]) | texts(keywords(call, "rule"))
    for call in calls("add"):
        given |= texts(keywords(call, "rule"))
    assert given >= {"stray-file", "unpinned-tool", "pin-origin"}
    assert given <= rules().keys()


def test_every_code_of_http_has_a_sentence() -> None:
    found = http_codes()
    given = {word for call in calls("Refusal") for word in texts(call.args[1:2])}
    assert given <= found.keys()
    assert [word for word, said in found.items() if not said.partition(". ")[2]] == []


def test_the_exit_statuses_are_those_of_the_errors() -> None:
    raised = {error.exit_code for error in (ConfigError, RequestError, RouterError, CorruptRun)}
    assert set(EXIT_STATUSES) == {0, 1, *raised}
