"""Chooses the key of a model's requests, and keeps every other credential away from its host.

Rules:
1. A named `key_env` is the only key: if its variable is unset, blank, or can't be a header, nothing
   is requested. The libraries would otherwise send the provider's usual variable instead.
2. To a `base_url` goes the named key or none. The libraries add organisations, projects and tokens
   that they find in the environment; `ModelHost` takes them out, or refuses the request.
3. White space around a key is no part of it: a secret that is mounted as a file ends in a newline.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from bundle_router.core.catalog import provider_key_name
from bundle_router.core.values import Failure

NO_KEY: Final = "bundle-router-sends-no-key"
"""Stands for a key where none is sent, because the client libraries insist on one."""

UNCHECKED: Final = (
    "litellm reaches it by a client of its own, whose requests can't be checked; if the server at"
    " base_url is OpenAI-compatible, name the model openai/..."
)
"""Why models of some providers are not asked at a `base_url`."""

_HARMLESS_HEADERS: Final = frozenset(
    (
        "accept",
        "accept-encoding",
        "accept-language",
        "anthropic-beta",
        "anthropic-version",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "openai-beta",
        "transfer-encoding",
        "user-agent",
    )
)
_CREDENTIAL_HEADERS: Final = frozenset(
    ("authorization", "api-key", "x-api-key", "x-goog-api-key", "proxy-authorization")
)
_HARMLESS_PARAMETERS: Final = frozenset(("alt", "api-version", "beta", "version"))
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class RequestNotSent(Exception):
    """A request to a model must not be sent. Its text names what is wrong, and holds no value."""

    def __init__(self, failure: Failure, why: str) -> None:
        super().__init__(why)
        self.failure: Failure = failure
        self.why = why


def key_of(
    model: str,
    key_env: str | None,
    base_url: str | None,
    environ: Mapping[str, str] | None = None,
) -> str | None:
    """Return the key for a model's requests (`NO_KEY`: none is sent; None: litellm finds it).

    Raises RequestNotSent for a variable whose value can't be used.
    """
    variables = os.environ if environ is None else environ
    if key_env is not None:
        return _value_of(key_env, variables)
    if base_url is not None:
        return NO_KEY
    usual = provider_key_name(model)
    if variables.get(usual, "").strip():
        return _value_of(usual, variables)
    return None


def _value_of(name: str, variables: Mapping[str, str]) -> str:
    value = variables.get(name, "").strip()
    if not value:
        raise RequestNotSent("no_key", f"its key {name} is not set")
    if not value.isascii() or not value.isprintable():
        raise RequestNotSent("no_key", f"its key {name} has characters that a header can't carry")
    return value


@dataclass(frozen=True, slots=True)
class ModelHost:
    """Where the requests of a model with a `base_url` may go, and the one key that they carry."""

    base_url: str
    key: str
    """`NO_KEY`: none."""

    def clean(self, url: str, headers: MutableMapping[str, str]) -> None:
        """Take out every header that is neither harmless nor our key.

        Raises RequestNotSent for another host, another credential and a parameter that may be one.
        """
        if _origin(url) != _origin(self.base_url):
            raise RequestNotSent("not_sent", "it would go to another host than base_url")
        self._check_parameters(url)
        names = {name.lower() for name in headers}
        with_key = {name for name in names if self._is_key(headers[name])}
        if not with_key and names & _CREDENTIAL_HEADERS:
            raise RequestNotSent("not_sent", "it would carry another credential than key_env")
        if self.key == NO_KEY:
            with_key.clear()
        for name in names - _HARMLESS_HEADERS - with_key:
            del headers[name]

    def _check_parameters(self, url: str) -> None:
        own_names = {name for name, _ in _parameters(self.base_url)}
        for name, _ in _parameters(url):
            if name.lower() not in _HARMLESS_PARAMETERS and name not in own_names:
                raise RequestNotSent("not_sent", "its address would hold more than base_url says")

    def _is_key(self, value: str) -> bool:
        return value == self.key or value.endswith(f" {self.key}")


def key_problem(model: str, key_env: str | None, base_url: str | None) -> str:
    """Return what keeps a model from being asked, as far as its key goes; empty if nothing does."""
    try:
        key_of(model, key_env, base_url)
    except RequestNotSent as refusal:
        return refusal.why
    return ""


def host_of(base_url: str | None, key: str | None) -> ModelHost | None:
    """Return what bounds the requests to a `base_url`; None for a provider's own host."""
    if base_url is None:
        return None
    return ModelHost(base_url, key or NO_KEY)


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    return parts.scheme, (parts.hostname or "").lower(), port


def _parameters(url: str) -> list[tuple[str, str]]:
    return parse_qsl(urlsplit(url).query, keep_blank_values=True)
