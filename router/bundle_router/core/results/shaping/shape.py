"""The steps of shaping: drop duplicates, replace payloads, make characters visible, bound the size,
flag failures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bundle_router.core.results.shaping.cut import CutText, head_tail, leading_items, shares
from bundle_router.core.results.shaping.frame import FRAMED, frame
from bundle_router.core.results.shaping.json_text import dump, is_plain, parse
from bundle_router.core.results.shaping.payloads import LONG, References
from bundle_router.core.results.shaping.shaped import Part, ShapedResult
from bundle_router.core.values import Block, Data, Media, Text
from bundle_router.core.values.artifacts import Describe
from bundle_router.core.values.canonical import EACH, budget_left
from bundle_router.core.values.visible import visible, without_surrogates

EMPTY: Final = "[the tool returned nothing]"

_NAMED: Final = 20
"""Maximum artifacts named in the last notice because their own place was cut."""
_MARGIN: Final = 1_000
_SHORT_JSON: Final = 12_000
"""Maximum characters of a text that is parsed to see whether its JSON reports a failure."""
_APART: Final = 16
"""Maximum pieces that are cut one by one; more are cut as one text."""
_RULES: Final = ("copies", "references", "escapes", "leading_items", "head_tail", FRAMED)
_SHORT_PLAIN: Final = re.compile(rf"(?!.{{{LONG}}})(?!.*(?:data|DATA):)[\t\n -~]+", re.DOTALL)
"""A text that no rule changes: it holds no payload and nothing invisible.

A long one is no further looked at.
"""


@dataclass(frozen=True, slots=True)
class _Piece:
    """One block during shaping: `shown` is what the model sees if it fits."""

    text: str
    shown: str
    value: Any = None
    """Its JSON value with payloads replaced; None for text."""
    escaped: bool = False
    hidden: int = 0
    """Characters of a very long text between the parts of `shown`.

    They were not escaped, as no cut keeps them.
    """
    uri: str = ""
    """URI of a resource; then the first line of `shown` names it."""
    mime_type: str = ""
    size: int = 0  # of the JSON `value`

    @property
    def full(self) -> str:
        """Its full text, for an artifact."""
        if self.value is None:
            return self.text
        return without_surrogates(dump(self.value, indented=True))

    @property
    def part(self) -> Part:
        if self.uri:
            return Part(self.shown.partition("\n")[2], self.uri, self.mime_type)
        return Part(self.shown)


def shape(
    blocks: Sequence[Block],
    max_chars: int,
    describe: Describe,
    *,
    framed: bool = False,
) -> ShapedResult:
    """Return the text of a result for the model, and the bytes to store. `framed`: an untrusted
    server says it, so it stands in a frame (`frame`).

    `max_chars` bounds the kept characters; notices (under 3,000 characters) are added. `describe`
    tells the type of bytes.
    """
    kept_blocks = blocks
    if len(blocks) > 1:
        kept_blocks = without_copies(blocks)

    plain_texts = _short_plain_texts(kept_blocks)
    plain = "\n".join(plain_texts)
    if plain_texts and len(plain) <= max_chars:
        return _shape_plain(plain, plain_texts, blocks, framed=framed)

    references = References(describe)
    pieces = [_piece(block, references, max_chars) for block in kept_blocks]
    visible_text = "\n".join(piece.shown for piece in pieces)
    rules = {
        "copies": len(kept_blocks) < len(blocks),
        "references": bool(references.blobs) or any(isinstance(block, Media) for block in blocks),
        "escapes": any(piece.escaped for piece in pieces),
        FRAMED: framed and bool(visible_text),
    }

    text = visible_text or EMPTY
    notice = ""
    if len(visible_text) > max_chars:
        cuts = _bound_pieces(pieces, visible_text, max_chars)
        rules |= {cut.rule: True for cut in cuts}
        text = "\n".join(cut.text for cut in cuts if cut.text)
        notice = "\n" + _notice(text, references, pieces)

    parts: tuple[Part, ...] = ()
    if text is visible_text and any(piece.uri for piece in pieces):
        parts = tuple(_part(piece, framed) for piece in pieces)
    if rules[FRAMED]:
        text = frame(text)
    text += notice

    sizes = {id(piece.value): piece.size for piece in pieces if piece.size}
    return ShapedResult(
        text=text,
        blobs=references.blobs,
        original_bytes=sum(_size(block, sizes) for block in blocks),
        kept_bytes=len(text.encode("utf-8")),
        rule=_rule_names(rules),
        flags=_failure_flags(_says_failed(pieces)),
        parts=parts,
    )


def _shape_plain(
    text: str, texts: Sequence[str], blocks: Sequence[Block], *, framed: bool
) -> ShapedResult:
    """Return the result whose texts, joined in `text`, no step of shaping changes."""
    copies = [_size(block, {}) for block in blocks if not isinstance(block, Text)]
    original_bytes = len(text) - len(texts) + 1 + sum(copies)
    first_text = next(filter(str.strip, texts), "")
    if framed:
        text = frame(text)
    return ShapedResult(
        text=text,
        blobs=(),
        original_bytes=original_bytes,
        kept_bytes=len(text),
        rule=_rule_names({"copies": bool(copies), FRAMED: framed}),
        flags=_failure_flags(_text_says_failed(first_text)),
    )


def _failure_flags(says_failed: bool) -> tuple[str, ...]:
    if not says_failed:
        return ()
    return (LOOKS_LIKE_ERROR,)


def _rule_names(rules: Mapping[str, bool]) -> str:
    """Return the names of the rules that changed a result, in their order."""
    return "+".join(rule for rule in _RULES if rules.get(rule)) or "as_is"


def _part(piece: _Piece, framed: bool) -> Part:
    if framed:
        return replace(piece.part, text=frame(piece.part.text))
    return piece.part


def _short_plain_texts(blocks: Sequence[Block]) -> list[str]:
    """Return the blocks' texts, if no step of shaping changes any of them; else nothing."""
    texts = [block.text for block in blocks if isinstance(block, Text) and not block.uri]
    if len(texts) == len(blocks) and all(map(_SHORT_PLAIN.fullmatch, texts)):
        return texts
    return []


