"""The written form as JSON Schema, for editors: completion, hover text, and red lines before `check` is ever run.

Draft 7, since that is the newest that the editors' TOML servers (Taplo, Even Better TOML) read in full. A config file
names its schema in its first line: `#:schema ./schema/routes.schema.json`. The schema can't know which ids exist; it
accepts everything that stage 1 accepts, and refuses unknown keys as stage 1 does.
"""

from __future__ import annotations

import json
from typing import Any, Final

from bundle_router.core.config.written import FORMS

SCHEMA_FOLDER: Final = "schema"


def schema_name(file: str) -> str:
    """`routes.toml` → `schema/routes.schema.json`, relative to the config folder."""
    return f"{SCHEMA_FOLDER}/{file.removesuffix('.toml')}.schema.json"


def schema(file: str) -> dict[str, Any]:
    """The schema of one config file."""
    form = FORMS[file]
    raw = form.model_json_schema(ref_template="#/definitions/{model}")
    cleaned: dict[str, Any] = _cleaned(raw)
    if "$defs" in cleaned:
        cleaned["definitions"] = cleaned.pop("$defs")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"Bundle Router: {file}",
        **cleaned,
    }


def schema_texts() -> dict[str, str]:
    """Path relative to the config folder → text, for every config file."""
    return {schema_name(file): json.dumps(schema(file), indent=2, ensure_ascii=False) + "\n" for file in FORMS}


def _cleaned(node: Any) -> Any:
    """Without what TOML has no word for (null), what editors show as noise (made-up titles), and draft-7 traps."""
    if isinstance(node, list):
        return [_cleaned(item) for item in node]
    if not isinstance(node, dict):
        return node
    cleaned = {
        key: {name: _cleaned(item) for name, item in value.items()} if key == "properties" else _cleaned(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "default" and value is None)
    }
    choices = cleaned.get("anyOf")
    if isinstance(choices, list):
        real = [choice for choice in choices if choice != {"type": "null"}]
        del cleaned["anyOf"]
        cleaned = {**real[0], **cleaned} if len(real) == 1 else {"anyOf": real, **cleaned}
    if "$ref" in cleaned and len(cleaned) > 1:  # in draft 7 a $ref silences everything beside it
        cleaned = {"allOf": [{"$ref": cleaned.pop("$ref")}], **cleaned}
    return cleaned
