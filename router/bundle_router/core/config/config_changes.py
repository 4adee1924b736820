"""The journal of a config: what was changed, by whom and why, one line a change in its
`changes.jsonl`.

The file is in the config folder, so that it is committed and reviewed with it. It is a record and
permits nothing: an acknowledgement in it does not make the next comparison pass.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from bundle_router.core.values.canonical import encode
from bundle_router.errors import Problem

FILE_NAME: Final = "changes.jsonl"
SCHEMA: Final = "bundle-router.config-change/1"


ChangeType = Literal[
    "widening.allowed",
    "config.saved",
    "config.undone",
    "pins.approved",
    "risks.accepted",
    "edit.found",
]
"""`edit.found`: a running service met an edit that nobody recorded; it stands beside the runs.
`risks.accepted`: somebody means risks that stand in the config; no file changed.
"""


@dataclass(frozen=True, slots=True)
class FileChange:
    """One changed file.

    The digests are of its bytes (`""`: no file); `before` is its text, so that a save can be undone
    (None: no file).
    """

    name: str
    before_sha256: str
    after_sha256: str
    before: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One line.

    `widening` says in words what was newly allowed; `widening_digest` is of those rows. `risks` are
    the accepted ones, as `risk_words` names them.
    """

    type: ChangeType
    time: str
    by: str
    reason: str
    old_revision: str
    new_revision: str
    widening: tuple[str, ...] = ()
    widening_digest: str = ""
    files: tuple[FileChange, ...] = ()
    risks: tuple[str, ...] = ()

    def to_line(self) -> str:
        """Return the change as a line of JSON with its newline."""
        values = asdict(self)
        line = {key: values[key] for key in values if key not in _WHERE_SET or values[key]}
        return encode({"schema": SCHEMA, **line}) + "\n"


_WHERE_SET: Final = ("files", "risks")
"""Fields that a line has only where they say something."""
_ADAPTER: Final = TypeAdapter(ConfigChange)
_ROW: Final = re.compile(r"(\w+)\[(\d+)\](.*)", re.DOTALL)
_INDEX: Final = re.compile(r"\[\d+\]")
RowNames = Mapping[str, Sequence[str]]
"""The names of the rows of each list of tables, in order."""


def row_names(texts: Iterable[str]) -> RowNames:
    """Return the names of all rows in the texts of a config's files; of what is no TOML, none."""
    names: dict[str, list[str]] = {}
    for text in texts:
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue
        for key, rows in tables.items():
            if isinstance(rows, list):
                row_tables = [row if isinstance(row, dict) else {} for row in rows]
                names[key] = [str(row.get("name") or "") for row in row_tables]
    return names


def risk_words(problem: Problem, rows: RowNames) -> str:
    """Return what names a risk for good: its rule, its key by the name of its row, and its message.

    A row that is put before it makes it no other risk; the same in another row is another one.
    """
    path = problem.path
    match = _ROW.fullmatch(path)
    if match is not None:
        names = rows.get(match[1], ())
        number = int(match[2])
        name = names[number] if number < len(names) else ""
        path = f"{match[1]}[{name or number}]{_INDEX.sub('[]', match[3])}"
    return f"{problem.rule} {path}: {problem.message}"


def changes_from(text: str) -> list[ConfigChange]:
    """Return the changes of a file, oldest first.

    Raises ValueError, which names the invalid line.
    """
    changes = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                changes.append(_ADAPTER.validate_json(line))
            except ValidationError as wrong:
                raise ValueError(
                    f"{FILE_NAME}:{number}: {wrong.errors(include_url=False)[0]['msg']}"
                ) from None
    return changes


def acceptances(changes: Iterable[ConfigChange]) -> Mapping[str, ConfigChange]:
    """Return the risks that somebody accepted, by their words, each with the first such change."""
    by_words: dict[str, ConfigChange] = {}
    for change in changes:
        for words in change.risks:
            by_words.setdefault(words, change)
    return by_words
