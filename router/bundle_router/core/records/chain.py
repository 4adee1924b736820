"""The hash chain of a run: how a record becomes a line, and how lines are checked.

Rules:
1. One record is one line of ASCII JSON that ends in `\\n`; it has no other line break.
2. A line is `BODY` without its closing brace, then `,"hash":"sha256:<64 hex digits>"}`. The hash is
   of the bytes of `BODY`, which holds `seq` and `prev`. So a line is checked from its own bytes and
   never encoded again.
3. `seq` counts 0, 1, 2 … over *all* files of a run; `prev` is the hash of record `seq - 1`, in
   either file. Record 0 follows `genesis(run_id)`, so that records of one run can't replace
   another's.
4. The first record has the digest of the header (`run.json`) as it was when the run began (see
   `run_header`).
5. None of these has a key. They find accidents and careless edits; whoever can rewrite the whole
   run can forge it.

The lines alone don't show a cut-off tail, which leaves a shorter valid chain. For a closed run, the
`Head` in its `run.json` does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from bundle_router.core.records.field_types import FieldForm
from bundle_router.core.values.canonical import decode, digest, encode_object, text_of

File = Literal["routing", "calls"]
FILES: Final[Mapping[File, str]] = {"routing": "routing.jsonl", "calls": "tool-calls.jsonl"}
"""The files under one chain, by the short name that writers use."""

BreakKind = Literal["changed", "dropped", "reordered", "repeated", "cut_off", "added"]

MAX_LINE: Final = 64 * 1024 * 1024
"""Bytes of one line. Longer lines are refused when written and reported when read."""

_SUFFIX: Final = re.compile(rb',"hash":"(sha256:[0-9a-f]{64})"\}\Z')
_LINK: Final = re.compile(
    rb',"seq":(\d{1,18}),"prev":"(sha256:[0-9a-f]{64})"(,"hash":"(sha256:[0-9a-f]{64})"\})\n?\Z'
)
_LINK_BYTES: Final = 192
OWN_FIELDS: Final = (
    "answer_by",
    "arguments_digest",
    "binding",
    "card",
    "catalog_revision",
    "input_digest",
    "now",
    "own_clock",
    "time",
    "use_by",
    "writer",
)
"""Fields of records whose values no caller chooses, each in one of the forms of `_OWN_VALUE`."""
_NUMBERS: Final = frozenset((int, float, bool))
OWN_OBJECTS: Final = ("exposure", "shaped", "spent", "terms")
"""Objects of records that hold counts, digests and the router's own words."""
_OWN_VALUE: Final = re.compile(
    r"(?:sha256:)?[0-9a-f]{64}|[0-9a-f]{16}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
)
"""These hold no secret, and the redactor's automaton grows with every new digest that it sees."""
_OWN_IDS: Final = ("call_id", "decision_id")
_OWN: Final = frozenset((*OWN_FIELDS, *_OWN_IDS))
_PLACE: Final = re.compile(r"\.[0-9a-f]{8}\.\d+\Z")
"""The end of such an id. The rest is the run's id."""
_COUNT: Final = re.compile(r'"(?:place|used)":\d+')
_SUFFIX_BYTES: Final = len(',"hash":"sha256:') + 64 + len('"}')

CHAIN_FIELDS: Final = {
    "run_json": FieldForm(
        str,
        "In a run's first record: the digest of what `run.json` says of the opening.",
        is_optional=True,
    ),
    "seq": FieldForm(int, "The record's number in the run, from 0, over both files."),
    "prev": FieldForm(
        str, "The hash of the record before it; of the first one, a hash of the run's id."
    ),
    "hash": FieldForm(str, "The SHA-256 of the line up to here."),
}
"""The fields that the log adds to each record as it seals it."""

Read = Callable[[int, int], bytes]
"""`read(offset, length)` returns bytes of a file, as `os.pread` does."""


class BadLine(ValueError):
    """The bytes are not a sealed record. The message says why, without quoting them."""