def _piece(block: Block, references: References, max_chars: int) -> _Piece:
    if isinstance(block, Media):
        reference = references.media(block)
        return _Piece(reference, reference)
    if isinstance(block, Text):
        return _text_piece(block, references, max_chars)
    if isinstance(block.value, str):
        encodable = without_surrogates(block.value)
        full = references.value(encodable)
        text, escaped, hidden = _visible_ends(full, max_chars)
        return _Piece(full, text, None, escaped or encodable != block.value, hidden)
    return _json_piece(block, references)


def _json_piece(block: Data, references: References) -> _Piece:
    value = block.value
    if not is_plain(value):
        value = references.value(value)
    raw = dump(value)
    text = visible(raw)
    size = len(raw) if raw.isascii() else len(raw.encode("utf-8", "surrogatepass"))
    return _Piece("", text, value, escaped=text != raw, size=size)


def _text_piece(block: Text, references: References, max_chars: int) -> _Piece:
    text = _title_text(block)
    encodable = without_surrogates(text)
    full = references.text(encodable)
    visible_text, escaped, hidden = _visible_ends(full, max_chars)
    escaped = escaped or encodable != text
    if not block.uri:
        return _Piece(full, visible_text, None, escaped, hidden)
    uri, mime_type = visible(_line(block.uri)), _line(block.mime_type)
    return _Piece(full, visible_text, None, escaped, hidden, uri, mime_type)


def _visible_ends(full: str, max_chars: int) -> tuple[str, bool, int]:
    """Return the visible form of a text's ends, whether it escapes anything, and the characters
    between them.
    """
    # Escaping halves a text at most (`\r\n`), so each margin alone can fill the cap.
    margin = 2 * max_chars + _MARGIN
    ends = [full] if len(full) <= 2 * margin else [full[:margin], full[-margin:]]
    parts = [visible(end) for end in ends]
    return "".join(parts), parts != ends, len(full) - sum(map(len, ends))


def _title_text(block: Text) -> str:
    """Return the text; for a resource, under a line that names it."""
    if not block.uri:
        return block.text
    mime_type = f", {_line(block.mime_type)}" if block.mime_type else ""
    return f"[resource {_line(block.uri)}{mime_type}]\n{block.text}"


def _line(text: str) -> str:
    return without_surrogates(" ".join(text.split()))


