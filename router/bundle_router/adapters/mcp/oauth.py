"""OAuth flow: our own code while tokens suffice, the SDK's flow when a person has to be asked.

Rules: `authorization`.

The SDK's flow holds a lock until the server has answered each request, so one call that hangs would
block all others. So it is entered only to authorize, and left as soon as there is a token.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final, TypeVar

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.exceptions import OAuthFlowError, OAuthRegistrationError, OAuthTokenError
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

from bundle_router.adapters.http import BodyTooLarge, HttpClient, HttpError, HttpResponse, origin_of
from bundle_router.adapters.mcp.faults import ServerFault
from bundle_router.adapters.mcp.receiver import Person, command_for, is_safe_to_show
from bundle_router.adapters.mcp.tokens import TokenFile
from bundle_router.core.catalog import Server
from bundle_router.core.servers.reader.error_body import error_words

M = TypeVar("M", bound=BaseModel)
Request = httpx2.Request
Response = httpx2.Response
AUTHORIZING: Final = "bundle_router_authorizing"
"""Extension that marks the requests of an authorization flow (to the issuer, or for the server's
metadata). Only they may leave the origin. One that fails is answered with 502, so that the flow
goes on. One that spends a refresh token (then the value is true) goes on for `REFRESH_S` when its
call has ended; others wait longer (`tokens.LOCK_S`).
"""
REFRESH_S: Final = 9.0
_FAULT: Final = "bundle_router_fault"
"""Extension of a request whose refusal has a meaning besides its status: a ServerFault."""
MAX_DOCUMENT_BYTES: Final = 64 * 1024
"""Maximum bytes of an issuer's document, which the SDK parses on the event loop."""
_PAST: float = 1.0
"""Expiry time of a refused token. 0 would mean that it never expires."""
_ACCESS_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,40}")
REGISTER_BY_HAND: Final = (
    "register a public client (PKCE, no secret) there yourself, with the redirect address"
    " http://127.0.0.1:PORT/callback; write its `client_id` in servers.toml, and log in with"
    " --port PORT"
)
"""What to do where an issuer registers no client by itself, or none without a secret."""
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
        self.url = url
        self.headers: dict[str, str] = {}
        """The server's configured headers, for the flow's requests to its own origin."""
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
        if origin_of(str(request.url)) != self._origin:
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
            fault = self._failure or ServerFault("unauthorized", self._explain_missing_token())
            request.extensions[_FAULT] = fault
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
        is_authorized = False
        response = refused
        flow = super().async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            if outgoing is not request:
                response = yield _mark_own_request(outgoing)
            while True:
                response = self._with_issuer_as_advertised(response)
                outgoing = await flow.asend(response)
                response = yield outgoing if outgoing is request else _mark_own_request(outgoing)
        except StopAsyncIteration:
            if not _is_refused(response):
                is_authorized = True
                return
            self._failure = ServerFault(
                "unauthorized", "it refuses the token that its issuer gave for it"
            )
        except ServerFault as fault:
            self._failure = fault
        except _UNUSABLE as error:
            self.context.clear_tokens()
            reason = self._explain_failure(error, response)
            self._failure = ServerFault("unauthorized", f"the authorization failed ({reason})")
        finally:
            self._asking = False
            await flow.aclose()
            if self._person is not None:
                await self._person.finish(is_authorized)
        # the last response remains the answer; this is its meaning
        request.extensions[_FAULT] = self._failure

    def _explain_failure(self, error: Exception, response: Response) -> str:
        """Return why an authorization failed and, where a person can do something about it, what:
        the issuer's words, else the name of the error. Only who logs in reads it.
        """
        code, words = _issuer_refusal(response)
        reason = f"its issuer says: {words}" if words else type(error).__name__
        if isinstance(error, OAuthRegistrationError) and self._server.client_id is None:
            return f"{reason}; {REGISTER_BY_HAND}"
        if code in ("invalid_client", "unauthorized_client"):
            return f"{reason}; no client secret is ever sent: {REGISTER_BY_HAND}"
        return reason

    def _with_issuer_as_advertised(self, response: Response) -> Response:
        """Return an issuer's metadata with its name as the server spells it.

        For an issuer without a path both spellings, with and without the slash at the end, name the
        same one; the flow compares them as texts. Any other difference stays.
        """
        advertised = self.context.auth_server_url
        if advertised is None or self.context.oauth_metadata is not None:
            return response
        metadata = _parse_model(OAuthMetadata, _json_in(response))
        if metadata is None or str(metadata.issuer) == advertised:
            return response
        if not names_same_issuer(str(metadata.issuer), advertised):
            return response
        content = {**_json_in(response), "issuer": advertised}
        return Response(response.status_code, json=content)

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
        metadata = self.context.oauth_metadata
        if iss and metadata is not None and names_same_issuer(iss, str(metadata.issuer)):
            iss = str(metadata.issuer)
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


