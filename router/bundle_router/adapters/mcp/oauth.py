"""OAuth flow: our own code while tokens suffice, the SDK's flow when a person has to be asked.

Rules: `authorization`.

The SDK's flow holds a lock until the server has answered each request, so one call that hangs would
block all others. So it is entered only to authorize, and left as soon as there is a token.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.exceptions import OAuthFlowError, OAuthTokenError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, BaseModel, ValidationError

from bundle_router.adapters.mcp.faults import EXCHANGE, ServerFault
from bundle_router.adapters.mcp.http import AUTHORIZING, Request, Response, origin_of
from bundle_router.adapters.mcp.receiver import Person, command_for, is_safe_to_show
from bundle_router.adapters.mcp.tokens import TokenFile
from bundle_router.core.catalog import Server

M = TypeVar("M", bound=BaseModel)
_PAST: float = 1.0
"""Expiry time of a refused token. 0 would mean that it never expires."""
_ACCESS_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_UNUSABLE: Final = (OAuthFlowError, ValueError, OverflowError)
"""What is raised for an answer with impossible tokens, lifetimes or texts."""


class TokenStorage:
    """The SDK's token storage over a token file.

    The file also keeps the expiry time and the issuer, which the SDK forgets. Without the first it
    would not refresh tokens after a restart; without the second it would send the refresh token to
    the tool server itself. A client registration is stored only together with its tokens: one that
    was never completed would make older tokens useless.
    """

    def __init__(self, file: TokenFile, keep_secret: Callable[[str], None]) -> None:
        self._file = file
        self._keep_secret = keep_secret
        self.context: OAuthContext  # set once the flow has made it

    async def get_tokens(self) -> OAuthToken | None:
        tokens = _parse_model(OAuthToken, self._file.read("tokens"))
        if tokens is not None:
            until = self._file.read("until")
            issuer = _parse_model(OAuthMetadata, self._file.read("issuer"))
            self.context.token_expiry_time = until if isinstance(until, int | float) else None
            self.context.oauth_metadata = issuer
            if issuer is None:
                tokens.refresh_token = None
            self._keep_secrets(tokens)
        return tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        if not _ACCESS_TOKEN.fullmatch(tokens.access_token):  # no request could be sent with it
            raise OAuthTokenError("the access token has characters that a header can't have")
        self._keep_secrets(tokens)
        context = self.context
        if (
            tokens.expires_in is not None and tokens.expires_in <= 0
        ):  # its server says how long it is good
            context.token_expiry_time = None
        issuer = _dump_json(context.oauth_metadata)
        client = _dump_json(context.client_info)
        until = context.token_expiry_time
        self._write(
            tokens=_dump_json(tokens), until=until, issuer=issuer, client=client, withdrawn=False
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return _parse_model(OAuthClientInformationFull, self._file.read("client"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store nothing: the context holds the registration until there are tokens."""

    def delete_tokens(self) -> None:
        """Delete the tokens, which have become useless."""
        self._write(tokens=None, until=None, withdrawn=True)

    def _write(self, **values: Any) -> None:
        with suppress(
            OSError
        ):  # a full disk fails no call: unsaved tokens are used until the process ends
            self._file.write(**values)

    def _keep_secrets(self, tokens: OAuthToken) -> None:
        for value in (tokens.access_token, tokens.refresh_token):
            if value:
                self._keep_secret(value)


def _parse_model(model: type[M], value: Any) -> M | None:
    try:
        return None if value is None else model.model_validate(value)
    except ValidationError:
        return None


def _dump_json(model: BaseModel | None) -> Any:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


