"""A record is written without secrets, wherever in it one stands; digests that the router made are
not looked at.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from bundle_router.adapters.redaction import SecretRedactor
from bundle_router.core.records.chain import encode_record, redact_record
from bundle_router.core.values.canonical import EncodedObject, EncodedRows
from hypothesis import given
from hypothesis import strategies as st

REDACTOR = SecretRedactor({"VENDOR_KEY": "correct horse/battery+staple"})
TOKEN = "ghp_" + "aB3dE5gH7" * 4
DIGEST = "9f86d081884c7d65" * 4
RECORD: dict[str, Any] = {
    "arguments": '{"number":3}',
    "arguments_digest": DIGEST,
    "artifacts": [
        {
            "uri": f"artifact:sha256:{DIGEST}",
            "sha256": f"sha256:{DIGEST}",
            "mime_type": "text/plain",
        }
    ],
    "call_id": "r.0ee31bd9.1",
    "catalog_revision": f"sha256:{DIGEST}",
    "facts": {"unavailable": [{"server": "github", "why": "it did not answer"}]},
    "input_digest": f"sha256:{DIGEST}",
    "key": "k1",
    "result": 'it said "fine"\n',
    "step": {"goal": "rename the flag", "labels": [{"name": "team", "value": "blue"}]},
    "time": "2026-11-22T16:41:17.128969Z",
    "writer": "f9c51178aa481a99",
}

PLAIN: dict[str, Any] = {
    **{name: value for name, value in RECORD.items() if isinstance(value, str)},
    "decision_id": "r.0ee31bd9.0",
    "attempt": 2,
    "elapsed_ms": 1.5,
    "joined": [],
    "shaped": {"original_bytes": 14, "kept_bytes": 14, "rule": "whole", "flags": []},
    "exposure": {"tools": 5, "tokens": 900, "all_tools": 30, "all_tokens": 4_000},
    "spent": {"calls": 3, "result_bytes": 14, "elapsed_ms": 1.5, "repeats": 0},
}
"""As most records of calls are: texts, numbers, and objects that the router made."""
TEXTS = [
    PLAIN["arguments"],
    "r",
    PLAIN["key"],
    PLAIN["result"],
    "r",
]  # of an id of ours, the run's id


def encode_clean(record: dict[str, Any], redactor: Any) -> str:
    """Return the text that a store writes for a record."""
    return encode_record(redact_record(record, redactor))


class Witness:
    """Passes on to the real redactor, and keeps what it was shown."""

    def __init__(self) -> None:
        self.shown = ""

    def are_clean(self, texts: Sequence[str]) -> bool:
        self.shown += "".join(texts)
        return REDACTOR.are_clean(texts)

    def redact_many(self, texts: Sequence[str]) -> Sequence[str]:
        self.shown += json.dumps(texts)
        return REDACTOR.redact_many(texts)

    def redact_value(self, value: Any) -> Any:
        self.shown += json.dumps(value)
        return REDACTOR.redact_value(value)


def with_texts(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its objects and lists as parts that are encoded already, as decisions have
    them.
    """
    kinds: dict[type, Any] = {dict: EncodedObject, list: EncodedRows}
    return {
        name: kinds.get(type(value), lambda same: same)(value) for name, value in record.items()
    }


def test_a_part_that_was_clean_is_looked_at_again_once_there_is_another_secret() -> None:
    redactor = SecretRedactor({})
    record = with_texts(
        {"facts": {"unavailable": [{"server": "github", "why": "opened by hunter2hunter2"}]}}
    )
    for _ in range(2):
        assert "hunter2hunter2" in encode_clean(record, redactor)
    redactor.keep("endpoint", "hunter2hunter2")
    assert "hunter2hunter2" not in encode_clean(record, redactor)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the value holds text."""
    if isinstance(value, str | int | float):
        return [at] if isinstance(value, str) else []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [place for name, item in items for place in places(item, (*at, name))]


@given(
    st.sampled_from(
        [
            (record, place)
            for record in (RECORD, PLAIN)
            for place in places(record)
            if place[0] in RECORD
        ]
    ),
    st.sampled_from((TOKEN, "correct horse/battery+staple", json.dumps({"password": "hunter2"}))),
    st.sampled_from(
        ("{}", "x {}", "{} x", f"{DIGEST} {{}}", f'"input_digest":"{DIGEST}" {{}}', '\\"{}\\"')
    ),
    st.booleans(),
    st.booleans(),
)
def test_a_secret_is_found_wherever_it_stands(
    at: tuple[dict[str, Any], tuple[Any, ...]], secret: str, form: str, escapes: bool, encoded: bool
) -> None:
    record: Any = copy.deepcopy(at[0])
    place = at[1]
    if not escapes:  # one look at the whole text, instead of one at each value
        record |= {"arguments": "{}", "result": "fine"}
    inner = record
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = form.format(secret)
    written = encode_clean(with_texts(record) if encoded else record, REDACTOR)
    assert TOKEN not in written
    assert "battery" not in written
    assert "hunter2" not in written
    assert json.loads(written) == REDACTOR.redact_value(record)


def test_what_the_router_itself_made_is_not_looked_at_and_stays() -> None:
    for record in (RECORD, RECORD | {"arguments": "{}", "result": "fine"}):
        witness = Witness()
        assert encode_clean(record, witness) == encode_record(record)
        for name in ("arguments_digest", "catalog_revision", "input_digest", "time", "writer"):
            assert f'"{name}"' not in witness.shown
    witness = Witness()
    encode_clean(RECORD | {"writer": "not of our form"}, witness)
    assert "not of our form" in witness.shown
    secret = "0123456789abcdef"  # which has the form of a writer
    for record in ({"key": secret}, {"key": secret, "result": "fine"}):
        assert secret not in encode_clean(record, SecretRedactor({"VENDOR_KEY": secret}))


def test_a_record_of_a_call_is_looked_at_once_text_by_text() -> None:
    witness = Witness()
    assert encode_clean(PLAIN, witness) == encode_record(PLAIN)
    assert witness.shown == json.dumps(TEXTS)
    others: tuple[tuple[dict[str, Any], str], ...] = (
        ({"catalog_revision": "main"}, "main"),
        ({"artifacts": [{"uri": "artifact:x"}]}, "artifact:x"),
        ({"facts": {"grants": ["env:X"]}}, "env:X"),
    )
    for more, text in others:
        witness = Witness()
        assert encode_clean(PLAIN | more, witness) == encode_record(PLAIN | more)
        assert text in witness.shown


def test_of_an_activation_that_recurs_the_counts_are_not_looked_at() -> None:
    for used in (1, 2):
        witness = Witness()
        encode_clean(
            {"activation": {"after": [{"id": "a", "used": used}]}, "facts": {"used": used}}, witness
        )
        assert witness.shown == f'{{"after":[{{"id":"a",}}]}}{{"used":{used}}}[]'


def test_a_digest_of_ours_stays_where_something_beside_it_was_looked_at_twice_and_is_no_secret() -> (
    None
):
    class Wary(Witness):
        def redact_many(self, texts: Sequence[str]) -> Sequence[str]:
            return list(texts)

        def redact_value(self, value: Any) -> Any:
            return SecretRedactor({"VENDOR_KEY": DIGEST}).redact_value(value)

    record = {"arguments_digest": DIGEST, "result": "fine"}
    assert encode_clean(record, Wary()) == encode_record(record)
