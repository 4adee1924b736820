"""The differences for all addresses: servers, limits, local tools, how bundles are shown, pinned
definitions.

Rules:
1. Each key says which direction is wider (`_SETTINGS`, `_SERVER`, `_BINARY`, `_BUNDLE`). A key that
   is not listed counts as replaced, with a loss and a gain, so a new key is never overlooked.
2. Sets of patterns are compared by what they cover: a name that an old glob covered is nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, Literal

from bundle_router.core.catalog import (
    AnswerForm,
    ApprovalRow,
    Bundle,
    Catalog,
    Condition,
    Server,
    StandingBounds,
    canonical_value,
)
from bundle_router.core.catalog.step_address import PARTS
from bundle_router.core.exposure.placing import mode_of
from bundle_router.core.values import BinaryRule
from bundle_router.core.values.canonical import encode
from bundle_router.core.values.patterns import first_cover
from bundle_router.core.values.words import Mode
from bundle_router.review.config_edits import ConfigEdit, setting_leaves
from bundle_router.review.privileges.privilege_rows import Kind, PrivilegeRow

Wider = Literal["more", "less", "gain", "loss", "replace", "neutral"] | tuple[str, ...]
"""Which values are wider: a larger number (None: unbounded), a smaller one, a larger set, a smaller
one, any other value, none; or words from the narrowest to the widest.
"""

_MAX_SAID: Final = 300
_OFFERS: Final = ("none", "meta", "deferred", "direct")
_REPO: Final[Mapping[str, tuple[str, str]]] = {
    "hard_links": ("refuse", "allow"),
    "credentials": ("hide", "show"),
    "tokens": ("redact", "show"),
}
"""The values of `[repo]`, the narrower first."""
_SETTINGS: Final[Mapping[str, Wider]] = {
    "fallback.order": "neutral",  # the bundles that they bring in are compared address by address
    "fallback.default": "neutral",
    "activation.sticky": "neutral",
    "activation.max_tools": "more",
    "limits.recent_steps": "neutral",
    "search.floor": "less",
    "search.read_threshold": "less",
    "search.write_threshold": "less",
    "search.max_union": "more",
    "search.max_union_tokens": "more",
    "search.max_shortlist": "more",
    "search.languages": "neutral",
    "search.offer.read": _OFFERS,
    "search.offer.write": _OFFERS,
    "search.offer.execute": _OFFERS,
    "model.names": "gain",
    "model.deadline_s": "neutral",
    "model.max_cost_per_day": "more",
    "model.max_questions_per_run": "more",
    "model.max_picks": "more",
    "model.mode": "neutral",
    "model.max_output_tokens": "more",
    "model.temperature": "neutral",
    "log.durability": "neutral",
    "log.diagnostics": "neutral",
    "log.redact_env": "loss",
    "runs.principals": ("one", "mixed"),
    "records.key": "loss",
    "records.heads": "loss",
    "cache.capabilities_ttl_s": "neutral",
    "cache.answers_ttl_s": "neutral",
    "cache.answers": "neutral",
}
_SERVER: Final[Mapping[str, Wider]] = {
    "trust": ("untrusted", "trusted"),
    "enabled": ("false", "true"),
    "include": "gain",
    "exclude": "loss",
    "volatile": "gain",
    "idempotent": "gain",
    "pass_through": "gain",
    "timeout_s": "more",
    "connect_s": "more",
    "shared": "more",  # calls of several runs reach the same process
    "ttl_s": "neutral",
    "legacy": "neutral",
    "era": "neutral",
    "prefix": "neutral",
    "results": ("framed", "plain"),
}
_BINARY: Final[Mapping[str, Wider]] = {
    "forms": "gain",
    "env": "gain",
    "set_env": "gain",
    "reads": "gain",
    "timeout_s": "more",
    "memory_bytes": "more",
    "file_bytes": "more",
    "max_processes": "more",
    "protect_git": ("true", "false"),
    "hard_links": ("protect", "allow"),
}
_BUNDLE: Final[Mapping[str, Wider]] = {
    "effects": "loss",  # policies, search and reuse rely on a bundle's declared effects
    "description": "neutral",
    "avoid": "neutral",
    "examples": "neutral",
    "words": "neutral",
    "companions": "neutral",
    "skill": "neutral",
    "max_tokens": "neutral",
}
_APPROVAL: Final[Mapping[str, Wider]] = {
    "calls": "loss",
    "persons": "less",
    "answer_within_s": "more",
    "use_within_s": "more",
    "message": "neutral",
    "enforce": ("true", "false"),
}
"""Of a row of approvals: its address, `unless`, `approvers` and `standing` have rules of their own.
"""
_CONDITION: Final[Mapping[str, Wider]] = {
    "at_most": "more",
    "at_least": "less",
    "in": "gain",
    "host_in": "gain",
    "domain_in": "gain",
}
"""Which operands of a condition hold for more arguments."""
"""Keys that are not listed are compared address by address, or follow from these."""


def differences_everywhere(
    old: Catalog, new: Catalog, edits: Iterable[ConfigEdit]
) -> Iterator[PrivilegeRow]:
    """Yield a row for each difference that does not depend on the address."""
    by_place = {edit.place: edit for edit in edits}
    yield from _servers(old, new, by_place)
    yield from _settings(old, new, by_place)
    yield from _local(old, new, by_place)
    yield from _taints(old, new, by_place)
    yield from _approvals(old, new, by_place)
    for id_ in sorted(old.bundles.keys() & new.bundles.keys()):
        edit = by_place.get(("bundle", id_))
        yield from _bundle(old, new, old.bundles[id_], new.bundles[id_], (edit,) if edit else ())
    yield from _definitions(old, new, by_place)


_Places = Mapping[tuple[str, str], ConfigEdit]
_Edits = tuple[ConfigEdit, ...]


def _edits(by_place: _Places, table: str, name: str) -> _Edits:
    edit = by_place.get((table, name))
    return (edit,) if edit is not None else ()


def _servers(old: Catalog, new: Catalog, by_place: _Places) -> Iterator[PrivilegeRow]:
    for name in sorted({*old.servers, *new.servers}):
        old_server = old.servers.get(name)
        new_server = new.servers.get(name)
        edits = _edits(by_place, "server", name)
        path = f"servers.{name}"
        if old_server is None or new_server is None:
            yield from _one_sided(path, _origin(old_server), _origin(new_server), edits)
            continue
        for item in fields(Server):
            old_value = getattr(old_server, item.name)
            new_value = getattr(new_server, item.name)
            if item.name == "reuse":
                shared = [
                    tuple(tool for row in rows if row.across_runs for tool in row.tools)
                    for rows in (old_value, new_value)
                ]
                yield from _compare(
                    f"{path}.reuse across runs", shared[0], shared[1], "gain", edits
                )
                yield from _compare(f"{path}.reuse", old_value, new_value, "neutral", edits)
            elif item.name == "include":
                every = [("*",) if names is None else names for names in (old_value, new_value)]
                yield from _compare(f"{path}.include", every[0], every[1], "gain", edits)
            elif item.name == "taints":
                rows = [
                    tuple(encode(canonical_value(row)) for row in value)
                    for value in (old_value, new_value)
                ]
                yield from _compare(f"{path}.taints", rows[0], rows[1], "replace", edits)
            elif item.name not in ("name", "env_names"):
                yield from _compare(
                    f"{path}.{item.name}",
                    old_value,
                    new_value,
                    _SERVER.get(item.name, "replace"),
                    edits,
                )


def _origin(server: Server | None) -> str:
    if server is None:
        return ""
    return (
        f"{server.trust} {server.transport}"
        f" {server.url or ' '.join((server.command or '', *server.args))}".strip()
    )


def _settings(old: Catalog, new: Catalog, by_place: _Places) -> Iterator[PrivilegeRow]:
    old_leaves = setting_leaves(old.settings)
    new_leaves = setting_leaves(new.settings)
    for path in old_leaves:
        wider = _SETTINGS.get(path, "more" if path.startswith("limits.") else "replace")
        yield from _compare(
            path, old_leaves[path], new_leaves[path], wider, _edits(by_place, "setting", path)
        )


def _local(old: Catalog, new: Catalog, by_place: _Places) -> Iterator[PrivilegeRow]:
    edits = _edits(by_place, "local", "docs_hosts")
    yield from _compare("docs.hosts", old.local.docs_hosts, new.local.docs_hosts, "gain", edits)
    for name, wider in _REPO.items():
        before_value = getattr(old.local, name)
        after_value = getattr(new.local, name)
        edits = _edits(by_place, "local", name)
        yield from _compare(f"repo.{name}", before_value, after_value, wider, edits)
    old_rules, new_rules = (
        {rule.name: rule for rule in catalog.local.binaries} for catalog in (old, new)
    )
    edits = _edits(by_place, "local", "binaries")
    for name in sorted({*old_rules, *new_rules}):
        old_rule = old_rules.get(name)
        new_rule = new_rules.get(name)
        path = f"binaries.{name}"
        if old_rule is None or new_rule is None:
            yield from _one_sided(
                path, old_rule.path if old_rule else "", new_rule.path if new_rule else "", edits
            )
            continue
        for key in BinaryRule.model_fields:
            values = [getattr(rule, key) for rule in (old_rule, new_rule)]
            if key == "forms":
                values = [
                    tuple(encode(f.model_dump(mode="json", exclude_defaults=True)) for f in v)
                    for v in values
                ]
            yield from _compare(
                f"{path}.{key}", values[0], values[1], _BINARY.get(key, "replace"), edits
            )


def _taints(old: Catalog, new: Catalog, by_place: _Places) -> Iterator[PrivilegeRow]:
    """Yield the declared taints that are a sort of another one: rows that name the one count more
    often, and those that name the other less.
    """
    old_sorts = dict(old.taints)
    for name, sort in new.taints:
        before = old_sorts.get(name, sort)
        edits = _edits(by_place, "taint", name)
        yield from _compare(f"taints.{name}", before, sort, "replace", edits)
    old_forms = {form.name: form for form in old.forms}
    for form in new.forms:
        before_form = old_forms.get(form.name, AnswerForm(form.name))
        edits = _edits(by_place, "form", form.name)
        path = f"forms.{form.name}"
        yield from _compare(f"{path}.fields", _words(before_form), _words(form), "gain", edits)
        yield from _compare(f"{path}.clears", before_form.clears, form.clears, "gain", edits)


def _words(form: AnswerForm) -> tuple[str, ...]:
    """Return what an answer may say in each field: a kind of value, or one of its words."""
    return tuple(
        f"{name} {word}"
        for name, choice in form.fields
        for word in ((choice,) if isinstance(choice, str) else choice)
    )


def _bundle(
    old: Catalog, new: Catalog, old_bundle: Bundle, new_bundle: Bundle, edits: _Edits
) -> Iterator[PrivilegeRow]:
    path = f'bundles."{old_bundle.id}"'
    for name, wider in _BUNDLE.items():
        old_value = getattr(old_bundle, name)
        new_value = getattr(new_bundle, name)
        yield from _compare(f"{path}.{name}", old_value, new_value, wider, edits, new_bundle)

    yield from _mode_rows(old, new, old_bundle, new_bundle, edits)

    old_text = _skill(old, old_bundle)
    new_text = _skill(new, new_bundle)
    if old_text != new_text and old_bundle.skill == new_bundle.skill:
        yield from _compare(f"{path}.skill text", old_text, new_text, "neutral", edits, new_bundle)


def _mode_rows(
    old: Catalog, new: Catalog, old_bundle: Bundle, new_bundle: Bundle, edits: _Edits
) -> Iterator[PrivilegeRow]:
    """Yield a row for each pair of modes from one of which to the other tools have changed."""
    tools_by_change: dict[tuple[Mode, Mode], list[str]] = {}
    for tool in old_bundle.tools:
        if tool not in new_bundle.tools:
            continue
        change = (mode_of(old, old_bundle, tool), mode_of(new, new_bundle, tool))
        if change[0] != change[1]:
            tools_by_change.setdefault(change, []).append(tool)
    for (old_mode, new_mode), tools in sorted(tools_by_change.items()):
        yield PrivilegeRow(
            "neutral",
            "shown",
            old_bundle.id,
            tuple(tools),
            old_mode,
            new_mode,
            new_bundle.effects,
            new_bundle.servers,
            (new_mode,),
            (),
            edits,
        )


def _skill(catalog: Catalog, bundle: Bundle) -> str:
    skill = catalog.skill_of(bundle)
    return skill.text if skill is not None else ""


def _definitions(old: Catalog, new: Catalog, by_place: _Places) -> Iterator[PrivilegeRow]:
    """Yield a row per server for tools' definitions that were approved, taken back or replaced."""
    by_server: dict[str, dict[str, list[str]]] = {}
    for name in sorted({*old.cards, *new.cards}):
        old_card = old.cards.get(name)
        new_card = new.cards.get(name)
        if old_card != new_card:
            change = "approved" if old_card is None else "taken back"
            if old_card is not None and new_card is not None:
                change = "replaced" if old_card.sha256 != new_card.sha256 else "counted anew"
            by_server.setdefault(name.partition(".")[0], {}).setdefault(change, []).append(name)
    kinds: Mapping[str, Kind] = {"approved": "widening", "taken back": "narrowing"}
    for server, changes in by_server.items():
        for change, names in changes.items():
            yield PrivilegeRow(
                kind=kinds.get(change, "neutral"),
                aspect="holds everywhere",
                subject=f"definitions of {server}",
                tools=tuple(names),
                before="" if change == "approved" else "reviewed",
                after="" if change == "taken back" else "reviewed",
                servers=(server,),
                edits=_edits(by_place, "server", server),
                note=change,
            )


