"""A test that is added to the policy's tests of facts counts wherever policy is asked, also while
every server is well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.core.catalog import Bundle
from bundle_router.core.decide import policy
from bundle_router.core.decide.policy import FactChecks, FactTest
from bundle_router.core.values import Code

STEP: dict[str, Any] = {"workflow": "feature", "role": "planner", "step": "plan"}
CODE: Code = "allowlist_required"
"""A code that no shipped test of facts has."""


def refusal_of(bundle_id: str, tool: str | None) -> FactTest:
    """Return a test that refuses the bundle (no tool), or one of its tools."""

    def test(checks: FactChecks, bundle: Bundle, target: str | None) -> str | None:
        return "not today" if (bundle.id, target) == (bundle_id, tool) else None

    return test


def recorded_facts(folder: Path, *names: str) -> list[object]:
    """Return what the run's first record says of the facts with these names."""
    lines = (folder / "runs" / "r" / "routing.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(lines[0])["facts"][name] for name in names]


def add(monkeypatch: pytest.MonkeyPatch, test: FactTest) -> None:
    """Add a test to the policy's list of tests."""
    monkeypatch.setattr(policy, "FACT_TESTS", {**policy.FACT_TESTS, CODE: test})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a workspace whose config has no server that could be away."""
    (tmp_path / "a.txt").write_text("text\n", encoding="utf-8")
    config = tmp_path / "config"
    config.mkdir()
    (config / "servers.toml").write_text(
        '[servers.github]\ntransport = "streamable-http"\nurl = "https://example.invalid/mcp"\n'
        "enabled = false\n",
        encoding="utf-8",
    )
    return tmp_path


def test_a_test_of_a_bundle_counts_in_decisions_and_explanations(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(monkeypatch, refusal_of("repo.readonly", None))
    with Router.open(folder / "config", runs=folder / "runs", workspace=folder) as router:
        step = Step(run_id="r", **STEP)
        decision = router.route_sync(step)
        assert recorded_facts(folder, "unavailable", "drifted") == [[], []]
        assert "repo.readonly" not in decision.bundle_ids
        assert ("repo.readonly", CODE, "not today") in [
            (row.id, row.code, row.detail) for row in decision.left_out
        ]
        assert "not today" in str(router.explain(step, "repo.readonly"))
        result = router.call_sync("r", "repo.read_file", {"path": "a.txt"})
        assert (result.outcome, result.code) == ("denied", CODE)


def test_a_test_of_a_tool_counts_in_decisions_calls_and_explanations(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(monkeypatch, refusal_of("repo.readonly", "repo.read_file"))
    with Router.open(folder / "config", runs=folder / "runs", workspace=folder) as router:
        step = Step(run_id="r", **STEP)
        decision = router.route_sync(step)
        assert "repo.readonly" in decision.bundle_ids
        assert ("repo.read_file", CODE) in [(row.tool, row.code) for row in decision.left_out]
        assert "not today" in str(router.explain(step, "repo.read_file"))
        refused = router.call_sync("r", "repo.read_file", {"path": "a.txt"})
        other = router.call_sync("r", "repo.list_dir", {"path": "."})
        assert (refused.outcome, refused.code, other.outcome) == ("denied", CODE, "ok")


def test_a_test_counts_from_the_next_decision_when_it_is_added_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was judged before is kept for a catalog; another router has a catalog of its own."""
    for added, shown in ((False, True), (True, False)):
        if added:
            add(monkeypatch, refusal_of("repo.readonly", None))
        with Router.open(folder / "config", runs=folder / "runs", workspace=folder) as router:
            decision = router.route_sync(Step(run_id=f"r{added}", **STEP))
            assert ("repo.readonly" in decision.bundle_ids) is shown
