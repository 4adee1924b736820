"""A bank whose transfers may wait for somebody's word, for tests of held calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bundle_router import Result, Step
from bundle_router.core.catalog import ApprovalRow, Bundle, Catalog, Condition, Policy, Route
from bundle_router.testing import FakeRouter, MemoryRuns, fake_router, small_catalog

EUR: dict[str, Any] = {"amount": 700, "currency": "EUR"}
ROW = ApprovalRow(
    "over 500",
    calls=("tool:bank.transfer",),
    unless=(Condition("/amount", at_most=500), Condition("/currency", is_="EUR")),
)
BANK = Bundle(
    "bank.all", "Move money.", ("bank.balance", "bank.transfer"), effects=("read", "write")
)
DENIAL = Policy("no", deny=("tool:bank.transfer",))
IS_SECRET = Condition("/memo", is_="topsecret")
DAY_S = 86_400


def row(**changes: Any) -> ApprovalRow:
    """Return the row with some of its fields changed."""
    return replace(ROW, **changes)


def bank(*rows: ApprovalRow, policies: Iterable[Policy] = ()) -> Catalog:
    return small_catalog(
        {"bank.all": BANK, "mail": ["mail.send"]},
        routes=[
            Route("clerk", step=("pay",), bundles=("bank.all", "mail")),
            Route("other", bundles=("bank.all",)),
        ],
        policies=[Policy("everything", allow=("*",)), *policies],
        approvals=rows or (ROW,),
    )


STEP = Step(run_id="r-1", workflow="payments", role="clerk", step="pay", principal="ann")


OPEN: list[FakeRouter] = []


class Desk:
    """A router at whose step a transfer may wait, and how often the transfer ran."""

    def __init__(
        self,
        catalog: Catalog | None = None,
        runs: MemoryRuns | None = None,
        transfer: object = "done",
    ) -> None:
        self.runs = runs or MemoryRuns()
        results = {"bank.transfer": transfer}
        self.router = fake_router(catalog or bank(), runs=self.runs, results=results)
        OPEN.append(self.router)

    def begin(self, step: Step = STEP) -> Desk:
        self.router.route_sync(step)
        return self

    def call(self, arguments: Mapping[str, Any] = EUR, **how: Any) -> Result:
        return self.router.call_sync("r-1", "bank.transfer", arguments, **how)

    @property
    def made(self) -> int:
        return len(self.router.fakes.sessions.calls)

    def records(self, type_: str) -> list[Mapping[str, Any]]:
        lines = self.router.fakes.store.log("r-1").lines
        return [record for _, record in lines if record["type"] == type_]

    def id_of(self, result: Result) -> str:
        assert result.approval is not None
        return result.approval.id
