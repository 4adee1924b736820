"""Optional embeddings: a local model, the vectors of a catalog, and their cache on disk.

A remote model is reached through litellm: see `bundle_router.adapters.llm.embedding`.
"""

from bundle_router.adapters.embeddings.kept import VectorStore, cache_folder
from bundle_router.adapters.embeddings.nearest import DenseVectors
from bundle_router.adapters.embeddings.onnx import LocalEmbedder
from bundle_router.adapters.embeddings.vectors import embed_texts, vectors_for, vectors_in_stages

__all__ = [
    "DenseVectors",
    "LocalEmbedder",
    "VectorStore",
    "cache_folder",
    "embed_texts",
    "vectors_for",
    "vectors_in_stages",
]
