"""The documentation holds: snippets run, commands parse, links and names exist, lists are
complete.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import sqlite3
import textwrap
import tomllib
from contextlib import closing
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types
from bundle_router.adapters.config_files import read_config
from bundle_router.cli import VERBS, parser
from bundle_router.core.config import from_bytes
from bundle_router.core.values import CODES, FAILURES, OUTCOMES, REASONS, SOURCES
from bundle_router.review import sentences
from bundle_router.review.lint import check
from bundle_router.service.metrics import ServiceMetrics
from bundle_router.wiring.catalogs import local_cards

from tests.benchmarks import claims
from tests.command_line import run
from tests.transcripts import Reader, typed

ROOT = Path(__file__).parent.parent
PAGES = [
    path
    for name in (
        "README.md", "router/README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "router/docs").rglob("*.md"))), "router/deferral/README.md", "config/README.md", "bundles/README.md", "tests/benchmarks/README.md",
        "tests/benchmarks/RESULTS.md", ".github/CONTRIBUTING.md", ".github/SECURITY.md",
    )
    if (path := ROOT / name).is_file()
]  # fmt: skip
README, MAP = ((ROOT / name).read_text("utf-8") for name in ("README.md", "router/README.md"))
TABLES = {
    "servers": "servers", "bundles": "bundles", "routes": "routes", "policies": "policy", "binaries": "policy",
}  # fmt: skip


def blocks(language: str) -> list[tuple[str, str]]:
    """Return (page, text) of every fenced block of a language."""
    fence = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [
        (str(page.relative_to(ROOT)), text)
        for page in PAGES
        for text in fence.findall(page.read_text("utf-8"))
    ]


def commands() -> list[str]:
    """Return every `bundle-router …` command of a shell block or of inline code, without its
    comment.
    """
    lines = [line for _, block in blocks("sh") for line in block.splitlines()]
    lines += [line for page in PAGES for line in typed(page.read_text("utf-8"))]
    lines += [
        code
        for page in PAGES
        for code in re.findall(r"`(bundle-router [^`]+)`", page.read_text("utf-8"))
    ]
    return sorted(
        {line.partition("  #")[0].strip() for line in lines if line.startswith("bundle-router ")}
    )


def inline() -> list[str]:
    """Return every inline code of the pages, fenced blocks left out."""
    texts = (
        re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for page in PAGES
    )
    return sorted({code for text in texts for code in re.findall(r"`([^`\n]+)`", text)})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "README.md").write_text("# x\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_readme_is_short_and_shows_code_early() -> None:
    assert len(README.splitlines()) <= 150
    assert len(MAP.splitlines()) <= 150
    assert README.index("```python") < len("\n".join(README.splitlines()[:32]))


def test_the_first_snippet_does_what_its_comments_say(project: Path) -> None:
    code = next(text for page, text in blocks("python") if page == "README.md")
    code = code.replace(
        "decision.bundle_ids  ",
        "assert decision.bundle_ids == ['repo.readonly', 'workspace.exec']  ",
    )
    code = code.replace("result.text  ", "assert result.text  ")
    scope: dict[str, object] = {}
    exec("async def snippet():\n" + textwrap.indent(code, "    "), scope)
    asyncio.run(scope["snippet"]())  # type: ignore[operator]  # made one line above
    assert (project / "runs" / "r-42" / "routing.jsonl").exists()


@pytest.mark.parametrize(("page", "code"), blocks("python")[1:])
def test_every_other_python_snippet_runs(page: str, code: str, project: Path) -> None:
    exec(compile(code, page, "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if typed(page.read_text("utf-8"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_that_shows_what_is_printed_shows_what_is_printed(
    page: Path, tmp_path: Path
) -> None:
    Reader(tmp_path).follow(page.read_text("utf-8"))


def test_every_page_for_a_start_shows_what_is_printed() -> None:
    pages = (ROOT / "router/docs/start").glob("*.md")
    assert {page.stem for page in pages if typed(page.read_text("utf-8"))} == {
        "editor",
        "engine",
        "reviewer",
    }


@pytest.mark.parametrize(("page", "text"), blocks("toml"))
def test_every_piece_of_config_is_accepted(page: str, text: str) -> None:
    name = f"{TABLES.get(next(iter(tomllib.loads(text))), 'router')}.toml"
    files = [*read_config(None), from_bytes(name, f"{page}: {name}", text.encode(), "project")]
    _, cards = local_cards()
    assert [problem for problem in check(files, cards=cards) if problem.level == "error"] == []


def test_the_queries_of_the_notebook_find_something_in_the_runs_of_the_demo(
    tmp_path: Path,
) -> None:
    run(tmp_path, "demo")
    run(tmp_path, "runs", "index")
    with closing(sqlite3.connect(tmp_path / "runs" / "index.sqlite")) as index:
        for table in ("decisions", "bundles", "exposures", "calls"):
            index.execute(f"CREATE TEMP VIEW {table} AS SELECT * FROM bundle_router_{table}")
        rows = [len(index.execute(query).fetchall()) for _, query in blocks("sql")]
    assert len(rows) == 3
    assert min(rows) >= 5


def test_every_series_of_the_alert_rules_is_one_of_the_services() -> None:
    page = (ROOT / "router/docs/how-to/production.md").read_text("utf-8")
    named = set(re.findall(r"\bbundle_router_(\w+)", page))
    text = ServiceMetrics(lambda: 0.0).text().decode()
    shown = set(re.findall(r"^# TYPE bundle_router_(\w+)", text, re.MULTILINE))
    known = {name + end for name in shown for end in ("", "_bucket")}
    assert named
    assert named <= known


def test_the_container_file_copies_what_is_there_and_starts_a_service_that_exists() -> None:
    text = (ROOT / ".github/deploy/Containerfile").read_text("utf-8")
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)", text, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    included = build["targets"]["wheel"]["force-include"]
    assert [source for source in included if not source.startswith(tuple(copied))] == []
    words = json.loads(
        re.findall(r"^CMD (\[.*?\])", text, re.MULTILINE | re.DOTALL)[0].replace("\\", "")
    )
    assert parser(("serve",)).parse_args(words).without_tls


def test_the_unit_starts_a_service_that_exists() -> None:
    text = (ROOT / ".github/deploy/bundle-router.service").read_text("utf-8").replace("\\\n", "")
    (command,) = re.findall(r"^ExecStart=\S+/bundle-router (.*)", text, re.MULTILINE)
    assert parser(("serve",)).parse_args(shlex.split(command)).port == 8765


def test_the_deployment_starts_a_service_that_exists_and_mounts_what_it_names() -> None:
    (deployment,) = [
        value
        for _, text in blocks("yaml")
        if isinstance(value := yaml.safe_load(text), dict) and value.get("kind") == "Deployment"
    ]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    words = parser(("serve",)).parse_args(container["args"])
    mounts = {row["mountPath"]: row["name"] for row in container["volumeMounts"]}
    assert set(mounts.values()) == {row["name"] for row in pod["volumes"]}
    for path in (words.config, words.tokens, words.runs, words.workspace):
        assert any(str(path).startswith(mount) for mount in mounts), path
    assert str(words.runs) not in mounts  # the folder of runs is private: the volume lies above it


@pytest.mark.parametrize(("page", "text"), blocks("yaml"))
def test_every_piece_of_yaml_can_be_read(page: str, text: str) -> None:
    assert yaml.safe_load(text)


@pytest.mark.parametrize("command", commands())
def test_every_command_can_be_typed(command: str) -> None:
    alone = re.split(" && | > ", re.sub(r"\$?\b(RUN|SEQ)\b", "3", command))[0]
    words = shlex.split(alone)[1:]
    assert words[0] in VERBS
    if len(words) > 1:  # a verb alone is its name, in prose
        parser((words[0],)).parse_args([word for word in words if word not in ("…", "...")])


def test_every_verb_is_shown() -> None:
    assert set(VERBS) - {command.split()[1] for command in commands()} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = [
        link.partition("#")[0]
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text("utf-8"))
    ]
    assert [link for link in targets if link and not (page.parent / link).exists()] == []


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_heading_finds_it(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*\.md|)#([^)]+)\)", page.read_text("utf-8"))
    missing = [
        (target, anchor)
        for target, anchor in links
        if anchor not in anchors(page.parent / target if target else page)
    ]
    assert missing == []


@pytest.mark.parametrize(
    "name", [code for code in inline() if re.fullmatch(r"bundle_router(\.\w+)+", code)]
)
def test_every_python_name_exists(name: str) -> None:
    module, _, last = name.rpartition(".")
    try:
        import_module(name)
    except ModuleNotFoundError:
        assert hasattr(import_module(module), last)


@pytest.mark.parametrize(
    "name",
    [code for code in inline() if re.match(r"(tests|router|config|bundles|\.ci)/[\w./-]+$", code)],
)
def test_every_path_exists(name: str) -> None:
    assert (ROOT / name).exists()


SECURITY = {
    page: page.read_text("utf-8")
    for page in sorted((ROOT / "router/docs/security").glob("*.md"))
    if page.stem not in ("README", "protected-files", "credentials")
}
"""The pages of promises, one for each area."""
PROMISES = [
    (page.stem, *section.split("\n", 1))
    for page, text in SECURITY.items()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    if "**Not promised:**" in section
]
"""Page, title and text of each promise."""


@pytest.mark.parametrize(
    ("page", "title", "text"), PROMISES, ids=lambda text: text.partition("\n")[0][:60]
)
def test_every_promise_names_tests_that_exist_where_they_were_run_and_what_it_does_not_cover(
    page: str, title: str, text: str
) -> None:
    promise, held, rest = text.partition("- **Held by** ")
    tests, not_held, not_promised = rest.partition("- **Not promised:**")
    assert promise.strip()
    assert held
    assert not_held
    named = re.findall(r"`([\w./]+\.py)`", tests)
    for name in named:
        (found,) = ROOT.glob(name if "/" in name else f"tests/**/{name}")
        assert re.search(r"^(async )?def test_", found.read_text("utf-8"), re.MULTILINE), name
    assert named
    assert not_promised.strip()


def test_every_page_of_promises_says_where_they_were_run() -> None:
    usual = "Linux 6.18, as root and as an ordinary user, unless it says otherwise"
    assert [page.stem for page, text in SECURITY.items() if usual not in text] == []
    assert {page for page, *_ in PROMISES} == {page.stem for page in SECURITY}
    assert len(PROMISES) == 78


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if page.is_relative_to(ROOT / "router/docs")
        and "This page is generated" not in page.read_text("utf-8")
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_no_cell_of_a_table_that_is_written_by_hand_has_more_than_forty_words(page: Path) -> None:
    rows = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert [cell for cell in cells if len(cell.split()) > 40] == []


def test_every_attack_that_was_tried_has_a_place_among_the_promises() -> None:
    text = "\n".join(SECURITY.values())
    named = set(re.findall(r"\b(?:B\d|[SF]-\d\d)\b", text))
    assert named == {
        *(f"B{number}" for number in range(1, 7)),
        *(f"S-{number:02}" for number in range(1, 40)),
        "B9",
        "S-40",
        "S-41",
        "S-42",
        "S-43",
        "S-44",
        "S-45",
        "S-46",
        "S-47",
        "S-48",
        "F-19",
        "F-28",
    }


def test_a_sentence_is_behind_every_closed_word() -> None:
    assert tuple(sentences.CODE_SENTENCES) == CODES
    assert tuple(sentences.REASONS) == REASONS
    assert tuple(sentences.SOURCES) == SOURCES
    assert set(sentences.OUTCOMES) == set(OUTCOMES)
    assert set(sentences.FAILURES) == set(FAILURES)


def test_the_table_of_claims_is_that_of_the_program_which_measures_them() -> None:
    text = (ROOT / "router/docs/explanation/claims.md").read_text("utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    head, *measured = rows
    assert tuple(head) == claims.COLUMNS
    assert [(row[0], row[3].strip("`")) for row in measured] == [
        (claim.claim, claim.command) for claim in claims.CLAIMS
    ]
    assert 8 <= len(measured) <= 12
    assert all(re.search(r"\d", row[1]) and row[2] and row[4].isdigit() for row in measured)
    for claim in claims.CLAIMS:
        assert (ROOT / claim.command.split()[0]).is_file()


def test_a_figure_is_read_from_the_line_that_has_it() -> None:
    output = (
        "stdio   1   0.30   0.82   0.25   0.63   0.82\nstdio  16  1,026.5  0.60  0.11  0.28  0.48\n"
    )
    assert claims.numbers_of(output, "stdio")[:2] == [1, 0.30]
    measured = claims.CLAIMS[7].read(output)
    assert measured.figure == "0.48 × the CPU, 0.11 ms with 16 callers"
    with pytest.raises(ValueError, match="no line begins with 'FTS5'"):
        claims.numbers_of(output, "FTS5")


def test_the_first_block_of_the_readme_is_the_whole_set_up() -> None:
    """`.ci/run` runs these two commands on a clean checkout."""
    block = (ROOT / "README.md").read_text(encoding="utf-8").split("```sh\n")[1].split("```")[0]
    assert [line.split()[0] for line in block.splitlines()] == [".ci/demo", ".ci/test"]
