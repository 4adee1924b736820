"""Artifacts handed to tools as files: where a path is wanted, and only to tools of this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.core.results.artifact_handles import handles_in
from bundle_router.core.values import Media, Text
from bundle_router.errors import RequestError
from bundle_router.tool import LocalTool, ToolContext, ToolOutput
from pydantic import BaseModel

CONFIG = {
    "servers": '[servers.kit]\ntransport = "local"\ntrust = "trusted"\n',
    "bundles": (
        '[bundles.kit]\ndescription = "Kit."\ntools = ["kit.make", "kit.open"]\neffects ='
        ' ["read"]\n'
    ),
    "routes": '[[routes]]\nname = "all"\nbundles = ["kit"]\n',
    "policy": '[[policies]]\nname = "all"\nallow = ["*"]\n',
}
GIF = b"GIF89a\1\0\1\0\0\0\0!"
MADE = {"gif": GIF, "json": b'[{"a": 1}]', "text": b"plain words\n", "odd": b"\0\1\2\3\xfe"}


def uri(data: bytes) -> str:
    return f"artifact:sha256:{hashlib.sha256(data).hexdigest()}"


class What(BaseModel):
    what: str


class Paths(BaseModel):
    path: str = ""
    inputFiles: list[str] = []  # noqa: N815 - a name as servers write them
    output_path: str = ""
    query: str = ""


@dataclass
class Kit:
    opened: list[dict[str, Any]] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)

    def make(self, arguments: What, context: ToolContext) -> ToolOutput:
        return ToolOutput((Media(MADE[arguments.what], "image/png", "../../evil.sh"),))

    def open(self, arguments: Paths, context: ToolContext) -> ToolOutput:
        self.queries.append(arguments.query)
        for path in (arguments.path, *arguments.inputFiles):
            if Path(path).is_absolute():
                mode = (
                    stat.S_IMODE(Path(path).stat().st_mode),
                    stat.S_IMODE(Path(path).parent.stat().st_mode),
                )
                self.opened.append({"path": path, "data": Path(path).read_bytes(), "modes": mode})
        return ToolOutput((Text(arguments.model_dump_json()),))

    @property
    def tools(self) -> tuple[LocalTool, ...]:
        return LocalTool("make", "Makes it.", What, self.make), LocalTool(
            "open", "Opens it.", Paths, self.open
        )


@dataclass
class Site:
    router: Router
    kit: Kit
    folder: Path

    def made(self, what: str, run_id: str = "r", **step: Any) -> str:
        self.router.route_sync(Step(run_id=run_id, workflow="w", role="r", step="s", **step))
        (stored,) = self.router.call_sync(run_id, "kit.make", {"what": what}).artifacts
        return stored.uri

    def open(self, run_id: str = "r", **arguments: Any) -> Any:
        return self.router.call_sync(run_id, "kit.open", arguments)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "config").mkdir()
    for name, text in CONFIG.items():
        (tmp_path / "config" / f"{name}.toml").write_text(text)
    kit = Kit()
    where: dict[str, Any] = {"runs": tmp_path / "runs", "workspace": tmp_path}
    with Router.open(tmp_path / "config", local={"kit": kit.tools}, **where) as router:
        yield Site(router, kit, tmp_path)


@pytest.mark.parametrize(
    ("what", "suffix"), [("gif", ".gif"), ("json", ".json"), ("text", ".txt"), ("odd", ".bin")]
)
def test_a_path_is_that_of_a_read_only_copy_by_what_its_bytes_are_and_gone_afterwards(
    site: Site, what: str, suffix: str
) -> None:
    handle = site.made(what)
    assert site.open(path=handle).ok
    (file,) = site.kit.opened
    assert (file["data"], file["modes"], Path(file["path"]).suffix) == (
        MADE[what],
        (0o400, 0o700),
        suffix,
    )
    assert "evil" not in file["path"]
    assert not Path(file["path"]).parent.exists()
    lines = (site.folder / "runs" / "r" / "tool-calls.jsonl").read_text().splitlines()
    assert json.loads(json.loads(lines[-1])["arguments"]) == {"path": handle}, (
        "the record has the handle"
    )


def test_several_files_of_one_call_are_handed_at_once_and_the_same_one_once(site: Site) -> None:
    gif, text = site.made("gif"), site.made("text")
    site.open(inputFiles=[gif, text, gif])
    assert [file["data"] for file in site.kit.opened] == [GIF, MADE["text"], GIF]
    assert len({file["path"] for file in site.kit.opened}) == 2


def test_where_no_file_is_read_a_handle_is_text(site: Site) -> None:
    handle = site.made("gif")
    said = json.loads(site.open(output_path=handle, query=handle).text)
    assert (said["output_path"], said["query"], site.kit.opened) == (handle, handle, [])


def test_only_artifacts_of_the_run_and_its_ancestors_are_handed_or_read(site: Site) -> None:
    handle = site.made("gif", "parent")
    site.made("text", "child", parent_run_id="parent")
    site.made("text", "grandchild", parent_run_id="child")
    site.made("text", "stranger")
    assert site.open("grandchild", path=handle).ok
    assert site.router.call_sync("grandchild", "read_artifact", {"uri": handle}).ok
    for run_id in ("stranger", "grandchild"):
        absent = handle if run_id == "stranger" else uri(b"?")
        refused = site.open(run_id, path=absent)
        assert (refused.outcome, refused.code) == ("invalid_arguments", "not_found")
        assert not site.router.call_sync(run_id, "read_artifact", {"uri": absent}).ok
    child_only = site.made("odd", "child")
    assert site.open("parent", path=child_only).code == "not_found", (
        "what a sub-agent made is not its parent's"
    )
    assert len(site.kit.opened) == 1


NAMES = {
    "path": True, "file": True, "file_path": True, "filePath": True, "filename": True, "inputFile": True, "paths": True,
    "image_file": True, "SOURCE_PATH": True, "output_path": False, "destinationPath": False, "saveFile": False,
    "profile": False, "query": False, "path_count": False, "filter": False, "": False,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_an_argument_is_a_path_by_its_name(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    found = handles_in({name: uri(GIF)}, schema)
    assert [handle.want for handle in found] == (["path"] if NAMES[name] else [])


def test_what_a_schema_says_of_bytes_counts_before_a_name_and_a_path_by_format_needs_none() -> None:
    properties = {
        "file": {"type": "string", "contentEncoding": "base64"},
        "source": {"type": "string", "format": "file-path"},
        "path": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "paths": {"type": "array", "items": {"type": "integer"}},
    }
    given = {"file": uri(GIF), "source": uri(GIF), "path": uri(GIF), "paths": [uri(GIF)]}
    found = handles_in(given, {"type": "object", "properties": properties})
    assert {handle.place[0]: handle.want for handle in found} == {
        "file": "base64",
        "source": "path",
        "path": "path",
    }


def test_bytes_in_arguments_are_artifacts_in_the_record_and_come_to_the_tool_as_they_were(
    site: Site,
) -> None:
    payload = "data:image/gif;base64," + base64.b64encode(GIF + bytes(600)).decode()
    site.router.route_sync(Step(run_id="r", workflow="w", role="r", step="s"))
    assert json.loads(site.open(query=payload).text)["query"].startswith(
        "[artifact artifact:sha256:"
    )
    records = (site.folder / "runs" / "r" / "tool-calls.jsonl").read_text()
    assert "AAAAAAAA" not in records
    assert site.kit.queries == [payload]
    started = json.loads(json.loads(records.splitlines()[0])["arguments"])
    assert started["query"].startswith(f"[artifact {uri(GIF + bytes(600))} image/gif")
    assert site.router.artifact("r", uri(GIF + bytes(600))) == GIF + bytes(600)


def test_a_refused_call_leaves_none_of_its_bytes_and_the_beginning_of_its_words(site: Site) -> None:
    site.router.route_sync(Step(run_id="r", workflow="w", role="r", step="s"))
    payload = "data:image/gif;base64," + base64.b64encode(GIF + bytes(600)).decode()
    for name, given in (
        ("kit.nowhere", {"query": payload}),
        ("kit.open", {"query": "w " * 50_000, "inputFiles": payload}),
    ):
        assert not site.router.call_sync("r", name, given).ok
    assert not site.kit.queries
    with pytest.raises(RequestError):
        site.router.artifact("r", uri(GIF + bytes(600)))
    denied, unfit = (site.folder / "runs" / "r" / "tool-calls.jsonl").read_text().splitlines()
    assert json.loads(json.loads(denied)["arguments"])["query"].startswith("[artifact ")
    kept = json.loads(json.loads(unfit)["arguments"])
    assert (kept["length"] > 100_000, kept["head"][:14], len(kept["head"])) == (
        True,
        '{"inputFiles":',
        1_000,
    )
    assert len(unfit) < 10_000


def test_the_confined_reader_reads_a_handed_file_and_no_other_outside_the_workspace(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "big.txt").write_text("some words\n" * 5_000)
    (tmp_path / "other.txt").write_text("not for you")
    config = Path(__file__).parents[3] / "config"
    with Router.open(config, runs=tmp_path / "runs", workspace=workspace) as router:
        router.route_sync(Step(run_id="r", workflow="feature", role="implementer", step="edit"))
        (whole,) = router.call_sync("r", "repo.read_file", {"path": "big.txt"}).artifacts
        again = router.call_sync("r", "repo.read_file", {"path": whole.uri, "start": 2, "end": 3})
        assert again.ok
        assert again.text.count("some words") == 2
        assert again.text.startswith(f"artifact-{whole.sha256[:32]}.txt"), again.text
        for path in (str(tmp_path / "other.txt"), f"/tmp/{whole.sha256}", "../other.txt"):
            assert router.call_sync("r", "repo.read_file", {"path": path}).outcome == "tool_error"
