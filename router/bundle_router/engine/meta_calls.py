"""Calls to the meta-tools.

A call through `call_tool` is not one: it is a call of the tool that it names.

Rules:
1. Answers use the current decision and fresh facts alone: they name exactly the tools that may be
   called.
2. A call is recorded once it is answered. It has no effect outside, so no start is recorded.
3. A name that was asked for and does not exist here is refused with the reason, and recorded as a
   gap.
4. A tool that was found joins the array, if the array may change; the record names it.
5. Artifacts of the run and of its ancestors can be read, no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from bundle_router.core.decide.activation import CallEffect, resume_activation, tools_past_cap
from bundle_router.core.exposure.meta_tools.artifact_pages import (
    describe_media,
    literal,
    queried,
    read_page,
    search_lines,
    text_of,
)
from bundle_router.core.exposure.meta_tools.coercion import (
    GetToolDetails,
    ListTools,
    Malformed,
    ReadArtifact,
    SearchArtifact,
    SearchTools,
    SelectTools,
    Wanted,
    parse,
)
from bundle_router.core.exposure.meta_tools.descriptions import (
    MetaAnswer,
    VisibleTools,
    describe_tool,
    found_text,
    list_bundle,
    list_bundles,
    selected_text,
)
from bundle_router.core.records.call_records import CallFinished
from bundle_router.core.servers.transport.tool_servers import CallOutcome
from bundle_router.core.values import META_SERVER, Outcome, Text
from bundle_router.core.values.artifacts import Artifact, MediaFacts
from bundle_router.engine.arguments import Arguments
from bundle_router.engine.call_refusals import refuse, why_missing
from bundle_router.engine.engine_ports import CallPorts, EnginePorts
from bundle_router.engine.made_calls import (
    finish_call,
    joined_after,
    result_of,
    shape_blocks,
    store,
)
from bundle_router.engine.program_values import type_of
from bundle_router.engine.reservations import within_budget
from bundle_router.engine.results import (
    AdmittedCall,
    CallRequest,
    Joined,
    Result,
    called_name,
)
from bundle_router.engine.run_records import OpenRun
from bundle_router.engine.surface import RunState, why_not
from bundle_router.engine.toolsets import visible_tools
from bundle_router.errors import CorruptRun, StorageError

MARGIN: Final = 400
"""Characters of the result's limit that a page of an artifact leaves for the text around it."""
RANKED: Final = 30
"""Tools that search is asked for: enough to fill an answer when some are revoked or too long."""
BAD_QUERY: Final = "bad_query"
"""The code of a query that can't be answered. The text that says why may quote the artifact."""


@dataclass(frozen=True, slots=True)
class MissedTool:
    """A tool that was asked for by name and can't be had: its name, the code, and a sentence."""

    tool: str
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class MetaReply:
    """A meta-tool's answer with its outcome.

    `asked` holds (bundle, tools) that may join the array. `media` are artifacts that were asked for
    and that no text can show. `signed`: tools whose signatures it contains. `framed`: it holds
    what an untrusted server said.
    """

    text: str
    outcome: Outcome = "ok"
    code: str = ""
    asked: tuple[tuple[str, tuple[str, ...]], ...] = ()
    refused: tuple[MissedTool, ...] = ()
    media: tuple[Artifact, ...] = ()
    signed: tuple[str, ...] = ()
    framed: bool = False


@dataclass(frozen=True, slots=True)
class MetaQuestion:
    """The inputs of an answer.

    `artifact` returns an artifact that the run may read, by digest (KeyError). `last_result`
    returns what a call of a tool gave last in this run. `signed_before` are the tools whose
    signatures the agent got earlier in this step.
    """

    ports: EnginePorts
    state: RunState
    artifact: Callable[[str], bytes]
    last_result: Callable[[str], Result | None]
    joins: bool
    signed_before: frozenset[str] = frozenset()

    def visible_tools(self) -> VisibleTools:
        return replace(
            visible_tools(self.state, joins=self.joins),
            described=self.signed_before,
            type_seen=self._type_seen,
        )

    def _type_seen(self, tool: str) -> str:
        result = self.last_result(tool)
        return type_of(result, self.artifact, self.state.catalog) if result is not None else ""