class Provider(OAuthClientProvider):
    """The OAuth flow of one connection. If it fails, the server's refusal remains the response."""

    def __init__(
        self,
        server: Server,
        kept: TokenFile,
        person: Person | None,
        keep_secret: Callable[[str], None],
    ) -> None:
        url = server.url or ""
        redirect = person.redirect_uri if person is not None else "http://127.0.0.1/callback"
        metadata = OAuthClientMetadata(
            client_name="Bundle Router",
            redirect_uris=[AnyUrl(redirect)],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            token_endpoint_auth_method="none",  # noqa: S106 - a public client: it has no secret
        )
        self._kept = kept
        self._storage = TokenStorage(kept, keep_secret)
        super().__init__(url, metadata, self._storage, self._show, self._answer)
        self._storage.context = self.context
        self._person = person
        self._server = server
        self._origin = origin_of(url)
        self._stamp: tuple[int, int] | None = None
        self._asking = False
        self._failure: ServerFault | None = None
        self._shown = ""

    # --- a request --------------------------------------------------------------------------------

    async def async_auth_flow(self, request: Request) -> AsyncGenerator[Request, Response]:
        """Send the request with a token, again with another token, and again after a person has
        authorized it.
        """
        if origin_of(request.url) != self._origin:
            yield request
            return
        for last in (False, True):
            self.context.protocol_version = request.headers.get("mcp-protocol-version")
            await self._take_up()
            if self._wants_refresh:
                async with self._kept.locked():
                    await self._take_up()
                    if self._wants_refresh:
                        refresh = _mark_own_request(await self._refresh_token(), spends_token=True)
                        await self._handle_refresh_response((yield refresh))
            sent = self._with_token(request)
            response = yield request
            if not _is_refused(response):
                return
            await self._take_up()
            if last or response.status_code != 401 or not self._has_another(sent):
                break
        if self._person is None or self._failure is not None:
            _note(self._failure or ServerFault("unauthorized", self._explain_missing_token()))
            return
        asking = self._ask(request, response)
        try:
            outgoing = await anext(asking)
            while True:
                outgoing = await asking.asend((yield outgoing))
        except StopAsyncIteration:
            return
        finally:
            await asking.aclose()

    async def _take_up(self) -> None:
        """Load the stored tokens if another connection or process has changed them."""
        stamp = self._kept.stamp
        if self._asking or (self._initialized and stamp == self._stamp):
            return
        self.context.clear_tokens()
        await self._initialize()
        if self._server.client_id is not None:
            self.context.client_info = self._configured_client()
        self._stamp = stamp

    @property
    def _wants_refresh(self) -> bool:
        return not self.context.is_token_valid() and self.context.can_refresh_token()

    async def _handle_refresh_response(self, response: Response) -> bool:
        try:
            done = await super()._handle_refresh_response(response)
        except _UNUSABLE:
            self.context.clear_tokens()
            done = False
        if not done and response.status_code in (400, 401):
            self._storage.delete_tokens()
        self._stamp = self._kept.stamp if done else None  # None: memory and file differ
        return done

    def _with_token(self, request: Request) -> str | None:
        """Put the token on the request and return it."""
        request.headers.pop("authorization", None)
        if not self.context.is_token_valid():
            return None
        self._add_auth_header(request)
        if self.context.current_tokens is not None:
            return self.context.current_tokens.access_token
        return None

    def _has_another(self, sent: str | None) -> bool:
        """Return whether there is, or may be, a token other than the refused one."""
        tokens = self.context.current_tokens
        if tokens is None or sent is None:
            return False
        if tokens.access_token == sent:
            self.context.token_expiry_time = _PAST
            return self.context.can_refresh_token()
        return True

    def _explain_missing_token(self) -> str:
        """Return why there is no token that the server accepts, and what to do."""
        if not self._kept.why_unusable(time.time()) and self._wants_refresh:
            return "its token ran out and could not be renewed now"
        return f"it wants to be authorized ({command_for(self._server.name, self._kept.principal)})"

    # --- a person ---------------------------------------------------------------------------------

    async def _ask(self, request: Request, refused: Response) -> AsyncGenerator[Request, Response]:
        """Yield the requests of the SDK's whole flow, from the refusal on, with a new
        registration.
        """
        self.context.clear_tokens()
        if self._server.client_id is not None:
            self.context.client_info = self._configured_client()
        else:
            self.context.client_info = None
        self._asking = True
        flow = super().async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            response = refused if outgoing is request else (yield _mark_own_request(outgoing))
            while True:
                outgoing = await flow.asend(response)
                response = yield outgoing if outgoing is request else _mark_own_request(outgoing)
        except StopAsyncIteration:
            if not _is_refused(response):
                return
            self._failure = ServerFault(
                "unauthorized", "it refuses the token that its issuer gave for it"
            )
        except ServerFault as fault:
            self._failure = fault
        except _UNUSABLE as error:
            self.context.clear_tokens()
            self._failure = ServerFault(
                "unauthorized", f"the authorization failed ({type(error).__name__})"
            )
        finally:
            self._asking = False
            await flow.aclose()
        _note(self._failure)  # the last response remains the answer; this is its meaning

    def _configured_client(self) -> OAuthClientInformationFull:
        return OAuthClientInformationFull(
            client_id=self._server.client_id or "",
            redirect_uris=self.context.client_metadata.redirect_uris,
            token_endpoint_auth_method="none",  # noqa: S106 - a public client: it has no secret
        )

    async def _show(self, url: str) -> None:
        if self._person is None:
            raise OAuthFlowError("there is no person here to authorize it")
        if not is_safe_to_show(url):
            raise ServerFault("unauthorized", "its authorization address is not safe to open")
        metadata = self.context.oauth_metadata
        if metadata is not None and "S256" not in (metadata.code_challenge_methods_supported or ()):
            raise ServerFault("unauthorized", "its issuer does not announce PKCE with S256")
        self._shown = url
        await self._person.show(url)

    async def _answer(self) -> AuthorizationCodeResult:
        if self._person is None:
            raise OAuthFlowError("there is no person here to authorize it")
        code, state, iss = await self._person.answer()
        self._refuse_mix_up(iss)
        return AuthorizationCodeResult(code=code, state=state, iss=iss)

    def _refuse_mix_up(self, iss: str | None) -> None:
        """Refuse a code without an issuer if the page shown was not the issuer's: else an issuer
        that shows another one's page could redeem the other's code. (The SDK checks an issuer that
        is named.)
        """
        metadata = self.context.oauth_metadata
        issuer = str(metadata.issuer) if metadata is not None else self._server.url or ""
        if iss is None and origin_of(self._shown) != origin_of(issuer):
            why = (
                "its authorization page is another server's, and the answer does not name its"
                " issuer"
            )
            raise ServerFault("unauthorized", f"the authorization failed ({why})")


def _mark_own_request(request: Request, *, spends_token: bool = False) -> Request:
    """Return the request marked as the flow's own: it may leave the origin, and may fail."""
    request.extensions[AUTHORIZING] = spends_token
    return request


def _is_refused(response: Response) -> bool:
    if response.status_code == 403:
        return extract_field_from_www_auth(response, "error") == "insufficient_scope"
    return response.status_code == 401


def _note(fault: ServerFault) -> None:
    exchange = EXCHANGE.get()
    if exchange is not None:
        exchange.fault = fault


__all__ = ["Provider", "TokenStorage"]
