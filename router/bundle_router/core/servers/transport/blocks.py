"""Turns a raw `tools/call` result into blocks. Nothing that a server sends can make this raise.

Rules:
1. One bad block costs one block: a sentence takes its place, and its siblings stay.
2. Base64 is decoded here, once, so that no base64 leaves as text. Empty or undecodable content is
   replaced by a note.
3. A result that is not in MCP's form is kept whole, as data, rather than lost.
4. Structured content that repeats the list of content blocks is left out.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bundle_router.core.values import Block, Data, Media, Text
from bundle_router.core.values.canonical import EACH

_SLICE: Final = 256 * 1024
_LINK_KEYS: Final = ("uri", "name", "title", "description", "mimeType", "size")


def take_out_nan(value: dict[str, Any], max_chars: float = math.inf) -> bool:
    """Replace NaN and the infinities in the value by null, in place, as JavaScript does.

    Stop, and return False, where the value has more than `max_chars`, roughly.
    """
    waiting: list[Any] = [value]
    for item in waiting:
        max_chars -= EACH * len(item)
        if type(item) is dict and max_chars >= 0:
            max_chars -= len("".join(item))
        if max_chars < 0:
            return False
        for key, inner in item.items() if type(item) is dict else enumerate(item):
            kind = type(inner)  # the parser makes no other
            if kind is str:
                max_chars -= len(inner)
            elif kind is dict or kind is list:
                waiting.append(inner)
            elif kind is float and not math.isfinite(inner):
                item[key] = None
    return max_chars >= 0


def blocks_of(result: Mapping[str, Any], max_blocks: int) -> tuple[Block, ...]:
    """Return the blocks of a result: at most `max_blocks` of its content in order, then structured
    content.
    """
    content = result.get("content")
    structured = result.get("structuredContent")
    blocks: list[Block] = []
    if isinstance(content, list):
        for item in content[:max_blocks]:
            blocks.extend(_blocks(item))
        if len(content) > max_blocks:
            blocks.append(
                Text(
                    f"[{len(content) - max_blocks:,} more blocks were dropped: {max_blocks:,} are"
                    " taken]"
                )
            )
    elif "content" in result:
        blocks.append(Data(content))
    if structured is not None and not _repeats_content(structured, content):
        blocks.append(Data(structured))
    if not blocks and "content" not in result and structured is None:
        rest = {
            key: value
            for key, value in result.items()
            if key not in ("_meta", "isError", "resultType")
        }
        if rest:
            blocks.append(Data(rest))
    return tuple(blocks)


def _repeats_content(structured: Any, content: Any) -> bool:
    """Return whether structured content repeats the content, as a real file server sends it with
    media.
    """
    return bool(content) and isinstance(structured, dict) and structured == {"content": content}


def _blocks(item: Any) -> Iterator[Block]:
    if not isinstance(item, dict | Mapping):
        yield Text(f"[a block that is no object: {type(item).__name__}]")
        return
    kind = item.get("type")
    if kind == "text" and isinstance(item.get("text"), str):
        yield Text(item["text"])
    elif kind in ("image", "audio"):
        yield _media(str(kind), item.get("data"), item.get("mimeType"), "")
    elif kind == "resource" and isinstance(item.get("resource"), Mapping):
        yield from _resource(item["resource"])
    elif kind == "resource_link":
        yield Data(
            {"type": "resource_link", **{key: item[key] for key in _LINK_KEYS if key in item}}
        )
    else:
        yield Data(dict(item))


def _resource(resource: Mapping[str, Any]) -> Iterator[Block]:
    uri = _word(resource.get("uri"))
    mime_type = _word(resource.get("mimeType"))
    if isinstance(resource.get("text"), str):
        if uri:
            yield Text(resource["text"], uri, mime_type)
        else:
            yield Text(
                "[resource without a"
                f" URI{f', {mime_type}' if mime_type else ''}]\n{resource['text']}"
            )
    elif "blob" in resource:
        yield _media(
            "resource", resource["blob"], mime_type, uri.rstrip("/").rpartition("/")[2] or uri
        )
    else:
        yield Data(
            {"type": "resource", **{key: resource[key] for key in _LINK_KEYS if key in resource}}
        )


def _media(kind: str, data: Any, mime_type: Any, name: str) -> Block:
    claimed = _word(mime_type)
    label = f"{kind} block{f' ({claimed})' if claimed else ''}"
    if not isinstance(data, str) or not data:
        return Text(f"[{label}: empty, the server sent no data]")
    try:
        decoded = _decode_base64(_pad_base64(data), b"-_" if "-" in data or "_" in data else None)
    except (binascii.Error, ValueError):
        return Text(f"[{label}: can't be decoded, its {len(data):,} characters are not base64]")
    return Media(decoded, claimed, name) if decoded else Text(f"[{label}: empty]")


def _decode_base64(data: str, altchars: bytes | None) -> bytes:
    """Decode base64 slice by slice, because a decoder holds the GIL until it has finished."""
    slices = [data[start : start + _SLICE] for start in range(0, len(data), _SLICE)]
    if any("=" in one for one in slices[:-1]):
        raise ValueError("padding in the middle")
    return b"".join(base64.b64decode(one, altchars=altchars, validate=True) for one in slices)


def _pad_base64(data: str) -> str:
    """Remove line breaks and add missing `=`: both are common and harmless."""
    if "\n" in data or "\r" in data:
        data = data.replace("\n", "").replace("\r", "")
    return data + "=" * (-len(data) % 4)


def _word(value: Any) -> str:
    return value[:1_000] if isinstance(value, str) else ""
