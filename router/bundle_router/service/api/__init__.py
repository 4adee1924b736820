"""The decision API under `/v1`: the library's calls over HTTP, for engines in any language.

Rules:
1. A body is the library's own value: `Step`, `Decision`, `Toolset`, `Result`. The key is the header
   `Idempotency-Key`.
2. A failure that an agent can see is a `Result` with status 200. An error of the engine or of the
   service is a problem (RFC 9457) with a closed code and a sentence of advice.
3. Permission is checked before a body is interpreted: first the scope, then whether the run is the
   caller's.
4. If the client disconnects, its call is cancelled, and recorded as cancelled.
"""
