"""The `Selector` that asks a model.

Rules:
1. One deadline over everything a question waits for, at most two upstream calls in it. The second
   is a re-ask when the first answer can't be read, or a failover to the next model. Nothing is ever
   tried a third time.
2. What comes back is a wish. Ids are checked against the candidates here, and again by the core.
3. Whatever goes wrong is a word of the closed list of failures, in the reply. Nothing is raised but
   cancellation.
4. A client that is still loading is not waited for: `not_ready` is an answer too, and loading
   begins with the first question. Who would rather wait calls `warm_up`.
5. Only successes are kept. A question that is being asked is not asked a second time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from bundle_router.core.catalog import Catalog, ModelChoice, ModelSettings
from bundle_router.core.decide.asking.model_breaker import NOT_SENT, TERMS, RetryBudget, end_of
from bundle_router.core.decide.asking.model_exchange import Correction, ModelReply, ModelRequest
from bundle_router.core.decide.asking.picks import AnswerShapes, ParsedPicks, parse_picks
from bundle_router.core.decide.asking.prompt import (
    PROMPT_VERSION,
    Prompt,
    question_key,
    system_part,
    user_part,
)
from bundle_router.core.decide.decide import Question
from bundle_router.core.values import Answer, Failure, ModelUse, RecentStep, Reply
from bundle_router.core.values.breaker import Breaker, Ticket
from bundle_router.engine.asking.answer_memory import AnswerMemory, CachedAnswer
from bundle_router.engine.asking.day_budget import DayBudget
from bundle_router.engine.asking.flights import Flights
from bundle_router.ports import (
    AnswerStore,
    BackgroundLoop,
    Clock,
    DayCosts,
    Diagnostics,
    ModelClient,
    Readiness,
)


@dataclass(frozen=True, slots=True)
class Turn:
    """Leave to call `model` once, the `place`th in order."""

    place: int
    model: ModelChoice
    ticket: Ticket


class ModelBreakers:
    """The state of all breakers."""

    def __init__(
        self, models: Sequence[ModelChoice], clock: Clock, diagnostics: Diagnostics
    ) -> None:
        self._models = tuple(models)
        self._breakers = [Breaker(TERMS) for _ in self._models]
        self._budget = RetryBudget()
        self._clock = clock
        self._diagnostics = diagnostics

    def begin(self) -> Turn | None:
        """Return the first call of a question: the best model whose breaker lets it through, or
        None.
        """
        self._budget = self._budget.deposit()
        return self._turn_from(0)

    def again(self, after: Turn, *, same_model: bool) -> Turn | None:
        """Return the second call: the same model if it may (a re-ask), else the next one.

        None when there is none, or when second calls have been too many lately.
        """
        budget = self._budget.take()
        if budget is not None:
            turn = self._turn_from(after.place if same_model else after.place + 1)
        else:
            turn = None
        if turn is not None and budget is not None:
            self._budget = budget
        return turn

    def next_model(self, after: Turn) -> Turn | None:
        """Return the call of the next model, after one to which nothing was sent."""
        return self._turn_from(after.place + 1)

    def _turn_from(self, first: int) -> Turn | None:
        now_ns = self._clock.monotonic_ns()
        for place in range(first, len(self._models)):
            self._breakers[place], ticket = self._breakers[place].admit(now_ns)
            if ticket is not None:
                return Turn(place, self._models[place], ticket)
        return None

    def settle(self, turn: Turn, reply: ModelReply) -> None:
        """Take note of what the call came to."""
        breaker = self._breakers[turn.place]
        end = end_of(reply.failure)
        now_ns = self._clock.monotonic_ns()
        settled_breaker = breaker.settle(turn.ticket, end, now_ns, reply.retry_after_s)
        self._breakers[turn.place] = settled_breaker
        if settled_breaker.epoch == breaker.epoch:
            return
        if settled_breaker.open_until_ns is None:
            self._diagnostics.event("warning", "model.recovered", model=turn.model.name)
        else:
            seconds = round((settled_breaker.open_until_ns - self._clock.monotonic_ns()) / 1e9, 1)
            self._diagnostics.event(
                "warning",
                "model.suspended",
                model=turn.model.name,
                failure=reply.failure,
                seconds=seconds,
            )

    def release(self, turn: Turn) -> None:
        """Give the ticket back of a call that was given up before it came to anything."""
        self._breakers[turn.place] = self._breakers[turn.place].release(turn.ticket)


GRACE_S: Final = 0.1
"""How much longer than the deadline a caller waits for the loop thread to say that it passed."""
CLOSE_S: Final = 5.0
"""How long the client may take to let go of its connections."""
COMPLAINT: Final = (
    "That could not be read. Answer with the JSON object described above and nothing else, with ids"
    " from the list only."
)
_MAX_SYSTEMS: Final = 128


@dataclass(frozen=True, slots=True)
class _PreparedQuestion:
    """A question as it is put to models."""

    prompt: Prompt
    """Both parts of what is sent."""
    candidates: tuple[str, ...]
    """The bundles that may be picked, in the order of the prompt."""
    max_picks: int
    """How many may be picked."""
    key: str
    """The key that the answer is kept under."""


class ModelSelector:
    """Asks the models of `settings`, best first.

    May be used from many threads and event loops at once.

    Questions are put on `loop`, which is closed with this. `answers_ttl_s` is how long an answer is
    used again (0: never), `store` where answers may outlive the process.
    """

    def __init__(
        self,
        settings: ModelSettings,
        client: ModelClient,
        clock: Clock,
        diagnostics: Diagnostics,
        *,
        loop: BackgroundLoop,
        answers_ttl_s: float = 3_600.0,
        store: AnswerStore | None = None,
    ) -> None:
        if not settings.names:
            raise ValueError("there is no model to ask: [model] names is empty")
        self._settings = settings
        self._models = settings.choices
        self._client = client
        self._clock = clock
        self._diagnostics = diagnostics
        self._loop = loop
        self._flights: Flights[Reply] = Flights(self._loop)
        self._memory = AnswerMemory(clock, answers_ttl_s, store)
        self._shapes = AnswerShapes()
        self._turns = ModelBreakers(self._models, clock, diagnostics)
        self._systems: OrderedDict[tuple[str, tuple[str, ...]], str] = OrderedDict()
        self._warming: Future[Readiness] | None = None
        self._storing: set[asyncio.Future[None]] = set()
        self._reported: set[tuple[str, str]] = set()
        self._budget: DayBudget | None = None

    def limit_costs(self, day_costs: DayCosts) -> None:
        """Keep to the limit of the settings for a day, if they have one, in these sums."""
        limit_usd = self._settings.max_cost_per_day
        if limit_usd is not None:
            self._budget = DayBudget(limit_usd, day_costs, self._clock, self._diagnostics)

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply:
        """See `Selector`. At least two candidates: with fewer the core does not ask."""
        assert len(question.candidates) >= 2, "a choice is asked for"  # noqa: S101 - the core's rule 5
        started = self._clock.monotonic_ns()
        try:
            reply = await self._select(question, recent)
        except Exception as error:  # noqa: BLE001 - rule 3: the caller's step goes on, whatever is wrong in here
            self._diagnostics.event("error", "model.broke", error=error)
            reply = self._failed_reply("internal", "")
        return _time_reply(reply, (self._clock.monotonic_ns() - started) / 1e6)

    async def warm_up(self) -> Readiness:
        """Load what calls need, and wait for it (seconds). Contacts nobody."""
        return await asyncio.shield(asyncio.wrap_future(self._begin_warm_up()))

    async def wait_until_stored(self) -> None:
        """Wait until the answers that were given are in the store."""
        if self._warming is not None:
            await asyncio.wrap_future(self._loop.submit(self._wait_for_store()))

    async def _wait_for_store(self) -> None:
        if self._storing:
            await asyncio.wait({*self._storing})

    async def close(self) -> None:
        """Give up what is under way and let go of connections and the thread."""
        if self._warming is not None:
            self._warming = None
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        try:
            self._loop.submit(self._wait_for_store()).result(timeout=CLOSE_S)
            self._loop.submit(self._client.close()).result(timeout=CLOSE_S)
        except TimeoutError:
            self._diagnostics.event("warning", "model.close_timed_out")
        self._loop.close()

    # --- preparing a question ---------------------------------------------------------------------

    async def _select(self, question: Question, recent: Sequence[RecentStep]) -> Reply:
        prepared = self._prepare(question, recent)
        cached = self._memory.get(prepared.key)
        if cached is None and self._memory.has_store:
            cached = await asyncio.to_thread(self._memory.fetch, prepared.key)
        if cached is not None:
            return _from_kept(cached, prepared.key)
        if not question.may_ask_model:
            return self._failed_reply("over_limit", prepared.key)
        if self._client.readiness != "ready":
            self._begin_warm_up()
            return self._failed_reply("not_ready", prepared.key)
        try:
            within_s = self._settings.deadline_s + GRACE_S
            reply = await self._flights.join(
                prepared.key, lambda: self._ask_in_turn(prepared), within_s=within_s
            )
        except TimeoutError:
            return self._failed_reply("timeout", prepared.key)
        if reply is not None:
            return reply
        return self._failed_reply("internal", prepared.key)

    def _prepare(self, question: Question, recent: Sequence[RecentStep]) -> _PreparedQuestion:
        step = question.step
        allowed = min(
            self._settings.max_picks, max(step.max_bundles or self._settings.max_picks, 1)
        )
        prompt = Prompt(
            self._system(question.catalog, question.candidates), user_part(step, recent)
        )
        return _PreparedQuestion(
            prompt, question.candidates, allowed, question_key(prompt, self._models, allowed)
        )

    def _system(self, catalog: Catalog, candidates: tuple[str, ...]) -> str:
        """Return the constant part, made once for each set of permitted bundles."""
        key = (catalog.revision, candidates)
        prompt = self._systems.get(key)
        if prompt is None:
            bundles = [
                catalog.bundles[id_] for id_ in candidates
            ]  # each at its place: answers name it by that
            prompt = self._systems[key] = system_part(bundles, self._settings.max_picks)
            while len(self._systems) > _MAX_SYSTEMS:
                self._systems.popitem(last=False)
        return prompt

    def _begin_warm_up(self) -> Future[Readiness]:
        if self._warming is None:
            self._warming = self._loop.submit(self._warm_up())
        return self._warming

    async def _warm_up(self) -> Readiness:
        readiness = await self._client.warm_up()
        if readiness != "ready":
            if readiness == "missing":
                advice = "pip install 'bundle-router[model]'"
            else:
                advice = "see the error before this one"
            self._diagnostics.event(
                "error", "model.unavailable", readiness=readiness, advice=advice
            )
        return readiness

    # --- on the loop thread -----------------------------------------------------------------------

    async def _ask_in_turn(self, prepared: _PreparedQuestion) -> Reply:
        try:
            return await self._ask_within_budget(prepared)
        except Exception as error:  # noqa: BLE001 - rule 3, for the part that runs on the loop thread
            self._diagnostics.event("error", "model.broke", error=error)
            return self._failed_reply("internal", prepared.key)

    async def _ask_within_budget(self, prepared: _PreparedQuestion) -> Reply:
        """Ask, unless the day's limit leaves no room for the question."""
        budget = self._budget
        if budget is None:
            return await self._ask(prepared)
        reservation = await asyncio.to_thread(budget.reserve)
        if reservation is None:
            return self._failed_reply("over_limit", prepared.key)
        reply: Reply | None = None
        try:
            reply = await self._ask(prepared)
        finally:
            cost_usd = reply.model.cost_usd if reply is not None and reply.model else 0.0
            is_known = reply is not None and reply.failure != "timeout"
            settle = partial(budget.settle, reservation, cost_usd, is_known=is_known)
            # In a thread, which finishes it where everybody left and this was cancelled.
            settling = asyncio.get_running_loop().run_in_executor(None, settle)
            self._storing.add(settling)
            settling.add_done_callback(self._storing.discard)
        await settling
        return reply

    async def _ask(self, prepared: _PreparedQuestion) -> Reply:
        """Ask, within the deadline, and keep a success."""
        until = asyncio.get_running_loop().time() + self._settings.deadline_s
        use = ModelUse(self._models[0].name, PROMPT_VERSION, prepared.key)
        turn = self._turns.begin()
        if turn is None:
            return Reply(failure="circuit_open", model=replace(use, failure="circuit_open"))
        correction: Correction | None = None
        while True:
            reply, choice = await self._call(prepared, turn, correction, until)
            not_sent = reply.failure in NOT_SENT
            use = replace(use, name=turn.model.name, failure=reply.failure)
            if not not_sent:
                use = _add_use(use, reply)
            if choice is not None:
                return await self._succeed(prepared, use, choice)
            self._report_failure(turn.model.name, reply)
            if use.attempts >= 2 or reply.failure == "timeout":
                return Reply(failure=reply.failure, model=use)
            unreadable = reply.failure == "invalid_output"
            if not_sent:
                following = self._turns.next_model(turn)
            else:
                following = self._turns.again(turn, same_model=unreadable)
            if following is None:
                return Reply(failure=reply.failure, model=use)
            asks_again = unreadable and following.place == turn.place
            correction = Correction(reply.raw or "", COMPLAINT) if asks_again else None
            turn = following

    async def _call(
        self,
        prepared: _PreparedQuestion,
        turn: Turn,
        correction: Correction | None,
        deadline: float,
    ) -> tuple[ModelReply, ParsedPicks | None]:
        """Make one upstream call; the breaker hears of it however it ends."""
        request = ModelRequest(
            turn.model,
            prepared.prompt.system,
            prepared.prompt.user,
            self._shapes.of(prepared.candidates),
            correction,
        )
        settled = False
        try:
            try:
                async with asyncio.timeout_at(deadline) as scope:
                    reply = await self._client.complete(request)
            except TimeoutError:
                reply = ModelReply(failure="timeout")
            if scope.expired() and reply.failure is not None:
                reply = replace(
                    reply, failure="timeout"
                )  # libraries wrap the cancellation in errors of their own
            if reply.answer is not None:
                choice = parse_picks(reply.answer, prepared.candidates, prepared.max_picks)
            else:
                choice = None
            if choice is None and reply.failure is None:
                reply = replace(reply, answer=None, failure="invalid_output")
            self._turns.settle(turn, reply)
            settled = True
        finally:
            if not settled and asyncio.get_running_loop().time() >= deadline:
                self._turns.settle(
                    turn, ModelReply(failure="timeout")
                )  # everyone left because this loop was held up
            elif not settled:
                self._turns.release(turn)
        return reply, choice

    def _report_failure(self, model: str, reply: ModelReply) -> None:
        """Log a failure; one of the config once, as an error."""
        if reply.failure not in NOT_SENT:
            fields = {"advice": reply.detail} if reply.detail else {}
            self._diagnostics.event(
                "info", "model.failed", model=model, failure=reply.failure, **fields
            )
            return
        if (model, reply.detail) in self._reported:
            return
        self._reported.add((model, reply.detail))
        self._diagnostics.event(
            "error",
            "model.not_asked",
            model=model,
            failure=reply.failure,
            why=reply.detail,
            advice="bundle-router check says what is wrong",
        )

    async def _succeed(
        self, prepared: _PreparedQuestion, use: ModelUse, choice: ParsedPicks
    ) -> Reply:
        cached = CachedAnswer(
            choice.ids,
            choice.dropped,
            choice.justification,
            use.name,
            use.prompt_version,
            use.answer,
            choice.sure,
        )
        self._memory.put(prepared.key, cached)
        if self._memory.has_store:
            # Nobody waits for it: an answer that is not kept is asked for again.
            storing = asyncio.get_running_loop().run_in_executor(
                None, self._memory.store, prepared.key, cached
            )
            self._storing.add(storing)
            storing.add_done_callback(self._storing.discard)
        answer = Answer(
            choice.ids,
            "model",
            "model",
            choice.justification,
            model=replace(use, failure=None, sure=choice.sure),
            dropped=choice.dropped,
        )
        return Reply(answer=answer, model=answer.model)

    def _failed_reply(self, failure: Failure, key: str) -> Reply:
        return Reply(
            failure=failure,
            model=ModelUse(self._models[0].name, PROMPT_VERSION, key, failure=failure),
        )


def _add_use(use: ModelUse, reply: ModelReply) -> ModelUse:
    """Return what the question has cost so far, and its last answer."""
    return replace(
        use,
        attempts=use.attempts + 1,
        input_tokens=use.input_tokens + reply.input_tokens,
        output_tokens=use.output_tokens + reply.output_tokens,
        cost_usd=use.cost_usd + reply.cost_usd,
        answer=reply.raw if reply.raw is not None else use.answer,
    )


def _from_kept(cached: CachedAnswer, key: str) -> Reply:
    use = ModelUse(
        cached.model,
        cached.prompt_version,
        key,
        cached=True,
        answer=cached.raw,
        sure=cached.sure,
    )
    answer = Answer(
        cached.ids, "model", "model_cached", cached.justification, model=use, dropped=cached.dropped
    )
    return Reply(answer=answer, model=use)


def _time_reply(reply: Reply, elapsed_ms: float) -> Reply:
    """Return the reply with the time this caller waited."""
    use = replace(reply.model, elapsed_ms=round(elapsed_ms, 3)) if reply.model is not None else None
    answer = replace(reply.answer, model=use) if reply.answer is not None else None
    return replace(reply, answer=answer, model=use)
