"""JSON values: what stands under the name of a secret goes whole, and clean values come back
untouched.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from types import MappingProxyType
from typing import Any

import pytest
from bundle_router.adapters import redaction
from bundle_router.adapters.redaction import SecretRedactor
from hypothesis import given
from hypothesis import strategies as st

TOKEN = "ghp_" + "aB3dE5gH7" * 4
NAMED = "[redacted:named-secret]"


@cache
def shared_redactor() -> SecretRedactor:
    """Return the one of this file, made by the test that first asks: a mutant is in place by
    then.
    """
    return SecretRedactor({"VENDOR_KEY": "correct horse/battery+staple"})


CASES: list[tuple[Any, Any]] = [
    ({"password": "hunter2hunter2"}, {"password": NAMED}),
    ({"authorization": "Bearer x"}, {"authorization": NAMED}),
    ({"X-Api-Key": "abc", "page": 3}, {"X-Api-Key": NAMED, "page": 3}),
    (
        {"password": "top.secret", "token": "/x/y", "pwd": "1.2", "passphrase": "your cat"},
        {"password": NAMED, "token": NAMED, "pwd": NAMED, "passphrase": NAMED},
    ),
    ({"dbPasswd": 12345678, "ok": True}, {"dbPasswd": NAMED, "ok": True}),
    ({"Set-Cookie": ["a=1; Path=/", "b=2"]}, {"Set-Cookie": [NAMED, NAMED]}),
    (
        {"headers": [["Authorization", "Bearer x"], ["Accept", "x"]]},
        {"headers": [["Authorization", NAMED], ["Accept", "x"]]},
    ),
    ({"name": "X-Auth-Token", "value": "abc"}, {"name": "X-Auth-Token", "value": NAMED}),
    (
        {"cookies": [{"name": "sid", "value": "abc"}]},
        {"cookies": [{"name": "sid", "value": NAMED}]},
    ),
    ([{"deep": {"er": ["x", TOKEN]}}], [{"deep": {"er": ["x", "[redacted:github-pat]"]}}]),
    ({TOKEN: 1, "a": 2}, {"[redacted:github-pat]": 1, "a": 2}),
    (TOKEN, "[redacted:github-pat]"),
    (("a", (TOKEN,)), ("a", ("[redacted:github-pat]",))),
    ({"arguments": '{"password": "hunter2"}'}, {"arguments": f'{{"password": "{NAMED}"}}'}),
]

NAMES = (
    "password", "passwd", "passphrase", "passcode", "secret", "api_key", "access-key", "secretKey", "private.key",
    "signing key", "encryption_key", "account_key", "shared_key", "master_key", "auth_key", "credential", "credentials",
    "authorization", "cookie", "cookies", "token", "dbPassword", "X-Auth-Token", "GITHUB_TOKEN", "my token",
    "password_", "token .", "-secret-",
    "pass_word",    "pass-phrase", "api  key", "\u043c\u043e\u0439_token", "pass\tword", 'a "quoted" token',
)  # fmt: skip
EXACT_NAMES = (
    "pass",
    "pwd",
    "JSESSIONID",
    "PHPSESSID",
    "connect.sid",
    "ASP.NET_SessionId",
    "SharedAccessKey",
)
OTHER_NAMES = (
    "page_token", "next_token", "prev_token", "previous_token", "continuation_token", "sync_token", "cursor_token",
    "resume_token", "skip_token", "stop_token", "eos_token", "bos_token", "pad_token", "per_token", "progress_token",
    "max_token", "input_token", "output_token", "ClientRequestToken",
    "forgot_password", "reset_password", "pass_rate", "x_pass", "tokens", "key", "x" * 96 + "token",
)  # fmt: skip
CASES += [({name: "v"}, {name: NAMED}) for name in (*NAMES, *EXACT_NAMES, "x" * 95 + "token")]
CASES += [
    ({field: "Cookie", "value": "v"}, {field: "Cookie", "value": NAMED})
    for field in ("name", "key", "header")
]
CASES += [
    ([name, "v"], [name, NAMED])
    for name in (
        "Authorization",
        "Proxy-Authorization",
        "cookie",
        "Set-Cookie",
        "X-Api-Key",
        "x_auth_token",
        "Authorization" + "-" * 27,
    )
]
CASES += [
    ({"password": [1, 2.5, "x", True, None]}, {"password": [NAMED, NAMED, NAMED, True, None]}),
    ({5: TOKEN}, {5: "[redacted:github-pat]"}),
    ({"password": ("x", "y")}, {"password": (NAMED, NAMED)}),
    ({"password": "[redacted:unknown]"}, {"password": NAMED}),
    ({"password": "Bearer $TOKEN and more"}, {"password": NAMED}),
    (
        {"password": {"value": "v"}, "x": TOKEN},
        {"password": {"value": "v"}, "x": "[redacted:github-pat]"},
    ),
    ({"name": "Cookie", "value": ["v"]}, {"name": "Cookie", "value": [NAMED]}),
]

UNCHANGED: list[Any] = [
    {
        "dependencies": {"cookie": "^0.7.1"},
        "PWD": "/home/bob/project",
        "credentials": r"C:\keys\a.json",
    },
    *({name: "v"} for name in OTHER_NAMES),
    {"password": "[redacted:cookie]"},
    {"password": {"authority": "v"}},
    ["token", "v"],
    ["Authorization" + "-" * 28, "v"],
    ["Authorization", "v", "w"],
    [5, "Authorization"],
    ["x", "Authorization"],
    {"name": "page", "value": "v"},
    ["Authorization", 5],
    {"name": "Cookie", "text": "v"},
    {"name": 5, "value": "v"},
    {"password": []},
    {"password": 0},
    {"headers": [["Authorization", "Bearer ${GITHUB_TOKEN}"]], "token": "$TOKEN", "password": ""},
    {
        "properties": {"password": {"type": "string", "description": "the password"}},
        "required": ["password", "user"],
    },
    {
        "next_page_token": "CAUQAA",
        "tokens": 1200,
        "max_tokens": 5,
        "password": None,
        "secret": False,
    },
    [1, 2.5, None, True, "text", {"a": ["b", ("c",)]}],
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "password",
                    "x",
                    "token",
                    "name",
                    "value",
                    "k",
                    "pass_word",
                    "my token",
                    "ASP.NET_SessionId",
                ]
            )
            | st.text(max_size=4),
            inner,
        )
    ),
    max_leaves=20,
)


@pytest.mark.parametrize(("value", "expected"), CASES)
def test_a_named_secret_goes_whole_wherever_it_stands(value: Any, expected: Any) -> None:
    before = repr(value)
    assert shared_redactor().redact_value(value) == expected
    assert repr(value) == before
    assert shared_redactor().redact_value(expected) == expected


@pytest.mark.parametrize(("value", "expected"), CASES)
def test_encoded_json_is_called_clean_only_when_its_value_is(value: Any, expected: Any) -> None:
    assert not shared_redactor().are_clean([json.dumps(value)])


@pytest.mark.parametrize("value", UNCHANGED)
def test_a_value_without_secrets_comes_back_as_the_same_object(value: Any) -> None:
    assert shared_redactor().redact_value(value) is value


def test_any_mapping_is_an_object_and_what_json_does_not_have_is_left() -> None:
    thing = object()
    assert shared_redactor().redact_value(MappingProxyType({"password": "x", "n": 1})) == {
        "password": NAMED,
        "n": 1,
    }
    assert shared_redactor().redact_value([thing, TOKEN]) == [thing, "[redacted:github-pat]"]


def test_two_keys_that_become_equal_are_told_apart() -> None:
    other = TOKEN[:-1] + "Z"
    redacted = shared_redactor().redact_value({TOKEN: 1, other: 2})
    assert redacted == {"[redacted:github-pat]": 1, "[redacted:github-pat]#2": 2}


@pytest.mark.parametrize(
    "wrapped", [lambda value: [value], lambda value: {0: value}], ids=["lists", "objects"]
)
def test_what_is_nested_too_deeply_to_look_at_is_not_shown(wrapped: Callable[[Any], Any]) -> None:
    value: Any = TOKEN
    for _ in range(100_000):
        value = wrapped(value)
    redacted: Any = shared_redactor().redact_value(value)
    depth = 0
    while not isinstance(redacted, str):
        redacted, depth = redacted[0], depth + 1
    assert redacted == "[redacted:too-deep]"
    assert depth == 501
    while not isinstance(
        value, str
    ):  # taken apart by hand: freeing it at once would recurse as deeply
        value = value.pop(0)


def test_several_texts_come_back_as_the_same_list_when_all_are_clean() -> None:
    clean = ["repo.readonly", "rename the flag", ""]
    assert shared_redactor().redact_many(clean) is clean
    assert shared_redactor().redact_many(["a", TOKEN, "b"]) == ["a", "[redacted:github-pat]", "b"]


@given(json_values)
def test_redacting_a_value_twice_changes_nothing_more(value: Any) -> None:
    once = shared_redactor().redact_value(value)
    assert shared_redactor().redact_value(once) == once


@given(json_values)
def test_a_record_called_clean_has_a_clean_value(value: Any) -> None:
    if shared_redactor().are_clean([json.dumps(value)]):
        assert shared_redactor().redact_value(value) == value


def test_a_value_that_is_kept_later_is_a_secret_from_then_on() -> None:
    redactor = SecretRedactor({"VENDOR_KEY": "correct horse"})
    text = "x made/while-running+x, correct horse, x"
    assert redactor.redact(text) == "x made/while-running+x, [redacted:env:VENDOR_KEY], x"
    assert redactor.are_clean([text.replace("correct horse", "x")])
    assert not redactor.are_clean(['{"password": "x"}'])
    assert not redactor.are_clean(["x correct%20horse"])
    redactor.keep("a server", "made/while-running+x")
    redactor.keep("again", "made/while-running+x")
    redactor.keep("too", "short")
    redactor.keep("eight", "8-signs!")
    redactor.keep("ten", "8-signs!-2")
    assert redactor.redact("8-signs!8-signs!-2") == "[redacted:token:eight][redacted:token:ten]"
    assert redactor.redact(text) == "x [redacted:token:a_server], [redacted:env:VENDOR_KEY], x"
    assert redactor.redact("made%2Fwhile-running%2Bx short") == "[redacted:token:a_server] short"
    assert not redactor.are_clean([text])


def test_a_text_without_a_form_in_utf_8_is_redacted_like_any_other() -> None:
    lone = ["\ud800", "x"]
    assert shared_redactor().redact_many(lone) is lone
    assert shared_redactor().are_clean(["\ud800"])
    assert shared_redactor().redact(f"\ud800 {TOKEN}") == "\ud800 [redacted:github-pat]"
    assert shared_redactor().rules_in(f"\ud800 {TOKEN}") == ["github-pat"]
    assert shared_redactor().redact_value({"password": "\ud800"}) == {"password": NAMED}


def test_the_rules_that_take_something_out_are_named_once() -> None:
    more = (
        "https://bob:hunter2@example.com correct horse/battery+staple password=ab12cd34 bearer"
        " abcdefgh12345678"
    )
    assert shared_redactor().rules_in(f"{TOKEN} {TOKEN} [redacted:cookie] {more}") == [
        "bearer-token", "env:VENDOR_KEY", "github-pat", "password-assignment", "url-credentials",
    ]  # fmt: skip
    assert shared_redactor().rules_in("[redacted:github-pat]") == []


def test_only_what_is_clean_beneath_its_escapes_is_called_clean() -> None:
    assert shared_redactor().are_clean(["plain text"]) is True
    assert shared_redactor().are_clean([json.dumps({"note": "a\ttab"})]) is True
    assert shared_redactor().are_clean([json.dumps({"note": "bearer\tabcdefgh12345678"})]) is False


def test_a_placeholder_is_never_cut_by_a_value_that_looks_like_a_part_of_it() -> None:
    redactor = SecretRedactor({"ODD": "redacted:github"})
    assert (
        redactor.redact("[redacted:github-pat] redacted:github")
        == "[redacted:github-pat] [redacted:env:ODD]"
    )
    assert (
        SecretRedactor({"ODD": "redacted:env"}).redact("[redacted:env:ODD]") == "[redacted:env:ODD]"
    )
    assert (
        SecretRedactor({"ODD": "redacted:with"}).redact("[redacted:withheld]")
        == "[redacted:withheld]"
    )
    assert (
        SecretRedactor({"ODD": "redacted:too"}).redact("[redacted:too-deep]")
        == "[redacted:too-deep]"
    )
    kept = SecretRedactor()
    kept.keep("odd", "redacted:token")
    assert (
        kept.redact("[redacted:token:odd] redacted:token")
        == "[redacted:token:odd] [redacted:token:odd]"
    )


def test_a_text_that_was_clean_before_is_looked_at_again_once_its_value_is_a_secret() -> None:
    redactor, texts = SecretRedactor(), ["run r-1", "made/while-running+x"]
    assert redactor.redact_many(texts) is texts
    redactor.keep("a server", "made/while-running+x")
    assert redactor.redact_many(texts) == ["run r-1", "[redacted:token:a_server]"]


def test_a_bounded_number_of_short_texts_is_remembered_as_clean() -> None:
    redactor = SecretRedactor()
    short, long = (
        "word " * (redaction.MAX_CLEAN_CHARACTERS // 5),
        "word " * redaction.MAX_CLEAN_CHARACTERS,
    )
    exact = short.ljust(redaction.MAX_CLEAN_CHARACTERS, ".")
    for texts, remembered in (
        ([exact, exact + ".", long], 1),
        ([f"text {n}" for n in range(1_023)], 1_024),
        (["a"], 1),
    ):
        assert redactor.redact_many(texts) is texts
        assert len(redactor._clean) == remembered  # seen nowhere else
    ones = [(f"one {n}", min(3 + n, redaction.MAX_CLEAN)) for n in range(redaction.MAX_CLEAN)]
    for text, remembered in ((long, 1), (exact + ".", 1), (exact, 2), *ones):
        assert redactor.redact(text) is text
        assert len(redactor._clean) == remembered


def test_long_texts_are_redacted_once_and_a_bounded_number_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their values as JSON are none the cleaner for it."""
    monkeypatch.setattr(redaction, "MAX_LONG_CHARACTERS", 8 * redaction.LONG_CHARACTERS)
    redactor, filling = SecretRedactor(), "x = 1; " * (redaction.LONG_CHARACTERS // 7)
    fits, too_short, too_long = (
        f"{TOKEN} {filling}",
        f"{TOKEN} {filling}"[:30_000],
        f"{TOKEN} " + filling * 2,
    )
    settled = [redactor.redact(text) for text in (fits, too_short, too_long)]
    assert list(redactor._settled) == settled[:1]  # seen nowhere else
    assert redactor.redact(settled[0]) is settled[0]
    assert redactor.redact_many(settled[:1] * 2) == settled[:1] * 2
    for number in range(20):
        redactor.redact(f"{filling} {number}")
    assert sum(map(len, redactor._settled)) <= redaction.MAX_LONG_CHARACTERS < 21 * len(filling)
    named = json.dumps({"password": "hunter2hunter2", "note": filling})
    redactor.redact(named)
    assert not redactor.are_clean([named])
    redactor.keep("endpoint", "x = 1; x = 1")
    assert redactor.redact(settled[0]) != settled[0]


def test_a_given_value_that_is_kept_too_stays_named_after_its_variable() -> None:
    redactor = SecretRedactor({"VENDOR_KEY": "correct horse"})
    redactor.keep("again", "correct horse")
    assert redactor.redact("correct horse") == "[redacted:env:VENDOR_KEY]"


def test_what_does_not_settle_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "MAX_PASSES", 0)
    assert shared_redactor().redact(f"x {TOKEN}") == "[redacted:withheld]"


