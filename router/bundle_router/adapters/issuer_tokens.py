"""Access tokens of an issuer: signed JWTs, judged by what the config pins.

Rules:
1. Nothing that a token says chooses whom it is judged by: issuer, audience, algorithms and the
   address of the keys are the config's. Keys in a token's head are not looked at.
2. A key checks only algorithms of its own kind, all of them asymmetric: no token is without a
   signature, and none is signed with a public key as a shared secret.
3. Keys are fetched when a token needs them: the first ones, those of an unknown id, and all of them
   again after `FRESH_S`. That happens at most once in `RENEW_S`, whatever is presented, and not
   while a token is read.
4. While the issuer does not answer, its last keys hold for `KEEP_S`.
5. The answer with the keys is bounded in bytes and time, and no redirect is followed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt

from bundle_router.adapters.http.client import HttpClient, HttpError
from bundle_router.adapters.http.sessions import HttpBounds
from bundle_router.core.catalog.settings import IssuerSettings
from bundle_router.core.values.issued_tokens import IssuedToken, TokenRefusal

FRESH_S: Final = 600.0
RENEW_S: Final = 10.0
KEEP_S: Final = 3_600.0
FETCH_S: Final = 3.0
"""Seconds that fetching the keys may take in all."""
MAX_BYTES: Final = 256 * 1024
MAX_KEYS: Final = 100
MIN_RSA_BITS: Final = 2_048
MAX_CACHED: Final = 4_096
"""Tokens whose claims are remembered, by their digests, until they expire."""
MAX_NAME: Final = 200
_FAMILIES: Final = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("EdDSA",)}
"""The algorithms of each kind of key, by how their names begin."""
_MALFORMED: Final = "is no signed token"
_NO_KEYS: Final = "can't be checked now: the issuer's keys are not to be had"
_UNKNOWN_KEY: Final = "is signed with a key that the issuer does not have"

Report = Callable[[str], None]
"""Told why the keys can't be fetched, in one line."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A public key of the issuer."""

    public: Any
    kind: str
    """What its `kty` says: one of `_FAMILIES`."""
    algorithm: str | None
    """The one algorithm that it is for; None: any of its kind."""

    def checks(self, algorithm: str) -> bool:
        """Return whether a signature in this algorithm may be this key's."""
        is_of_kind = algorithm.startswith(_FAMILIES[self.kind])
        return is_of_kind and self.algorithm in (None, algorithm)


@dataclass(frozen=True, slots=True)
class _Cached:
    token: IssuedToken
    ends_s: float
    """When it expires, leeway included, in seconds since 1970."""


class KeysNotFetched(Exception):
    """The issuer's keys could not be fetched."""


