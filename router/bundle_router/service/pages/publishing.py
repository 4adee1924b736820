"""The pages of chosen runs as files to open from disk: no server, no script, links only between the
files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from bundle_router.core.records.read_model import RunPage, RunQuery, RunRow
from bundle_router.core.values.artifacts import SHA256
from bundle_router.errors import CorruptRun, RequestError, RouterError, storage_error
from bundle_router.service.pages.queries import fields_of
from bundle_router.service.pages.rendering import Links, PageContent, asset_bytes, json_text, render
from bundle_router.service.pages.views import MEDIA_PER_PAGE, RECORDS, PageViews
from bundle_router.workbench.run_reader import RunReader

PUBLISHED_ASSETS: Final = ("style.css", "icon.svg")
NAV: Final = (("/runs", "Runs"),)
_EXTENSIONS: Final = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "audio/wav": ".wav",
    "audio/x-wav": ".wav",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/flac": ".flac",
    "video/mp4": ".mp4",
    "video/webm": ".webm",
    "video/ogg": ".ogv",
}


def publish(reader: RunReader, run_ids: Sequence[str], folder: Path) -> int:
    """Write the read-only pages of runs into a folder; return the number of files.

    Artifacts that a browser may show inline are included; the full text of long results is not.

    Raises UnknownRun, RequestError for a folder with other content, StorageError.
    """
    reader.refresh(now=True)
    pages = PublishedPages(reader, list(dict.fromkeys(run_ids)))
    marker = folder / "runs.json"
    try:
        if folder.exists() and any(folder.iterdir()) and not marker.exists():
            raise RequestError(
                f"{folder} holds other files",
                advice="name an empty folder, or one to publish into again",
            )
        count = 0
        for name, data in pages.files():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # Published files are as private as the records, until somebody changes their mode.
            with open(path, "wb", opener=partial(os.open, mode=0o600)) as file:
                file.write(data)
            count += 1
    except OSError as error:
        raise storage_error(f"{folder} can't be written", error) from error
    return count


class PublishedPages:
    """The files of chosen runs."""

    def __init__(self, reader: RunReader, run_ids: Sequence[str]) -> None:
        self._reader = reader
        self._views = PageViews(reader)
        self._runs = [reader.index.run(run_id) for run_id in run_ids]
        self._files = {
            "/runs": "index.html",
            **{f"/assets/{name}": f"assets/{name}" for name in PUBLISHED_ASSETS},
        }
        for run in self._runs:
            self._files |= dict(self._addresses(run.run_id))
            if run.media:
                self._files |= dict(_media_addresses(run))

    def _addresses(self, run_id: str) -> Iterator[tuple[str, str]]:
        yield f"/runs/{run_id}", f"runs/{run_id}.html"
        for part in self._reader.index.parts(run_id, RECORDS)[1:]:
            start = part.first_seq
            yield f"/runs/{run_id}?from={start}", f"runs/{run_id}/from-{start}.html"
        for table in ("decisions", "calls"):
            for row in self._reader.index.rows_of(table, run_id):
                yield f"/runs/{run_id}/{row['seq']}", f"runs/{run_id}/{row['seq']}.html"
                if table == "decisions":
                    yield (
                        f"/runs/{run_id}/{row['seq']}/array",
                        f"runs/{run_id}/{row['seq']}-array.html",
                    )
        for row in self._reader.index.rows_of("artifacts", run_id):
            extension = _EXTENSIONS.get(row["mime_type"] or "")
            if extension is not None and SHA256.fullmatch(row["sha256"] or ""):
                file = f"artifacts/{row['sha256']}{extension}"
                yield f"/runs/{run_id}/artifacts/{row['sha256']}", file

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield every file with its path in the folder."""
        for file, address in {file: address for address, file in self._files.items()}.items():
            if address.startswith("/assets/"):
                yield file, asset_bytes(address.removeprefix("/assets/"))
            elif "/artifacts/" in address:
                yield from self._artifact(address, file)
            else:
                yield from self._page(address, file)

    def _artifact(self, address: str, file: str) -> Iterable[tuple[str, bytes]]:
        _, _, run_id, _, sha256 = address.split("/")
        try:
            artifact = self._reader.artifact(run_id, sha256)
        except RouterError:
            return []  # its bytes are gone or changed; the pages still describe them
        return [(file, artifact.data)] if artifact.inline else []

    def _page(self, address: str, file: str) -> Iterator[tuple[str, bytes]]:
        try:
            page = self._view(address)()
        except CorruptRun as error:
            texts = {"message": error.message, "advice": error.advice}
            page = PageContent(
                "error.html", {"title": "Not readable", "here": "", "where": "", **texts}, texts
            )
        defaults = {"stale": "", "as_json": "", "token": "", "may_label": False}
        values = {**defaults, **page.values, "where": "", "sign_out": ""}
        links = Links("", self._files, file, NAV)
        yield file, render(replace(page, values=values), links).encode("utf-8")
        if file == "index.html":
            json_file = "runs.json"
        else:
            json_file = str(Path(file).with_suffix("")) + ".json"
        yield json_file, json_text(page.json).encode("ascii")

    def _view(self, address: str) -> Callable[[], PageContent]:
        if address == "/runs":
            return self._list
        path, _, query = address.partition("?")
        parts = path.split("/")
        if len(parts) == 3:
            return lambda: self._views.run(parts[2], fields_of(query))
        if parts[-1] == "media":
            return lambda: self._views.media(parts[2], fields_of(query))
        if parts[-1] == "array":
            return lambda: self._views.array(parts[2], int(parts[3]), {})
        return lambda: self._views.record(parts[2], int(parts[3]), {})

    def _list(self) -> PageContent:
        runs = sorted(self._runs, key=lambda run: (run.began, run.run_id), reverse=True)
        return self._views.run_list(
            RunPage(tuple(runs), len(runs)), RunQuery(limit=len(runs) or 1), {}
        )


def _media_addresses(run: RunRow) -> Iterator[tuple[str, str]]:
    """Yield the pages of a run's contact sheet; each medium is on one of them."""
    yield f"/runs/{run.run_id}/media", f"runs/{run.run_id}/media.html"
    for page in range(2, -(-run.media // MEDIA_PER_PAGE) + 1):
        yield f"/runs/{run.run_id}/media?page={page}", f"runs/{run.run_id}/media-{page}.html"
