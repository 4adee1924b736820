"""Stage 2 for bundles: tools that exist, compositions without cycles, and what follows from both.

Rules:
1. A flat bundle holds its own tools and those of all bundles it is composed of. Its effects,
   requirements and companions are the union of theirs; its trust is the lowest of its tools'
   servers.
2. Globs are expanded where the tools are known (local servers). Over other trusted servers they
   stay patterns; over untrusted servers they are refused, whoever composes them.
3. A bundle that reaches an untrusted server is in mode meta, whatever it says.
4. Composition multiplies: at most `MAX_TOOLS` tools a bundle and `MAX_ALL_TOOLS` in all, so that a
   small file can't describe a large catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from bundle_router.core.catalog import Bundle, Server
from bundle_router.core.config.entries import WrittenEntry
from bundle_router.core.config.overlay import WrittenConfig
from bundle_router.core.config.positions import Path
from bundle_router.core.config.problem_report import Report
from bundle_router.core.values import EFFECTS, MODES, TOOL_NAME, Effect, Mode, Trust
from bundle_router.core.values.patterns import is_glob, matches

MAX_TOOLS: Final = 5_000
MAX_ALL_TOOLS: Final = 250_000

BundleEntry = WrittenEntry[Bundle]


@dataclass(slots=True)
class _Flat:
    """A bundle with its parts, before it is frozen."""

    tools: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    servers: set[str] = field(default_factory=set)
    effects: set[Effect] = field(default_factory=set)
    env: set[str] = field(default_factory=set)
    binary: set[str] = field(default_factory=set)
    companions: set[str] = field(default_factory=set)

    def absorb(self, other: _Flat) -> None:
        for item in fields(self):
            getattr(self, item.name).update(getattr(other, item.name))


class BundleResolver:
    """Resolves all bundles of a config.

    `ids` maps every valid id, old ids included, to the present id.
    """

    def __init__(
        self,
        written: WrittenConfig,
        servers: Mapping[str, Server],
        local_tools: Mapping[str, Set[str]],
        report: Report,
    ) -> None:
        self._written = written
        self._servers = servers
        self._local_tools = local_tools
        self._report = report
        self.complete = "bundles.toml" not in written.unread
        """False when bundles.toml could not be read, so that no bundle can be called missing."""
        self.ids = {id_: id_ for id_ in written.known_bundles()}
        self._reported_servers: set[str] = set()
        self._add_aliases()

    def resolve(self) -> dict[str, Bundle]:
        flats: dict[str, _Flat] = {}
        total = 0
        for entry in self._composition_order():
            flat = self._flatten_own(entry)
            for part in self._parts(entry):
                if part in flats:
                    flat.absorb(flats[part])
            total += len(flat.tools)
            if len(flat.tools) > MAX_TOOLS or total > MAX_ALL_TOOLS:
                if len(flat.tools) > MAX_TOOLS:
                    limit = f"{MAX_TOOLS:,} tools"
                else:
                    limit = f"{MAX_ALL_TOOLS:,} in all bundles"
                self._report.add_about(entry, "", f"holds too many tools: the limit is {limit}")
                break
            flats[entry.name] = flat
        entries = self._written.bundles
        return {
            name: self._freeze_bundle(entries[name], flats[name])
            for name in entries
            if name in flats
        }

    def check_ids(self, entry: WrittenEntry[Any], key: str, ids: Sequence[str]) -> tuple[str, ...]:
        """Return the present ids; those that do not exist are reported and left out."""
        problems = []
        for index, id_ in enumerate(ids):
            present_id = self.ids.get(id_)
            if present_id is not None:
                problems.append(present_id)
            elif self.complete:
                hint = self._report.suggester.did_you_mean(id_, self.ids)
                if is_glob(id_):
                    hint = "write the bundles out; globs belong in 'ask' and in policies"
                self._report.add_about(entry, (key, index), f"unknown bundle {id_!r}", hint)
        return tuple(problems)

    def _add_aliases(self) -> None:
        owners: dict[str, str] = {}
        for entry in self._written.bundles.values():
            for index, alias in enumerate(entry.value.aliases):
                owner = owners.setdefault(alias, entry.name)
                if owner != entry.name:
                    message = f"{alias!r} is already an alias of bundle {owner!r}"
                    self._report.add_about(
                        entry, ("aliases", index), message, "an old id has one successor"
                    )
                self.ids.setdefault(alias, owner)

    # --- composition ------------------------------------------------------------------------------

    def _parts(self, entry: BundleEntry) -> list[str]:
        return [self.ids[id_] for id_ in entry.value.bundles if id_ in self.ids]

    def _composition_order(self) -> Iterator[BundleEntry]:
        """Yield every bundle after its parts.

        A cycle is reported where it closes, and cut there.
        """
        finished: set[str] = set()
        for root in self._written.bundles.values():
            self.check_ids(root, "bundles", root.value.bundles)
            if root.name in finished:
                continue
            trail: dict[str, Iterator[tuple[int, str]]] = {root.name: enumerate(self._parts(root))}
            while trail:
                name = next(reversed(trail))
                entry = self._written.bundles[name]
                for index, part in trail[name]:
                    if part in trail:
                        self._report_cycle(entry, index, [*trail, part], part)
                    elif part not in finished and part in self._written.bundles:
                        trail[part] = enumerate(self._parts(self._written.bundles[part]))
                        break
                else:
                    del trail[name]
                    finished.add(name)
                    yield entry

    def _report_cycle(self, entry: BundleEntry, index: int, trail: list[str], start: str) -> None:
        cycle = trail[trail.index(start) :]
        excerpt = cycle if len(cycle) <= 8 else [*cycle[:4], "…", *cycle[-3:]]
        message = f"bundles are composed in a circle: {' → '.join(excerpt)}"
        self._report.add_about(entry, ("bundles", index), message, "cut it somewhere")

    # --- one bundle -------------------------------------------------------------------------------

    def _flatten_own(self, entry: BundleEntry) -> _Flat:
        bundle = entry.value
        flat = _Flat(
            effects=set(bundle.effects),
            env=set(bundle.requires_env),
            binary=set(bundle.requires_binary),
        )
        for index, ref in enumerate(bundle.tools):
            self._add_tool(entry, ("tools", index), ref, flat)
        for index, ref in enumerate(bundle.companions):
            if is_glob(ref):
                message = "companions are named one by one"
                self._report.add_about(entry, ("companions", index), message, "write the tools out")
            elif self._may_be_named(entry, ("companions", index), ref):
                flat.companions.add(ref)
        if not entry.complete:
            pass  # its tools or effects may be what was wrong
        elif not bundle.tools and not bundle.bundles:
            self._report.add_about(
                entry, "", "holds no tools", "add tools = [...] or bundles = [...]"
            )
        elif bundle.tools and "effects" not in entry.keys:
            hint = (
                "add effects = [...] with what its tools can do: 'read', 'write', 'exec', 'network'"
            )
            self._report.add_about(entry, "effects", "is missing, and policies depend on it", hint)
        self._check_skill(entry)
        return flat

    def _add_tool(self, entry: BundleEntry, where: Path, ref: str, flat: _Flat) -> None:
        if not self._may_be_named(entry, where, ref):
            return
        name, _, tool = ref.partition(".")
        flat.servers.add(name)
        if not is_glob(ref):
            flat.tools.add(ref)
            return
        server = self._servers[name]
        if server.traits.is_remote:
            flat.patterns.add(ref)
            return
        tool_names = self._local_tools.get(name)
        if tool_names is None:
            return  # a local server without tools has been reported where it stands
        matching = {
            f"{name}.{one}" for one in tool_names if matches(tool, one) and server.includes(one)
        }
        if not matching:
            message = f"{ref!r} matches no tool of server {name!r}"
            self._report.add_about(entry, where, message, f"it has {', '.join(sorted(tool_names))}")
        flat.tools |= matching

    def _may_be_named(self, entry: BundleEntry, where: Path, ref: str) -> bool:
        """Return whether `server.tool` may be named here; if not, report it once."""
        name, dot, tool = ref.partition(".")
        message = f"{ref!r} is not a tool's name"
        suggestion = ""
        if not dot or not name or not tool:
            suggestion = "write 'server.tool'"
        elif is_glob(name):
            message = f"{ref!r} reaches over all servers"
            suggestion = "name the server: 'repo.*'"
        elif not TOOL_NAME.fullmatch(tool.replace("*", "x").replace("?", "x")):
            suggestion = "letters, digits, '_', '-' and '.'; globs have * and ?"
        if suggestion:
            self._report.add_about(entry, where, message, suggestion)
            return False
        return self._tool_exists(entry, where, ref)

    def _tool_exists(self, entry: BundleEntry, where: Path, ref: str) -> bool:
        name, _, tool = ref.partition(".")
        server = self._servers.get(name)
        if server is None:
            self._report_unknown_server(entry, where, ref)
            return False
        if is_glob(tool):
            if server.trust == "untrusted":
                message = (
                    f"{ref!r} is a glob, and server {name!r} is untrusted: it could add tools to"
                    " this bundle itself"
                )
                self._report.add_about(entry, where, message, "name its tools one by one")
            return server.trust == "trusted"
        known_tools = self._local_tools.get(name) if not server.traits.is_remote else None
        if known_tools is not None and tool not in known_tools:
            nearest = self._report.suggester.nearest(tool, known_tools)
            if nearest:
                hint = f"did you mean '{name}.{nearest}'?"
            else:
                hint = f"it has {', '.join(sorted(known_tools))}"
            if (
                nearest or name not in self._reported_servers
            ):  # of what is another server's list, one is enough
                self._report.add_about(entry, where, f"unknown tool {ref!r}", hint)
            self._reported_servers |= set() if nearest else {name}
            return False
        return True

    def _report_unknown_server(self, entry: BundleEntry, where: Path, ref: str) -> None:
        """Report an unknown server once, however many of its tools are named."""
        name = ref.partition(".")[0]
        names = self._written.known_servers()
        if (
            name in names
            or name in self._reported_servers
            or "servers.toml" in self._written.unread
        ):
            return
        self._reported_servers.add(name)
        hint = self._report.suggester.did_you_mean(name, names)
        refs = [one for other in self._written.bundles.values() for one in other.value.tools]
        uses = sum(one.partition(".")[0] == name for one in refs) - 1
        message = f"unknown server {name!r} in {ref!r}" + (
            f" and in {uses} more" if uses > 0 else ""
        )
        self._report.add_about(entry, where, message, hint)

    def _check_skill(self, entry: BundleEntry) -> None:
        skill = entry.value.skill
        if skill is None:
            return
        parts = skill.split("/")
        if skill.startswith("/") or "\\" in skill or any(part in ("", ".", "..") for part in parts):
            message = f"{skill[:80]!r} is not a path under bundles/"
            self._report.add_about(entry, "skill", message, "such as 'repo/SKILL.md'")

    def _freeze_bundle(self, entry: BundleEntry, flat: _Flat) -> Bundle:
        bundle = entry.value
        untrusted = sorted(
            name for name in flat.servers if self._servers[name].trust == "untrusted"
        )
        trust: Trust = "untrusted" if untrusted else "trusted"
        if "mode" in entry.keys:
            mode: Mode = bundle.mode
        elif untrusted:
            mode = "meta"
        else:
            mode = "direct"
        if untrusted and not MODES[mode].for_untrusted:
            message = f"{mode!r} would show agents the text of untrusted server {untrusted[0]!r}"
            self._report.add_about(entry, "mode", message, "use mode = 'meta'")
        return replace(
            bundle,
            tools=tuple(sorted(flat.tools)),
            bundles=tuple(dict.fromkeys(self._parts(entry))),
            patterns=tuple(sorted(flat.patterns)),
            servers=tuple(sorted(flat.servers)),
            mode=mode,
            effects=tuple(effect for effect in EFFECTS if effect in flat.effects),
            requires_env=tuple(sorted(flat.env)),
            requires_binary=tuple(sorted(flat.binary)),
            companions=tuple(sorted(flat.companions)),
            aliases=tuple(sorted(bundle.aliases)),
            trust=trust,
        )
