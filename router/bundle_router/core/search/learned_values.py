"""Learned and accepted values, and the JSON of their files.

Rules:
1. A file states its version, which is the digest of its content: a file that was edited by hand or
   cut off no longer matches its version, and is refused.
2. What was learned about a bundle is valid as long as its description and tools are unchanged,
   about a tool as long as its definition is. `fitted_to` drops the rest.
3. What the config itself says takes precedence over what was learned: `[search.calibration]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bundle_router.core.catalog import MIN_LABELS, Calibration, Catalog
from bundle_router.core.catalog.config_tables import Bundle
from bundle_router.core.search.memory import Memory
from bundle_router.core.search.sufficiency import features_of
from bundle_router.core.values.canonical import digest_of
from bundle_router.core.values.evidence import Evidence

MemoryForm = tuple[str, str, str, str]
"""The schema of a memory's file, the key of its rows of known ids, and of their two columns."""
OF_BUNDLES: Final[MemoryForm] = ("bundle-router.learned-memory/1", "bundles", "id", "fingerprint")
OF_TOOLS: Final[MemoryForm] = ("bundle-router.learned-tools/1", "tools", "tool", "sha256")
CALIBRATION_SCHEMA: Final = "bundle-router.learned-calibration/1"


@dataclass(frozen=True)
class LearnedValues:
    """The values in force. `known` holds the fingerprint of every bundle in the memory, by id."""

    memory: Memory | None = None
    known: tuple[tuple[str, str], ...] = ()
    calibration: Calibration | None = None
    tools: Memory | None = None
    known_tools: tuple[tuple[str, str], ...] = ()
    """The digest of every tool in the memory of tools, by canonical name."""

    @property
    def revisions(self) -> tuple[tuple[str, str], ...]:
        """The versions of the values, for `Facts.revisions`."""
        thresholds = self.calibration.version if self.calibration is not None else None
        memories = {"memory": self.memory, "tools": self.tools}
        revisions = {
            name: value.revision if value is not None else None for name, value in memories.items()
        }
        return tuple(
            (name, version)
            for name, version in {**revisions, "thresholds": thresholds}.items()
            if version
        )

    def fitted_to(self, catalog: Catalog) -> LearnedValues:
        """Return the values without what the memories know about bundles and tools that are gone or
        have changed.
        """
        memory, known = _keep(
            self.memory, self.known, {id_: fingerprint(b) for id_, b in catalog.bundles.items()}
        )
        tools, known_tools = _keep(
            self.tools, self.known_tools, {n: card.sha256 for n, card in catalog.cards.items()}
        )
        if memory is self.memory and tools is self.tools:
            return self
        return replace(self, memory=memory, known=known, tools=tools, known_tools=known_tools)

    def applied_to(self, catalog: Catalog) -> Catalog:
        """Return the catalog with the learned calibration in force, unless its config says one. It
        has its own revision, so decisions under it replay from the run directory alone.
        """
        search = catalog.settings.search
        search = replace(search, calibration=search.calibration or self.calibration)
        if search == catalog.settings.search:
            return catalog
        return replace(catalog, settings=replace(catalog.settings, search=search))


NOTHING: Final = LearnedValues()
Known = tuple[tuple[str, str], ...]


def _keep(
    memory: Memory | None, known: Known, now: Mapping[str, str]
) -> tuple[Memory | None, Known]:
    """Return the memory without ids that have changed."""
    unchanged = tuple((id_, mark) for id_, mark in known if now.get(id_) == mark)
    if memory is None or len(unchanged) == len(known):
        return memory, known
    return (memory.keeping(id_ for id_, _ in unchanged) if unchanged else None), unchanged


def known_tools_of(memory: Memory, catalog: Catalog) -> Known:
    """Return the memory's tools with their present digests."""
    return tuple(
        (name, catalog.cards[name].sha256) for name in sorted(memory.ids) if name in catalog.cards
    )


def known_of(memory: Memory, catalog: Catalog) -> tuple[tuple[str, str], ...]:
    """Return the memory's bundles with their present fingerprints."""
    return tuple(
        (id_, fingerprint(catalog.bundles[id_]))
        for id_ in sorted(memory.ids)
        if id_ in catalog.bundles
    )


def memory_json(
    memory: Memory, known: Iterable[tuple[str, str]], form: MemoryForm
) -> dict[str, Any]:
    schema, rows, id_, mark = form
    entries = [{id_: name, mark: digest} for name, digest in known]
    return {"schema": schema, "version": memory.revision, rows: entries, "memory": memory.to_json()}


def memory_from(value: Mapping[str, Any], form: MemoryForm) -> tuple[Memory, Known]:
    """Return a memory file's values.

    Raises ValueError, with the reason, for another file or version.
    """
    schema, rows, id_, mark = form
    try:
        _check_schema(value, schema)
        memory = Memory.from_json(value["memory"])
        known = tuple((str(row[id_]), str(row[mark])) for row in value[rows])
        _check_version(value, memory.revision)
    except (KeyError, TypeError, AttributeError, OverflowError) as wrong:
        raise ValueError(
            f"not a learned memory of {rows}: {type(wrong).__name__}: {wrong}"
        ) from None
    return memory, known


def calibration_json(calibration: Calibration) -> dict[str, Any]:
    return {
        "schema": CALIBRATION_SCHEMA,
        "version": calibration.version,
        "labels": calibration.labels,
        "bias": calibration.bias,
        "weights": [{"feature": name, "weight": weight} for name, weight in calibration.weights],
    }


def calibration_from(value: Mapping[str, Any]) -> Calibration:
    """Return a file's calibration.

    Raises ValueError, with the reason, for another file or version.
    """
    try:
        _check_schema(value, CALIBRATION_SCHEMA)
        weights = tuple(
            sorted((str(row["feature"]), float(row["weight"])) for row in value["weights"])
        )
        calibration = Calibration(
            str(value["version"]), int(value["labels"]), float(value["bias"]), weights
        )
        _check_version(value, calibration_version(calibration.bias, weights, calibration.labels))
    except (KeyError, TypeError, AttributeError, OverflowError) as wrong:
        raise ValueError(f"not a learned calibration: {type(wrong).__name__}: {wrong}") from None
    if {name for name, _ in weights} - features_of(Evidence()).keys():
        raise ValueError("it weighs features that this version does not know")
    if calibration.labels < MIN_LABELS:
        raise ValueError(
            f"it was fitted on {calibration.labels} labels, fewer than the {MIN_LABELS} it takes"
        )
    return calibration


def _check_schema(value: Mapping[str, Any], schema: str) -> None:
    if value["schema"] != schema:
        raise ValueError(f"its schema is {value['schema']!r}, not {schema!r}")


def _check_version(value: Mapping[str, Any], version: str) -> None:
    if value["version"] != version:
        raise ValueError(
            "it was changed after it was learned: its contents are not of the version it states"
        )


def calibration_version(bias: float, weights: Sequence[tuple[str, float]], labels: int) -> str:
    return digest_of([bias, [list(pair) for pair in sorted(weights)], labels])


def fingerprint(bundle: Bundle) -> str:
    """Return the digest of what labels of a bundle depend on: its description and its tools, but
    not its examples.
    """
    return digest_of([" ".join(bundle.description.split()), bundle.tools, bundle.patterns])
