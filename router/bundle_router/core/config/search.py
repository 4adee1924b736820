"""Stage 2 for `[search]`: thresholds, the calibration, and what embeds."""

from __future__ import annotations

from typing import Any, Final

from bundle_router.core.catalog import Calibration, EmbeddingSettings, SearchSettings
from bundle_router.core.config.overlay import Written
from bundle_router.core.config.reading import Entry
from bundle_router.core.config.report import Report
from bundle_router.core.config.secrets import looks_secret
from bundle_router.core.config.servers import check_url
from bundle_router.core.config.written.settings import WrittenCalibration, WrittenEmbeddings, WrittenSearch

_ADVICE: Final = "keep it in the environment and name the variable in key_env"


def resolve_search(written: Written, merged: dict[str, Any], report: Report) -> SearchSettings:
    """The settings from the merged section, whose parts are checked where they were written."""
    entries: list[Entry[WrittenSearch]] = written.sections.get("search", [])
    for entry in entries:
        if entry.form.embeddings is not None:
            _check_embeddings(entry, entry.form.embeddings, report)
    calibration: WrittenCalibration | None = merged.pop("calibration", None)
    embeddings: WrittenEmbeddings | None = merged.pop("embeddings", None)
    return SearchSettings(
        **merged,
        calibration=_calibration(calibration) if calibration is not None else None,
        embeddings=EmbeddingSettings(**embeddings.model_dump()) if embeddings is not None else None,
    )


def _calibration(form: WrittenCalibration) -> Calibration:
    weights = tuple(sorted((str(name), weight) for name, weight in form.weights.items()))
    return Calibration(form.version, form.labels, form.bias, weights)


def _check_embeddings(entry: Entry[WrittenSearch], form: WrittenEmbeddings, report: Report) -> None:
    where = (*entry.path, "embeddings")
    if (form.model is None) == (form.local is None):
        report.add(entry.file, where, "names neither a model nor a local one" if form.model is None else
                   "names both a model and a local one", "name one of the two")  # fmt: skip
    if form.model is not None and looks_secret(form.model):
        report.add(entry.file, (*where, "model"), "looks like a secret written out", _ADVICE)
    if form.local is not None and not (form.local.startswith("/") or form.local.isidentifier()):
        report.add(
            entry.file,
            (*where, "local"),
            f"{form.local[:80]!r} is neither an absolute folder nor the name of a package",
        )
    if form.base_url is not None:
        check_url(
            entry, (*where, "base_url"), form.base_url, report, example="http://127.0.0.1:11434/v1", instead=_ADVICE
        )
