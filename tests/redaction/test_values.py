"""JSON values: what stands under the name of a secret goes whole, and clean values come back untouched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bundle_router.adapters.redaction import SecretRedactor
from hypothesis import given
from hypothesis import strategies as st

TOKEN = "ghp_" + "aB3dE5gH7" * 4
NAMED = "[redacted:named-secret]"
REDACTOR = SecretRedactor({"VENDOR_KEY": "correct horse/battery+staple"})

CASES: list[tuple[Any, Any]] = [
    ({"password": "hunter2hunter2"}, {"password": NAMED}),
    ({"authorization": "Bearer x"}, {"authorization": NAMED}),
    ({"X-Api-Key": "abc", "page": 3}, {"X-Api-Key": NAMED, "page": 3}),
    ({"dbPasswd": 12345678, "ok": True}, {"dbPasswd": NAMED, "ok": True}),
    ({"Set-Cookie": ["a=1; Path=/", "b=2"]}, {"Set-Cookie": [NAMED, NAMED]}),
    (
        {"headers": [["Authorization", "Bearer x"], ["Accept", "x"]]},
        {"headers": [["Authorization", NAMED], ["Accept", "x"]]},
    ),
    ({"name": "X-Auth-Token", "value": "abc"}, {"name": "X-Auth-Token", "value": NAMED}),
    ({"cookies": [{"name": "sid", "value": "abc"}]}, {"cookies": [{"name": "sid", "value": NAMED}]}),
    ([{"deep": {"er": ["x", TOKEN]}}], [{"deep": {"er": ["x", "[redacted:github-pat]"]}}]),
    ({TOKEN: 1, "a": 2}, {"[redacted:github-pat]": 1, "a": 2}),
    (("a", (TOKEN,)), ("a", ("[redacted:github-pat]",))),
    ({"arguments": '{"password": "hunter2"}'}, {"arguments": f'{{"password": "{NAMED}"}}'}),
]

UNCHANGED: list[Any] = [
    {"headers": [["Authorization", "Bearer ${GITHUB_TOKEN}"]], "token": "$TOKEN", "password": ""},
    {"properties": {"password": {"type": "string", "description": "the password"}}, "required": ["password", "user"]},
    {"next_page_token": "CAUQAA", "tokens": 1200, "max_tokens": 5, "password": None, "secret": False},
    [1, 2.5, None, True, "text", {"a": ["b", ("c",)]}],
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["password", "x", "token", "name", "value", "k"]) | st.text(max_size=4), inner
        )
    ),
    max_leaves=20,
)


@pytest.mark.parametrize(("value", "expected"), CASES)
def test_a_named_secret_goes_whole_wherever_it_stands(value: Any, expected: Any) -> None:
    before = repr(value)
    assert REDACTOR.redact_value(value) == expected
    assert repr(value) == before
    assert REDACTOR.redact_value(expected) == expected


@pytest.mark.parametrize(("value", "expected"), CASES)
def test_encoded_json_is_called_clean_only_when_its_value_is(value: Any, expected: Any) -> None:
    assert not REDACTOR.is_clean(json.dumps(value))


@pytest.mark.parametrize("value", UNCHANGED)
def test_a_value_without_secrets_comes_back_as_the_same_object(value: Any) -> None:
    assert REDACTOR.redact_value(value) is value


def test_two_keys_that_become_equal_are_told_apart() -> None:
    other = TOKEN[:-1] + "Z"
    redacted = REDACTOR.redact_value({TOKEN: 1, other: 2})
    assert redacted == {"[redacted:github-pat]": 1, "[redacted:github-pat]#2": 2}


def test_what_is_nested_too_deeply_to_look_at_is_not_shown() -> None:
    value: Any = TOKEN
    for _ in range(100_000):
        value = [value]
    redacted = REDACTOR.redact_value(value)
    depth = 0
    while isinstance(redacted, list):
        redacted, depth = redacted[0], depth + 1
    assert redacted == "[redacted:too-deep]"
    assert depth == 501
    while isinstance(value, list):  # taken apart by hand: freeing it at once would recurse as deeply
        value = value.pop()


def test_several_texts_come_back_as_the_same_list_when_all_are_clean() -> None:
    clean = ["repo.readonly", "rename the flag", ""]
    assert REDACTOR.redact_many(clean) is clean
    assert REDACTOR.redact_many(["a", TOKEN, "b"]) == ["a", "[redacted:github-pat]", "b"]


@given(json_values)
def test_redacting_a_value_twice_changes_nothing_more(value: Any) -> None:
    once = REDACTOR.redact_value(value)
    assert REDACTOR.redact_value(once) == once


@given(json_values)
def test_a_record_called_clean_has_a_clean_value(value: Any) -> None:
    if REDACTOR.is_clean(json.dumps(value)):
        assert REDACTOR.redact_value(value) == value


def test_a_value_that_is_kept_later_is_a_secret_from_then_on() -> None:
    redactor = SecretRedactor({"VENDOR_KEY": "correct horse"})
    text = "x made/while-running+x, correct horse, x"
    assert redactor.redact(text) == "x made/while-running+x, [redacted:env:VENDOR_KEY], x"
    redactor.keep("a server", "made/while-running+x")
    redactor.keep("again", "made/while-running+x")
    redactor.keep("too", "short")
    assert redactor.redact(text) == "x [redacted:token:a_server], [redacted:env:VENDOR_KEY], x"
    assert redactor.redact("made%2Fwhile-running%2Bx short") == "[redacted:token:a_server] short"
    assert not redactor.is_clean(text)


def test_kept_values_are_bounded_and_what_was_redacted_by_them_stays_redacted() -> None:
    redactor = SecretRedactor()
    made = [f"token-number-{number:04}-of-many" for number in range(66)]
    redactor.keep("first", made[0])
    once = redactor.redact(f"<{made[0]}>")
    for value in made[1:]:
        redactor.keep("later", value)
    assert redactor.redact(made[0]) == made[0], "the oldest is forgotten"
    assert all(redactor.redact(value) == "[redacted:token:later]" for value in made[-64:])
    assert redactor.redact(once) == once == "<[redacted:token:first]>"


def test_of_a_very_long_value_the_head_is_looked_for() -> None:
    redactor = SecretRedactor()
    value = "".join(f"{number:x}" for number in range(2_000))
    redactor.keep("long", value)
    assert value[:256] not in redactor.redact(f"it is {value}.")
