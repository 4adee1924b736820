"""The search engine for machines without ripgrep (or where hard links are refused): google-re2 over confined reads.

It gives the results of `rg` (`tools.repo.rg`), with one difference of re2's syntax: `\\w`, `\\d` and `\\b` know ASCII
only. Every file is opened through `Root`, and at most `MAX_FILE_BYTES` of it are read.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Generator, Iterator
from typing import Any, Final

from bundle_router.core.models import ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.tools.repo.confinement import FolderEntry, Root, read_up_to
from bundle_router.tools.repo.hits import MAX_FILE_BYTES, FileHits, Line, Ripgrep, compile_lines
from bundle_router.tools.repo.ignoring import MAX_IGNORE_BYTES, Glob, Rules, is_ignored, parse, parse_glob

_MAX_ENTRIES: Final = 100_000
"""Maximum entries of one folder that are read."""


def search(query: Ripgrep, root: Root, context: ToolContext) -> Generator[FileHits, None, None]:
    """Search by re2; a `TextSearch`."""
    expression = compile_lines(query.pattern, ignore_case=query.ignore_case, literal=query.literal)
    deadline = time.monotonic() + context.timeout_s
    for path in _files(query, root):
        if context.cancelled():
            raise ToolFailure("the caller went away", code="cancelled")
        if time.monotonic() >= deadline:
            raise ToolFailure(
                "it took longer than the time this call has", code="timeout", advice="narrow it: name a path or a glob"
            )
        lines = tuple(_lines(_text_of(root, path), expression, query))
        if lines:
            yield FileHits(path, lines)


# --- which files ----------------------------------------------------------------------------------------------------


def _files(query: Ripgrep, root: Root) -> Iterator[str]:
    glob = parse_glob(query.glob) if query.glob else None
    top = query.path
    try:
        root.scandir(top, limit=0)
    except ToolFailure as failure:
        if failure.code != "not_a_directory":
            raise
        root.open_for_reader(top).close()  # raises with the reason if it is no file
        yield top
        return
    chain: tuple[Rules, ...] = ()
    folder = ""
    for name in [] if top == "." else top.split("/"):
        chain = _chain_at(root, folder, chain)
        folder = f"{folder}/{name}".lstrip("/")
    yield from _walk(root, folder, chain, glob)


def _walk(root: Root, folder: str, chain: tuple[Rules, ...], glob: Glob | None) -> Iterator[str]:
    """Yield files depth first, in the order of names as bytes, as `rg --sort path` does."""
    chain = _chain_at(root, folder, chain)
    pending = [(folder, chain, iter(_entries(root, folder)))]
    while pending:
        folder, chain, entries = pending[-1]
        entry = next(entries, None)
        if entry is None:
            pending.pop()
            continue
        path = f"{folder}/{entry.name}" if folder else entry.name
        if not _is_wanted(entry, path, chain, glob):
            continue
        if entry.kind == "file":
            yield path
        else:
            pending.append((path, _chain_at(root, path, chain), iter(_entries(root, path))))


def _is_wanted(entry: FolderEntry, path: str, chain: tuple[Rules, ...], glob: Glob | None) -> bool:
    if entry.name == ".git" or entry.kind not in ("file", "dir") or entry.size > MAX_FILE_BYTES:
        return False
    is_dir = entry.kind == "dir"
    verdict = glob.verdict(path, is_dir) if glob else None
    return verdict if verdict is not None else not is_ignored(chain, path, is_dir)


def _entries(root: Root, folder: str) -> list[FolderEntry]:
    try:
        return root.scandir(folder or ".", limit=_MAX_ENTRIES)
    except ToolFailure:
        return []  # removed meanwhile, or unreadable: rg skips it too


def _chain_at(root: Root, folder: str, chain: tuple[Rules, ...]) -> tuple[Rules, ...]:
    """Return the rules in force inside a folder. A nested repository starts without the outer rules."""
    prefix = f"{folder}/" if folder else ""
    if folder and root.entry(f"{prefix}.git") is not None:
        chain = ()
    try:
        text = root.read(f"{prefix}.gitignore", max_bytes=MAX_IGNORE_BYTES).decode("utf-8", "replace")
    except ToolFailure:
        return chain
    return (*chain, parse(folder, text))


def holds(root: Root, hits: FileHits) -> bool:
    """Return whether a file, opened like any other that is shown, has these lines."""
    texts = _text_of(root, hits.path).split(b"\n")
    return all(line.text in texts[line.number - 1 : line.number] for line in hits.lines)


# --- which lines ----------------------------------------------------------------------------------------------------


def _text_of(root: Root, path: str) -> bytes:
    """Return the file's bytes as UTF-8; empty for a skipped file (binary, too large, gone, refused)."""
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


def _lines(data: bytes, expression: Any, query: Ripgrep) -> Iterator[Line]:
    """Yield the matching lines and their context, in order, each once."""
    found = dict(_matches(data, expression, query.max_matches + 1))
    if not found:
        return
    texts = data.split(b"\n")
    last = len(texts) - data.endswith(b"\n")
    around = query.context
    for number in sorted({n for hit in found for n in range(max(1, hit - around), min(last, hit + around) + 1)}):
        yield Line(number, texts[number - 1], found.get(number))


def _matches(data: bytes, expression: Any, limit: int) -> Iterator[tuple[int, int]]:
    """Yield line number, and offset in that line, of the first match of each matching line."""
    number, counted, at = 1, 0, 0
    for _ in range(limit):
        match = expression.search(data, at) if at < len(data) else None
        if match is None or (match.start() == len(data) and data.endswith(b"\n")):
            return  # there is no line after the last line end
        start = data.rfind(b"\n", at, match.start()) + 1 or at
        number += data.count(b"\n", counted, start)
        counted = start
        yield number, match.start() - start
        end = data.find(b"\n", match.end())
        if end < 0:
            return
        at = end + 1
