"""`Router`: the library's methods, as requests to a service.

Each request, and how its answer is read, is written once (`_Question`); one driver asks on an event
loop, the other on the calling thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar
from urllib.parse import quote

import httpx

from bundle_router_client.errors import RequestError, Unreachable, error_of
from bundle_router_client.values import Decision, Result, RunEnd, Step, Toolset

T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
TIMEOUT_S = 610.0
"""Longer than a service takes for one request (`[service] request_s`), so that the service times
out first.
"""


@dataclass(frozen=True)
class _Question(Generic[T]):
    """One request, and the function that reads its answer."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    not_there: T | None = None
    """The answer where there is no such run; None: that is an error."""

    @property
    def sent(self) -> dict[str, Any]:
        """Return the arguments for httpx, besides method and path."""
        return {"json": self.body, "params": self.query, "headers": self.headers}

    def answered(self, answer: httpx.Response) -> T:
        """Return the answer's value, or raise its error."""
        if answer.is_success or answer.status_code == 304:
            return self.read(answer)
        if answer.status_code == 404 and self.not_there is not None:
            return self.not_there
        try:
            problem = answer.json()
        except ValueError:
            problem = {}
        known = problem if isinstance(problem, dict) else {}
        raise error_of(answer.status_code, known, answer.headers.get("retry-after"))


# --- the questions: the library's signatures, each once -------------------------------------------


def _run(run_id: str) -> str:
    return f"/v1/runs/{quote(run_id, safe='')}"


def _named(decision: str | None) -> dict[str, str]:
    return {"decision": decision} if decision is not None else {}


def _route(
    step: Step, *, messages: Sequence[Mapping[str, Any]] | None = None
) -> _Question[Decision]:
    """Decide what the step may see. The decision is in the run's records when this returns."""
    body = step.to_json()
    if messages is not None:
        body["messages"] = [dict(message) for message in messages]
    return _Question(
        "POST", "/v1/route", lambda answer: Decision.model_validate_json(answer.content), body
    )


def _tools(
    run_id: str,
    *,
    format: str = "openai",
    native: bool = False,
    decision: str | None = None,
    if_changed: str | None = None,
) -> _Question[Toolset | None]:
    """Return the tools that a decision of the run shows.

    `if_changed` is the `digest` of the agent's list: None while the list is the same.
    """
    query = {"format": format, **({"native": "true"} if native else {}), **_named(decision)}
    headers = {"if-none-match": f'"{if_changed}"'} if if_changed is not None else {}

    def read(answer: httpx.Response) -> Toolset | None:
        if answer.status_code == 304:
            return None
        return Toolset.model_validate_json(answer.content)

    return _Question("GET", f"{_run(run_id)}/tools", read, query=query, headers=headers)


def _call(
    run_id: str,
    name: str,
    arguments: Mapping[str, Any] | str = "",
    *,
    decision: str | None = None,
    key: str = "",
) -> _Question[Result]:
    """Call a tool.

    `key` makes the call happen once. A failure that the agent may see is a `Result`.
    """
    sent = arguments if isinstance(arguments, str) else dict(arguments)
    if not (key.isascii() and key.isprintable()) or '"' in key:
        raise RequestError(
            "over HTTP a call's key is printable ASCII without quotes",
            advice="use other words for it",
        )
    headers = {}
    if key:
        headers["idempotency-key"] = f'"{key}"'
    body = {"tool": name, "arguments": sent, **_named(decision)}
    return _Question("POST", f"{_run(run_id)}/call", _result, body, headers=headers)


def _missed(run_id: str, name: str, *, decision: str | None = None) -> _Question[Result]:
    """Record a name that a framework refused."""
    return _Question("POST", f"{_run(run_id)}/missed", _result, {"tool": name, **_named(decision)})


def _result(answer: httpx.Response) -> Result:
    return Result.model_validate_json(answer.content)


def _close(run_id: str, *, missing_ok: bool = False) -> _Question[RunEnd]:
    """End the run.

    Raises UnknownRun for one that no step began, unless `missing_ok` (for a `finally`).
    """
    not_there = RunEnd(ended=False) if missing_ok else None
    read = RunEnd.model_validate_json
    return _Question(
        "POST", f"{_run(run_id)}/close", lambda answer: read(answer.content), not_there=not_there
    )


def _sha256(uri: str) -> str:
    return quote(uri.removeprefix("artifact:").removeprefix("sha256:"), safe="")


