"""Results used again: only where the operator says so, only of tools that read, and never past a
change.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step, StepPolicy, load_catalog
from bundle_router.core.catalog import Bundle, Card, Catalog, Reuse, Server
from bundle_router.core.results.reusable_results import CachedResult, ResultCache, ReusableCall
from bundle_router.core.results.shaping import ShapedResult
from bundle_router.core.servers.transport.tool_servers import CallOutcome
from bundle_router.core.values import Media, Text
from bundle_router.engine.reuse import ResultReuse
from bundle_router.errors import ConfigError, KeyConflict
from bundle_router.testing import FakeClock
from bundle_router.tool import LocalTool, ToolContext, ToolOutput
from pydantic import BaseModel

SERVERS = '[servers.kit]\ntransport = "local"\ntrust = "trusted"\n'
REUSE = SERVERS + "[[servers.kit.reuse]]\nttl_s = 3600\n"
BUNDLES = """
[bundles.look]
description = "Look."
tools = ["kit.look", "kit.fails", "kit.seems", "kit.wait", "kit.picture"]
effects = ["read"]

[bundles.change]
description = "Change."
tools = ["kit.change"]
effects = ["read", "write"]

[bundles.both]
description = "Everything."
bundles = ["look", "change"]
"""


class Words(BaseModel):
    text: str = ""


@dataclass
class Kit:
    """Local tools that count how often they run."""

    counts: dict[str, int] = field(default_factory=dict)
    door: threading.Event = field(default_factory=threading.Event)

    def tool(self, name: str, says: Callable[[int], ToolOutput]) -> LocalTool:
        def run(_arguments: Words, context: ToolContext) -> ToolOutput:
            self.counts[name] = self.counts.get(name, 0) + 1
            while name == "wait" and not self.door.wait(0.01) and not context.cancelled():
                pass
            return says(self.counts[name])

        return LocalTool(name, "A tool.", Words, run)

    @property
    def tools(self) -> tuple[LocalTool, ...]:
        return (
            self.tool("look", lambda n: ToolOutput((Text(f"look {n}"),))),
            self.tool("wait", lambda n: ToolOutput((Text(f"waited {n}"),))),
            self.tool("change", lambda n: ToolOutput((Text(f"changed {n}"),))),
            self.tool("fails", lambda n: ToolOutput((Text(f"failed {n}"),), failed=True)),
            self.tool("seems", lambda n: ToolOutput((Text(f"Error: not reachable {n}"),))),
            self.tool(
                "picture", lambda _: ToolOutput((Media(b"GIF89a\1\0\1\0\0\0\0!", "image/gif"),))
            ),
        )


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder, self.kit = folder, Kit()
        (folder / "config").mkdir()
        self.write("servers", REUSE)
        self.write("bundles", BUNDLES)
        self.write("routes", '[[routes]]\nname = "all"\nbundles = ["both"]\n')
        self.write("policy", '[[policies]]\nname = "all"\nallow = ["*"]\n')

    def write(self, name: str, text: str) -> None:
        (self.folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")

    def open(self) -> Router:
        options: dict[str, Any] = {"runs": self.folder / "runs", "workspace": self.folder}
        return Router.open(self.folder / "config", local={"kit": self.kit.tools}, **options)

    def says(
        self, *calls: tuple[str, str], runs: tuple[str, ...] = ("r",), **step: Any
    ) -> list[str]:
        """What the calls (tool, text) say, one after another, in each run."""
        with self.open() as router:
            for run_id in runs:
                router.route_sync(Step(run_id=run_id, workflow="w", role="r", step="s", **step))
            return [
                router.call_sync(run_id, f"kit.{tool}", {"text": text}).text
                for run_id in runs
                for tool, text in calls
            ]

    def finished(self, run_id: str = "r") -> list[dict[str, Any]]:
        lines = (self.folder / "runs" / run_id / "tool-calls.jsonl").read_text().splitlines()
        return [row for row in map(json.loads, lines) if row["type"] == "call.finished"]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


LOOK = ("look", "x")


def test_the_same_call_is_made_once_and_the_record_names_the_one_it_came_from(site: Site) -> None:
    assert site.says(LOOK, LOOK, ("look", "y")) == ["look 1", "look 1", "look 2"]
    first, again, other = site.finished()
    assert [(row["cached"], row["cached_from"]) for row in (first, again, other)] == [
        (False, None),
        (True, first["call_id"]),
        (False, None),
    ]
    assert (again["result"], again["outcome"]) == ("look 1", "ok")
    assert again["call_id"] != first["call_id"]


def test_nothing_is_used_again_where_the_operator_gave_no_lifetime(site: Site) -> None:
    site.write("servers", SERVERS)
    assert site.says(LOOK, LOOK) == ["look 1", "look 2"]


def test_the_first_row_that_fits_a_tool_counts(site: Site) -> None:
    rows = (
        '[[servers.kit.reuse]]\ntools = ["l*"]\nttl_s = 0\n[[servers.kit.reuse]]\ntools ='
        ' ["*"]\nttl_s = 60\n'
    )
    site.write("servers", SERVERS + rows)
    assert site.says(LOOK, LOOK, ("picture", ""), ("picture", ""))[:2] == ["look 1", "look 2"]
    assert site.kit.counts["picture"] == 1


def test_what_changes_something_is_never_used_again_and_makes_what_was_read_before_stale(
    site: Site,
) -> None:
    change = ("change", "x")
    assert site.says(LOOK, change, change, LOOK, LOOK) == [
        "look 1",
        "changed 1",
        "changed 2",
        "look 2",
        "look 2",
    ]


@pytest.mark.parametrize("tool", ["fails", "seems"])
def test_what_failed_or_seems_to_have_is_tried_again(site: Site, tool: str) -> None:
    site.says((tool, "x"), (tool, "x"))
    assert site.kit.counts[tool] == 2


def test_a_failure_that_comes_as_a_success_stays_one_and_is_flagged_for_the_engine_too(
    site: Site,
) -> None:
    with site.open() as router:
        router.route_sync(Step(run_id="r", workflow="w", role="r", step="s"))
        result = router.call_sync("r", "kit.seems", {})
        assert (result.outcome, result.flags) == ("ok", ("looks_like_error",))
        assert router.call_sync("r", "kit.look", {}).flags == ()
    assert site.finished()[0]["shaped"]["flags"] == ["looks_like_error"]


def test_another_run_shares_nothing_unless_the_operator_says_so(site: Site) -> None:
    assert site.says(LOOK, runs=("a", "b")) == ["look 1", "look 2"]
    site.write("servers", REUSE + "across_runs = true\n")
    assert site.says(LOOK, runs=("c", "d")) == ["look 3", "look 3"]
    assert site.finished("d")[0]["cached_from"] == site.finished("c")[0]["call_id"]


def test_another_principal_shares_nothing_at_all(site: Site) -> None:
    site.write("servers", REUSE + "across_runs = true\n")
    with site.open() as router:
        for who in ("ann", "bob"):
            router.route_sync(Step(run_id=who, workflow="w", role="r", step="s", principal=who))
        assert [router.call_sync(who, "kit.look", {}).text for who in ("ann", "bob")] == [
            "look 1",
            "look 2",
        ]


def test_calls_whose_secrets_are_redacted_to_the_same_text_share_nothing(site: Site) -> None:
    """Not what is used again, not a key, in this process or in the next; the record shows neither
    of them.
    """
    site.write("servers", REUSE + "across_runs = true\n")
    one, other = ({"text": "ghp_" + part * 9} for part in ("a1B2", "c3D4"))
    with site.open() as router:
        router.route_sync(Step(run_id="r", workflow="w", role="r", step="s"))
        assert [router.call_sync("r", "kit.look", given).text for given in (one, other, one)] == [
            "look 1",
            "look 2",
            "look 1",
        ]
        assert router.call_sync("r", "kit.change", one, key="k").text == "changed 1"
        with pytest.raises(KeyConflict, match="other arguments"):
            router.call_sync("r", "kit.change", other, key="k")
    with site.open() as router:
        assert router.call_sync("r", "kit.change", one, key="k").text == "changed 1"
        with pytest.raises(KeyConflict, match="other arguments"):
            router.call_sync("r", "kit.change", other, key="k")
    written = (site.folder / "runs" / "r" / "tool-calls.jsonl").read_text()
    assert "ghp_" not in written
    shown = {str(row["arguments"]) for row in _rows(site) if row["type"] == "call.started"}
    assert len(shown) == 1, "they look the same there"


def test_another_folder_shares_nothing(site: Site) -> None:
    (site.folder / "inner").mkdir()
    with site.open() as router:
        router.route_sync(Step(run_id="r", workflow="w", role="r", step="s"))
        assert router.call_sync("r", "kit.look", {}).text == "look 1"
        router.route_sync(Step(run_id="r", workflow="w", role="r", step="s", workspace="inner"))
        assert router.call_sync("r", "kit.look", {}).text == "look 2"


def test_policy_comes_before_what_is_kept(site: Site) -> None:
    with site.open() as router:
        router.route_sync(Step(run_id="r", workflow="w", role="r", step="s"))
        assert router.call_sync("r", "kit.look", {}).ok
        denied = StepPolicy(deny=("tool:kit.look",))
        router.route_sync(Step(run_id="r", workflow="w", role="r", step="s", policy=denied))
        result = router.call_sync("r", "kit.look", {})
    assert (result.outcome, result.code) == ("denied", "policy_denied")


def test_artifacts_of_a_result_that_is_used_again_are_in_the_run_that_uses_it(site: Site) -> None:
    site.write("servers", REUSE + "across_runs = true\n")
    with site.open() as router:
        for run_id in ("a", "b"):
            router.route_sync(Step(run_id=run_id, workflow="w", role="r", step="s"))
        (first,), (second,) = (
            router.call_sync(run_id, "kit.picture", {}).artifacts for run_id in ("a", "b")
        )
        assert router.artifact("b", second.uri) == router.artifact("a", first.uri)
    assert site.kit.counts["picture"] == 1


def test_the_same_call_under_way_is_made_once(site: Site) -> None:
    async def main() -> None:
        async with site.open() as router:
            await router.route(Step(run_id="r", workflow="w", role="r", step="s"))
            calls = [asyncio.create_task(router.call("r", "kit.wait", {})) for _ in range(8)]
            while sum(row["type"] == "call.started" for row in _rows(site)) < 8:  # noqa: ASYNC110 - on disk
                await asyncio.sleep(0.01)
            site.kit.door.set()
            results = await asyncio.gather(*calls)
        assert {result.text for result in results} == {"waited 1"}
        assert len([result for result in results if result.cached_from]) == 7

    asyncio.run(asyncio.wait_for(main(), 300))
    assert site.kit.counts["wait"] == 1


def _rows(site: Site) -> list[dict[str, Any]]:
    path = site.folder / "runs" / "r" / "tool-calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_who_waited_for_a_call_that_was_cancelled_makes_it(site: Site) -> None:
    async def main() -> None:
        async with site.open() as router:
            await router.route(Step(run_id="r", workflow="w", role="r", step="s"))
            first = asyncio.create_task(router.call("r", "kit.wait", {}))
            while not site.kit.counts:  # noqa: ASYNC110 - counted on another thread
                await asyncio.sleep(0.01)
            second = asyncio.create_task(router.call("r", "kit.wait", {}))
            while sum(row["type"] == "call.started" for row in _rows(site)) < 2:  # noqa: ASYNC110 - on disk
                await asyncio.sleep(0.01)
            first.cancel()
            await asyncio.wait({first})
            site.kit.door.set()
            assert (await second).text == "waited 2"

    asyncio.run(asyncio.wait_for(main(), 300))


def test_an_untrusted_server_can_not_be_given_a_lifetime(site: Site) -> None:
    site.write("servers", REUSE.replace('"trusted"', '"untrusted"'))
    with pytest.raises(ConfigError, match="is for trusted servers"):
        load_catalog(site.folder / "config", local={"kit": site.kit.tools})


# --- the parts ------------------------------------------------------------------------------------


def kept(text: str = "x", until_ns: int = 10) -> CachedResult:
    return CachedResult(ShapedResult(text), "r.1", until_ns)


def test_a_shelf_drops_what_is_old_and_what_was_not_used_for_longest() -> None:
    shelf = ResultCache(max_entries=2, max_bytes=100)
    shelf.put("a", "p", kept("1" * 40))
    shelf.put("b", "p", kept("2" * 40))
    assert shelf.get("a", 9) is not None
    shelf.put("c", "p", kept("3"))
    assert (shelf.get("b", 9), len(shelf), shelf.bytes) == (None, 2, 41)
    shelf.put("d", "q", kept("4" * 90))
    assert (len(shelf), shelf.bytes) == (2, 91)
    assert shelf.get("c", 10) is None, "its time has come"
    shelf.empty("q")
    assert (len(shelf), shelf.bytes) == (0, 0)


def catalog() -> Catalog:
    server = Server("s", "streamable-http", "trusted", reuse=(Reuse(("*",), 5.0),))
    cards = {f"s.{tool}": Card("s", tool, "", "{}", "sha256:0", 1) for tool in ("get", "set")}
    bundles = (
        Bundle("read", "", ("s.get",), effects=("read",)),
        Bundle("all", "", ("s.get", "s.set"), effects=("write",)),
    )
    return Catalog({"s": server}, {bundle.id: bundle for bundle in bundles}, cards=cards)


def test_a_lifetime_is_over_when_the_clock_says_so() -> None:
    clock, made = FakeClock(), 0
    results, known = ResultReuse(clock), catalog_of_readers()

    async def work() -> CallOutcome:
        nonlocal made
        made += 1
        return CallOutcome("ok", "", ShapedResult(str(made)))

    async def main() -> list[str]:
        said = []
        for seconds in (0.0, 4.9, 0.1):
            clock.advance(seconds)
            said.append(
                (
                    await results.get_or_call(
                        known, ReusableCall("s.get", {}, "", "r"), "r.1", work
                    )
                ).shaped.text
            )
        return said

    assert asyncio.run(main()) == ["1", "1", "2"]


def catalog_of_readers() -> Catalog:
    made = catalog()
    return Catalog(made.servers, {"read": made.bundles["read"]}, cards=made.cards)


def test_a_read_that_was_under_way_when_something_changed_is_not_kept() -> None:
    async def main() -> list[str]:
        results, known, begun = ResultReuse(FakeClock()), catalog_of_readers(), []

        async def read() -> CallOutcome:
            begun.append(asyncio.Event())
            said = CallOutcome("ok", "", ShapedResult(str(len(begun))))
            await begun[-1].wait()
            return said

        async def change() -> CallOutcome:
            return CallOutcome("ok", "", ShapedResult("changed"))

        def look() -> Any:
            return results.get_or_call(known, ReusableCall("s.get", {}, "", "r"), "r.1", read)

        async def looking() -> asyncio.Task[CallOutcome]:
            before, task = len(begun), asyncio.create_task(look())
            while len(begun) == before:  # noqa: ASYNC110 - one turn of the loop
                await asyncio.sleep(0)
            return task

        first = await looking()
        await results.get_or_call(known, ReusableCall("s.set", {}, "", "r"), "r.2", change)
        second = await looking()
        begun[1].set()
        said = [(await second).shaped.text]
        begun[0].set()
        return [*said, (await first).shaped.text, (await look()).shaped.text]

    assert asyncio.run(asyncio.wait_for(main(), 300)) == ["2", "1", "2"]


def test_a_change_that_goes_past_what_is_kept_makes_it_stale_all_the_same() -> None:
    async def main() -> list[str]:
        results, known, made = ResultReuse(FakeClock()), catalog_of_readers(), iter("123456789")

        async def work() -> CallOutcome:
            return CallOutcome("ok", "", ShapedResult(next(made)))

        async def look() -> str:
            return (
                await results.get_or_call(known, ReusableCall("s.get", {}, "", "r"), "r.1", work)
            ).shaped.text

        said = [
            await look(),
            (await results.call_fresh(known, "s.get", work)).shaped.text,
            await look(),
        ]
        return [
            *said,
            (await results.call_fresh(known, "s.set", work)).shaped.text,
            await look(),
            await look(),
        ]

    assert asyncio.run(main()) == ["1", "2", "1", "3", "4", "4"]


def test_nothing_that_was_read_before_or_during_a_change_is_used_after_it_began_or_ended() -> None:
    async def main() -> list[str]:
        results, known, made, done = (
            ResultReuse(FakeClock()),
            catalog_of_readers(),
            iter("123456789"),
            asyncio.Event(),
        )

        async def work() -> CallOutcome:
            return CallOutcome("ok", "", ShapedResult(next(made)))

        async def change() -> CallOutcome:
            await done.wait()
            return CallOutcome("ok", "", ShapedResult("changed"))

        async def look() -> str:
            return (
                await results.get_or_call(known, ReusableCall("s.get", {}, "", "r"), "r.1", work)
            ).shaped.text

        said = [await look(), await look()]
        changing = asyncio.create_task(results.call_fresh(known, "s.set", change))
        await asyncio.sleep(0)
        said += [await look(), await look()]
        done.set()
        await changing
        return [*said, await look()]

    assert asyncio.run(main()) == ["1", "1", "2", "2", "3"]


def test_a_change_leaves_a_read_of_another_server_that_is_under_way() -> None:
    async def main() -> list[str]:
        one, results, go = catalog_of_readers(), ResultReuse(FakeClock()), asyncio.Event()
        other = replace(one.servers["s"], name="o")
        bundles = {"read": replace(one.bundles["read"], tools=("s.get", "o.get"))}
        cards = {**one.cards, "o.get": replace(one.cards["s.get"], server="o")}
        known, made = (
            Catalog({"s": one.servers["s"], "o": other}, bundles, cards=cards),
            iter("123456789"),
        )

        async def work() -> CallOutcome:
            await go.wait()
            return CallOutcome("ok", "", ShapedResult(next(made)))

        def look() -> Any:
            return results.get_or_call(known, ReusableCall("o.get", {}, "", "r"), "r.1", work)

        first = asyncio.create_task(look())
        await asyncio.sleep(0)
        go.set()
        await results.call_fresh(known, "s.set", work)
        return [(await first).shaped.text, (await look()).shaped.text]

    first, again = asyncio.run(main())
    assert first == again


def test_a_tool_that_one_bundle_says_may_write_and_another_that_it_reads_is_taken_for_neither() -> (
    None
):
    from bundle_router.core.results.reusable_results import is_read_only

    assert not is_read_only(catalog(), "s.get")
    assert not is_read_only(catalog(), "s.set")
    assert is_read_only(catalog_of_readers(), "s.get")
    assert not is_read_only(catalog_of_readers(), "s.unknown")


def test_the_reviewer_is_shown_which_call_a_result_came_from(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    from bundle_router.cli import main

    site.says(LOOK, LOOK)
    main(["runs", "show", "r", "--runs", str(site.folder / "runs")])
    shown = [line for line in capsys.readouterr().out.splitlines() if "call kit.look" in line]
    assert [
        line.endswith(f"the result of {site.finished()[0]['seq']} again") for line in shown
    ] == [False, True]
