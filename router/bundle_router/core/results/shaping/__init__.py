"""Turns a tool's result into the text for the model, bounded, and the bytes to store as artifacts.

Pure.

Rules:
1. Bytes never reach the model. Media blocks, base64 of media and `data:` URIs, in text and anywhere
   inside JSON, become references (`[artifact artifact:sha256:… image/png 12,345 bytes 640x480]`);
   equal bytes are one artifact.
2. Duplicates are shown once: a text that equals a structured value of the same result.
3. Invisible characters are made visible: controls, bidirectional marks, tags and zero-width
   characters are written as `\\u202e`, except where a script or an emoji needs them. Line ends
   become `\\n`.
4. The kept text never exceeds the cap, apart from notices. Text keeps head and tail at line ends,
   JSON keeps whole leading items of its largest array, and both say how much is missing.
5. The full text of a cut result is in the artifact that the notice names: the text before rules 3
   and 4, without base64, so that it can be paged and searched.
6. Short clean text is unchanged. The same blocks always give the same bytes.
7. What an untrusted server says stands in a constant frame that no content can close. It is added
   last, beyond the cap; our own notices follow it.
8. A failure that is reported as a success is left unchanged, and flagged.

`payloads` replaces payloads, `visible` escapes, `cut` bounds; `shape` drops duplicates first,
flags failures last, and calls the others in order. Forms for one provider (image parts, documents)
are made later from `ShapedResult.blobs`; nothing here knows a provider.
"""

from bundle_router.core.results.shaping.shape import is_small, shape
from bundle_router.core.results.shaping.shaped import Blob, Part, Role, ShapedResult

__all__ = [
    "Blob",
    "Part",
    "Role",
    "ShapedResult",
    "is_small",
    "shape",
]
