"""Similarity of meaning beside similarity of words: the embedder's input, the checks of its output,
and its weight.

Rules:
1. Embedded are the operator's words, the cards of trusted servers and, in a space that ranks only
   tools, pinned cards of other servers. Unread text is sent to no embedder: it neither ranks nor
   leaves the machine. A bundle's line and each of its examples are vectors of their own: the
   nearest counts.
2. Vectors are accepted all or none: as many as texts, all of one length, finite, none of them zero.
3. Fusing keeps scores. Similarity is the cosine relative to the best permitted one, squared: the
   cosines of unrelated texts are so close together that, unsquared, they would outweigh the
   differences between words.
4. If a request has no vector, words alone rank, exactly as if no embedder were configured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bundle_router.core.search.documents import BundleText, ToolText
from bundle_router.core.search.index import NearDocument, Space

MAX_PASSAGE: Final = 1_000
"""Maximum characters of a text that are embedded.

Small models read the first 256 word pieces or so.
"""
MAX_DIMENSION: Final = 8_192


@dataclass(frozen=True, slots=True)
class Passage:
    """One text to embed, and the id of the document it represents, which may have several."""

    id: str
    collection: Space
    text: str


def passages_of(bundles: Iterable[BundleText], tools: Iterable[ToolText]) -> tuple[Passage, ...]:
    """Return the passages of a catalog's texts, in the order of their ids; of a bundle one with its
    line and the names of its tools, and one of each example.
    """
    passages = []
    trusted_names = {}
    for tool in tools:
        if tool.standing == "unread":
            continue
        collection: Space = "pinned"
        if tool.standing == "trusted":
            collection = "tools"
            trusted_names[tool.id] = tool.name
        text = passage(f"{tool.server} {tool.name}: {tool.description}")
        passages.append(Passage(tool.id, collection, text))

    for bundle in bundles:
        names = ", ".join(trusted_names[id_] for id_ in bundle.tools if id_ in trusted_names)
        further = (", ".join(bundle.words), names)
        line = "\n".join((f"{bundle.id}: {bundle.description}", *filter(None, further)))
        passages += [
            Passage(bundle.id, "bundles", passage(text)) for text in (line, *bundle.examples)
        ]
    return tuple(sorted(passages, key=lambda row: (row.collection, row.id)))


def passage(text: str) -> str:
    """Return the embedded part of a text: its beginning, as valid Unicode (tokenizers and JSON take
    no lone surrogates).
    """
    return text[:MAX_PASSAGE].encode("utf-8", "replace").decode("utf-8")


def fault_in(vectors: Sequence[Sequence[float]], count: int, dimension: int | None = None) -> str:
    """Return the fault of an embedder's output for `count` texts; empty if it is valid.

    `dimension` is the length they must have; None: any, if it is the same for all.
    """
    if len(vectors) != count:
        return f"{len(vectors)} vectors for {count} texts"
    for vector in vectors:
        dimension = len(vector) if dimension is None else dimension
        if len(vector) != dimension or not 0 < dimension <= MAX_DIMENSION:
            return f"a vector of {len(vector)} numbers, not {dimension}"
        if all(map(math.isfinite, vector)):
            length = math.fsum(value * value for value in vector)
        else:
            length = math.nan
        if not 0.0 < length < math.inf:
            return "a vector that points nowhere"
    return ""


def similarities(cosines: Mapping[str, float]) -> dict[str, float]:
    """Return the similarity of each document by rule 3: 1 for the nearest."""
    best = max(cosines.values(), default=0.0)
    return {id_: (cosine / best) ** 2 for id_, cosine in cosines.items() if cosine > 0.0}


def best_of_tools(
    near: Iterable[NearDocument], owners: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return each bundle's nearest tool, by cosine."""
    best: dict[str, float] = {}
    for id_, cosine in near:
        for bundle in owners.get(id_, ()):
            best[bundle] = max(cosine, best.get(bundle, 0.0))
    return best
