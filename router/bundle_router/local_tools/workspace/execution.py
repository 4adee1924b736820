"""`exec` and `binaries`: start an allow-listed program in the workspace, and list what may be
started.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from bundle_router.adapters.descriptors import Opened
from bundle_router.adapters.private_folders import private_folder
from bundle_router.adapters.sandbox.plan import FACILITIES, SandboxPlan, Statement
from bundle_router.core.values import (
    BinaryRule,
    Data,
    Frozen,
    LocalTool,
    Text,
    ToolContext,
    ToolOutput,
    shorten,
)
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.beneath import PATH_ONLY
from bundle_router.local_tools.repo.confinement import Root, workspace
from bundle_router.local_tools.repo.lineage import location
from bundle_router.local_tools.workspace import confine, grammar
from bundle_router.local_tools.workspace.binary import Binary, opened
from bundle_router.local_tools.workspace.confine import environment
from bundle_router.local_tools.workspace.keeping import (
    ProtectedPlaces,
    moved_aside,
    protected_places,
    still_kept,
)
from bundle_router.local_tools.workspace.process import ProcessExit, run
from bundle_router.local_tools.workspace.survey import MAX_ENTRIES


@contextmanager
def program_folder() -> Iterator[str]:
    """Yield a private folder that contains `home`, `tmp` and `var-tmp`."""
    with private_folder("bundle-router-exec-") as folder:
        for name in ("home", "tmp", "var-tmp"):
            Path(folder, name).mkdir()
        yield folder


MAX_STDIN: Final = 1 << 20
_RESERVE_S: Final = 2.0
"""Seconds of the caller's time that are reserved for ending processes and returning output."""
_RESERVE_BYTES: Final = 8_192
_LEAST_BYTES: Final = 2_048
_NOT_SURVEYED: Final = Statement(
    "survey",
    False,
    f"more than {MAX_ENTRIES:,} entries: sockets, credentials and links among the rest were not"
    " found",
)


class ExecArguments(Frozen):
    """Arguments of `workspace.exec`."""

    binary: str = Field(
        max_length=64, description="Name of an allowed binary; `binaries` lists them."
    )
    args: tuple[str, ...] = Field(
        default=(),
        max_length=grammar.MAX_ARGUMENTS,
        description=(
            "Arguments, one item each. No shell: quotes, globs, pipes and && are not interpreted."
        ),
    )
    cwd: str = Field(
        default=".", max_length=4096, description="Folder to run in, relative to the workspace."
    )
    stdin: str | None = Field(
        default=None, max_length=MAX_STDIN, description="Text for standard input."
    )


class BinariesArguments(Frozen):
    """Arguments of `workspace.binaries`: none."""


