"""Changes of settings: only the bytes that are meant, all or nothing through every crash, and back
to the byte.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bundle_router.cli import main
from bundle_router.errors import RequestError, StorageError
from bundle_router_deferral.comparison import MIN_REQUESTS, Effect, effect_of
from bundle_router_deferral.journal import Disk, Journal
from bundle_router_deferral.json_spans import (
    NotEditable,
    find,
    read_editable,
    remove_element,
    remove_member,
    set_member,
)
from bundle_router_deferral.plans import FileEdit, show_diff
from bundle_router_deferral.transcript import RequestFacts, Usage, measure_tools
from hypothesis import given
from hypothesis import strategies as st

from tests.deferral.conftest import Home

SPACE = st.text(" \t\r\n", max_size=3)
NAMES = st.text(max_size=6) | st.sampled_from(
    ("env", "ENABLE_TOOL_SEARCH", "a.b", '"', "\\", "é", "😀")
)
NUMBERS = st.sampled_from(
    ("0", "-1", "1.0", "1e5", "1E400", "123456789012345678901234567890", "-0.0")
)


@st.composite
def strings(draw: st.DrawFn) -> str:
    return json.dumps(draw(NAMES), ensure_ascii=draw(st.booleans()))


@st.composite
def listed(draw: st.DrawFn, items: list[str], brackets: str) -> str:
    """The items in brackets, with space wherever it may be."""
    parts = [draw(SPACE) + item + draw(SPACE) for item in items]
    return brackets[0] + (",".join(parts) or draw(SPACE)) + brackets[1]


@st.composite
def documents(draw: st.DrawFn, depth: int = 3) -> str:
    kind = draw(st.integers(0, 4 if depth else 2))
    if kind == 0:
        return draw(strings())
    if kind == 1:
        return draw(NUMBERS)
    if kind == 2:
        return draw(st.sampled_from(("true", "false", "null")))
    if kind == 3:
        return draw(listed(draw(st.lists(documents(depth=depth - 1), max_size=3)), "[]"))
    return draw(objects(depth=depth - 1))


@st.composite
def objects(draw: st.DrawFn, depth: int = 3) -> str:
    keys = draw(st.lists(NAMES, max_size=4, unique=True))
    members = [
        json.dumps(key, ensure_ascii=draw(st.booleans()))
        + draw(SPACE)
        + ":"
        + draw(SPACE)
        + draw(documents(depth=depth))
        for key in keys
    ]
    return draw(listed(members, "{}"))


@st.composite
def files(draw: st.DrawFn) -> bytes:
    mark = draw(st.sampled_from(("", "\ufeff")))
    return (mark + draw(SPACE) + draw(objects()) + draw(SPACE)).encode()


def paths_of(value: Any, trail: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return []
    return [path for key in value for path in ((*trail, key), *paths_of(value[key], (*trail, key)))]


def parsed(text: str) -> Any:
    return json.loads(text.removeprefix("\ufeff"), parse_float=str, parse_int=str)


def without(value: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    head, *rest = path
    if not rest:
        return {key: item for key, item in value.items() if key != head}
    return {key: without(item, rest) if key == head else item for key, item in value.items()}


@given(files(), st.data())
def test_a_removed_member_is_all_that_goes(data: bytes, choice: st.DataObject) -> None:
    text = read_editable(data)
    assert text.encode() == data
    paths = paths_of(parsed(text))
    if not paths:
        return
    path = choice.draw(st.sampled_from(paths))
    changed = remove_member(text, path)
    assert parsed(changed) == without(parsed(text), path)
    start, end = _common(text, changed)
    assert text.startswith(changed[:start])
    assert text.endswith(changed[len(changed) - end :] if end else "")


@given(files(), st.data(), st.sampled_from(("true", "auto:6", 'quote"d')))
def test_a_set_member_is_all_that_changes(data: bytes, choice: st.DataObject, value: str) -> None:
    text = read_editable(data)
    paths = paths_of(parsed(text))
    path = choice.draw(st.sampled_from([*paths, ("env", "ENABLE_TOOL_SEARCH")]))
    try:
        changed = set_member(text, path, value)
    except NotEditable:
        parent = find(text, path[:-1])
        assert parent is not None
        assert not isinstance(parent.value, dict)
        return
    there = find(changed, path)
    assert there is not None
    assert there.value == value
    if path in paths:
        old = find(text, path)
        assert old is not None
        assert changed == text[: old.start] + json.dumps(value) + text[old.end :]
    else:
        assert without(parsed(changed), path[:1]) == without(parsed(text), path[:1])


def _common(a: str, b: str) -> tuple[int, int]:
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    return start, len(b) - start


@given(files(), st.data())
def test_edit_then_undo_is_the_identity(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, choice: Any
) -> None:
    folder = tmp_path_factory.mktemp("edit")
    target = folder / "settings.json"
    target.write_bytes(data)
    mode = choice.draw(st.sampled_from((0o600, 0o644, 0o640)))
    target.chmod(mode)
    text = read_editable(data)
    changed = set_member(text, ("only", "here"), "x") if find(text, ("only",)) is None else text
    journal = Journal(folder / "state")
    with journal.locked():
        entry = journal.apply([FileEdit(str(target), data, changed.encode())], {})
    assert target.read_bytes() == changed.encode()
    assert stat.S_IMODE(target.stat().st_mode) == mode
    with journal.locked():
        journal.undo(entry["id"])
    assert target.read_bytes() == data
    assert stat.S_IMODE(target.stat().st_mode) == mode


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a": 1, // no\n "b": 2}', "comments"),
        (b'/* no */ {"a": 1}', "comments"),
        (b'{"a": {"b": 1,},}', "trailing comma"),
        (b'{"a": [1,]}', "trailing comma"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1', "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'\xff\xfe{"a": 1}', "not UTF-8"),
    ],
)
def test_what_can_not_be_edited_safely_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(NotEditable, match=reason):
        read_editable(data)


def test_an_element_is_taken_out_of_an_array() -> None:
    text = '{"permissions": {"deny": [ "Bash(rm *)" , "ToolSearch", "x" ,"ToolSearch"]}}'
    assert (
        remove_element(text, ("permissions", "deny"), "ToolSearch")
        == '{"permissions": {"deny": [ "Bash(rm *)" , "x"]}}'
    )


class Crash(BaseException):
    """The process dies here."""


class CrashingDisk(Disk):
    """Dies before its `at`-th step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, name: str, path: Path) -> None:
        self.at -= 1
        if self.at < 0:
            raise Crash(f"{name} {path}")


