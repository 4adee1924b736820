"""The selector by itself: what is asked again, what is remembered, who is left alone, and what may
come of it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.answer_store import FILE, SqlAnswers
from bundle_router.adapters.loop import LoopThread
from bundle_router.core.catalog import ModelSettings
from bundle_router.core.decide.asking.model_exchange import ModelReply, ModelRequest
from bundle_router.core.decide.asking.picks import MAX_JUSTIFICATION, AnswerShapes
from bundle_router.core.decide.asking.prompt import user_part
from bundle_router.core.decide.decide import Question, settle
from bundle_router.core.records.decision_record import outcome_json
from bundle_router.core.records.replayed import conclude, replay
from bundle_router.core.values import Failure, Reply, Step
from bundle_router.core.values.canonical import encode
from bundle_router.engine.asking import ModelSelector
from bundle_router.engine.asking.answer_memory import MAX_ANSWERS, AnswerMemory, CachedAnswer
from bundle_router.engine.asking.flights import Flights
from bundle_router.ports import Readiness
from bundle_router.testing import FakeClock, FakeDiagnostics, fake_router, small_catalog
from bundle_router.testing.upstream import choice
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.asking.scripted_client import Said, ScriptedClient, always
from tests.profiles import ALL, examples

Opened = Callable[..., ModelSelector]
Ask = Callable[..., Reply]
Put = Callable[..., Question]

DATA = Path(__file__).parents[2] / "data"


# --- memory ---------------------------------------------------------------------------------------


def test_an_answer_is_used_again_until_it_is_too_old(opened: Opened, ask: Ask) -> None:
    client, clock = ScriptedClient(always(choice("b.two"))), FakeClock()
    selector = opened(client=client, clock=clock, answers_ttl_s=60.0)
    first, second = ask(selector), ask(selector)
    assert first.answer is not None
    assert second.answer is not None
    assert second.answer.ids == first.answer.ids
    assert (first.answer.reason, second.answer.reason) == ("model", "model_cached")
    assert second.model is not None
    assert first.model is not None
    assert (second.model.cached, second.model.attempts, second.model.input_tokens) == (True, 0, 0)
    assert (second.model.key, second.model.answer) == (first.model.key, first.model.answer)
    clock.advance(59.9)
    ask(selector)
    assert len(client.calls) == 1
    clock.advance(0.2)
    ask(selector)
    assert len(client.calls) == 2


def test_another_question_is_asked(opened: Opened, ask: Ask, question: Put) -> None:
    client = ScriptedClient(always(choice("b.two")))
    selector = opened(client=client, answers_ttl_s=60.0)
    for put in (question(), question(goal="delete"), question(role="x"), question(max_bundles=1)):
        ask(selector, put)
    assert len(client.calls) == 4
    ask(selector, question(run_id="other", labels={"a": "b"}, goal=" rename\n"))
    assert len(client.calls) == 4


def test_only_the_last_answers_are_remembered() -> None:
    memory = AnswerMemory(FakeClock(), 60.0)
    kept = CachedAnswer(("a.one",), (), "", "m", "1", None, sure=True)
    for number in range(MAX_ANSWERS + 1):
        memory.put(str(number), kept)
    assert (memory.get("0"), memory.get("1"), memory.get(str(MAX_ANSWERS))) == (None, kept, kept)


def test_a_reason_is_cut_and_stays_on_one_line(opened: Opened, ask: Ask) -> None:
    said = choice("b.two", rationale="because\n\x1b[31m " * 500)
    reply = ask(opened(client=ScriptedClient(always(said))))
    assert reply.answer is not None
    assert len(reply.answer.justification) == MAX_JUSTIFICATION
    assert reply.answer.justification.isprintable()


def test_failures_are_not_remembered(opened: Opened, ask: Ask) -> None:
    client = ScriptedClient(always("refused"))
    selector = opened(client=client, answers_ttl_s=60.0)
    ask(selector)
    ask(selector)
    assert len(client.calls) == 2


def test_a_lifetime_of_nothing_remembers_nothing(opened: Opened, ask: Ask, tmp_path: Path) -> None:
    client = ScriptedClient(always(choice("b.two")))
    selector = opened(
        client=client, answers_ttl_s=0.0, store=SqlAnswers(tmp_path, FakeDiagnostics())
    )
    ask(selector)
    ask(selector)
    assert len(client.calls) == 2
    assert not list(tmp_path.iterdir())


async def _until_kept(store: SqlAnswers, key: str) -> None:
    async with asyncio.timeout(300):
        while await asyncio.to_thread(store.get, key) is None:  # noqa: ASYNC110 - written by another thread
            await asyncio.sleep(0.005)


def test_another_process_finds_the_answer_in_the_store(
    opened: Opened, ask: Ask, tmp_path: Path
) -> None:
    first, second = (ScriptedClient(always(choice("b.two"))) for _ in range(2))
    store = SqlAnswers(tmp_path, FakeDiagnostics())
    said = ask(opened(client=first, answers_ttl_s=60.0, store=store))
    assert said.model is not None
    asyncio.run(_until_kept(store, said.model.key))
    again = ask(
        opened(client=second, answers_ttl_s=60.0, store=SqlAnswers(tmp_path, FakeDiagnostics()))
    )
    assert again.answer is not None
    assert (again.answer.ids, again.answer.reason) == (("b.two",), "model_cached")
    assert not second.calls
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "no JSON", "{}", '{"ids": 3}', '{"ids": [], "surprise": 1}'])
def test_a_store_with_something_else_in_it_is_asked_past(
    opened: Opened, ask: Ask, tmp_path: Path, text: str
) -> None:
    client = ScriptedClient(always(choice("b.two")))
    store = SqlAnswers(tmp_path, FakeDiagnostics())
    selector = opened(client=client, answers_ttl_s=60.0, store=store)
    probe = ask(opened(client=ScriptedClient(always("refused")), answers_ttl_s=0.0))
    assert probe.model is not None
    store.put(probe.model.key, text, 60.0)
    reply = ask(selector)
    assert reply.answer is not None
    assert len(client.calls) == 1


def test_a_broken_store_is_said_once_and_costs_nothing_else(
    opened: Opened, ask: Ask, question: Put, tmp_path: Path
) -> None:
    (tmp_path / FILE).write_bytes(b"this is not a database" * 100)
    said = FakeDiagnostics()
    selector = opened(
        client=ScriptedClient(always(choice("b.two"))),
        answers_ttl_s=60.0,
        store=SqlAnswers(tmp_path, said),
    )
    for goal in ("one", "two"):
        assert ask(selector, question(goal=goal)).answer is not None
    assert [name for _, name, _ in said.events] == ["answers.unusable"]


def test_the_store_forgets_by_the_wall_clock(tmp_path: Path) -> None:
    store = SqlAnswers(tmp_path, FakeDiagnostics())
    store.put("k", "text", 60.0)
    store.put("gone", "text", -1.0)
    assert (store.get("k"), store.get("gone"), store.get("absent")) == ("text", None, None)
    store.put("k", "newer", 60.0)
    assert store.get("k") == "newer"


# --- who is asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize("readiness", ["missing", "broken"])
def test_without_the_libraries_it_says_not_ready_once_and_goes_on(
    diagnostics: FakeDiagnostics, question: Put, readiness: Readiness
) -> None:
    client = ScriptedClient(always(choice("a.one")), readiness)
    selector = ModelSelector(
        ModelSettings(("m",)), client, FakeClock(), diagnostics, loop=LoopThread("model")
    )

    async def ask_twice() -> list[Reply]:
        replies = [await selector.select(question(), ())]
        await selector.warm_up()
        replies.append(await selector.select(question(), ()))
        await selector.close()
        return replies

    for reply in asyncio.run(ask_twice()):
        assert (reply.answer, reply.failure) == (None, "not_ready")
        assert reply.model is not None
        assert reply.model.attempts == 0
    assert not client.calls
    assert [name for _, name, _ in diagnostics.events] == ["model.unavailable"]


def test_the_first_question_starts_the_warm_up_and_does_not_wait(
    diagnostics: FakeDiagnostics, question: Put
) -> None:
    client = ScriptedClient(always(choice("a.one")))
    selector = ModelSelector(
        ModelSettings(("m",)), client, FakeClock(), diagnostics, loop=LoopThread("model")
    )

    async def ask_twice() -> tuple[Reply, Reply]:
        first = await selector.select(question(), ())
        assert await selector.warm_up() == "ready"
        second = await selector.select(question(), ())
        await selector.close()
        return first, second

    first, second = asyncio.run(ask_twice())
    assert first.failure == "not_ready"
    assert second.answer is not None
    assert client.closed


def test_a_suspended_model_is_passed_over_and_probed_once_its_time_is_over(
    opened: Opened, ask: Ask
) -> None:
    def script(request: ModelRequest) -> Said:
        return (
            "rate_limited" if request.model.name.endswith("0") and not healed else choice("a.one")
        )

    healed: list[bool] = []
    client, clock = ScriptedClient(script, retry_after_s=40.0), FakeClock()
    selector = opened("http://127.0.0.1:1", "http://127.0.0.1:2", client=client, clock=clock)
    for _ in range(5):
        assert ask(selector).answer is not None
    assert (client.count("openai/model-0"), client.count("openai/model-1")) == (1, 5)
    clock.advance(39)
    ask(selector)
    assert client.count("openai/model-0") == 1
    healed.append(True)
    clock.advance(2)
    ask(selector)
    ask(selector)
    assert client.count("openai/model-0") == 3


def test_when_every_model_is_suspended_nothing_is_asked(
    opened: Opened, ask: Ask, diagnostics: FakeDiagnostics
) -> None:
    client = ScriptedClient(always("auth"))
    selector = opened(client=client, clock=FakeClock())
    assert [ask(selector).failure for _ in range(4)] == ["auth", *["circuit_open"] * 3]
    assert len(client.calls) == 1
    suspended = [fields for _, name, fields in diagnostics.events if name == "model.suspended"]
    assert suspended == [{"model": "openai/model-0", "failure": "auth", "seconds": 15.0}]


@pytest.mark.parametrize(
    "failure", ["rate_limited", "upstream_error", "timeout", "invalid_output", "refused"]
)
def test_second_calls_stay_under_a_tenth_of_a_thousand(
    opened: Opened, question: Put, failure: Failure
) -> None:
    """F-08: the first model fails every time, the breaker's time runs, and each question is another
    one.
    """
    client, clock = (
        ScriptedClient(lambda r: failure if r.model.name.endswith("0") else choice("a.one")),
        FakeClock(),
    )
    selector = opened("http://127.0.0.1:1", "http://127.0.0.1:2", client=client, clock=clock)

    async def ask_all() -> list[Reply]:
        replies = []
        for _ in range(1_000 if ALL else 500):
            clock.advance(1.0)
            replies.append(await selector.select(question(), ()))
        return replies

    replies = asyncio.run(ask_all())
    attempts = [reply.model.attempts for reply in replies if reply.model is not None]
    assert max(attempts) <= 2
    assert sum(attempts) == len(client.calls)
    assert sum(n == 2 for n in attempts) <= len(replies) // 10


def test_a_probe_that_everybody_left_does_not_keep_the_model_suspended(
    opened: Opened, ask: Ask, question: Put
) -> None:
    class Stuck(ScriptedClient):
        async def complete(self, request: ModelRequest) -> ModelReply:
            if len(self.calls) == 1:
                self.calls.append(request)
                await asyncio.Event().wait()
            return await super().complete(request)

    client, clock = (
        Stuck(lambda r: choice("a.one") if len(client.calls) > 1 else "timeout"),
        FakeClock(),
    )
    selector = opened(client=client, clock=clock)
    assert ask(selector).failure == "timeout"
    clock.advance(60)

    async def ask_and_leave() -> None:
        task = asyncio.create_task(selector.select(question(), ()))
        async with asyncio.timeout(300):
            while len(client.calls) < 2:  # noqa: ASYNC110 - counted on another thread's loop
                await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(ask_and_leave())
    assert ask(selector).answer is not None


def test_a_library_that_makes_an_error_of_the_deadline_is_not_believed(
    opened: Opened, ask: Ask
) -> None:
    class Swallowing(ScriptedClient):
        async def complete(self, request: ModelRequest) -> ModelReply:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return ModelReply(failure="upstream_error")
            return ModelReply()

    reply = ask(opened(client=Swallowing(always("")), deadline_s=0.02))
    assert (reply.answer, reply.failure) == (None, "timeout")


class HeldUp(asyncio.SelectorEventLoop):
    """A loop whose clock can jump, as it does for one that was kept from running."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def test_what_came_in_time_is_heard_by_a_caller_whose_loop_was_held_up() -> None:
    thread, landed = LoopThread("model"), threading.Event()
    flights: Flights[str] = Flights(thread)

    async def work() -> str:
        landed.set()
        return "landed"

    async def nothing() -> None:
        return None

    async def caller() -> str | None:
        waiting = asyncio.create_task(flights.join("key", work, within_s=5.0))
        await asyncio.sleep(0)
        assert landed.wait(300)
        thread.submit(nothing()).result(
            300
        )  # runs after what landed was told; this loop has not run since
        loop.ahead_s = 60.0
        return await waiting

    loop = HeldUp()
    try:
        assert loop.run_until_complete(caller()) == "landed"
    finally:
        loop.close()
        thread.close()


