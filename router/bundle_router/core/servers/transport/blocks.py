"""Turns a raw `tools/call` result into blocks. Nothing that a server sends can make this raise.

Rules:
1. One bad block costs one block: a sentence takes its place, and its siblings stay.
2. Base64 is decoded here, once, so that no base64 leaves as text. Media without any content is
   replaced by a note.
3. What is not in MCP's form is kept whole, as data, rather than lost: a result, and a block of
   media whose bytes are elsewhere (an address) or in no form that is known.
4. Structured content that repeats the list of content blocks is left out.
5. Whom a block is for (`annotations.audience`) decides nothing: no server can show a person one
   thing and the agent another, and the record holds what the agent knew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bundle_router.core.values import Block, Data, Media, Text
from bundle_router.core.values.canonical import EACH
from bundle_router.core.values.encoded_bytes import read_media, type_said

_SAYS_NOTHING: Final = {
    "image": ("type", "annotations", "_meta", "mimeType"),
    "audio": ("type", "annotations", "_meta", "mimeType"),
    "resource": ("uri", "name", "title", "annotations", "_meta", "mimeType"),
}
"""Keys of media that hold no content: the `uri` of a resource is its name."""
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
        yield _media(str(kind), item, "")
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
        name = uri.rstrip("/").rpartition("/")[2] or uri
        yield _media("resource", resource, name)
    else:
        yield Data(
            {"type": "resource", **{key: resource[key] for key in _LINK_KEYS if key in resource}}
        )


def _media(kind: str, holder: Mapping[str, Any], name: str) -> Block:
    """Return the media that a block or resource holds, in whatever form and place."""
    found = read_media(holder)
    if found is not None:
        return Media(found.data, found.mime_type, name)
    if any(value for key, value in holder.items() if key not in _SAYS_NOTHING[kind]):
        return Data(dict(holder))
    claimed = type_said(holder)
    label = f"{kind} block{f' ({claimed})' if claimed else ''}"
    return Text(f"[{label}: empty, the server sent no data]")


def _word(value: Any) -> str:
    return value[:1_000] if isinstance(value, str) else ""