class FullDisk(Disk):
    """Fails from its `at`-th write on, until it is given space."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, name: str, path: Path) -> None:
        if name == "write":
            self.at -= 1
            if self.at == -1:
                raise OSError(28, "No space left on device")


OLD = {"one.json": b'{"a": 1}', "two.json": b'{"b": 2}'}
NEW = {"one.json": b'{"a": 10}', "two.json": b'{"b": 20}', "three.json": b'{"c": 30}'}


def prepared(folder: Path) -> list[FileEdit]:
    folder.mkdir()
    for name, data in OLD.items():
        (folder / name).write_bytes(data)
    return [FileEdit(str(folder / name), OLD.get(name), data) for name, data in NEW.items()]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def crash_at_every_step(
    folder: Path, work: Callable[[Journal, int], None]
) -> list[dict[str, bytes]]:
    """Carry out `work` once for each step it has, dying there, and return what the next start makes
    of each.
    """
    states = []
    for at in range(200):
        here = folder / str(at)
        edits = prepared(here)
        journal = Journal(folder / f"state-{at}", CrashingDisk(at))
        try:
            work(journal, at)
        except Crash:
            single = contents(here)
            for name, data in single.items():
                assert name.startswith(".") or data in (
                    OLD.get(name),
                    NEW[name],
                ), "each file is old or new, at once"
            with Journal(folder / f"state-{at}").locked():
                states.append(contents(here))
            continue
        assert edits
        return states
    raise AssertionError("it never ended")


def test_a_crash_between_any_two_steps_leaves_all_old_or_all_new(tmp_path: Path) -> None:
    def work(journal: Journal, at: int) -> None:
        edits = [
            FileEdit(str(tmp_path / str(at) / name), OLD.get(name), data)
            for name, data in NEW.items()
        ]
        with journal.locked():
            journal.apply(edits, {})

    states = crash_at_every_step(tmp_path, work)
    assert len(states) > 30
    assert all(state in (OLD, NEW) for state in states)
    assert OLD in states


def test_a_crash_in_an_undo_leaves_all_old_or_all_new(tmp_path: Path) -> None:
    def work(journal: Journal, at: int) -> None:
        edits = [
            FileEdit(str(tmp_path / str(at) / name), OLD.get(name), data)
            for name, data in NEW.items()
        ]
        safe = Journal(journal.folder)
        with safe.locked():
            entry = safe.apply(edits, {})
        with journal.locked():
            journal.undo(entry["id"])

    states = crash_at_every_step(tmp_path, work)
    assert all(state in (OLD, NEW) for state in states)
    assert {len(state) for state in states} == {2, 3}


def test_a_full_disk_takes_everything_back_at_once(tmp_path: Path) -> None:
    failed = 0
    for at in range(8):
        here = tmp_path / str(at)
        edits = prepared(here)
        journal = Journal(tmp_path / f"state-{at}", FullDisk(at))
        with journal.locked():
            try:
                journal.apply(edits, {})
            except StorageError:
                failed += 1
                assert contents(here) == OLD
    assert failed == 5  # two backups and three files


def test_a_crash_in_recovery_is_recovered_from(tmp_path: Path) -> None:
    edits = prepared(tmp_path / "files")
    for at in range(200):
        journal = Journal(tmp_path / "state", CrashingDisk(26))
        with pytest.raises(Crash), journal.locked():
            journal.apply(edits, {})
        try:
            with Journal(tmp_path / "state", CrashingDisk(at)).locked():
                break
        except Crash:
            pass
        with Journal(tmp_path / "state").locked():
            assert contents(tmp_path / "files") == OLD
    assert contents(tmp_path / "files") == OLD


def journal_with(folder: Path) -> tuple[Journal, Path]:
    target = folder / "settings.json"
    target.write_bytes(b'{"a": 1}')
    return Journal(folder / "state"), target


def change(journal: Journal, path: Path, after: bytes = b'{"a": 2}') -> dict[str, Any]:
    with journal.locked():
        return journal.apply([FileEdit(str(path), b'{"a": 1}', after)], {})


def test_a_stale_plan_is_refused(tmp_path: Path) -> None:
    journal, target = journal_with(tmp_path)
    target.write_bytes(b'{"a": 3}')
    with pytest.raises(RequestError, match="was changed after the plan was made"):
        change(journal, target)


def test_an_edit_in_the_meantime_is_left_alone(tmp_path: Path) -> None:
    journal, target = journal_with(tmp_path)

    class Racing(Disk):
        def step(self, name: str, path: Path) -> None:
            if name == "write" and path.name.startswith("."):
                target.write_bytes(b'{"mine": true}')

    with pytest.raises(RequestError, match="in the meantime"):
        change(Journal(journal.folder, Racing()), target)
    assert target.read_bytes() == b'{"mine": true}'
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["settings.json"]


def test_undo_refuses_a_file_that_was_changed_since(tmp_path: Path) -> None:
    journal, target = journal_with(tmp_path)
    entry = change(journal, target)
    target.write_bytes(b'{"mine": true}')
    with pytest.raises(RequestError, match="changed since"), journal.locked():
        journal.undo(entry["id"])
    assert target.read_bytes() == b'{"mine": true}'


def test_a_link_stays_one_and_its_target_is_edited(tmp_path: Path) -> None:
    journal, target = journal_with(tmp_path)
    link = tmp_path / "link.json"
    link.symlink_to(target)
    entry = change(journal, link)
    assert link.is_symlink()
    assert target.read_bytes() == b'{"a": 2}'
    with journal.locked():
        journal.undo(entry["id"])
    assert (link.is_symlink(), target.read_bytes()) == (True, b'{"a": 1}')


def test_read_only_and_hard_linked_files_are_left_alone(tmp_path: Path) -> None:
    journal, target = journal_with(tmp_path)
    target.chmod(0o444)
    with pytest.raises(RequestError, match="read-only"):
        change(journal, target)
    target.chmod(0o644)
    os.link(target, tmp_path / "twin.json")
    with pytest.raises(RequestError, match="hard links"):
        change(journal, target)


def test_two_changes_at_once_are_not_made(tmp_path: Path) -> None:
    journal, _target = journal_with(tmp_path)
    with (
        journal.locked(),
        pytest.raises(RequestError, match="under way"),
        Journal(journal.folder).locked(),
    ):
        pass


def test_a_torn_journal_is_read_and_written_on(tmp_path: Path) -> None:
    journal, target = journal_with(tmp_path)
    entry = change(journal, target)
    with (journal.folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"id": "torn')
    with journal.locked():
        journal.undo(entry["id"])
    assert target.read_bytes() == b'{"a": 1}'
    assert stat.S_IMODE((journal.folder / "journal.jsonl").stat().st_mode) == 0o600


def run(*words: str) -> int:
    return main(["deferral", *words])


@pytest.mark.parametrize(
    ("name", "cause", "left"),
    [
        (
            "settings_false_2sp",
            "env-off",
            {"zeta": 1, "env": {"B": "x", "A": "y"}, "alpha": {"keep": True}},
        ),
        ("settings_no", "env-off", {"env": {}}),
        ("settings_false_bom", "env-off", {"env": {}, "u": "é😀"}),
        (
            "settings_disable_betas",
            "experimental-betas-disabled",
            {"env": {"ENABLE_TOOL_SEARCH": "true"}},
        ),
        (
            "settings_deny_toolsearch",
            "toolsearch-denied",
            {"permissions": {"deny": ["Bash(rm *)"]}},
        ),
    ],
)
def test_apply_shows_then_carries_out_and_undo_gives_back_the_bytes(
    name: str,
    cause: str,
    left: Any,
    recordings: Path,
    home: Home,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = home.claude / "settings.json"
    before = (recordings / f"config/{name}.json").read_bytes()
    file.write_bytes(before)
    home.transcript(recordings / "transcripts/captured/2.1.329__settings-false.jsonl")
    assert run("apply", cause) == 0
    assert f"--- {file}" in capsys.readouterr().out
    assert file.read_bytes() == before
    assert run("apply", cause, "--yes") == 0
    assert json.loads(file.read_bytes().decode("utf-8-sig")) == left
    capsys.readouterr()
    assert run("undo", "--json") == 0
    assert file.read_bytes() == before
    assert json.loads(capsys.readouterr().out)["files"] == [str(file)]


def test_a_threshold_that_fits_is_set(recordings: Path, home: Home) -> None:
    file = home.claude / "settings.json"
    file.write_text('{"env": {"ENABLE_TOOL_SEARCH": "auto:15"}}')
    home.transcript(recordings / "transcripts/captured/2.1.329__ets-auto-24tools.jsonl")
    assert run("apply", "--yes") == 0
    assert file.read_text() == '{"env": {"ENABLE_TOOL_SEARCH": "auto:6"}}'


def test_always_load_is_removed_where_it_stands(recordings: Path, home: Home) -> None:
    file = home.folder / ".claude.json"
    file.write_text('{"mcpServers": {"pinned": {"command": "x", "alwaysLoad": true}}, "n": 1.0}')
    home.transcript_of_two_sessions(
        recordings / "transcripts/synthetic/shape_on_with_alwaysload_rarely_used.jsonl"
    )
    assert run("apply", "alwaysload-unused", "--yes") == 0
    assert file.read_text() == '{"mcpServers": {"pinned": {"command": "x"}}, "n": 1.0}'


def test_a_file_that_the_agent_can_not_read_is_refused(
    recordings: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home.claude / "settings.json"
    file.write_bytes((recordings / "config/settings_dup_keys.json").read_bytes())
    home.transcript(recordings / "transcripts/captured/2.1.329__settings-false.jsonl")
    assert run("apply", "env-off", "--yes") == 3
    assert "'env' stands in it twice" in capsys.readouterr().out
    assert file.read_bytes() == (recordings / "config/settings_dup_keys.json").read_bytes()


@pytest.mark.parametrize(
    ("days", "result", "written"), [(1, "pass", True), (8, "pass", False), (1, "refused", False)]
)
def test_the_switch_is_forced_on_behind_a_gateway_only_with_a_fresh_probe(
    days: int,
    result: str,
    written: bool,
    recordings: Path,
    home: Home,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = home.claude / "settings.json"
    file.write_text('{"env": {"ANTHROPIC_BASE_URL": "https://gw.example/v1"}}')
    home.transcript(recordings / "transcripts/captured/2.1.303__unset-baseurl.jsonl")
    state = home.folder / "state/bundle-router/deferral"
    state.mkdir(parents=True)
    time = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    row = {"host": "gw.example", "form": "anthropic", "result": result, "time": time}
    (state / "probes.jsonl").write_text(json.dumps(row) + "\n")
    assert run("apply", "base-url-gate", "--yes") == 0
    assert ("ENABLE_TOOL_SEARCH" in file.read_text()) is written
    assert ("deferral probe" in capsys.readouterr().out) is not written


NEXT = "takes effect with the next session; one that is open goes on as it began"
GATEWAY = {"ANTHROPIC_BASE_URL": "https://gw.example/v1"}
OFF = {"ENABLE_TOOL_SEARCH": "false"}
AT_VENDOR = {"ANTHROPIC_BASE_URL": "https://api.anthropic.com"}
NEVER = {"ENABLE_TOOL_SEARCH": "auto:100"}
NO_BETAS = {"CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1"}
RECORDED_OFF = "captured/2.1.329__settings-false.jsonl"


@pytest.mark.parametrize(
    ("settings", "environment", "probed", "transcript", "hosts"),
    [
        # nothing but the vendor's own endpoint is asked
        (OFF, "", "", RECORDED_OFF, []),
        (OFF | AT_VENDOR, "", "", "", []),
        # a gateway, in the same file or in the environment, with requests recorded or without
        (OFF | GATEWAY, "", "", RECORDED_OFF, ["gw.example"]),
        (OFF | GATEWAY, "", "", "", ["gw.example"]),
        (OFF, "https://other.example", "", RECORDED_OFF, ["other.example"]),
        (OFF, "https://other.example", "", "", ["other.example"]),
        # what the settings say precedes the environment
        (OFF | GATEWAY, "https://other.example", "", "", ["gw.example"]),
        # a probe that passed settles it, one of another host does not
        (OFF | GATEWAY, "", "gw.example", "", []),
        (OFF | GATEWAY, "", "other.example", "", ["gw.example"]),
        # the siblings: other switches that leave the default once they are gone
        (NEVER | GATEWAY, "", "", "", ["gw.example"]),
        (NO_BETAS | GATEWAY, "", "", "", ["gw.example"]),
    ],
)
def test_a_preview_says_when_it_takes_effect_and_what_follows_behind_a_gateway(
    settings: dict[str, str],
    environment: str,
    probed: str,
    transcript: str,
    hosts: list[str],
    recordings: Path,
    home: Home,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (home.claude / "settings.json").write_text(json.dumps({"env": settings}))
    if environment:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", environment)
    if transcript:
        home.transcript(recordings / "transcripts" / transcript)
    if probed:
        state = home.folder / "state/bundle-router/deferral"
        state.mkdir(parents=True)
        row = {"host": probed, "form": "anthropic", "result": "pass"}
        row["time"] = datetime.now(UTC).isoformat()
        (state / "probes.jsonl").write_text(json.dumps(row) + "\n")

    assert run("apply", "--json") == 0

    first, *others = json.loads(capsys.readouterr().out)["notes"]
    assert first == NEXT
    assert [note.split(" was not probed")[0] for note in others] == hosts
    for note in others:
        assert "from 2.1.304 then defers behind it" in note
        assert "`bundle-router deferral probe`" in note


def test_a_line_to_remove_by_hand_comes_with_the_same_notes(
    recordings: Path,
    home: Home,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENABLE_TOOL_SEARCH", "false")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://gw.example")
    home.transcript(recordings / "transcripts/captured/2.1.329__ets-false.jsonl")
    assert run("apply") == 0
    printed = capsys.readouterr().out
    assert f"note: {NEXT}\n" in printed
    assert "note: gw.example was not probed within 7 days" in printed


def test_a_preview_of_always_load_says_what_a_session_waits_for(
    recordings: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home.folder / ".claude.json"
    file.write_text('{"mcpServers": {"pinned": {"command": "x", "alwaysLoad": true}}}')
    home.transcript_of_two_sessions(
        recordings / "transcripts/synthetic/shape_on_with_alwaysload_rarely_used.jsonl"
    )
    assert run("apply") == 0
    printed = capsys.readouterr().out
    assert f"note: {NEXT}\n" in printed
    assert "note: a session waits at its start up to 5 s for a server marked" in printed


def test_nothing_to_change_has_no_notes(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("apply", "--json") == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_a_shell_profile_is_shown_and_never_edited(
    recordings: Path,
    home: Home,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = home.folder / ".zshrc"
    profile.write_bytes((recordings / "config/dot_zshrc").read_bytes())
    monkeypatch.setenv("ENABLE_TOOL_SEARCH", "false")
    home.transcript(recordings / "transcripts/captured/2.1.329__ets-false.jsonl")
    assert run("apply", "--yes") == 0
    assert (
        f"{profile}:3: remove the line `export ENABLE_TOOL_SEARCH=false`" in capsys.readouterr().out
    )
    assert profile.read_bytes() == (recordings / "config/dot_zshrc").read_bytes()


def test_a_diff_shows_no_string_that_the_edit_does_not_mean() -> None:
    before = (
        b'{"env": {"TOKEN": "s3cret", "ENABLE_TOOL_SEARCH": "false"}, "args": ["--key", "s3cret"]}'
    )
    shown = show_diff(FileEdit("settings.json", before, before.replace(b"false", b"true")))
    assert "s3cret" not in shown
    assert '"ENABLE_TOOL_SEARCH": "false"' in shown
    assert '"ENABLE_TOOL_SEARCH": "true"' in shown


def request(time: str, tools: int, usage: Usage, cwd: str = "/w/p") -> RequestFacts:
    sizes = measure_tools(
        ({"name": f"t{i}", "description": "x" * 380} for i in range(tools)), frozenset(), None
    )
    return RequestFacts(
        "s", cwd, "2.1.329", "claude-sonnet-4-5", time, "on", "shape", "served", False, "", False, False, None, sizes,
        usage, 1, (),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("after", "tools", "hit", "state"),
    [
        (MIN_REQUESTS - 1, 5, 9_000, "pending"),
        (MIN_REQUESTS, 5, 9_000, "measured"),
        (MIN_REQUESTS, 50, 9_000, "no effect"),
        (MIN_REQUESTS, 60, 9_000, "worse"),
        (MIN_REQUESTS, 5, 5_000, "worse"),
    ],
)
def test_a_change_is_judged_by_the_requests_on_both_sides(
    after: int, tools: int, hit: int, state: str
) -> None:
    effect = Effect("1", "env-off", "2026-11-10T00:00:00.000000+00:00", project="/w/p")
    for _ in range(MIN_REQUESTS):
        effect.add(request("2026-11-09T00:00:00.000Z", 50, Usage(0, 1_000, 9_000)))
        effect.add(request("2026-11-11T00:00:00.000Z", 500, Usage(), cwd="/w/other"))
    for _ in range(after):
        effect.add(request("2026-11-11T00:00:00.000Z", tools, Usage(0, 10_000 - hit, hit)))
    assert effect.state == state
    assert effect.hit_rate_fell is (hit == 5_000)
    assert effect.as_json()["after"]["requests"] == after


def test_the_report_names_samples_and_states(
    recordings: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("report", "--json") == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []
    (home.claude / "settings.json").write_text('{"env": {"ENABLE_TOOL_SEARCH": "no"}}')
    home.transcript(recordings / "transcripts/captured/2.1.329__settings-false.jsonl")
    assert run("apply", "--yes") == 0
    capsys.readouterr()
    assert run("report", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["changes"]
    assert (row["state"], row["before"]["requests"], row["after"]["requests"]) == ("pending", 2, 0)
    assert run("report") == 0
    assert "pending" in capsys.readouterr().out


def test_an_entry_that_changed_no_settings_has_no_effect_to_report() -> None:
    assert effect_of({"id": "1", "kind": "proxy", "applied": "2026", "changes": []}) is None