async def answer(at: CallPorts, state: RunState, request: CallRequest) -> Result:
    """Answer a call to a meta-tool, update the array, and record both."""
    call = AdmittedCall(
        f"{META_SERVER}.{request.name}",
        "",
        request,
        state,
        state.scope,
        at.ports.clock.monotonic_ns(),
    )
    return await within_budget(at, call, partial(_answer_call, at, call))


async def _answer_call(at: CallPorts, call: AdmittedCall) -> Result:
    ports = at.ports
    run = at.run
    state = call.state
    request = call.request
    name = request.name
    arguments = request.arguments
    wrong = request.arguments.wrong
    decision_id = state.decided.decision.decision_id
    meta_request: Wanted
    if wrong:
        meta_request = Malformed(f"The arguments of {name!r} {wrong[1]}")
    else:
        meta_request = parse(name, arguments.value)
    question = MetaQuestion(
        ports,
        state,
        partial(at.tree.artifact, run.id, principal=state.step.principal),
        partial(_last_result, run, state.step.principal),
        request.joins,
        run.signed_at(decision_id),
    )
    reply = await asyncio.to_thread(_answer, question, meta_request)
    returns: tuple[str, ...] = ()
    if request.joins:
        reply = _with_leaving(state, reply)
    if isinstance(meta_request, ReadArtifact | SearchArtifact) and reply.code in ("", BAD_QUERY):
        is_framed = await asyncio.to_thread(at.tree.is_framed, run.id, meta_request.sha256)
        reply = replace(reply, framed=is_framed)
        if run.fold.ledger is not None:
            read = partial(at.tree.artifact_taints, run, arguments.text)
            returns = tuple(sorted(await asyncio.to_thread(read)))
    shaped = await shape_blocks(
        ports,
        state.catalog.settings.limits.max_result_chars,
        (Text(reply.text),),
        framed=reply.framed,
    )
    stored = await store(run, shaped.blobs)

    def end(wait_s: float) -> Result:
        run.read_on()
        present = run.fold.decided(state.decided.branch)
        is_present = present is not None and present.decision.decision_id == decision_id
        joined: Joined = ()
        if request.joins and is_present:  # else the run has gone on to another step meanwhile
            joined = joined_after(state, run.fold.activation(state.decided.branch), reply.asked)
        if is_present:
            run.signed = (decision_id, run.signed_at(decision_id) | {*reply.signed})
        outcome = CallOutcome(
            reply.outcome, reply.code, shaped, stored=stored, joined=joined, returns=returns
        )
        if returns and run.parent_id is not None:
            at.tree.pass_taints(run, state.decided, (call.tool, "", frozenset(returns)), wait_s)
        result = finish_call(ports, run, call, outcome, wait_s=wait_s)
        return replace(result, artifacts=(*reply.media, *result.artifacts))

    result = await run.under_lock(end)
    for missed_tool in reply.refused:
        await run.under_lock(
            partial(record_missed, at, replace(request, via=name), state, missed_tool)
        )
    await at.run.wait_until_durable()
    return result


def _last_result(run: OpenRun, principal: str, tool: str) -> Result | None:
    """Return what a call of a tool gave last in a run, for a principal. Blocks."""

    def read(_wait_s: float) -> Mapping[str, Any] | None:
        seq = run.fold.last_result(tool, principal)
        return run.log.record(seq) if seq is not None else None

    line = run.under_lock_sync(read)
    if line is None:
        return None
    return result_of(CallFinished.from_json(line), idempotent=False, again=True)


