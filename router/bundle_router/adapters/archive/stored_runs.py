"""The archive of any store that has the methods of `ports.StoredRuns`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from bundle_router.adapters.archive.archive import RunArchive, RunSummary, is_run_id, summary_of
from bundle_router.adapters.archive.label_files import correction_from, label_line
from bundle_router.core.records.chain import FILES, File, parse
from bundle_router.core.records.read_model import RunStamp
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.core.values.artifacts import ArtifactFile
from bundle_router.core.values.canonical import decode, digest, encode
from bundle_router.errors import CorruptRun
from bundle_router.ports import StoredRuns, WholeRun


class StoreArchive(RunArchive):
    """The runs of one store. `is_shared`: its `where` names the same runs in every process."""

    def __init__(self, store: StoredRuns, *, is_shared: bool) -> None:
        self._store = store
        self.where = store.where
        self.is_shared = is_shared

    def run_ids(self) -> list[str]:
        return sorted(run_id for run_id in self._store.run_ids() if is_run_id(run_id))

    def header(self, run_id: str) -> RunHeader:
        header = self._store.header_of(run_id) if is_run_id(run_id) else None
        if header is None:
            raise self.unknown(run_id)
        return header

    def path_text(self, run_id: str) -> str:
        self.header(run_id)
        return f"{self.where}#{run_id}"

    def summary(self, run_id: str) -> RunSummary:
        header = self.header(run_id)
        writers = self._store.writers_of(run_id)
        lines = chain.from_iterable(self._store.lines_of(run_id, file, 0) for file in FILES)
        artifacts = self._store.artifacts_of(run_id)
        return summary_of(
            header,
            is_open=bool(writers),
            run_id=run_id,
            path=f"{self.where}#{run_id}",
            pid=writers[0].pid if writers else 0,
            records=self._store.count_of(run_id),
            bytes=sum(map(len, chain(lines, artifacts.values()))),
        )

    def catalog_json(self, run_id: str, file: str, revision: str) -> Any:
        text = self._store.catalog_of(run_id, revision)
        if text is None:
            raise CorruptRun(f"{self.where}#{run_id}/{file} is missing", advice="restore it")
        try:
            return decode(text)
        except (ValueError, RecursionError):
            raise CorruptRun(
                f"{self.where}#{run_id}/{file} is not JSON", advice="restore it"
            ) from None

    def stamps(self) -> dict[str, RunStamp]:
        stamps = {}
        for run_id in self.run_ids():
            header = self._store.header_of(run_id)
            if header is not None:
                labels = len(self._store.labels_of(run_id))
                rest = f"{digest(header.to_text())} {labels}"
                stamps[run_id] = RunStamp(self._store.count_of(run_id), "", rest)
        return stamps

    def lines_after(
        self, run_id: str, positions: Mapping[str, int]
    ) -> dict[str, Iterator[tuple[bytes, int]]]:
        """Return the lines after so many lines of each file."""
        self.header(run_id)
        return {
            name: self._numbered_lines(run_id, file, positions.get(name, 0))
            for file, name in FILES.items()
        }

    def _numbered_lines(self, run_id: str, file: File, start: int) -> Iterator[tuple[bytes, int]]:
        lines = self._store.lines_of(run_id, file, start)
        return ((line, number) for number, line in enumerate(lines, start=start + 1))

    def artifacts(self, run_id: str) -> StoredArtifactBytes:
        self.header(run_id)
        return StoredArtifactBytes(self._store.artifacts_of(run_id))

    def labels(self, run_id: str) -> list[StepLabel]:
        place = self.path_text(run_id)
        return [
            correction_from(f"{place}:label {number}", line)
            for number, line in enumerate(self._store.labels_of(run_id), start=1)
        ]

    def add_label(self, run_id: str, correction: StepLabel) -> str:
        place = self.path_text(run_id)
        self._store.add_label(run_id, label_line(correction))
        return place

    def delete(self, run_id: str) -> bool:
        if self._store.writers_of(run_id):
            return False
        if self.heads is not None:  # before: a run that is gone and not marked counts as taken away
            self.heads.prune(run_id)
        return self._store.delete(run_id)

    def finish_deletions(self) -> None:
        """Do nothing: such a store deletes a run at once."""

    def take_in(self, source: RunArchive, run_id: str) -> None:
        header = source.header(run_id)
        catalogs = {
            entry.revision: encode(source.catalog(run_id, entry.revision))
            for entry in header.catalogs
        }
        stored = source.artifacts(run_id)
        labels = [label_line(label) for label in source.labels(run_id)]
        lines = source.lines(run_id)
        sealed = [(file, line) for file, name in FILES.items() for line in lines[name]]
        sealed.sort(key=lambda pair: parse(pair[1])["seq"])
        artifacts = [stored.get(artifact.sha256) for artifact in stored.iter()]
        self._store.take_in(WholeRun(header, catalogs, sealed, artifacts, labels))


class StoredArtifactBytes:
    """Read access to the artifacts of one run."""

    def __init__(self, kept: Mapping[str, bytes]) -> None:
        self._kept = kept

    def get(self, sha256: str) -> bytes:
        data = self._kept[sha256]
        if digest(data).removeprefix("sha256:") != sha256:
            raise CorruptRun(f"artifact {sha256} does not have its digest", advice="restore it")
        return data

    def iter(self) -> Iterable[ArtifactFile]:
        return [ArtifactFile(sha256, len(data)) for sha256, data in self._kept.items()]

    def problems(self) -> Iterable[str]:
        for sha256 in self._kept:
            try:
                self.get(sha256)
            except CorruptRun as error:
                yield error.message
