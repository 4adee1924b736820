"""Calls to the router's own tools. `call_tool` is no such call: it is the call of the tool it names.

Rules:
1. Answers are made from the current decision alone, with fresh facts: the same tools that may be called.
2. A call is recorded when it is answered. It has no effect outside, so nothing is recorded before.
3. What was asked for by name and is not there is refused with its reason, and recorded as a gap of that tool.
4. What was found joins the array, where there is one that may change; the record names it.
5. Artifacts are those of the run and of its ancestors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bundle_router.core.models import Activation, Facts, Outcome, Text
from bundle_router.core.models.folders import TOP
from bundle_router.core.tools.meta_tools import (
    META_SERVER,
    GetToolDetails,
    ListTools,
    Malformed,
    MetaAnswer,
    ReadArtifact,
    SearchArtifact,
    SearchTools,
    SelectTools,
    VisibleTools,
    Wanted,
    describe_media,
    describe_tool,
    found_text,
    list_bundle,
    list_bundles,
    literal,
    parse,
    read_page,
    resolve,
    search_lines,
    selected_text,
    text_of,
)
from bundle_router.core.tools.meta_tools.plain import relevant
from bundle_router.core.tools.shaping import MediaFacts, shape
from bundle_router.engine.arguments import Arguments
from bundle_router.engine.exposed import why_not
from bundle_router.engine.outcomes import Admitted, Joined, Result, ask_for, finish_call, shape_result, spend
from bundle_router.engine.run import Current, Deps, Run, on_disk
from bundle_router.engine.surface import Surface
from bundle_router.errors import CorruptRun, RequestError, StorageError
from bundle_router.ports import RawResult, Scope, Stored

MARGIN: Final = 400
"""Characters of a result's cap that a page leaves for what is said around it."""
RANKED: Final = 30
"""Tools that search is asked for, so that there are enough when some are revoked or too long to be told of."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A tool that was asked for by name and is not to be had: its name, the code, and a sentence."""

    tool: str
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """An answer with its outcome. `asked` holds (bundle, tools) that may join the array; `signed` are tools
    whose signatures are in the text; `media` are artifacts of the
    run that were asked for and that no text can show."""

    text: str
    outcome: Outcome = "ok"
    code: str = ""
    asked: tuple[tuple[str, tuple[str, ...]], ...] = ()
    refused: tuple[Refused, ...] = ()
    media: tuple[Stored, ...] = ()
    signed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _View:
    """What an answer is made from. `joins`: whether what was found may join the array."""

    deps: Deps
    surface: Surface
    facts: Facts
    run: Run
    artifact: Callable[[str], bytes]
    current: Current
    activation: Activation
    joins: bool

    def shelf(self) -> VisibleTools:
        shelf = self.surface.shelf(self.facts, self.current, self.activation, joins=self.joins)
        decision_id, told = self.run.told
        return replace(shelf, told=told) if decision_id == self.current.decision.decision_id else shelf


async def answer(
    deps: Deps,
    surface: Surface,
    facts: Facts,
    run: Run,
    artifact: Callable[[str], bytes],
    name: str,
    given: Arguments,
    *,
    joins: bool,
) -> Result:
    """Answers, activates and records. `artifact` gives those that the run may use, by digest (KeyError); `joins`:
    whether what was found may join the array."""
    started = deps.clock.monotonic_ns()
    with run.lock:
        current, activation = run.current, run.activation
        if current is None:
            raise RequestError(
                f"run {run.id!r} has no decision yet, so no tool is exposed", advice="call route() for its first step"
            )
        scope = Scope(run.id, current.step.principal)
        own = Admitted(
            "", current.decision.decision_id, f"{META_SERVER}.{name}", "", {}, given.text, TOP, scope, started
        )
        refused = spend(deps, surface.catalog, run, replace(own, call_id=f"{run.id}.{run.log.next_seq}"))
        run.leases += 1
    try:
        if refused is not None:
            await on_disk(run)
            return refused
        view = _View(deps, surface, facts, run, artifact, current, activation, joins)
        wanted = Malformed(f"The arguments of {name!r} {given.wrong[1]}") if given.wrong else parse(name, given.value)
        said = await asyncio.to_thread(_said, view, wanted)
        shaped, stored = await shape_result(deps, surface.catalog, run, RawResult((Text(said.text),)))
        cap = surface.catalog.settings.limits.max_result_chars
        with run.lock:
            joined: Joined = ()
            if joins and run.current is current:  # else the run has gone on to another step meanwhile
                run.activation, joined = ask_for(run.activation, said.asked)
            if said.signed and run.current is current:
                decision_id, told = run.told
                before = told if decision_id == current.decision.decision_id else frozenset()
                run.told = (current.decision.decision_id, before | {*said.signed})
            own = replace(own, call_id=f"{run.id}.{run.log.next_seq}")
            result = finish_call(deps, run, own, said.outcome, said.code, shaped, stored, joined=joined)
            result = replace(result, artifacts=(*said.media, *result.artifacts))
            for gone in said.refused:
                gap = replace(own, call_id=f"{run.id}.{run.log.next_seq}", tool=gone.tool, via=name)
                text = shape((Text(gone.text),), cap, deps.describe)
                finish_call(deps, run, gap, "denied", gone.code, text, (), counts=False)
        await on_disk(run)
        return result
    finally:
        run.release()


