"""The audit, against a truth table that is computed here from what the transcripts recorded of each
request.
"""

from __future__ import annotations

import json
import tarfile
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bundle_router.cli import main
from bundle_router_deferral.agent_files import TranscriptReader, cause_table
from bundle_router_deferral.causes import AgentSettings, Setting, can_search, judge, search_mode
from bundle_router_deferral.findings import split_cost
from bundle_router_deferral.transcript import RecentIds, RequestFacts, Transcript, Usage
from hypothesis import given
from hypothesis import strategies as st

from tests.deferral.conftest import ARCHIVE, Home

TABLE = cause_table()
NOTHING_SET = AgentSettings({})


def _sample() -> list[dict[str, Any]]:
    """The lines of one recording in which deferral was refused and the conversation continued."""
    with tarfile.open(ARCHIVE) as archive:
        file = archive.extractfile(
            "fixtures/transcripts/captured/2.1.329__resume-after-refusal.jsonl"
        )
        assert file is not None
        found = [json.loads(line) for line in file]
    return [
        record for record in found if record["type"] not in ("api-request-blob", "queue-operation")
    ]


SAMPLE = _sample()


def captured() -> list[str]:
    with tarfile.open(ARCHIVE) as archive:
        names = archive.getnames()
    return sorted(
        Path(name).name for name in names if "/captured/" in name and name.endswith(".jsonl")
    )


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read(path: Path) -> list[RequestFacts]:
    return list(TranscriptReader(TABLE).read([path]))


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status = main(["deferral", *words, "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, document


@pytest.mark.parametrize("name", captured())
def test_each_recorded_request_gets_the_state_and_the_bytes_that_it_was_sent_with(
    name: str, recordings: Path
) -> None:
    path = recordings / "transcripts/captured" / name
    shapes: dict[str, list[dict[str, Any]]] = {}
    truth = []
    answered = {r.get("requestRef") for r in records(path) if r["type"] == "assistant"}
    for record in records(path):
        if record["type"] == "api-request-shape":
            shapes[record["shapeHash"]] = record["shape"]["tools"]
        elif record["type"] == "api-request":
            tools = shapes[record["shapeHash"]]
            sizes: Counter[str] = Counter()
            for tool in tools:
                if not tool.get("defer_loading"):
                    server = (
                        tool["name"].split("__")[1]
                        if tool["name"].startswith("mcp__")
                        else "(built-in)"
                    )
                    sizes[server] += len(
                        json.dumps(tool, separators=(",", ":"), ensure_ascii=False).encode()
                    )
            state = "on" if any(tool.get("defer_loading") for tool in tools) else "off"
            truth.append((state, "served" if record["id"] in answered else "refused", dict(sizes)))
    if not truth:
        messages = {r["message"]["id"] for r in records(path) if r["type"] == "assistant"}
        assert len(read(path)) == len(messages)
        return
    found = [
        (
            fact.state,
            fact.outcome,
            {size.server: size.bytes for size in fact.tools.upfront} if fact.tools else {},
        )
        for fact in read(path)
    ]
    assert found == truth
    assert {fact.evidence for fact in read(path)} == {"shape"}


def test_an_inventory_is_no_proof_that_definitions_were_deferred(recordings: Path) -> None:
    off_with, on_without = [], []
    for path in sorted((recordings / "transcripts/captured").glob("*.jsonl")):
        inventory = any(
            r.get("attachment", {}).get("type") == "deferred_tools_delta" for r in records(path)
        )
        served = [fact for fact in read(path) if fact.outcome == "served"]
        judged = {judge(fact, NOTHING_SET, TABLE).state for fact in served}
        if inventory and "on" not in judged:
            off_with.append(path.name)
        if not inventory and "on" in judged:
            on_without.append(path.name)
    assert len(off_with) >= 8, off_with  # refused endpoints and `auto` below its threshold
    assert on_without == ["2.1.7__ets-true.jsonl"]


@pytest.mark.parametrize(
    ("name", "states", "causes"),
    [
        ("captured/2.1.7__ets-true", {"on/search": 3}, {}),
        ("captured/2.1.7__unset-baseurl", {"unknown/none": 3}, {}),
        ("captured/2.1.280__ets-true", {"on/snapshot": 3}, {}),
        ("captured/2.1.280__unset-baseurl", {"off/snapshot": 3}, {"unexplained": 3}),
        ("captured/2.1.329__ets-auto-24tools", {"off/shape": 2}, {"auto-below-threshold": 2}),
        ("captured/2.1.329__no-exp-betas", {"off/shape": 2}, {"experimental-betas-disabled": 2}),
        (
            "captured/2.1.329__gw-rejects-defer",
            {"off/shape": 2, "on/shape": 3},
            {"endpoint-refused": 2},
        ),
        (
            "captured/2.1.329__resume-after-refusal",
            {"off/shape": 4, "on/shape": 1},
            {"endpoint-refused": 2, "held-off": 2},
        ),
        ("synthetic/auto_below_threshold_has_delta_but_off", {"unknown/none": 1}, {}),
        ("synthetic/legacy_off_no_evidence", {"unknown/none": 2}, {}),
        ("synthetic/toolsearch_failed_call_is_not_evidence", {"unknown/none": 1}, {}),
    ],
)
def test_states_come_from_the_best_evidence_and_causes_from_what_was_recorded(
    name: str, states: dict[str, int], causes: dict[str, int], recordings: Path
) -> None:
    judged = [
        judge(fact, NOTHING_SET, TABLE) for fact in read(recordings / f"transcripts/{name}.jsonl")
    ]
    assert Counter(f"{j.state}/{j.evidence}" for j in judged) == states
    assert Counter(j.cause for j in judged if j.cause) == causes


def test_damaged_lines_are_counted_and_the_others_read(recordings: Path) -> None:
    reader = TranscriptReader(TABLE)
    facts = list(
        reader.read([recordings / "transcripts/synthetic/corrupt_lines_and_truncated_tail.jsonl"])
    )
    assert (reader.damaged, len(facts)) == (6, 1)


def test_memory_does_not_grow_with_the_transcript(tmp_path: Path) -> None:
    def peak(messages: int) -> int:
        path = tmp_path / f"{messages}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for i in range(messages):
                message = {
                    "id": f"m{i}",
                    "model": "claude-sonnet-5",
                    "content": [{"type": "text", "text": "x" * 900}],
                }
                file.write(
                    json.dumps({"type": "assistant", "version": "2.1.100", "message": message})
                    + "\n"
                )
        tracemalloc.start()
        reader = TranscriptReader(TABLE)
        assert sum(1 for _ in reader.read([path])) == messages
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(RecentIds.__init__, "__defaults__", (100,))
        assert peak(8_000) < peak(1_000) + 50_000


@given(st.integers(0, 10**9))
def test_no_line_stops_the_reader(seed: int) -> None:
    random = Random(seed)

    def bent(value: Any) -> Any:
        if random.random() < 0.06:
            return random.choice((None, 1, -1.5, "x", [], {}, [[]], [{}], True, "2.1.329"))
        if isinstance(value, dict):
            return {key: bent(item) for key, item in value.items() if random.random() > 0.03}
        return [bent(item) for item in value[:6]] if isinstance(value, list) else value

    transcript = Transcript(TABLE.deferrable)
    for record in SAMPLE:
        line = json.dumps(bent(record)).encode()
        list(
            transcript.feed(line[: random.randrange(len(line))] if random.random() < 0.1 else line)
        )
    list(transcript.end())


def test_a_message_that_another_transcript_repeats_is_counted_once(
    recordings: Path, tmp_path: Path
) -> None:
    source = recordings / "transcripts/captured/2.1.240__ets-true.jsonl"
    copy = tmp_path / "forked.jsonl"
    copy.write_bytes(source.read_bytes())
    assert len(list(TranscriptReader(TABLE).read([source, copy]))) == 3


@pytest.mark.parametrize(
    ("value", "mode", "share"),
    [
        (None, "unset", 10),
        *((value, "off", 10) for value in ("false", "0", "no", "off", "FALSE", "Off")),
        *((value, "on", 10) for value in ("true", "1", "yes", "garbage", "")),
        ("auto", "auto", 10),
        ("auto:0", "on", 0),
        ("auto:1", "auto", 1),
        ("auto:100", "auto-100", 100),
        ("auto:abc", "auto", 10),
    ],
)
def test_the_switch_is_read_as_the_agent_reads_it(value: str | None, mode: str, share: int) -> None:
    found = search_mode(value)
    assert (found.mode, found.share) == (mode, share)


@pytest.mark.parametrize(
    ("model", "answer"),
    [
        ("claude-3-5-haiku-20241022", False),
        ("claude-sonnet-4-20250514", False),
        ("claude-opus-4-1-20250805", False),
        ("claude-haiku-4-5", True),
        ("claude-sonnet-4-5@20250929", True),
        ("us.anthropic.claude-opus-4-8-v1:0", True),
        ("claude-sonnet-5", True),
        ("claude-fable-5-1", True),
        ("my-gateway-model", None),
    ],
)
def test_models_of_generation_4_5_can_search(model: str, answer: bool | None) -> None:
    assert can_search(model) is answer


def off_request(version: str, **more: Any) -> RequestFacts:
    facts: dict[str, Any] = {
        "session": "s", "cwd": "", "version": version, "model": "claude-sonnet-4-5", "time": "2026-11-01T00:00:00Z",
        "state": "off", "evidence": "shape", "outcome": "served", "inventory": False, "after_refusal": "",
        "sub_agent": False, "vertex": False, "betas": None, "tools": None, "usage": Usage(), "searches": 0, "calls": (),
    }  # fmt: skip
    return RequestFacts(**{**facts, **more})


@pytest.mark.parametrize(
    ("version", "variables", "more", "cause"),
    [
        ("2.1.200", {"ANTHROPIC_BASE_URL": "gw.example"}, {}, "base-url-gate"),
        ("2.1.69", {"ANTHROPIC_BASE_URL": "gw.example"}, {}, "unexplained"),
        ("2.1.304", {"ANTHROPIC_BASE_URL": "gw.example"}, {}, "unexplained"),
        ("2.1.200", {"ANTHROPIC_BASE_URL": "api.anthropic.com"}, {}, "unexplained"),
        ("2.1.70", {"ANTHROPIC_BASE_URL": "gw.example", "ENABLE_TOOL_SEARCH": "true"}, {}, "base-url-gate"),
        ("2.1.72", {"ANTHROPIC_BASE_URL": "gw.example", "ENABLE_TOOL_SEARCH": "true"}, {}, "unexplained"),
        ("2.1.6", {}, {}, "old-version"),
        ("2.1.150", {"CLAUDE_CODE_USE_VERTEX": "1"}, {}, "vertex"),
        ("2.1.221", {"CLAUDE_CODE_USE_VERTEX": "1"}, {}, "unexplained"),
        ("2.1.329", {"ENABLE_TOOL_SEARCH": "auto:100"}, {}, "auto-100"),
        ("2.1.329", {"ENABLE_TOOL_SEARCH": "no"}, {}, "env-off"),
        ("2.1.329", {"ENABLE_TOOL_SEARCH": "no"}, {"inventory": True}, "auto-below-threshold"),
        ("2.1.329", {"CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1", "ENABLE_TOOL_SEARCH": "true"}, {},
         "experimental-betas-disabled"),
        ("2.1.329", {}, {"model": "claude-3-5-haiku-20241022"}, "model-unsupported"),
        ("2.1.329", {"ENABLE_TOOL_SEARCH": "no"}, {"after_refusal": "held"}, "held-off"),
    ],
)  # fmt: skip
def test_a_cause_counts_only_in_the_versions_it_existed_in(
    version: str, variables: dict[str, str], more: dict[str, Any], cause: str
) -> None:
    settings = AgentSettings({name: Setting(value, "here") for name, value in variables.items()})
    assert judge(off_request(version, **more), settings, TABLE).cause == cause


def test_a_gateway_in_the_settings_explains_a_missing_inventory(recordings: Path) -> None:
    (fact,) = read(
        recordings / "transcripts/synthetic/auto_below_threshold_has_delta_but_off.jsonl"
    )

    def under(version: str, host: str, **more: Any) -> tuple[str, str]:
        settings = AgentSettings({"ANTHROPIC_BASE_URL": Setting(host, "here")})
        request = replace(fact, version=version, inventory=more.get("inventory", False))
        found = judge(request, settings, TABLE)
        return found.state, found.cause

    gateway = "gateway.example.org"
    assert under("2.1.200", gateway) == ("off", "base-url-gate")
    assert under("2.1.200", "api.anthropic.com") == ("unknown", "")
    assert under("2.1.200", gateway, inventory=True) == ("unknown", "")
    assert under("2.1.100", gateway) == ("unknown", "")  # it wrote no inventories


def test_an_inventory_counts_with_a_known_mode(recordings: Path) -> None:
    (fact,) = read(
        recordings / "transcripts/synthetic/auto_below_threshold_has_delta_but_off.jsonl"
    )

    def under(value: str) -> str:
        return judge(
            fact, AgentSettings({"ENABLE_TOOL_SEARCH": Setting(value, "here")}), TABLE
        ).state

    assert (under("true"), under("auto"), under("auto:0")) == ("on", "unknown", "on")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (Usage(10, 500, 5_000), Usage(0, 0, 1_000)),
        (Usage(10, 5_000, 400), Usage(0, 600, 400)),
        (Usage(10, 300, 400), Usage(10, 300, 400)),
        (Usage(), Usage()),
    ],
)
def test_costs_are_split_by_the_requests_own_usage_and_capped_by_it(
    usage: Usage, expected: Usage
) -> None:
    assert split_cost(1_000, usage) == expected


