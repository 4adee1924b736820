"""What holds for every text: redacting twice changes nothing more, nothing raises, nothing but
secrets is lost.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from urllib.parse import quote

from bundle_router.adapters.redaction import SecretRedactor
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples

TOKEN = "ghp_" + "aB3dE5gH7" * 4
KEY = "brk_" + "aB3dE5g" * 6 + "-"
VALUE = "correct horse/battery+staple"


@cache
def shared_redactor() -> SecretRedactor:
    """Return the one of this file, made by the test that first asks: a mutant is in place by
    then.
    """
    return SecretRedactor({"VENDOR_KEY": VALUE, "ODD": "redacted:e", "UTF": "ключ-от-двери"})


fragments = st.sampled_from(
    [
        TOKEN,
        VALUE,
        "ключ-от-двери",
        "redacted:e",
        "[redacted:github-pat]",
        "[redacted:env:VENDOR_KEY]",
        "[redacted:",
        "]",
        "Authorization: ",
        "Bearer ",
        "Basic ",
        "Digest ",
        "response=",
        "Cookie: a=",
        "; b=",
        "password",
        "api_key",
        "://u:",
        "postgresql",
        "@host/",
        "?access_token=",
        "&x=",
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----END RSA PRIVATE KEY-----",
        "curl ",
        " -u ",
        " -H ",
        "kind: Secret\ndata:\n  a: ",
        "c2VjcmV0LXNlY3JldA==",
        "q7T9xV2mK4pL8nR3wZ6s",
        base64.b64encode(f"x {TOKEN}".encode()).decode(),
        quote(f"Authorization: Bearer {TOKEN}"),
        '"',
        "'",
        "\\",
        ": ",
        "=",
        ",",
        "\n",
        " ",
        "é",
        "\ud800",
    ]
)
texts = st.lists(fragments | st.text(max_size=6), max_size=14).map("".join)


@examples(600)
@given(texts)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = shared_redactor().redact(text)
    assert shared_redactor().redact(once) == once


@examples(300)
@given(texts)
def test_a_known_token_never_survives(text: str) -> None:
    assert TOKEN not in shared_redactor().redact(f"{text} {TOKEN} {text}")
    for before in ("\n", "\t", "ключ", "令牌"):  # what is a word by its escape is none by itself
        assert KEY not in shared_redactor().redact(json.dumps(f"{text}{before}{KEY}\n{text}"))


@given(st.text(st.characters(), max_size=200))
def test_any_text_can_be_redacted_and_called_clean_only_when_it_is(text: str) -> None:
    redacted = shared_redactor().redact(text)
    if shared_redactor().are_clean([text]):
        assert redacted is text


@given(st.text(st.characters(exclude_characters="[]"), max_size=40), st.text(max_size=40))
def test_text_around_a_token_is_kept(before: str, after: str) -> None:
    text = f"{before} \n {TOKEN} \n {after}"
    if (
        shared_redactor().are_clean([before])
        and shared_redactor().are_clean([after])
        and shared_redactor().are_clean([f"{before} \n . \n {after}"])
    ):
        assert shared_redactor().redact(text) == f"{before} \n [redacted:github-pat] \n {after}"


def test_a_megabyte_of_hits_keeps_what_stands_between_them() -> None:
    line = f"step {TOKEN} done\n"
    text = line * (1_000_000 // len(line))
    assert shared_redactor().redact(text) == text.replace(TOKEN, "[redacted:github-pat]")
