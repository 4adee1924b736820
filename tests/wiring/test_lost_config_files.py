"""A config folder that loses a file, or has half of one, while a router runs and at a start: what
rules is never wider than the last good config (S-41, F-19).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.errors import ConfigError
from bundle_router.workbench.config_editing import ConfigEditor

TEXTS = {
    "servers.toml": "# no server of our own\n",
    "bundles.toml": (
        '[bundles."repo.readonly"]\ndescription = "Read files."\ntools = ["repo.read_file"]\n'
        'effects = ["read"]\n'
    ),
    "routes.toml": (
        '[[routes]]\nname = "all"\nbundles = ["repo.readonly", "workspace.exec"]\n'
        'role = "implementer"\n'
    ),
    "policy.toml": (
        '[[policies]]\nname = "everybody only reads"\nallow = ["bundle:repo.readonly"]\n'
    ),
    "router.toml": "[limits]\ncall_timeout_s = 7\n",
}
STEP = Step(run_id="r", workflow="feature", role="implementer", step="edit")
Happening = Callable[[Path], object]


def half(path: Path) -> None:
    text = path.read_text()
    path.write_text(text[: len(text) // 2])


def without_its_last_line_break(path: Path) -> None:
    path.write_text(path.read_text()[:-1])


def replaced_by(make: Happening) -> Happening:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


def outside(path: Path) -> Path:
    """A valid file beside the config folder, which permits everything if it is the policy."""
    other = path.parent.parent / f"outside-{path.name}"
    other.write_text("# nothing\n")
    return other


HAPPENINGS: dict[str, Happening] = {
    "renamed away": lambda path: path.rename(path.with_name(f"{path.name}~")),
    "unlinked": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "emptied to a byte order mark": lambda path: path.write_bytes(b"\xef\xbb\xbf"),
    "emptied to line breaks": lambda path: path.write_text("\n \n"),
    "half written": half,
    "without its last line break": without_its_last_line_break,
    "filled with zeros by a power loss": lambda path: path.write_bytes(b"\0" * 64),
    "replaced by a folder": replaced_by(Path.mkdir),
    "replaced by a pipe": replaced_by(os.mkfifo),
    "replaced by a link to nothing": replaced_by(lambda path: path.symlink_to("nothing")),
    "replaced by a link in a circle": replaced_by(lambda path: path.symlink_to(path.name)),
    "replaced by a link out of the folder": replaced_by(
        lambda path: path.symlink_to(outside(path))
    ),
    "with a folder that is gone": lambda path: path.parent.rename(path.parent.with_name("away")),
}


def make_config(tmp_path: Path, *names: str) -> Path:
    folder = tmp_path / "config"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(tmp_path / "away", ignore_errors=True)
    folder.mkdir()
    for name in names or TEXTS:
        (folder / name).write_text(TEXTS[name])
    return folder


def in_force(router: Router, run_id: str) -> tuple[Any, ...]:
    """What a new run is given, and the revision that decided it."""
    decision = router.route_sync(STEP.model_copy(update={"run_id": run_id}))
    rows: Sequence[Any] = router.tools_sync(run_id).tools
    tools = sorted(row["function"]["name"] for row in rows)
    return decision.bundle_ids, tools, router.catalog.settings.limits.call_timeout_s


ONLY_READS = (["repo.readonly"], ["repo__read_file"], 7)


def test_a_reload_of_a_folder_that_lost_a_file_changes_nothing_and_says_so(tmp_path: Path) -> None:
    wrong = []
    config = make_config(tmp_path)
    with Router.open(config, runs=tmp_path / "runs", workspace=tmp_path) as router:
        assert in_force(router, "before") == ONLY_READS
        for number, (happening, happen) in enumerate(HAPPENINGS.items()):
            for name in TEXTS:
                happen(make_config(tmp_path) / name)
                run_id = f"{name}-{number}"
                try:
                    router.reload()
                except ConfigError as refused:
                    said = [str(problem) for problem in refused.problems]
                    if not any(name in line or happening.endswith("gone") for line in said):
                        wrong.append(f"{name} {happening}: {said}")
                else:
                    wrong.append(f"{name} {happening}: nothing was said")
                if in_force(router, run_id) != ONLY_READS:
                    wrong.append(f"{name} {happening}: {in_force(router, run_id)}")
                make_config(tmp_path)
                if router.reload():
                    wrong.append(f"{name} {happening}: not as before once it is back")
    assert not wrong, "\n".join(wrong)


def test_a_policy_that_is_gone_while_the_service_runs_is_logged_and_in_readyz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")
    import httpx2
    from bundle_router.service import serve

    monkeypatch.setattr("bundle_router.service.reloading.LOOK_S", 0.02)
    config = make_config(tmp_path)

    async def main() -> None:
        opened = Router.open(config, runs=tmp_path / "runs", workspace=tmp_path)
        async with opened as router, serve(router) as endpoint:
            headers = {"authorization": f"Bearer {endpoint.key}"}
            async with httpx2.AsyncClient(
                base_url=endpoint.base, headers=headers, timeout=60
            ) as http:
                for name in TEXTS:
                    (config / name).rename(config / f"{name}~")
                    said = await until(http, lambda said: said["problems"])
                    assert "is gone; it was there" in said["problems"][0]
                    assert said["problems"][0].startswith(f"{config / name}:")
                    assert said["policy"] == str(config / "policy.toml")
                    body = STEP.model_copy(update={"run_id": name}).to_json()
                    decision = (await http.post("/v1/route", json=body)).json()
                    assert [row["id"] for row in decision["bundles"]] == ["repo.readonly"]
                    (config / f"{name}~").rename(config / name)
                    await until(http, lambda said: not said["problems"])

    asyncio.run(main())
    logged = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    refused = [row for row in logged if row["event"] == "config.refused"]
    assert [Path(row["problems"][0].split(":")[0]).name for row in refused] == list(TEXTS)


async def until(http: Any, seen: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """What /readyz says of the config once it says that."""
    while True:
        said: dict[str, Any] = (await http.get("/readyz")).json()["config"]
        if seen(said):
            return said


# --- a volume of Kubernetes, in which each file is a link within the folder -----------------------


class Volume:
    """A folder as Kubernetes writes a ConfigMap: `policy.toml` leads to `..data/policy.toml`, and
    `..data` to the folder of a version, which is swapped at once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = 0
        folder.mkdir()

    def publish(self, texts: dict[str, str]) -> None:
        self._number += 1
        version = f"..2026_{self._number}"
        (self.folder / version).mkdir()
        for name, text in texts.items():
            (self.folder / version / name).write_text(text)
        beside = self.folder / "..data_tmp"
        beside.symlink_to(version)
        beside.replace(self.folder / "..data")
        for name in texts:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")

    def remove_stale_links(self) -> None:
        for path in self.folder.iterdir():
            if path.is_symlink() and not path.exists():
                path.unlink()


