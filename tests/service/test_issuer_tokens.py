"""Access tokens of an issuer, over HTTP against a scripted one: who is let in, as whom, and every
reason why not.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from bundle_router.adapters import issuer_tokens
from bundle_router.core.catalog.settings import IssuerSettings
from bundle_router.core.values.issued_tokens import IssuedToken
from bundle_router.errors import ConfigError
from bundle_router.service import issuer as callers

from tests.ports import free_port

jwt = pytest.importorskip("jwt", reason="the service needs the 'service' extra")
pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")

AUDIENCE: Final = "https://router.example/mcp"
STEP: Final = {"run_id": "of-ann", "workflow": "w", "role": "r", "step": "some"}
NOT_TO_BE_HAD: Final = "The token can't be checked now: the issuer's keys are not to be had."


@cache
def private_key(name: str) -> Any:
    """A key by its name, which is the id that it is published under."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if name.startswith("ec"):
        return ec.generate_private_key(ec.SECP256R1())
    if name.startswith("ed"):
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(65_537, 1_024 if name == "short" else 2_048)


def public_row(name: str, **more: Any) -> dict[str, Any]:
    algorithm = {"ec": "ES256", "ed": "EdDSA"}.get(name[:2], "RS256")
    row = jwt.get_algorithm_by_name(algorithm).to_jwk(private_key(name).public_key(), as_dict=True)
    return {"kid": name, **row, **more}


