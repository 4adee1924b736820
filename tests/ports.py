"""A port for a server that comes later, or is gone: no other test's server gets it meanwhile."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a port that nobody has.

    The system gives those below 32,768 to nobody who asks for any port.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
