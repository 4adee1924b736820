"""Stage 2 for `[model]`: which models may be asked, where they are reached, and where their keys are."""

from __future__ import annotations

from typing import Any, Final

from bundle_router.core.catalog import ModelOptions, ModelSettings
from bundle_router.core.config.overlay import Written
from bundle_router.core.config.positions import Path
from bundle_router.core.config.reading import Entry
from bundle_router.core.config.report import Report
from bundle_router.core.config.secrets import looks_secret
from bundle_router.core.config.servers import check_url
from bundle_router.core.config.written.settings import WrittenModel, WrittenModelOptions

_ADVICE: Final = "keep it in the environment and name the variable in key_env"


def resolve_model(written: Written, merged: dict[str, Any], report: Report) -> ModelSettings:
    """The settings from the merged section, whose parts are checked where they were written."""
    entries: list[Entry[WrittenModel]] = written.sections.get("model", [])
    options = merged.pop("options", {})
    settings = ModelSettings(**merged, options=_options(options))
    for entry in entries:
        _check_base_url(entry, entry.path, entry.form.base_url, report)
        for index, name in enumerate(entry.form.names):
            if looks_secret(name):
                report.add(entry.file, (*entry.path, "names", index), "looks like a secret written out", _ADVICE)
        for name, form in entry.form.options.items():
            where = (*entry.path, "options", name)
            _check_base_url(entry, where, form.base_url, report)
            if name not in settings.names:
                hint = report.suggester.did_you_mean(name, settings.names)
                report.add(
                    entry.file, where, f"{name[:80]!r} is not one of the models in names", hint or "add it there"
                )
    return settings


def _check_base_url(entry: Entry[WrittenModel], where: Path, url: str | None, report: Report) -> None:
    if url is not None:
        place = (*where, "base_url")
        check_url(entry, place, url, report, example="http://127.0.0.1:11434/v1", instead=_ADVICE)


def _options(forms: dict[str, WrittenModelOptions]) -> tuple[ModelOptions, ...]:
    return tuple(
        ModelOptions(name, **{key: getattr(form, key) for key in form.model_fields_set})
        for name, form in sorted(forms.items())
    )
