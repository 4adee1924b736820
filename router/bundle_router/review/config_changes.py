"""What was changed in a config, by whom and why, as a line of `changes.jsonl` in the config folder.

The file lies beside what it tells of, so that it is committed and reviewed with it. It says what happened, and permits
nothing: an acknowledgement that stands in it does not make the next comparison pass.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from bundle_router.core.models.canonical import encode
from bundle_router.review.privileges import PrivilegeDiff, sentence

FILE_NAME: Final = "changes.jsonl"
SCHEMA: Final = "bundle-router.config-change/1"


ChangeType = Literal["widening.allowed", "config.saved", "config.undone", "pins.approved"]


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file. The digests are of its bytes (`""`: it was not there); `before` is its text, so that a save can be
    undone (None: it was not there)."""

    name: str
    before_sha256: str
    after_sha256: str
    before: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One line. `widening` says in words what was newly allowed, `widening_digest` is of the rows."""

    type: ChangeType
    time: str
    by: str
    reason: str
    old_revision: str
    new_revision: str
    widening: tuple[str, ...] = ()
    widening_digest: str = ""
    files: tuple[FileChange, ...] = ()

    def to_line(self) -> str:
        """Return the change as a line of JSON, with its end."""
        values = asdict(self)
        return encode({"schema": SCHEMA, **{key: values[key] for key in values if key != "files" or self.files}}) + "\n"


_ADAPTER: Final = TypeAdapter(ConfigChange)


def widening_words(diff: PrivilegeDiff) -> tuple[str, ...]:
    """Return each widening row with its addresses, as it is kept."""
    words = [" · ".join((sentence(row), *map(str, row.addresses))) for row in diff.of("widening")]
    return (*words, *(() if diff.complete else ("there are too many names to look at all of them",)))


def changes_from(text: str) -> list[ConfigChange]:
    """Return the changes of a file, oldest first. Raises ValueError that names the line that is none."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                found.append(_ADAPTER.validate_json(line))
            except ValidationError as wrong:
                raise ValueError(f"{FILE_NAME}:{number}: {wrong.errors(include_url=False)[0]['msg']}") from None
    return found
