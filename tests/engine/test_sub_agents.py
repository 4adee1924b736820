"""What a sub-agent may have at most, whoever moves, ends or comes back meanwhile; and what a
decision may not gain.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step, StepPolicy
from bundle_router.core.catalog import Bundle, Card, LogSettings, Route, Server, Settings
from bundle_router.core.decide.decide import Question
from bundle_router.core.records.replayed import replay
from bundle_router.core.values import Answer, ModelUse, RecentStep, Reply
from bundle_router.core.values.canonical import digest, encode
from bundle_router.core.values.folders import is_beneath, relative_folder
from bundle_router.errors import InvalidStep, RequestError, StorageError, UnknownRun
from bundle_router.testing import FakeRouter, fake_router, small_catalog

CONFIG = Path(__file__).parent.parent.parent / "config"
ASKING = """
[[routes]]
name = "asked about"
workflow = "novel"
ask = ["*"]

[[routes]]
name = "the rest"
bundles = ["repo.readonly"]
"""


def step(run_id: str = "r-1", **changes: Any) -> Step:
    base = {"run_id": run_id, "workflow": "feature", "role": "implementer", "step": "edit"}
    return Step.model_validate(base | changes)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    for folder in ("sub/inner", "sub-other"):
        (root / folder).mkdir(parents=True)
        (root / folder / "note.txt").write_text(f"in {folder}\n", encoding="utf-8")
    (root / "note.txt").write_text("in the root\n", encoding="utf-8")
    return root


@pytest.fixture
def router(tmp_path: Path, workspace: Path) -> Iterator[Router]:
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as opened:
        yield opened


def read(router: Router, run_id: str, path: str = "note.txt") -> str:
    return router.call_sync(run_id, "repo.read_file", {"path": path}).text


def names(router: Router, run_id: str) -> set[str]:
    return {tool.name for tool in router.tools_sync(run_id).active}


def fake(**changes: Any) -> FakeRouter:
    bundles: dict[str, Any] = {"a": ["s.a"], "b": ["s.b"], "c": ["s.c"]}
    catalog = small_catalog(bundles, routes=[Route("all", bundles=("a", "b", "c"))], **changes)
    return fake_router(catalog)


# --- the chain is alive ---------------------------------------------------------------------------


def test_what_the_top_gives_up_every_generation_loses_at_once() -> None:
    with fake() as router:
        router.route_sync(step("top"))
        router.route_sync(step("middle", parent_run_id="top"))
        router.route_sync(step("leaf", parent_run_id="middle"))
        assert router.call_sync("leaf", "s.b", {}).ok
        router.route_sync(step("top", policy=StepPolicy(deny=("bundle:b",))))
        assert names(router, "leaf") == {"s.a", "s.c"}
        assert router.call_sync("leaf", "s.b", {}).code == "policy_denied"
        assert "b" not in router.route_sync(step("leaf")).bundle_ids
        router.route_sync(step("middle", policy=StepPolicy(allow=("bundle:c",))))
        assert names(router, "leaf") == {"s.c"}


def test_what_is_listed_can_be_called_and_what_is_not_listed_cannot() -> None:
    with fake() as router:
        router.route_sync(step("top"))
        router.route_sync(step("leaf", parent_run_id="top"))
        for policy in (
            StepPolicy(deny=("tool:s.a",)),
            StepPolicy(allow=()),
            StepPolicy(allow=("bundle:a", "tool:s.c")),
        ):
            router.route_sync(step("top", policy=policy))
            listed = names(router, "leaf")
            callable_now = {
                tool for tool in ("s.a", "s.b", "s.c") if router.call_sync("leaf", tool, {}).ok
            }
            assert listed == callable_now


def test_nesting_ends_at_sixteen_and_says_so() -> None:
    with fake() as router:
        router.route_sync(step("n-0"))
        for depth in range(1, 17):
            router.route_sync(step(f"n-{depth}", parent_run_id=f"n-{depth - 1}"))
        with pytest.raises(RequestError, match="more than 16 deep"):
            router.route_sync(step("n-17", parent_run_id="n-16"))
        assert not router.fakes.store.has("n-17"), "nothing was written for it"


def test_a_parent_is_kept_from_the_moment_a_run_exists(tmp_path: Path, workspace: Path) -> None:
    """Its first step is asked about and cancelled: no decision, but a directory."""
    asked = threading.Event()

    class Never:
        async def select(self, question: Question, recent: Any) -> Reply:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    async def cancelled_before_its_first_decision(router: Router) -> None:
        await router.route(step("top", policy=StepPolicy(allow=("repo.*", "docs.*"))))
        child = asyncio.create_task(
            router.route(step("child", workflow="novel", parent_run_id="top"))
        )
        await asyncio.to_thread(asked.wait, 300)
        child.cancel()
        with pytest.raises(asyncio.CancelledError):
            await child
        await router.close()

    config = tmp_path / "config"
    config.mkdir()
    (config / "routes.toml").write_text(ASKING, encoding="utf-8")
    opened = Router.open(config, runs=tmp_path / "runs", workspace=workspace, selector=Never())
    asyncio.run(cancelled_before_its_first_decision(opened))
    assert asked.is_set()
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as router:
        decision = router.route_sync(step("child"))
        assert decision.bundle_ids == ["repo.readonly"], (
            "workspace.exec is mapped, and its parent may not have it"
        )
        with pytest.raises(RequestError, match="a sub-agent of 'top'"):
            router.route_sync(step("child", parent_run_id="other"))


def test_a_parent_that_is_gone_leaves_its_sub_agents_nothing(
    tmp_path: Path, workspace: Path
) -> None:
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as router:
        router.route_sync(step("top"))
        router.route_sync(step("child", parent_run_id="top"))
        router.close_run_sync("top")
        for file in sorted((tmp_path / "runs" / "top").rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        for refused in (
            lambda: router.route_sync(step("child")),
            lambda: router.tools_sync("child"),
            lambda: router.call_sync("child", "repo.list_dir", {}),
        ):
            with pytest.raises((UnknownRun, RequestError), match="'top' has no decision"):
                refused()


# --- folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "recorded", "folder"),
    [
        ("/w", None, "."),
        ("/w", "a/b", "a/b"),
        ("/w", "./a//b/", "a/b"),
        ("/w", "/w", "."),
        ("/w", "/w/a", "a"),
        ("/", "/a", "a"),
        ("/w", "/w-other", None),
        ("/w", "/elsewhere", None),
        ("/w", "a/../..", None),
        ("/w", "/w/../etc", None),
    ],
)
def test_a_recorded_folder_never_leads_out_of_the_workspace(
    root: str, recorded: str | None, folder: str | None
) -> None:
    assert relative_folder(root, recorded) == folder


def test_a_folder_is_beneath_another_by_whole_names() -> None:
    assert is_beneath("a/b", "a")
    assert is_beneath("a", "a")
    assert is_beneath("a", ".")
    assert not is_beneath("ab", "a")
    assert not is_beneath(".", "a")


def test_a_sub_agents_folder_is_inside_its_parents_by_whole_names(router: Router) -> None:
    router.route_sync(step("top", workspace="sub"))
    for outside in ("../sub-other", "..", "../../workspace/sub-other"):
        with pytest.raises(RequestError, match="not a folder inside"):
            router.route_sync(step("child", parent_run_id="top", workspace=outside))
    router.route_sync(step("child", parent_run_id="top", workspace="inner"))
    assert "in sub/inner" in read(router, "child")


def test_a_folder_that_is_swapped_for_a_link_after_the_decision_leads_nowhere(
    router: Router, workspace: Path
) -> None:
    router.route_sync(step(workspace="sub"))
    assert "in sub\n" not in read(router, "r-1", "inner/note.txt")
    (workspace / "sub").rename(workspace / "moved")
    (workspace / "sub").symlink_to(workspace)
    result = router.call_sync("r-1", "repo.read_file", {"path": "note.txt"})
    assert (result.outcome, result.code) == ("tool_error", "workspace_unavailable")
    assert not router.call_sync(
        "r-1", "workspace.write_file", {"path": "made.txt", "content": "x"}
    ).ok
    assert not (workspace / "made.txt").exists()


def test_a_run_continued_elsewhere_is_confined_to_the_workspace_it_is_continued_in(
    tmp_path: Path, workspace: Path
) -> None:
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as router:
        router.route_sync(step(workspace="sub"))
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "sub").mkdir(parents=True)
    (elsewhere / "sub" / "note.txt").write_text("here now\n", encoding="utf-8")
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=elsewhere) as router:
        assert "here now" in read(router, "r-1")
        assert not router.call_sync(
            "r-1", "repo.read_file", {"path": str(workspace / "sub" / "note.txt")}
        ).ok


def test_a_sub_agents_calls_stop_where_its_parent_was_narrowed_since(router: Router) -> None:
    router.route_sync(step("top"))
    router.route_sync(step("child", parent_run_id="top"))
    assert "in the root" in read(router, "child")
    router.route_sync(step("top", workspace="sub"))
    refused = router.call_sync("child", "repo.read_file", {"path": "note.txt"})
    assert (refused.outcome, refused.code) == ("denied", "policy_denied")
    router.route_sync(step("child"))
    assert "there is no" in read(router, "child", "sub-other/note.txt")


# --- what a decision may not gain -----------------------------------------------------------------


def test_a_tool_that_joins_a_shown_bundle_later_is_not_part_of_the_decision() -> None:
    """The tool needs a server's credential, which its bundle does not."""
    servers = [Server("far", "local", "trusted", env_names=("FAR_TOKEN",))]
    catalog = small_catalog(
        {"ab": ["s.a", "far.b"]}, routes=[Route("all", bundles=("ab",))], servers=servers
    )
    with fake_router(catalog) as router:
        router.route_sync(step())
        assert names(router, "r-1") == {"s.a"}
        router.fakes.capabilities.names.add("env:FAR_TOKEN")
        assert names(router, "r-1") == {"s.a"}
        refused = router.call_sync("r-1", "far.b", {})
        assert (refused.code, "route the step again" in refused.text) == ("not_mapped", True)
        router.route_sync(step())
        assert names(router, "r-1") == {"s.a", "far.b"}