class ScriptedIssuer:
    """An issuer on loopback: its keys, the facts about itself, and tokens for who has a secret."""

    def __init__(self) -> None:
        self.rows = [public_row("one")]
        self.mood = "ok"
        self.asked: list[str] = []
        self.is_slow = asyncio.Event()
        """Whether somebody waits for its keys."""
        self.may_answer = asyncio.Event()
        """Whether they are sent to who waits."""
        self.url = ""
        self._redirects: dict[str, str] = {}
        """Where each registered client is led back to."""
        self._codes: dict[str, dict[str, str]] = {}
        """Codes that were not exchanged yet, each with what it was asked for with."""

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[ScriptedIssuer]:
        tasks: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    await self._answer(reader, writer)
            finally:
                tasks.discard(task)
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            under_way = [*tasks]
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            await server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [line for line in head.lower().split("\r\n") if line.startswith("content-length")]
        sent = b""
        if lengths:
            sent = await reader.readexactly(int(lengths[0].partition(":")[2]))
        path, _, query = head.split(" ")[1].partition("?")
        self.asked.append(path)
        status, more, body = self._page(path, query, sent)
        if path == "/keys" and self.mood == "slow":
            self.is_slow.set()
            await self.may_answer.wait()
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", *more]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()

    def _page(self, path: str, query: str, sent: bytes) -> tuple[int, list[str], bytes]:
        is_json = ["Content-Type: application/json"]
        if path == "/keys":
            return self._keys()
        if path == "/authorize":
            return 302, [f"Location: {self._permitted(dict(parse_qsl(query)))}"], b""
        if path == "/register":
            client = json.loads(sent)
            (self._redirects["browser"],) = client["redirect_uris"]
            return 201, is_json, json.dumps({**client, "client_id": "browser"}).encode()
        if path == "/token":
            fields = dict(parse_qsl(sent.decode()))
            if fields["grant_type"] == "authorization_code":
                issued = self._exchanged(fields)
            else:
                issued = self.token()
            answer: dict[str, Any] = {"access_token": issued, "token_type": "Bearer"}
        elif path.startswith("/.well-known/"):
            answer = {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "registration_endpoint": f"{self.url}/register",
                "response_types_supported": ["code"],
                "grant_types_supported": ["client_credentials", "authorization_code"],
                "code_challenge_methods_supported": ["S256"],
            }
        else:
            return 404, [], b""
        return 200, is_json, json.dumps(answer).encode()

    def _permitted(self, asked: dict[str, str]) -> str:
        """Permit what a client asks for, as the person before the browser does; return where the
        browser is led.
        """
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        assert asked["redirect_uri"] == self._redirects[asked["client_id"]]
        code = f"code-{len(self.asked)}"
        self._codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def _exchanged(self, fields: dict[str, str]) -> str:
        """Return the token for a code, which is good once and for who asked for it."""
        asked = self._codes.pop(fields["code"])
        digest = hashlib.sha256(fields["code_verifier"].encode()).digest()
        assert asked["code_challenge"] == _part(digest)
        for name in ("client_id", "redirect_uri", "resource"):
            assert fields[name] == asked[name], name
        return self.token(aud=asked["resource"], scope=asked["scope"])

    def _keys(self) -> tuple[int, list[str], bytes]:
        if self.mood == "failing":
            return 500, [], b""
        if self.mood == "redirected":
            return 302, [f"Location: {self.url}/elsewhere"], b""
        body = json.dumps({"keys": self.rows}).encode()
        if self.mood == "no JSON":
            body = b"<html>"
        elif self.mood == "no keys":
            body = b'{"keys": [7, {"kty": "oct", "kid": "one", "k": "AAAA"}]}'
        elif self.mood == "huge":
            body += b" " * issuer_tokens.MAX_BYTES
        elif self.mood == "short":
            body = json.dumps({"keys": [public_row("short") | {"kid": "one"}]}).encode()
        return 200, [], body

    def claims(self, **more: Any) -> dict[str, Any]:
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ann",
            "job": "r",
            "scope": "openid router.route router.call router.edit",
            "exp": time.time() + 600,
            **more,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(
        self, *, key: str = "one", algorithm: str = "RS256", head: Any = None, **more: Any
    ) -> str:
        """A token of these claims (None: without); its head names `key`."""
        heads = {"kid": key, **(head or {})}
        signed = jwt.encode(self.claims(**more), private_key(key), algorithm, headers=heads)
        return str(signed)

    def forged(self, algorithm: str, **more: Any) -> str:
        """A token without a signature, or with one by the public key as a shared secret."""
        head = {"alg": algorithm, "typ": "JWT", "kid": "one"}
        parts = [_part(json.dumps(part).encode()) for part in (head, self.claims(**more))]
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        public = private_key("one").public_key()
        secret = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        text = ".".join(parts)
        mac = b"" if algorithm == "none" else hmac.digest(secret, text.encode(), hashlib.sha256)
        return f"{text}.{_part(mac)}"

    def config(self, **more: Any) -> str:
        values = {
            "issuer": self.url,
            "audience": AUDIENCE,
            "keys": f"{self.url}/keys",
            "role": "job",
            "scope_prefix": "router.",
            **more,
        }
        lines = [
            f"{name} = {json.dumps(value)}" for name, value in values.items() if value is not None
        ]
        return "\n".join(["[service.issuer]", *lines, ""])


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def serve(site: Any, work: Any, *, own_audience: bool = False, **config: Any) -> None:
    """Run the work beside a service that takes the tokens of a scripted issuer, with its own
    address as their audience, or a fixed one.
    """
    from bundle_router.service import serve as begin

    async def main() -> None:
        async with ScriptedIssuer().serve() as issuer:
            port = 0
            if own_audience:
                port = free_port()
                config["audience"] = f"http://127.0.0.1:{port}/mcp"
            (site.folder / "config" / "router.toml").write_text(issuer.config(**config))
            async with site.open() as router, begin(router, port=port) as endpoint:
                await work(issuer, router, endpoint)

    asyncio.run(asyncio.wait_for(main(), 300))


async def ask(site: Any, endpoint: Any, token: str, *, path: str = "/v1/bundles") -> Any:
    async with site.http(endpoint, token=token) as http:
        return await http.get(path)


def test_a_token_is_let_in_as_its_principal_with_its_scopes_and_role(site: Any) -> None:
    async def work(issuer: ScriptedIssuer, router: Any, endpoint: Any) -> None:
        ann, bob = issuer.token(), issuer.token(sub="bob")
        async with site.http(endpoint, token=ann) as http:
            routed = await http.post("/v1/route", json=STEP)
            assert routed.status_code == 200, routed.text
            call = {"name": "kit.echo", "arguments": {"text": "hello"}}
            called = await http.post("/v1/runs/of-ann/call", json=call)
            assert called.json()["text"] == "said hello"
            other = await http.post("/v1/route", json={**STEP, "principal": "bob"})
            assert other.json()["code"] == "wrong_principal"
            pages = await http.get("/v1/runs")
            assert pages.status_code == 403, "no token of an issuer opens what shows all runs"
        assert (await ask(site, endpoint, bob, path="/v1/runs/of-ann/tools")).status_code == 404
        reader = issuer.token(scope=["router.call", "other.route"])
        assert (await ask(site, endpoint, reader)).json()["code"] == "forbidden"
        assert issuer.asked == ["/keys"], "keys are kept"
        assert (await ask(site, endpoint, endpoint.key)).status_code == 200, "as before"

    serve(site, work)
    assert site.records("of-ann", "routing.jsonl")[0]["principal"] == "ann"


