"""The decision API: what an engine in any language asks over HTTP, below `/v1`, as the library has it.

Rules:
1. A body is the library's own value: `Step`, `Decision`, `Toolset`, `Result`. The key is the header `Idempotency-Key`.
2. What an agent can see fail is a `Result` with status 200. What the engine did wrong, or the service could not do,
   is a problem (RFC 9457) with a closed code and a sentence of advice.
3. Who may do what is looked at before a body is read for its meaning: scopes first, then whose run it is.
4. Who goes away is not worked for: a call under way is cancelled, and recorded as such.
"""
