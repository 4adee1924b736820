"""Typed Python wrappers for a server's reviewed tools, as source text. Pure: pins in, text out.

Rules:
1. The text is made of pins, so only of what a person has reviewed, and says which: the header carries the digests.
2. Nothing a server wrote becomes code. Its texts stand in string literals and docstrings only, its names become
   identifiers only where they are one, and everything else is reached through an alias.
3. A wrapper does not call a server. It is handed a `call` (`Router.call` of a run, say), so that policy, pins, limits
   and the log are the same as for any other call.
4. Types say what Python can say: models, lists, choices, unions, recursion. What they can't say (patterns, bounds,
   conditions) is checked against the pinned schema in the call.
5. The same pins give the same bytes, and these are as `ruff format` would write them.
"""

from bundle_router.review.vendor.source import drifted_wrappers, module_name, vendored_source

__all__ = ["drifted_wrappers", "module_name", "vendored_source"]