def test_a_client_that_holds_up_its_loop_keeps_nobody_and_is_left_alone(
    opened: Opened, ask: Ask
) -> None:
    released = threading.Event()

    class Busy(ScriptedClient):
        async def complete(self, request: ModelRequest) -> ModelReply:
            self.calls.append(request)
            released.wait(300)
            await asyncio.sleep(0)
            return ModelReply(failure="upstream_error")

    client = Busy(always(""))
    selector = opened(
        client=client, deadline_s=1.0
    )  # long enough for the question to reach the model
    try:
        assert ask(selector).failure == "timeout"
        assert not released.is_set()
    finally:
        released.set()
    failures = [ask(selector).failure for _ in range(5)]
    assert failures == [*["upstream_error"] * 4, "circuit_open"], "the first counted as one of five"
    assert len(client.calls) == 5


def test_after_the_deadline_no_second_model_is_asked(opened: Opened, ask: Ask) -> None:
    class Hanging(ScriptedClient):
        async def complete(self, request: ModelRequest) -> ModelReply:
            self.calls.append(request)
            await asyncio.Event().wait()
            return ModelReply()

    client = Hanging(always(""))
    selector = opened("http://one", "http://two", client=client, deadline_s=1.0)
    assert ask(selector).failure == "timeout"
    assert [request.model.name for request in client.calls] == ["openai/model-0"]