def test_why_a_tool_is_refused_is_first_what_its_shown_bundle_says() -> None:
    """`a.unseen` sorts first and would say that a capability is missing; in what is shown, a
    credential is.
    """
    unseen = Bundle("a.unseen", "a", ("far.x",), effects=("read",), requires_env=("TOKEN",))
    servers = [Server("far", "local", "trusted", env_names=("FAR_TOKEN",))]
    bundles: dict[str, Any] = {"a.unseen": unseen, "b": ["far.x", "s.y"]}
    catalog = small_catalog(bundles, routes=[Route("all", bundles=("b",))], servers=servers)
    with fake_router(catalog) as router:
        assert router.route_sync(step()).bundle_ids == ["b"]
        assert router.call_sync("r-1", "far.x", {}).code == "server_unavailable"


def test_a_step_that_names_no_folder_has_the_innermost_of_its_ancestors(router: Router) -> None:
    router.route_sync(step("top"))
    router.route_sync(step("middle", parent_run_id="top", workspace="sub/inner"))
    router.route_sync(step("leaf", parent_run_id="middle"))
    assert "in sub/inner" in read(router, "leaf")
    router.route_sync(step("top", workspace="sub-other"))
    with pytest.raises(RequestError, match="no folder is open to this sub-agent"):
        router.route_sync(step("leaf"))


