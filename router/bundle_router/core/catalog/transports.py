"""The transports that reach servers, one row each. Code asks a transport's row for its traits, never for its name.

A new transport is a row here, and a function in `bundle_router.adapters.mcp.wires` that opens its connection. A key of
its own that identifies the server also belongs to `core.tools.pins.reviewed.Origin`: else a pin would hold for another.
"""

from collections.abc import Mapping
from typing import Final, Literal

from bundle_router.dataclass import dataclass

Transport = Literal["streamable-http", "stdio", "sse", "local"]


@dataclass(frozen=True, slots=True)
class TransportTraits:
    """The traits of a transport.

    `takes` are the keys of a server's entry that belong to it; it `needs` the first. `speaks_http` and `starts_process`
    say what is behind it; `here` whether that can read this machine's files; `legacy` whether MCP has dropped it.
    `list_lifetime_s` is how long a list of tools holds unless the server says otherwise.
    """

    takes: tuple[str, ...] = ()
    speaks_http: bool = False
    starts_process: bool = False
    here: bool = False
    legacy: bool = False
    list_lifetime_s: float = 600.0

    @property
    def needs(self) -> str | None:
        return self.takes[0] if self.takes else None

    @property
    def is_remote(self) -> bool:
        """Whether there is a server at all, which speaks MCP: the tools of `local` come with the router."""
        return self.speaks_http or self.starts_process


_HTTP_KEYS: Final = ("url", "headers", "auth", "client_id")
_STDIO_KEYS: Final = ("command", "args", "env", "files", "shared")
TRANSPORTS: Final[Mapping[Transport, TransportTraits]] = {
    "streamable-http": TransportTraits(_HTTP_KEYS, speaks_http=True),
    "sse": TransportTraits(_HTTP_KEYS, speaks_http=True, legacy=True),
    # Short: a program on this machine is one that may be in the writing.
    "stdio": TransportTraits(_STDIO_KEYS, starts_process=True, here=True, list_lifetime_s=60.0),
    "local": TransportTraits(here=True),
}
"""The transports, those of a kind together."""
TRANSPORT_KEYS: Final = tuple(dict.fromkeys(key for traits in TRANSPORTS.values() for key in traits.takes))
"""Every key that only some transports have."""
