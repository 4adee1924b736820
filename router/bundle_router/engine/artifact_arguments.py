"""Artifacts of a run and the arguments of its calls: handles become the bytes, or the files, that they stand for; and
bytes in what is recorded of arguments become artifacts.

Rules:
1. Only artifacts of the run and of its ancestors stand for anything.
2. A tool that wants a path gets that of a read-only copy, which is gone when the call has ended. Only tools on this
   machine: a server elsewhere can't read it, and is told nothing of our folders.
3. An artifact that is not there, can't be read or is too large, or a path that can't be given, makes the arguments
   unusable; the tool is not called.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bundle_router.core.catalog import Server
from bundle_router.core.models.canonical import encode
from bundle_router.core.tools.artifact_handles import PREFIX, Handle, encoded, file_name, filled, handles_in
from bundle_router.core.tools.meta_tools import resolve
from bundle_router.core.tools.shaping.references import LONG, References
from bundle_router.engine.arguments import Arguments
from bundle_router.engine.run import Deps, Run
from bundle_router.engine.surface import Surface
from bundle_router.errors import CorruptRun, StorageError
from bundle_router.ports import Scratch

INLINE_CHARS: Final = 32_768
"""Longer arguments are looked through in a thread."""
Artifact = Callable[[str], bytes]
"""The bytes of an artifact that the run may use, by digest. Raises KeyError, CorruptRun, StorageError."""


class _Unusable(Exception):
    """Why arguments can't be used: the code, and the rest of a sentence that begins "The arguments of … "."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


@asynccontextmanager
async def with_artifacts(
    deps: Deps, surface: Surface, run: Run, artifact: Artifact, name: object, given: Arguments
) -> AsyncIterator[Arguments]:
    """The arguments with bytes and paths in place of handles, where the schema of the tool that is meant wants such.
    What is recorded stays as it was."""
    if given.wrong is not None or PREFIX not in given.text or not isinstance(name, str):
        yield given
        return
    cards = surface.catalog.cards
    card = cards.get(resolve(name, cards, surface.canonical).name)
    found = handles_in(given.value, card.input_schema()) if card is not None else ()
    if card is None or not found:
        yield given
        return
    scratch = deps.scratch() if deps.scratch is not None else None
    hands = _Hands(deps, run, artifact, surface.catalog.servers[card.server], scratch)
    limit = surface.catalog.settings.limits.max_result_bytes
    try:
        yield await asyncio.to_thread(_filled, hands, given, found, limit)
    finally:
        if scratch is not None:
            scratch.close()


async def without_payloads(deps: Deps, given: Arguments) -> Arguments:
    """The arguments with artifacts of the run in place of bytes (base64, `data:` URIs) in what is recorded of them. The
    tool gets them as they came. They are stored when the call begins: one that is refused leaves none."""
    if given.wrong is not None or len(given.text) < LONG:
        return given
    if len(given.text) < INLINE_CHARS:
        return _without(deps, given)
    return await asyncio.to_thread(_without, deps, given)


def _without(deps: Deps, given: Arguments) -> Arguments:
    references = References(deps.describe)
    value = references.value(json.loads(given.text))
    return replace(given, text=encode(value), blobs=references.blobs) if references.blobs else given


@dataclass(frozen=True, slots=True)
class _Hands:
    """What it takes to hand an artifact over."""

    deps: Deps
    run: Run
    artifact: Artifact
    server: Server
    scratch: Scratch | None

    def read(self, handle: Handle) -> bytes:
        uri = f"{PREFIX}{handle.sha256}"
        try:
            return self.artifact(handle.sha256)
        except KeyError:
            raise _Unusable("not_found", f"name {uri}, which this run does not have.") from None
        except (CorruptRun, StorageError) as trouble:
            self.deps.diagnostics.event("error", "artifact.unread", run_id=self.run.id, uri=uri, error=trouble)
            raise _Unusable("storage", f"name {uri}, which can't be read.") from None

    def hand(self, handle: Handle, data: bytes) -> str:
        """What stands in the handle's place."""
        mime_type = self.deps.describe(data).mime_type
        if handle.want != "path":
            return encoded(data, handle.want, mime_type)
        if self.scratch is None or self.server.transport not in ("local", "stdio"):
            what = f"give {PREFIX}… where a path is wanted, and server {self.server.name!r} is not on this machine"
            raise _Unusable("no_path", f"{what}: it can't read the file. Give it where content is wanted instead.")
        within = str(Path(self.run.root, self.server.files)) if self.server.files is not None else ""
        try:
            return self.scratch.put(file_name(handle.sha256, mime_type), data, within=within)
        except StorageError as trouble:
            self.deps.diagnostics.event("error", "artifact.not_handed", run_id=self.run.id, error=trouble)
            raise _Unusable("storage", "name an artifact that can't be put into a file.") from None


def _filled(hands: _Hands, given: Arguments, found: tuple[Handle, ...], max_bytes: int) -> Arguments:
    texts: dict[tuple[str | int, ...], str] = {}
    total = 0
    try:
        for handle in found:
            data = hands.read(handle)
            total += len(data)
            if total > max_bytes:
                raise _Unusable("too_large", f"stand for over {max_bytes:,} bytes of artifacts.")
            texts[handle.place] = hands.hand(handle, data)
    except _Unusable as wrong:
        return replace(given, wrong=(wrong.code, wrong.sentence))
    files = dict.fromkeys(texts[handle.place] for handle in found if handle.want == "path")
    return replace(given, value=filled(given.value, texts), asked=given.value, files=tuple(files))
