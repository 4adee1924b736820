"""F-22: connections that are evicted, grow idle, are forgotten by the server or ended with their
run, while calls hold them: 1,000 steps drawn by Hypothesis, with a real HTTP server that keeps a
session for each connection.

    python tests/faults/evictions.py [--quick]

Holds when every call that was begun comes to its own answer whatever became of its connection
meanwhile, no more idle connections are kept than may be, and in the end the server has no session
left. At most two idle connections are kept and they may be idle for ten seconds, on a clock that
the steps move. Prints a summary as JSON; exits with 1 if broken.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rig import ROOT, Verdict, quick

sys.path.insert(0, str(ROOT / "tests" / "adapters" / "mcp"))

import fault_server
from bundle_router.adapters.mcp import ConnectionSetting, open_mcp_sessions
from bundle_router.core.catalog import Server
from bundle_router.core.servers.transport.bounds import Bounds
from bundle_router.core.servers.transport.tool_servers import Scope
from bundle_router.core.values import Text
from bundle_router.core.values.breaker import BreakerTerms
from bundle_router.testing import FakeClock, FakeDiagnostics

RUNS: Final = st.integers(0, 4).map(lambda number: f"r-{number}")
KEPT: Final = 2
IDLE_S: Final = 10.0
MAX_HELD: Final = 8
DONE: Counter[str] = Counter()


class Evictions(RuleBasedStateMachine):
    """Calls are held open at a gate of the server for as long as the machine likes."""

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.serving = fault_server.serving()
        self.server = self.serving.__enter__()
        self.server.stateful = True
        self.clock = FakeClock()
        self.held: dict[str, asyncio.Task[Any]] = {}
        self.count = 0
        never_opens = BreakerTerms(errors_in_a_row=1_000_000, failing_share=2.0)
        bounds = Bounds(max_open=KEPT, idle_s=IDLE_S, breaker=never_opens)
        self.sessions = open_mcp_sessions(
            {"s": Server(name="s", transport="streamable-http", url=self.server.url)},
            ConnectionSetting(bounds),
            clock=self.clock,
            diagnostics=FakeDiagnostics(),
        )

    def _next(self) -> str:
        self.count += 1
        return f"call {self.count}"

    async def _call(self, tool: str, text: str, run_id: str) -> str:
        result = await self.sessions.call(
            "s", tool, {"text": text}, timeout_s=50.0, scope=Scope(run_id=run_id)
        )
        return "".join(block.text for block in result.blocks if isinstance(block, Text))

    async def _until(self, condition: Any, what: str) -> None:
        try:
            async with asyncio.timeout(300):
                while not condition():  # noqa: ASYNC110 - what is waited for is in other threads
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(what) from None

    @precondition(lambda self: len(self.held) < MAX_HELD)
    @rule(run_id=RUNS)
    def begin(self, run_id: str) -> None:
        text = self._next()
        self.server.faults.gates[text] = threading.Event()

        async def main() -> None:
            self.held[text] = asyncio.create_task(self._call("gate", text, run_id))
            await self._until(
                lambda: text in self.server.faults.at_gate, f"{text} never came to the server"
            )

        self.runner.run(main())
        DONE["held"] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(sorted(self.held)))
        task = self.held.pop(text)
        self.server.faults.gates[text].set()

        async def main() -> str:
            return str(await task)

        assert self.runner.run(main()) == text
        DONE["answered"] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(sorted(self.held)))
        task = self.held.pop(text)

        async def main() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.runner.run(main())
        self.server.faults.gates[text].set()
        DONE["given up"] += 1

    @rule(run_id=RUNS)
    def call(self, run_id: str) -> None:
        text = self._next()

        async def main() -> None:
            assert await self._call("echo", text, run_id) == text
            limit = KEPT + len(self.held) + 1
            await self._until(
                lambda: self.sessions.status()[0].connections <= limit, "too many are kept"
            )

        self.runner.run(main())
        DONE["answered"] += 1

    @rule(seconds=st.integers(1, 15))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def be_forgotten(self) -> None:
        """The server restarts, but for the calls it is at."""
        self.server.sessions.clear()
        DONE["forgotten"] += 1

    @rule(run_id=RUNS)
    def close_run(self, run_id: str) -> None:
        self.runner.run(self.sessions.close_run(run_id))
        DONE["runs closed"] += 1

    def teardown(self) -> None:
        if not hasattr(self, "sessions"):
            return
        for gate in self.server.faults.gates.values():
            gate.set()

        async def main() -> list[str]:
            answers = [str(answer) for answer in await asyncio.gather(*self.held.values())]
            await self.sessions.close()
            return answers

        try:
            assert self.runner.run(main()) == list(self.held)
            assert not self.server.sessions, "sessions that were never ended"
        finally:
            self.runner.close()
            self.serving.__exit__(None, None, None)


def main() -> None:
    short, verdict = quick(), Verdict()
    chosen = settings(
        max_examples=6
        if short
        else 5,  # the first is always the plainest: one rule again and again
        stateful_step_count=40 if short else 1_000,
        deadline=None,
        database=None,
        derandomize=short,
        phases=[Phase.generate],  # a shorter way to the same failure takes minutes to find
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(Evictions, settings=chosen)
    except AssertionError as broken:
        verdict.check(False, repr(broken)[:500])
    verdict.check(DONE["answered"] > 0, "nothing was ever answered")
    verdict.end(**DONE)


if __name__ == "__main__":
    main()