# --- calls that wait for somebody's word ----------------------------------------------------------


def _approvals(old: Catalog, new: Catalog, by_place: _Places) -> Iterator[PrivilegeRow]:
    """Yield a row for each difference of what has to wait. A row that is gone is a widening."""
    old_rows = {row.name: row for row in old.approvals}
    new_rows = {row.name: row for row in new.approvals}
    for name in sorted({*old_rows, *new_rows}):
        edits = _edits(by_place, "approval", name)
        old_row = old_rows.get(name)
        new_row = new_rows.get(name)
        path = f"approvals.{name}"
        if old_row is not None and new_row is not None:
            yield from _approval(path, old_row, new_row, edits)
            continue
        kind: Kind = "widening" if new_row is None else "narrowing"
        yield PrivilegeRow(
            kind,
            "holds everywhere",
            path,
            before=_calls_words(old_row),
            after=_calls_words(new_row),
            edits=edits,
        )


def _calls_words(row: ApprovalRow | None) -> str:
    if row is None:
        return ""
    return f"{', '.join(row.calls)} {'wait' if row.enforce else 'would wait'}"


def _approval(
    path: str, old_row: ApprovalRow, new_row: ApprovalRow, edits: _Edits
) -> Iterator[PrivilegeRow]:
    for name, wider in _APPROVAL.items():
        values = getattr(old_row, name), getattr(new_row, name)
        yield from _compare(f"{path}.{name}", *values, wider, edits)
    for part, old_names, new_names in zip(PARTS, old_row.patterns, new_row.patterns, strict=True):
        yield from _compare(
            f"{path}.{part.name}", old_names or ("*",), new_names or ("*",), "loss", edits
        )
    yield from _approvers(f"{path}.approvers", old_row.approvers, new_row.approvers, edits)
    yield from _conditions(f"{path}.unless", old_row.unless, new_row.unless, edits)
    yield from _standing(f"{path}.standing", old_row.standing, new_row.standing, edits)


