"""Calls to language models through litellm, answers read by instructor. The `ModelClient` port."""

from router.adapters.llm.client import LiteLlm

__all__ = ["LiteLlm"]
