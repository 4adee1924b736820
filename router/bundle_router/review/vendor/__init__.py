"""Generates typed Python wrappers for a server's reviewed tools, as source text.

Pure: pins in, text out.

Rules:
1. The text is made only from pins, so from definitions that a person has reviewed; its header has
   their digests.
2. Nothing that a server wrote becomes code. Its texts are only in string literals and docstrings;
   its names become identifiers only if they are valid ones, and are reached through an alias
   otherwise.
3. A wrapper does not call a server. It receives a `call` (say `Router.call` of a run), so policy,
   pins, limits and the log are the same as for any other call.
4. Types express what Python can: models, lists, choices, unions, recursion. Patterns, bounds and
   conditions are checked against the pinned schema during the call.
5. The same pins give the same bytes, formatted as `ruff format` would.
"""

from bundle_router.review.vendor.source import drifted_wrappers, module_name, vendored_source

__all__ = ["drifted_wrappers", "module_name", "vendored_source"]