Record = Mapping[str, Any]
"""A record as it was read, with its `seq`, `prev` and `hash`."""


@dataclass(frozen=True, slots=True)
class RepairedTail:
    """A torn end (a record that was never acknowledged) that was cut off when a run was opened."""

    file: str
    """The file that had it."""
    saved: str
    """The file beside it that keeps what was cut off."""
    bytes: int
    """The size of what was cut off."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of an append."""

    news: tuple[Record, ...]
    """Records of other processes that came before the new one and were not returned yet."""
    seq: int | None
    """The new record's number; None where nothing was written, because other processes appended
    first.
    """
    hash: str = ""
    """The new record's hash."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Another process that has a run open."""

    pid: int
    """Its process id on this machine, else 0."""
    name: str
    """Words for it, for people."""


@dataclass(frozen=True, slots=True)
class SealedLine:
    """A line that was checked against its own hash."""

    seq: int
    prev: str
    hash: str
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Link:
    """A line's place in the chain. The line was checked against its own hash, and not parsed."""

    seq: int
    prev: str
    hash: str
    line: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a closed run: its number of records, and the hash of the last (the genesis when
    there is none).
    """

    count: int
    hash: str


@dataclass(frozen=True, slots=True)
class Break:
    """The first record of a run that was damaged or changed.

    `line` starts at 1; 0 where the record is nowhere.
    """

    kind: BreakKind
    seq: int
    file: str
    line: int
    detail: str


@dataclass(frozen=True, slots=True)
class ChainCheck:
    """The result of checking a chain: `count` records are good, the last of them has `hash`."""

    count: int
    hash: str
    broken: Break | None


def genesis(run_id: str) -> str:
    """Return the `prev` of a run's first record."""
    return digest(f"bundle-router.run/1\n{run_id}")


def seal(record: dict[str, Any], seq: int, prev: str) -> tuple[bytes, str]:
    """Return the line of a record, newline included, and its hash.

    Raises ValueError for a record that is empty, has the chain's own fields, holds NaN or is larger
    than `MAX_LINE`; TypeError for one that is not JSON.
    """
    return seal_text(encode_record(record), seq, prev)


def encode_record(record: Mapping[str, Any]) -> str:
    """Return the canonical JSON of a record that is not sealed yet. Raises as `seal` does."""
    if not record or "seq" in record or "prev" in record or "hash" in record:
        raise ValueError(
            "a record has at least one field, and none called seq, prev or hash: the log adds those"
        )
    return encode_object(record)


class _Redactor(Protocol):
    def are_clean(self, texts: Sequence[str]) -> bool: ...
    def redact_many(self, texts: Sequence[str]) -> Sequence[str]: ...
    def redact_value(self, value: Any) -> Any: ...


def redact_record(record: dict[str, Any], redactor: _Redactor) -> dict[str, Any]:
    """Return the record without secrets, as a store is handed it; the record itself where it holds
    none.

    The engine redacts most texts as they come in. Here all of them are checked once more, so that
    no store, however it is written, gets a secret.

    Texts that were not checked before are checked in one pass; only where that finds something
    suspicious, value by value. Digests and times that the router itself made are not checked
    (`_OWN_VALUE`). Raises ValueError and TypeError for values that are not JSON.
    """
    texts, encoded = _texts_of(record)
    if redactor.are_clean(encoded) and redactor.redact_many(texts) is texts:
        return record
    rest_of = {
        name: value
        for name, value in record.items()
        if name not in OWN_FIELDS or not _OWN_VALUE.fullmatch(str(value))
    }
    if redactor.redact_value(rest_of) is rest_of:
        return record
    redacted: dict[str, Any] = redactor.redact_value(record)
    return redacted