def test_a_capability_that_appears_widens_the_next_decision_and_not_the_one_that_was_taken() -> (
    None
):
    needs = Bundle("b", "b", ("s.b",), effects=("read",), requires_env=("TOKEN",))
    catalog = small_catalog({"a": ["s.a"], "b": needs, "ab": Bundle("ab", "both", (), bundles=("a", "b"))},
                            routes=[Route("all", bundles=("ab", "b"))])  # fmt: skip
    with fake_router(catalog) as router:
        router.route_sync(step())
        before = names(router, "r-1")
        assert "s.b" not in before
        router.fakes.capabilities.names.add("env:TOKEN")
        assert names(router, "r-1") == before
        refused = router.call_sync("r-1", "s.b", {})
        assert refused.outcome == "denied"
        router.route_sync(step())
        assert router.call_sync("r-1", "s.b", {}).ok


def test_a_step_that_cannot_be_recorded_as_it_is_meant_is_refused(
    tmp_path: Path, workspace: Path
) -> None:
    token = "ghp_" + "a1B2" * 9
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as router:
        for changes in (
            {"policy": StepPolicy(deny=(f"*{token}*",))},
            {"policy": StepPolicy(allow=("*", f"*{token}"))},
            {"workspace": token},
            {"run_id": token},
            {"parent_run_id": token},
        ):
            with pytest.raises(RequestError, match="looks like a secret") as refused:
                router.route_sync(step(**changes))
            assert token not in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_an_error_about_a_step_does_not_repeat_what_was_given() -> None:
    with pytest.raises(InvalidStep) as wrong:
        Step(
            run_id="r",
            workflow="w",
            role="r",
            step="s",
            goal=["hunter22hunter22"],
            max_tools="hunter22hunter22",
        )
    assert "hunter22" not in str(wrong.value)


