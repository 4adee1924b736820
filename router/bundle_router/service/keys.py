"""Bearer tokens: one for the whole endpoint, and one derived from it for each run and decision.

A run's token opens only that run, so its agent can't speak for a parent or neighbour. A decision's
token opens the run only under that decision, so the agent of one branch can't speak for another.
Both belong to the run that existed when they were made: a run of the same id, begun after that one
was pruned, refuses them by their first bytes (`begun`). Tokens made here begin with `brk_`, so that
they are recognised and redacted wherever they appear.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from bundle_router.errors import RequestError

MIN_KEY: Final = 32
MAX_KEY: Final = 512
MAX_FOUND: Final = 4_096  # valid tokens that are cached, by their digests
_KEY: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The characters of a bearer token (RFC 6750, section 2.1)."""
_MARK: Final = "brk_"
_RUN_TOKEN: Final = re.compile(rb"brk_[A-Za-z0-9_-]{43}")
_PURPOSE: Final = b"bundle-router/mcp-run/2\0"

Scope = Literal["route", "call", "review", "edit", "metrics"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)


@dataclass(frozen=True, slots=True)
class IssuedBy:
    """Where a token of an issuer comes from, and how its scopes are named there."""

    metadata: str
    """The URL of the document that names the issuer (RFC 9728)."""
    scope_prefix: str
    """What is before this service's scopes there."""
    scopes: tuple[Scope, ...]
    """The scopes that its tokens can have."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a token.

    A run's token opens only that run, over MCP.
    """

    name: str = "endpoint"
    """Its name, for logs and records."""
    scopes: frozenset[Scope] = frozenset(SCOPES)
    """What it may do."""
    principal: str = ""
    """The principal it speaks for; empty: the one it names."""
    role: str = ""
    """The role that its own run at `/mcp` is routed as."""
    run_id: str | None = None
    """The run that a run's token opens; None: any."""
    begun: bytes = b""
    """The first bytes that tell that run from another of its id; empty: any."""
    issued_by: IssuedBy | None = None
    """Where its token comes from; None: it is one of the service's own."""


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token of the token file."""

    digest: bytes
    """Its SHA-256."""
    caller: Caller
    """Its owner."""
    expires: float | None = None
    """When it expires, in seconds since 1970; None: never."""


NOBODY: Final = Caller("nobody", frozenset())
"""The caller without a valid token."""


def new_key() -> str:
    """Return a random token of 256 bits.

    >>> from bundle_router.service import new_key
    >>> len(new_key())
    47
    """
    return _MARK + secrets.token_urlsafe(32)


def key_from_env(name: str) -> str:
    """Return the token in an environment variable. Raises RequestError, which never repeats it.

    >>> import os
    >>> from bundle_router.service import key_from_env, new_key
    >>> os.environ["ROUTER_KEY"] = new_key()
    >>> key_from_env("ROUTER_KEY") == os.environ["ROUTER_KEY"]
    True
    """
    value = os.environ.get(name, "")
    if not value:
        raise RequestError(
            f"the environment variable {name!r} is not set", advice="set it to the endpoint's token"
        )
    return _check_key(value, f"the environment variable {name!r}")


def _check_key(key: str, where: str) -> str:
    if not isinstance(key, str) or not MIN_KEY <= len(key) <= MAX_KEY or not _KEY.fullmatch(key):
        raise RequestError(
            f"{where} holds no token: one has {MIN_KEY} to {MAX_KEY} characters of A-Z, a-z, 0-9,"
            " -._~+/",
            advice="make one with `python -c 'import secrets; print(secrets.token_urlsafe(32))'`",
        )
    return key


class Keys:
    """The endpoint's token and those of its runs.

    Raises RequestError for a token that is too short.

    >>> from bundle_router.service import Keys, new_key
    >>> Keys(new_key())  # what is printed holds no token
    Keys(…)
    """

    __slots__ = ("_digest", "_found", "_key", "named")

    def __init__(self, key: str, named: Sequence[NamedToken] = ()) -> None:
        self._key = _check_key(key, "the token given").encode()
        self._digest = _digest(self._key)
        self._found: dict[tuple[bytes, str | None, str | None], Caller] = {}
        self.named = tuple(named)
        """The tokens of the token file when it was last valid."""

    def __repr__(self) -> str:
        return "Keys(…)"

    @property
    def key(self) -> str:
        """The endpoint's own token."""
        return self._key.decode()

    def token_for_run(self, run_id: str, begun: bytes, decision: str | None = None) -> str:
        """Return the token that opens only this run, or only this run under this decision."""
        message = _PURPOSE + b"\0".join((begun, run_id.encode(), (decision or "").encode()))
        mac = hmac.new(self._key, message, hashlib.sha256).digest()
        return _MARK + base64.urlsafe_b64encode(begun + mac[len(begun) :]).rstrip(b"=").decode()

    def caller(
        self, presented: bytes, run_id: str | None, decision: str | None = None
    ) -> Caller | None:
        """Return the caller of a token for a run (None: for a path of no run), under a decision if
        one is named; None for an invalid token. Takes the same time for every invalid one. It can't
        tell whether a run's token is of the present run or of an earlier one with its id: compare
        `Caller.begun`.
        """
        digest = _digest(presented)
        found = self._found.get((digest, run_id, decision))
        if found is not None:
            return found
        if _RUN_TOKEN.fullmatch(presented):
            first = base64.urlsafe_b64decode(presented[4:12])[:4]
        else:
            first = b""
        if run_id is None:
            derived: tuple[str, ...] = ()
        else:
            derived = (
                self.token_for_run(run_id, first),
                self.token_for_run(run_id, first, decision),
            )
        single = [hmac.compare_digest(digest, _digest(token.encode())) for token in derived]
        caller = self.holder(digest)
        if any(hmac.compare_digest(digest, token.digest) for token in self.named):
            return caller
        if caller is None and any(single):
            caller = Caller("run", frozenset(("call",)), run_id=run_id, begun=first)
        if caller is not None:
            if len(self._found) >= MAX_FOUND:
                self._found.clear()
            self._found[digest, run_id, decision] = caller
        return caller

    def holder(self, digest: bytes) -> Caller | None:
        """Return the present caller of a token that is no run's, by its SHA-256; None if it is
        unknown or expired.
        """
        # Each is compared, so that the time tells nothing of which one it is.
        matches = [token for token in self.named if hmac.compare_digest(digest, token.digest)]
        if hmac.compare_digest(digest, self._digest):
            return Caller()
        if not matches:
            return None
        expires = matches[0].expires
        is_present = expires is None or time.time() < expires
        return matches[0].caller if is_present else None


def run_tag(decision_id: str) -> bytes:
    """Return the tag that tells a run from others of its id: the prefix of its decision ids."""
    return hashlib.sha256(decision_id.rpartition(".")[0].encode()).digest()[:4]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