def refused(issuer: ScriptedIssuer, now: float) -> Mapping[str, tuple[str, str]]:
    """Tokens that are not taken, each with the reason that is given."""
    signature = "is not signed by the issuer"
    not_permitted = "is signed in a way that is not permitted here"
    malformed = "is no signed token"
    good = issuer.token()
    head, claims, signed = good.split(".")
    return {
        "expired": (issuer.token(exp=now - 60), "has expired"),
        "not yet": (issuer.token(nbf=now + 60), "is not valid yet"),
        "issued in the future": (issuer.token(iat=now + 60), "is not valid yet"),
        "another issuer": (issuer.token(iss="https://evil.example"), "is of another issuer"),
        "issuer with a slash": (issuer.token(iss=f"{issuer.url}/"), "is of another issuer"),
        "another audience": (issuer.token(aud="https://x.example"), "is for another audience"),
        "audience in a longer one": (issuer.token(aud=AUDIENCE + "/x"), "is for another audience"),
        "no issuer": (issuer.token(iss=None), "has no claim 'iss'"),
        "no audience": (issuer.token(aud=None), "has no claim 'aud'"),
        "no end": (issuer.token(exp=None), "has no claim 'exp'"),
        "no principal": (issuer.token(sub=None), "has no claim 'sub'"),
        "no role": (issuer.token(job=None), "has no claim 'job'"),
        "no scope": (issuer.token(scope=None), "has no claim 'scope'"),
        "an empty principal": (issuer.token(sub=""), "has a claim 'sub' that is no name"),
        "a principal of lines": (issuer.token(sub="a\nb"), "has a claim 'sub' that is no name"),
        "a long role": (issuer.token(job="r" * 201), "has a claim 'job' that is no name"),
        "scopes of no text": (
            issuer.token(scope={"router.call": True}),
            "has a claim 'scope' that is no list of scopes",
        ),
        "an unknown key": (
            issuer.token(key="two"),
            "is signed with a key that the issuer does not have",
        ),
        "a key of another": (issuer.token(key="two", head={"kid": "one"}), signature),
        "a changed claim": (f"{head}.{_part(b'{}')}.{signed}", signature),
        "no signature": (f"{head}.{claims}.", signature),
        "alg none": (issuer.forged("none"), not_permitted),
        "HS256 with the public key": (issuer.forged("HS256"), not_permitted),
        "an algorithm that is not listed": (issuer.token(algorithm="RS512"), not_permitted),
        "an algorithm of another kind of key": (
            issuer.token(key="ec", algorithm="ES256", head={"kid": "one"}),
            not_permitted,
        ),
        "an unknown extension": (issuer.token(head={"crit": ["x"], "x": 1}), malformed),
        "a time that is none": (issuer.token(exp="never"), malformed),
        "an end as text": (
            issuer.token(exp=f" {now + 600:.0f}\n"),
            "has a claim 'exp' that is no number",
        ),
        "a begin that is true": (
            issuer.token(nbf=True),
            "has a claim 'nbf' that is no number",
        ),
        "issued at a text": (
            issuer.token(iat=f"{now:.0f}"),
            "has a claim 'iat' that is no number",
        ),
        "a principal that looks like another": (
            issuer.token(sub="ann "),
            "has a claim 'sub' that is no name",
        ),
        "a principal of blanks": (issuer.token(sub=" "), "has a claim 'sub' that is no name"),
        "a principal written backwards": (
            issuer.token(sub="\u202enna"),
            "has a claim 'sub' that is no name",
        ),
        "a role with a blank before it": (
            issuer.token(job=" r"),
            "has a claim 'job' that is no name",
        ),
        "a key in its own head": (
            issuer.token(key="two", head={"jwk": public_row("two"), "jku": f"{issuer.url}/evil"}),
            "is signed with a key that the issuer does not have",
        ),
        "audiences around ours": (issuer.token(aud=[[AUDIENCE]]), "is for another audience"),
        "no text": ("a.b.c", malformed),
        "a head that nests": (f"{_part(b'[' * 5_000)}.a.b", malformed),
    }