def _approvers(
    path: str, old_row: tuple[str, ...] | None, new_row: tuple[str, ...] | None, edits: _Edits
) -> Iterator[PrivilegeRow]:
    """Yield the change of who may answer; whoever has the scope, and a list, can't be compared."""
    wider: Wider = "replace" if old_row is None or new_row is None else "gain"
    yield from _compare(path, old_row, new_row, wider, edits)


def _standing(
    path: str, old_row: StandingBounds | None, new_row: StandingBounds | None, edits: _Edits
) -> Iterator[PrivilegeRow]:
    if old_row == new_row:
        return
    if old_row is None or new_row is None:
        words = ["" if bounds is None else f"{bounds.calls} calls" for bounds in (old_row, new_row)]
        yield from _one_sided(path, words[0], words[1], edits)
        return
    yield from _compare(f"{path}.calls", old_row.calls, new_row.calls, "more", edits)
    yield from _compare(f"{path}.within_s", old_row.within_s, new_row.within_s, "more", edits)
    yield from _conditions(f"{path}.where", old_row.where, new_row.where, edits)


def _condition_words(conditions: tuple[Condition, ...]) -> str:
    return ", ".join(f"{condition.at} {condition.words}" for condition in conditions)


def _conditions(
    path: str,
    old_row: tuple[Condition, ...],
    new_row: tuple[Condition, ...],
    edits: _Edits,
) -> Iterator[PrivilegeRow]:
    """Yield the change of conditions that all have to hold: one less, or one that holds for more,
    is wider. For no condition at all nothing is exempt, or nothing more is asked of a grant.
    """
    if path.endswith("unless") and bool(old_row) != bool(new_row):
        yield from _one_sided(path, _condition_words(old_row), _condition_words(new_row), edits)
        return
    old_by_place = {(condition.at, condition.operator): condition for condition in old_row}
    new_by_place = {(condition.at, condition.operator): condition for condition in new_row}
    if len(old_by_place) < len(old_row) or len(new_by_place) < len(new_row):
        words = _condition_words(old_row), _condition_words(new_row)
        yield from _compare(path, *words, "replace", edits)  # two of one place can't be compared
        return
    for place in sorted(old_by_place.keys() | new_by_place.keys()):
        old_one = old_by_place.get(place)
        new_one = new_by_place.get(place)
        if old_one is not None and new_one is not None:
            wider = _CONDITION.get(place[1], "replace")
            subject = f"{path}.{place[0]} {place[1]}"
            yield from _compare(subject, old_one.operand, new_one.operand, wider, edits)
        elif new_one is None:
            text = "" if old_one is None else old_one.words
            subject = f"{path}.{place[0]}"
            yield PrivilegeRow("widening", "holds everywhere", subject, before=text, edits=edits)
        else:
            subject = f"{path}.{place[0]}"
            yield PrivilegeRow(
                "narrowing", "holds everywhere", subject, after=new_one.words, edits=edits
            )


