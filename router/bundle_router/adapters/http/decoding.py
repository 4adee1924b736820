"""Undoes the compression of a body piece by piece, so that a bomb costs no more than its bound."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

PIECE_BYTES: Final = 64 * 1024
_DETECT: Final = 47
"""zlib's `wbits` for gzip and zlib headers alike."""


class Decompressor:
    """Decodes gzip (also several members in a row) and deflate."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_DETECT)
        self._is_begun = False

    @property
    def is_whole(self) -> bool:
        """Whether no member has begun and not ended."""
        return self._member.eof or not self._is_begun

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded bytes, at most `PIECE_BYTES` at a time. Raises zlib.error."""
        while data:
            if self._member.eof:
                self._member = zlib.decompressobj(_DETECT)
            self._is_begun = True
            piece = self._member.decompress(data, PIECE_BYTES)
            data = self._member.unused_data or self._member.unconsumed_tail
            if piece:
                yield piece
