"""The header of a run (`run.json`): the one place that knows the names of its fields.

Rules:
1. `fields` are all fields of the file, also those that this version does not know: digests are of
   all of them.
2. The fields written when the run began (all but `CHANGING`) never change: their digest is in the
   first record as `run_json`. `seal` is the digest of the rest of the file at each writing.
3. A field of a wrong type reads as absent, since reviewers look at damaged runs too. Writers refuse
   such a file first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from bundle_router.core.records.chain import Head, RepairedTail
from bundle_router.core.records.field_types import FieldForm
from bundle_router.core.values.canonical import digest_of

T = TypeVar("T")

RUN_SCHEMA: Final = "bundle-router.run/1"
CHANGING: Final = frozenset(
    ("durability", "catalogs", "healed", "reopened", "restored", "closed", "head", "count", "seal")
)
"""The fields that are added or changed after the run began."""
LISTS: Final = ("catalogs", "healed", "reopened")
_REBUILT: Final = frozenset(("schema", "run_id", "catalog_revision", "parent_run_id", "nonce"))
"""What `lost_header` finds of the opening."""
FIRST_CATALOG: Final = "catalog.json"
_END: Final = ("closed", "head", "count")


HEADER_FIELDS: Final = {
    "schema": FieldForm(Literal[RUN_SCHEMA], "The form of the file, with its version."),
    "run_id": FieldForm(str, "The run's id."),
    "bundle_router": FieldForm(
        str, "The version of Bundle Router that began the run.", is_optional=True
    ),
    "catalog_revision": FieldForm(
        str, "The digest of the config that the run began under.", is_optional=True
    ),
    "parent_run_id": FieldForm(
        (str, None), "The run that this one is a sub-agent of; null for none.", is_optional=True
    ),
    "workspace": FieldForm((str, None), "The workspace that the run began in.", is_optional=True),
    "opened": FieldForm(str, "When the run began, in UTC.", is_optional=True),
    "nonce": FieldForm(
        str,
        "A text that makes the ids of this run's decisions and calls unique over machines.",
        is_optional=True,
    ),
    "durability": FieldForm(
        Literal["process", "disk"], "What an appended record survives.", is_optional=True
    ),
    "catalogs": FieldForm(
        [
            {
                "revision": FieldForm(str, "The digest of a config."),
                "file": FieldForm(str, "Its file in the run's folder."),
            }
        ],
        "The configs that the run was recorded under, in their order.",
    ),
    "healed": FieldForm(
        [
            {
                "file": FieldForm(str, "The file that had a torn end."),
                "saved": FieldForm(str, "The file beside it that keeps what was cut off."),
                "bytes": FieldForm(int, "The size of what was cut off."),
            }
        ],
        "Torn ends (records that were never acknowledged) that were cut off on opening.",
    ),
    "reopened": FieldForm(
        [{"workspace": FieldForm(str, "The workspace.", is_optional=True)}],
        "Later openings, in runs that early versions wrote.",
    ),
    "restored": FieldForm(
        str, "When a lost header was made anew from the records, in UTC.", is_optional=True
    ),
    "closed": FieldForm(str, "When the run was closed, in UTC.", is_optional=True),
    "head": FieldForm(str, "The hash of the last record of a closed run.", is_optional=True),
    "count": FieldForm(int, "The number of records of a closed run.", is_optional=True),
    "seal": FieldForm(
        str, "The digest of the rest of the file, at each writing.", is_optional=True
    ),
}
"""The written form of `run.json`."""


@dataclass(frozen=True, slots=True)
class StoredCatalog:
    """A catalog that the run was recorded under, and its file in the run's folder."""

    revision: str
    file: str