def test_kept_values_are_bounded_and_what_was_redacted_by_them_stays_redacted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redaction, "MAX_KEPT", 4)
    redactor = SecretRedactor({"KEY": "a-configured-value"})
    made = [f"token-number-{number:04}-of-many" for number in range(6)]
    redactor.keep("first", made[0])
    once = redactor.redact(f"<{made[0]}>")
    for value in made[1:]:
        redactor.keep("later", value)
    redactor.keep("given", "a-configured-value")
    assert [redactor.redact(value) == value for value in made[:3]] == [
        True,
        True,
        False,
    ], "the oldest are forgotten"
    assert all(redactor.redact(value) == "[redacted:token:later]" for value in made[-4:])
    assert redactor.redact(once) == once == "<[redacted:token:first]>"


def test_values_that_begin_alike_are_told_apart_and_their_beginning_alone_is_no_secret() -> None:
    redactor, beginning = (
        SecretRedactor({"KEY": "a-configured-value"}),
        "the-beginning-of-all-these-values-of-one-issuer-",
    )
    for number in range(3):
        redactor.keep(f"n{number}", f"{beginning}{number}")
    assert (
        redactor.redact(f"{beginning}1, {beginning}2") == "[redacted:token:n1], [redacted:token:n2]"
    )
    for harmless in (beginning, f"{beginning}x"):
        assert redactor.redact(harmless) is harmless
        assert redactor.redact(f"{harmless} {TOKEN}") == f"{harmless} [redacted:github-pat]"
    escaped = f"{beginning}0".replace("-", r"\u002d")
    assert (
        redactor.redact(f"a-configured-value {escaped}") == "[redacted:env:KEY] [redacted:token:n0]"
    )


