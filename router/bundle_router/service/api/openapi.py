"""The OpenAPI 3.1 document of the decision API, generated from the library's own values. Pure."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any, Final

from pydantic import TypeAdapter

from bundle_router import __version__
from bundle_router.core.exposure.placements import ActiveTool, DeferredTool, SkillText, Toolset
from bundle_router.core.records.chain import Writer
from bundle_router.core.values import (
    RUN_ID,
    Activation,
    AskedTool,
    Candidate,
    Chosen,
    Decision,
    Entry,
    Exposure,
    LeftOut,
    ModelUse,
    SearchUse,
    StepPolicy,
    WouldRefuse,
)
from bundle_router.core.values.approvals import Approval, RequiredRow
from bundle_router.core.values.artifacts import Artifact
from bundle_router.core.values.evidence import Evidence
from bundle_router.core.values.steps import MAX_LABEL, MAX_LABEL_TEXT
from bundle_router.engine.results import Result
from bundle_router.engine.run_records import RunEnd
from bundle_router.service.api.bodies import (
    KEY,
    CallBody,
    FieldProblem,
    MediaQuery,
    MissedBody,
    Problem9457,
    RouteBody,
    RunsQuery,
    TimelineQuery,
    ToolsQuery,
)

Json = dict[str, Any]
_LOCAL: Final = ("parts", "whole", "answer")
"""Fields of a `Result` that are useful only in the process that made it."""
_ASKED: Final = (RouteBody, CallBody, MissedBody, ToolsQuery, MediaQuery, RunsQuery, TimelineQuery)
_VALUES: Final[tuple[tuple[Any, str], ...]] = (
    *((value, "validation") for value in _ASKED),
    *((value, "serialization") for value in (Decision, Toolset, Result, RunEnd, Problem9457)),
)


def _parameter(name: str, where: str, pattern: str = "", description: str = "") -> Json:
    schema = {"type": "string", **({"pattern": f"^{pattern}$"} if pattern else {})}
    described = {"description": description} if description else {}
    return {"name": name, "in": where, "required": where == "path", **described, "schema": schema}


_RUN: Final = _parameter("run_id", "path", RUN_ID.pattern, "The id of the run.")
_SHA: Final = _parameter("sha256", "path", "[0-9a-f]{64}", "The digest of the artifact.")
_ONCE: Final = (
    "The key that makes it happen once in its run: with the same key the recorded result is"
    " returned."
)
_KEY: Final = _parameter("Idempotency-Key", "header", f"({KEY})", _ONCE)
_FACET: Final = "Selects runs that have this somewhere. Empty: any."
_MEANINGS: Final = {
    "format": "The provider whose form is returned.",
    "native": "Whether the provider defers tools itself.",
    "decision": "The id of an open decision. Absent: the newest of the default branch.",
    "link": "Whether MCP clients get a link instead of the bytes.",
    "start": "The first record to return.",
    "q": "Words in goals, arguments, results and artifacts.",
    "since": "An RFC 3339 time or date.",
    "until": "An RFC 3339 time or date.",
    "page": "The number of the page, from 1.",
}
_ETAG: Final = _parameter(
    "If-None-Match",
    "header",
    description="The ETag of the list that the agent has; 304 if it is still the same.",
)


_DESCRIBED: Final = (
    Approval,
    RequiredRow,
    *(RouteBody, CallBody, MissedBody, StepPolicy, FieldProblem, Problem9457),
    *(Decision, Chosen, LeftOut, WouldRefuse, Candidate, ModelUse, SearchUse, Evidence, Exposure),
    *(Activation, Entry, AskedTool, Result, Artifact, RunEnd, Writer),
    *(Toolset, ActiveTool, DeferredTool, SkillText),
)
"""The values whose fields have a description below them."""


_SELDOM: Final = frozenset(("approval", "held"))
"""Fields that an answer has only where they say something."""


@cache
def openapi_document() -> Json:
    """Return the document."""
    schemas = _schemas()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Bundle Router",
            "version": __version__,
            "description": (
                "Which bundles of tools a workflow step may see, and why; and their calls."
            ),
        },
        "security": [{"bearer": []}],
        "paths": _paths(schemas),
        "components": {
            "schemas": {
                name: schema for name, schema in schemas.items() if not name.endswith("Query")
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "Why not.",
                    "content": _content("Problem9457", "problem+json"),
                }
            },
        },
    }


def _schemas() -> Json:
    adapters = [(value.__name__, mode, TypeAdapter(value)) for value, mode in _VALUES]
    refs, document = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type] # the modes are its words
    schemas: Json = dict(document.get("$defs", {}))
    schemas |= {str(name): schema for (name, _mode), schema in refs.items() if "$ref" not in schema}
    result = schemas["Result"]
    toolset = schemas["Toolset"]
    for name in _LOCAL:
        result["properties"].pop(name)
    toolset["properties"]["digest"] = {
        "type": "string",
        "description": "The digest of the list, which is its ETag.",
    }
    for name, ids in (("bundle_ids", Decision.bundle_ids), ("offered", Decision.offered)):
        schemas["Decision"]["properties"][name] = {
            "type": "array",
            "items": {"type": "string"},
            "description": ids.__doc__,
        }
    _bound_step(schemas["RouteBody"]["properties"], schemas["StepPolicy"]["properties"])
    for kind in _DESCRIBED:
        _describe(kind, schemas[kind.__name__]["properties"])
    for name in ("Decision", "Result", "Toolset"):
        schemas[name]["required"] = sorted(schemas[name]["properties"].keys() - _SELDOM)
    return _keep_reachable(schemas)


def _bound_step(step: Json, policy: Json) -> None:
    """Add the constraints that code checks and pydantic's schema lacks."""
    run_id = {"type": "string", "pattern": f"^{RUN_ID.pattern}$"}
    step["run_id"] |= run_id
    step["parent_run_id"]["anyOf"][0] |= run_id
    step["labels"] |= {
        "propertyNames": {"maxLength": MAX_LABEL},
        "additionalProperties": {"type": "string", "maxLength": MAX_LABEL_TEXT},
    }
    pattern = {"type": "string", "pattern": r"^(?:(?:bundle|tool):)?[^:\s][^:]*$"}
    policy["allow"]["anyOf"][0]["items"] = policy["deny"]["items"] = pattern