def test_a_models_words_are_recorded_as_they_were_heard() -> None:
    """What the digest is taken of is what stands in the record, so a reader can compute it
    again.
    """
    said = Answer(("a",), "model", "model", "because hunter22hunter22 says so",
                  model=ModelUse("m", answer=json.dumps({"rationale": "hunter22hunter22"})))  # fmt: skip
    catalog = small_catalog({"a": ["s.a"], "b": ["s.b"]}, routes=[Route("ask", ask=("*",))])
    with fake_router(
        catalog, selector=lambda question: said, secrets=["hunter22hunter22"]
    ) as router:
        decision = router.route_sync(step())
        (record,) = router.fakes.records("r-1")
    assert "hunter22" not in encode(record)
    assert "hunter22" not in decision.justification
    parts = [record[name] for name in ("catalog_revision", "step", "facts")]
    assert record["input_digest"] == digest(
        encode([*parts, record["activation"]["before"], record["reply"]])
    )


@pytest.mark.parametrize("later", [False, True])
def test_a_decision_that_does_not_reach_the_disk_is_not_returned_and_what_the_disk_holds_counts(
    later: bool,
) -> None:
    with fake(settings=Settings(log=LogSettings(durability="disk"))) as router:
        if later:
            router.route_sync(step(policy=StepPolicy(allow=("bundle:a",))))
        else:
            router.route_sync(step("other"))
        log = router.fakes.store.log("r-1" if later else "other")
        log.fail_sync_with = StorageError("the disk is gone", kind="io_error")
        run_id = "r-1" if later else "other"
        shown = names(router, run_id)
        with pytest.raises(StorageError, match="gone"):
            router.route_sync(step(run_id, policy=StepPolicy(allow=("bundle:b",))))
        log.fail_sync_with = None
        assert names(router, run_id) == {"s.b"} != shown
        assert set(
            router.route_sync(step(run_id, policy=StepPolicy(allow=("bundle:c",)))).bundle_ids
        ) == {"c"}


def test_a_sub_agents_first_decision_says_what_it_inherited() -> None:
    routes = [Route("top", step=("plan",), bundles=("a",)), Route("all", bundles=("b",))]
    catalog = small_catalog({"a": ["s.a"], "b": ["s.b"]}, routes=routes)
    with fake_router(catalog) as router:
        router.route_sync(step("top", step="plan"))
        child = router.route_sync(step("child", parent_run_id="top"))
        assert [(row.id, row.reason) for row in child.bundles] == [
            ("b", "mapped"),
            ("a", "inherited"),
        ]
        fresh = router.route_sync(step("fresh", parent_run_id="top", inherit=False))
        assert fresh.bundle_ids == ["b"]
        below_fresh = router.route_sync(step("below", parent_run_id="fresh"))
        assert below_fresh.bundle_ids == ["b"], (
            "what the parent has is inherited, not what the top has"
        )


def test_a_reply_stands_in_the_record_with_its_key_and_the_revisions_it_rests_on() -> None:
    class Learned:
        async def select(self, question: Question, recent: Any) -> Reply:
            asking.fakes.clock.advance(0.25)
            return Reply(
                answer=Answer(("a",), "search", "search", "found"), revisions=(("memory", "m-7"),)
            )

    catalog = small_catalog({"a": ["s.a"], "b": ["s.b"]}, routes=[Route("ask", ask=("*",))])
    with fake_router(catalog, selector=Learned()) as asking:
        asking.route_sync(step())
        (record,) = asking.fakes.records("r-1")
        assert record["facts"]["revisions"] == [{"name": "memory", "revision": "m-7"}]
        assert record["reply"]["key"]
        assert record["elapsed_us"] == 250_000
        assert replay(record, catalog).outcome == "identical"