# --- comparing two values -------------------------------------------------------------------------


def _one_sided(path: str, before: str, after: str, edits: _Edits) -> Iterator[PrivilegeRow]:
    kind: Kind = "widening" if after else "narrowing"
    yield PrivilegeRow(kind, "holds everywhere", path, before=before, after=after, edits=edits)


def _compare(
    path: str, before: Any, after: Any, wider: Wider, edits: _Edits, bundle: Bundle | None = None
) -> Iterator[PrivilegeRow]:
    """Yield the rows of a value's change: one, or two if something is lost and something gained."""
    if before == after:
        return
    effects = bundle.effects if bundle is not None else ()
    yield from (
        PrivilegeRow(
            kind,
            "holds everywhere",
            path,
            (),
            _text(old_value),
            _text(new_value),
            effects,
            edits=edits,
        )
        for kind, old_value, new_value in _ways(before, after, wider)
    )


_Way = tuple[Kind, Any, Any]


def _ways(before: Any, after: Any, wider: Wider) -> Iterator[_Way]:
    if wider == "replace":
        yield "widening", "", after
        yield "narrowing", before, ""
    elif wider in ("gain", "loss"):
        yield from _sets(
            _items(before), _items(after), "widening" if wider == "gain" else "narrowing"
        )
    elif wider == "neutral":
        yield "neutral", before, after
    else:
        rank = _rank(wider)
        up: Kind = "widening" if rank(after) > rank(before) else "narrowing"
        yield up, before, after


