"""Reads one transcript of Claude Code, line by line, as a stream of requests.

Pure, and bounded in memory.

Rules:
1. A request is a recorded `api-request` or, if a version records none, one assistant message.
   Several lines of one message are one request, and a message that another file repeats is not
   counted again.
2. `on` means that some definition was sent with `defer_loading` (or, in a snapshot, that the search
   tool was offered); `none` means that no tools were sent.
3. A request without an answer that was repeated with fewer betas or another set of tools was
   refused. One without an answer for another reason is unanswered.
4. A failed search proves nothing. A successful one proves deferral for its request and the rest of
   that turn.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

State = Literal["on", "off", "none", "unknown"]
Evidence = Literal["shape", "snapshot", "search", "inventory", "none"]
Outcome = Literal["served", "refused", "unanswered"]

SEARCH_TOOLS: Final = frozenset(("ToolSearch", "MCPSearch"))
"""Names of the client's search tool; it was MCPSearch in 2.1.7."""
OPEN_REQUESTS: Final = 64
KEPT_SHAPES: Final = 64
KEPT_IDS: Final = 100_000
BYTES_PER_TOKEN: Final = 4.0
BUILTIN: Final = "(built-in)"

Counter = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class DefinitionSize:
    """Definitions of one server (or built-in ones) in a request: their number, bytes as sent, and
    tokens.
    """

    server: str
    tools: int
    bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RequestTools:
    """The tools of a request: those sent upfront by server, and the built-in ones that could be
    deferred.
    """

    upfront: tuple[DefinitionSize, ...] = ()
    deferrable_builtin: DefinitionSize = DefinitionSize(BUILTIN, 0, 0, 0)
    deferred: int = 0
    searchable: bool = False

    @property
    def count(self) -> int:
        return self.deferred + sum(size.tools for size in self.upfront)

    @property
    def tokens(self) -> int:
        return sum(size.tokens for size in self.upfront)

    @property
    def avoidable(self) -> tuple[DefinitionSize, ...]:
        """Definitions that deferral would have kept out: every MCP server's and the deferrable
        built-in ones.
        """
        servers = tuple(size for size in self.upfront if size.server != BUILTIN)
        if not self.deferrable_builtin.tools:
            return servers
        return (*servers, self.deferrable_builtin)


@dataclass(frozen=True, slots=True)
class Usage:
    """Input tokens of a request as the API billed them."""

    plain: int = 0
    cache_write: int = 0
    cache_read: int = 0


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """A transcript's facts about one request."""

    session: str
    cwd: str
    version: str
    model: str
    time: str
    state: State
    evidence: Evidence
    outcome: Outcome
    inventory: bool
    after_refusal: Literal["", "same", "held"]
    sub_agent: bool
    vertex: bool
    betas: tuple[str, ...] | None
    tools: RequestTools | None
    usage: Usage
    searches: int
    calls: tuple[str, ...]


@dataclass(slots=True)
class _Open:
    """A request whose facts are still incomplete."""

    session: str
    cwd: str
    version: str
    time: str
    sub_agent: bool
    process: int
    turn: int
    inventory: bool
    id: str = ""
    model: str = ""
    message: str = ""
    shape: str = ""
    betas: tuple[str, ...] | None = None
    tools: RequestTools | None = None
    evidence: Evidence = "none"
    on: bool | None = None
    outcome: Outcome = "unanswered"
    after_refusal: Literal["", "same", "held"] = ""
    usage: Usage = Usage()
    searches: int = 0
    calls: list[str] = field(default_factory=list)


class RecentIds:
    """Ids of the newest counted messages: one object serves all files of an audit."""

    def __init__(self, most: int = KEPT_IDS) -> None:
        self._ids: OrderedDict[int, None] = OrderedDict()
        self._most = most

    def add(self, text: str) -> bool:
        """Remember an id; return whether it was new."""
        key = hash(text)
        if key in self._ids:
            return False
        self._ids[key] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)
        return True


