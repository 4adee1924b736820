"""The search engine for machines without ripgrep (or where hard links are refused): google-re2 over
confined reads.

It gives the results of `rg` (`local_tools.repo.rg`), with one difference of re2's syntax: `\\w`,
`\\d` and `\\b` know ASCII only. Every file is opened through `Root`, and at most `MAX_FILE_BYTES`
of it are read.

`.gitignore` rules (gitignore(5), "PATTERN FORMAT") and globs come from the repository and from the
model, so they too run on re2. `.ignore`, `.git/info/exclude` and the user's global list do not
count. The library pathspec applies a folder's rule to everything beneath, even if the search names
that folder, and has no `{a,b}` for globs; `rg` does the opposite of both, and the two engines have
to agree.
"""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.values import ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.confinement import FolderEntry, Root, read_up_to
from bundle_router.local_tools.repo.hits import (
    MAX_FILE_BYTES,
    FileHits,
    Line,
    Ripgrep,
    compile_ascii,
    compile_lines,
)

MAX_IGNORE_BYTES: Final = 256 * 1024
MAX_RULES: Final = 2000


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: `regex` matches the whole path relative to the folder of the rule."""

    regex: Any
    negated: bool
    only_dirs: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one `.gitignore`, in the folder `base` (empty for the root)."""

    base: str
    rules: tuple[Rule, ...]

    def verdict(self, path: str, is_dir: bool) -> bool | None:
        """Return whether the path (relative to the root) is ignored; None if no rule matches.

        The last match wins.
        """
        name = path[len(self.base) + 1 :] if self.base else path
        for rule in reversed(self.rules):
            if (is_dir or not rule.only_dirs) and rule.regex.fullmatch(name):
                return not rule.negated
        return None


def is_ignored(chain: Sequence[Rules], path: str, is_dir: bool) -> bool:
    """Return whether the `.gitignore` files above a path ignore it.

    The nearest one with a match wins.
    """
    for rules in reversed(chain):
        verdict = rules.verdict(path, is_dir)
        if verdict is not None:
            return verdict
    return False


def parse(base: str, text: str) -> Rules:
    """Return the rules of a `.gitignore` file. Invalid lines are skipped, as git does."""
    rules = []
    for line in text.splitlines()[:MAX_RULES]:
        pattern = re.sub(r"(?<!\\)((?:\\\\)*) +$", r"\1", line)
        if not pattern or pattern.startswith("#"):
            continue
        negated = pattern.startswith("!")
        pattern = pattern[1:] if negated else pattern
        only_dirs = pattern.endswith("/")
        try:
            regex = glob_regex(pattern.rstrip("/") if only_dirs else pattern)
        except ToolFailure:
            continue
        rules.append(Rule(regex, negated, only_dirs))
    return Rules(base, tuple(rules))


@dataclass(frozen=True, slots=True)
class Glob:
    """The `glob` argument of a search: files to include or, with a leading `!`, to exclude."""

    regex: Any
    excludes: bool

    def verdict(self, path: str, is_dir: bool) -> bool | None:
        """Return True to search it, even if ignored; False to skip it; None to leave it to the
        ignore rules.
        """
        if self.regex.fullmatch(path):
            return not self.excludes
        return None if is_dir or self.excludes else False


def parse_glob(text: str) -> Glob:
    """Parse a glob; `!` before it excludes. Raises ToolFailure `bad_glob`."""
    excludes = text.startswith("!")
    return Glob(glob_regex(text[1:] if excludes else text, braces=True), excludes)


def glob_regex(pattern: str, *, braces: bool = False) -> Any:
    """Return a gitignore pattern as an re2 expression over a relative path; `{a,b}` is an
    alternative if `braces`.
    """
    anchored = "/" in pattern.rstrip("/")
    body = pattern.lstrip("/") if pattern.startswith("/") else pattern
    prefix = "" if anchored else "(?:.*/)?"
    return compile_ascii(
        prefix + _translate(body, braces), "bad_glob", f"{pattern!r} is not a usable glob"
    )


_TOKEN: Final = re.compile(
    r"(?P<deep>(?<![^/])\*\*/)|(?P<rest>(?<=/)\*\*$)|\*+|\?|\[|\\(.)|[{},]|[^*?\[\\{},]+|\\"
)