def _sets(before: tuple[str, ...], after: tuple[str, ...], gaining: Kind) -> Iterator[_Way]:
    """Yield the gained and the lost items; `gaining` is the kind of a gain."""
    losing: Kind = "narrowing" if gaining == "widening" else "widening"
    gains = _uncovered(after, before)
    losses = _uncovered(before, after)
    if gains:
        yield gaining, "", gains
    if losses:
        yield losing, losses, ""
    if not gains and not losses:
        yield "neutral", before, after


def _uncovered(items: tuple[str, ...], patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(item for item in items if first_cover(patterns, item) is None)


def _items(value: Any) -> tuple[str, ...]:
    """Return a value as a set."""
    if isinstance(value, str):
        return (value,)
    if value is None:
        return ()
    return tuple(value)


def _rank(wider: Wider) -> Callable[[Any], float]:
    if isinstance(wider, tuple):
        return lambda value: float(wider.index(str(value).lower()))
    sign = -1.0 if wider == "less" else 1.0
    unbounded = (None, "none")
    return lambda value: sign * (float("inf") if value in unbounded else float(value))


def _text(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, str):
        plain = value
    elif _is_words(value):
        plain = ", ".join(value)
    else:
        plain = encode(_plain_json(value))
    if len(plain) <= _MAX_SAID:
        return plain
    return f"{plain[:_MAX_SAID]}… ({len(plain):,} characters)"


def _is_words(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


def _plain_json(value: Any) -> Any:
    """Return a value of the catalog as JSON values."""
    if isinstance(value, list | tuple):
        return [_plain_json(item) for item in value]
    names = getattr(type(value), "__dataclass_fields__", None)
    if names is not None:
        return {name: _plain_json(getattr(value, name)) for name in names}
    return value
