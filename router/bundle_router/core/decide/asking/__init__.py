"""Asking a model, as values: the prompt, the answer's shape, the cache key, the breaker, and what
failed. Pure.
"""