def _said(view: _View, wanted: Wanted) -> Said:
    """What there is to say. Blocks: search may have to make its index, artifacts are read from disk."""
    if isinstance(wanted, Malformed):
        return Said(wanted.text, "invalid_arguments", "invalid_arguments")
    if isinstance(wanted, ReadArtifact | SearchArtifact):
        return _artifact(view, wanted, view.surface.catalog.settings.limits.max_result_chars - MARGIN)
    shelf = view.shelf()
    if isinstance(wanted, SearchTools):
        ranked = view.surface.rank(wanted.query, frozenset(shelf.places), RANKED)
        ranked = relevant(view.surface.catalog, wanted.query, ranked)
        return _told(shelf, found_text(shelf, ranked, wanted.limit))
    if isinstance(wanted, SelectTools | GetToolDetails):
        return _by_name(view, shelf, wanted)
    assert isinstance(wanted, ListTools), "call_tool is the call of another tool"  # noqa: S101 - the engine's bug
    return _told(shelf, list_bundle(shelf, wanted.id) if wanted.id else list_bundles(shelf))


def _told(shelf: VisibleTools, answered: MetaAnswer, refused: Sequence[Refused] = ()) -> Said:
    """An answer, with what may join the array: each tool for its bundle, and the bundle's companions with it."""
    homes = {row.name: row.bundle for row in shelf.placement.deferred}
    groups: dict[str, dict[str, None]] = {}
    for tool in answered.tools:
        companions = shelf.catalog.bundles[homes[tool]].companions
        with_it = (tool, *(other for other in companions if homes.get(other) == homes[tool]))
        groups.setdefault(homes[tool], {}).update(dict.fromkeys(with_it))
    asked = tuple((bundle, tuple(tools)) for bundle, tools in groups.items())
    return Said(answered.text, asked=asked, refused=tuple(refused), signed=answered.signed)


def _by_name(view: _View, shelf: VisibleTools, wanted: SelectTools | GetToolDetails) -> Said:
    names = wanted.names if isinstance(wanted, SelectTools) else (wanted.name,)
    found: dict[str, None] = {}
    refused: list[Refused] = []
    for name in names:
        meant = resolve(name, shelf.places, view.surface.canonical)
        if meant.known:
            found[meant.name] = None
        else:
            code, detail = why_not(view.surface.catalog, view.facts, view.current, meant.name)
            text = f"{name!r} is not available at this step ({code}: {detail}). {meant.hint}".rstrip()
            refused.append(Refused(meant.name, code, text))
    if found:
        if isinstance(wanted, GetToolDetails):
            return _told(shelf, describe_tool(shelf, next(iter(found))))
        return _told(shelf, selected_text(shelf, tuple(found), [row.text for row in refused]), refused)
    if not refused:
        return Said("No tool was named: write select:name,other_name.", "invalid_arguments", "invalid_arguments")
    return Said("\n".join(row.text for row in refused), "denied", refused[0].code, refused=tuple(refused))


def _artifact(view: _View, wanted: ReadArtifact | SearchArtifact, cap: int) -> Said:
    uri = f"artifact:sha256:{wanted.sha256}"
    try:
        data = view.artifact(wanted.sha256)
    except KeyError:
        return Said(f"This run has no artifact {uri}.", "tool_error", "not_found")
    except (CorruptRun, StorageError) as trouble:
        view.deps.diagnostics.event("error", "artifact.unread", run_id=view.run.id, uri=uri, error=trouble)
        return Said(f"The artifact {uri} can't be read; the operator's log says why.", "tool_error", "storage")
    facts = view.deps.describe(data)
    text = text_of(data, facts)
    if text is None:
        media = () if isinstance(wanted, SearchArtifact) else (_stored(uri, data, facts),)
        return Said(describe_media(uri, data, facts), media=media)
    if isinstance(wanted, ReadArtifact):
        return Said(read_page(wanted, text, data, cap))
    find = literal(wanted.pattern)
    if wanted.regex:
        try:
            find = view.deps.patterns(wanted.pattern)
        except ValueError as wrong:
            text = f"The pattern can't be searched for: {wrong}. For plain text leave 'regex' out."
            return Said(text, "invalid_arguments", "bad_pattern")
    return Said(search_lines(wanted, text, find, cap))


def _stored(uri: str, data: bytes, facts: MediaFacts) -> Stored:
    """What is known of an artifact that is there already; what a tool said of it stands in the record of its call."""
    sha256 = uri.rpartition(":")[2]
    stored = Stored(uri, sha256, facts.mime_type, len(data), role="media")
    return replace(stored, width=facts.width, height=facts.height, duration_s=facts.duration_s)
