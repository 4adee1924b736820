"""Who is let in, and as whom, by the head of a request alone: each rule of the gate with what it
refuses beside it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bundle_router.errors import RequestError, StorageError
from bundle_router.service.address import ServiceAddress
from bundle_router.service.gate import Admission, judge, values_of
from bundle_router.service.keys import MAX_FOUND, NOBODY, Caller, Keys, NamedToken, run_tag
from bundle_router.service.refusals import Refusal
from bundle_router.service.tokens import MAX_BYTES, AccessTokens

KEY = "the-endpoints-own-token-which-is-long-enough"
ALICE = "a-token-of-alice-that-nobody-else-would-guess"
OLD = "a-token-that-has-ended-and-counts-no-more-now"
BEGUN, ANEW = run_tag("r.0f3a.1"), run_tag("r.77aa.1")


def named(token: str, name: str, *scopes: Any, expires: float | None = None) -> NamedToken:
    return NamedToken(
        hashlib.sha256(token.encode()).digest(), Caller(name, frozenset(scopes), name), expires
    )


KEYS = Keys(
    KEY,
    [
        named(ALICE, "alice", "review", expires=time.time() + 3600),
        named(OLD, "old", "review", expires=1.0),
    ],
)
BROWSER = Caller("browser", frozenset(("review",)))
Head = list[tuple[bytes, bytes]]


def admission(address: ServiceAddress | None = None) -> Admission:
    own = (address or ServiceAddress()).own_names(8000)
    return Admission(
        own,
        KEYS,
        frozenset((b"/healthz",)),
        frozenset((b"/healthz",)),
        lambda headers: BROWSER if values_of(headers, b"cookie") == [b"own"] else None,
    )


def head(token: str | None = KEY, *more: tuple[str, str], host: str = "127.0.0.1:8000") -> Head:
    rows = [("host", host), *([("authorization", f"Bearer {token}")] if token else []), *more]
    return [(name.encode(), value.encode()) for name, value in rows]


def asks(path: str, headers: Head, by: Admission | None = None) -> Caller | str:
    found = judge(path.encode(), headers, by or admission())
    return found.code if isinstance(found, Refusal) else found


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (head(host="127.0.0.1:8000.evil.example"), "wrong_host"),
        (head(host="127.0.0.1:80"), "wrong_host"),
        (head()[1:], "wrong_host"),
        (head(KEY, ("host", "127.0.0.1:8000")), "wrong_host"),
        (head(KEY, ("host", "evil.example")), "wrong_host"),
        (head(KEY, ("origin", "http://evil.example")), "wrong_origin"),
        (head(KEY, ("origin", "http://127.0.0.1:8000.evil.example")), "wrong_origin"),
        (head(KEY, ("origin", "https://127.0.0.1:8000")), "wrong_origin"),
        (head(KEY, ("origin", "null")), "wrong_origin"),
        (head(KEY, *[("origin", "http://127.0.0.1:8000")] * 2), "wrong_origin"),
        (head(KEY, ("sec-fetch-site", "cross-site")), "wrong_origin"),
        (head(KEY, ("sec-fetch-site", "same-site")), "wrong_origin"),
        (head(KEY, ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")), "wrong_origin"),
        (head(None, ("authorization", f"Basic {KEY}")), "unauthorized"),
        (head(None, ("authorization", f"Bearer {KEY} more")), "unauthorized"),
        (head(KEY, ("authorization", f"Bearer {KEY}")), "unauthorized"),
        (head(None), "unauthorized"),
        (head(OLD), "unauthorized"),
        (head(KEY[:-1]), "unauthorized"),
    ],
)  # fmt: skip
def test_a_stranger_is_refused_wherever_it_knocks(headers: Head, code: str) -> None:
    assert [asks(path, headers) for path in ("/v1/runs", "/mcp/runs/r", "/")] == [code] * 3
    is_address = headers[0] == (b"host", b"127.0.0.1:80")  # of which a probe may make use
    assert asks("/healthz", headers) == (NOBODY if is_address or code == "unauthorized" else code)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_read_in_any_case(scheme: str) -> None:
    assert asks("/v1/runs", head(None, ("authorization", f"{scheme} {KEY}"))) == Caller()


def test_the_services_own_names_and_pages_are_let_in() -> None:
    for more in ((), (("origin", "http://localhost:8000"),), (("sec-fetch-site", "none"),)):
        assert asks("/v1/runs", head(KEY, *more, host="localhost:8000")) == Caller()
    found = asks("/v1/runs", head(ALICE))
    assert found == Caller("alice", frozenset(("review",)), "alice")


@pytest.mark.parametrize(
    ("address", "host", "origin", "code"),
    [
        (ServiceAddress(names=("r.example",)), "r.example", "http://r.example", None),
        (ServiceAddress(names=("r.example",)), "r.example", "https://r.example", "wrong_origin"),
        (ServiceAddress(names=("r.example",)), "r.example:8000", "http://r.example:8000", None),
        (
            ServiceAddress(names=("r.example:1",)),
            "r.example:8000",
            "http://r.example:1",
            "wrong_host",
        ),
        (
            ServiceAddress(certificate="c", private_key="k"),
            "127.0.0.1:8000",
            "https://127.0.0.1:8000",
            None,
        ),
        (
            ServiceAddress(certificate="c", private_key="k"),
            "127.0.0.1:8000",
            "http://127.0.0.1:8000",
            "wrong_origin",
        ),
        (
            ServiceAddress(names=("r.example",), without_tls=True),
            "r.example",
            "https://r.example",
            None,
        ),
        (ServiceAddress("0.0.0.0"), "0.0.0.0:8000", "http://0.0.0.0:8000", "wrong_host"),
        (ServiceAddress("::"), "[::]:8000", "http://[::]:8000", "wrong_host"),
        (ServiceAddress("::1"), "[::1]:8000", "http://[::1]:8000", None),
    ],
)
def test_the_names_of_an_address_are_its_own(
    address: ServiceAddress, host: str, origin: str, code: str | None
) -> None:
    assert asks("/v1/runs", head(KEY, ("origin", origin), host=host), admission(address)) == (
        code or Caller()
    )


def test_a_runs_token_opens_its_run_and_a_decisions_token_that_decision_of_it() -> None:
    """Asked in every order, since what was found right is remembered."""
    tokens = {(run, decision, begun): KEYS.token_for_run(run, begun, decision)
              for run in ("r", "rr") for decision in (None, "r.1", "r.2") for begun in (BEGUN, ANEW)}  # fmt: skip
    assert len({*tokens.values()}) == len(tokens)
    places = {f"/mcp/runs/{run}" + (f"/decisions/{at}" if at else ""): (run, at)
              for run in ("r", "rr") for at in (None, "r.1", "r.2")}  # fmt: skip
    for _ in range(2):
        for (run, decision, first), token in tokens.items():
            own = Caller("run", frozenset(("call",)), run_id=run, begun=first)
            for path, (to, at) in places.items():
                is_right = run == to and decision in (None, at)
                assert asks(path, head(token)) == (own if is_right else "unauthorized"), (
                    run,
                    decision,
                    path,
                )
            for path in (
                "/mcp",
                "/v1/runs",
                "/mcp/runs/r/x",
                "/mcp/runs/r/decisions/",
                "/mcp/runs/%72",
                "/mcp/runs/r\n",
            ):
                assert asks(path, head(token)) == "unauthorized"
    assert KEYS.token_for_run("r", BEGUN, "1") != KEYS.token_for_run(
        "r1", BEGUN
    )  # run and decision are told apart


def test_what_tells_a_run_from_another_of_its_id_is_alike_for_its_decisions_and_sealed_in_its_token() -> (
    None
):
    assert run_tag("r.0f3a.1") == run_tag("r.0f3a.27") != run_tag("r.77aa.1")
    assert run_tag("a.b.0f3a.1") != run_tag("a.b.77aa.1")  # ids of runs may hold points
    for old in (KEYS.token_for_run("r", BEGUN), KEYS.token_for_run("r", BEGUN, "r.1")):
        forged = (
            base64.urlsafe_b64encode(ANEW + base64.urlsafe_b64decode(old[4:] + "=")[4:])
            .decode()
            .rstrip("=")
        )
        assert asks("/mcp/runs/r/decisions/r.1", head(f"brk_{forged}")) == "unauthorized"


def test_a_token_of_the_file_is_no_runs_token_whatever_it_looks_like() -> None:
    """Who may write a run's token into the file makes it what the file says."""
    token = KEYS.token_for_run("r", BEGUN)
    listed = Keys(
        KEY,
        [
            named(token, "bob", "review"),
            named(KEYS.token_for_run("s", BEGUN), "old", "call", expires=1.0),
        ],
    )
    by = Admission(admission().names, listed)
    found = asks("/mcp/runs/r", head(token), by)
    assert isinstance(found, Caller)
    assert found.name == "bob"
    assert asks("/mcp/runs/s", head(KEYS.token_for_run("s", BEGUN)), by) == "unauthorized"


