"""The views: each method reads the runs for one page, and returns the values of its template.

Knows no HTTP.
"""

from __future__ import annotations

import difflib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import product
from typing import Any, Final, Literal

from bundle_router.core.catalog import Bundle, Catalog, Server
from bundle_router.core.catalog.step_address import address_json, address_of
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.outline import (
    MARKS,
    Mark,
    OutlineEntry,
    OutlineStep,
    call_row_entry,
    outline,
    step_row_entry,
)
from bundle_router.core.records.read_model import (
    FACET_RUNS,
    FACETS,
    FILTERS,
    SEARCHED,
    SORTS,
    Facet,
    RecordQuery,
    RunPage,
    RunQuery,
    RunRow,
    Timeline,
    cut_sentence,
)
from bundle_router.core.values import Facts
from bundle_router.core.values.doubt import Certainty
from bundle_router.core.values.words import SOURCES
from bundle_router.errors import RequestError, RouterError
from bundle_router.review.search_habits import counted_habits
from bundle_router.service.pages import charts
from bundle_router.service.pages.argument_view import argument_page
from bundle_router.service.pages.artifact_preview import ZOOMS, forms_of, preview
from bundle_router.service.pages.page_place import PagePlace, part_with
from bundle_router.service.pages.queries import (
    PER_PAGE,
    Query,
    first,
    kept_query,
    run_query,
    time_of,
    whole_number,
    without,
)
from bundle_router.service.pages.rendering import PageContent
from bundle_router.service.pages.trends import trends_of
from bundle_router.service.pages.waterfall import waterfall
from bundle_router.workbench.run_reader import DecisionDetail, RunReader, StoredBytes

Away = Callable[[], Mapping[str, str]]
"""Returns the servers that are unavailable, with the reason."""
RECORDS: Final = 200
"""Maximum records of a run on one page."""
OVERVIEW_RECORDS: Final = 13_000
"""Decisions and calls that the overview of some of the runs counts at most, unless it is asked for
all: about 0.1 s of CPU.
"""
_LAST: Final = "~"
"""A text after every time."""
MEDIA_PER_PAGE: Final = 60
MAX_COMPARED_LINES: Final = 20_000
"""Maximum lines of two records together that are compared line by line."""
UNFOLDED: Final = 25
"""Maximum steps of a page that are shown unfolded."""
NESTED_DEPTH: Final = 3
NESTED_RUNS: Final = 20
NESTED_RECORDS: Final = 50
"""Maximum records of sub-runs that a run's page shows in place; each has its own page."""
NESTED_OPEN: Final = 5
"""Maximum sub-runs that are unfolded."""
SHOWN_FACETS: Final[tuple[Facet, ...]] = (
    "workflow",
    "role",
    "principal",
    "source",
    "bundle",
    "tool",
    "reason",
    "code",
    "missing",
)
RUN_COLUMNS: Final = {
    "started": "started",
    "took": "took",
    "steps": "steps",
    "calls": "calls",
    "definitions": "definitions: tokens",
    "results": "results: tokens",
    "cost": "cost",
    "marks": "marks",
}
"""The columns of the list of runs beside the run. The address of the page has those shown."""
RUN_FILTERS: Final = (*FACETS, "q", "since", "until")
RUN_LIST_QUERY: Final = (*RUN_FILTERS, "sort", "column", "name")
"""What the links of the list of runs keep. `name` is what whoever made the address calls it."""
MAX_NAME: Final = 80
"""Maximum characters of a list's name."""
ORDERS: Final = {
    "steps": (
        ("started", "newest"),
        ("slow", "slowest"),
        ("tokens", "most tokens of definitions"),
        ("results", "most tokens of results"),
        ("cost", "most expensive"),
    ),
    "calls": (("started", "newest"), ("slow", "slowest"), ("results", "most tokens of results")),
}
PRESETS: Final = {
    "steps": (
        ("degraded", {"degraded": "1"}),
        ("decided by the model", {"source": "model"}),
        ("decided by search", {"source": "search"}),
        ("shortlist", {"source": "shortlist"}),
    ),
    "calls": (
        ("denied", {"outcome": "denied"}),
        ("failed", {"failed": "1"}),
    ),
}


