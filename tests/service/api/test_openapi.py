"""The OpenAPI document: schemathesis calls the service by it, a TypeScript client is generated from
it and called.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

schemathesis = pytest.importorskip(
    "schemathesis", reason="it calls the service by its own document"
)
pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")

from bundle_router.service.api.openapi import openapi_document  # noqa: E402 - after what it needs
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402
from schemathesis.generation import GenerationMode  # noqa: E402

NEGATIVE = GenerationMode.NEGATIVE
REFUSED = ("refused", "key_conflict")
"""What may be wrong with a request that is as the document says: it names a bundle, decision or
folder that is none.
"""
CONFIG = schemathesis.Config.from_dict(
    {"checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", "3xx", 400, 404, 422]}}}
)
PROBLEM_CODES = (
    "unauthorized", "forbidden", "wrong_principal", "wrong_host", "wrong_origin", "not_found", "method_not_allowed",
    "unsupported_type", "too_large", "too_slow", "malformed", "invalid", "refused", "unknown_run", "unknown_artifact",
    "key_conflict", "run_busy", "storage", "corrupt_run", "not_installed", "timed_out", "busy", "closing",
    "unavailable", "internal",
)  # fmt: skip
"""Every code of a problem.

The reasons why a tool or bundle is missing are another list, used in results.
"""
STEP = {"run_id": "r", "workflow": "w", "role": "r", "step": "both"}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_schemathesis_finds_no_answer_that_the_document_does_not_have(
    site: Any, mode: GenerationMode
) -> None:
    def called(endpoint: Any) -> None:
        headers = {"Authorization": f"Bearer {endpoint.key}"}
        schema = schemathesis.openapi.from_dict(openapi_document(), config=CONFIG)
        for result in schema.get_all_operations():
            operation = result.ok()

            @seed(14)
            @settings(
                max_examples=20 if os.environ.get("BUNDLE_ROUTER_TESTS") == "all" else 5,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def call(case: Any) -> None:
                answer = case.call_and_validate(
                    base_url=endpoint.base, headers=headers, timeout=300
                )
                if answer.status_code >= 400:
                    assert answer.json()["code"] in PROBLEM_CODES
                    assert (
                        answer.status_code not in (400, 422)
                        or mode is NEGATIVE
                        or answer.json()["code"] in REFUSED
                    )

            call()

    async def work(_router: Any, endpoint: Any) -> None:
        await asyncio.to_thread(called, endpoint)

    site.serve_all(work)


def test_every_field_of_every_value_is_described() -> None:
    schemas = openapi_document()["components"]["schemas"]
    silent = [
        f"{name}.{field}"
        for name, value in schemas.items()
        for field, row in value["properties"].items()
        if not row.get("description")
    ]
    assert silent == []
    assert "joins" in schemas["RouteBody"]["properties"]["fixed_list"]["description"]


def test_a_typescript_client_is_generated_type_checked_and_called(
    site: Any, tmp_path: Path
) -> None:
    installed = Path(
        os.environ.get("BUNDLE_ROUTER_TEST_SERVERS", "/nowhere"), "typescript", "node_modules"
    )
    if shutil.which("node") is None or not installed.is_dir():
        pytest.skip(
            "node and the packages of .ci/servers/typescript are not installed: .ci/servers/install"
            " has them"
        )
    project = tmp_path / "project"
    shutil.copytree(Path(__file__).parents[2] / "data" / "typescript", project)
    (project / "package.json").write_text('{"type": "module"}')
    (project / "node_modules").symlink_to(installed)
    (project / "openapi.json").write_text(json.dumps(openapi_document()))
    tools = installed / ".bin"
    generated = ("openapi.json", "--default-non-nullable=false", "-o", "schema.d.ts")
    for words in ((str(tools / "openapi-typescript"), *generated), (str(tools / "tsc"), "-p", ".")):
        done = subprocess.run(words, cwd=project, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    async def work(_router: Any, endpoint: Any) -> Any:
        words = ("node", "built/client.js", endpoint.base, endpoint.key)
        done = await asyncio.to_thread(
            subprocess.run, words, cwd=project, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert site.serve_all(work) == {
        "bundles": ["kit.some", "kit.later"],
        "tools": 8,
        "text": "said hello",
        "outcome": "ok",
        "code": "unknown_run",
    }
    assert site.records(file="routing.jsonl")[-1]["key"] == "ts-1"


def test_every_problem_has_a_code_of_the_closed_list(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            assert (await http.get("/openapi.json")).json() == json.loads(
                json.dumps(openapi_document())
            )

    site.serve_all(work)
    assert len(set(PROBLEM_CODES)) == len(PROBLEM_CODES)
