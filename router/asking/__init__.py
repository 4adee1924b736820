"""Asking a model: one question, one deadline, at most two upstream calls. `ModelSelector` implements `Selector`."""

from router.asking.selector import ModelSelector

__all__ = ["ModelSelector"]