def test_of_a_very_long_value_the_head_is_looked_for() -> None:
    redactor = SecretRedactor()
    value = "".join(f"{number:x}" for number in range(2_000))
    redactor.keep("long", value)
    assert value[:256] not in redactor.redact(f"it is {value}.")
    assert redactor.redact(f"it is {value[:256]}.") == "it is [redacted:token:long]."


def test_a_redactor_whose_first_kept_value_is_too_short_to_look_for_works_as_before() -> None:
    redactor = SecretRedactor()
    redactor.keep("too", "short")
    assert redactor.redact(f"short {TOKEN}") == "short [redacted:github-pat]"


# --- what is not looked at again ------------------------------------------------------------------


def looks(work: Callable[[], object]) -> int:
    """How often an automaton looked at a text in it."""
    counted = 0

    def count(_frame: object, event: str, called: Any) -> None:
        nonlocal counted
        counted += event == "c_call" and getattr(called, "__name__", "") == "Match"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return counted


@pytest.mark.parametrize(
    ("characters", "is_remembered"),
    [
        (1_024, True),
        (1_025, False),
        (32_767, False),
        (32_768, True),
        (2_097_151, True),
        (2_097_152, False),
    ],
)
def test_short_and_long_texts_that_were_redacted_are_not_looked_at_again(
    characters: int, is_remembered: bool
) -> None:
    redactor, text = SecretRedactor(), "a word " * 300_000
    assert looks(lambda: redactor.redact(text[:characters])) > 0
    assert (looks(lambda: redactor.redact(text[:characters])) == 0) == is_remembered
    assert (looks(lambda: redactor.redact_many([text[:characters]])) == 0) == is_remembered
    redactor.keep("s", "a word of mine")
    assert looks(lambda: redactor.redact(text[:characters])) > 0