SETTINGS = [
    ("settings_false_2sp", "env-off"),
    ("settings_no", "env-off"),
    ("settings_false_bom", "env-off"),
    ("settings_false_tabs_crlf_nonl", "env-off"),
    ("settings_disable_betas", "experimental-betas-disabled"),
    ("settings_deny_toolsearch", "toolsearch-denied"),
    ("settings_dup_keys", "env-off"),
    ("settings_malformed", "config-ignored"),
    ("settings_jsonc_ignored_by_agent", "config-ignored"),
    ("settings_trailing_comma_ignored_by_agent", "config-ignored"),
]


@pytest.mark.parametrize(("name", "cause"), SETTINGS)
def test_a_setting_is_found_where_it_stands_and_explains_what_was_recorded(
    name: str, cause: str, recordings: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    (home.claude / "settings.json").write_bytes((recordings / f"config/{name}.json").read_bytes())
    home.transcript(recordings / "transcripts/captured/2.1.329__settings-false.jsonl")
    status, document = run_json(capsys, "audit")
    assert status == 1
    rows = {finding["cause"]: finding for finding in document["findings"]}
    assert str(home.claude / "settings.json") in rows[cause]["where"]
    assert rows[cause]["requests"] == (0 if cause == "config-ignored" else 2)


def test_settings_beat_the_environment_and_the_project_beats_the_user(
    recordings: Path,
    home: Home,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = home.transcript(recordings / "transcripts/captured/2.1.329__settings-false.jsonl")
    cwd = next(r["cwd"] for r in records(path) if "cwd" in r)
    (Path(cwd) / ".claude").mkdir(parents=True)
    monkeypatch.setenv("ENABLE_TOOL_SEARCH", "true")
    (home.claude / "settings.json").write_text('{"env": {"ENABLE_TOOL_SEARCH": "true"}}')
    (Path(cwd) / ".claude/settings.local.json").write_text('{"env": {"ENABLE_TOOL_SEARCH": "off"}}')
    _status, document = run_json(capsys, "audit")
    (finding,) = document["findings"]
    assert finding["cause"] == "env-off"
    assert finding["where"].endswith("settings.local.json: env.ENABLE_TOOL_SEARCH")


def test_a_setting_that_the_project_overrides_is_no_finding(
    recordings: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    path = home.transcript(
        recordings / "transcripts/captured/2.1.329__user-false-project-true.jsonl"
    )
    cwd = next(r["cwd"] for r in records(path) if "cwd" in r)
    (Path(cwd) / ".claude").mkdir(parents=True)
    (Path(cwd) / ".claude/settings.json").write_text('{"env": {"ENABLE_TOOL_SEARCH": "true"}}')
    (home.claude / "settings.json").write_text('{"env": {"ENABLE_TOOL_SEARCH": "false"}}')
    assert run_json(capsys, "audit")[0] == 0
    path.unlink()
    assert run_json(capsys, "audit")[1]["findings"][0]["cause"] == "env-off"


def test_a_mixed_window_gives_counts_by_cause(
    recordings: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("unset-baseurl", "ets-auto-24tools", "resume-after-refusal", "no-exp-betas"):
        home.transcript(recordings / f"transcripts/captured/2.1.329__{name}.jsonl")
    status, document = run_json(capsys, "audit")
    counts = {finding["cause"]: finding["requests"] for finding in document["findings"]}
    assert status == 1
    assert counts == {
        "endpoint-refused": 2, "held-off": 2, "experimental-betas-disabled": 2, "auto-below-threshold": 2,
        "auto-threshold": 0,
    }  # fmt: skip
    threshold = next(f for f in document["findings"] if f["cause"] == "auto-threshold")
    assert threshold["value"] == "auto:6"  # 13.8k of 200k tokens
    assert document["requests"]["refused"] == 1
    assert {row["server"] for row in document["servers"]} == {"(built-in)", "github"}


def test_a_server_that_is_loaded_upfront_and_hardly_called_is_found(
    recordings: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.transcript_of_two_sessions(
        recordings / "transcripts/synthetic/shape_on_with_alwaysload_rarely_used.jsonl"
    )
    (home.folder / ".claude.json").write_text(
        '{"mcpServers": {"pinned": {"command": "x", "alwaysLoad": true}}}'
    )
    status, document = run_json(capsys, "audit")
    (finding,) = document["findings"]
    assert (status, finding["cause"], finding["value"]) == (1, "alwaysload-unused", "pinned")
    assert finding["where"].endswith(".claude.json: mcpServers.pinned.alwaysLoad")


def test_a_server_unused_in_one_session_is_not_found_yet(
    recordings: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.transcript(recordings / "transcripts/synthetic/shape_on_with_alwaysload_rarely_used.jsonl")
    status, document = run_json(capsys, "audit")
    assert (status, document["findings"]) == (0, [])


def test_nothing_found_is_status_0_and_a_missing_file_status_2(
    recordings: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.transcript(recordings / "transcripts/captured/2.1.329__unset-baseurl.jsonl")
    assert main(["deferral", "audit"]) == 0
    assert "3 on" in capsys.readouterr().out
    assert main(["deferral", "audit", str(home.folder / "nowhere.jsonl")]) == 2


def test_unknown_is_never_a_finding(
    recordings: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.transcript(recordings / "transcripts/synthetic/legacy_off_no_evidence.jsonl")
    status, document = run_json(capsys, "audit")
    assert (status, document["findings"]) == (0, [])


def test_no_secret_of_a_config_file_or_the_environment_is_printed(
    recordings: Path,
    home: Home,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "ANTHROPIC_BASE_URL", "https://SECRET-user:SECRET-word@gw.example/SECRET-path?k=SECRET-key"
    )
    monkeypatch.setenv("ANTHROPIC_API_KEY", "SECRET-api-key")
    (home.claude / "settings.json").write_bytes(
        (recordings / "config/settings_base_url.json").read_bytes()
    )
    (home.folder / ".claude.json").write_bytes(
        (recordings / "config/claude_json_user_and_local_scope.json").read_bytes()
    )
    (home.folder / ".zshrc").write_bytes((recordings / "config/dot_zshrc").read_bytes())
    home.transcript(recordings / "transcripts/captured/2.1.303__unset-baseurl.jsonl")
    for words in (["audit"], ["audit", "--json", "--requests"]):
        assert main(["deferral", *words]) == 1
        shown = capsys.readouterr()
        assert "SECRET" not in shown.out + shown.err
        assert "gw.corp.example" in shown.out
        assert "ENABLE_TOOL_SEARCH=false" in shown.out
        assert "ENABLE_TOOL_SEARCH=true" not in shown.out.replace("set ENABLE_TOOL_SEARCH=true", "")


def test_the_routers_own_runs_are_in_the_same_report(
    recordings: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home.folder / "runs/r-1"
    folder.mkdir(parents=True)
    lines = [
        {
            "type": "route.decided",
            "exposure": {"tools": 3, "tokens": 900, "all_tools": 40, "all_tokens": 12_000},
        },
        {
            "type": "route.decided",
            "exposure": {"tools": 4, "tokens": 1_100, "all_tools": 40, "all_tokens": 12_000},
        },
    ]
    (folder / "routing.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + "torn"
    )
    status, document = run_json(capsys, "audit", "--runs", str(home.folder / "runs"))
    assert status == 0
    assert document["router"] == {
        "runs": 1, "decisions": 2, "shown_tokens": 2_000, "all_tokens": 24_000, "damaged": 1, "saved_tokens": 22_000,
    }  # fmt: skip