def test_each_token_that_does_not_hold_is_refused_with_its_reason(site: Any) -> None:
    async def work(issuer: ScriptedIssuer, router: Any, endpoint: Any) -> None:
        metadata = f"{endpoint.base}/.well-known/oauth-protected-resource/mcp"
        assert (await ask(site, endpoint, issuer.token())).status_code == 200
        for name, (token, reason) in refused(issuer, time.time()).items():
            answer = await ask(site, endpoint, token)
            assert answer.status_code == 401, name
            assert answer.json()["detail"] == f"The token {reason}.", name
            assert answer.json()["advice"].startswith("get a token of http://127.0.0.1:"), name
            assert answer.headers["www-authenticate"] == (
                f'Bearer resource_metadata="{metadata}", error="invalid_token",'
                f' error_description="The token {reason}."'
            ), name
        plain = await ask(site, endpoint, "")
        assert plain.headers["www-authenticate"] == f'Bearer resource_metadata="{metadata}"'
        assert (await ask(site, endpoint, issuer.token(exp=time.time() - 10))).status_code == 200, (
            "within the leeway"
        )
        assert issuer.asked == ["/keys"], "an unknown key asks once in a while"

    serve(site, work)


INITIALIZE: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
    },
}
LACKING: Final[list[tuple[str, str, Any, str, str | None]]] = [
    # asked for, what is sent, the token's scope, and the scope that the refusal asks for
    ("GET", "/v1/bundles", None, "", "router.route"),
    ("GET", "/v1/bundles", None, "router.call openid", "router.route router.call"),
    ("GET", "/v1/runs/of-ann/tools", None, "router.route", "router.route router.call"),
    ("POST", "/mcp", INITIALIZE, "", "router.call"),
    ("POST", "/mcp", INITIALIZE, "router.route", "router.route router.call"),
    ("POST", "/mcp", INITIALIZE, "router.call", "router.route router.call"),
    ("POST", "/mcp/runs/of-ann", INITIALIZE, "other.call", "router.call"),
    # no token of an issuer ever opens these: to ask for another would lead nowhere
    ("GET", "/v1/runs", None, "router.call router.review", None),
    ("GET", "/metrics", None, "router.metrics", None),
]


def test_a_token_without_the_scope_is_told_which_one_to_ask_for(site: Any) -> None:
    async def work(issuer: ScriptedIssuer, router: Any, endpoint: Any) -> None:
        metadata = f"{endpoint.base}/.well-known/oauth-protected-resource/mcp"
        for method, path, sent, scope, needed in LACKING:
            async with site.http(endpoint, token=issuer.token(scope=scope)) as http:
                answer = await http.request(method, path, json=sent)
            assert answer.status_code == 403, (path, scope)
            expected = None
            if needed is not None:
                expected = (
                    f'Bearer error="insufficient_scope", scope="{needed}",'
                    f' resource_metadata="{metadata}"'
                )
            assert answer.headers.get("www-authenticate") == expected, (path, scope)

    serve(site, work, role=None)


@pytest.mark.parametrize(
    ("mood", "reported"),
    [
        ("down", "the server can't"),
        ("failing", "status 500"),
        ("redirected", "not followed"),
        ("slow", "no answer within"),
        ("huge", "more than"),
        ("no JSON", "no list of keys"),
        ("no keys", "no key that can be used"),
        ("short", "no key that can be used"),
    ],
)
def test_without_the_issuers_keys_its_tokens_are_refused_and_others_are_not(
    site: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, mood: str, reported: str
) -> None:
    monkeypatch.setattr(issuer_tokens, "FETCH_S", 0.3 if mood == "slow" else 60.0)

    async def work(issuer: ScriptedIssuer, router: Any, endpoint: Any) -> None:
        issuer.mood = mood
        for _ in range(2):
            answer = await ask(site, endpoint, issuer.token())
            assert (answer.status_code, answer.json()["detail"]) == (401, NOT_TO_BE_HAD)
        assert issuer.asked == ([] if mood == "down" else ["/keys"]), "asked once in a while"
        assert (await ask(site, endpoint, endpoint.key)).status_code == 200
        issuer.mood = "ok"
        monkeypatch.setattr(issuer_tokens, "RENEW_S", 0.0)
        good = await ask(site, endpoint, issuer.token())
        assert good.status_code == (401 if mood == "down" else 200)
        if mood == "failing":
            issuer.rows = [public_row("two")]
            rotated = await ask(site, endpoint, issuer.token(key="two"))
            assert rotated.status_code == 200
            assert (await ask(site, endpoint, issuer.token())).status_code == 401

    config: dict[str, Any] = {"keys": "http://127.0.0.1:9/keys"} if mood == "down" else {}
    serve(site, work, **config)
    assert reported in capsys.readouterr().err


