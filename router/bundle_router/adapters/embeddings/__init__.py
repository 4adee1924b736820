"""Optional embeddings: a model on this machine, the vectors of a catalog, and what of them is kept on disk.

A model elsewhere is reached through litellm: see `bundle_router.adapters.llm.embedding`.
"""

from bundle_router.adapters.embeddings.kept import VectorStore
from bundle_router.adapters.embeddings.nearest import DenseVectors
from bundle_router.adapters.embeddings.onnx import LocalEmbedder
from bundle_router.adapters.embeddings.vectors import embed_texts, vectors_for, vectors_in_stages

__all__ = ["DenseVectors", "LocalEmbedder", "VectorStore", "embed_texts", "vectors_for", "vectors_in_stages"]
