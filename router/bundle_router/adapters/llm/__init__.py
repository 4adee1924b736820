"""Calls language and embedding models through litellm; instructor parses the answers.

Implements the `ModelClient` port, and `Embedder` for remote models.
"""

from bundle_router.adapters.llm.client import LiteLlm
from bundle_router.adapters.llm.embedding import LiteLlmEmbedder
from bundle_router.adapters.llm.loading import has_price, without_price, without_provider

__all__ = ["LiteLlm", "LiteLlmEmbedder", "has_price", "without_price", "without_provider"]