def test_a_token_ends_at_its_time_although_it_was_right_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = Keys(KEY, [named(ALICE, "alice", "review", expires=1_000.0)])
    for now, is_right in ((999.0, True), (1_000.0, False), (1_001.0, False)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert (keys.caller(ALICE.encode(), None) is not None) is is_right


def test_a_bounded_number_of_right_tokens_is_remembered() -> None:
    keys = Keys(KEY)
    for number in range(MAX_FOUND + 5):
        assert keys.caller(KEY.encode(), f"r{number}") == Caller()
    assert len(keys._found) == 5  # seen nowhere else


def test_a_cookie_is_for_pages_alone_and_who_has_none_is_led_to_sign_in() -> None:
    own, page = ("cookie", "own"), ("accept", "text/html")
    assert asks("/runs", head(None, own)) == BROWSER
    for path in ("/v1/runs", "/mcp", "/mcp/runs/r", "/metrics", "/openapi.json"):
        assert asks(path, head(None, own, page)) == "unauthorized"
    for path, back in (
        ("/runs/r", b"?to=/runs/r"),
        ("/", b""),
        ("//evil.example", b""),
        ("/a/../b", b""),
    ):
        found = judge(path.encode(), head(None, page), admission())
        assert isinstance(found, Refusal)
        assert (found.status, dict(found.headers)[b"location"]) == (303, b"/sign-in" + back)
    assert asks("/healthz", head(None, page)) == NOBODY


@pytest.mark.parametrize(
    "key", ["a" * 31, "a" * 513, "a" * 32 + " b", "a" * 32 + "\n", "=" + "a" * 40]
)
def test_a_key_is_long_enough_and_of_a_tokens_letters(key: str) -> None:
    with pytest.raises(RequestError, match="holds no token"):
        Keys(key)


ENTRY = f"[tokens.a]\nsha256 = '{'0' * 64}'\nscopes = ['call', 'review']\n"


def test_a_token_file_says_all_of_a_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(
        ENTRY + "principal = 'ann'\nrole = 'reviewer'\nexpires = 2027-01-31T00:00:00Z\n"
    )
    path.chmod(0o600)
    (row,) = AccessTokens(path).read()
    assert row.caller == Caller("a", frozenset(("call", "review")), "ann", "reviewer")
    assert (row.digest, row.expires) == (bytes(32), datetime(2027, 1, 31, tzinfo=UTC).timestamp())


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_token_file_that_anybody_else_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(ENTRY)
    path.chmod(mode)
    with pytest.raises(RequestError, match="written by others"):
        AccessTokens(path).read()


def test_only_a_file_of_bounded_size_is_a_token_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(ENTRY + "#" * (MAX_BYTES - len(ENTRY)))
    path.chmod(0o600)
    assert len(AccessTokens(path).read()) == 1
    with path.open("a", encoding="utf-8") as file:
        file.write("#")
    with pytest.raises(RequestError, match="is not a file of tokens"):
        AccessTokens(path).read()
    with pytest.raises(RequestError, match="is not a file of tokens"):
        AccessTokens("/dev/null").read()


def test_a_file_without_a_token_says_how_it_gets_one_and_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.touch(0o600)
    with pytest.raises(RequestError, match="names no token yet") as refused:
        AccessTokens(path).read()
    assert "bundle-router token NAME" in refused.value.advice
    AccessTokens(path).add("a", ["call"])
    assert [row.caller.name for row in AccessTokens(path).read()] == ["a"]


def test_a_token_is_not_added_through_a_link_and_another_file_of_the_name_is_noticed(
    tmp_path: Path,
) -> None:
    path, aim = tmp_path / "tokens.toml", tmp_path / "aim"
    path.symlink_to(aim)
    with pytest.raises(StorageError):
        AccessTokens(path).add("a", ["call"])
    assert not aim.exists()
    path.unlink()
    tokens = AccessTokens(path)
    tokens.add("a", ["call"])
    tokens.read()
    status = path.stat()
    (tmp_path / "other").write_bytes(path.read_bytes().replace(b'"call"', b'"edit"'))
    os.utime(tmp_path / "other", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not tokens.has_changed()
    (tmp_path / "other").replace(path)
    assert tokens.has_changed()


NAMED = ServiceAddress(names=("tools.example.org",), without_tls=True)


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("tools.example.org", True),
        ("TOOLS.Example.ORG", True),
        ("tools.example.org.", True),
        ("tools.example.org:443", True),
        ("tools.example.org:80", True),
        ("Tools.example.org.:443", True),
        ("127.0.0.1:8000", True),
        ("LOCALHOST:8000", True),
        ("tools.example.org..", False),
        ("tools.example.org:8000", True),
        ("tools.example.org:8001", False),
        ("tools.example.org:443:443", False),
        ("tools.example.org:443@evil.example", False),
        ("tools.example.org:", False),
        ("tools.example.org:0443", False),
        (".tools.example.org", False),
        ("evil.example", False),
        ("", False),
    ],
)
def test_a_host_has_no_case_no_last_dot_and_a_default_port_or_the_services(
    host: str, is_own: bool
) -> None:
    answer = asks("/v1/runs", head(host=host), admission(NAMED))
    assert (answer != "wrong_host") == is_own


def test_port_80_is_no_default_port_of_a_service_with_tls() -> None:
    names = ServiceAddress(
        names=("tools.example.org",), certificate="cert", private_key="key"
    ).own_names(8000)
    assert names.answer_to(b"tools.example.org:443")
    assert not names.answer_to(b"tools.example.org:80")


@pytest.mark.parametrize(
    ("path", "host", "code"),
    [
        ("/healthz", "10.0.0.7:8000", None),
        ("/healthz", "10.0.0.7", None),
        ("/healthz", "[fd00::7]:8000", None),
        ("/healthz", "pod.evil.example:8000", "wrong_host"),
        ("/healthz", "10.0.0.7.evil.example", "wrong_host"),
        ("/healthz", "", "wrong_host"),
        ("/v1/runs", "10.0.0.7:8000", "wrong_host"),
    ],
)
def test_a_probe_may_call_the_service_by_an_address(path: str, host: str, code: str | None) -> None:
    answer = asks(path, head(None, host=host), admission(NAMED))
    assert answer == (code or NOBODY)