def _bound_pieces(pieces: Sequence[_Piece], shown: str, max_chars: int) -> list[CutText]:
    """Return the pieces cut so that together, joined by line ends, they have at most
    `max_chars`.
    """
    if len(pieces) > min(_APART, max_chars):
        return [head_tail(shown, max_chars, sum(piece.hidden for piece in pieces))]
    grants = shares([len(piece.shown) for piece in pieces], max(0, max_chars - len(pieces) + 1))
    return [_fit(piece, budget) for piece, budget in zip(pieces, grants, strict=True)]


def _fit(piece: _Piece, budget: int) -> CutText:
    if len(piece.shown) <= budget:
        return CutText(piece.shown, len(piece.shown), "")
    value = parse(piece.text) if piece.value is None else piece.value
    return (leading_items(value, budget) if value else None) or head_tail(
        piece.shown, budget, piece.hidden
    )


def _notice(text: str, references: References, pieces: Sequence[_Piece]) -> str:
    """Return the notice: where the full result is, how to read it, and which artifacts lost their
    place in the text.
    """
    cut = [blob.uri for blob in references.blobs if blob.sha256 not in text]
    full = references.keep_full("\n".join(piece.full for piece in pieces).encode("utf-8"))
    readers = "read_artifact reads it in pages, search_artifact searches it"
    notice = f"[full result: {full.uri} {full.facts.mime_type} {len(full.data):,} bytes; {readers}]"
    if not cut:
        return notice
    if len(cut) > _NAMED:
        rest_text = f" and {len(cut) - _NAMED:,} more, named in the full result"
    else:
        rest_text = ""
    return f"{notice}\n[artifacts in the part left out: {', '.join(cut[:_NAMED])}{rest_text}]"


def _says_failed(pieces: Sequence[_Piece]) -> bool:
    """Return whether the first piece of the result reports a failure."""
    for piece in pieces:
        if not piece.shown.strip():
            continue
        if piece.value is not None or len(piece.text) > _SHORT_JSON:
            return says_failed(piece.value)
        return _text_says_failed(piece.text)
    return False


def _text_says_failed(text: str) -> bool:
    # Of JSON only an object can say it.
    return looks_like_error(text) or (text.lstrip().startswith("{") and says_failed(parse(text)))


def _size(block: Block, known: Mapping[int, int]) -> int:  # by the `id` of a value
    if isinstance(block, Media):
        return len(block.data)
    if isinstance(block, Text):
        if block.text.isascii():
            return len(block.text)
        return len(block.text.encode("utf-8", "surrogatepass"))
    try:
        return known.get(id(block.value)) or len(dump(block.value).encode("utf-8", "surrogatepass"))
    except RecursionError:
        return 0  # too deep for the JSON encoder; References.value bounds what is shown of it


# --- what is said twice ---------------------------------------------------------------------------
# Servers repeat a structured value as text: as the same JSON, as the plain string inside a wrapper
# (`{"result": "…"}`, `{"content": "…"}`), or as one text block per item of a list. Of JSON the
# value is kept (its compact form has half the tokens of the indented one), of a plain string the
# text.