def _keep_reachable(schemas: Json) -> Json:
    """Return the schemas without those that nothing refers to."""
    roots = {value.__name__ for value, _ in _VALUES}
    texts = {name: json.dumps(schema) for name, schema in schemas.items()}
    unused = _unused_names(texts, roots)
    while unused:
        for name in unused:
            del texts[name]
        unused = _unused_names(texts, roots)
    return {name: schemas[name] for name in sorted(texts)}


def _unused_names(texts: Mapping[str, str], roots: Collection[str]) -> list[str]:
    """Return the schemas that are no root and that no schema's text refers to."""
    everything = "".join(texts.values())
    return [name for name in texts if name not in roots and f'/{name}"' not in everything]


def _describe(kind: type, properties: Json) -> None:
    """Add the docstrings that stand under the fields of a class, if it was installed with its
    source.
    """
    for base in kind.__mro__:
        with suppress(OSError, TypeError):
            body = ast.parse(inspect.getsource(base)).body[0].body  # type: ignore[attr-defined] # a class
            for line, text in pairwise(body):
                if isinstance(line, ast.AnnAssign) and isinstance(text, ast.Expr):
                    description = inspect.cleandoc(ast.literal_eval(text.value))
                    properties.get(ast.unparse(line.target), {}).setdefault(
                        "description", description
                    )


def _operation(
    name: str, summary: str, parameters: list[Json], answers: Json, body: str = ""
) -> Json:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {**answers, "default": {"$ref": "#/components/responses/Problem"}},
        **({"requestBody": {"required": True, "content": _content(body)}} if body else {}),
    }


def _content(name: str, kind: str = "json") -> Json:
    return {f"application/{kind}": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _answer(name: str, description: str) -> Json:
    return {"200": {"description": description, "content": _content(name)}}


def _query(schemas: Json, name: str) -> list[Json]:
    return [
        {
            "name": key,
            "in": "query",
            "required": False,
            "schema": schema,
            "description": _MEANINGS.get(key, _FACET),
        }
        for key, schema in schemas[name]["properties"].items()
    ]


def _paths(schemas: Json) -> Json:
    run = "/v1/runs/{run_id}"
    bytes_ = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    decision = _answer("Decision", "What the step may see. It is in the run's records.")
    toolset = _answer("Toolset", "The definitions, and the guidance for the model.")
    toolset["200"]["headers"] = {"ETag": {"schema": {"type": "string"}}}
    toolset["304"] = {"description": "The agent has this list already."}
    result = _answer("Result", "The result; also of a call whose failure the agent should see.")
    explanation = _answer("Result", "Why the tool is not there.")
    end = _answer("RunEnd", "Whether the run ended.")
    artifact = {"200": {"description": "The bytes.", "content": bytes_}}
    part = {"application/json": {"schema": {"type": "object"}}}
    media = {"200": {"description": "The part, in the provider's form.", "content": part}}
    answers = {"200": {"description": "The same facts as on the page for people.", "content": part}}
    summary = "Record a name that a framework refused itself"
    timeline = [_RUN, *_query(schemas, "TimelineQuery")]
    listed = [_RUN, _ETAG, *_query(schemas, "ToolsQuery")]
    parameters = [_RUN, _SHA, *_query(schemas, "MediaQuery")]
    return {
        "/v1/route": {
            "post": _operation("route", "Decide what a step may see", [_KEY], decision, "RouteBody")
        },
        "/v1/bundles": {
            "get": _operation("bundles", "List the bundles of the config in force", [], answers)
        },
        "/v1/runs": {
            "get": _operation(
                "runs", "List runs, the newest first", _query(schemas, "RunsQuery"), answers
            )
        },
        run: {"get": _operation("run", "Show the decisions and calls of a run", timeline, answers)},
        f"{run}/tools": {"get": _operation("tools", "List what a run shows", listed, toolset)},
        f"{run}/call": {
            "post": _operation("call", "Call a tool", [_RUN, _KEY], result, "CallBody")
        },
        f"{run}/missed": {"post": _operation("missed", summary, [_RUN], explanation, "MissedBody")},
        f"{run}/close": {"post": _operation("close", "End a run", [_RUN], end)},
        f"{run}/artifacts/{{sha256}}": {
            "get": _operation("artifact", "Read an artifact", [_RUN, _SHA], artifact)
        },
        f"{run}/media/{{sha256}}": {
            "get": _operation("media", "Read an artifact as a part of a message", parameters, media)
        },
    }
