"""Asking a model: one question, one deadline, at most two upstream calls.

`ModelSelector` implements `Selector`.
"""

from bundle_router.engine.asking.selector import ModelSelector

__all__ = ["ModelSelector"]
