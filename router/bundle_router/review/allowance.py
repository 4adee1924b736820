"""Edits of `policy.toml` and `routes.toml` by which steps of a role may have a bundle, and get it.

Rules:
1. Allowances of policy rows intersect. So a row that limits the role is extended, and a new row is
   written only where none limits it: beside another, it would take away.
2. No other role gets anything. A policy row for several roles is split: the role leaves it, and
   gets a copy with the bundle. A row that can't be split (any role, a glob, several workflows) is
   named, and nothing is edited.
3. Nothing is edited where the result would have no effect: where a row denies the bundle, or asks
   for fewer effects or more trust.
4. Routes for this role alone get the bundle. Where there is none, a new route comes before the
   first that covers the role, and gives what that one gives as well. Without `routed` no route is
   edited: where none covers a step, search or a model finds the bundle.
5. Text is inserted: comments, order and layout stay.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.catalog import Bundle, Catalog, Policy, Route
from bundle_router.core.catalog.step_address import PARTS, AddressedRow
from bundle_router.core.config.positions import Path, Positions, locate, show
from bundle_router.core.values.patterns import first_match, is_glob
from bundle_router.core.values.spelling import Suggester
from bundle_router.errors import RequestError
from bundle_router.review.toml_text import toml_string

POLICY: Final = "policy.toml"
ROUTES: Final = "routes.toml"
_HEADER: Final = re.compile(r"^[ \t]*\[\[", re.MULTILINE)
"""The beginning of a row's header: `[[policies]]`."""


@dataclass(frozen=True, slots=True)
class BundleAllowance:
    """A bundle, and the steps that may have it from now on."""

    bundle: str
    """The bundle's id."""
    role: str
    """The role of the steps: a name."""
    workflow: str = ""
    """The workflow of the steps; empty: any."""
    routed: bool = True
    """Whether these steps get the bundle by a route, and not only may have it."""

    def is_all_of(self, row: AddressedRow) -> bool:
        """Return whether a row is for steps of this allowance alone."""
        if row.role != (self.role,):
            return False
        return not self.workflow or row.workflow == (self.workflow,)

    def touches(self, row: AddressedRow) -> bool:
        """Return whether a row is for some steps of this allowance."""
        if row.role and first_match(row.role, self.role) is None:
            return False
        if not self.workflow or not row.workflow:
            return True
        return first_match(row.workflow, self.workflow) is not None

    def is_covered_by(self, row: AddressedRow) -> bool:
        """Return whether a row is for all steps of this allowance."""
        has_other_parts = any(
            getattr(row, part.name) for part in PARTS if part.name not in ("workflow", "role")
        )
        if has_other_parts or not self.touches(row):
            return False
        return bool(self.workflow) or not row.workflow


def with_allowance(
    catalog: Catalog, texts: Mapping[str, str], allowance: BundleAllowance
) -> dict[str, str]:
    """Return the texts of `policy.toml` and `routes.toml`, edited; those that need no edit are left
    out.

    `catalog` is what these texts say. Raises RequestError if there is no such bundle, or if a
    policy row stands in the way.
    """
    bundle = _bundle_of(catalog, allowance)
    _check_headers(texts[POLICY], "policies", POLICY)
    _check_headers(texts[ROUTES], "routes", ROUTES)
    edited = {POLICY: _edit_policy(catalog.policies, bundle, texts[POLICY], allowance)}
    if allowance.routed:
        edited[ROUTES] = _edit_routes(catalog.routes, texts[ROUTES], allowance)
    return {name: text for name, text in edited.items() if text != texts[name]}


def _check_headers(text: str, table: str, file: str) -> None:
    """Raise RequestError if the rows of a table are one list: `policies = [{ name = … }]`."""
    if table in tomllib.loads(text) and _HEADER.search(text) is None:
        raise RequestError(
            f"the rows of {file} are one list, which can't be edited",
            advice=f"write each of them under a header: [[{table}]]",
        )


