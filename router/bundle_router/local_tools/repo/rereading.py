"""Hits of a search, read again beneath the root, where only what may be shown can be opened."""

from __future__ import annotations

import codecs

from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.confinement import Root, read_up_to
from bundle_router.local_tools.repo.hits import MAX_FILE_BYTES, FileHits


def holds(root: Root, hits: FileHits) -> bool:
    """Return whether a file, opened like any other that is shown, has these lines."""
    texts = _text_of(root, hits.path).split(b"\n")
    return all(line.text in texts[line.number - 1 : line.number] for line in hits.lines)


def _text_of(root: Root, path: str) -> bytes:
    """Return the file's bytes as UTF-8; empty for a skipped file (binary, too large, gone,
    refused).
    """
    try:
        with root.open_for_reader(path) as file:
            data = read_up_to(file, MAX_FILE_BYTES + 1)
    except (ToolFailure, OSError):
        return b""
    if len(data) > MAX_FILE_BYTES:
        return b""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = data.decode("utf-16", "replace").encode("utf-8", "replace")
    data = data.removeprefix(codecs.BOM_UTF8)
    return b"" if b"\0" in data else data
