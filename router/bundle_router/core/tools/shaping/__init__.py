"""From what a tool gave to what the model sees: one bounded text, and the bytes that become artifacts. Pure.

Rules:
1. Bytes never reach the model. Media blocks, base64 of media and `data:` URIs, in text and anywhere inside JSON,
   become references (`[artifact artifact:sha256:… image/png 12,345 bytes 640x480]`); equal bytes are one artifact.
2. What is sent twice is shown once: text that says the same as a structured value of the same result.
3. Invisible characters are made visible: controls, bidirectional marks, tags and zero-width characters are written
   as `\\u202e`, save where a script or an emoji needs them. Line ends become `\\n`.
4. The text that is kept never exceeds the cap; only notices come on top. Text keeps head and tail at line ends,
   JSON keeps whole leading items of its largest array, and both say how much is missing.
5. Whatever is cut is whole in the artifact named by the notice: the text before rules 3 and 4, so that paging and
   searching it never meet base64.
6. Short clean text comes out as it went in. The same blocks always give the same bytes.
7. A failure dressed as a success is left as it is, and flagged.

Theory of operation: `references` replaces payloads, `visible` escapes, `cut` bounds; `shape` drops duplicates first,
flags failures last, and puts all in order. A form for one provider (image parts, documents) is made later from
`ShapedResult.blobs`; nothing in here knows a provider.
"""

from bundle_router.core.tools.shaping.shape import is_small, shape
from bundle_router.core.tools.shaping.shaped import Blob, Describe, MediaFacts, Part, Role, ShapedResult
from bundle_router.core.tools.shaping.visible import visible

__all__ = ["Blob", "Describe", "MediaFacts", "Part", "Role", "ShapedResult", "is_small", "shape", "visible"]