async def refuse_missed(at: CallPorts, state: RunState, name: str) -> Result:
    """Record that a framework refused a tool on its own, and return why the tool can't be had."""
    name = called_name(at.ports.redactor, name)
    resolved = state.surface.resolve(name, state.exposed())
    code, text = why_missing(state, name, resolved)
    request = CallRequest(name, Arguments({}, "{}"), at.ports.clock.monotonic_ns(), via="missed")

    def record(wait_s: float) -> Result:
        at.run.read_on()
        return record_missed(at, request, state, MissedTool(resolved.name, code, text), wait_s)

    return await at.run.record(record)


def record_missed(
    at: CallPorts, request: CallRequest, state: RunState, missed: MissedTool, wait_s: float
) -> Result:
    """Record a tool that was asked for by name and can't be had, as a gap.

    The caller holds the run's lock.
    """
    ports = at.ports
    run = at.run
    now_ns = ports.clock.monotonic_ns()
    call = AdmittedCall(missed.tool, "", request, state, state.scope, now_ns)
    return refuse(ports, run, call, ("denied", missed.code, missed.text), wait_s)


def _answer(question: MetaQuestion, wanted: Wanted) -> MetaReply:
    """Return the answer. Blocks while search builds its index and artifacts are read from disk."""
    if isinstance(wanted, Malformed):
        return MetaReply(wanted.text, "invalid_arguments", "invalid_arguments")
    if isinstance(wanted, ReadArtifact | SearchArtifact):
        return _artifact(
            question, wanted, question.state.catalog.settings.limits.max_result_chars - MARGIN
        )
    if isinstance(wanted, SearchTools | ListTools) and (reason := question.state.why_nothing):
        return MetaReply(f"This step has no tools now: {reason}.")
    visible = question.visible_tools()
    if isinstance(wanted, SearchTools):
        ranked = question.state.surface.rank(
            wanted.query, frozenset(visible.places), RANKED, answering=True
        )
        return _with_joining(visible, found_text(visible, ranked, wanted.limit))
    if isinstance(wanted, SelectTools | GetToolDetails):
        return _by_name(question, visible, wanted)
    assert isinstance(wanted, ListTools), "call_tool is the call of another tool"  # noqa: S101 - the engine's bug
    return _with_joining(
        visible, list_bundle(visible, wanted.id) if wanted.id else list_bundles(visible)
    )


def _with_joining(
    visible: VisibleTools, answered: MetaAnswer, refused: Sequence[MissedTool] = ()
) -> MetaReply:
    """Return an answer with the tools that may join the array: each with its bundle and the
    bundle's companions.
    """
    homes = {row.name: row.bundle for row in visible.placement.deferred}
    groups: dict[str, dict[str, None]] = {}
    for tool in answered.tools:
        companions = visible.catalog.bundles[homes[tool]].companions
        group = groups.setdefault(homes[tool], {})
        group[tool] = None
        for companion in companions:
            if homes.get(companion) == homes[tool]:
                group[companion] = None
    by_bundle = tuple((bundle, tuple(tools)) for bundle, tools in groups.items())
    return MetaReply(answered.text, asked=by_bundle, refused=tuple(refused), signed=answered.signed)


def _with_leaving(state: RunState, reply: MetaReply) -> MetaReply:
    """Return the answer with the tools that leave at the next step, if it lets more join than
    stay.
    """
    joined = joined_after(state, state.activation, reply.asked)
    if not joined:
        return reply
    after = resume_activation(state.activation, (CallEffect(joined=joined),))
    cap = state.catalog.settings.activation.max_tools
    leaving = tools_past_cap(after, cap)
    if not leaving:
        return reply
    exposed = state.surface.exposed
    names = ", ".join(exposed.get(tool, tool) for tool in leaving)
    text = (
        f"{reply.text}\nYour tool list keeps the {cap} tools asked for last: when the next step"
        f" begins, these leave it: {names}."
    )
    return replace(reply, text=text)