def test_long_texts_of_eight_mib_are_remembered_and_the_oldest_is_forgotten() -> None:
    redactor = SecretRedactor()
    texts = [
        f"{n}{' a word' * 300_000}"[:size]
        for n, size in enumerate([2_000_000] * 3 + [1_388_608, 1_000_000])
    ]
    for text in texts:
        redactor.redact(text)
    assert [looks(lambda: redactor.redact(text)) for text in texts] == [0] * 5  # noqa: B023 - called at once
    redactor.redact("another word " * 4_000)
    assert [looks(lambda: redactor.redact(text)) > 0 for text in texts[1:]] == [False] * 4  # noqa: B023
    assert looks(lambda: redactor.redact(texts[0])) > 0


def test_a_long_text_among_others_is_redacted_before_it_is_remembered() -> None:
    redactor, text = SecretRedactor(), f"{'a word ' * 6_000} ghp_{'0aB1' * 9}"
    (redacted,) = redactor.redact_many([text])
    assert "[redacted:" in redacted
    assert redactor.redact_many([redacted]) == [redacted]


def test_what_is_clean_as_text_and_not_as_a_value_is_not_called_clean_afterwards() -> None:
    redactor, text = SecretRedactor(), '{"password": [12345678]}'
    assert redactor.redact(text) is text
    assert not redactor.are_clean([text])
    assert redactor.redact_value(json.loads(text)) != json.loads(text)


