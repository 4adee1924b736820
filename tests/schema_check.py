"""Every record that a test writes fits its JSON Schema: a field without a schema fails the test.

A plugin that tests/conftest.py names.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import Any, Final

import pytest

MISFITS: Final[list[str]] = []
"""What is wrong with records that were written since the last test ended."""
CHAIN: Final = {"seq": 0, "prev": "", "hash": ""}
"""Stands for what the log adds to a record as it seals it."""


@cache
def _validator(type_: str) -> Any:
    import jsonschema_rs
    from bundle_router.core.records.written_records import schema_text

    return jsonschema_rs.validator_for(schema_text(type_))


def misfits_of(type_: str, record: Any) -> list[str]:
    """Return what is wrong with a record of a type, a sentence each."""
    return [
        f"{type_}: {'.'.join(map(str, error.instance_path))}: {error.message[-300:]}"
        for error in _validator(type_).iter_errors(record)
    ]


def _checked(to_json: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    def checked_to_json(value: Any) -> dict[str, Any]:
        record = to_json(value)
        MISFITS.extend(misfits_of(value.type, record | CHAIN))
        return record

    return checked_to_json


@pytest.fixture(autouse=True, scope="session")
def _records_are_checked() -> Iterator[None]:
    from bundle_router.core.records.approval_records import APPROVAL_KINDS
    from bundle_router.core.records.call_records import (
        CallFinished,
        CallStarted,
        RequestPassed,
        SubRunOpened,
        TaintCleared,
        TaintPassed,
    )
    from bundle_router.core.records.decision_record import DecisionRecord
    from bundle_router.core.records.run_header import RunHeader

    sealed = RunHeader.sealed

    def checked_seal(header: RunHeader) -> RunHeader:
        written = sealed(header)
        if "bundle_router" in written.fields:  # an engine's, not one of a test of headers
            MISFITS.extend(misfits_of("run", dict(written.fields)))
        return written

    with pytest.MonkeyPatch.context() as patch:
        calls = (CallStarted, CallFinished, RequestPassed, SubRunOpened, TaintPassed, TaintCleared)
        for kind in (DecisionRecord, *calls, *APPROVAL_KINDS.values()):
            patch.setattr(kind, "to_json", _checked(kind.to_json))
        patch.setattr(RunHeader, "sealed", checked_seal)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Fail the test whose records do not fit."""
    ended = yield
    misfits = MISFITS.copy()
    MISFITS.clear()
    assert misfits == []
    return ended
