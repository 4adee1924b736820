"""Callers with an access token of the issuer that `[service.issuer]` names.

Rules:
1. Such a caller speaks for the token's principal alone, and may route and call, as far as the
   token's scope says so. No token of an issuer opens pages, edits or metrics.
2. The refusal of a token, or of a request without one, says where clients learn who issues them
   (RFC 9728), so that one that knows OAuth alone can connect.
3. A principal's requests are bounded in their rate, whichever of its tokens they come with.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from bundle_router.core.catalog.settings import IssuerSettings
from bundle_router.core.values.issued_tokens import IssuedToken, TokenRefusal
from bundle_router.service.gate import ROOT, UNAUTHORIZED, Admission
from bundle_router.service.keys import Caller, IssuedBy, Scope
from bundle_router.service.refusals import Refusal

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

NAME: Final = "issuer"
"""The name of such callers in logs, and their role where no claim names one."""
METADATA: Final = "/.well-known/oauth-protected-resource"
SCOPES: Final[tuple[Scope, ...]] = ("route", "call")
MINUTE_S: Final = 60.0
ROUNDING_S: Final = 1e-6
"""Seconds by which sums of parts of a minute may differ from it."""
MAX_PRINCIPALS: Final = 10_000
"""Principals whose rate is known at a time."""


class Tokens(Protocol):
    """Judges tokens (`adapters.issuer_tokens`)."""

    @property
    def is_due(self) -> bool: ...

    def read(self, token: bytes) -> IssuedToken | TokenRefusal: ...

    async def renew(self) -> bool: ...


class Issuer:
    """Finds the callers of the issuer's tokens. `base` is the service's own URL."""

    def __init__(
        self,
        tokens: Tokens,
        settings: IssuerSettings,
        base: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._settings = settings
        self._base = base
        self._issued_by = IssuedBy(f"{base}{METADATA}{ROOT}", settings.scope_prefix, SCOPES)
        self._rates = PrincipalRates(settings.requests_per_minute, monotonic)

    def caller(self, token: bytes) -> Caller | Refusal:
        """Return the caller of a token, or the refusal of it."""
        found = self._tokens.read(token)
        if isinstance(found, TokenRefusal):
            return self.challenge(found.reason)
        scopes = frozenset(scope for scope in SCOPES if scope in found.scopes)
        return Caller(NAME, scopes, found.principal, found.role, issued_by=self._issued_by)

    @property
    def is_due(self) -> bool:
        """Whether a token needed other keys, or newer ones, than are here, and nobody is fetching
        them.
        """
        return self._tokens.is_due

    async def renew(self) -> bool:
        """Fetch the issuer's keys if a token needed others. Return whether that was done."""
        return await self._tokens.renew()

    def challenge(self, reason: str = "") -> Refusal:
        """Return the refusal of a token, or of a request without one."""
        fields = [f'resource_metadata="{self._issued_by.metadata}"']
        if reason:
            fields += ['error="invalid_token"', f'error_description="The token {reason}."']
        header = f"Bearer {', '.join(fields)}".encode("ascii", "replace")
        sentence = f"The token {reason}." if reason else UNAUTHORIZED.sentence
        return replace(
            UNAUTHORIZED,
            sentence=sentence,
            headers=((b"www-authenticate", header),),
            advice=f"get a token of {self._settings.issuer}, or use one of this service",
        )

    def over_rate(self, caller: Caller) -> Refusal | None:
        """Count a request of a caller; return the refusal of one that is too many."""
        if caller.issued_by is None:
            return None
        wait_s = self._rates.count(caller.principal)
        if wait_s <= 0:
            return None
        return Refusal(
            429,
            "too_many_requests",
            "This principal's requests come faster than [service.issuer] requests_per_minute.",
            ((b"retry-after", str(math.ceil(wait_s)).encode()),),
            "wait, then try again",
        )

    def admitting(self, admission: Admission) -> Admission:
        """Return what admission depends on where the issuer's tokens are taken too."""
        paths = frozenset(path.encode() for path in self.open_paths)
        return replace(
            admission,
            issuer=self,
            renew=partial(self._renew_after, admission.renew),
            open_to_all=admission.open_to_all | paths,
        )

    async def _renew_after(self, renew: Callable[[], Awaitable[bool]] | None) -> bool:
        """Renew what else there is, then the keys. Return whether either was done."""
        is_renewed = renew is not None and await renew()
        has_keys = await self.renew()
        return is_renewed or has_keys

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes that tell clients who issues tokens for the service."""
        from starlette.requests import Request
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route

        facts = {
            "resource": f"{self._base}{ROOT}",
            "resource_name": "Bundle Router",
            "authorization_servers": [self._settings.issuer],
            "scopes_supported": [f"{self._settings.scope_prefix}{scope}" for scope in SCOPES],
            "bearer_methods_supported": ["header"],
        }

        async def metadata(_request: Request) -> Response:
            return JSONResponse(facts)

        return [Route(path, metadata, methods=["GET"]) for path in self.open_paths]

    @property
    def open_paths(self) -> tuple[str, ...]:
        """The paths that need no token."""
        return METADATA, f"{METADATA}{ROOT}"


class PrincipalRates:
    """The rates of principals: each may have `per_minute` requests at once, and gets them back over
    a minute.
    """

    def __init__(self, per_minute: int, monotonic: Callable[[], float]) -> None:
        self._gap_s = MINUTE_S / per_minute
        self._monotonic = monotonic
        self._used_until_s: dict[str, float] = {}
        """When what a principal has used up is given back, as `monotonic` has it."""

    def count(self, principal: str) -> float:
        """Count a request. Of one that is too many, return the seconds to wait instead."""
        now_s = self._monotonic()
        used_until_s = max(now_s, self._used_until_s.pop(principal, now_s))
        wait_s = used_until_s + self._gap_s - now_s - MINUTE_S
        is_over = wait_s > ROUNDING_S
        if not is_over:
            used_until_s += self._gap_s
        if len(self._used_until_s) >= MAX_PRINCIPALS:
            self._forget(now_s)
        self._used_until_s[principal] = used_until_s
        return wait_s if is_over else 0.0

    def _forget(self, now_s: float) -> None:
        """Forget principals that have used up nothing; where all have, the one least recently
        seen.
        """
        kept = {name: at for name, at in self._used_until_s.items() if at > now_s}
        if len(kept) >= MAX_PRINCIPALS:
            del kept[next(iter(kept))]
        self._used_until_s = kept
