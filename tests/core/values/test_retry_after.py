"""What a `Retry-After` header asks for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from bundle_router.core.values.retry_after import retry_after_s
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2026, 11, 29, 6, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 90 ", 90.0),
        ("7.5", 7.5),
        ("0", 0.0),
        ("Sun, 29 Nov 2026 06:02:00 GMT", 120.0),
        ("Sun, 29 Nov 2026 05:59:59 GMT", 0.0),
        ("Sun, 29 Nov 2026 06:02:00", None),
        ("-7", None),
        ("nan", None),
        ("inf", None),
        ("9" * 400, None),
        ("soon", None),
        ("", None),
    ],
)
def test_it_is_a_number_of_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after_s(value, NOW) == seconds


@given(st.text())
def test_any_text_is_some_seconds_or_none(value: str) -> None:
    seconds = retry_after_s(value, NOW)
    assert seconds is None or seconds >= 0.0
