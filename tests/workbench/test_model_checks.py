"""`check --live --yes`: what asking a model comes to, over real HTTP, for each way it can fail."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.tokenizer import token_counter
from bundle_router.core.catalog import ModelChoice
from bundle_router.testing.upstream import Act, ScriptedServer, hang, says, status
from bundle_router.workbench.model_checks import (
    QUESTION,
    SYSTEM,
    ModelCheck,
    ReadyAnswer,
    ask_models,
)

from tests.adapters.llm.broken_upstream import cut, redirect, reset
from tests.command_line import Shell
from tests.ports import free_port

needs_model = pytest.mark.skipif(
    find_spec("litellm") is None or find_spec("instructor") is None,
    reason="needs the extra bundle-router[model]",
)
NAME = "openai/gpt-4o-mini"
READY = '{"ready": true}'
ENDS: dict[str, tuple[Act, str | None, str]] = {
    "as asked": (says(READY), None, ""),
    "not ready is an answer": (says('{"ready": false, "more": 1}'), None, ""),
    "a wrong key": (status(401), "auth", "$MODEL_KEY"),
    "no access": (status(403), "auth", "$MODEL_KEY"),
    "an unknown model": (status(404), "bad_request", "the model's name"),
    "a refused request": (status(400), "bad_request", "[model] mode"),
    "too often": (status(429), "rate_limited", ""),
    "a broken server": (status(500), "upstream_error", "http://127.0.0.1:"),
    "prose": (says("I am ready."), "invalid_output", "'json_schema'; try 'tools'"),
    "another object": (says('{"state": "ready"}'), "invalid_output", "try 'tools'"),
    "cut off": (says('{"rea', finish_reason="length"), "truncated", "is 1000; raise it"),
    "a refusal": (says(None, refusal="no"), "refused", "another model"),
    "a closed connection": (reset(), "upstream_error", "can be reached"),
    "half an answer": (cut(), "upstream_error", "can be reached"),
    "another address": (redirect("http://127.0.0.1:9/v1"), "upstream_error", "is right"),
}


async def asked(
    *models: ModelChoice, times: int = 1, deadline_s: float = 60.0
) -> tuple[ModelCheck, ...]:
    from bundle_router.adapters.llm import LiteLlm

    client = LiteLlm(models)
    readiness = await client.warm_up()
    try:
        return await ask_models(client, models * times, deadline_s, readiness)
    finally:
        await client.close()


@needs_model
def test_each_failure_is_named_with_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "k" * 20)
    with ScriptedServer([act for act, _, _ in ENDS.values()]) as server:
        model = ModelChoice(NAME, base_url=server.base_url, key_env="MODEL_KEY")
        checks = asyncio.run(asked(model, times=len(ENDS)))
    found = dict(zip(ENDS, checks, strict=True))
    wanted = {name: failure for name, (_, failure, _) in ENDS.items()}
    assert {name: check.failure for name, check in found.items()} == wanted
    for name, (_, _, advice) in ENDS.items():
        assert advice in found[name].advice, name
    line = found["as asked"].line
    assert line.startswith(f"{NAME}: answers as asked (")
    assert found["a wrong key"].line.startswith(f"{NAME}: auth: The provider did not accept")


@needs_model
def test_who_can_not_be_asked_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    nowhere = f"http://127.0.0.1:{free_port()}/v1"
    keyless = ModelChoice(NAME, base_url=nowhere, key_env="NO_SUCH_KEY")
    with ScriptedServer([hang()]) as server:
        silent = ModelChoice(NAME, base_url=server.base_url)
        (late,) = asyncio.run(asked(silent, deadline_s=0.3))
    away, without_key = asyncio.run(asked(ModelChoice(NAME, base_url=nowhere), keyless))
    assert (late.failure, "deadline_s is 0.3" in late.advice) == ("timeout", True)
    assert (away.failure, nowhere in away.advice) == ("upstream_error", True)
    assert (without_key.failure, "NO_SUCH_KEY" in without_key.advice) == ("no_key", True)
    (missing,) = asyncio.run(ask_models(NeverAsked(), [keyless], 1.0, "missing"))
    assert (missing.failure, "bundle-router[model]" in missing.line) == ("not_ready", True)


class NeverAsked:
    """A client without its libraries."""

    readiness: Any = "missing"

    async def warm_up(self) -> Any:
        return self.readiness

    async def complete(self, request: Any) -> Any:
        raise AssertionError("it is not ready")

    async def close(self) -> None: ...


def test_the_question_takes_under_a_hundred_tokens() -> None:
    count = token_counter()
    if count is None:
        pytest.skip("there is no tokenizer")
    sent = SYSTEM + QUESTION + json.dumps(ReadyAnswer.model_json_schema())
    assert ReadyAnswer.model_json_schema()["additionalProperties"] is False
    assert 20 < count(sent) < 100


@needs_model
def test_check_asks_models_only_after_a_yes(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with ScriptedServer([says(READY), status(401)]) as server:
        shell.write(router=f'[model]\nnames = ["{NAME}"]\nbase_url = "{server.base_url}"\n')
        assert f"not asked: {NAME} (--yes asks" in shell("check", "--live").stdout
        assert server.requests == []
        assert f"{NAME}: answers as asked" in shell("check", "--live", "--yes").stdout
        sent = server.requests[0].json
        assert [message["content"] for message in sent["messages"]] == [SYSTEM, QUESTION]
        refused = shell("check", "--live", "--yes", "--json", code=4)
        (row,) = json.loads(refused.stdout)["models"]
        assert (row["model"], row["failure"]) == (NAME, "auth")
        assert "give --live, too" in shell("check", "--yes", code=3).stderr