def server_of(tool: str) -> str:
    """Return the MCP server in a tool's exposed name (`mcp__server__tool`); built-in tools have
    none.
    """
    if tool.startswith("mcp__"):
        return tool.removeprefix("mcp__").partition("__")[0] or BUILTIN
    return BUILTIN


def definition_text(tool: Mapping[str, Any]) -> str:
    """Return a definition as a client sends it: compact JSON."""
    return json.dumps(tool, ensure_ascii=False, separators=(",", ":"))


def measure_tools(
    tools: Iterable[Mapping[str, Any]], builtins: frozenset[str], count: Counter | None
) -> RequestTools:
    """Return the sizes of a request's definitions; tokens are counted, or estimated from the
    bytes.
    """
    rows: dict[str, list[int]] = {}
    loose = [0, 0, 0]
    deferred = 0
    searchable = False
    for tool in tools:
        name = str(tool.get("name", ""))
        searchable = (
            searchable
            or name in SEARCH_TOOLS
            or str(tool.get("type", "")).startswith("tool_search_tool")
        )
        if tool.get("defer_loading"):
            deferred += 1
            continue
        text = definition_text(tool)
        size = len(text.encode("utf-8", "surrogatepass"))
        sizes = (1, size, count(text) if count else round(size / BYTES_PER_TOKEN))
        for sums in [rows.setdefault(server_of(name), [0, 0, 0])] + (
            [loose] if name in builtins else []
        ):
            for i, amount in enumerate(sizes):
                sums[i] += amount
    upfront = tuple(DefinitionSize(server, *sums) for server, sums in sorted(rows.items()))
    return RequestTools(upfront, DefinitionSize(BUILTIN, *loose), deferred, searchable)