def _texts_of(record: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return a record's texts (unescaped: a quote that JSON escapes would have all of them checked
    one by one) and the JSON of its other values, without the router's own: what is left recurs, and
    what recurs is checked once.
    """
    texts: list[str] = []
    encoded: list[str] = []
    for name, value in record.items():
        if not value:  # many are empty
            continue
        if type(value) is str:
            if name not in _OWN:
                texts.append(value)
            elif name in _OWN_IDS:
                texts.append(_PLACE.sub("", value))
            elif not _OWN_VALUE.fullmatch(value):
                texts.append(value)
        elif type(value) not in _NUMBERS and name not in OWN_OBJECTS:
            encoded.append(
                _COUNT.sub("", text_of(value)) if name == "activation" else text_of(value)
            )
    return texts, encoded


def with_opening(text: str, opening: str) -> str:
    """Return the text of a run's first record with the digest of the run's header (see
    `run_header`).
    """
    return f'{text[:-1]},"run_json":"{opening}"}}'


def seal_text(text: str, seq: int, prev: str) -> tuple[bytes, str]:
    """Seal the text that `encode_record` returned.

    Every decision passes here: one sha256 and two copies.
    """
    open_body = f'{text[:-1]},"seq":{seq},"prev":"{prev}"'.encode("ascii")
    if len(open_body) > MAX_LINE - _SUFFIX_BYTES - 1:
        raise ValueError(
            f"a record of {len(open_body)} bytes is over the {MAX_LINE} a line may have"
        )
    hash_ = "sha256:" + hashlib.sha256(open_body + b"}").hexdigest()
    return b'%b,"hash":"%b"}\n' % (open_body, hash_.encode("ascii")), hash_


def unseal(line: bytes) -> SealedLine:
    """Return the record of a line (with or without its newline), checked against its hash.

    Raises BadLine.
    """
    line = line.removesuffix(b"\n")
    suffix = _SUFFIX.match(line, max(0, len(line) - _SUFFIX_BYTES))
    if suffix is None:
        raise BadLine("it does not end in a hash")
    stated = suffix[1].decode("ascii")
    if digest(line[:-_SUFFIX_BYTES] + b"}") != stated:
        raise BadLine("its hash does not match its bytes")
    record = parse(line)
    prev = record.get("prev")
    if not isinstance(prev, str):
        raise BadLine("it has no text 'prev'")
    return SealedLine(record["seq"], prev, stated, record)


def link(line: bytes) -> Link:
    """Do as `unseal` does, without parsing JSON: `seal_text` puts `seq` and `prev` last."""
    links = _LINK.search(line, max(0, len(line) - _LINK_BYTES))
    if links is None or digest(line[: links.start(3)] + b"}") != links[4].decode("ascii"):
        checked = unseal(line)
        return Link(checked.seq, checked.prev, checked.hash, line)
    return Link(int(links[1]), links[2].decode("ascii"), links[4].decode("ascii"), line)


def parse(line: bytes) -> dict[str, Any]:
    """Return a line's record without checking its hash.

    Raises BadLine unless it is a JSON object with a `seq`.
    """
    try:
        record = decode(line.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise BadLine("it is not JSON") from error
    if not isinstance(record, dict):
        raise BadLine("it is not a JSON object")
    seq = record.get("seq")
    if not isinstance(seq, int) or isinstance(seq, bool) or seq < 0:
        raise BadLine("it has no whole number 'seq'")
    return record


# --- tails ----------------------------------------------------------------------------------------


def boundary(read: Read, size: int, *, block: int = 65_536) -> int:
    """Return the offset after the last newline of a file of `size` bytes: any bytes behind it are a
    torn line.
    """
    end = size
    while end > 0:
        start = max(0, end - block)
        newline = read(start, end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def lines_forward(read: Read, end: int, *, block: int = 1024 * 1024) -> Iterator[bytes]:
    """Yield the complete lines of a file up to `end` (a `boundary`), first to last."""
    rest = b""
    for offset in range(0, end, block):
        *complete, rest = (rest + read(offset, min(block, end - offset))).split(b"\n")
        yield from (line + b"\n" for line in complete)


# --- the walk -------------------------------------------------------------------------------------


class _Cursor:
    """The next line of one file: its number, its link in the chain (`at`), or its `fault`."""

    def __init__(self, file: str, lines: Iterable[bytes]) -> None:
        self.file = file
        self.line = 0
        self.at: Link | None
        self.fault: str
        self._lines = iter(lines)
        self.advance()

    def advance(self) -> None:
        self.at = None
        self.fault = ""
        line = next(self._lines, None)
        if line is None:
            return
        self.line += 1
        try:
            self.at = link(line)
        except BadLine as error:
            self.fault = str(error)

    @property
    def done(self) -> bool:
        return self.at is None and not self.fault

    def break_at(self, kind: BreakKind, seq: int, detail: str) -> Break:
        return Break(kind, seq, self.file, self.line, detail)


def check(
    files: Mapping[str, Iterable[bytes]], run_id: str, head: Head | None, least: Head | None = None
) -> ChainCheck:
    """Check the complete lines of a run's files along the chain up to the first break, with one
    line of each in memory.

    `head` is None for a run that was not closed: a cut-off end, or a last record that was rewritten
    with its hash, then looks like an honest end. `least` is a head that was kept elsewhere: the run
    had at least these records, and may have more.
    """
    cursors = [_Cursor(name, lines) for name, lines in files.items()]
    seq = 0
    prev = genesis(run_id)
    while live := [cursor for cursor in cursors if not cursor.done]:
        if head is not None and seq >= head.count:
            detail = f"the run was closed with {head.count} records; this one was added later"
            return ChainCheck(
                seq, prev, _compare(seq, prev, head) or live[0].break_at("added", seq, detail)
            )
        cursor = next((c for c in cursors if c.at is not None and c.at.seq == seq), None)
        if cursor is None or cursor.at is None:
            return ChainCheck(seq, prev, _explain(cursors, seq))
        if cursor.at.prev != prev:
            predecessor = f"record {seq - 1}" if seq else "the start of this run"
            detail = f"it does not follow {predecessor}: one of the two was rewritten"
            return ChainCheck(seq, prev, cursor.break_at("changed", seq, detail))
        if least is not None and seq == least.count - 1 and cursor.at.hash != least.hash:
            return ChainCheck(
                seq,
                prev,
                cursor.break_at("changed", seq, "it is not the record that the kept head names"),
            )
        seq = seq + 1
        prev = cursor.at.hash
        cursor.advance()
    if least is not None and seq < least.count:
        detail = f"the kept head says that there were {least.count} records; {seq} are left"
        return ChainCheck(seq, prev, Break("cut_off", seq, "", 0, detail))
    return ChainCheck(seq, prev, _compare(seq, prev, head))


def _explain(cursors: list[_Cursor], seq: int) -> Break:
    """Return why no file has record `seq` next although lines are left."""
    for cursor in cursors:
        if cursor.fault:
            return cursor.break_at("changed", seq, cursor.fault)
    ahead = [(cursor.at.seq, cursor) for cursor in cursors if cursor.at is not None]
    lowest, ahead_of_all = min(ahead, key=lambda pair: pair[0])
    if lowest < seq:
        return ahead_of_all.break_at(
            "repeated", lowest, f"record {lowest} stands here a second time"
        )
    file = ahead_of_all.file
    line = ahead_of_all.line
    for cursor in cursors:
        while not cursor.done:
            if cursor.at is not None and cursor.at.seq == seq:
                return cursor.break_at(
                    "reordered", seq, f"it belongs before record {lowest} ({file}:{line})"
                )
            cursor.advance()
    return Break(
        "dropped",
        seq,
        file,
        line,
        f"it is missing: record {lowest} stands where it or a later one should",
    )


def _compare(count: int, hash_: str, head: Head | None) -> Break | None:
    """Return how the chain's end differs from the end that was written when the run was closed."""
    if head is None or (count, hash_) == (head.count, head.hash):
        return None
    if count < head.count:
        return Break(
            "cut_off",
            count,
            "",
            0,
            f"the run was closed with {head.count} records; {count} are left",
        )
    return Break(
        "changed",
        max(0, count - 1),
        "",
        0,
        "the last record is not the one the run was closed with",
    )