def test_a_disabled_server_is_no_fact_because_it_is_config() -> None:
    servers = [Server("far", "sse", "trusted", enabled=False)]
    catalog = small_catalog(
        {"a": ["s.a"], "f": ["far.f"]}, routes=[Route("all", bundles=("a", "f"))], servers=servers
    )
    with fake_router(catalog) as router:
        decision = router.route_sync(step())
        assert [(row.id, row.code) for row in decision.left_out] == [("f", "disabled")]
        assert router.fakes.records("r-1")[0]["facts"]["unavailable"] == []


def test_a_servers_missing_credential_is_a_fact_of_the_decision() -> None:
    servers = [Server("far", "local", "trusted", env_names=("FAR_TOKEN",))]
    catalog = small_catalog(
        {"a": ["s.a"], "f": ["far.f"]}, routes=[Route("all", bundles=("a", "f"))], servers=servers
    )
    with fake_router(catalog) as router:
        without = router.route_sync(step())
        assert without.bundle_ids == ["a"]
        assert [(row.id, row.code) for row in without.left_out] == [("f", "server_unavailable")]
        router.fakes.capabilities.names.add("env:FAR_TOKEN")
        assert router.route_sync(step()).bundle_ids == ["a", "f"]


def test_recent_steps_are_told_and_restored(tmp_path: Path, workspace: Path) -> None:
    told: list[tuple[RecentStep, ...]] = []

    class Listening:
        async def select(self, question: Question, recent: Any) -> Reply:
            told.append(tuple(recent))
            return Reply()

    config = tmp_path / "config"
    config.mkdir()
    (config / "routes.toml").write_text(ASKING, encoding="utf-8")
    for goal in ("first", "second"):
        with Router.open(
            config, runs=tmp_path / "runs", workspace=workspace, selector=Listening()
        ) as router:
            router.route_sync(step(goal=goal))
            router.route_sync(step(workflow="novel"))
    assert [recent.goal for recent in told[0]] == ["first"]
    assert [recent.goal for recent in told[1]][-1] == "second"
    assert len(told[1]) > 1, "the second process knows what went before it"


# --- several workspaces ---------------------------------------------------------------------------


def test_a_sub_agent_routed_in_a_wider_workspace_stays_in_its_parents(
    tmp_path: Path, workspace: Path
) -> None:
    (workspace / "sub/note.txt").write_text("in sub\n", encoding="utf-8")
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace / "sub") as narrow:
        narrow.route_sync(step("top"))
        with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as wide:
            wide.route_sync(step("leaf", parent_run_id="top"))
            assert "in sub" in read(wide, "leaf")
            assert "leads outside" in read(wide, "leaf", "../note.txt")
            with pytest.raises(RequestError, match="not a folder inside"):
                wide.route_sync(step("leaf", workspace="../sub-other"))
        with Router.open(
            CONFIG, runs=tmp_path / "runs", workspace=workspace / "sub/inner"
        ) as narrower:
            narrower.route_sync(step("lowest", parent_run_id="top"))
            assert "in sub/inner" in read(narrower, "lowest")
        with (
            Router.open(
                CONFIG, runs=tmp_path / "runs", workspace=workspace / "sub-other"
            ) as beside,
            pytest.raises(RequestError, match="not inside"),
        ):
            beside.route_sync(step("stray", parent_run_id="top"))


def test_a_run_that_goes_on_in_another_workspace_says_so_and_takes_its_sub_agents_along(
    tmp_path: Path, workspace: Path
) -> None:
    (workspace / "sub/note.txt").write_text("in sub\n", encoding="utf-8")
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as wide:
        wide.route_sync(step("top"))
        wide.route_sync(step("leaf", parent_run_id="top"))
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace / "sub") as narrow:
        assert "in sub" in read(narrow, "top")
        narrow.route_sync(step("top"))
    header = json.loads((tmp_path / "runs/top/run.json").read_bytes())
    assert header["workspace"] == str(workspace)
    decided = [
        json.loads(line) for line in (tmp_path / "runs/top/routing.jsonl").read_bytes().splitlines()
    ]
    assert [record.get("root") for record in decided] == [None, str(workspace / "sub")]
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as wide:
        assert "not open to it" in read(wide, "leaf")
        wide.route_sync(step("leaf"))
        assert "in sub" in read(wide, "leaf")