def _json_in(response: Response) -> dict[str, Any]:
    """Return the JSON object of a successful response; an empty one if there is none."""
    if response.status_code != 200 or not response.is_stream_consumed:
        return {}
    try:
        value = json.loads(response.content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _issuer_refusal(response: Response) -> tuple[str, str]:
    """Return the code by which an issuer refused, and its words with that code; both are empty
    where it did not refuse, or said nothing.
    """
    if response.status_code < 400 or not response.is_stream_consumed:
        return "", ""
    words = error_words(response.content)
    try:
        value = json.loads(response.content)
    except (ValueError, RecursionError):
        return "", words
    code = value.get("error") if isinstance(value, dict) else None
    if not isinstance(code, str) or not _ERROR_CODE.fullmatch(code):
        return "", words
    return code, words if words == code else f"{code}, {words}"


def names_same_issuer(one: str, other: str) -> bool:
    """Return whether two names of an issuer differ at most by the slash of an empty path."""
    bare = one.removesuffix("/")
    return bare == other.removesuffix("/") and bare.count("/") == 2


def _is_refused(response: Response) -> bool:
    if response.status_code == 403:
        return extract_field_from_www_auth(response, "error") == "insufficient_scope"
    return response.status_code == 401


# --- over our client ------------------------------------------------------------------------------


Send = Callable[[Mapping[str, str]], Awaitable[HttpResponse]]
"""Sends a request with the headers it is given, and returns its response."""


class AuthorizedSender:
    """Sends the requests of one connection with the tokens that they need."""

    def __init__(self, provider: Provider, client: HttpClient) -> None:
        self._provider = provider
        self._client = client
        self._behind: set[asyncio.Task[HttpResponse]] = set()

    async def send(self, request: Request, send: Send) -> HttpResponse:
        """Send a request by `send`, as often as its flow wants, and return the last response.

        The flow's own requests go through the client. A call that is cancelled while a refresh
        token is spent leaves that to go on: the issuer takes it once.

        Raises ServerFault, also for a refusal whose meaning the flow knows.
        """
        flow = _Flow(self._provider, self._client, request, send)
        work = asyncio.get_running_loop().create_task(flow.run())
        self._behind.add(work)
        work.add_done_callback(self._forget)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            flow.is_abandoned = True
            if not flow.spends_token:
                work.cancel()
            raise

    def _forget(self, work: asyncio.Task[HttpResponse]) -> None:
        self._behind.discard(work)
        if not work.cancelled():
            work.exception()  # mark it as read: nobody may wait for it any more

    async def close(self) -> None:
        """Wait until tokens that are being renewed are there."""
        if self._behind:
            await asyncio.wait(self._behind, timeout=REFRESH_S)


class _Flow:
    """One request with its authorization."""

    def __init__(
        self, provider: Provider, client: HttpClient, request: Request, send: Send
    ) -> None:
        self._provider = provider
        self._client = client
        self._request = request
        self._send = send
        self._response: HttpResponse | None = None
        self._too_large: ServerFault | None = None
        self.spends_token = False
        self.is_abandoned = False
        """Whether nobody waits any more: the request itself is not sent then."""

    async def run(self) -> HttpResponse:
        """Send what the flow wants sent, and return the response to the request itself."""
        flow = self._provider.async_auth_flow(self._request)
        try:
            outgoing = await anext(flow)
            while True:
                seen = await self._answer(outgoing)
                seen.request = outgoing
                outgoing = await flow.asend(seen)
        except StopAsyncIteration:
            pass
        except BaseException:
            self._close_response()
            raise
        finally:
            await flow.aclose()
        fault = self._too_large or self._request.extensions.get(_FAULT)
        if fault is not None or self._response is None:
            self._close_response()
            raise fault or ServerFault("closed", "the request was given up")
        return self._response

    def _close_response(self) -> None:
        if self._response is not None:
            self._response.close()

    async def _answer(self, outgoing: Request) -> Response:
        if outgoing is not self._request:
            return await self._answer_aside(outgoing)
        if self.is_abandoned:
            raise ServerFault("closed", "the request was given up")
        self._close_response()
        self._response = await self._send(_headers_of(self._request))
        return Response(self._response.status, headers=list(self._response.headers.items()))

    async def _answer_aside(self, outgoing: Request) -> Response:
        """Send a request of the flow itself; 502 stands for one that fails."""
        self.spends_token = bool(outgoing.extensions.get(AUTHORIZING))
        try:
            async with asyncio.timeout(REFRESH_S if self.spends_token else None):
                return await _fetch(self._provider, self._client, outgoing)
        except BodyTooLarge as error:
            self._too_large = ServerFault("too_large", f"its issuer's {error.detail[4:]}")
            return Response(502)
        except (HttpError, TimeoutError):
            return Response(502)
        finally:
            self.spends_token = False


def _headers_of(request: Request) -> dict[str, str]:
    """Return a request's headers, without those that our client makes itself."""
    own = ("host", "content-length", "transfer-encoding")
    return {name: value for name, value in request.headers.items() if name not in own}


async def _fetch(provider: Provider, client: HttpClient, request: Request) -> Response:
    """Send a request of the flow itself, if it may go there. Raises HttpError."""
    url = str(request.url)
    if not may_leave_for(url, provider.url):
        return Response(502)
    headers = _headers_of(request)
    headers |= {"accept-encoding": "identity", "user-agent": "bundle-router"}
    if origin_of(url) == origin_of(provider.url):
        headers |= provider.headers
    async with await client.send(
        request.method, url, headers=headers.items(), body=await request.aread()
    ) as response:
        body = await response.read(MAX_DOCUMENT_BYTES)
        return Response(response.status, headers=list(response.headers.items()), content=body)


def may_leave_for(url: str, server: str) -> bool:
    """Return whether a flow may request a URL for a server: one of its own origin, or https, or
    this machine or link if the server is there too.
    """
    try:
        if origin_of(url) == origin_of(server):
            return True
    except ValueError:
        return False
    near = _nearness(url)
    return near == _nearness(server) if near else url.lower().startswith("https:")


def _nearness(url: str) -> str:
    """Return `machine` or `link` for a URL of this machine or link, else nothing."""
    host = origin_of(url)[1]
    if host == "localhost" or host.endswith(".localhost"):
        return "machine"
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return ""
    if address.is_link_local:
        return "link"
    if address.is_loopback or address.is_unspecified:
        return "machine"
    return ""


__all__ = ["AuthorizedSender", "Provider", "TokenStorage"]
