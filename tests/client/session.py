"""The session that is played to the library and to the client: `python session.py URL`, with the
token in the environment, plays it with the client as it is installed, and prints the answers. Needs
nothing of this repository.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

STEP = {"run_id": "s", "workflow": "w", "role": "r"}
KEYED = {
    **STEP,
    "step": "both",
    "goal": "look",
    "constraints": ["offline"],
    "labels": {"a": "ö"},
    "key": "1",
}
SESSION: tuple[tuple[str, dict[str, Any]], ...] = (
    ("tools", {"run_id": "s"}),
    ("route", KEYED),
    ("route", KEYED),
    ("route", {**STEP, "step": "some", "key": "1"}),
    ("tools", {"run_id": "s", "format": "openai"}),
    ("tools", {"run_id": "s", "format": "anthropic", "native": True}),
    ("call", {"run_id": "s", "name": "kit.echo", "arguments": {"text": "hello"}, "key": "c"}),
    ("call", {"run_id": "s", "name": "kit.echo", "arguments": {"text": "hello"}, "key": "c"}),
    ("call", {"run_id": "s", "name": "kit.echo", "arguments": {"text": "other"}, "key": "c"}),
    ("call", {"run_id": "s", "name": "kit__late", "arguments": '{"text": "as text"}'}),
    ("tools", {"run_id": "s"}),
    ("call", {"run_id": "s", "name": "kit.echo", "arguments": {"txt": "wrong"}}),
    ("call", {"run_id": "s", "name": "search_tools", "arguments": {"query": "say it later"}}),
    ("call", {"run_id": "s", "name": "kit.wait", "arguments": {}}),
    ("media", {"run_id": "s", "uri": "PICTURE", "format": "openai"}),
    ("media", {"run_id": "s", "uri": "PICTURE", "format": "mcp", "link": True}),
    ("artifact", {"run_id": "s", "uri": "PICTURE"}),
    ("artifact", {"run_id": "s", "uri": f"artifact:sha256:{'0' * 64}"}),
    ("missed", {"run_id": "s", "name": "nobody.knows"}),
    ("route", {**STEP, "step": "some", "policy": {"deny": ["tool:kit.echo"]}, "branch": "b", "max_tools": 5}),
    ("call", {"run_id": "s", "name": "kit.echo", "arguments": {}}),
    ("route", {**STEP, "step": "some", "policy": {"deny": ["kit.nothing"]}}),
    ("route", {**STEP, "step": "later", "messages": []}),
    ("close_run", {"run_id": "s"}),
)  # fmt: skip
"""What is asked, in order. `PICTURE`: the artifact of the picture that was returned before."""


async def asked(router: Any, step_of: Any, name: str, given: dict[str, Any], *, sync: bool) -> Any:
    """What one question comes to, as JSON values; of an error its kind and what it says."""
    if name == "route":
        fields = {key: value for key, value in given.items() if key != "messages"}
        step = step_of.model_validate(fields)
        more = {"messages": given["messages"]} if "messages" in given else {}
        question: Callable[[str], Any] = lambda way: getattr(router, way)(step, **more)  # noqa: E731
    else:
        question = lambda way: getattr(router, way)(**given)  # noqa: E731
    try:
        if name == "artifact":
            return (await asyncio.to_thread(question, name)).hex()
        answer = await asyncio.to_thread(question, f"{name}_sync") if sync else await question(name)
    except Exception as error:  # noqa: BLE001 - the session's errors are a part of it
        return {
            "error": type(error).__name__,
            "message": str(error).removesuffix("."),
            "advice": error.advice,  # type: ignore[attr-defined] # of both
        }
    if isinstance(answer, dict):
        return answer
    shown = (
        answer.to_json()
        if hasattr(answer, "to_json")
        else TypeAdapter(type(answer)).dump_python(answer)
    )
    return json.loads(json.dumps(shown))


def comparable(value: Any) -> Any:
    """Without what no two sessions share: times, digests of the machine's own, ids of decisions and
    calls.
    """
    text = json.dumps(value, ensure_ascii=False)
    text = re.sub(r"\bs\.[0-9a-f]{8}\.(\d+)", r"s.NONCE.\1", text)
    text = re.sub(r'"elapsed_ms": [0-9.e-]+', '"elapsed_ms": 0', text)
    text = re.sub(r'"(catalog_revision|input_digest)": "[^"]*"', r'"\1": ""', text)
    return json.loads(text)


async def played(router: Any, step_of: Any, *, sync: bool) -> list[Any]:
    """The answers to the session.

    `step_of`: the class of steps, of the library or of the client.
    """
    answers: list[Any] = []
    picture = ""
    for name, given in SESSION:
        filled = {key: picture if value == "PICTURE" else value for key, value in given.items()}
        answer = await asked(router, step_of, name, filled, sync=sync)
        if isinstance(answer, dict) and answer.get("artifacts"):
            picture = answer["artifacts"][0]["uri"]
        answers.append(comparable(answer))
    return answers


async def _main(url: str) -> list[Any]:
    import bundle_router_client as client

    async with client.Router.connect(url, token=os.environ["SESSION_TOKEN"]) as remote:
        return await played(remote, client.Step, sync=True)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_main(sys.argv[1]))))
