"""Sums requests up into findings: what switched deferral off, since when, how often, and at what
cost. Pure.

Definitions are at the front of a prompt. So a request paid for them first out of its cache reads,
then out of its cache writes, then out of its plain input, and never more than it was billed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bundle_router_deferral.causes import (
    NO_BETAS,
    SWITCH,
    WINDOW_TOKENS,
    AgentSettings,
    CauseTable,
    RequestJudgement,
    is_truthy,
    judge,
    search_mode,
)
from bundle_router_deferral.settings import AlwaysLoad, SettingsFile
from bundle_router_deferral.transcript import DefinitionSize, RequestFacts, RequestTools, Usage

CALLS_A_SESSION: Final = 0.2
FEWEST_SESSIONS: Final = 2
"""Sessions after which a server that was not called counts as unused."""
APPLICABLE: Final = frozenset(
    (
        *(
            "env-off",
            "auto-100",
            "auto-below-threshold",
            "auto-threshold",
            "experimental-betas-disabled",
        ),
        *("toolsearch-denied", "base-url-gate", "alwaysload-unused"),
    )
)
"""Causes that `apply` has a plan for, if they are set in a file."""


BY_SHARE: Final = frozenset(("auto-below-threshold", "auto-100"))


@dataclass(slots=True)
class Share:
    """The cost of definitions: bytes and tokens as sent, and their billed tokens."""

    tools: int = 0
    bytes: int = 0
    tokens: int = 0
    cache_write: float = 0.0
    cache_read: float = 0.0
    plain: float = 0.0

    def add(self, size: DefinitionSize, cost: Usage, portion: float = 1.0) -> None:
        """Add definitions, and their portion of what a request paid."""
        self.bytes += size.bytes
        self.tokens += size.tokens
        self.cache_write += cost.cache_write * portion
        self.cache_read += cost.cache_read * portion
        self.plain += cost.plain * portion

    def as_json(self) -> dict[str, int]:
        return {name: round(getattr(self, name)) for name in self.__slots__}


def fitting_switch(tokens: int) -> str:
    """Return the setting with the largest share of the context window that this many tokens of
    definitions exceed.
    """
    share = (tokens * 100 - 1) // WINDOW_TOKENS
    return f"auto:{share}" if share >= 1 else "true"


def split_cost(tokens: int, usage: Usage) -> Usage:
    """Split definitions' tokens into those that a request read from the cache, wrote to it and paid
    in full.
    """
    read = min(tokens, usage.cache_read)
    write = min(tokens - read, usage.cache_write)
    return Usage(min(tokens - read - write, usage.plain), write, read)


@dataclass(slots=True)
class Group:
    """The requests that one cause, set in one place, switched off."""

    requests: int = 0
    sized: int = 0
    sessions: set[int] = field(default_factory=set)
    first: str = ""
    last: str = ""
    first_version: str = ""
    last_version: str = ""
    detail: str = ""
    total: Share = field(default_factory=Share)
    servers: dict[str, Share] = field(default_factory=dict)
    largest: int = 0
    gateways: set[str] = field(default_factory=set)

    def add(self, request: RequestFacts, judgement: RequestJudgement, gateway: str) -> None:
        self.requests += 1
        if gateway:
            self.gateways.add(gateway)
        self.sessions.add(hash(request.session))
        if not self.first or request.time < self.first:
            self.first = request.time
            self.first_version = request.version
        if request.time >= self.last:
            self.last = request.time
            self.last_version = request.version
            self.detail = judgement.detail
        if request.tools is None:
            return
        self.sized += 1
        sizes = request.tools.avoidable
        tokens = sum(size.tokens for size in sizes)
        self.largest = max(self.largest, tokens)
        cost = split_cost(tokens, request.usage)
        for size in sizes:
            portion = size.tokens / tokens if tokens else 0.0
            for share in (self.total, self.servers.setdefault(size.server, Share())):
                share.add(size, cost, portion)
            self.servers[size.server].tools = max(self.servers[size.server].tools, size.tools)


@dataclass(slots=True)
class Pinned:
    """A server whose tools were upfront although deferral was on."""

    sessions: set[int] = field(default_factory=set)
    requests: int = 0
    first: str = ""
    share: Share = field(default_factory=Share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the audit: what, where, since when, how often, at what cost, and what to do.

    The defaults are those of a finding that only the config shows.
    """

    cause: str
    title: str
    where: str
    detail: str
    since: str = ""
    last: str = ""
    versions: str = ""
    requests: int = 0
    of: int
    sessions: int = 0
    tokens_a_session: int = 0
    total: Mapping[str, int] = field(default_factory=dict)
    servers: tuple[tuple[str, Mapping[str, int]], ...] = ()
    fix: str
    type: str
    source: str
    value: str = ""
    """The value that `apply` would set, if it sets one."""
    keys: tuple[str, ...] = ()
    """The keys of what `apply` would remove, if `where` does not spell them out."""
    gateways: tuple[str, ...] = ()
    """Hosts other than the vendor's that today's settings lead the requests to."""

    def as_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "servers"}
        return {**plain, "servers": [{"server": server, **share} for server, share in self.servers]}


