"""A model for the demo: a scripted server on the loopback, and the user's config with that model instead of its own.

The user's files are not changed: the config with the model is in a temporary folder. The user's own model is not asked,
so that the demo costs nothing.
"""

from __future__ import annotations

import importlib.util
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bundle_router.core.config.config_text import FILE_NAMES
from bundle_router.testing.upstream import Exchange, ScriptedServer, choice, completion, status

MODEL: Final = "openai/scripted-by-the-demo"
WANTED: Final = "repo.readonly"


def is_installed() -> bool:
    """Return whether the libraries that ask models are installed, without importing them."""
    return all(importlib.util.find_spec(name) is not None for name in ("litellm", "instructor"))


def server() -> ScriptedServer:
    """Return a server that answers the first question and fails every other one. Not started yet."""
    return ScriptedServer([_pick, status(503)])


def _pick(exchange: Exchange) -> None:
    """Pick from the offered bundles, as a model would."""
    lines = exchange.request.message("system").splitlines()
    offered = {row["name"]: row["id"] for line in lines if line.startswith('{"id":') and (row := json.loads(line))}
    place = offered.get(WANTED, next(iter(offered.values())))
    exchange.reply(completion(choice(place, rationale="the answer stands in the code")))


def config_with_model(config: Path | None, into: Path, base_url: str | None) -> Path:
    """Write the project's config (None: only the shipped one) with the scripted model (None: with no model) into a
    folder. `config` must be valid."""
    written: dict[str, Any] = {}
    for name in FILE_NAMES:
        file = config / name if config is not None else None
        if file is None or not file.is_file():
            continue
        if name == "router.toml":
            written = tomllib.loads(file.read_text(encoding="utf-8"))
        else:
            (into / name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    fallback = {**written.get("fallback", {}), "order": ["search", "model", "shortlist", "default"]}
    model: dict[str, Any] = {"names": []}
    if base_url is not None:
        model = {"names": [MODEL], "base_url": base_url, "deadline_s": 10.0}
    cache = {**written.get("cache", {}), "answers": "memory"}
    text = "\n".join(_toml({**written, "fallback": fallback, "model": model, "cache": cache}))
    (into / "router.toml").write_text(text + "\n", encoding="utf-8")
    return into


def _toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield tables of strings, numbers, booleans and lists of these, which is all that `router.toml` has."""
    if path:
        yield f"[{'.'.join(json.dumps(name) for name in path)}]"
    for name, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{json.dumps(name)} = {json.dumps(value, ensure_ascii=False)}"
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _toml(value, (*path, name))
