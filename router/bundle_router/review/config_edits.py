"""The edits between two catalogs, and catalogs with only some of the edits.

Rules:
1. All edits applied to the old catalog give the new one, by revision; none give the old one.
2. An edit is of one entry: a server with its pinned cards, a bundle, a route, a policy, a setting,
   a table of local limits, a skill, a declared taint, a form. Rows are identified by their
   names. The order of routes is a separate edit.
3. An edit carries the differences that only follow from it: of a bundle that is composed of an
   edited one, or holds tools of an edited server, and differs in nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, Literal

from bundle_router.core.catalog import AnswerForm, Bundle, Catalog, Route, Settings
from bundle_router.core.catalog.step_address import AddressedRow

EditedTable = Literal[
    "server",
    "bundle",
    "route",
    "policy",
    "approval",
    "setting",
    "local",
    "skill",
    "taint",
    "form",
    "order of routes",
]
Change = Literal["added", "removed", "changed"]

_FOLLOWS: Final = frozenset(
    (
        "tools",
        "patterns",
        "servers",
        "effects",
        "requires_env",
        "requires_binary",
        "companions",
        "trust",
        "mode",
    )
)
"""Fields of a bundle that may differ because one of its parts does."""


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """One edit. `carries` are the ids of bundles that differ only because of it."""

    table: EditedTable
    name: str
    change: Change
    carries: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, str]:
        """The edit's key in a map of places."""
        return self.table, self.name

    def __str__(self) -> str:
        if self.table == "order of routes":
            return "the order of routes changed"
        return f"{self.table} {self.name!r} {self.change}"


def config_edits(old: Catalog, new: Catalog) -> tuple[ConfigEdit, ...]:
    """Return the edits, by table and name."""
    bundles = dict(_entries(old.bundles, new.bundles))
    servers = dict(_entries(old.servers, new.servers))
    for name in _servers_with_other_cards(old, new):
        servers.setdefault(name, "changed")
    carried: dict[tuple[str, str], list[str]] = {}
    for id_ in [id_ for id_, change in bundles.items() if change == "changed"]:
        reasons = _reasons(old, new, id_, bundles, servers)
        for reason in reasons:
            carried.setdefault(reason, []).append(id_)
        if reasons:
            del bundles[id_]
    edits = [
        ConfigEdit("server", n, c, tuple(carried.get(("server", n), ())))
        for n, c in servers.items()
    ]
    edits += [
        ConfigEdit("bundle", n, c, tuple(carried.get(("bundle", n), ())))
        for n, c in bundles.items()
    ]
    edits += [
        ConfigEdit("route", n, c)
        for n, c in _entries(rows_named(old.routes), rows_named(new.routes))
    ]
    if _common_order(old, new) != _common_order(new, old):
        edits.append(ConfigEdit("order of routes", "", "changed"))
    edits += [
        ConfigEdit("policy", n, c)
        for n, c in _entries(rows_named(old.policies), rows_named(new.policies))
    ]
    edits += [
        ConfigEdit("approval", n, c)
        for n, c in _entries(rows_named(old.approvals), rows_named(new.approvals))
    ]
    old_leaves = setting_leaves(old.settings)
    new_leaves = setting_leaves(new.settings)
    edits += [ConfigEdit("setting", n, c) for n, c in _entries(old_leaves, new_leaves)]
    edits += [ConfigEdit("local", n, c) for n, c in _entries(dict(old.local), dict(new.local))]
    edits += [ConfigEdit("skill", n, c) for n, c in _entries(old.skills, new.skills)]
    edits += [ConfigEdit("form", n, c) for n, c in _entries(_by_name(old), _by_name(new))]
    edits += [ConfigEdit("taint", n, c) for n, c in _entries(dict(old.taints), dict(new.taints))]
    return tuple(edits)


def with_edits(old: Catalog, new: Catalog, edits: Collection[ConfigEdit]) -> Catalog:
    """Return the old catalog with these edits applied."""
    touched: dict[str, set[str]] = {}
    for edit in edits:
        touched.setdefault(edit.table, set()).add(edit.name)
        touched.setdefault("bundle", set()).update(edit.carries)

    servers = touched.get("server", set())
    cards = {name: card for name, card in old.cards.items() if card.server not in servers}
    cards |= {name: card for name, card in new.cards.items() if card.server in servers}
    local = {name: getattr(new.local, name) for name in touched.get("local", ())}
    taints = _merge(dict(old.taints), dict(new.taints), touched.get("taint", ()))
    forms = _merge(_by_name(old), _by_name(new), touched.get("form", ()))
    policies = _merge(rows_named(old.policies), rows_named(new.policies), touched.get("policy", ()))
    approvals = _merge(
        rows_named(old.approvals), rows_named(new.approvals), touched.get("approval", ())
    )
    return Catalog(
        servers=_merge(old.servers, new.servers, servers),
        bundles=_merge(old.bundles, new.bundles, touched.get("bundle", ())),
        routes=_routes(old, new, touched),
        policies=tuple(policies.values()),
        approvals=tuple(approvals.values()),
        settings=_settings(old.settings, new.settings, touched.get("setting", set()), ""),
        local=old.local.model_copy(update=local),
        cards=cards,
        skills=_merge(old.skills, new.skills, touched.get("skill", ())),
        taints=tuple(sorted(taints.items())),
        forms=tuple(form for _, form in sorted(forms.items())),
    )


def _entries(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Change]]:
    """Yield the names of differing entries with their change, in the order of the new ones."""
    for name, value in new.items():
        if name not in old:
            yield name, "added"
        elif old[name] != value:
            yield name, "changed"
    for name in old:
        if name not in new:
            yield name, "removed"