def _translate(pattern: str, braces: bool) -> str:
    out = []
    at = 0
    depth = 0
    while at < len(pattern):
        found = _TOKEN.match(pattern, at)
        if found is None:
            raise ToolFailure(f"{pattern!r} is not a usable glob", code="bad_glob")
        part = found.group()
        at = found.end()
        if found["deep"]:
            out.append("(?:.*/)?")
        elif found["rest"]:
            out.append(".+")
        elif part.startswith("*"):
            out.append("[^/]*")
        elif part == "?":
            out.append("[^/]")
        elif part == "[":
            piece, at = _char_class(pattern, at)
            out.append(piece)
        elif braces and part in "{},":
            depth += {"{": 1, "}": -1, ",": 0}[part]
            if depth < 0:
                raise ToolFailure(
                    f"{pattern!r} is not a usable glob: unbalanced braces", code="bad_glob"
                )
            out.append({"{": "(?:", "}": ")", ",": "|" if depth else ","}[part])
        else:
            out.append(re.escape(found[3] or part))
    if depth:
        raise ToolFailure(f"{pattern!r} is not a usable glob: unbalanced braces", code="bad_glob")
    return "".join(out)


def _char_class(pattern: str, at: int) -> tuple[str, int]:
    """Return a `[...]` class in re2's syntax, and the position after it; `at` is after the
    bracket.
    """
    negated = pattern[at : at + 1] in ("!", "^")
    start = at + negated
    end = pattern.find("]", start + 1)
    if end < 0:
        raise ToolFailure(
            f"{pattern!r} is not a usable glob: unclosed character class", code="bad_glob"
        )
    body = re.sub(r"([\\\[\]^&~|])", r"\\\1", pattern[start:end])
    return f"[{'^/' if negated else ''}{body}]", end + 1


_MAX_ENTRIES: Final = 100_000
"""Maximum entries of one folder that are read."""


def search(query: Ripgrep, root: Root, context: ToolContext) -> Generator[FileHits, None, None]:
    """Search by re2; a `TextSearch`."""
    expression = compile_lines(query.pattern, ignore_case=query.ignore_case, literal=query.literal)
    deadline = time.monotonic() + context.timeout_s
    for path in _files(query, root):
        if context.cancelled():
            raise ToolFailure("the call was cancelled", code="cancelled")
        if time.monotonic() >= deadline:
            raise ToolFailure(
                "it took longer than this call may take",
                code="timeout",
                advice="narrow it: name a path or a glob",
            )
        lines = tuple(_lines(_text_of(root, path), expression, query))
        if lines:
            yield FileHits(path, lines)


# --- which files ----------------------------------------------------------------------------------


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
    """Return the rules in force inside a folder.

    A nested repository starts without the outer rules.
    """
    prefix = f"{folder}/" if folder else ""
    if folder and root.entry(f"{prefix}.git") is not None:
        chain = ()
    try:
        text = root.read(f"{prefix}.gitignore", max_bytes=MAX_IGNORE_BYTES).decode(
            "utf-8", "replace"
        )
    except ToolFailure:
        return chain
    return (*chain, parse(folder, text))


def holds(root: Root, hits: FileHits) -> bool:
    """Return whether a file, opened like any other that is shown, has these lines."""
    texts = _text_of(root, hits.path).split(b"\n")
    return all(line.text in texts[line.number - 1 : line.number] for line in hits.lines)


# --- which lines ----------------------------------------------------------------------------------


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


def _lines(data: bytes, expression: Any, query: Ripgrep) -> Iterator[Line]:
    """Yield the matching lines and their context, in order, each once."""
    found = dict(_matches(data, expression, query.max_matches + 1))
    if not found:
        return
    texts = data.split(b"\n")
    last = len(texts) - data.endswith(b"\n")
    around = query.context
    for number in sorted(
        {n for hit in found for n in range(max(1, hit - around), min(last, hit + around) + 1)}
    ):
        yield Line(number, texts[number - 1], found.get(number))


def _matches(data: bytes, expression: Any, limit: int) -> Iterator[tuple[int, int]]:
    """Yield line number, and offset in that line, of the first match of each matching line."""
    number = 1
    counted = 0
    at = 0
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
