"""The journal of a config: what was changed, by whom and why, one line a change in its
`changes.jsonl`.

The file is in the config folder, so that it is committed and reviewed with it. It is a record and
permits nothing: an acknowledgement in it does not make the next comparison pass.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from bundle_router.core.values.canonical import encode

FILE_NAME: Final = "changes.jsonl"
SCHEMA: Final = "bundle-router.config-change/1"


ChangeType = Literal[
    "widening.allowed", "config.saved", "config.undone", "pins.approved", "edit.found"
]
"""`edit.found`: a running service met an edit that nobody recorded; it stands beside the runs."""


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

    `widening` says in words what was newly allowed; `widening_digest` is of those rows.
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

    def to_line(self) -> str:
        """Return the change as a line of JSON with its newline."""
        values = asdict(self)
        return (
            encode(
                {
                    "schema": SCHEMA,
                    **{key: values[key] for key in values if key != "files" or self.files},
                }
            )
            + "\n"
        )


_ADAPTER: Final = TypeAdapter(ConfigChange)


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