class Transcript:
    """Combines the lines of one transcript into requests.

    `feed` yields requests when they are complete; `end` yields the rest. `damaged` counts invalid
    lines, `lines` all of them.
    """

    def __init__(
        self,
        builtins: Callable[[str], frozenset[str]],
        seen: RecentIds | None = None,
        refused: dict[str, int] | None = None,
        count: Counter | None = None,
    ) -> None:
        self.lines = self.damaged = 0
        self._builtins = builtins
        self._count = count
        self._seen = seen or RecentIds()
        self._refused = {} if refused is None else refused
        """Sessions in which deferral was refused, and the process (of the main transcript) that saw
        it.
        """
        self._open: deque[_Open] = deque()
        self._shapes: OrderedDict[str, RequestTools] = OrderedDict()
        self._snapshot: RequestTools | None = None
        self._search_turn = -1
        self._calls: dict[str, _Open] = {}
        self._version = self._cwd = self._session = ""
        self._process = self._turn = 0
        self._inventory_process = -1
        self._prompt = -1
        self._ended = False
        self._last: dict[str, _Open] = {}
        """The last recorded request of each source (main thread, sub-agent, side request)."""
        self._quiet = True
        """Whether no message was recorded since the last request."""

    def feed(self, line: bytes) -> Iterator[RequestFacts]:
        """Read one line, and yield the requests that it completes."""
        if not line.strip():
            return
        self.lines += 1
        try:
            record = json.loads(line)
            self._take(record)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.damaged += 1
        while len(self._open) > OPEN_REQUESTS:
            yield self._settle(self._open.popleft())

    def end(self) -> Iterator[RequestFacts]:
        """Yield the requests still open at the end of the file."""
        while self._open:
            yield self._settle(self._open.popleft())

    def _take(self, record: dict[str, Any]) -> None:
        kind = record.get("type")
        for name in ("version", "cwd", "sessionId"):
            if name in record and not isinstance(record[name], str):
                raise TypeError(name)
        self._version = record.get("version") or self._version
        self._cwd = record.get("cwd") or self._cwd
        self._session = record.get("sessionId") or self._session
        if kind == "assistant":
            self._take_answer(record)
        elif kind == "user":
            self._take_user(record)
        elif kind == "attachment":
            self._take_attachment(record["attachment"])
        elif kind == "api-request-shape":
            tools = _tools(record["shape"].get("tools") or [])
            self._shapes[record["shapeHash"]] = self._measure(tools)
            if len(self._shapes) > KEPT_SHAPES:
                self._shapes.popitem(last=False)
        elif kind == "api-request":
            self._take_request(record)
        elif kind == "cost-state":
            self._ended = True

    def _measure(self, tools: Iterable[Mapping[str, Any]]) -> RequestTools:
        return measure_tools(tools, self._builtins(self._version), self._count)

    def _begin_request(self, record: Mapping[str, Any]) -> _Open:
        request = _Open(
            session=self._session,
            cwd=self._cwd,
            version=self._version,
            time=str(record.get("timestamp") or ""),
            sub_agent=bool(record.get("isSidechain"))
            or str(record.get("querySource", "")).startswith("agent"),
            process=self._process,
            turn=self._turn,
            inventory=self._inventory_process == self._process,
        )
        if self._turn == self._search_turn:
            _prove(request)
        self._open.append(request)
        return request

    def _take_request(self, record: dict[str, Any]) -> None:
        params = record["params"]
        betas = params.get("betas")
        if not self._seen.add(f"request {record['id']}"):
            return
        source = str(record.get("querySource") or "")
        last = self._last.get(source) if self._quiet else None
        if last is not None and (
            last.outcome != "unanswered" or record.get("base") not in (None, last.id)
        ):
            last = None
        if self._ended and record.get("base") is None and last is None:
            self._begin_process()
        request = self._begin_request(record)
        request.id = record["id"]
        request.model = str(params.get("model") or "")
        request.shape = record["shapeHash"]
        request.betas = tuple(str(beta) for beta in betas) if isinstance(betas, list) else None
        request.tools = self._shapes.get(request.shape)
        if request.tools is not None:
            request.evidence = "shape"
            request.on = request.tools.deferred > 0
        if last is not None and (last.betas != request.betas or last.shape != request.shape):
            last.outcome = "refused"
            if last.on and request.on is False:
                self._refused[self._session] = self._process
        if len(self._last) >= OPEN_REQUESTS:
            self._last.clear()
        self._last[source] = request
        self._quiet = True

    def _begin_process(self) -> None:
        """Begin a new process, for which the last one's state need not apply."""
        self._process += 1
        self._snapshot = None
        self._ended = False

    def _take_answer(self, record: dict[str, Any]) -> None:
        message = record["message"]
        if message.get("model") == "<synthetic>" or record.get("isApiErrorMessage"):
            return  # the client's own text about an error, no answer
        identity = message["id"]
        content = message["content"]
        if not isinstance(identity, str) or not isinstance(content, list):
            raise TypeError("message")
        usage = _usage(message.get("usage") or {})
        request = next((r for r in reversed(self._open) if r.message == identity), None)
        if request is None:
            request = self._answered_request(record, identity)
            if request is None:
                return
            request.message = identity
            request.outcome = "served"
            request.usage = usage
            request.model = request.model or str(message.get("model") or "")
            request.sub_agent = request.sub_agent or bool(record.get("isSidechain"))
            request.cwd = request.cwd or self._cwd
        for block in content:
            if block.get("type") == "tool_use" and isinstance(block.get("name"), str):
                if block["name"] in SEARCH_TOOLS:
                    request.searches += 1
                    self._calls[str(block.get("id"))] = request
                elif len(request.calls) < OPEN_REQUESTS:
                    request.calls.append(server_of(block["name"]))
        self._quiet = False

    def _answered_request(self, record: dict[str, Any], identity: str) -> _Open | None:
        """Return the request that an assistant message answers; None if it was counted before."""
        if not self._seen.add(identity):
            return None

        request = self._open_request(record.get("requestRef"))
        if request is not None:
            return request
        if self._ended:
            self._begin_process()
        return self._begin_request(record)

    def _open_request(self, reference: Any) -> _Open | None:
        """Return the newest request that a message refers to; without a reference, the newest that
        is unanswered.
        """
        for request in reversed(self._open):
            if not request.id:
                continue
            if request.id == reference:
                return request
            if reference is None and request.outcome == "unanswered":
                return request
        return None

    def _take_user(self, record: dict[str, Any]) -> None:
        content = record["message"]["content"]
        position = record.get("turnPosition")
        if isinstance(position, dict) and isinstance(position.get("promptIndex"), int):
            self._ended = self._ended or position["promptIndex"] <= self._prompt
            self._prompt = position["promptIndex"]
        if isinstance(content, list):
            results = [b for b in content if b.get("type") == "tool_result"]
        else:
            results = []
        if not results:
            self._turn += 1
        for block in results:
            request = self._calls.pop(str(block.get("tool_use_id")), None)
            if request is not None and _search_succeeded(block, record.get("toolUseResult")):
                self._search_turn = request.turn
                _prove(request)
        self._quiet = False

    def _take_attachment(self, attachment: dict[str, Any]) -> None:
        kind = attachment.get("type")
        if kind == "deferred_tools_delta":
            if not isinstance(attachment.get("addedNames"), list):
                raise TypeError("addedNames")
            if self._ended:
                self._begin_process()
            self._inventory_process = self._process
            for request in self._open:
                request.inventory = request.inventory or request.process == self._process
        elif kind == "prompt_snapshot" and isinstance(attachment.get("tools"), list):
            if self._ended:
                self._begin_process()
            self._snapshot = self._measure(map(_as_sent, _tools(attachment["tools"])))
            for request in self._open:
                if request.process == self._process:
                    self._apply_snapshot(request)

    def _apply_snapshot(self, request: _Open) -> None:
        if request.evidence in ("none", "search") and self._snapshot is not None:
            request.evidence = "snapshot"
            request.tools = self._snapshot
            request.on = self._snapshot.searchable or self._snapshot.deferred > 0

    def _settle(self, request: _Open) -> RequestFacts:
        if request.process == self._process:
            self._apply_snapshot(request)
        if request.on is False and request.session in self._refused:
            is_restarted = request.process > self._refused[request.session]
            request.after_refusal = "same"
            if is_restarted and not request.sub_agent:
                request.after_refusal = "held"
        values = {
            name: getattr(request, name)
            for name in RequestFacts.__slots__
            if name in _Open.__slots__
        }
        return RequestFacts(
            **values
            | {
                "state": _state_of(request),
                "vertex": _is_for_vertex(request),
                "calls": tuple(request.calls),
            }
        )