def _bundle_of(catalog: Catalog, allowance: BundleAllowance) -> Bundle:
    """Return the bundle. Raises RequestError if there is none, or if steps are not named."""
    if not allowance.role or is_glob(allowance.role) or is_glob(allowance.workflow):
        raise RequestError(
            "a role and a workflow are named, without globs",
            advice="rows with globs are written by hand",
        )
    bundle = catalog.bundles.get(allowance.bundle)
    if bundle is None:
        hint = Suggester().did_you_mean(allowance.bundle, catalog.bundles)
        raise RequestError(
            f"no bundle is called {allowance.bundle!r}", advice=hint or "see bundles.toml"
        )
    return bundle


# --- policy ---------------------------------------------------------------------------------------


def _edit_policy(
    policies: Sequence[Policy], bundle: Bundle, text: str, allowance: BundleAllowance
) -> str:
    rows = [row for row in policies if allowance.touches(row)]
    for row in rows:
        _check_obstacles(row, bundle)
    limiting = [row for row in rows if row.allow is not None]
    if not limiting:
        name = _free_name(f"what {allowance.role} may have", policies)
        address = _address(allowance)
        new_row = {"name": name, **address, "allow": [f"bundle:{bundle.id}"]}
        return _with_row_at_end(text, "policies", new_row)

    for policy in limiting:
        if first_match(policy.allow or (), f"bundle:{bundle.id}") is not None:
            continue
        index = policies.index(policy)
        if allowance.is_all_of(policy):
            text = _with_item(text, ("policies", index, "allow"), f"bundle:{bundle.id}")
        else:
            text = _split(text, index, policy, bundle, allowance, policies)
    return text


def _check_obstacles(row: Policy, bundle: Bundle) -> None:
    """Raise RequestError if a row keeps the bundle out whatever is allowed (rule 3)."""
    obstacle = ""
    too_many = sorted(set(bundle.effects) - set(row.effects or bundle.effects))
    if first_match(row.deny, f"bundle:{bundle.id}") is not None:
        obstacle = "denies it"
    elif too_many:
        obstacle = f"permits no bundle with the effect {too_many[0]!r}"
    elif row.min_trust == "trusted" and bundle.trust == "untrusted":
        obstacle = "asks for trusted servers, and the bundle's are not"
    if obstacle:
        raise RequestError(
            f"policy row {row.name!r} {obstacle}: bundle {bundle.id!r} would not come in",
            advice="edit that row first, if you mean it",
        )


def _split(
    text: str,
    index: int,
    policy: Policy,
    bundle: Bundle,
    allowance: BundleAllowance,
    policies: Sequence[Policy],
) -> str:
    """Return the text with the role taken out of a row, and a row of its own for it (rule 2)."""
    span = _known_span(locate(text), ("policies", index, "role")) if policy.role else (0, 0)
    has_comment = "#" in text[span[0] : span[1]]
    if has_comment or not _is_splittable(policy, allowance):
        raise RequestError(
            f"policy row {policy.name!r} is for more than {_words(allowance)}, and limits it",
            advice=(
                f"give it a row of its own, or add 'bundle:{bundle.id}' there if all may have it"
            ),
        )
    row = dict(tomllib.loads(text)["policies"][index])
    row["name"] = _free_name(f"{policy.name} ({allowance.role})", policies)
    row["role"] = allowance.role
    row["allow"] = [*row["allow"], f"bundle:{bundle.id}"]
    others = [name for name in policy.role if name != allowance.role]
    roles = _value(others if len(others) > 1 else others[0])
    return _with_row_at_end(text[: span[0]] + roles + text[span[1] :], "policies", row)


def _is_splittable(policy: Policy, allowance: BundleAllowance) -> bool:
    """Return whether a row names the role beside others, and no workflow but the allowance's."""
    if allowance.role not in policy.role or any(map(is_glob, policy.role)):
        return False
    if len(policy.role) < 2:
        return False
    return not allowance.workflow or policy.workflow == (allowance.workflow,)


# --- routes ---------------------------------------------------------------------------------------