class Audit:
    """Collects requests and config into findings.

    Its memory grows with causes, servers and sessions, not requests.
    """

    def __init__(self, table: CauseTable) -> None:
        self.table = table
        self.states: Counter[tuple[str, str]] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.served = 0
        self.groups: dict[tuple[str, str], Group] = {}
        self.pinned: defaultdict[str, Pinned] = defaultdict(Pinned)
        self._calls: Counter[str] = Counter()
        self._in_force: set[str] = set()
        """Places of the settings that apply in a project with a recorded request."""
        self._files: dict[str, SettingsFile] = {}
        self._gateways: defaultdict[str, set[str]] = defaultdict(set)
        """By the path of a settings file: the gateways of the projects that it applies to."""
        self._always: dict[tuple[str, tuple[str, ...]], AlwaysLoad] = {}

    def add_config(
        self, files: Iterable[SettingsFile], always: Iterable[AlwaysLoad], gateway: str = ""
    ) -> None:
        """Take the files of a project, and the gateway that its settings lead to."""
        for file in files:
            self._files[file.path] = file
            if gateway:
                self._gateways[file.path].add(gateway)
        self._always.update({(mark.path, mark.keys): mark for mark in always})

    def add(self, request: RequestFacts, settings: AgentSettings) -> RequestJudgement:
        """Count one request, and return its judgement."""
        judgement = judge(request, settings, self.table)
        self.outcomes[request.outcome] += 1
        if request.outcome != "served":
            return judgement
        self.served += 1
        self._in_force.update(setting.where for setting in settings.variables.values())
        self._in_force.add(settings.denied)
        self.states[judgement.state, judgement.evidence] += 1
        self._calls.update(request.calls)
        if judgement.state == "off":
            group = self.groups.setdefault((judgement.cause, judgement.where), Group())
            group.add(request, judgement, settings.gateway)
        elif judgement.state == "on" and request.tools is not None:
            self._add_pinned(request, request.tools)
        return judgement

    def _add_pinned(self, request: RequestFacts, tools: RequestTools) -> None:
        for size in tools.avoidable:
            if size is tools.deferrable_builtin:
                continue
            pinned = self.pinned[size.server]
            pinned.sessions.add(hash(request.session))
            pinned.requests += 1
            pinned.first = min(filter(None, (pinned.first, request.time)), default="")
            pinned.share.tools = max(pinned.share.tools, size.tools)
            pinned.share.add(size, split_cost(size.tokens, request.usage))

    def findings(self) -> list[Finding]:
        """Return the findings, the most expensive first."""
        found = []
        for (cause, where), group in self.groups.items():
            found.append(self._off_finding(cause, where, group))
            if cause in BY_SHARE and group.largest:
                found.append(self._threshold(where, group))
        found += self._unused_findings()
        found += self._only_set()
        for file in self._files.values():
            if file.ignored:
                found.append(self._finding("config-ignored", file.path, file.ignored))

        return sorted(
            found,
            key=lambda finding: (
                -finding.tokens_a_session * finding.sessions,
                finding.cause,
                finding.where,
            ),
        )

    def _off_finding(self, cause: str, where: str, group: Group) -> Finding:
        fits = cause in BY_SHARE and group.largest > 0
        return self._finding(
            cause,
            where,
            group.detail,
            since=group.first,
            last=group.last,
            versions=" to ".join(sorted({group.first_version, group.last_version})),
            requests=group.requests,
            sessions=len(group.sessions),
            tokens_a_session=round(group.total.tokens / max(1, len(group.sessions))),
            total=group.total.as_json(),
            servers=tuple(
                (server, share.as_json()) for server, share in sorted(group.servers.items())
            ),
            value=fitting_switch(group.largest) if fits else "",
            gateways=tuple(sorted(group.gateways)),
        )

    def _threshold(self, where: str, group: Group) -> Finding:
        value = fitting_switch(group.largest)
        detail = f"{group.largest:,} tokens of definitions: {SWITCH}={value} defers them"
        return self._finding("auto-threshold", where, detail, value=value)

    def _unused_findings(self) -> list[Finding]:
        result = []
        for server, pinned in sorted(self.pinned.items()):
            calls = self._calls[server]
            sessions = len(pinned.sessions)
            if sessions < FEWEST_SESSIONS:  # it may just not have been needed yet
                continue
            if calls >= CALLS_A_SESSION * sessions:
                continue
            mark = next((mark for mark in self._always.values() if mark.server == server), None)
            share = pinned.share.as_json()
            unseen = "; the mark stands in no config file (a tool's own `_meta` can set it)"
            result.append(
                self._finding(
                    "alwaysload-unused",
                    f"{mark.path}: {'.'.join(mark.keys)}" if mark else "",
                    f"{server}: {calls} calls in {sessions} sessions{'' if mark else unseen}",
                    since=pinned.first,
                    requests=pinned.requests,
                    sessions=sessions,
                    tokens_a_session=round(pinned.share.tokens / max(1, sessions)),
                    total=share,
                    servers=((server, share),),
                    value=server,
                    keys=mark.keys if mark else (),
                )
            )
        return result

    def _only_set(self) -> list[Finding]:
        """Return settings that switch deferral off, without a request that shows it yet.

        Excludes those that another file overrides in every recorded project.
        """
        places = {where for _cause, where in self.groups}
        result = []
        for file in self._files.values():
            gateways = tuple(sorted(self._gateways.get(file.path, ())))
            for name, value in file.variables:
                place = f"{file.path}: env.{name}"
                mode = search_mode(value).mode
                if name == SWITCH:
                    cause = {"off": "env-off", "auto-100": "auto-100"}.get(mode)
                else:
                    cause = None
                if name == NO_BETAS and is_truthy(value):
                    cause = "experimental-betas-disabled"
                if cause is not None and place not in places and self._holds(place):
                    result.append(self._finding(cause, place, f"{name}={value}", gateways=gateways))
            place = f"{file.path}: permissions.deny"
            if file.denies_search and place not in places and self._holds(place):
                result.append(self._finding("toolsearch-denied", place, "", gateways=gateways))
        return result

    def _holds(self, where: str) -> bool:
        return not self.served or where in self._in_force

    def _finding(self, cause: str, where: str, detail: str, **measured: Any) -> Finding:
        """Return a finding; what was `measured` is left out where only the config shows it."""
        row = self.table[cause]
        values: dict[str, Any] = {
            "title": row.title,
            "fix": row.fix,
            "type": row.type,
            "source": row.source,
        }
        return Finding(
            cause=cause, where=where, detail=detail, of=self.served, **values, **measured
        )