def without_copies(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks in order, without duplicates."""
    blocks_kept: list[Block | None] = list(blocks)
    for index, block in enumerate(blocks):
        if not isinstance(block, Data):
            continue
        if any(_settle(blocks_kept, index, value) for value in _forms(block.value)):
            blocks_kept[index] = None
    return [block for block in blocks_kept if block is not None]


def _forms(value: Any) -> list[Any]:
    """Return the value, and its content if it is a wrapper with a single key."""
    if isinstance(value, dict) and len(value) == 1:
        return [value, *value.values()]
    return [value]


def _settle(kept: list[Block | None], at: int, value: Any) -> bool:
    """Return whether the texts repeat the value.

    If so, keep the better of the two in the texts' place.
    """
    texts = _texts_without_address(kept)
    for index, text in texts:
        if _is_same_json(text, value):
            if not isinstance(value, str):
                kept[index] = Data(value)
            return True

    if len(texts) < 2 or not isinstance(value, list):
        return False
    if not _are_same_json([text for _, text in texts], value):
        return False
    if not all(isinstance(item, str) for item in value):
        for index, _ in texts:
            kept[index] = None
        kept[texts[0][0]] = Data(value)
    return True


def _texts_without_address(blocks: Sequence[Block | None]) -> list[tuple[int, str]]:
    """Return the texts that are no resource's, with their places."""
    return [
        (index, block.text)
        for index, block in enumerate(blocks)
        if isinstance(block, Text) and not block.uri
    ]


def _are_same_json(texts: Sequence[str], values: Sequence[Any]) -> bool:
    """Return whether each text is the value in its place."""
    if len(texts) != len(values):
        return False
    return all(_is_same_json(text, value) for text, value in zip(texts, values, strict=True))


def _is_same_json(text: str, value: Any) -> bool:
    if isinstance(value, str):
        return text.strip() == value.strip() and value.strip() != ""
    if isinstance(value, dict | list):
        parsed = parse(text)
        return type(parsed) is type(value) and _is_equal_json(parsed, value)
    return text.strip() == json.dumps(value)


def _is_equal_json(left: Any, right: Any) -> bool:
    """Return whether both are equal as JSON: unlike in Python, `1` and `true` differ, and NaN
    equals nothing.
    """
    waiting = [(left, right)]
    while waiting:
        one, other = waiting.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            waiting.extend((value, other[name]) for name, value in one.items())
        elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
            if len(one) != len(other):
                return False
            waiting.extend(zip(one, other, strict=True))
        elif type(one) is not type(other) or one != other:
            return False
    return True


# --- failures that come dressed as success --------------------------------------------------------
# Of 116 recorded calls to 28 real servers (83 results), several failed in plain text without
# `isError` ("Error searching libraries: TypeError: fetch failed", "Failed to retrieve balance").
# This only sets a flag; the result is unchanged.

LOOKS_LIKE_ERROR: Final = "looks_like_error"

_LONGEST: Final = 2_000
"""Maximum characters of an error.

A longer text that begins with "Error:" is more likely about errors.
"""
_FIRST_WORDS: Final = re.compile(r"""(?x) [\s"'\[]{0,4} (?:❌\s*|\#{1,6}\s+|\*\*)?
    (?: (?:fatal\s+|internal\s+|unexpected\s+|mcp\s+)? [Ee]rror \s* (?::|$|\n|-?\d|- )
      | ERROR \b | FATAL \b
      | [Ee]rror\s (?!handling) [a-z]+ing \s [^\n:]{1,100} :
      | [A-Za-z_.]{0,60} (?:Error|Exception) : \s
      | (?:MCP|HTTP) \s error \b
      | Traceback\ \(most\ recent\ call\ last\)
      | (?:Failed|Unable|Could\ not|Cannot) \s to? \s? [a-z]+ \s
      | (?:[A-Z][a-z]+\ )? (?:[Vv]alidation|[Aa]uthentication|[Aa]uthorization|[Cc]onnection)
        \ (?:error|failed|refused)
      | (?:Access|Permission) \s denied | (?:Unauthorized|Forbidden|Not\ [Ff]ound) \b \s* (?:[.:]|$)
      | [Ii]nvalid \s [^\n]{1,60} :
      | [a-z]{2,12} \s (?:failed \b | E[A-Z]{5,} \b)
    )""")
_TRUE_FAILS: Final = ("isError", "is_error", "failed")
_FALSE_FAILS: Final = ("success", "ok", "succeeded")


def looks_like_error(text: str) -> bool:
    """Return whether a short text begins as failures do."""
    return len(text) <= _LONGEST and _FIRST_WORDS.match(text) is not None


def says_failed(value: Any) -> bool:
    """Return whether a JSON object reports a failure: `success: false`, `isError: true`, or a
    filled `error`.
    """
    if not isinstance(value, dict):
        return False
    if any(value.get(key) is True for key in _TRUE_FAILS):
        return True
    if any(value.get(key) is False for key in _FALSE_FAILS):
        return True
    error = value.get("error")
    return isinstance(error, str | dict) and bool(error)


# --- how much work a result is --------------------------------------------------------------------
# Counting stops as soon as the answer is known.


def is_small(blocks: Sequence[Block], max_chars: int) -> bool:
    """Return whether text and JSON have at most `max_chars`, roughly, and there is no media."""
    room = max_chars
    for block in blocks:
        if isinstance(block, Text):
            room -= len(block.text) + EACH
        elif isinstance(block, Data):
            room = budget_left(block.value, room)
        else:
            return False
        if room < 0:
            return False
    return True
