"""Sessions of clients of the handshake era, and the notifications that wait for a client. Pure.

Times are the caller's, in seconds of any clock that only rises.

Rules:
1. A session is open from its `initialize` until its client ends it, until nobody has asked anything
   in it for `idle_s`, or until a new one needs its place.
2. It is in use while a request of it is under way or its stream is open. A session in use neither
   expires nor makes room.
3. If there are `most` sessions, a new one replaces the one that was used longest ago: clients leave
   without a word, and would lock out everybody until their sessions expire.
4. Notifications for a client wait in its outbox until its stream takes them. One that equals a
   waiting one says nothing new and is left out, so an outbox has a bound although nothing is lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]

MAX_WAITING: Final = 256
"""Maximum notifications in an outbox.

A run has fewer lists and followed resources, so it only bounds what is wrong elsewhere.
"""


class Outbox:
    """The notifications that wait for one stream of a client."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, Json | None]] = []
        self.is_closed = False
        self.on_change: Callable[[], None] = _nobody
        """Called when a notification came, or the outbox was closed."""

    def put(self, method: str, params: Json | None) -> None:
        """Add a notification, unless an equal one waits."""
        notification = method, params
        if notification not in self._waiting and len(self._waiting) < MAX_WAITING:
            self._waiting.append(notification)
            self.on_change()

    def take(self) -> list[tuple[str, Json | None]]:
        """Return what waits, in order, and empty the outbox."""
        waiting = self._waiting
        self._waiting = []
        return waiting

    def close(self) -> None:
        """End the stream, after what waits."""
        self.is_closed = True
        self.on_change()


def _nobody() -> None:
    """Nobody waits for notifications."""


@dataclass(slots=True, eq=False)
class ClientSession:
    """A session of one client."""

    id: str
    """Its id, which nobody guesses."""
    version: str
    """The revision that was negotiated."""
    capabilities: Mapping[str, Any]
    """What the client can do, in the protocol's form."""
    log_level: str = ""
    """The lowest level of log lines that the client wants; empty: none."""
    is_ready: bool = False
    """Whether the client said that it is initialized, and hears notifications."""
    is_ended: bool = False
    """Whether it is over, and its id unknown."""
    has_stream: bool = False
    """Whether the client's own stream (GET) is open."""
    used_s: float = 0.0
    """When it was last used."""
    followed: set[str] = field(default_factory=set)
    """The resources, and lists, whose changes the client hears of."""
    under_way: dict[str, Callable[[], None]] = field(default_factory=dict)
    """The requests under way by id, as text: what cancels each."""
    questions: dict[str, Callable[[Any], None]] = field(default_factory=dict)
    """The questions to the client by id, as text: what takes the answer."""
    question_count: int = 0
    """The number of questions so far; the last one's id."""
    outbox: Outbox = field(default_factory=Outbox)
    """What waits for the client's own stream."""

    @property
    def is_in_use(self) -> bool:
        """Whether a request is under way or the stream is open."""
        return self.has_stream or bool(self.under_way)


class ClientSessions:
    """The sessions of one run.

    `most` is their maximum number; one that nobody uses for `idle_s` seconds expires.
    """

    def __init__(self, most: int, idle_s: float) -> None:
        self._most = most
        self._idle_s = idle_s
        self._sessions: OrderedDict[str, ClientSession] = OrderedDict()
        """By id; the one that was used longest ago comes first."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Any:
        return iter(list(self._sessions.values()))

    def get(self, id_: str) -> ClientSession | None:
        """Return the session with this id, if it is open."""
        return self._sessions.get(id_)

    def use(self, session: ClientSession, now_s: float) -> None:
        """Note that a session was used."""
        session.used_s = now_s
        if session.id in self._sessions:
            self._sessions.move_to_end(session.id)

    def replaced_session(self) -> ClientSession | None:
        """Return the session that a new one would replace; None if there is room.

        Raises LookupError if there is none, as all are in use.
        """
        if len(self._sessions) < self._most:
            return None
        for session in self._sessions.values():
            if not session.is_in_use:
                return session
        raise LookupError("all sessions are in use")

    def add(self, session: ClientSession, now_s: float) -> None:
        """Open a session."""
        self._sessions[session.id] = session
        self.use(session, now_s)

    def remove(self, session: ClientSession) -> None:
        """End a session: nobody can ask anything in it any more."""
        session.is_ended = True
        self._sessions.pop(session.id, None)

    def expired(self, now_s: float) -> list[ClientSession]:
        """Return the sessions that nobody has used for too long."""
        return [
            session
            for session in self._sessions.values()
            if not session.is_in_use and session.used_s + self._idle_s <= now_s
        ]

    def wait_s(self, now_s: float) -> float:
        """Return after how many seconds a session may expire next."""
        idle = [session.used_s for session in self._sessions.values() if not session.is_in_use]
        return max(0.0, min(idle, default=now_s) + self._idle_s - now_s)
