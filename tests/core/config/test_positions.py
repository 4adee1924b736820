"""Positions of keys and elements, held against the standard parser on generated TOML."""

from __future__ import annotations

import json
import tomllib
from typing import Any, TypeVar

import pytest
from bundle_router.core.config.config_text import from_bytes, guard
from bundle_router.core.config.positions import Path, locate, show
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.profiles import examples

_Choice = TypeVar("_Choice")


def all_paths(value: Any, path: Path = ()) -> dict[Path, Any]:
    """Every path in a parsed document, with what stands there."""
    found: dict[Path, Any] = {path: value} if path else {}
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in children:
        found |= all_paths(item, (*path, key))
    return found


class Writer:
    """Writes a document in one of the many ways TOML has, drawn at random.

    Numbers are unique, so they can be found.
    """

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.number = 1000

    def one_of(self, *choices: _Choice) -> _Choice:
        chosen: _Choice = self.draw(st.sampled_from(choices))
        return chosen

    def key(self) -> tuple[str, str]:
        """A new key, as written and as it stands in the text."""
        self.number += 1
        name = f"k{self.number}"
        return self.one_of(
            (name, name), (name, f'"{name}"'), (name, f"'{name}'"), (f"{name}.x]#=", f'"{name}.x]#="'),
            (f"{name} ü\\", f'"{name} \\u00fc\\\\"'), (f'{name}"[[', f"'{name}\"[['"),
        )  # fmt: skip

    def gap(self) -> str:
        return self.one_of("", " ", "\n", "\n  # ] } , = \"'''\n\n", "  ")

    def value(self, depth: int) -> str:
        self.number += 1
        kind = self.one_of("int", "int", "text", "array", "table") if depth < 3 else "int"
        if kind == "array":
            items = [self.value(depth + 1) for _ in range(self.draw(st.integers(0, 3)))]
            body = "".join(f"{self.gap()}{item}{self.gap()}," for item in items)
            return f"[{body if self.one_of(True, False) else body.removesuffix(',')}{self.gap()}]"
        if kind == "table":
            pairs = []
            for _ in range(self.draw(st.integers(0, 2))):
                dotted = ".".join(self.key()[1] for _ in range(self.draw(st.integers(1, 2))))
                pairs.append(f"{dotted} = {self.flat()}")
            return "{ " + ", ".join(pairs) + " }"
        return self.text() if kind == "text" else str(self.number)

    def flat(self) -> str:
        self.number += 1
        return self.one_of(
            str(self.number), f"[{self.number}, {self.number + 5000}]", '"a, b } ] # ="', "{}", "[]"
        )

    def text(self) -> str:
        return self.one_of(
            '"[x] = {y}, # no"', "'C:\\dir\\'", '"""\n] = "" \\""" \n[[no]]\n"""', "'''\n'' [no]\n# = \n''''",
            '""""a"""""',
            '"\\\\"', "''", '""', "2020-01-02 03:04:05", "1.5e3", "true", "0xff", '"""a \\\n   b"""',
        )  # fmt: skip

    def assignments(self) -> None:
        for _ in range(self.draw(st.integers(0, 3))):
            dotted = self.one_of(".", " . ").join(
                self.key()[1] for _ in range(self.draw(st.integers(1, 3)))
            )
            self.lines.append(
                f"{self.one_of('', '  ')}{dotted} = {self.value(0)}{self.one_of('', ' # c')}"
            )
            self.lines.append(self.one_of("", "# [not.a.table]", "\t"))

    def document(self) -> str:
        self.assignments()
        for _ in range(self.draw(st.integers(0, 3))):
            header = ".".join(self.key()[1] for _ in range(self.draw(st.integers(1, 3))))
            if self.one_of(True, False):
                self.lines.append(f"[ {header} ]")
                self.assignments()
                continue
            for _ in range(self.draw(st.integers(1, 3))):
                self.lines.append(f"[[{header}]] # again")
                self.assignments()
                if self.one_of(True, False):
                    self.lines.append(f"[{header}.sub]")
                    self.assignments()
                if self.one_of(True, False):
                    self.lines += [f"[[{header}.inner]]", "n = 1", f"[[{header}.inner]]", "n = 2"]
        return "\n".join(self.lines) + self.one_of("", "\n")


@st.composite
def documents(draw: Any) -> str:
    return Writer(draw).document()


@examples(300, suppress_health_check=[HealthCheck.too_slow])
@given(documents())
def test_every_path_the_parser_knows_has_a_line_and_the_line_holds_it(text: str) -> None:
    parsed = all_paths(tomllib.loads(text))
    positions = dict(locate(text).items())
    assert positions.keys() == parsed.keys()
    lines = text.split("\n")
    for path, line in positions.items():
        if isinstance(path[-1], str):
            # Escapes aside, the line of a key is a line that contains it.
            assert path[-1].split(" ")[0] in lines[line - 1]
        elif (
            isinstance(parsed[path], int)
            and not isinstance(parsed[path], bool)
            and parsed[path] > 1000
        ):
            assert str(parsed[path]) in lines[line - 1]


@examples(100, suppress_health_check=[HealthCheck.too_slow])
@given(documents())
def test_the_guard_lets_ordinary_documents_through(text: str) -> None:
    assert guard(from_bytes("x.toml", "x.toml", (text or "#").encode(), "project")) is None


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (("routes", 3, "bundles", 0), "routes[3].bundles[0]"),
        (("bundles", "repo.readonly", "tools", 1), 'bundles."repo.readonly".tools[1]'),
        (("headers", 'a"b\\'), 'headers."a\\"b\\\\"'),
        ((), ""),
    ],
)
def test_a_path_is_shown_as_people_write_it(path: Path, shown: str) -> None:
    assert show(path) == shown
    if path and not any(isinstance(part, int) for part in path):
        assert tomllib.loads(f"{shown} = 1") == json.loads(
            f'{{"headers": {{{json.dumps(path[-1])}: 1}}}}'
        )


def test_what_is_not_in_the_text_gets_the_line_of_what_is_around_it() -> None:
    positions = locate("a = 1\n\n[[rows]]\nname = 'x'\n\n[[rows]]\nname = 'y'\n")
    assert positions.line(("rows", 1, "bundles", 4)) == 6
    assert positions.line(("nowhere", "at", "all")) == 0


@pytest.mark.parametrize(
    "text",
    [
        "k = '''\na'b''c'''",
        "k = '''''a'''''",
        'k = """\na"b""c"""',
        'k = """\\""""',
        'k = """"a\\\\"""""',
        'k = [""" """, 1]',
    ],
)
def test_a_string_of_several_lines_ends_where_the_parser_ends_it(text: str) -> None:
    """Also on Python 3.11.2, where a possessive loop in an expression goes wrong whose body may
    fail half way.
    """
    assert dict(locate(text).items()).keys() == all_paths(tomllib.loads(text)).keys()
    assert guard(from_bytes("x.toml", "x.toml", text.encode(), "project")) is None


@pytest.mark.parametrize("text", ['k = """a""', 'k = """a\\"""', "k = '''a''"])
def test_a_string_of_several_lines_that_does_not_end_is_refused(text: str) -> None:
    assert guard(from_bytes("x.toml", "x.toml", text.encode(), "project")) is not None