@pytest.mark.parametrize("end", ["", " y", " \N{LATIN SMALL LETTER E WITH ACUTE}", "\N{EURO SIGN}"])
def test_a_group_that_took_no_part_changes_nothing_at_the_end_of_the_text(end: str) -> None:
    text = f"cookies = {{'a': 'hunter2xyz'}}\nPASSWORD=hunter2abc\n{end}"
    redacted = SecretRedactor().redact(text)
    assert redacted.startswith(
        "cookies = {'a': '[redacted:cookie-object]'}\nPASSWORD=[redacted:environment-assignment]"
    )
    assert redacted.endswith(f"\n{end}")


def test_two_lines_beneath_escapes_are_not_yet_folded_base64() -> None:
    assert SecretRedactor().are_clean([r'{"note": "abcdefghijkl\nmnopqrstuvwxyz"}'])


def test_what_no_value_was_kept_of_is_redacted_after_one_was_kept() -> None:
    redactor = SecretRedactor()
    redactor.keep("server", "opaque-value-of-a-server")
    assert redactor.redact(f"x {TOKEN}") == "x [redacted:github-pat]"
    assert redactor.redact("x opaque-value-of-a-server") == "x [redacted:token:server]"
    assert redactor.redact(r"x opaque\u002dvalue-of-a-server") == "x [redacted:token:server]"