class IssuerTokens:
    """Judges an issuer's tokens by its keys: after `read`, `renew` fetches the keys that were
    missing, if any were, and the token is read again. For one event loop.
    """

    def __init__(
        self,
        settings: IssuerSettings,
        report: Report,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._report = report
        self._monotonic = monotonic
        self._keys: Mapping[str, _Key] = {}
        """The keys by their ids."""
        self._fetched_s = -KEEP_S
        """When the keys were fetched, as `monotonic` has it."""
        self._tried_s = -RENEW_S
        """When that was tried last."""
        self._cached: dict[bytes, _Cached] = {}
        self._is_due = False
        """Whether a token needed other or newer keys since they were last asked for."""
        self._fetching = asyncio.Lock()

    @property
    def is_due(self) -> bool:
        """Whether other or newer keys are needed, and nobody is fetching them yet."""
        return self._is_due and not self._fetching.locked()

    def read(self, token: bytes) -> IssuedToken | TokenRefusal:
        """Return what a token says, or why it is not taken. Fetches nothing (see `renew`)."""
        age_s = self._monotonic() - self._fetched_s
        if age_s > FRESH_S and self._may_fetch():
            self._is_due = True
        if age_s > KEEP_S:
            return TokenRefusal(_NO_KEYS)

        digest = hashlib.sha256(token).digest()
        cached = self._cached.get(digest)
        if cached is not None:
            if time.time() < cached.ends_s:
                return cached.token
            return TokenRefusal("has expired")
        try:
            return self._check(token.decode("ascii"), digest)
        except jwt.ExpiredSignatureError:
            return TokenRefusal("has expired")
        except jwt.ImmatureSignatureError:
            return TokenRefusal("is not valid yet")
        except jwt.InvalidIssuerError:
            return TokenRefusal("is of another issuer")
        except jwt.InvalidAudienceError:
            return TokenRefusal("is for another audience")
        except jwt.MissingRequiredClaimError as error:
            return TokenRefusal(f"has no claim '{error.claim}'")
        except jwt.InvalidSignatureError:
            return TokenRefusal("is not signed by the issuer")
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            return TokenRefusal(_MALFORMED)  # what a stranger sends may fail in any of these ways

    def _check(self, token: str, digest: bytes) -> IssuedToken | TokenRefusal:
        """Judge a token that is not known yet. Raises what PyJWT raises, and errors of values."""
        settings = self._settings
        head = jwt.get_unverified_header(token)
        algorithm = head.get("alg")
        if algorithm not in settings.algorithms:
            return TokenRefusal("is signed in a way that is not permitted here")
        key = self._keys.get(head.get("kid", ""))
        if key is None:
            self._is_due = self._is_due or self._may_fetch() or self._fetching.locked()
            return TokenRefusal(_UNKNOWN_KEY)
        if not key.checks(algorithm):
            return TokenRefusal("is signed in a way that is not permitted here")
        claims = jwt.decode(
            token,
            key.public,
            algorithms=[algorithm],
            audience=settings.audience,
            issuer=settings.issuer,
            leeway=settings.leeway_s,
            options={"require": ["exp", "iss", "aud"]},
        )
        found = _issued(claims, settings)
        if isinstance(found, IssuedToken):
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            self._cached[digest] = _Cached(found, float(claims["exp"]) + settings.leeway_s)
        return found

    def _may_fetch(self) -> bool:
        return self._monotonic() - self._tried_s >= RENEW_S

    async def renew(self) -> bool:
        """Fetch the keys if a token needed others since. Return whether they were asked for, so
        that a token that was refused may be taken now.
        """
        if not self._is_due:
            return False
        async with self._fetching:
            if self._may_fetch():
                self._tried_s = self._monotonic()
                await self._fetch()
            self._is_due = False
        return True

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(FETCH_S):
                self._keys = _keys_of(await fetch_keys(self._settings.keys))
        except TimeoutError:
            self._report(f"no answer within {FETCH_S:g} s")
        except (KeysNotFetched, HttpError) as error:
            self._report(str(error))
        else:
            self._fetched_s = self._monotonic()
            self._cached.clear()


async def fetch_keys(url: str) -> bytes:
    """Return the issuer's answer with its keys. Raises HttpError, KeysNotFetched."""
    bounds = HttpBounds(connect_s=FETCH_S, silent_s=FETCH_S)
    async with HttpClient(bounds) as client:
        response = await client.send("GET", url, headers=[("Accept", "application/json")])
        async with response:
            if response.redirects:
                raise KeysNotFetched("the answer leads elsewhere, which is not followed")
            if response.status != 200:
                raise KeysNotFetched(f"the answer has status {response.status}")
            return await response.read(MAX_BYTES)


def _keys_of(answer: bytes) -> Mapping[str, _Key]:
    """Return the public keys for signatures, by their ids. What is no such key is passed over.

    Raises KeysNotFetched where there is none.
    """
    try:
        listed = json.loads(answer)["keys"]
        rows = [row for row in listed if isinstance(row, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise KeysNotFetched("the answer holds no list of keys") from None
    keys = {}
    for row in rows[:MAX_KEYS]:
        key_id = row.get("kid")
        is_public = row.get("kty") in _FAMILIES and row.get("use", "sig") == "sig"
        if not isinstance(key_id, str) or not is_public:
            continue
        try:
            public = jwt.PyJWK({name: row[name] for name in row if name not in _PRIVATE}).key
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        if row["kty"] != "RSA" or public.key_size >= MIN_RSA_BITS:
            keys[key_id] = _Key(public, row["kty"], row.get("alg"))
    if not keys:
        raise KeysNotFetched("the answer holds no key that can be used")
    return keys


_PRIVATE: Final = frozenset(("d", "p", "q", "dp", "dq", "qi", "oth"))
"""Members of a private key, which an issuer that publishes one had better change."""


def _issued(claims: Mapping[str, Any], settings: IssuerSettings) -> IssuedToken | TokenRefusal:
    """Return what the claims are mapped to, or which of them can't be."""
    names = [settings.principal, settings.scope]
    if settings.role is not None:
        names.append(settings.role)
    for name in names:
        if name not in claims:
            return TokenRefusal(f"has no claim '{name}'")
    for name in ("exp", "nbf", "iat"):
        time_s = claims.get(name, 0)
        if isinstance(time_s, bool) or not isinstance(time_s, int | float):
            return TokenRefusal(f"has a claim '{name}' that is no number")

    principal = claims[settings.principal]
    if not _is_name(principal):
        return TokenRefusal(f"has a claim '{settings.principal}' that is no name")
    role = claims[settings.role] if settings.role is not None else ""
    if settings.role is not None and not _is_name(role):
        return TokenRefusal(f"has a claim '{settings.role}' that is no name")

    scopes = claims[settings.scope]
    if isinstance(scopes, str):
        scopes = scopes.split()
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        return TokenRefusal(f"has a claim '{settings.scope}' that is no list of scopes")
    prefix = settings.scope_prefix
    own = [scope.removeprefix(prefix) for scope in scopes if scope.startswith(prefix)]
    return IssuedToken(principal, role, frozenset(own))


def _is_name(value: object) -> bool:
    """Return whether a claim can be a name: one line, and no blank at its edges, by which a name
    would look like another one.
    """
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        return False
    return value.isprintable() and value == value.strip()
