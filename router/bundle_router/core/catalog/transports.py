"""How servers are reached: one row a transport. What is particular to one is asked of its row, and nowhere by its name.

A new transport is a row here, and in `bundle_router.adapters.mcp.wires` what opens a connection over it. A key of its
own that says which server is reached belongs to `core.tools.pins.Origin`, too: else a pin holds for another server.
"""

from collections.abc import Mapping
from typing import Final, Literal

from bundle_router.dataclass import dataclass

Transport = Literal["streamable-http", "stdio", "sse", "local"]


@dataclass(frozen=True, slots=True)
class TransportTraits:
    """What is particular to a transport.

    `takes` are the keys of a server's entry that belong to it, the first of which it `needs`; `speaks_http` and
    `starts_process` say what is behind it; `here` whether that has this machine's files; `legacy` whether MCP has given
    it up. `list_lifetime_s` is how long a list of tools holds where nothing says otherwise.
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
"""One row a transport, those of a kind together."""
TRANSPORT_KEYS: Final = tuple(dict.fromkeys(key for traits in TRANSPORTS.values() for key in traits.takes))
"""Every key that fits some transports only."""
