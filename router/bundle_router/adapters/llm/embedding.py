"""The `Embedder` over any embedding model that litellm supports.

Rules:
1. One deadline bounds a whole `embed`, from outside: litellm's timeout is per read, which slow
   drips never reach.
2. One batch is one request on the wire (see `wire`): no retry, no redirect, at most `MAX_BYTES` of
   an answer.
3. Only the texts vary between calls: a varying timeout or key would open a new client for every
   value.
4. No exception of the library leaves this module, and none of its texts: it may hold the input, or
   the key.
5. All runs on a loop of its own in a daemon thread: litellm blocks the loop for a second on its
   first call.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from bundle_router.adapters.llm.credentials import (
    NO_KEY,
    UNCHECKED,
    RequestNotSent,
    host_of,
    key_of,
)
from bundle_router.adapters.llm.loading import (
    Libraries,
    Way,
    installed,
    load,
    silence_warnings,
    ways_for,
)
from bundle_router.adapters.llm.responses import failure_of
from bundle_router.adapters.llm.wire import Allowance, allowance, open_session
from bundle_router.adapters.loop import LoopThread
from bundle_router.core.search.index import Embedding
from bundle_router.core.values.canonical import digest

if TYPE_CHECKING:
    from aiohttp import ClientSession

BATCH: Final = 32
"""Texts per request. Providers take 96 to 2,048; a smaller batch loses less when it fails."""
MAX_BYTES: Final = 16_777_216
CLIENT_TIMEOUT_S: Final = 301.0
"""Seconds for litellm's own timeout, the same for every call (rule 3) and longer than any deadline
(rule 1).
"""
GRACE_S: Final = 1.0
"""Seconds beyond the deadline after which a blocked loop is abandoned."""
_WAYS: Final[tuple[Way, ...]] = ("session", "handler", "openai")
_WITHOUT_KEY: Final = ("ollama/",)
"""Providers that litellm reaches by a client of its own, which was seen to send no credential."""
_NOWHERE: Final = "http://127.0.0.1:9"


class _Never(int):
    """Zero retries for code that reads `max_retries or 2`. litellm 1.106 does for embeddings, and
    then waits as long as Retry-After says before a second request, which the wire refuses.
    """

    def __bool__(self) -> bool:
        return True


NEVER: Final = _Never(0)


class LiteLlmEmbedder:
    """Embeds with `model`, by litellm's name for it. Many threads may use it.

    `base_url`: the service's address (None: the provider's own). `key_env`: the variable with the
    key (None: the provider's usual one, or no key where there is a `base_url`), read at each call.
    Vectors are identified by the
    model's name and address: if a provider changes the model behind them, the operator must give it
    another name.
    """

    prompts = ("", "")

    def __init__(
        self, model: str, *, base_url: str | None = None, key_env: str | None = None
    ) -> None:
        self._model = model
        self._base_url = base_url
        self._key_env = key_env
        self._lock = threading.Lock()
        self._thread = LoopThread("bundle-router-embedder", abandon_after_s=GRACE_S * 5)
        self._ready: asyncio.Task[bool] | None = None
        self._libraries: Libraries | None = None
        self._session: ClientSession | None = None
        self._handler: Any = None
        self._way: Way | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return self._model

    @property
    def revision(self) -> str:
        if self._base_url is None:
            return self._model
        return f"{self._model}@{digest(self._base_url)[7:19]}"

    def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedding:
        """See `Embedder`."""
        if not installed():
            return Embedding(failure="not_ready", detail="needs the extra bundle-router[model]")
        with self._lock:
            if self._closed:
                return Embedding(failure="not_ready", detail="closed")
            work = self._thread.submit(self._embed(tuple(texts), timeout_s))
        return _outcome(work, timeout_s + GRACE_S)

    async def _embed(self, texts: tuple[str, ...], timeout_s: float) -> Embedding:
        """Load the library, which takes seconds and continues after a deadline: the next call finds
        it further.
        """
        if self._ready is None:
            self._ready = asyncio.create_task(self._prepare())
        try:
            async with asyncio.timeout(timeout_s):
                if not await asyncio.shield(self._ready):
                    return Embedding(failure="not_ready", detail="litellm can't be loaded")
                return await self._embed_in_batches(texts)
        except RequestNotSent as refusal:
            return Embedding(failure=refusal.failure, detail=refusal.why)
        except TimeoutError:
            return Embedding(failure="timeout" if self._ready.done() else "not_ready")
        except Exception as error:  # noqa: BLE001 - rule 4: what the library raises is no closed list
            failure, retry_after_s = failure_of(error)
            return Embedding(failure=failure, retry_after_s=retry_after_s)

    async def _embed_in_batches(self, texts: tuple[str, ...]) -> Embedding:
        """Embed all texts. Raises RequestNotSent, and whatever litellm raises."""
        if not texts:
            return Embedding(())
        key = key_of(self._model, self._key_env, self._base_url)
        way = self._way
        is_checked = way is not None or self._model.startswith(_WITHOUT_KEY)
        if self._base_url is not None and not is_checked:
            raise RequestNotSent("not_sent", UNCHECKED)
        vectors: list[tuple[float, ...]] = []
        for start in range(0, len(texts), BATCH):
            budget = Allowance(1, host_of(self._base_url, key))
            batch = list(texts[start : start + BATCH])
            try:
                vectors += await self._embed_once(
                    budget, batch, self._base_url, way or "session", key
                )
            except Exception:  # the libraries raise an error of their own around our refusal
                if budget.refusal is not None:
                    raise budget.refusal from None
                raise
        return Embedding(tuple(vectors))

    async def _prepare(self) -> bool:
        loaded = await load()
        if isinstance(loaded, str):
            return False
        self._libraries, self._session = loaded, open_session(max_bytes=MAX_BYTES, vectors=True)
        with warnings.catch_warnings():
            silence_warnings()
            self._handler = loaded.handler(self._session)
            await self._rehearse()
        return True

    async def _rehearse(self) -> None:
        """Simulate a call without a connection, key or input, because the first call takes a
        second. This finds out how the provider takes our session (see `Way`).
        """
        for way in ways_for(self._model, _WAYS):
            budget = Allowance(0)
            with suppress(
                Exception
            ):  # every rehearsal ends in an error, because no request is granted
                await self._embed_once(budget, ["rehearsal"], _NOWHERE, way, NO_KEY)
            if budget.asked:
                self._way = way
                return

    async def _embed_once(
        self, budget: Allowance, texts: list[str], base_url: str | None, way: Way, key: str | None
    ) -> list[tuple[float, ...]]:
        libraries = self._libraries
        session = self._session
        assert libraries is not None  # noqa: S101 - _prepare ran before
        assert session is not None  # noqa: S101 - opened with the libraries
        token = allowance.set(budget)
        try:
            response = await libraries.litellm.aembedding(
                model=self._model,
                input=texts,
                api_base=base_url,
                api_key=key,
                timeout=CLIENT_TIMEOUT_S,
                max_retries=NEVER,
                num_retries=0,
                caching=False,
                encoding_format="float",
                drop_params=True,
                shared_session=session,
                **libraries.client_argument(
                    way, self._handler, session, model=self._model, key=key, base_url=base_url
                ),
            )
        finally:
            allowance.reset(token)
        return _vectors(response)

    def close(self) -> None:
        """Cancel the work in progress and close the connections.

        Idempotent; blocks for a moment.
        """
        with self._lock:
            self._closed = True
        if self._thread.is_started:
            with suppress(TimeoutError):
                self._thread.submit(self._shut()).result(GRACE_S * 5)
        self._thread.close()

    async def _shut(self) -> None:
        other_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in other_tasks:
            task.cancel()
        await asyncio.gather(*other_tasks, return_exceptions=True)
        if self._libraries is not None:
            self._libraries.forget_clients(asyncio.get_running_loop())
        if self._session is not None:
            await self._session.close()


def _outcome(work: Future[Embedding], timeout_s: float) -> Embedding:
    try:
        return work.result(timeout_s)
    except CancelledError:
        return Embedding(failure="not_ready", detail="closed")
    except TimeoutError:
        work.cancel()
        return Embedding(failure="timeout")
    except BaseException:  # an interrupted caller must leave no work behind either
        work.cancel()
        raise


def _vectors(response: Any) -> list[tuple[float, ...]]:
    """Return the vectors in the order of the texts, by the provider's numbering.

    Anything malformed counts as no vector, which the caller detects (`fault_in`).
    """
    listed = getattr(response, "data", None) or ()
    rows = list(map(_fields_of, listed))
    if all(isinstance(row.get("index"), int) for row in rows):
        rows.sort(key=lambda row: row["index"])
    return [_numbers(row.get("embedding")) for row in rows]


def _fields_of(row: Any) -> dict[str, Any]:
    return row if isinstance(row, dict) else vars(row)


def _numbers(value: object) -> tuple[float, ...]:
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(number, (int, float)) for number in value
    ):
        return ()
    return tuple(float(number) for number in value)
