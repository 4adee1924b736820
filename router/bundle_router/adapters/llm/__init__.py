"""Calls to language and embedding models through litellm; answers read by instructor. The `ModelClient` port, and
`Embedder` for models that are elsewhere."""

from bundle_router.adapters.llm.client import LiteLlm
from bundle_router.adapters.llm.embedding import LiteLlmEmbedder

__all__ = ["LiteLlm", "LiteLlmEmbedder"]