def _edit_routes(routes: Sequence[Route], text: str, allowance: BundleAllowance) -> str:
    of_role = [index for index, row in enumerate(routes) if allowance.is_all_of(row)]
    for index in of_role:
        if allowance.bundle not in routes[index].bundles:
            text = _with_item(text, ("routes", index, "bundles"), allowance.bundle)
    if of_role:
        return text

    covering = (index for index, row in enumerate(routes) if allowance.is_covered_by(row))
    place = next(covering, None)
    name = _free_name(f"what {allowance.role} gets", routes)
    row: dict[str, Any] = {"name": name, **_address(allowance), "bundles": [allowance.bundle]}
    if place is None:
        return _with_row_at_end(text, "routes", row)

    covering_route = routes[place]
    if allowance.bundle in covering_route.bundles:
        return text
    row["bundles"] = [*covering_route.bundles, allowance.bundle]
    if covering_route.ask is not None:
        row["ask"] = list(covering_route.ask)
    line = locate(text).line(("routes", place))
    lines = text.split("\n")
    start = _first_line_of(lines, line - 1)
    return "\n".join([*lines[:start], *_row_lines("routes", row), "", *lines[start:]])


def _first_line_of(lines: Sequence[str], header: int) -> int:
    """Return the first line of a row: its header, or the comment right above that.

    A comment that begins the file is about the file. What looks like a comment may also be the last
    line of a text over several lines.
    """
    first = header
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    if first == 0 or not _is_toml("\n".join(lines[:first])):
        return header
    return first


# --- text -----------------------------------------------------------------------------------------


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _address(allowance: BundleAllowance) -> dict[str, str]:
    if allowance.workflow:
        return {"workflow": allowance.workflow, "role": allowance.role}
    return {"role": allowance.role}


def _words(allowance: BundleAllowance) -> str:
    if allowance.workflow:
        return f"role {allowance.role!r} of workflow {allowance.workflow!r}"
    return f"role {allowance.role!r}"


def _free_name(wanted: str, rows: Sequence[AddressedRow]) -> str:
    """Return the name, with a number where a row is called so."""
    names = {row.name for row in rows}
    name, count = wanted, 1
    while name in names:
        count += 1
        name = f"{wanted} {count}"
    return name


def _with_row_at_end(text: str, table: str, row: Mapping[str, Any]) -> str:
    head = text.rstrip("\n")
    lines = _row_lines(table, row)
    return "\n".join([*([head, ""] if head else []), *lines]) + "\n"


def _row_lines(table: str, row: Mapping[str, Any]) -> Iterator[str]:
    yield f"[[{table}]]"
    yield from (f"{key} = {_value(value)}" for key, value in row.items())


def _value(value: Any) -> str:
    """Return a TOML value: a text, a truth value or a list of them."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return toml_string(str(value))


def _with_item(text: str, path: tuple[str, int, str], item: str) -> str:
    """Return the text with one more item in a list, in the list's own layout; a list that is not
    there begins with it.
    """
    table, index, key = path
    positions = locate(text)
    span = positions.span(path)
    if span is None:
        name_end = _known_span(positions, (table, index, "name"))[1]
        line_end = text.find("\n", name_end)
        place = line_end if line_end >= 0 else len(text)
        return f"{text[:place]}\n{key} = [{toml_string(item)}]{text[place:]}"

    count = len(tomllib.loads(text)[table][index][key])
    closing = span[1] - 1
    if not count and "\n" not in text[span[0] : closing]:
        return f"{text[: span[0]]}[{toml_string(item)}]{text[span[1] :]}"
    if not count:  # over several lines, so that a comment may stand in it
        end_line = text.rindex("\n", 0, closing) + 1
        return f"{text[:end_line]}  {toml_string(item)},\n{text[end_line:]}"

    last = _known_span(positions, (*path, count - 1))
    rest = text[last[1] : closing]
    if "\n" not in rest:
        return f"{text[: last[1]]}, {toml_string(item)}{text[last[1] :]}"

    comma = "" if "," in re.sub(r"#[^\n]*", "", rest) else ","
    line_start = text.rindex("\n", 0, last[0]) + 1
    indent = re.match(r"[ \t]*", text[line_start:])
    margin = indent[0] if indent is not None else ""
    end_line = text.rindex("\n", 0, closing) + 1
    return (
        f"{text[: last[1]]}{comma}{text[last[1] : end_line]}"
        f"{margin}{toml_string(item)},\n{text[end_line:]}"
    )


def _known_span(positions: Positions, path: Path) -> tuple[int, int]:
    """Return where a value is that the parser found. Raises RequestError where it can't be told."""
    span = positions.span(path)
    if span is None:
        raise RequestError(f"{show(path)} can't be edited", advice="write it as [[table]] rows")
    return span