def test_a_run_whose_header_was_lost_keeps_its_parent(tmp_path: Path, workspace: Path) -> None:
    """Power loss may leave `run.json` empty; its decisions say whose sub-agent it is."""
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as router:
        router.route_sync(step("top", policy=StepPolicy(deny=("tool:repo.read_file",))))
        router.route_sync(step("leaf", parent_run_id="top"))
    (tmp_path / "runs/leaf/run.json").write_bytes(b"")
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=workspace) as router:
        assert "repo.read_file" not in names(router, "leaf")
        router.route_sync(step("leaf"))
        assert (
            router.call_sync("leaf", "repo.read_file", {"path": "note.txt"}).code == "policy_denied"
        )
        router.close_run_sync("leaf")
        (tmp_path / "runs/leaf/run.json").write_bytes(b"")
        assert "repo.read_file" not in names(router, "leaf")
        assert (
            router.call_sync("leaf", "repo.read_file", {"path": "note.txt"}).code == "policy_denied"
        )
    assert json.loads((tmp_path / "runs/leaf/run.json").read_bytes())["parent_run_id"] == "top"


# --- what happens while something is awaited ------------------------------------------------------


def taking_bytes() -> FakeRouter:
    """A router whose tool `s.a` takes the bytes of an artifact, which are read before the call
    begins.
    """
    schema = '{"type":"object","properties":{"data":{"type":"string","format":"byte"}}}'
    catalog = small_catalog({"a": ["s.a"]}, routes=[Route("all", bundles=("a",))])
    return fake_router(
        replace(catalog, cards={"s.a": Card("s", "a", "takes bytes", schema, "sha256:a", 10)})
    )


def test_what_an_ancestor_loses_before_a_call_begins_is_lost_to_the_call() -> None:
    with taking_bytes() as router:
        router.route_sync(step("top"))
        router.route_sync(step("leaf", parent_run_id="top"))
        kept = router.fakes.store.log("leaf").artifacts()
        uri = f"artifact:sha256:{kept.put(b'bytes')}"
        get = kept.get

        def narrowing(sha256: str) -> bytes:
            router.route_sync(step("top", policy=StepPolicy(deny=("bundle:a",))))
            return get(sha256)

        kept.get = narrowing  # type: ignore[method-assign]  # a fake that is slow enough for the parent to move
        assert router.call_sync("leaf", "s.a", {"data": uri}).code == "policy_denied"
        assert router.fakes.sessions.calls == []


def test_an_altered_artifact_as_an_argument_is_a_refusal_on_record() -> None:
    with taking_bytes() as router:
        router.route_sync(step())
        kept = router.fakes.store.log("r-1").artifacts()
        stored = kept.put(b"bytes")
        kept.bytes[stored] = b"others"
        result = router.call_sync("r-1", "s.a", {"data": f"artifact:sha256:{stored}"})
        assert (result.outcome, result.code) == ("invalid_arguments", "storage")
        assert router.fakes.records("r-1")[-1]["call_id"] == result.call_id


def test_a_run_that_is_closed_while_its_step_is_asked_about_ends_after_the_decision() -> None:
    async def scenario() -> None:
        asked, go_on = asyncio.Event(), asyncio.Event()

        class Slow:
            async def select(self, question: Question, recent: Any) -> Reply:
                asked.set()
                await go_on.wait()
                return Reply(answer=Answer(("a",), "model", "model", "picked"))

        catalog = small_catalog({"a": ["s.a"], "b": ["s.b"]}, routes=[Route("asked", ask=("*",))])
        router = fake_router(catalog, selector=Slow())
        routing = asyncio.create_task(router.route(step()))
        await asked.wait()
        await router.close_run("r-1")
        assert not router.fakes.store.log("r-1").closed
        go_on.set()
        assert (await routing).bundle_ids == ["a"]
        assert router.fakes.store.log("r-1").closed
        await router.close()

    asyncio.run(scenario())


def test_a_run_that_could_not_be_taken_up_is_let_go() -> None:
    with fake() as router:
        router.route_sync(step())
        router.close_run_sync("r-1")

        def failing(operation: str, run_id: str) -> None:
            if operation == "news":
                raise StorageError("the disk does not answer", kind="io_error")

        before, router.fakes.store.before = router.fakes.store.before, failing
        with pytest.raises(StorageError, match="does not answer"):
            router.route_sync(step())
        router.fakes.store.before = before  # and is well again
        assert router.route_sync(step()).seq == 1