class PageViews:
    """The pages over one reader. Methods block; many threads may call them."""

    def __init__(self, reader: RunReader, *, away: Away | None = None) -> None:
        self._reader = reader
        self._away = away

    def _page(self, template: str, title: str, here: str, json_: Any, **values: Any) -> PageContent:
        return PageContent(
            template, {"title": title, "here": here, "where": self._reader.where, **values}, json_
        )

    # --- lists ------------------------------------------------------------------------------------

    def runs(self, query: Query) -> PageContent:
        """Return the table of runs with the facets to filter by."""
        run_question = run_query(query)
        return self.run_list(self._reader.index.runs(run_question), run_question, query)

    def run_list(self, page: RunPage, asked: RunQuery, query: Query) -> PageContent:
        """Return the table of given runs."""
        filters = kept_query(query, RUN_LIST_QUERY)
        name = first(query, "name").strip()[:MAX_NAME]
        facets = [(f, page.facets.get(f, ())) for f in SHOWN_FACETS if page.facets.get(f)]
        return self._page(
            "runs.html",
            name or "Runs",
            "/runs",
            page.to_json(),
            name=name,
            max_name=MAX_NAME,
            filters={key: values for key, values in filters.items() if key in RUN_FILTERS},
            query=asked,
            runs=page.runs,
            total=page.total,
            facets=facets,
            facet_runs=FACET_RUNS,
            uncounted=page.total > FACET_RUNS and _leaves_out(asked),
            marks=sorted(page.facets.get("mark", ()), key=lambda mark: mark.value != "tampered"),
            columns=_run_columns(query),
            all_columns=RUN_COLUMNS,
            kept=filters,
            chosen=set(asked.facets),
            page=asked.offset // asked.limit + 1,
            pages=max(1, -(-page.total // asked.limit)),
            sorts=SORTS,
            newest=_newest_run(page, asked),
        )

    def new_runs(self, query: Query) -> PageContent:
        """Return how many runs are newer than those of a list, as a part of that page."""
        count = self._reader.index.newer_than(first(query, "newest")[:128], run_query(query))
        filters = kept_query(query, RUN_LIST_QUERY)
        return PageContent("new_runs.html", {"count": count, "kept": filters}, {"new": count})

    def records(self, of: Literal["steps", "calls"], query: Query) -> PageContent:
        """Return the table of steps or calls across runs."""
        equal = tuple((name, value) for name in FILTERS[of] if (value := first(query, name)[:500]))
        page = whole_number(first(query, "page"), 1) or 1
        runs = RunQuery(
            text=first(query, "q")[:500],
            since=time_of(first(query, "since")),
            until=time_of(first(query, "until"), whole_day=True),
        )
        sort = first(query, "sort") if first(query, "sort") in dict(ORDERS[of]) else "started"
        record_query = RecordQuery(of, runs, equal, sort, (page - 1) * PER_PAGE, PER_PAGE)
        rows, total = self._reader.index.records(record_query)
        filters = kept_query(query, (*FILTERS[of], "q", "since", "until", "sort"))
        return self._page(
            "records.html",
            of.capitalize(),
            f"/{of}",
            {"total": total, of: rows},
            of=of,
            rows=rows,
            total=total,
            equal=equal,
            kept=filters,
            page=page,
            pages=max(1, -(-total // PER_PAGE)),
            orders=ORDERS[of],
            sort=sort,
            presets=PRESETS[of],
            filters=FILTERS[of],
            q=runs.text,
        )

    def overview(self, query: Query) -> PageContent:
        """Return totals of the runs as charts and tables."""
        run_question = replace(run_query(query), offset=0)
        most_records = None if first(query, "all") == "1" else OVERVIEW_RECORDS
        stats = self._reader.index.stats(run_question, most_records)
        habits = counted_habits(stats.tables[SEARCHED])
        decisions_by_source = [(row.name, row.count) for row in stats.tables["source × day"]]
        kept = kept_query(query, RUN_FILTERS)
        filters: list[tuple[str, str, dict[str, list[str]]]] = []
        for name, values in kept.items():
            filters += [(name, value, without(kept, name, value)) for value in values]

        return self._page(
            "overview.html",
            "Overview",
            "/",
            {**stats.to_json(), "searching": [habit.to_json() for habit in habits]},
            stats=stats,
            habits=habits,
            trends=[trend for trend in trends_of(stats, query) if trend.bars],
            tokens=charts.tokens_over_days(stats.by_day),
            sources=SOURCES,
            mix=charts.sources_over_days(decisions_by_source, SOURCES),
            kept=kept,
            filters=filters,
        )

    def search(self, query: Query) -> PageContent:
        """Return the places of words in goals, arguments, results and artifacts."""
        words = first(query, "q")[:500]
        hits = self._reader.index.search(words, limit=100) if words.strip() else []
        return self._page(
            "search.html",
            "Search",
            "/runs",
            [asdict(hit) for hit in hits],
            q=words,
            hits=hits,
            cut=cut_sentence(*self._reader.index.results_cut()),
        )

    # --- one run ----------------------------------------------------------------------------------

    def run(self, run_id: str, query: Query, limit: int = RECORDS) -> PageContent:
        """Return the timeline of a run, `limit` records at a time.

        `from` names the first of them; `at` one that is among them, and is shown unfolded.
        """
        run = self._reader.index.run(run_id)
        parts = self._reader.index.parts(run_id, limit)
        target_seq = whole_number(first(query, "at"), -1)
        start = whole_number(first(query, "from"))
        if target_seq >= 0 and parts:
            start = part_with(parts, target_seq).first_seq
        part = self._reader.index.timeline(run_id, start=start, limit=limit)
        verified: tuple[bool, str] | None = None
        if run.state != "unreadable" and run.records <= RECORDS:
            verified = self._reader.verified(run_id)
        elif run.tampered:
            verified = (False, run.tampered)
        items = self._nest_sub_runs(items_of(part, start))
        for item in items:
            item["open"] = target_seq in _seqs_of(item)
        place = PagePlace(parts, start, part)
        return self._page(
            "run.html",
            run_id,
            "/runs",
            {
                "run": run.to_json(),
                "decisions": part.decisions,
                "calls": part.calls,
                "sub_runs": [sub.to_json() for sub in part.sub_runs],
                "next": part.next_seq,
                "first": {mark: jump.seq for mark, jump in place.jumps().items()},
                "parts": [asdict(row) for row in parts],
            },
            run=run,
            part=part,
            items=items,
            nested_open=len(part.sub_runs) <= NESTED_OPEN,
            folded=len(items) > UNFOLDED,
            fall=waterfall(items),
            place=place,
            jumps=place.jumps(),
            strip=place.strip(),
            verified=verified,
            never_used=self._reader.index.never_used(run_id),
            refused=self._reader.index.refused(run_id),
            newest=parts[-1].last_seq if parts else -1,
        )

    def _nest_sub_runs(
        self, items: list[dict[str, Any]], depth: int = NESTED_DEPTH
    ) -> list[dict[str, Any]]:
        """Insert the steps and calls of sub-runs where they began, up to the page's limits."""
        if not depth:
            return items
        rows = [row for item in items for row in item["below"]]
        sub_runs = [row for row in rows if row["kind"] == "run"]
        for sub_run in sub_runs[:NESTED_RUNS]:
            part = self._reader.index.timeline(sub_run["run"].run_id, limit=NESTED_RECORDS)
            sub_run["items"] = self._nest_sub_runs(items_of(part, 0), depth - 1)
            sub_run["more"] = part.next_seq is not None
        return items

    def new_records(self, run_id: str, query: Query) -> PageContent:
        """Return whether the run has new records since a page was made, as a part of that page."""
        run = self._reader.index.run(run_id)
        last_seq = whole_number(first(query, "seen"))
        part = self._reader.index.timeline(run_id, start=last_seq + 1, limit=RECORDS)
        count = len(part.decisions) + len(part.calls)
        values = {"count": count, "run": run, "seen": last_seq}
        return PageContent("new_records.html", values, {"new": count, "state": run.state})

    def record(self, run_id: str, seq: int, query: Query) -> PageContent:
        """Return the page of a decision or of a call, with a page of the call's arguments."""
        run = self._reader.index.run(run_id)
        if self._reader.index.rows_of("decisions", run_id, seq=seq):
            return self._decision(run, self._reader.decision(run_id, seq))
        calls = self._reader.index.rows_of("calls", run_id, seq=seq)
        line = self._reader.record(run_id, seq)
        artifacts = self._reader.index.rows_of("artifacts", run_id, seq=seq)
        call = calls[0] if calls else None
        decision = None
        if call is not None and call["decision_seq"] is not None:
            decision = next(
                iter(self._reader.index.rows_of("decisions", run_id, seq=call["decision_seq"])),
                None,
            )
        if call is not None:
            title = f"{call['server']}.{call['tool']}"
        else:
            title = str(line.get("type", "record"))
        return self._page(
            "call.html",
            title,
            "/runs",
            line,
            run=run,
            seq=seq,
            call=call,
            arguments=argument_page(
                (call or {}).get("arguments") or "{}", whole_number(first(query, "page"), 1)
            ),
            line=line,
            artifacts=artifacts,
            decision=decision,
        )

    def _decision(self, run: RunRow, found: DecisionDetail) -> PageContent:
        from bundle_router.review.sentences import selection_lines

        record = found.record
        return self._page(
            "decision.html",
            f"{record.step.role} / {record.step.step}",
            "/runs",
            found.line,
            run=run,
            found=found,
            record=record,
            decision=record.decision,
            step=record.step,
            array=array_rows(found),
            selection=[*selection_lines(record.decision.search, record.decision.model)],
            certainty=Certainty.of(record.decision),
            names=self._reader.known_names(run.run_id, record.decision.seq),
        )

    def array(self, run_id: str, seq: int, query: Query) -> PageContent:
        """Return what the model saw at a decision: the array in a provider's form, and the
        guidance.
        """
        from bundle_router.core.exposure.provider_forms import FORMATS
        from bundle_router.core.records.model_view import model_view

        detail = self._reader.decision(run_id, seq)
        if detail.catalog is None:
            raise RequestError(f"run {run_id!r} does not hold the config of its decision {seq}")
        form = first(query, "form", "openai")
        form = form if form in FORMATS else "openai"
        view = model_view(detail.catalog, detail.record, form)
        return self._page(
            "array.html",
            "What the model saw",
            "/runs",
            {
                "tools": view.tools,
                "guidance": view.guidance,
                "tokens": view.tokens,
                "estimated": view.estimated,
            },
            run_id=run_id,
            seq=seq,
            view=view,
            form=form,
            forms=FORMATS,
            array=array_rows(detail),
            found=detail,
            tools=[(tool_name(tool), tool) for tool in view.tools],
        )

    def why(self, run_id: str, seq: int, name: str) -> PageContent:
        """Return all tests that one tool or bundle went through at a decision."""
        detail = self._reader.decision(run_id, seq)
        explanation = self._reader.why(run_id, seq, name[:300])
        return self._page(
            "why.html",
            f"Why {'' if explanation.shown else 'not '}{name[:80]}",
            "/runs",
            {**asdict(explanation), "shown": explanation.shown},
            run_id=run_id,
            seq=seq,
            name=name[:300],
            found=detail,
            explanation=explanation,
            rows={row: place for _, row, place in detail.rows},
            names=self._reader.known_names(run_id, seq),
        )

    def compare(self, query: Query) -> PageContent:
        """Return two runs, or two decisions (`RUN/NUMBER`), side by side."""
        if "/" in first(query, "a") + first(query, "b"):
            return self._compare_decisions(query)
        return self._compare_runs(query)

    def _compare_runs(self, query: Query) -> PageContent:
        from bundle_router.workbench.compared_runs import compare_runs

        comparison = compare_runs(self._reader, first(query, "a")[:200], first(query, "b")[:200])
        every = first(query, "all") == "1"
        pairs = comparison.pairs if every else comparison.differing
        page = whole_number(first(query, "page"), 1) or 1
        return self._page(
            "compare_runs.html",
            "Compare",
            "/runs",
            comparison,
            comparison=comparison,
            every=every,
            pairs=pairs[(page - 1) * PER_PAGE : page * PER_PAGE],
            page=page,
            page_count=-(-len(pairs) // PER_PAGE),
        )

    def _compare_decisions(self, query: Query) -> PageContent:
        a = self._named_decision(first(query, "a"))
        b = self._named_decision(first(query, "b"))
        names = {
            *a.record.decision.reachable_ids,
            *b.record.decision.reachable_ids,
            *_left_out_names(a),
            *_left_out_names(b),
        }
        rows = [(name, _outcome_of(name, a), _outcome_of(name, b)) for name in sorted(names)]
        diff = _difference_lines(a, b)
        too_long = diff is None
        return self._page(
            "compare.html",
            "Compare",
            "/runs",
            {"rows": rows, "diff": diff or [], "too_long": too_long},
            a=a,
            b=b,
            rows=rows,
            differing=_differing_facts(a, b),
            diff=diff,
            too_long=too_long,
            max_lines=MAX_COMPARED_LINES,
        )

    def _named_decision(self, name: str) -> DecisionDetail:
        run_id, _, seq = name.rpartition("/")
        if not run_id or not seq.isdigit():
            raise RequestError(
                f"{name[:200]!r} does not name a decision", advice="write RUN/NUMBER, e.g. r-42/0"
            )
        return self._reader.decision(run_id, whole_number(seq))

    def artifact(self, sha256: str, query: Query) -> PageContent:
        """Return what an artifact holds, the records that made it, and those that used it."""
        uses = self._reader.index.artifact(sha256)
        if not uses:
            raise RequestError(f"no record names an artifact {sha256[:64]}")
        origin = next((use for use in uses if not use.took), uses[0])
        stored, problem = self._stored_artifact(origin.run_id, sha256)
        shown = None
        if stored is not None:
            forms = forms_of(stored.mime_type, len(stored.data), is_inline=stored.inline)
            asked = {name: first(query, name)[:200] for name in query}
            shown = preview(stored.data, forms, asked, stored.width)
        return self._page(
            "artifact.html",
            f"Artifact {sha256[:12]}…",
            "/runs",
            [asdict(use) for use in uses],
            sha256=sha256,
            uses=uses,
            of=origin,
            stored=stored,
            problem=problem,
            shown=shown,
            zooms=ZOOMS,
        )

    def _stored_artifact(self, run_id: str, sha256: str) -> tuple[StoredBytes | None, str]:
        """Return the bytes of an artifact, or why there are none to show."""
        try:
            return self._reader.artifact(run_id, sha256), ""
        except RouterError as error:
            return None, error.message

    def media(self, run_id: str, query: Query) -> PageContent:
        """Return the pictures, sounds, videos and documents of a run as a contact sheet."""
        run = self._reader.index.run(run_id)
        page = whole_number(first(query, "page"), 1) or 1
        rows, total = self._reader.index.media(
            run_id, offset=(page - 1) * MEDIA_PER_PAGE, limit=MEDIA_PER_PAGE
        )
        return self._page(
            "media.html",
            f"Media of {run_id}",
            "/runs",
            {"total": total, "media": rows},
            run=run,
            rows=rows,
            total=total,
            page=page,
            page_count=-(-total // MEDIA_PER_PAGE),
        )

    # --- the config in force ----------------------------------------------------------------------

    def matrix(self) -> PageContent:
        """Return the matrix role × bundle: permitted, shown, called."""
        catalog, problems = self._reader.in_force()
        tallies = {
            tuple(name.split("\n", 1)): row
            for name, row in self._reader.index.table("role × bundle").items()
        }
        places, reasons = self._permitted_places(catalog)
        addresses = self._reader.index.addresses()
        roles = sorted({address_json(address)["role"] for address in addresses})
        bundles = sorted({*catalog.bundles, *(key[1] for key in tallies if len(key) > 1)})

        cells = {}
        rows = []
        for cell in product(roles, bundles):
            permitted = places.get(cell, [])
            tally = tallies.get(cell)
            code = reasons.get(cell, "")
            cells[cell] = (permitted, tally, code)
            rows.append(
                {
                    "role": cell[0],
                    "bundle": cell[1],
                    "may": permitted,
                    "seen": tally.count if tally else 0,
                    "called": int(tally.amount) if tally else 0,
                    "why_not": "" if permitted else code,
                }
            )
        return self._page(
            "matrix.html",
            "Matrix",
            "/matrix",
            rows,
            roles=roles,
            bundles=bundles,
            cells=cells,
            effects={id_: bundle.effects for id_, bundle in catalog.bundles.items()},
            problems=problems,
        )

    def _permitted_places(
        self, catalog: Catalog
    ) -> tuple[dict[tuple[str, str], list[str]], dict[tuple[str, str], str]]:
        """Return, by role and bundle, the steps at which policy permits the bundle; and the code by
        which it refused it at the last.
        """
        places = defaultdict[tuple[str, str], list[str]](list)
        reasons: dict[tuple[str, str], str] = {}
        plans = Plans(catalog)
        for address in self._reader.index.addresses():
            words = address_json(address)
            role = words.pop("role")
            verdicts = plans.for_address(address).verdicts
            for id_ in catalog.bundles:
                code = verdicts.of(id_, Facts()).code
                reasons[role, id_] = code or ""
                if code is None:
                    places[role, id_].append(" / ".join(words.values()))
        return places, reasons

    def catalog(self) -> PageContent:
        """Return servers, bundles and tools of the config in force."""
        catalog, problems = self._reader.in_force()
        calls = self._reader.index.table("calls by bundle")
        bundles = [
            (bundle, _tokens_of(catalog, bundle), calls.get(bundle.id))
            for bundle in catalog.bundles.values()
        ]
        servers = list(catalog.servers.values())
        away = None if self._away is None else self._away()
        json_ = {
            "revision": catalog.revision,
            "bundles": [_bundle_json(bundle, tokens) for bundle, tokens, _ in bundles],
            "servers": [_server_json(server, away) for server in servers],
        }
        return self._page(
            "catalog.html",
            "Catalog",
            "/catalog",
            json_,
            catalog=catalog,
            bundles=bundles,
            servers=servers,
            away=away,
            problems=problems,
        )

    def bundle(self, id_: str) -> PageContent:
        """Return one bundle: its tools, tokens, and the rows that name it."""
        catalog, _ = self._reader.in_force()
        bundle = catalog.bundle(id_)
        if bundle is None:
            raise RequestError(f"the config in force has no bundle {id_[:200]!r}")
        places = self._reader.row_places()
        routes = [
            (row.name, places.get(("route", row.name)))
            for row in catalog.routes
            if bundle.id in row.bundles
        ]
        cards = [(tool, catalog.cards.get(tool)) for tool in bundle.tools]
        json_ = {
            "id": bundle.id,
            "description": bundle.description,
            "tools": bundle.tools,
            "effects": bundle.effects,
            "routes": [name for name, _ in routes],
        }
        return self._page(
            "bundle.html", bundle.id, "/catalog", json_, bundle=bundle, cards=cards, routes=routes
        )

    def server(self, name: str) -> PageContent:
        """Return one server: its reviewed definitions, and the tools that bundles use."""
        catalog, _ = self._reader.in_force()
        server = catalog.servers.get(name)
        if server is None:
            raise RequestError(f"the config in force has no server {name[:200]!r}")
        pins = self._reader.pins(name) if server.traits.is_remote else None
        own_cards = [card for card in catalog.cards.values() if card.server == name]
        cards = sorted(own_cards, key=lambda card: card.name)
        bundles = [bundle for bundle in catalog.bundles.values() if _has_tool_of(bundle, name)]
        json_ = {
            "name": name,
            "transport": server.transport,
            "trust": server.trust,
            "pinned": pins is not None,
            "tools": [card.name for card in cards],
        }
        return self._page(
            "server.html",
            name,
            "/catalog",
            json_,
            server=server,
            pins=pins,
            cards=cards,
            bundles=bundles,
        )


# --- shapes ---------------------------------------------------------------------------------------


def items_of(part: Timeline, start: int) -> list[dict[str, Any]]:
    """Return a part of a run as rows of its page: steps, each with its calls and sub-runs.

    A step whose calls begin before the part is marked as `continued`; a nameless one has no `row`.
    """
    entries: list[OutlineEntry[Any]] = [
        *map(step_row_entry, part.decisions),
        *map(call_row_entry, part.calls),
        *_sub_run_entries(part, start),
    ]
    return [
        {
            "row": step.step.value if step.step is not None else None,
            "continued": step.continued,
            "marks": _marks_below(step),
            "later": _calls_later(step) if part.next_seq is not None else 0,
            "open": False,
            "bundles": part.bundles.get(step.step.seq, ()) if step.step is not None else (),
            "below": [_below_item(entry, part) for entry in step.below],
        }
        for step in outline(entries, map(step_row_entry, part.earlier))
    ]


def _marks_below(step: OutlineStep[Any]) -> list[Mark]:
    """Return the marks of a step's calls; its own doubt is said in words."""
    marks = {entry.mark for entry in step.below}
    return [mark for mark in MARKS if mark in marks]


def _calls_later(step: OutlineStep[Any]) -> int:
    """Return how many calls of a step are not in this part of its run, but in later ones."""
    if step.step is None or step.continued:
        return 0
    calls = [e for e in step.below if e.kind == "call" and e.value["kind"] == "call"]
    return max(0, (step.step.value["calls"] or 0) - len(calls))


def _seqs_of(item: Mapping[str, Any]) -> set[int]:
    """Return the numbers of the records of a step that the page shows."""
    rows = [entry["row"] for entry in item["below"] if entry["kind"] == "call"]
    if item["row"] is not None:
        rows.append(item["row"])
    return {row["seq"] for row in rows}


def _below_item(entry: OutlineEntry[Any], part: Timeline) -> dict[str, Any]:
    if entry.kind == "sub-run":
        return {"kind": "run", "run": entry.value}
    artifacts = part.artifacts.get(entry.seq, ())
    return {"kind": "call", "row": entry.value, "artifacts": artifacts}


def _sub_run_entries(part: Timeline, start: int) -> Iterator[OutlineEntry[Any]]:
    """Yield the sub-runs of the part: by their parent's decision, else by when they began."""
    decision_ids = {row["decision_id"] for row in part.decisions}
    first_time, end_time = _times_of(part, start)
    for sub_run in part.sub_runs:
        is_below = sub_run.parent_decision_id in decision_ids
        if is_below or first_time <= sub_run.began < end_time:
            decision_id = sub_run.parent_decision_id
            yield OutlineEntry("sub-run", sub_run, -1, sub_run.began, decision_id)


def _times_of(part: Timeline, start: int) -> tuple[str, str]:
    """Return when a part begins, and when the next one does; without bounds at the run's ends."""
    times = sorted(row["time"] or "" for row in (*part.decisions, *part.calls))
    begin = ""
    end = _LAST
    if times and start:
        begin = times[0]
    if times and part.next_seq is not None:
        end = times[-1]
    return begin, end


def _leaves_out(query: RunQuery) -> bool:
    """Return whether a query selects runs, rather than all."""
    return bool(query.facets or query.text.strip() or query.since or query.until)


def _run_columns(query: Query) -> list[str]:
    """Return the columns that an address names; all where it names none."""
    columns = [name for name in RUN_COLUMNS if name in query.get("column", ())]
    return columns or [*RUN_COLUMNS]


def _newest_run(page: RunPage, asked: RunQuery) -> str:
    """Return the run that new ones would stand before; empty where the order is another."""
    if page.runs and asked.sort == "started" and not asked.ascending:
        return page.runs[0].run_id
    return ""


def array_rows(found: DecisionDetail) -> list[tuple[str, str, str, int]]:
    """Return where each permitted tool was: `(tool, bundle, place, tokens)`."""
    if found.view is None:
        return []
    return [(row.name, row.bundle, place, row.tokens) for place, row in found.view.placement.rows()]


def tool_name(definition: Mapping[str, Any]) -> str:
    """Return the name of a definition in any provider's form."""
    return str(definition.get("name") or definition.get("function", {}).get("name", ""))


def _left_out_names(detail: DecisionDetail) -> list[str]:
    return [row.tool or row.id for row in detail.record.decision.left_out]


def _differing_facts(a: DecisionDetail, b: DecisionDetail) -> list[str]:
    """Return the names of the facts at the head of two decisions that differ."""
    facts_a, facts_b = _facts(a), _facts(b)
    return [name for name in facts_a if facts_a[name] != facts_b[name]]


def _facts(detail: DecisionDetail) -> dict[str, object]:
    step, decision = detail.record.step, detail.record.decision
    return {
        "step": address_of(step),
        "goal": step.goal,
        "source": (decision.source, decision.degraded, decision.justification),
        "config": decision.catalog_revision,
        "tokens": (decision.exposure.tokens, decision.exposure.all_tokens),
    }


def _difference_lines(a: DecisionDetail, b: DecisionDetail) -> list[str] | None:
    """Return the lines in which two records differ; None where they are too long to compare."""
    old, new = [
        json.dumps(_comparable(detail), indent=1, sort_keys=True, ensure_ascii=False).splitlines()
        for detail in (a, b)
    ]
    if len(old) + len(new) > MAX_COMPARED_LINES:
        return None
    return list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]


def _tokens_of(catalog: Catalog, bundle: Bundle) -> int:
    return sum(catalog.cards[tool].tokens for tool in bundle.tools if tool in catalog.cards)


def _bundle_json(bundle: Bundle, tokens: int) -> dict[str, Any]:
    return {"id": bundle.id, "tools": bundle.tools, "tokens": tokens, "effects": bundle.effects}


def _server_json(server: Server, away: Mapping[str, str] | None) -> dict[str, Any]:
    return {
        "name": server.name,
        "transport": server.transport,
        "trust": server.trust,
        "enabled": server.enabled,
        "away": None if away is None else away.get(server.name, ""),
    }


def _has_tool_of(bundle: Bundle, server: str) -> bool:
    return any(tool.partition(".")[0] == server for tool in bundle.tools)


def _outcome_of(name: str, found: DecisionDetail) -> tuple[str, str]:
    decision = found.record.decision
    for choice in decision.bundles:
        if choice.id == name:
            return "shown", f"{choice.reason}: {choice.evidence}"
    for row in decision.left_out:
        if (row.tool or row.id) == name:
            return row.code, row.detail
    return "", ""


def _comparable(found: DecisionDetail) -> dict[str, Any]:
    """Return a record without the fields that always differ."""
    names = (
        "seq",
        "time",
        "decision_id",
        "monotonic_ns",
        "prev",
        "hash",
        "run_id",
        "elapsed_us",
        "input_digest",
    )
    return {name: value for name, value in found.line.items() if name not in names}