def _by_name(catalog: Catalog) -> dict[str, AnswerForm]:
    return {form.name: form for form in catalog.forms}


def rows_named(rows: Iterable[AddressedRow]) -> dict[str, Any]:
    """Return rows by name.

    Names are unique in a config; equal names in a handmade catalog are told apart.
    """
    by_name: dict[str, Any] = {}
    for row in rows:
        name = row.name
        count = 1
        while name in by_name:
            count += 1
            name = f"{row.name} ({count})"
        by_name[name] = row
    return by_name


def _servers_with_other_cards(old: Catalog, new: Catalog) -> list[str]:
    def of(catalog: Catalog) -> dict[str, set[Any]]:
        cards: dict[str, set[Any]] = {}
        for card in catalog.cards.values():
            cards.setdefault(card.server, set()).add(card)
        return cards

    old_cards = of(old)
    new_cards = of(new)
    return sorted(
        name for name in {*old_cards, *new_cards} if old_cards.get(name) != new_cards.get(name)
    )


def _reasons(
    old: Catalog,
    new: Catalog,
    id_: str,
    bundles: Mapping[str, Change],
    servers: Mapping[str, Change],
) -> list[tuple[str, str]]:
    """Return the edits from which a bundle's whole difference follows; none if it was edited
    itself.
    """
    old_bundle = old.bundles[id_]
    new_bundle = new.bundles[id_]
    differing = _differing_fields(old_bundle, new_bundle)
    if not differing <= _FOLLOWS:
        return []

    parts = [part for part in new_bundle.bundles if part in bundles]
    own_servers = [name for name in new_bundle.servers if name in servers]
    reasons = [("bundle", part) for part in parts]
    reasons += [("server", name) for name in own_servers]
    if not reasons:
        return []

    for field in sorted(differing - {"trust", "mode"}):
        moves = _moved_fields(old_bundle, new_bundle, field)
        explained = {item for part in parts for item in _moved_of(old, new, part, field)}
        if field in ("tools", "patterns"):
            explained |= {item for item in moves if item[1].partition(".")[0] in servers}
        if not moves <= explained:
            return []
    return reasons


def _differing_fields(old: Bundle, new: Bundle) -> set[str]:
    names = [field.name for field in fields(Bundle)]
    return {name for name in names if getattr(old, name) != getattr(new, name)}


def _moved_fields(old: Bundle, new: Bundle, name: str) -> set[tuple[str, str]]:
    old_items = set(getattr(old, name))
    new_items = set(getattr(new, name))
    return {("+", item) for item in new_items - old_items} | {
        ("-", item) for item in old_items - new_items
    }


def _moved_of(old: Catalog, new: Catalog, part: str, name: str) -> set[tuple[str, str]]:
    nothing = Bundle(part, "")
    return _moved_fields(old.bundles.get(part, nothing), new.bundles.get(part, nothing), name)


def _common_order(catalog: Catalog, other: Catalog) -> list[str]:
    """Return the names of the routes in both, in the order of the first."""
    other_names = rows_named(other.routes)
    return [name for name in rows_named(catalog.routes) if name in other_names]


def _merge(
    old: Mapping[str, Any], new: Mapping[str, Any], touched: Collection[str]
) -> dict[str, Any]:
    merged = {
        name: new[name] if name in touched else value
        for name, value in old.items()
        if name not in touched or name in new
    }
    return merged | {name: new[name] for name in new if name in touched and name not in old}


def _routes(old: Catalog, new: Catalog, touched: Mapping[str, set[str]]) -> tuple[Route, ...]:
    """Return the old routes with some edits.

    A new row comes after the nearest present row before it.
    """
    edited = touched.get("route", set())
    old_routes = rows_named(old.routes)
    new_routes = rows_named(new.routes)

    order = [name for name in old_routes if name not in edited or name in new_routes]
    if "order of routes" in touched:
        new_order = iter([name for name in new_routes if name in order])
        for index, name in enumerate(order):
            if name in new_routes:
                order[index] = next(new_order)

    position = {name: index for index, name in enumerate(new_routes)}
    for name in new_routes:
        if name in edited and name not in old_routes:
            order.insert(_index_after_earlier(order, position, name), name)

    present = old_routes | {name: row for name, row in new_routes.items() if name in edited}
    return tuple(present[name] for name in order)


def _index_after_earlier(order: Sequence[str], position: Mapping[str, int], name: str) -> int:
    """Return the index behind the last of the rows that stand before `name` in the new config."""
    for index in reversed(range(len(order))):
        if order[index] in position and position[order[index]] < position[name]:
            return index + 1
    return 0


def setting_leaves(settings: Any, path: str = "") -> dict[str, Any]:
    """Return the values of the settings by dotted path."""
    leaves: dict[str, Any] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        key = f"{path}{item.name}"
        if (
            is_dataclass(value)
            and not isinstance(value, type)
            and item.name in (*Settings.__slots__, "offer")
        ):
            leaves |= setting_leaves(value, f"{key}.")
        else:
            leaves[key] = value
    return leaves


def _settings(old: Any, new: Any, touched: set[str], path: str) -> Any:
    values = {}
    for item in fields(old):
        key = f"{path}{item.name}"
        if key in touched:
            values[item.name] = getattr(new, item.name)
        elif any(name.startswith(f"{key}.") for name in touched):
            values[item.name] = _settings(
                getattr(old, item.name), getattr(new, item.name), touched, f"{key}."
            )
    return replace(old, **values) if values else old