def _by_name(
    question: MetaQuestion, visible: VisibleTools, wanted: SelectTools | GetToolDetails
) -> MetaReply:
    written_names = wanted.names if isinstance(wanted, SelectTools) else (wanted.name,)
    names = tuple(called_name(question.ports.redactor, name) for name in written_names)
    dropped = ", ".join(wanted.dropped) if isinstance(wanted, SelectTools) else ""
    so_dropped = (
        f"One call takes {len(names)} names, so these were dropped: {dropped}. Select them in"
        " another call."
    )
    notes = [so_dropped] if dropped else []
    resolved_names: dict[str, None] = {}
    missed_tools: list[MissedTool] = []
    for name in names:
        resolved = question.state.surface.resolve(name, visible.places)
        if resolved.known:
            resolved_names[resolved.name] = None
        else:
            code, detail = why_not(question.state, resolved.name)
            text = f"{name!r} is not available at this step ({code}: {detail}). {resolved.hint}"
            missed_tools.append(MissedTool(resolved.name, code, text.rstrip()))
    if resolved_names:
        if isinstance(wanted, GetToolDetails):
            return _with_joining(visible, describe_tool(visible, next(iter(resolved_names))))
        notes = [*(row.text for row in missed_tools), *notes]
        return _with_joining(
            visible, selected_text(visible, tuple(resolved_names), notes), missed_tools
        )
    if not missed_tools:
        return MetaReply(
            "No tool was named: write select:name,other_name.",
            "invalid_arguments",
            "invalid_arguments",
        )
    text = "\n".join((*(row.text for row in missed_tools), *notes))
    return MetaReply(text, "denied", missed_tools[0].code, refused=tuple(missed_tools))


def _artifact(question: MetaQuestion, wanted: ReadArtifact | SearchArtifact, cap: int) -> MetaReply:
    uri = f"artifact:sha256:{wanted.sha256}"
    ports = question.ports
    try:
        data = question.artifact(wanted.sha256)
    except KeyError:
        return MetaReply(f"This run has no artifact {uri}.", "tool_error", "not_found")
    except (CorruptRun, StorageError) as trouble:
        ports.diagnostics.event(
            "error", "artifact.unread", run_id=question.state.run_id, uri=uri, error=trouble
        )
        return MetaReply(
            f"The artifact {uri} can't be read; the operator's log says why.",
            "tool_error",
            "storage",
        )
    facts = ports.describe(data)
    text = text_of(data, facts)
    if text is None:
        media = () if isinstance(wanted, SearchArtifact) else (_stored_artifact(uri, data, facts),)
        return MetaReply(describe_media(uri, data, facts), media=media)
    if isinstance(wanted, ReadArtifact):
        return MetaReply(read_page(wanted, text, data, cap))
    if wanted.query:
        try:
            return MetaReply(queried(partial(ports.queries, wanted.query), text, cap))
        except ValueError as wrong:
            return MetaReply(
                f"The query can't be answered: {wrong}.", "invalid_arguments", BAD_QUERY
            )
    find = literal(wanted.pattern)
    if wanted.is_regex:
        try:
            find = ports.patterns(wanted.pattern)
        except ValueError as wrong:
            text = f"The pattern can't be searched for: {wrong}. For plain text leave 'regex:' out."
            return MetaReply(text, "invalid_arguments", "bad_pattern")
    return MetaReply(search_lines(wanted, text, find, cap))


def _stored_artifact(uri: str, data: bytes, facts: MediaFacts) -> Artifact:
    """Return the facts of a stored artifact.

    What its tool said about it is in its call's record.
    """
    sha256 = uri.rpartition(":")[2]
    stored = Artifact(uri, sha256, facts.mime_type, len(data), role="media")
    return replace(stored, width=facts.width, height=facts.height, duration_s=facts.duration_s)