def test_keys_that_change_are_asked_for_once_by_all_who_need_them() -> None:
    clock = [1_000.0]

    async def work() -> None:
        async with ScriptedIssuer().serve() as issuer:
            settings = IssuerSettings(issuer.url, AUDIENCE, f"{issuer.url}/keys")
            tokens = issuer_tokens.IssuerTokens(settings, print, monotonic=lambda: clock[0])

            async def is_taken(token: str) -> bool:
                found = tokens.read(token.encode())
                if await tokens.renew():
                    found = tokens.read(token.encode())
                return isinstance(found, IssuedToken)

            old = issuer.token()
            assert [*await asyncio.gather(is_taken(old), is_taken(old))] == [True, True]
            assert issuer.asked == ["/keys"]
            issuer.rows = [public_row("two"), public_row("ec", alg="ES256")]
            assert not await is_taken(issuer.token(key="two")), "asked for a moment ago"
            clock[0] += issuer_tokens.RENEW_S
            new = [issuer.token(key="two"), issuer.token(key="ec", algorithm="ES256")]
            unknown = [issuer.token(key="three", jti=str(at)) for at in range(8)]
            taken = await asyncio.gather(*map(is_taken, [*unknown, *new]))
            assert taken == [*[False] * 8, True, True]
            assert issuer.asked == ["/keys"] * 2
            assert not await is_taken(old), "its key is gone, though it was taken before"

    asyncio.run(work())


def test_nobody_with_a_token_waits_for_the_key_of_a_strangers(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_tokens, "FETCH_S", 60.0)

    async def work(issuer: ScriptedIssuer, router: Any, endpoint: Any) -> None:
        assert (await ask(site, endpoint, issuer.token())).status_code == 200
        issuer.mood = "slow"
        monkeypatch.setattr(issuer_tokens, "RENEW_S", 0.0)
        stranger = asyncio.create_task(ask(site, endpoint, issuer.token(key="two")))
        await issuer.is_slow.wait()
        for token in (endpoint.key, issuer.token()):
            assert (await ask(site, endpoint, token)).status_code == 200
            assert not stranger.done()
        issuer.may_answer.set()
        assert (await stranger).status_code == 401

    serve(site, work)


def test_a_principal_is_bounded_in_its_rate_whichever_token_it_sends(site: Any) -> None:
    async def work(issuer: ScriptedIssuer, router: Any, endpoint: Any) -> None:
        statuses = [
            (await ask(site, endpoint, issuer.token(jti=str(at)))).status_code for at in range(4)
        ]
        assert statuses == [200, 200, 200, 429]
        over = await ask(site, endpoint, issuer.token())
        assert over.json()["code"] == "too_many_requests"
        assert 0 < int(over.headers["retry-after"]) <= 20
        assert (await ask(site, endpoint, issuer.token(sub="bob"))).status_code == 200
        assert (await ask(site, endpoint, endpoint.key)).status_code == 200

    serve(site, work, requests_per_minute=3)


