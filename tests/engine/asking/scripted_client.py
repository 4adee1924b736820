"""A model client without a network: the fake of its port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bundle_router.core.decide.asking.model_exchange import ModelReply, ModelRequest
from bundle_router.core.values import FAILURES, Failure
from bundle_router.ports import Readiness

Said = str | Failure
Script = Callable[[ModelRequest], Said]


class ScriptedClient:
    """A model client without a network: answers with text, or a failure. Counts calls by model."""

    def __init__(
        self, script: Script, readiness: Readiness = "ready", retry_after_s: float | None = None
    ) -> None:
        self.calls: list[ModelRequest] = []
        self.closed = False
        self._script = script
        self._after = readiness
        self._retry_after_s = retry_after_s
        self.readiness: Readiness = "cold"

    async def warm_up(self) -> Readiness:
        self.readiness = self._after
        return self.readiness

    async def complete(self, request: ModelRequest) -> ModelReply:
        self.calls.append(request)
        await asyncio.sleep(0)
        said = self._script(request)
        if said in FAILURES:
            return ModelReply(failure=said, retry_after_s=self._retry_after_s)
        try:
            return ModelReply(
                answer=request.shape.model_validate_json(said), raw=said, input_tokens=10
            )
        except ValueError:
            return ModelReply(failure="invalid_output", raw=said)

    async def close(self) -> None:
        self.closed = True

    def count(self, model: str) -> int:
        return sum(request.model.name == model for request in self.calls)


def always(said: Said) -> Script:
    return lambda request: said
