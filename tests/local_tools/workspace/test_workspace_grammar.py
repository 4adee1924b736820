"""Which command lines may start: tables of attacks against the shipped rules, and an independent
matcher.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from bundle_router.core.values import BinaryForm, BinaryOption, BinaryRule
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.workspace import grammar
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.profiles import examples

DATA = Path(__file__).parents[2] / "data"
SHIPPED = {
    rule.name: rule
    for rule in (
        BinaryRule(**table)
        for table in tomllib.loads(
            (DATA / "workspace" / "binaries.toml").read_text(encoding="utf-8")
        )["binaries"]
    )
}
PAYLOADS = (
    (DATA / "payloads" / "command_injection.txt")
    .read_text(encoding="utf-8", errors="replace")
    .split("\n")
)


def refused(rule: BinaryRule, *arguments: str) -> grammar.Refused:
    result = grammar.match(rule, arguments)
    assert isinstance(result, grammar.Refused), f"{arguments} was accepted"
    return result


@pytest.mark.parametrize(
    "command",
    [
        "python -m pytest",
        "python -m pytest -q -x tests/test_a.py::test_b[1-a] tests",
        "python -m pytest -k 'not slow' --maxfail=1 --tb=short",
        "python -m unittest discover -s tests -v",
        "python -m unittest -v tests.test_a.Case.test_b",
        "python -m py_compile a.py src/b.py",
        "python -m compileall -q .",
        "git status --short --branch",
        "git diff --no-ext-diff --no-textconv --stat --cached -- src/a.py",
    ],
)
def test_shipped_rules_accept_everyday_commands(command: str) -> None:
    name, *arguments = [part.strip("'") for part in re.findall(r"'[^']*'|\S+", command)]
    assert isinstance(grammar.match(SHIPPED[name], arguments), grammar.Accepted)


@pytest.mark.parametrize(
    ("binary", "arguments", "index", "why"),
    [
        ("git", ["-c", "core.pager=touch x", "status"], 0, "'status' must stand here"),
        ("git", ["status", "-c", "core.pager=touch x"], 1, "not permitted"),
        ("git", ["--exec-path=/tmp", "status"], 0, "'status' must stand here"),
        ("git", ["fetch", "--upload-pack=touch x", "origin"], 0, "must stand here"),
        (
            "git",
            ["diff", "--no-ext-diff", "--no-textconv", "--stat", "--ext-diff"],
            4,
            "not permitted",
        ),
        (
            "git",
            ["diff", "--no-ext-diff", "--no-textconv", "--stat", "--output=x"],
            4,
            "not permitted",
        ),
        (
            "git",
            ["diff", "--no-ext-diff", "--no-textconv", "--stat", "--", "--output=x"],
            5,
            "after '--'",
        ),
        ("git", ["diff", "--no-ext-diff", "--no-textconv", "--stat", "--cach"], 4, "not permitted"),
        ("git", ["status", "--untracked-files", "all"], 1, "not permitted"),
        ("git", ["status", "--untracked-files=all;id"], 1, "must match"),
        ("python", ["-c", "import os"], 0, "'-m' must stand here"),
        ("python", ["-m", "http.server"], 1, "must stand here"),
        ("python", ["-m", "pytest", "-p", "evil"], 2, "not permitted"),
        ("python", ["-m", "pytest", "-pevil"], 2, "not permitted"),
        ("python", ["-m", "pytest", "-c", "/tmp/evil.ini"], 2, "not permitted"),
        ("python", ["-m", "pytest", "--basetemp=.."], 2, "not permitted"),
        ("python", ["-m", "pytest", "-o", "addopts=-pevil"], 2, "not permitted"),
        ("python", ["-m", "pytest", "-k"], 2, "needs a value"),
        ("python", ["-m", "pytest", "-k", "--pdb"], 3, "can't start with '-'"),
        ("python", ["-m", "pytest", "--maxfail", "1"], 2, "not permitted"),
        ("python", ["-m", "pytest", "@more-arguments"], 2, "'@'"),
        ("python", ["-m", "pytest", "/etc/passwd"], 2, "relative to the working folder"),
        ("python", ["-m", "pytest", "../outside"], 2, "relative to the working folder"),
        ("python", ["-m", "pytest", "a/../../outside"], 2, "relative to the working folder"),
        ("python", ["-m", "pytest", "/etc/x.py::test"], 2, "relative to the working folder"),
        (
            "python",
            ["-m", "unittest", "discover", "-s", "../x"],
            4,
            "relative to the working folder",
        ),
        ("python", ["-m", "py_compile", "a.py", "b.txt"], 3, "must match"),
        ("python", ["-m", "pytest", "a; touch x"], 2, "must match"),
        ("python", ["-m", "pytest", "$(touch x)"], 2, "must match"),
        ("python", ["-m", "pytest", "`touch x`"], 2, "must match"),
        ("python", ["-m", "pytest", "a|id"], 2, "must match"),
        ("python", ["-m", "pytest", "a&&id"], 2, "must match"),
        ("python", ["-m", "pytest", "a>b"], 2, "must match"),
        ("python", ["-m", "pytest", "; ".join(["ls"] * 51)], 2, "must match"),
        ("python", ["-m", "pytest", *[";", "ls"] * 51], 2, "must match"),
        ("python", ["-m", "pytest", ""], 2, "empty"),
        ("python", ["-m", "pytest", "a\rb"], 2, "U+000D"),
        ("python", ["-m", "pytest", "a\nb"], 2, "U+000A"),
        ("python", ["-m", "pytest", "a\0b"], 2, "U+0000"),
        ("python", ["-m", "pytest", "a\u00a0b"], 2, "U+00A0"),
        ("python", ["-m", "pytest", "a\u2028b"], 2, "U+2028"),
        ("python", ["-m", "pytest", "a\u202eb"], 2, "U+202E"),
        ("python", ["-m", "pytest", "a\u200bb"], 2, "U+200B"),
        ("python", ["-m", "pytest", "a\x1b[2Jb"], 2, "U+001B"),
        ("python", ["-m", "pytest", "a\ud800"], 2, "U+D800"),
        ("python", ["-m", "pytest", "\u2013q"], 2, "must match"),
        ("python", ["-m", "pytest", "a" * 5000], 2, "bytes"),
        ("python", ["-m", "pytest", *["a"] * 51], 52, "at most 50"),
        ("python", ["-m", "pytest", *["a"] * 1100], 1024, "1102 arguments"),
        ("python", ["-m", "pytest", *["a" * 4000] * 20], 18, "65536 bytes"),
    ],
)
def test_what_no_form_describes_is_refused_with_the_argument_and_the_reason(
    binary: str, arguments: list[str], index: int, why: str
) -> None:
    result = refused(SHIPPED[binary], *arguments)
    assert result.index == index
    assert why in result.why


@pytest.mark.parametrize(
    ("words", "options", "arguments"),
    [
        (("search",), ("-name",), ["search", "-exec", "touch", "x", ";"]),
        (("search",), ("-name",), ["search", "-name", "a", "-execdir", "touch"]),
        (("-cf",), (), ["-cf", "a.tar", "--checkpoint=1", "--checkpoint-action=exec=touch x"]),
        (("-cf",), (), ["-cf", "a.tar", "--to-command=touch x"]),
        (("-cf",), (), ["-cf", "a.tar", "-I", "touch"]),
    ],
)
def test_options_that_start_programs_are_refused_unless_the_form_names_them(
    words: tuple[str, ...], options: tuple[str, ...], arguments: list[str]
) -> None:
    form = BinaryForm(
        words=words,
        options=tuple(BinaryOption(name=name, value=".+") for name in options),
        positionals=".+",
        max_positionals=9,
    )
    refused(BinaryRule(name="find", path="/usr/bin/find", forms=(form,)), *arguments)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_no_injection_payload_is_taken_for_an_option_or_a_word(name: str) -> None:
    rule = SHIPPED[name]
    for payload in PAYLOADS:
        refused(rule, payload)
        for form in rule.forms:
            result = grammar.match(rule, [*form.words, payload])
            if isinstance(result, grammar.Accepted):
                assert re.fullmatch(r"[\w./ \[\]:,=+-]+", payload), f"{payload!r} was accepted"
                assert not payload.startswith(("-", "/", "@"))


def test_argument_files_pass_only_where_a_form_allows_them() -> None:
    form = BinaryForm(positionals="@[a-z.]+", max_positionals=1, at_files=True)
    rule = BinaryRule(name="x", path="/x", forms=(form,))
    assert isinstance(grammar.match(rule, ["@list.txt"]), grammar.Accepted)


def test_the_refusal_comes_from_the_form_that_got_furthest() -> None:
    assert refused(SHIPPED["python"], "-m", "compileall", "-j", "9") == grammar.Refused(
        2, "this option is not permitted"
    )


def test_a_pattern_that_backtracks_elsewhere_is_linear_here() -> None:
    form = BinaryForm(positionals="(a+)+$", max_positionals=1)
    rule = BinaryRule(name="x", path="/x", forms=(form,))
    refused(rule, "a" * 4000 + "!")


def test_a_pattern_that_does_not_compile_is_named_by_the_check_and_refuses_at_the_call() -> None:
    form = BinaryForm(words=("go",), positionals=r"(a)\1", max_positionals=1)
    rule = BinaryRule(name="x", path="/x", forms=(form,))
    assert len(grammar.problems(rule)) == 1
    assert "x go: positionals" in grammar.problems(rule)[0]
    with pytest.raises(ToolFailure, match="not a google-re2 expression") as caught:
        grammar.match(rule, ["go", "aa"])
    assert caught.value.code == "invalid_rule"


def test_shipped_rules_have_no_problems() -> None:
    assert [problem for rule in SHIPPED.values() for problem in grammar.problems(rule)] == []


def test_usage_names_every_form() -> None:
    assert [line.split(" [")[0] for line in grammar.usage(SHIPPED["python"])] == [
        "python -m pytest",
        "python -m unittest discover",
        "python -m unittest",
        "python -m py_compile",
        "python -m compileall",
    ]


# --- an independent matcher: the same small language as one expression over NUL-joined arguments --

SMALL = BinaryRule(
    name="small",
    path="/small",
    forms=(
        BinaryForm(
            words=("run",),
            options=(
                BinaryOption(name="-v"),
                BinaryOption(name="--all"),
                BinaryOption(name="-n", value="[0-9]{1,3}"),
                BinaryOption(name="--name", value="[a-z]+", separate=False),
                BinaryOption(name="--at", value="[a-z/.]+", joined=False, path=True),
            ),
            positionals="[a-z./]+",
            max_positionals=2,
        ),
    ),
)
_PATH = r"(?!/)(?!(?:[^\0]*/)?\.\.(?:/|\0|\Z))[a-z./]+(?=\0|\Z)"
_TOKEN = rf"-v|--all|-n\0?[0-9]{{1,3}}|--name=[a-z]+|--at\0{_PATH}|(?P<positional>{_PATH})"
_LANGUAGE = re.compile(rf"run(?:\0(?:{_TOKEN.replace('(?P<positional>', '(?:')})(?=\0|\Z))*")
_PIECES = re.compile(rf"\0(?:{_TOKEN})(?=\0|\Z)")


def in_language(arguments: list[str]) -> bool:
    joined = "\0".join(arguments)
    if any("\0" in argument for argument in arguments) or not _LANGUAGE.fullmatch(joined):
        return False
    return sum(piece["positional"] is not None for piece in _PIECES.finditer(joined)) <= 2


PIECES = """run -v --all -n -n5 5 1234 --name=a --name --name= --at a/b .. a/.. /a ./a - -- -x --al --all=1 -vn5 @a a;b
            ... -n-5"""
pieces = st.sampled_from([*PIECES.split(), "a\nb", "a\u00a0b", "a b", ""])
nearly = st.lists(pieces | st.text(alphabet="-nva./=5;@ \0\r", max_size=5), max_size=6)


@examples(1500)
@given(st.one_of(nearly, nearly.map(lambda rest: ["run", *rest])))
def test_exactly_the_language_of_an_independent_matcher_is_accepted(arguments: list[str]) -> None:
    assert isinstance(grammar.match(SMALL, arguments), grammar.Accepted) == in_language(arguments)


@given(st.lists(st.text(max_size=8), max_size=5))
def test_whatever_is_accepted_reads_back_as_one_visible_line(arguments: list[str]) -> None:
    anything = BinaryForm(positionals="(?s).*", max_positionals=9, paths=False)
    rule = BinaryRule(name="any", path="/any", forms=(anything,))
    if isinstance(grammar.match(rule, arguments), grammar.Accepted):
        assert "".join(arguments).isprintable()
        assert not any(argument.startswith(("-", "@")) for argument in arguments)


def test_a_double_dash_never_takes_a_value() -> None:
    """With one it would be every long option there is."""
    options = (
        BinaryOption(name="--", value=".*", separate=False),
        BinaryOption(name="--level", value="[0-9]"),
    )
    rule = BinaryRule(name="x", path="/bin/x", forms=(BinaryForm(words=("go",), options=options),))
    assert refused(rule, "go", "--exec=sh").why == "this option is not permitted"
    assert isinstance(grammar.match(rule, ("go", "--level=3")), grammar.Accepted)
    assert grammar.problems(rule) == ["x go: option -- takes no value"]


@pytest.mark.parametrize("path", ["/", "//", "/.", "/./", "/usr/..", "/usr/../root", "usr", ""])
def test_no_rule_lets_a_program_read_the_whole_machine(path: str) -> None:
    form = BinaryForm(words=("go",))
    with pytest.raises(ValidationError, match="write an absolute folder"):
        BinaryRule(name="x", path="/bin/x", forms=(form,), reads=(path,))
    assert BinaryRule(name="x", path="/bin/x", forms=(form,), reads=("/opt/data/",)).reads == (
        "/opt/data/",
    )
