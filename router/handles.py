"""Artifacts of a run given to its tools: handles in the arguments of a call become the bytes they stand for."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from router.arguments import Arguments
from router.core.handles import PREFIX, Handle, encoded, filled, handles_in
from router.core.metatools import resolve
from router.errors import CorruptRun, StorageError
from router.run import Deps, Run
from router.surface import Surface


async def fill(deps: Deps, surface: Surface, run: Run, name: object, given: Arguments) -> Arguments:
    """The arguments with the bytes of the run's artifacts where the schema of the tool that is meant wants bytes. What
    is recorded stays as it was.

    An artifact that is not there, or more bytes than one result may have, makes the arguments unusable.
    """
    if given.wrong is not None or PREFIX not in given.text or not isinstance(name, str):
        return given
    cards = surface.catalog.cards
    card = cards.get(resolve(name, cards, surface.canonical).name)
    found = handles_in(given.value, card.input_schema()) if card is not None else ()
    limit = surface.catalog.settings.limits.max_result_bytes
    return await asyncio.to_thread(_fill, deps, run, given, found, limit) if found else given


def _fill(deps: Deps, run: Run, given: Arguments, found: tuple[Handle, ...], max_bytes: int) -> Arguments:
    texts: dict[tuple[str | int, ...], str] = {}
    total = 0
    for handle in found:
        try:
            data = run.artifacts.get(handle.sha256)
        except KeyError:
            return replace(given, wrong=("not_found", f"name {PREFIX}{handle.sha256}, which this run does not have."))
        except (CorruptRun, StorageError) as trouble:
            deps.diagnostics.event("error", "artifact.unread", run_id=run.id, uri=handle.sha256, error=trouble)
            return replace(given, wrong=("storage", f"name {PREFIX}{handle.sha256}, which can't be read."))
        total += len(data)
        if total > max_bytes:
            return replace(given, wrong=("too_large", f"stand for over {max_bytes:,} bytes of artifacts."))
        texts[handle.place] = encoded(data, handle.want, deps.describe(data).mime_type)
    return replace(given, value=filled(given.value, texts), asked=given.value)
