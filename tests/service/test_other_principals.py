"""What a token of one principal is told of others: nothing that differs from what it is told of
what does not exist (S-48).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Step
from bundle_router.service import AccessTokens

pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")

ANN, BOB, SCRAPER, REVIEWER, ENGINE = (
    f"{name}-{'x' * 40}" for name in ("ann", "bob", "scraper", "reviewer", "engine")
)
TOKENS: tuple[tuple[str, list[str], str], ...] = (
    (ANN, ["route", "call", "review", "metrics"], "ann"),
    (BOB, ["route", "call", "review", "metrics"], "bob"),
    (SCRAPER, ["metrics"], ""),
    (REVIEWER, ["review"], ""),
    (ENGINE, ["route", "call"], ""),
)
STEP = {"workflow": "w", "role": "r", "step": "both"}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
OF_ANN, DAMAGED, NOBODYS = "run-of-ann", "run-broken", "run-of-all0"
"""A run of another principal, one whose records can't be read, and one that does not exist."""


def token_file(folder: Path) -> AccessTokens:
    path = folder / "tokens.toml"
    path.write_text(
        "".join(
            f"[tokens.{token.partition('-')[0]}]\nsha256 ="
            f" '{hashlib.sha256(token.encode()).hexdigest()}'\nscopes = {scopes}\n"
            f"principal = '{principal}'\n"
            for token, scopes, principal in TOKENS
        )
    )
    path.chmod(0o600)
    return AccessTokens(path)


def addresses(document: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Every operation of the service that names a run, by its own document, and those over MCP."""
    bodies = {
        "/v1/route": {"run_id": "new", "parent_run_id": "{run_id}", **STEP},
        "/v1/runs/{run_id}/call": {"name": "kit.echo"},
        "/v1/runs/{run_id}/missed": {"name": "kit.none"},
    }
    found: list[tuple[str, str, Any]] = []
    for path, operations in document["paths"].items():
        if "{run_id}" in path or path in bodies:
            for method in operations.keys() & {"get", "post", "put", "delete"}:
                found.append((method.upper(), path, bodies.get(path)))
    found.append(("GET", "/v1/runs/{run_id}/tools?decision={run_id}.1", None))
    found.append(("GET", "/v1/runs/{run_id}/tools?format=none", None))
    found.append(("GET", "/v1/runs/{run_id}?start=1", None))
    found.append(("POST", "/v1/runs/{run_id}/call", {"wrong": 1}))
    for path in ("/mcp/runs/{run_id}", "/mcp/runs/{run_id}/decisions/{run_id}.1"):
        found += [("POST", path, PING), ("GET", path, None), ("DELETE", path, None)]
    return found


def filled(value: Any, run_id: str, sha256: str) -> Any:
    if isinstance(value, dict):
        return {key: filled(inner, run_id, sha256) for key, inner in value.items()}
    return (
        value.replace("{run_id}", run_id).replace("{sha256}", sha256)
        if isinstance(value, str)
        else value
    )


async def told(http: Any, operation: tuple[str, str, Any], run_id: str, sha256: str) -> Any:
    """Status, headers and body of an answer, without the run's id."""
    method, path, body = operation
    sent = {} if body is None else {"json": filled(body, run_id, sha256)}
    answer = await http.request(method, filled(path, run_id, sha256), **sent)
    kept = {
        name: value
        for name, value in answer.headers.items()
        if name not in ("date", "content-length")
    }
    return answer.status_code, kept, answer.text.replace(run_id, "RUN")


def test_a_run_of_another_is_told_in_no_other_words_than_one_that_does_not_exist(site: Any) -> None:
    wrong: list[str] = []

    async def work(router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token=ANN) as ann, site.http(endpoint, token=BOB) as bob:
            document = (await bob.get("/openapi.json")).json()
            step = {"run_id": OF_ANN, **STEP}
            assert (await ann.post("/v1/route", json=step)).status_code == 200
            call = {"name": "kit.echo", "arguments": {"text": "x" * 200_000}}
            result = (await ann.post(f"/v1/runs/{OF_ANN}/call", json=call)).json()
            sha256 = result["artifacts"][0]["uri"].rpartition(":")[2]
            own = await told(
                ann, ("GET", "/v1/runs/{run_id}/artifacts/{sha256}", None), OF_ANN, sha256
            )
            assert own[0] == 200
            await router.route(Step(run_id=DAMAGED, principal="ann", **STEP))
            await router.close_run(DAMAGED)
            log = site.folder / "runs" / DAMAGED / "routing.jsonl"
            log.write_text("{}\n" + log.read_text())
            found = addresses(document)
            assert len(found) >= 16, "the service's document lists its operations"
            for operation in found:
                nothing = await told(bob, operation, NOBODYS, sha256)
                for run_id in (OF_ANN, DAMAGED):
                    other = await told(bob, operation, run_id, sha256)
                    if other != nothing:
                        wrong.append(f"{operation[:2]} {run_id}: {other} instead of {nothing}")
                if nothing[0] != 404 or "This run has no decision yet" not in nothing[2]:
                    wrong.append(f"{operation[:2]}: {nothing}")

    site.serve_all(work, tokens=token_file(site.folder))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("token", "status", "code"),
    [
        ("", 401, "unauthorized"),
        (SCRAPER, 200, ""),
        (REVIEWER, 200, ""),
        (ENGINE, 403, "forbidden"),
        (ANN, 403, "wrong_principal"),
        (None, 200, ""),
    ],
)
def test_the_metrics_of_all_need_a_scope_and_no_principal(
    site: Any, token: str | None, status: int, code: str
) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token=token) as http:
            answer = await http.get("/metrics")
        assert answer.status_code == status
        if code:
            assert answer.json()["code"] == code
            assert "bundle_router_" not in answer.text

    site.serve_all(work, tokens=token_file(site.folder))


def test_a_scope_for_metrics_opens_nothing_else(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token=SCRAPER) as http:
            for path in ("/v1/runs", "/v1/runs/r", "/v1/runs/r/tools", "/v1/bundles"):
                assert (await http.get(path)).status_code == 403, path
            ping = await http.post("/mcp/runs/r", json=PING)
            assert ping.status_code == 403

    site.serve_all(work, tokens=token_file(site.folder))