def _artifact(run_id: str, uri: str) -> _Question[bytes]:
    """Return the bytes behind `artifact:sha256:…`. Blocks this thread, as the library does."""
    return _Question(
        "GET", f"{_run(run_id)}/artifacts/{_sha256(uri)}", lambda answer: answer.content
    )


def _media(
    run_id: str,
    uri: str,
    *,
    format: str = "openai",
    link: bool = False,
    decision: str | None = None,
) -> _Question[dict[str, object]]:
    """Return an artifact as a part of a message in a provider's form."""
    query = {"format": format, **({"link": "true"} if link else {}), **_named(decision)}
    return _Question(
        "GET", f"{_run(run_id)}/media/{_sha256(uri)}", lambda answer: answer.json(), query=query
    )


def _on_the_loop(
    question: Callable[P, _Question[T]],
) -> Callable[Concatenate[Router, P], Coroutine[Any, Any, T]]:
    """Return the method that asks a question on an event loop."""

    async def ask(self: Router, /, *positional: P.args, **named: P.kwargs) -> T:
        return await self._ask(question(*positional, **named))

    return _as_method(question, ask)


def _on_this_thread(question: Callable[P, _Question[T]]) -> Callable[Concatenate[Router, P], T]:
    """Return the method that asks a question on the calling thread."""

    def ask(self: Router, /, *positional: P.args, **named: P.kwargs) -> T:
        return self._ask_sync(question(*positional, **named))

    return _as_method(question, ask)


def _as_method(question: Callable[..., Any], ask: F) -> F:
    """Give a method the words and the signature of its question."""
    signature = inspect.signature(question)
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ask.__doc__ = question.__doc__
    ask.__signature__ = signature.replace(parameters=[receiver, *signature.parameters.values()])  # type: ignore[attr-defined] # inspect reads it
    return ask


class Router:
    """A service, with the methods of the library's `Router`.

    Use it as a context, `async with` or `with`; from many tasks or threads at once.
    """

    def __init__(self, asynchronous: httpx.AsyncClient, synchronous: httpx.Client) -> None:
        self._asynchronous = asynchronous
        self._synchronous = synchronous

    @classmethod
    def connect(
        cls, url: str, *, token: str, timeout_s: float = TIMEOUT_S, verify: Any = True
    ) -> Router:
        """Prepare to ask the service at this URL; contacts nobody yet.

        `token` is its bearer token; `verify` is httpx's (an `ssl.SSLContext` for a certificate
        authority of your own).
        """
        how: dict[str, Any] = {
            "base_url": url.rstrip("/"),
            "headers": {"authorization": f"Bearer {token}"},
            "timeout": timeout_s,
            "verify": verify,
            "trust_env": False,
        }
        return cls(httpx.AsyncClient(**how), httpx.Client(**how))

    # --- the library's methods --------------------------------------------------------------------

    route = _on_the_loop(_route)
    route_sync = _on_this_thread(_route)
    tools = _on_the_loop(_tools)
    tools_sync = _on_this_thread(_tools)
    call = _on_the_loop(_call)
    call_sync = _on_this_thread(_call)
    missed = _on_the_loop(_missed)
    missed_sync = _on_this_thread(_missed)
    media = _on_the_loop(_media)
    media_sync = _on_this_thread(_media)
    close_run = _on_the_loop(_close)
    close_run_sync = _on_this_thread(_close)
    artifact = _on_this_thread(_artifact)

    # --- its end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close every connection. Runs stay as they are."""
        self._synchronous.close()
        await self._asynchronous.aclose()

    def close_sync(self) -> None:
        """Do as `close` does, for connections of threads."""
        self._synchronous.close()

    async def __aenter__(self) -> Router:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close_sync()

    # --- the two drivers --------------------------------------------------------------------------

    async def _ask(self, question: _Question[T]) -> T:
        with _told_unreachable():
            answer = await self._asynchronous.request(
                question.method, question.path, **question.sent
            )
        return question.answered(answer)

    def _ask_sync(self, question: _Question[T]) -> T:
        with _told_unreachable():
            answer = self._synchronous.request(question.method, question.path, **question.sent)
        return question.answered(answer)


@contextmanager
def _told_unreachable() -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        what = f"the service did not answer: {type(error).__name__} {error}".rstrip()
        raise Unreachable(
            what, advice="see that it runs; with a key it is safe to ask again"
        ) from error