def test_a_client_that_speaks_nothing_but_oauth_connects(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told by the refusal who issues tokens, gets one there, and comes back with it."""
    import httpx2
    from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    async def work(issuer: ScriptedIssuer, router: Any, endpoint: Any) -> None:
        facts = (await ask(site, endpoint, "", path=callers.METADATA)).json()
        assert facts["resource"] == f"{endpoint.base}/mcp"
        assert facts["authorization_servers"] == [issuer.url]
        assert facts["scopes_supported"] == ["router.route", "router.call"]
        auth = ClientCredentialsOAuthProvider(
            endpoint.url(), Storage(), "agent", "secret", issuer=issuer.url
        )
        async with (
            httpx2.AsyncClient(auth=auth, timeout=httpx2.Timeout(300)) as http,
            Client(streamable_http_client(endpoint.url(), http_client=http)) as client,
        ):
            names = [tool.name for tool in (await client.list_tools()).tools]
        assert "search_tools" in names
        assert "/token" in issuer.asked

    serve(site, work)


def test_a_person_logs_a_client_in_with_a_browser(site: Any) -> None:
    """The SDK's own client finds the issuer by the refusal, registers there, has the person permit
    it (authorization code with PKCE), and works with the token.
    """
    import httpx2
    from mcp.client.auth import OAuthClientProvider
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

    led_back: list[str] = []

    async def browser(address: str) -> None:
        async with httpx2.AsyncClient() as http:
            led_back.append((await http.get(address)).headers["location"])

    async def callback() -> AuthorizationCodeResult:
        found = dict(parse_qsl(urlsplit(led_back[-1]).query))
        return AuthorizationCodeResult(code=found["code"], state=found["state"])

    async def work(issuer: ScriptedIssuer, router: Any, endpoint: Any) -> None:
        metadata = OAuthClientMetadata.model_validate(
            {
                "client_name": "an agent",
                "redirect_uris": ["http://127.0.0.1:7777/callback"],
                "token_endpoint_auth_method": "none",
            }
        )
        storage = Storage()
        auth = OAuthClientProvider(endpoint.url(), metadata, storage, browser, callback)
        async with (
            httpx2.AsyncClient(auth=auth, timeout=httpx2.Timeout(300)) as http,
            Client(streamable_http_client(endpoint.url(), http_client=http)) as client,
        ):
            names = [tool.name for tool in (await client.list_tools()).tools]
            found = await client.call_tool("search_tools", {"query": "say it again"})
        assert "search_tools" in names
        assert not found.is_error
        assert led_back[0].startswith("http://127.0.0.1:7777/callback?code=code-")
        steps = ("/register", "/authorize", "/token", "/keys")
        assert [path for path in issuer.asked if path in steps] == [*steps]
        claims = jwt.decode(storage.tokens.access_token, options={"verify_signature": False})
        assert claims["scope"] == "router.route router.call", "what the service says it takes"

    serve(site, work, own_audience=True)


class Storage:
    """What the SDK's client keeps of a login."""

    def __init__(self) -> None:
        self.tokens: Any = None
        self.client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"keys": "http://login.example/keys"}, "in the clear"),
        ({"keys": "ftp://login.example/keys"}, "not an http or https address"),
        ({"algorithms": ["HS256"]}, "RS256"),
        ({"algorithms": ["none"]}, "RS256"),
        ({"algorithms": []}, "algorithms"),
        ({"audience": ""}, "audience"),
        ({"issuer": "login"}, "not an http or https address"),
    ],
)
def test_a_config_that_would_take_what_is_no_proof_is_refused(
    site: Any, change: Any, problem: str
) -> None:
    issuer = ScriptedIssuer()
    issuer.url = "https://login.example"
    (site.folder / "config" / "router.toml").write_text(issuer.config(**change))
    with pytest.raises(ConfigError) as raised:
        site.open()
    assert problem in str(raised.value)


def test_the_last_keys_hold_for_a_while_where_the_issuer_is_away() -> None:
    clock = [1_000.0]
    told: list[str] = []

    async def work() -> None:
        async with ScriptedIssuer().serve() as issuer:
            settings = IssuerSettings(issuer.url, AUDIENCE, f"{issuer.url}/keys")
            tokens = issuer_tokens.IssuerTokens(settings, told.append, monotonic=lambda: clock[0])
            token = issuer.token().encode()

            async def read() -> bool:
                found = tokens.read(token)
                if await tokens.renew():
                    found = tokens.read(token)
                return isinstance(found, IssuedToken)

            assert await read()
            issuer.mood = "failing"
            clock[0] += issuer_tokens.FRESH_S + 1
            assert isinstance(tokens.read(token), IssuedToken), "no stream ends of this"
            assert await read(), "they are asked for again, and hold"
            assert await read()
            assert issuer.asked == ["/keys"] * 2
            clock[0] += issuer_tokens.KEEP_S
            assert not await read()
            assert len(told) == 2

    asyncio.run(work())


def test_the_rates_of_many_principals_take_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "MAX_PRINCIPALS", 3)
    clock = [0.0]
    rates = callers.PrincipalRates(2, lambda: clock[0])
    assert [rates.count("a") for _ in range(3)] == [0.0, 0.0, 30.0]
    for name in "bcde":
        assert rates.count(name) == 0.0
    assert len(rates._used_until_s) == 3
    clock[0] += 30
    assert rates.count("e") == 0.0
    clock[0] += 60
    assert rates.count("f") == 0.0
    assert [*rates._used_until_s] == ["f"], "who has used up nothing is not kept"