def execute(
    arguments: ExecArguments, context: ToolContext, *, facilities: tuple[str, ...] = FACILITIES
) -> ToolOutput:
    """Run one program to its end. Raises ToolFailure if nothing was started.

    `facilities` omits parts of the isolation, so that tests can show what holds without them.
    """
    if sys.platform != "linux":
        raise ToolFailure(
            "programs are started on Linux only: other systems have no sandbox for them here",
            code="unsupported_platform",
            advice="run the router on Linux, in a container or a virtual machine",
        )
    rule = _rule(arguments.binary, context)
    accepted = _accept_arguments(rule, arguments.args)
    with (
        workspace(context) as root,
        Opened(root.open_fd(arguments.cwd, PATH_ONLY | os.O_DIRECTORY)) as cwd_fd,
        opened(rule, workspace=root.top) as binary,
        program_folder() as private,
    ):
        _check_paths(root, arguments, accepted)
        places = protected_places(root, context, confine.readable_paths(rule, binary), rule)
        plan = _plan(
            rule, binary, arguments, root=root, cwd_fd=cwd_fd, private=private, kept=places
        )
        plan = plan._replace(facilities=facilities)
        with moved_aside(root, places.absent) as renamed:
            finished = run(
                plan,
                stdin=arguments.stdin,
                timeout_s=min(
                    rule.timeout_s, max(context.timeout_s - _RESERVE_S, context.timeout_s / 2)
                ),
                cancelled=context.cancelled,
                max_bytes=max((context.max_bytes - _RESERVE_BYTES) // 2, _LEAST_BYTES),
            )
    statements = (
        *still_kept(places, finished.statements),
        *(() if places.surveyed else (_NOT_SURVEYED,)),
        *(() if places.linked_files.complete else (_unprotected_links(places),)),
    )
    return _output(replace(finished, statements=statements), binary, arguments, renamed)


def _unprotected_links(kept: ProtectedPlaces) -> Statement:
    detail = f"{kept.linked_files}, more than can be kept read-only: what lies there can be changed"
    return Statement("hard links", False, detail)


def list_binaries(arguments: BinariesArguments, context: ToolContext) -> ToolOutput:
    """Return the command lines that `exec` may start, one line for each permitted form."""
    rules = context.settings.binaries
    lines = [line for rule in rules for line in grammar.usage(rule)]
    if lines:
        text = "\n".join(lines)
    else:
        text = "No binary is allowed. An operator can add [[binaries]] to policy.toml."
    rows = [
        {"name": r.name, "path": r.path, "timeout_s": r.timeout_s, "forms": grammar.usage(r)}
        for r in rules
    ]
    return ToolOutput((Text(text), Data({"binaries": rows})))


# --- before ---------------------------------------------------------------------------------------


def _rule(name: str, context: ToolContext) -> BinaryRule:
    for rule in context.settings.binaries:
        if rule.name == name:
            return rule
    names = ", ".join(rule.name for rule in context.settings.binaries) or "none"
    raise ToolFailure(
        f"{name!r} is not an allowed binary", code="unknown_binary", advice=f"allowed: {names}"
    )


def _accept_arguments(rule: BinaryRule, args: tuple[str, ...]) -> grammar.Accepted:
    result = grammar.match(rule, args)
    if isinstance(result, grammar.Refused):
        raise _refusal(rule, args, result)
    return result


def _refusal(rule: BinaryRule, args: tuple[str, ...], refused: grammar.Refused) -> ToolFailure:
    place = f"argument {refused.index + 1}"
    if 0 <= refused.index < len(args):
        place += f" {shorten(args[refused.index], 200)!a}"
    allowed = "; ".join(grammar.usage(rule))
    return ToolFailure(
        f"{rule.name}: {place}: {refused.why}", code="not_permitted", advice=f"permitted: {allowed}"
    )


def _check_paths(root: Root, arguments: ExecArguments, accepted: grammar.Accepted) -> None:
    """Refuse a path that leads out of the workspace through a symlink.

    Paths that do not, or can't, exist are accepted.

    A link may change between this check and the program's own open; then Landlock keeps it inside.
    """
    for path in accepted.paths:
        try:
            os.close(root.open_fd(f"{root.relative(arguments.cwd)}/{path}", PATH_ONLY))
        except ToolFailure as failure:
            if failure.code not in ("not_found", "not_a_directory", "invalid_path"):
                raise


def _plan(
    rule: BinaryRule,
    binary: Binary,
    arguments: ExecArguments,
    *,
    root: Root,
    cwd_fd: int,
    private: str,
    kept: ProtectedPlaces,
) -> SandboxPlan:
    read = confine.readable_paths(rule, binary)
    return SandboxPlan(
        argv=(binary.path, *arguments.args),
        env=tuple(environment(rule, private=private, outside=os.environ).items()),
        binary_fd=binary.fd,
        cwd=str(location(cwd_fd, root.fd, root.path)),
        cwd_fd=cwd_fd,
        root_fd=root.fd,
        report_fd=-1,
        write=(private,),
        read=read,
        devices=confine.DEVICES,
        loader=confine.loader(),
        temporary=(
            (f"{private}/tmp", "/tmp"),  # noqa: S108  # of its own root
            (f"{private}/var-tmp", "/var/tmp"),  # noqa: S108
        ),
        protected=kept.protected,
        hidden=kept.hidden,
        masked=kept.masked,
        pinned=kept.pinned,
        linked=kept.linked,
        linked_details=str(kept.linked_files) if kept.linked else "",
        memory_bytes=rule.memory_bytes,
        total_memory_bytes=rule.memory_bytes,
        file_bytes=rule.file_bytes,
        total_written_bytes=2 * rule.file_bytes,
        max_processes=rule.max_processes,
    )


# --- after ----------------------------------------------------------------------------------------


def _output(
    finished: ProcessExit, binary: Binary, arguments: ExecArguments, moved: list[str]
) -> ToolOutput:
    parts = [_headline(finished), *moved]
    for name, output in (("stdout", finished.stdout), ("stderr", finished.stderr)):
        if output.total:
            parts.append(f"--- {name}, {output.total:,} bytes ---\n{output.text.rstrip()}")
    parts.append(summary(finished.statements))
    failed = finished.ended != "exited" or finished.exit_code != 0
    return ToolOutput(
        (Text("\n".join(parts)), Data(_record(finished, binary, arguments))), failed=failed
    )


def _headline(finished: ProcessExit) -> str:
    took = f"{finished.elapsed_ms / 1000:.2f} s"
    if finished.leftovers:
        leftovers = f"; {finished.leftovers} processes it left running were ended"
    else:
        leftovers = ""
    if finished.ended == "timeout":
        return f"ended after {took}: out of time{leftovers}"
    if finished.ended == "cancelled":
        return f"ended after {took}: cancelled by the caller{leftovers}"
    if finished.exceeded:
        return f"ended after {took}: {finished.exceeded}{leftovers}"
    if finished.signal is not None:
        hint = " (a file grew past its limit)" if finished.signal == signal.SIGXFSZ else ""
        return f"ended by {_signal_name(finished.signal)} after {took}{hint}{leftovers}"
    return f"exit {finished.exit_code} after {took}{leftovers}"


def _signal_name(number: int) -> str:
    if number in signal.valid_signals():
        return signal.Signals(number).name
    return f"signal {number}"


def summary(statements: tuple[Statement, ...]) -> str:
    """Return one short line for the model: which protections held, then which did not and why.

    The record has all.
    """
    enforced = ", ".join(s.name for s in statements if s.held) or "nothing"
    missing = ", ".join(f"{s.name} ({s.detail})" for s in statements if not s.held)
    return f"isolated or limited: {enforced}" + (f"; NOT: {missing}" if missing else "")


def _record(finished: ProcessExit, binary: Binary, arguments: ExecArguments) -> dict[str, Any]:
    streams = [("stdout", finished.stdout), ("stderr", finished.stderr)]
    return {
        "binary": {"name": arguments.binary, "path": binary.path, "real_path": binary.real_path},
        "args": list(arguments.args),
        "cwd": arguments.cwd,
        "ended": finished.ended,
        "exit_code": finished.exit_code,
        "signal": None if finished.signal is None else _signal_name(finished.signal),
        "elapsed_ms": round(finished.elapsed_ms, 1),
        "leftovers": finished.leftovers,
        "streams": [
            {"id": name, "bytes": stream.total, "dropped": stream.dropped}
            for name, stream in streams
        ],
        "isolation": [statement._asdict() for statement in finished.statements],
    }


EXEC: Final = LocalTool(
    name="exec",
    description=(
        "Run one allowed program in the workspace (tests, checks) and get its exit code and output."
        " No shell: pass arguments as a list. `binaries` lists what may be run and how."
    ),
    arguments=ExecArguments,
    run=execute,
)
BINARIES: Final = LocalTool(
    name="binaries",
    description="List the programs `exec` may run and the argument forms each may be run with.",
    arguments=BinariesArguments,
    run=list_binaries,
)
