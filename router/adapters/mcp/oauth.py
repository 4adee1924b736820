"""The SDK's OAuth flow over our token files. Loaded only where a server wants it; see `authorization` for the rules."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, TypeVar

from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.exceptions import OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, BaseModel, ValidationError

from router.adapters.mcp.exchange import EXCHANGE
from router.adapters.mcp.faults import ServerFault
from router.adapters.mcp.person import Person, is_safe_to_show
from router.adapters.mcp.tokens import TokenFile

M = TypeVar("M", bound=BaseModel)


class Storage:
    """The SDK's token storage over a token file.

    Kept with the tokens, as the SDK forgets it: when they run out, and who issued them. Without the first it would not
    refresh them after a restart, and without the second it would send the refresh token to the tool server itself.
    """

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self.context: OAuthContext | None = None

    async def get_tokens(self) -> OAuthToken | None:
        tokens = _parsed(OAuthToken, self._file.read("tokens"))
        if tokens is not None and self.context is not None:
            until, issuer = self._file.read("until"), _parsed(OAuthMetadata, self._file.read("issuer"))
            self.context.token_expiry_time = until if isinstance(until, int | float) else None
            self.context.oauth_metadata = issuer
            if issuer is None:
                tokens.refresh_token = None
        return tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        until, issuer = None, None
        if self.context is not None:
            until = self.context.token_expiry_time
            metadata = self.context.oauth_metadata
            issuer = None if metadata is None else metadata.model_dump(mode="json", exclude_none=True)
        self._file.write(tokens=tokens.model_dump(mode="json", exclude_none=True), until=until, issuer=issuer)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return _parsed(OAuthClientInformationFull, self._file.read("client"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._file.write(client=client_info.model_dump(mode="json", exclude_none=True))


def _parsed(model: type[M], value: Any) -> M | None:
    try:
        return None if value is None else model.model_validate(value)
    except ValidationError:
        return None


class Provider(OAuthClientProvider):
    """The SDK's flow, which fails by leaving the server's refusal standing."""

    def __init__(self, url: str, kept: TokenFile, person: Person | None) -> None:
        redirect = person.redirect_uri if person is not None else "http://127.0.0.1/callback"
        metadata = OAuthClientMetadata(
            client_name="Bundle Router",
            redirect_uris=[AnyUrl(redirect)],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            token_endpoint_auth_method="none",  # noqa: S106 - a public client: it has no secret
        )
        storage = Storage(kept)
        super().__init__(url, metadata, storage, self._show, self._answer)
        storage.context = self.context
        self._person = person

    async def _show(self, url: str) -> None:
        if self._person is None:
            raise OAuthFlowError("nobody is there to authorize it")
        if not is_safe_to_show(url):
            raise OAuthFlowError("its authorization address is not one to open")
        await self._person.show(url)

    async def _answer(self) -> AuthorizationCodeResult:
        if self._person is None:
            raise OAuthFlowError("nobody is there to authorize it")
        code, state, iss = await self._person.answer()
        return AuthorizationCodeResult(code=code, state=state, iss=iss)

    async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
        flow = super().async_auth_flow(request)
        try:
            outgoing = await flow.__anext__()
            while True:
                response = yield outgoing
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        except (OAuthFlowError, ValidationError, UnicodeDecodeError) as error:
            # The last response stays the answer, whatever it was; what it means is noted here.
            exchange = EXCHANGE.get()
            if exchange is not None:
                exchange.fault = ServerFault("unauthorized", f"the server wants authorization ({type(error).__name__})")
        finally:
            await flow.aclose()


__all__ = ["Provider", "Storage"]
