"""Tests whether a gateway supports deferral: the same small request twice, with the tools upfront
and deferred.

`pass`: accepted and billed for less; `ignored`: accepted, but billed the same; `refused`: answered
with an error. No credential is stored.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from bundle_router.errors import RequestError, RouterError

from bundle_router_deferral.journal import PRIVATE, Disk
from bundle_router_deferral.rewriting import SEARCH_NAME, SEARCH_TYPE

TOOLS: Final = 20
TEXT_CHARS: Final = 600
FEWER: Final = 0.7
"""A probe passes if the deferred request is billed under this share of the other one."""
TIMEOUT_S: Final = 60.0
MAX_ANSWER_BYTES: Final = 1024 * 1024
PROBES: Final = "probes.jsonl"

Form = Literal["anthropic", "openai"]
ProbeOutcome = Literal["pass", "ignored", "refused"]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe, without any credential."""

    host: str
    form: Form
    model: str
    result: ProbeOutcome
    tokens_upfront: int
    tokens_deferred: int
    status: int
    time: str


def probe_body(form: Form, model: str, *, deferred: bool) -> dict[str, Any]:
    """Return the request that is sent."""
    text = ("A made-up tool that is only here to weigh something; never call it. " * 12)[
        :TEXT_CHARS
    ]
    late = {"defer_loading": True} if deferred else {}
    schema = {"type": "object", "properties": {"value": {"type": "string"}}}
    if form == "anthropic":
        if deferred:
            tools: list[dict[str, Any]] = [{"type": SEARCH_TYPE, "name": SEARCH_NAME}]
        else:
            tools = []
        tools += [
            {"name": f"probe_{n}", "description": text, "input_schema": schema, **late}
            for n in range(TOOLS)
        ]
        messages = [{"role": "user", "content": "Answer with the word yes."}]
        return {"model": model, "max_tokens": 16, "tools": tools, "messages": messages}
    tools = [{"type": "tool_search"}] if deferred else []
    tools += [
        {
            "type": "function",
            "name": f"probe_{n}",
            "description": text,
            "parameters": schema,
            **late,
        }
        for n in range(TOOLS)
    ]
    return {
        "model": model,
        "max_output_tokens": 16,
        "input": "Answer with the word yes.",
        "tools": tools,
        "store": False,
    }


def probe(base: str, form: Form, model: str, environment: Mapping[str, str]) -> ProbeResult:
    """Test a gateway.

    Raises RequestError without a credential, RouterError if it does not serve plain requests.
    """
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RequestError(f"{base!r} is not an http:// or https:// address")
    headers = _credentials(form, environment)
    status, upfront = _ask(base, form, probe_body(form, model, deferred=False), headers)
    if status != 200:
        raise RouterError(
            f"{parts.hostname} answered the plain request with {status}, so nothing was learned"
        )
    status, deferred = _ask(base, form, probe_body(form, model, deferred=True), headers)
    tokens = (_input_tokens(upfront), _input_tokens(deferred) if status == 200 else 0)
    if status != 200:
        result: ProbeOutcome = "refused"
    elif tokens[1] < FEWER * tokens[0]:
        result = "pass"
    else:
        result = "ignored"
    time = datetime.now(UTC).isoformat(timespec="seconds")
    return ProbeResult(parts.hostname, form, model, result, *tokens, status, time)


def _credentials(form: Form, environment: Mapping[str, str]) -> dict[str, str]:
    if form == "openai":
        if key := environment.get("OPENAI_API_KEY"):
            return {"authorization": f"Bearer {key}"}
        raise RequestError("OPENAI_API_KEY is not set")
    headers = {"anthropic-version": "2023-06-01"}
    if key := environment.get("ANTHROPIC_API_KEY"):
        return headers | {"x-api-key": key}
    if token := environment.get("ANTHROPIC_AUTH_TOKEN"):
        return headers | {"authorization": f"Bearer {token}"}
    raise RequestError("neither ANTHROPIC_API_KEY nor ANTHROPIC_AUTH_TOKEN is set")


def _ask(
    base: str, form: Form, body: dict[str, Any], headers: Mapping[str, str]
) -> tuple[int, Any]:
    parts = urlsplit(base)
    path = parts.path.rstrip("/").removesuffix("/v1") + (
        "/v1/messages" if form == "anthropic" else "/v1/responses"
    )
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname or "",
            parts.port,
            timeout=TIMEOUT_S,
            context=ssl.create_default_context(),
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        connection.request(
            "POST", path, json.dumps(body), {"content-type": "application/json", **headers}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(
            answer.read(MAX_ANSWER_BYTES)
        ) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RouterError(f"{parts.hostname} could not be asked: {type(error).__name__}") from error
    finally:
        connection.close()


def _input_tokens(answer: Any) -> int:
    usage = answer.get("usage") if isinstance(answer, dict) else None
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    numbers = [usage.get(name) for name in names] if isinstance(usage, dict) else []
    return sum(number for number in numbers if isinstance(number, int))


def read_results(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the newest probe of each host in each form; lines that are no probe are left out."""
    try:
        lines = (folder / PROBES).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        try:
            row = json.loads(line)
            newest[row["host"], row["form"]] = row
        except (ValueError, KeyError, TypeError):
            continue
    return newest


def keep_result(folder: Path, result: ProbeResult) -> None:
    """Append a result to the probes, for `apply`."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / PROBES
    Disk().append(file, json.dumps(asdict(result)).encode() + b"\n")
    file.chmod(PRIVATE)