def test_a_volume_of_links_within_the_folder_is_read_and_swapped(tmp_path: Path) -> None:
    volume = Volume(tmp_path / "config")
    volume.publish(TEXTS)
    without = {name: text for name, text in TEXTS.items() if name != "policy.toml"}
    narrower = {**TEXTS, "policy.toml": '[[policies]]\nname = "nothing"\ndeny = ["*"]\n'}
    with Router.open(volume.folder, runs=tmp_path / "runs", workspace=tmp_path) as router:
        assert in_force(router, "first") == ONLY_READS
        volume.publish(without)
        with pytest.raises(ConfigError, match=r"policy\.toml: can't be read: no such file"):
            router.reload()
        volume.remove_stale_links()
        with pytest.raises(ConfigError, match=r"policy\.toml: is gone; it was there"):
            router.reload()
        assert in_force(router, "second") == ONLY_READS
        volume.publish(narrower)
        assert router.reload()
        assert in_force(router, "third")[0] == []


# --- what is an edit and no accident --------------------------------------------------------------


def test_a_file_that_is_added_or_says_something_else_takes_effect(tmp_path: Path) -> None:
    config = make_config(tmp_path, "routes.toml", "router.toml")
    with Router.open(config, runs=tmp_path / "runs", workspace=tmp_path) as router:
        wide = in_force(router, "shipped-policy")
        assert wide[0] == ["repo.readonly", "workspace.exec"]
        (config / "router.toml").write_text("[limits]\ncall_timeout_s = 8\n")
        assert router.reload(), "a folder that never had a policy of its own is edited as before"
        (config / "policy.toml").write_text(TEXTS["policy.toml"])
        assert router.reload()
        assert in_force(router, "own-policy")[0] == ["repo.readonly"]
        (config / "policy.toml").write_text("# nobody is permitted anything\n")
        assert router.reload()
        assert in_force(router, "none")[0] == []
        (config / "policy.toml").unlink()
        with pytest.raises(ConfigError, match=r"policy\.toml: is gone"):
            router.reload()
        assert in_force(router, "still")[0] == []


