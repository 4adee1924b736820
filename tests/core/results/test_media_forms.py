"""Artifacts handed on: as parts of a message in a provider's form, and as arguments of the next
call.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.archive import Archive
from bundle_router.core.results.shaping.media_forms import MAX_BYTES, media_form
from bundle_router.core.values import Media, Text
from bundle_router.core.values.artifacts import MediaFacts
from bundle_router.errors import RequestError
from bundle_router.tool import LocalTool, ToolContext, ToolOutput
from pydantic import Base64Bytes, BaseModel, Field

URI = "artifact:sha256:" + "ab" * 32


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", 2, 1, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b"\0" * 7))
        + chunk(b"IEND", b"")
    )


B64 = base64.b64encode(b"bytes").decode()


@pytest.mark.parametrize(
    ("mime_type", "form", "made"),
    [
        ("image/png", "openai", {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{B64}"}}),
        ("audio/wav", "openai", {"type": "input_audio", "input_audio": {"data": B64, "format": "wav"}}),
        ("application/pdf", "openai", {"type": "file", "file": {
            "filename": "artifact-abababababab.pdf", "file_data": f"data:application/pdf;base64,{B64}"}}),
        ("text/plain; charset=utf-8", "openai", {"type": "text", "text": "bytes"}),
        ("image/webp", "anthropic", {"type": "image", "source": {
            "type": "base64", "media_type": "image/webp", "data": B64}}),
        ("application/pdf", "anthropic", {"type": "document", "source": {
            "type": "base64", "media_type": "application/pdf", "data": B64}}),
        ("text/plain", "anthropic", {"type": "document", "title": "artifact-abababababab", "source": {
            "type": "text", "media_type": "text/plain", "data": "bytes"}}),
        ("image/png", "mcp", {"type": "image", "data": B64, "mimeType": "image/png"}),
        ("audio/mpeg", "mcp", {"type": "audio", "data": B64, "mimeType": "audio/mpeg"}),
        ("application/zip", "mcp", {"type": "resource", "resource": {
            "uri": URI, "mimeType": "application/zip", "blob": B64}}),
        ("application/json", "mcp", {"type": "resource", "resource": {
            "uri": URI, "mimeType": "application/json", "text": "bytes"}}),
    ],
)  # fmt: skip
def test_an_artifact_comes_in_the_form_a_provider_takes(
    mime_type: str, form: Any, made: dict[str, Any]
) -> None:
    assert media_form(URI, b"bytes", MediaFacts(mime_type), form) == made


@pytest.mark.parametrize(
    ("mime_type", "form", "data", "says"),
    [
        ("audio/wav", "anthropic", b"x", "anthropic takes no such content"),
        ("image/tiff", "openai", b"x", "openai takes no such content"),
        ("application/octet-stream", "openai", b"x", "openai takes no such content"),
        ("image/png", "anthropic", b"", "is empty"),
        ("image/png", "anthropic", b"x" * (MAX_BYTES["anthropic"] + 1), "fit a message"),
    ],
)  # fmt: skip
def test_what_a_provider_does_not_take_is_said_in_words(
    mime_type: str, form: Any, data: bytes, says: str
) -> None:
    part = media_form(URI, data, MediaFacts(mime_type), form)
    assert part["type"] == "text"
    assert says in part["text"]
    assert len(part["text"]) < 300


def test_over_mcp_large_bytes_and_those_asked_for_so_are_linked() -> None:
    big = b"x" * (MAX_BYTES["mcp"] + 1)
    linked = media_form(URI, big, MediaFacts("image/png"), "mcp")
    assert (linked["type"], linked["uri"], linked["size"]) == ("resource_link", URI, len(big))
    assert (
        media_form(URI, b"x", MediaFacts("image/png"), "mcp", link=True)["type"] == "resource_link"
    )


# --- as arguments ---------------------------------------------------------------------------------


class Nothing(BaseModel):
    pass


class Picture(BaseModel):
    image: Base64Bytes
    note: str = ""
    more: list[Base64Bytes] = Field(default_factory=list)


def draw(arguments: Nothing, context: ToolContext) -> ToolOutput:
    return ToolOutput((Media(png(), "image/png"),))


def weigh(arguments: Picture, context: ToolContext) -> ToolOutput:
    same = arguments.image == png()
    return ToolOutput((Text(f"{same} {len(arguments.more)} {arguments.note}"),))


TOOLS = (
    LocalTool("draw", "Draw.", Nothing, draw),
    LocalTool("weigh", "Weigh a picture.", Picture, weigh),
)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    config = tmp_path / "config"
    config.mkdir()
    (config / "servers.toml").write_text(
        '[servers.art]\ntransport = "local"\ntrust = "trusted"\n', "utf-8"
    )
    (config / "bundles.toml").write_text(
        '[bundles.art]\ndescription = "Art."\ntools = ["art.*"]\neffects = ["read"]\n', "utf-8"
    )
    (config / "routes.toml").write_text('[[routes]]\nname = "art"\nbundles = ["art"]\n', "utf-8")
    (config / "router.toml").write_text("[limits]\nmax_result_bytes = 1024\n", "utf-8")
    (config / "policy.toml").write_text('[[policies]]\nname = "all"\nallow = ["*"]\n', "utf-8")
    with Router.open(
        config, runs=tmp_path / "runs", workspace=tmp_path, local={"art": TOOLS}
    ) as opened:
        for run_id in ("r", "other"):
            opened.route_sync(Step(run_id=run_id, workflow="w", role="r", step="s"))
        yield opened


def test_a_handle_stands_for_bytes_where_the_schema_wants_them_and_is_what_is_recorded(
    router: Router, tmp_path: Path
) -> None:
    (drawn,) = router.call_sync("r", "art.draw", {}).artifacts
    result = router.call_sync(
        "r", "art.weigh", {"image": drawn.uri, "note": drawn.uri, "more": [drawn.uri, drawn.uri]}
    )
    assert result.text == f"True 2 {drawn.uri}", "text stays text"
    assert router.call_sync(
        "r", "call_tool", {"name": "weigh", "arguments": {"image": drawn.uri}}
    ).ok
    recorded = (tmp_path / "runs" / "r" / "tool-calls.jsonl").read_text(encoding="utf-8")
    assert base64.b64encode(png()).decode()[:40] not in recorded
    assert recorded.count(drawn.uri) > 4
    assert Archive(tmp_path / "runs").verify("r").ok


def test_a_handle_of_another_run_or_of_nothing_is_refused(router: Router) -> None:
    (drawn,) = router.call_sync("r", "art.draw", {}).artifacts
    for run_id, uri in (("other", drawn.uri), ("r", URI)):
        result = router.call_sync(run_id, "art.weigh", {"image": uri})
        assert (result.outcome, result.code) == ("invalid_arguments", "not_found")
        assert "which this run does not have" in result.text


def test_artifacts_of_more_bytes_than_a_result_may_have_are_not_taken(router: Router) -> None:
    (drawn,) = router.call_sync("r", "art.draw", {}).artifacts
    result = router.call_sync("r", "art.weigh", {"image": drawn.uri, "more": [drawn.uri] * 19})
    assert (result.outcome, result.code) == ("invalid_arguments", "too_large")
    assert "over 1,024 bytes" in result.text


def test_media_is_given_on_request_and_only_of_the_run(router: Router) -> None:
    (drawn,) = router.call_sync("r", "art.draw", {}).artifacts
    part: Any = router.media_sync("r", drawn.uri)
    assert base64.b64decode(part["image_url"]["url"].partition(",")[2]) == png()
    part = router.media_sync("r", drawn.uri, format="anthropic")
    assert part["source"]["media_type"] == "image/png"
    assert router.media_sync("r", drawn.uri, format="mcp", link=True)["uri"] == drawn.uri
    with pytest.raises(RequestError):
        router.media_sync("other", drawn.uri)
    with pytest.raises(RequestError, match="unknown format"):
        router.media_sync("r", drawn.uri, format="gemini")