def test_another_model_is_not_shown_what_the_first_one_said(
    opened: Opened, ask: Ask, question: Put
) -> None:
    client = ScriptedClient(
        lambda request: "garbage" if request.model.name.endswith("0") else choice("a.one")
    )
    selector = opened("http://one", "http://two", client=client)
    assert ask(selector).failure == "invalid_output"
    assert [request.correction is None for request in client.calls] == [
        True,
        False,
    ], "the same model is"
    ask(selector, question(goal="again"))
    fifth_error = question(goal="its fifth error suspends the first model")
    assert ask(selector, fifth_error).answer is not None
    assert "".join(request.model.name[-1] for request in client.calls) == "000001"
    assert client.calls[-1].correction is None


def test_a_client_that_raises_is_a_failure_and_is_said(
    opened: Opened, ask: Ask, diagnostics: FakeDiagnostics
) -> None:
    def script(request: ModelRequest) -> Said:
        raise RuntimeError("a bug of ours")

    reply = ask(opened(client=ScriptedClient(script)))
    assert (reply.answer, reply.failure) == (None, "internal")
    assert [name for _, name, _ in diagnostics.events] == ["model.broke"]


def test_callers_on_many_loops_share_one_call(opened: Opened, question: Put) -> None:
    gate = threading.Event()

    def script(request: ModelRequest) -> Said:
        gate.wait(300)
        return choice("a.one")

    client = ScriptedClient(script)
    selector = opened(client=client)
    replies: list[Reply] = []
    threads = [
        threading.Thread(
            target=lambda: replies.append(asyncio.run(selector.select(question(), ())))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(300)
    assert [reply.answer.ids if reply.answer else reply.failure for reply in replies] == [
        ("a.one",)
    ] * 8
    assert len(client.calls) <= 8


def test_closing_in_the_middle_of_a_question_answers_it(
    diagnostics: FakeDiagnostics, question: Put
) -> None:
    class Stuck(ScriptedClient):
        async def complete(self, request: ModelRequest) -> ModelReply:
            self.calls.append(request)
            await asyncio.Event().wait()
            return ModelReply()

    client = Stuck(always(""))
    selector = ModelSelector(
        ModelSettings(("m",), deadline_s=30.0),
        client,
        FakeClock(),
        diagnostics,
        loop=LoopThread("model"),
    )

    async def run() -> Reply:
        await selector.warm_up()
        task = asyncio.create_task(selector.select(question(), ()))
        async with asyncio.timeout(300):
            while not client.calls:  # noqa: ASYNC110 - the call is counted on another thread's loop
                await asyncio.sleep(0.001)
        await selector.close()
        return await task

    assert asyncio.run(run()).failure == "internal"


# --- what may come of it --------------------------------------------------------------------------

IDS = ("a.one", "b.two", "c.three", "d.four", "e.five")
_WILD = st.one_of(
    st.sampled_from(
        [
            *IDS,
            "a",
            "a.one ",
            "A.ONE",
            "а.one",
            "a.one\u200b",
            "srv.a_one",
            "*",
            "",
            "z.nine",
            "bundle:a.one",
        ]
    ),
    st.text(max_size=12),
)


@st.composite
def _answers(draw: st.DrawFn) -> str:
    picks = draw(
        st.lists(
            st.fixed_dictionaries({"id": _WILD, "need": st.sampled_from(["required", "helpful"])})
        )
    )
    return json.dumps({"rationale": draw(st.text(max_size=50)), "picks": picks, "missing": ""})


@pytest.fixture(scope="module")
def heard() -> Iterable[Callable[[Question, str], Reply]]:
    """Puts a question to a model that says the given text, through one selector for all
    examples.
    """
    saying = [""]
    selector = ModelSelector(
        ModelSettings(("m",), max_picks=20), ScriptedClient(lambda r: saying[0]), FakeClock(), FakeDiagnostics(),
        loop=LoopThread("model"), answers_ttl_s=0.0,
    )  # fmt: skip
    loop = asyncio.new_event_loop()
    loop.run_until_complete(selector.warm_up())

    def say(put: Question, text: str) -> Reply:
        saying[0] = text
        return loop.run_until_complete(selector.select(put, ()))

    yield say
    loop.run_until_complete(selector.close())
    loop.close()


def _strings(node: Any) -> list[str]:
    if isinstance(node, str):
        return [node]
    return [text for item in node for text in _strings(item)] if isinstance(node, list) else []


INJECTIONS: list[str] = [
    text
    for file in ("injections/asb.json", "injections/bipia.json", "blns/blns.json")
    for text in _strings(json.loads((DATA / file).read_text(encoding="utf-8")))
]


@examples(200)
@given(said=_answers() | st.text(max_size=100), data=st.data())
def test_whatever_the_model_says_the_decision_stays_within_what_is_permitted(
    heard: Callable[[Question, str], Reply], question: Put, said: str, data: st.DataObject
) -> None:
    """S-05: any answer, any narrowing by the step, with injection strings as the goal."""
    allow = tuple(data.draw(st.sets(st.sampled_from(IDS), min_size=2)))
    goal = data.draw(st.sampled_from(INJECTIONS)) if INJECTIONS else ""
    put = question(goal=goal[:30_000], policy={"allow": allow})
    reply = heard(put, said)
    decision = conclude(put, reply)
    assert set(decision.bundle_ids) <= set(allow)
    if reply.answer is not None:
        assert set(reply.answer.ids) <= set(put.candidates)
        # The core checks for itself: even ids that got past the selector are dropped.
        forged = replace(reply.answer, ids=(*IDS, *reply.answer.ids, "z.nine"))
        assert set(settle(put, forged).bundle_ids) <= set(allow)


def test_no_injection_changes_what_is_permitted_or_sent_as_rules(question: Put) -> None:
    assert len(INJECTIONS) > 1_000
    plain = question()
    for text in INJECTIONS:
        put = question(goal=text[:30_000])
        assert put.candidates == plain.candidates
        assert set(json.loads(user_part(put.step, ()))) == {
            "workflow", "role", "step", "goal", "constraints", "recent_steps",
        }  # fmt: skip


def test_recorded_answers_replay_to_the_same_bytes() -> None:
    """F-24, the part with models: what was said is in the record, so that replay asks nobody."""
    answers = [("a.one",), ("b.two", "a.one"), (), ("zz",), "timeout", "circuit_open"]
    catalog = small_catalog({id_: [f"srv.{id_.replace('.', '_')}"] for id_ in IDS})
    turn = iter(range(10_000))
    with fake_router(catalog, selector=lambda q: answers[next(turn) % len(answers)]) as router:
        for number in range(300):
            router.route_sync(
                Step(
                    run_id="r", workflow="w", role="r", step=f"s{number % 7}", goal=f"goal {number}"
                )
            )
        for record in router.fakes.records("r"):
            again = replay(record, catalog)
            assert again.outcome == "identical"
            assert encode(outcome_json(again.decision)) == encode(
                {k: record[k] for k in outcome_json(again.decision)}
            )


def test_the_shape_is_one_class_for_a_set_of_ids(opened: Opened, ask: Ask, question: Put) -> None:
    client = ScriptedClient(always(choice("a.one")))
    selector = opened(client=client)
    for goal in ("one", "two"):
        ask(selector, question(goal=goal))
    first, second = (request.shape for request in client.calls)
    assert first is second
    assert first.model_json_schema() == AnswerShapes().of(IDS).model_json_schema()