@dataclass(slots=True)
class RouterSavings:
    """What the router's own decisions kept out of prompts: tokens shown, and tokens of all
    permitted tools.
    """

    runs: int = 0
    decisions: int = 0
    shown_tokens: int = 0
    all_tokens: int = 0
    damaged: int = 0

    def add(self, record: Mapping[str, Any]) -> None:
        if record.get("type") != "route.decided":
            return
        exposure = record["exposure"]
        tokens = exposure["tokens"]
        everything = exposure["all_tokens"]
        if not isinstance(tokens, int) or not isinstance(everything, int):
            raise TypeError("exposure")
        self.decisions += 1
        self.shown_tokens += tokens
        self.all_tokens += everything

    def as_json(self) -> dict[str, int]:
        saved = self.all_tokens - self.shown_tokens
        return {**{name: getattr(self, name) for name in self.__slots__}, "saved_tokens": saved}


def command_for(finding: Finding) -> str:
    """Return the command for a finding: the verb, if it has a plan."""
    editable = finding.where and finding.where != "environment"
    if finding.cause in APPLICABLE and (editable or finding.cause == "base-url-gate"):
        return f"bundle-router deferral apply {finding.cause}"
    return finding.type


def sum_servers(findings: Sequence[Finding]) -> list[tuple[str, dict[str, int]]]:
    """Sum what each server's definitions cost over the findings that switched deferral off."""
    sums: dict[str, Counter[str]] = {}
    for finding in findings:
        for server, share in finding.servers:
            row = sums.setdefault(server, Counter())
            tools = max(row["tools"], share["tools"])
            row.update(share)
            row["tools"] = tools
    return sorted(
        ((server, dict(row)) for server, row in sums.items()), key=lambda item: -item[1]["tokens"]
    )
