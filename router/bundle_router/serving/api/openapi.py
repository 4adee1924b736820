"""The OpenAPI 3.1 document of the decision API, from the values that the library itself uses. Pure."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter

from bundle_router.core.models import RUN_ID, Decision
from bundle_router.core.models.steps import MAX_GOAL, MAX_LABEL, MAX_LABEL_TEXT
from bundle_router.core.tools.exposure import Toolset
from bundle_router.engine.open_runs import RunEnd
from bundle_router.engine.results import Result
from bundle_router.serving.api.bodies import (
    KEY,
    CallBody,
    MediaQuery,
    MissedBody,
    Problem9457,
    RouteBody,
    ToolsQuery,
)

Json = dict[str, Any]
_LOCAL: Final = ("parts", "whole", "answer")
"""Fields of a `Result` that only the process that made it can use."""
_VALUES: Final[tuple[tuple[Any, str], ...]] = (
    (RouteBody, "validation"),
    (CallBody, "validation"),
    (MissedBody, "validation"),
    (ToolsQuery, "validation"),
    (MediaQuery, "validation"),
    (Decision, "serialization"),
    (Toolset, "serialization"),
    (Result, "serialization"),
    (RunEnd, "serialization"),
    (Problem9457, "serialization"),
)
_RUN: Final = {
    "name": "run_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": f"^{RUN_ID.pattern}$"},
}
_SHA: Final = {
    "name": "sha256",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
}
_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Makes it happen once in its run: the same key again gives what is recorded.",
    "schema": {"type": "string", "pattern": f"^({KEY})$"},
}
_ETAG: Final = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "The ETag of the list the agent has: 304 while it is the same.",
    "schema": {"type": "string"},
}


@cache
def openapi_document(version: str) -> Json:
    """Return the document. `version` is the package's."""
    schemas = _schemas()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Bundle Router",
            "version": version,
            "description": "Which bundles of tools a workflow step may see, and why; and their calls.",
        },
        "security": [{"bearer": []}],
        "paths": {
            "/v1/route": {"post": _route()},
            "/v1/runs/{run_id}/tools": {"get": _tools(schemas)},
            "/v1/runs/{run_id}/call": {"post": _call()},
            "/v1/runs/{run_id}/missed": {"post": _missed()},
            "/v1/runs/{run_id}/close": {"post": _close()},
            "/v1/runs/{run_id}/artifacts/{sha256}": {"get": _artifact()},
            "/v1/runs/{run_id}/media/{sha256}": {"get": _media(schemas)},
        },
        "components": {
            "schemas": {name: schema for name, schema in schemas.items() if not name.endswith("Query")},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {"Problem": {"description": "Why not.", "content": _problem()}},
        },
    }


def _schemas() -> Json:
    adapters = [(value.__name__, mode, TypeAdapter(value)) for value, mode in _VALUES]
    refs, whole = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type] # the modes are its words
    schemas: Json = dict(whole.get("$defs", {}))
    for (name, _mode), schema in refs.items():
        if "$ref" not in schema:
            schemas[str(name)] = schema
    result, toolset = schemas["Result"], schemas["Toolset"]
    for name in _LOCAL:
        result["properties"].pop(name)
    toolset["properties"]["digest"] = {"type": "string"}
    _bound(schemas["RouteBody"]["properties"], schemas["StepPolicy"]["properties"])
    for name in ("Decision", "Result", "Toolset"):
        schemas[name]["required"] = sorted(schemas[name]["properties"])
    return _reachable(schemas)


def _bound(step: Json, policy: Json) -> None:
    """Say what the values check in code and pydantic's schema does not have."""
    run_id = {"type": "string", "pattern": f"^{RUN_ID.pattern}$"}
    step["run_id"] |= run_id
    step["parent_run_id"]["anyOf"][0] |= run_id
    step["constraints"]["items"]["maxLength"] = MAX_GOAL
    step["labels"] |= {
        "propertyNames": {"maxLength": MAX_LABEL},
        "additionalProperties": {"type": "string", "maxLength": MAX_LABEL_TEXT},
    }
    pattern = {"type": "string", "pattern": r"^(?:(?:bundle|tool):)?[^:\s][^:]*$"}
    policy["allow"]["anyOf"][0]["items"] = policy["deny"]["items"] = pattern


def _reachable(schemas: Json) -> Json:
    """Without what nothing refers to any more."""
    found: set[str] = set()
    waiting = [value.__name__ for value, _ in _VALUES]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [ref.rpartition("/")[2] for ref in _refs(schemas[name])]
    return {name: schemas[name] for name in sorted(found)}


def _refs(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for item in value.values() for ref in _refs(item)]
    return [ref for item in value for ref in _refs(item)] if isinstance(value, list) else []


def _problem() -> Json:
    return {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem9457"}}}


def _operation(name: str, summary: str, parameters: list[Json], answers: Json, body: str = "") -> Json:
    operation: Json = {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {**answers, "default": {"$ref": "#/components/responses/Problem"}},
    }
    if body:
        schema = {"$ref": f"#/components/schemas/{body}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _answer(name: str, description: str) -> Json:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {"200": {"description": description, "content": content}}


def _query(schemas: Json, name: str) -> list[Json]:
    return [
        {"name": key, "in": "query", "required": False, "schema": schema}
        for key, schema in schemas[name]["properties"].items()
    ]


def _route() -> Json:
    answers = _answer("Decision", "What the step may see. It is in the run's records.")
    return _operation("route", "Decide what a step may see", [_KEY], answers, "RouteBody")


def _tools(schemas: Json) -> Json:
    answers = _answer("Toolset", "The definitions, and what the model is to be told besides.")
    answers["200"]["headers"] = {"ETag": {"schema": {"type": "string"}}}
    answers["304"] = {"description": "The agent has this list."}
    return _operation("tools", "List what a run shows", [_RUN, _ETAG, *_query(schemas, "ToolsQuery")], answers)


def _call() -> Json:
    answers = _answer("Result", "What it came to, failures that the agent sees included.")
    return _operation("call", "Call a tool", [_RUN, _KEY], answers, "CallBody")


def _missed() -> Json:
    answers = _answer("Result", "Why it is not there.")
    return _operation("missed", "Record a name that a framework refused itself", [_RUN], answers, "MissedBody")


def _close() -> Json:
    return _operation("close", "End a run", [_RUN], _answer("RunEnd", "What that came to."))


def _artifact() -> Json:
    content = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    answers = {"200": {"description": "The bytes, as they came.", "content": content}}
    return _operation("artifact", "Read an artifact", [_RUN, _SHA], answers)


def _media(schemas: Json) -> Json:
    content = {"application/json": {"schema": {"type": "object"}}}
    answers = {"200": {"description": "The part, in the provider's form.", "content": content}}
    parameters = [_RUN, _SHA, *_query(schemas, "MediaQuery")]
    return _operation("media", "Read an artifact as a part of a message", parameters, answers)
