"""What a server says of itself when a connection is opened, and which version both speak.

Rules:
1. `server/discover` is asked first. Only an answer that names a modern version we know is modern;
   any other answer, refusal or silence means the handshake.
2. A refusal that names the versions it knows (-32022) is asked once more with one that we know too.
   If it knows neither a modern version of ours nor one of the handshake, nothing is left to try.
3. What does not fit the specification is read as far as it says something: a list in place of an
   empty object (PHP), a name that is no text, a version that nobody published.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bundle_router.core.servers.reader.events import RpcRefusal

MODERN_VERSIONS: Final = ("2026-07-28",)
"""The versions without a handshake that we speak, oldest first."""
HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The versions with a handshake that we speak, oldest first."""
UNSUPPORTED_VERSION: Final = -32022
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
_VERSION: Final = re.compile(r"[0-9A-Za-z.+-]{1,40}")


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a connection was opened with."""

    version: str
    """The protocol version that both speak."""
    is_modern: bool
    """Whether requests carry all they need, without a session."""
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    """What the server says it can do, unchecked."""
    name: str = ""
    """The server's name, by its own account."""
    release: str = ""
    """The server's release, by its own account."""
    instructions: str = ""
    """The server's instructions for a model, unchecked."""

    @property
    def announces_tools(self) -> bool:
        """Whether the server says when its tools change."""
        tools = self.capabilities.get("tools")
        return isinstance(tools, dict) and tools.get("listChanged") is True

    @property
    def has_log(self) -> bool:
        """Whether the server's log level can be set."""
        return self.capabilities.get("logging") is not None


def read_discovery(result: Mapping[str, Any]) -> Agreement | None:
    """Return what an answer to `server/discover` agrees on; None if that is no modern version."""
    versions = result.get("supportedVersions")
    if not isinstance(versions, list):
        return None
    mutual = [version for version in MODERN_VERSIONS if version in versions]
    if not mutual:
        return None
    meta = _object(result.get("_meta"))
    info = _object(meta.get(SERVER_INFO)) or _object(result.get("serverInfo"))
    return _agreement(mutual[-1], result, info, is_modern=True)


def read_handshake(result: Mapping[str, Any]) -> Agreement:
    """Return what an answer to `initialize` agrees on.

    Raises ValueError, in words for people, if it names no version that can be spoken.
    """
    version = result.get("protocolVersion")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ValueError("the server's answer to initialize names no protocol version")
    if version in MODERN_VERSIONS:
        raise ValueError(f"the server answers initialize with version {version}, which has none")
    return _agreement(version, result, _object(result.get("serverInfo")), is_modern=False)


def next_probe(refusal: RpcRefusal) -> str | None:
    """Return the modern version to ask with after a refusal; None if it names none of ours."""
    if refusal.code != UNSUPPORTED_VERSION:
        return None
    versions = _versions(refusal.data)
    mutual = [version for version in MODERN_VERSIONS if version in versions]
    return mutual[-1] if mutual else None


def shares_nothing(refusal: RpcRefusal) -> bool:
    """Return whether a refusal says that the server speaks none of our versions."""
    versions = _versions(refusal.data)
    if refusal.code != UNSUPPORTED_VERSION or not versions:
        return False
    return not any(version in versions for version in (*MODERN_VERSIONS, *HANDSHAKE_VERSIONS))


def _versions(data: object) -> list[Any]:
    versions = data.get("supported") if isinstance(data, dict) else None
    return versions if isinstance(versions, list) else []


def _agreement(
    version: str, result: Mapping[str, Any], info: Mapping[str, Any], *, is_modern: bool
) -> Agreement:
    return Agreement(
        version=version,
        is_modern=is_modern,
        capabilities=_object(result.get("capabilities")),
        name=_text(info.get("name")),
        release=_text(info.get("version")),
        instructions=_text(result.get("instructions")),
    )


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
