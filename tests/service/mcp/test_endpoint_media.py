"""Media at the endpoint: as blocks where they are small and what they seem, as links where not, in
both eras.
"""

from __future__ import annotations

import base64
import io
import random
import struct
import wave
import zlib
from dataclasses import dataclass
from typing import Any

import pytest
from bundle_router.core.values import Block, Media, Text
from bundle_router.errors import RequestError
from bundle_router.tool import LocalTool, ToolContext, ToolOutput
from pydantic import BaseModel

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

ERAS = ("legacy", "auto")


def png(side: int) -> bytes:
    """A grey picture that does not compress."""
    rows = b"".join(
        b"\0" + random.Random(side * 10_000 + row).randbytes(side) for row in range(side)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def wav() -> bytes:
    made = io.BytesIO()
    with wave.open(made, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8_000)
        sound.writeframes(bytes(4_000))
    return made.getvalue()


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
SHOWN: dict[str, tuple[Block, ...]] = {
    "small": (Text("Here it is."), Media(png(8), "image/png")),
    "sound": (Media(wav(), "audio/wav"),),
    "large": (Media(png(800), "image/png"),),
    "huge": (Media(png(900), "image/png"),),
    "many": tuple(Media(png(side), "image/png") for side in range(400, 410)),
    "drawing": (Media(SVG, "image/png"),),
    "page": (Media(b"<html><script>alert(1)</script></html>", "image/png"),),
    "nothing": (Media(b"", "image/png"),),
    "note": (
        Text("Before."),
        Text("The note.\nIts end.", "notes://1", "text/markdown"),
        Text("After."),
    ),
    "app": (Text("<script>alert(1)</script>", "ui://app", "text/html;profile=mcp-app"),),
    "long": (Text("line\n" * 10_000),),
}


class Wanted(BaseModel):
    what: str


@dataclass
class Studio:
    """A local tool that shows what it is asked for."""

    def show(self, arguments: Wanted, context: ToolContext) -> ToolOutput:
        return ToolOutput(SHOWN[arguments.what])

    @property
    def tools(self) -> tuple[LocalTool, ...]:
        names = ("show", "echo", "late", "wait")
        return tuple(LocalTool(name, "Show a thing.", Wanted, self.show) for name in names)


@pytest.fixture
def studio(site: Any) -> Any:
    site.kit = Studio()
    bundles = site.folder / "config" / "bundles.toml"
    bundles.write_text(bundles.read_text().replace('"kit.echo", "kit.wait"', '"kit.show"'))
    return site


def shown(site: Any, what: str, era: str = "auto", *more: tuple[str, dict[str, Any]]) -> list[Any]:
    """The result of showing it, and of the calls that come after."""

    async def work(_router: Any, endpoint: Any) -> list[Any]:
        async with site.client(endpoint, era) as connected:
            return [
                await connected.call_tool(name, arguments)
                for name, arguments in (("kit__show", {"what": what}), *more)
            ]

    results: list[Any] = site.serve(work)
    return results


def kinds(result: Any) -> list[str]:
    return [block.type for block in result.content]


def uri_of(data: bytes) -> str:
    import hashlib

    return f"artifact:sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.mark.parametrize("era", ERAS)
def test_a_small_picture_is_an_image_block_behind_the_text_that_names_its_handle(
    studio: Any, era: str
) -> None:
    (result,) = shown(studio, "small", era)
    assert kinds(result) == ["text", "image"]
    said, image = result.content
    assert (
        said.text == f"Here it is.\n[artifact {uri_of(png(8))} image/png {len(png(8))} bytes 8x8]"
    )
    assert (image.mime_type, base64.b64decode(image.data)) == ("image/png", png(8))
    (row,) = [row for row in studio.records() if row["type"] == "call.finished"]
    assert base64.b64encode(png(8)).decode()[:40] not in str(row)
    (artifact,) = row["artifacts"]
    assert (artifact["width"], artifact["height"], artifact["claimed_type"]) == (8, 8, "image/png")


@pytest.mark.parametrize("era", ERAS)
def test_a_sound_is_an_audio_block(studio: Any, era: str) -> None:
    (result,) = shown(studio, "sound", era)
    assert kinds(result) == ["text", "audio"]
    assert (result.content[1].mime_type, base64.b64decode(result.content[1].data)) == (
        "audio/wav",
        wav(),
    )
    assert "0.5 s" in result.content[0].text
    (row,) = [row for row in studio.records() if row["type"] == "call.finished"]
    assert row["artifacts"][0]["duration_s"] == 0.5


@pytest.mark.parametrize("era", ERAS)
def test_a_large_picture_is_a_link_with_its_type_and_size(studio: Any, era: str) -> None:
    (result,) = shown(studio, "large", era)
    assert kinds(result) == ["text", "resource_link"]
    link = result.content[1]
    assert (str(link.uri), link.mime_type, link.size) == (
        uri_of(png(800)),
        "image/png",
        len(png(800)),
    )


def test_many_pictures_of_one_answer_stay_under_one_mebibyte_together(studio: Any) -> None:
    (result,) = shown(studio, "many")
    assert kinds(result) == ["text", *["image"] * 4, *["resource_link"] * 6]
    assert len(result.model_dump_json()) < 1024 * 1024


@pytest.mark.parametrize("what", ["drawing", "page"])
def test_what_is_not_the_picture_it_is_called_is_linked_by_what_its_bytes_are(
    studio: Any, what: str
) -> None:
    (result,) = shown(studio, what)
    assert kinds(result) == ["text", "resource_link"]
    assert result.content[1].mime_type in ("image/svg+xml", "text/html")
    assert "claimed image/png" in result.content[0].text


def test_an_empty_picture_says_so_and_is_no_block(studio: Any) -> None:
    (result,) = shown(studio, "nothing")
    assert kinds(result) == ["text"]
    assert result.content[0].text == "[empty media, claimed image/png: 0 bytes]"


@pytest.mark.parametrize("era", ERAS)
def test_a_resource_within_a_result_stays_one_in_its_place(studio: Any, era: str) -> None:
    (result,) = shown(studio, "note", era)
    assert kinds(result) == ["text", "resource", "text"]
    note = result.content[1].resource
    assert (str(note.uri), note.mime_type, note.text) == (
        "notes://1",
        "text/markdown",
        "The note.\nIts end.",
    )
    (row,) = [row for row in studio.records() if row["type"] == "call.finished"]
    assert (
        row["result"] == "Before.\n[resource notes://1, text/markdown]\nThe note.\nIts end.\nAfter."
    )


def test_a_page_within_a_result_is_plain_text_to_the_client(studio: Any) -> None:
    (result,) = shown(studio, "app")
    resource = result.content[0].resource
    assert (resource.mime_type, resource.text) == ("text/plain", "<script>alert(1)</script>")


def test_a_result_that_was_cut_is_named_by_its_text_alone(studio: Any) -> None:
    (result,) = shown(studio, "long")
    assert kinds(result) == ["text"]
    assert "read_artifact reads it in pages" in result.content[0].text


@pytest.mark.parametrize("era", ERAS)
def test_what_was_cut_is_paged_and_searched(studio: Any, era: str) -> None:
    whole = uri_of(b"line\n" * 10_000)
    _, page, hits = shown(
        studio,
        "long",
        era,
        ("read_artifact", {"uri": whole, "unit": "lines", "offset": 9_999, "limit": 5}),
        ("search_artifact", {"uri": whole, "pattern": "line"}),
    )
    assert page.content[0].text == "line\n[lines 9,999 to 10,000 of 10,000; the end]"
    assert "10,000 of 10,000 lines" in hits.content[0].text


@pytest.mark.parametrize("era", ERAS)
def test_reading_the_artifact_of_a_picture_shows_it(studio: Any, era: str) -> None:
    _, read, searched, absent = shown(
        studio,
        "small",
        era,
        ("read_artifact", {"uri": uri_of(png(8))}),
        ("search_artifact", {"uri": uri_of(png(8)), "pattern": "x"}),
        ("read_artifact", {"uri": uri_of(b"?")}),
    )
    assert kinds(read) == ["text", "image"]
    assert "8x8" in read.content[0].text
    assert base64.b64decode(read.content[1].data) == png(8)
    assert kinds(searched) == kinds(absent) == ["text"]
    assert (searched.is_error, absent.is_error) == (False, True)


def test_an_operator_can_have_all_media_linked(studio: Any) -> None:
    (studio.folder / "config" / "router.toml").write_text("[limits]\nmax_inline_bytes = 0\n")
    (result,) = shown(studio, "small")
    assert kinds(result) == ["text", "resource_link"]


@pytest.mark.parametrize(
    ("revision", "expected"), [("2024-11-05", ["text"]), ("2025-03-26", ["text", "audio"])]
)
def test_a_client_of_an_older_revision_gets_no_block_it_does_not_know(
    studio: Any, revision: str, expected: list[str]
) -> None:
    async def work(router: Any, _endpoint: Any) -> list[list[str]]:
        from bundle_router.service.mcp.served_runs import content_of

        async def media(uri: str, link: bool) -> dict[str, Any]:
            block: dict[str, Any] = await router.media("r", uri, format="mcp", link=link)
            return block

        results = [
            await router.call("r", "kit.show", {"what": what}) for what in ("sound", "large")
        ]
        return [
            [block["type"] for block in await content_of(result, media, 500_000, revision)]
            for result in results
        ]

    assert studio.serve(work) == [expected, ["text"]]


def test_an_artifact_is_read_as_a_resource_by_what_its_bytes_are_or_refused_in_words(
    studio: Any,
) -> None:
    async def work(router: Any, _endpoint: Any) -> list[Any]:
        from bundle_router.service.mcp.served_runs import resource_of

        async def media(uri: str, link: bool) -> dict[str, Any]:
            block: dict[str, Any] = await router.media("r", uri, format="mcp", link=link)
            return block

        for what in ("small", "drawing", "huge"):
            await router.call("r", "kit.show", {"what": what})
        read: list[Any] = [await resource_of(uri_of(data), media) for data in (png(8), SVG)]
        for uri, why in (
            (uri_of(png(900)), "too much for one answer"),
            (uri_of(b"?"), "no artifact"),
            ("file:///x", "is not an artifact"),
        ):
            with pytest.raises(RequestError, match=why):
                await resource_of(uri, media)
        return read

    picture, drawing = studio.serve(work)
    assert (picture["mimeType"], base64.b64decode(picture["blob"])) == ("image/png", png(8))
    assert (drawing["mimeType"], drawing["text"]) == ("image/svg+xml", SVG.decode())


def test_every_answer_says_that_it_is_no_page(studio: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> list[Any]:
        sent = [studio.request(endpoint, token=token) for token in (None, "wrong")]
        return [await studio.raw(endpoint.port, one) for one in sent]

    for answer in studio.serve(work):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"


@pytest.mark.parametrize("era", ERAS)
def test_what_a_link_names_is_read_as_a_resource_and_nothing_of_another_run(
    studio: Any, era: str
) -> None:
    async def work(router: Any, endpoint: Any) -> tuple[Any, Any]:
        await router.route(studio.step(run_id="other"))
        await router.call("other", "kit.show", {"what": "sound"})
        async with studio.client(endpoint, era) as connected:
            await connected.call_tool("kit__show", {"what": "small"})
            linked = await connected.call_tool("kit__show", {"what": "drawing"})
            read = [
                await connected.read_resource(uri)
                for uri in (str(linked.content[1].uri), uri_of(png(8)))
            ]
            for uri in (uri_of(wav()), "artifact:sha256:../../run.json", "artifact:sha256:"):
                with pytest.raises(Exception, match="artifact"):
                    await connected.read_resource(uri)
            with pytest.raises(Exception, match="Method not found"):
                await connected.read_resource("file:///etc/passwd")
        return read[0].contents[0], read[1].contents[0]

    drawing, picture = studio.serve(work)
    assert (drawing.mime_type, drawing.text) == ("image/svg+xml", SVG.decode())
    assert (picture.mime_type, base64.b64decode(picture.blob)) == ("image/png", png(8))