def test_a_file_that_an_editor_took_out_by_undoing_its_making_is_taken_out(tmp_path: Path) -> None:
    config = make_config(tmp_path, "routes.toml")
    editor = ConfigEditor(config)
    with Router.open(config, runs=tmp_path / "runs", workspace=tmp_path) as router:
        draft = {"policy.toml": TEXTS["policy.toml"]}
        shown = editor.preview(draft).privileges
        assert shown is not None
        widening = shown.widening_digest
        editor.save(draft, {}, by="ann", reason="only reads", acknowledged=widening)
        assert router.reload()
        preview = editor.undo_preview()
        assert preview is not None
        assert preview.privileges is not None
        seen = preview.privileges.widening_digest
        editor.undo(by="ann", reason="the shipped one will do", acknowledged=seen)
        assert not (config / "policy.toml").exists()
        assert router.reload()
        assert in_force(router, "r")[0] == ["repo.readonly", "workspace.exec"]


def test_a_text_saved_on_a_page_keeps_the_line_break_at_the_end_of_its_file(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    editor = ConfigEditor(config)
    opened = {file.name: file.digest for file in editor.files()}
    editor.save({"router.toml": "[limits]\ncall_timeout_s = 6"}, opened, by="ann")
    assert (config / "router.toml").read_text() == "[limits]\ncall_timeout_s = 6\n"


# --- at a start -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "recorded", "said"),
    [
        (list(TEXTS), True, ""),
        (["router.toml"], False, ""),
        (["routes.toml"], False, "has a routes.toml and no policy.toml"),
        (["router.toml"], True, "was decided by other rows of policy than those in force"),
        (["routes.toml"], True, "has a routes.toml and no policy.toml"),
    ],
    ids=["whole", "never had one", "routes alone", "a record of another", "both"],
)
def test_a_start_says_which_policy_rules_where_the_folder_seems_to_have_lost_its_own(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    names: list[str],
    recorded: bool,
    said: str,
) -> None:
    runs = tmp_path / "runs"
    if recorded:
        with Router.open(make_config(tmp_path), runs=runs, workspace=tmp_path) as router:
            in_force(router, "then")
    config = make_config(tmp_path, *names)
    capfd.readouterr()
    Router.open(config, runs=runs, workspace=tmp_path).close_sync()
    rows = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    warned = [row for row in rows if row["event"] == "policy.shipped"]
    assert len(warned) == bool(said)
    if said:
        assert said in warned[0]["problem"]
        assert re.search(r"config/policy\.toml \(shipped\)$", warned[0]["in_force"])
        assert warned[0]["rows"]


def test_runs_that_the_shipped_policy_decided_are_no_reason_to_warn(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = make_config(tmp_path, "router.toml")
    for _ in range(2):
        with Router.open(config, runs=tmp_path / "runs", workspace=tmp_path) as router:
            router.route_sync(STEP)
    assert "policy.shipped" not in capfd.readouterr().err