@dataclass(frozen=True, slots=True)
class RunHeader:
    """The contents of `run.json`."""

    fields: Mapping[str, Any]
    """The JSON object as it is stored; the properties read it."""

    # --- what it says -----------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        return self._value("run_id", str) or ""

    @property
    def nonce(self) -> str:
        """A text that makes the ids of this run's decisions unique over machines; empty for an
        early run.
        """
        return self._value("nonce", str) or ""

    @property
    def opened(self) -> str:
        return self._value("opened", str) or ""

    @property
    def closed(self) -> str:
        """When the run was closed; empty where it was not."""
        return self._value("closed", str) or ""

    @property
    def head(self) -> Head | None:
        """The end of a closed run; None where it was not closed, or its end is not recorded."""
        count = self._value("count", int)
        hash_ = self._value("head", str)
        if "closed" in self.fields and count is not None and hash_ is not None:
            return Head(count, hash_)
        return None

    @property
    def catalog_revision(self) -> str:
        return self._value("catalog_revision", str) or ""

    @property
    def names_parent(self) -> bool:
        """Whether the header names the run's parent, or says that it has none: a restored header
        says neither.
        """
        return "parent_run_id" in self.fields

    @property
    def parent_run_id(self) -> str | None:
        return self._value("parent_run_id", str)

    @property
    def durability(self) -> str:
        return self._value("durability", str) or ""

    @property
    def restored(self) -> str:
        """When a lost header was restored; empty where it never was lost."""
        return str(self.fields.get("restored", ""))

    @property
    def workspace(self) -> str | None:
        """The workspace that the run began in; None for a run that did not record it."""
        return self._value("workspace", str)

    @property
    def last_workspace(self) -> str | None:
        """The workspace that the run was last opened in."""
        again = [row.get("workspace") for row in self._objects("reopened")]
        return next(
            (place for place in reversed([self.workspace, *again]) if isinstance(place, str)), None
        )

    @property
    def catalogs(self) -> tuple[StoredCatalog, ...]:
        return tuple(
            StoredCatalog(str(row.get("revision")), str(row.get("file")))
            for row in self._objects("catalogs")
        )

    @property
    def healed(self) -> tuple[RepairedTail, ...]:
        rows = self._objects("healed")
        return tuple(
            RepairedTail(str(row.get("file")), str(row.get("saved")), row.get("bytes", 0))
            for row in rows
        )

    @property
    def is_early(self) -> bool:
        """Whether the run began before the first kept layout (the oldest of `tests/data/runs`)."""
        return "seal" not in self.fields and "workspace" not in self.fields

    @property
    def opening(self) -> dict[str, Any]:
        """The fields that were written when the run began."""
        return {name: value for name, value in self.fields.items() if name not in CHANGING}

    @property
    def opening_digest(self) -> str:
        return digest_of(self.opening)

    @property
    def is_edited(self) -> bool:
        """Whether the header has a seal that does not match it."""
        return "seal" in self.fields and self.sealed().fields["seal"] != self.fields["seal"]

    def faults(self, run_id: str, first: Mapping[str, Any] | None) -> list[str]:
        """Return what is wrong with the run's header, a clause each; `first` is the run's first
        record, if any.
        """
        clauses = []
        if self.is_edited:
            clauses.append("was changed after it was written")
        stated = first.get("run_json") if first is not None else None
        if stated is not None and stated != self.opening_digest and not self._is_rebuilt(first):
            clauses.append("does not say of the opening of the run what the first record says")
        if self.run_id != run_id:
            clauses.append(f"belongs to run {self.fields.get('run_id')!r}")
        if "closed" in self.fields and self.head is None:
            clauses.append("says the run was closed, and not with how many records")
        return clauses

    def _is_rebuilt(self, first: Mapping[str, Any] | None) -> bool:
        """Return whether the header was restored from the records of a run whose header was lost;
        `first` is the first of them.
        """
        if "restored" not in self.fields or not self.opening.keys() <= _REBUILT:
            return False
        step = first.get("step") if first is not None else None
        return not isinstance(step, Mapping) or step.get("parent_run_id") == self.parent_run_id

    # --- how it changes ---------------------------------------------------------------------------

    def begin(self, run_id: str, *, opened: str, nonce: str, durability: str) -> RunHeader:
        """Return the header of a run that begins, with the engine's fields."""
        lists: dict[str, list[object]] = {name: [] for name in LISTS}
        stated = {"opened": opened, "nonce": nonce, "durability": durability}
        header = RunHeader(
            {"schema": RUN_SCHEMA, "run_id": run_id, **self.fields, **stated, **lists}
        )
        return header.with_catalogs([self.catalog_revision])

    def with_catalogs(self, revisions: Iterable[str]) -> RunHeader:
        """Return the header with these revisions' catalogs after its own."""
        catalogs = [*self.catalogs]
        for revision in revisions:
            catalogs.append(
                StoredCatalog(
                    revision, catalog_file(revision) if catalogs or self.restored else FIRST_CATALOG
                )
            )
        return self._with(
            catalogs=[{"revision": catalog.revision, "file": catalog.file} for catalog in catalogs]
        )

    def with_healed(self, tails: Iterable[RepairedTail]) -> RunHeader:
        rows = [{"file": tail.file, "saved": tail.saved, "bytes": tail.bytes} for tail in tails]
        return self._with(healed=[*self._objects("healed"), *rows])

    def end(self, at: str, head: Head) -> RunHeader:
        return self._with(closed=at, head=head.hash, count=head.count)

    def reopen(self) -> RunHeader:
        """Return the header without an end."""
        return RunHeader({name: value for name, value in self.fields.items() if name not in _END})

    def restore(self, at: str) -> RunHeader:
        return self._with(restored=at)

    def sealed(self) -> RunHeader:
        """Return the header with its seal, as it is written."""
        rest = {name: value for name, value in self.fields.items() if name != "seal"}
        return RunHeader({**rest, "seal": digest_of(rest)})

    def to_text(self) -> str:
        """Return the text of the file, indented for people."""
        return json.dumps(self.fields, indent=2) + "\n"

    def _with(self, **changed: object) -> RunHeader:
        return RunHeader({**self.fields, **changed})

    def _value(self, name: str, kind: type[T]) -> T | None:
        value = self.fields.get(name)
        return value if isinstance(value, kind) else None

    def _objects(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self._value(name, list) or () if isinstance(row, dict)]


def lost_header(run_id: str, restored: str, records: Iterable[Mapping[str, Any]]) -> RunHeader:
    """Return a header for a run that has lost it, from the run's records."""
    fields: dict[str, Any] = {
        "schema": RUN_SCHEMA,
        "run_id": run_id,
        **{name: [] for name in LISTS},
    }
    for record in records:
        if record.get("type") == "route.decided" and "step" in record:
            fields["catalog_revision"] = record["catalog_revision"]
            fields["parent_run_id"] = record["step"].get("parent_run_id")
            nonce = str(record["decision_id"]).removeprefix(f"{run_id}.").rpartition(".")[0]
            fields |= {"nonce": nonce} if nonce else {}
    return RunHeader({**fields, "restored": restored})


def catalog_file(revision: str) -> str:
    """Return the name of a catalog's file in a run's folder, for any but the run's first
    catalog.
    """
    return f"catalog-{revision.rpartition(':')[2][:16]}.json"
