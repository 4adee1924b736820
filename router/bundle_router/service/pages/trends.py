"""What went on over time, as charts of the overview: one measure and one axis each, and the records
behind every bar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from bundle_router.core.records.read_model import FILTERS, Period, Stats
from bundle_router.service.pages.charts import Address, TimeBar, bars_over_time
from bundle_router.service.pages.queries import Query, kept_query

if TYPE_CHECKING:
    from markupsafe import Markup

Group = Literal["wrong", "cost"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of a period."""

    column: str
    """The field of `Period`."""
    title: str
    unit: str
    group: Group
    of: Literal["steps", "calls"]
    """The list that has the records behind it."""
    selects: Mapping[str, str]
    """The filters and order of that list."""
    tone: str

    def of_period(self, period: Period) -> float:
        """Return the value in a period."""
        value: float = getattr(period, self.column)
        return value

    def words(self, value: float) -> str:
        """Return a value with its unit."""
        if self.column == "cost_usd":
            return f"${value:.4f}"
        return f"{value:,.0f} {self.unit.removesuffix('s') if value == 1 else self.unit}"


MEASURES: Final = (
    Measure("denied", "Denied calls", "calls", "wrong", "calls", {"outcome": "denied"}, "bar-bad"),
    Measure("failed", "Failed calls", "calls", "wrong", "calls", {"failed": "1"}, "bar-bad"),
    Measure(
        "degraded", "Steps that fell back", "steps", "wrong", "steps", {"degraded": "1"}, "bar-warn"
    ),
    Measure("doubted", "Steps in doubt", "steps", "wrong", "steps", {"doubt": "1"}, "bar-warn"),
    Measure(
        "cost_usd",
        "Cost of the router's model",
        "dollars",
        "cost",
        "steps",
        {"sort": "cost"},
        "bar-cost",
    ),
    Measure(
        "result_tokens",
        "Tokens of results",
        "tokens",
        "cost",
        "calls",
        {"sort": "results"},
        "bar-cost",
    ),
)
"""The measures that have a chart, the most important first."""


@dataclass(frozen=True, slots=True)
class Trend:
    """One measure over time."""

    measure: Measure
    total: float
    bars: tuple[TimeBar, ...]
    """A bar for each period; none where there are no records."""

    def chart(self, address: Address) -> Markup:
        """Return the chart."""
        return bars_over_time(
            self.bars,
            f"{self.measure.title} over time: {self.words}",
            address,
            tone=self.measure.tone,
            money=self.measure.column == "cost_usd",
        )

    @property
    def words(self) -> str:
        """The total with its unit."""
        return self.measure.words(self.total)

    @property
    def lit(self) -> tuple[TimeBar, ...]:
        """The bars that are not zero."""
        return tuple(bar for bar in self.bars if bar.value)


def trends_of(stats: Stats, query: Query) -> list[Trend]:
    """Return each measure of the chosen runs over time. Links keep the filters of the page."""
    return [_trend(measure, stats, query) for measure in MEASURES]


def _trend(measure: Measure, stats: Stats, query: Query) -> Trend:
    kept_filters = kept_query(query, FILTERS[measure.of])
    bars = []
    for period in stats.over_time:
        selects = {**kept_filters, **measure.selects, "during": period.time}
        value = measure.of_period(period)
        time = period.time.replace("T", " ") + (":00" if "T" in period.time else "")
        bars.append(
            TimeBar(
                period.time,
                value,
                f"{time}: {measure.words(value)}",
                f"/{measure.of}",
                selects,
            )
        )
    return Trend(measure, sum(bar.value for bar in bars), tuple(bars))