def _prove(request: _Open) -> None:
    if request.evidence == "none":
        request.evidence = "search"
        request.on = True


def _state_of(request: _Open) -> State:
    """Return whether tools were deferred: for a request without tools there is nothing to defer."""
    if request.tools is not None and request.tools.count == 0:
        return "none"
    if request.on is None:
        return "unknown"
    return "on" if request.on else "off"


def _is_for_vertex(request: _Open) -> bool:
    """Return whether a request went to Vertex AI, by its model's name or by its search's beta."""
    if request.model.startswith("/vertex"):
        return True
    return "tool-search-tool-2025-10-19" in (request.betas or ())


def _tools(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise TypeError("tools")
    return value


def _as_sent(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a snapshot's definition as it was sent; the snapshot calls the schema `schema`."""
    return {("input_schema" if key == "schema" else key): value for key, value in tool.items()}


def _usage(usage: Mapping[str, Any]) -> Usage:
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    numbers = [usage.get(name) or 0 for name in names]
    if not all(isinstance(number, int) for number in numbers):
        raise TypeError("usage")
    return Usage(*numbers)


def _search_succeeded(block: Mapping[str, Any], result: Any) -> bool:
    if block.get("is_error"):
        return False

    content = block.get("content")
    parts = content if isinstance(content, list) else []
    types = [part.get("type") for part in parts if isinstance(part, dict)]
    if "tool_reference" in types:
        return True
    return isinstance(result, dict) and isinstance(result.get("matches"), list)
