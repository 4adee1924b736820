"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from bundle_router.cli.local import add_local, local_servers
from bundle_router.cli.output import say_skipped
from bundle_router.core.config.config_text import FILE_NAMES
from bundle_router.core.values import Step, StepPolicy, Trust
from bundle_router.errors import CorruptRun, RequestError, StorageError, UnknownRun

if TYPE_CHECKING:
    from bundle_router.adapters.archive import RunArchive
    from bundle_router.wiring import Router


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        help="config folder, laid over the shipped one (default: ./config if there is one)",
    )
    add_local(parser)


def config_folder(arguments: argparse.Namespace) -> str | None:
    """Return the named config folder, or `config` if it exists; None: the shipped config."""
    if arguments.config is not None:
        return str(arguments.config)
    if any(Path("config", name).is_file() for name in FILE_NAMES):
        return "config"
    return None


_RUNS: Final = "runs"


def add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", default=_RUNS, help="folder of run directories (default: runs)")


def add_archive(parser: argparse.ArgumentParser) -> None:
    """Add the options for the place of runs."""
    add_runs(parser)
    parser.add_argument(
        "--store", metavar="URL", help="the store that holds the runs instead: postgresql://…"
    )


def archive_of(arguments: argparse.Namespace) -> RunArchive:
    """Return the archive that `--store` or `--runs` names.

    Raises RequestError for a named folder that is not there.
    """
    from bundle_router.wiring.stores import open_archive

    # The default folder comes with the first run, so nobody mistyped it.
    return open_archive(arguments.store or arguments.runs, present=arguments.runs != _RUNS)


class SkippedRuns:
    """Reports runs that can't be read.

    Of runs that the command `named`, none may be missing or refused.
    """

    def __init__(self, archive: RunArchive, *, named: bool) -> None:
        self.status = 0
        self._archive = archive
        self._named = named

    @contextmanager
    def reading(self, run_id: str) -> Iterator[None]:
        """End the block with a report if the run can't be read.

        Raises StorageError if no run can.
        """
        try:
            yield
        except (CorruptRun, RequestError, StorageError) as error:
            if (self._named and isinstance(error, RequestError)) or getattr(
                error, "kind", ""
            ) == "unreachable":
                raise
            if not self._named and (
                isinstance(error, UnknownRun) or run_id not in self._archive.run_ids()
            ):
                say_skipped([f"run {run_id!r} was deleted meanwhile"])
                return
            self.status = max(self.status, error.exit_code)
            say_skipped([error.message])


def add_development(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--development", action="store_true", help="permit servers that are processes (stdio)"
    )


def add_opening(parser: argparse.ArgumentParser) -> None:
    """Add the options that `open_router` reads, and `--json`."""
    add_config(parser)
    add_archive(parser)
    parser.add_argument(
        "--workspace", help="folder that local tools are confined to (default: this one)"
    )
    add_development(parser)
    parser.add_argument(
        "--unpinned", action="store_true", help="as --development, and use trusted servers unpinned"
    )
    add_json(parser)


def open_router(arguments: argparse.Namespace) -> Router:
    """Return the router that the options describe.

    Only options grant what a config file can't grant itself.
    """
    from bundle_router.wiring import Router

    return Router.open(
        config_folder(arguments),
        runs=arguments.runs,
        store=arguments.store,
        workspace=arguments.workspace,
        development="unpinned" if arguments.unpinned else arguments.development,
        local=local_servers(arguments),
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def user_name() -> str:
    """Return the name of the user who runs the command, else their number."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


ADDRESS = ("workflow", "role", "step")
_ADDRESS_HELP: Final = {
    "workflow": "the kind of work",
    "role": "who does the step",
    "step": "the position in the workflow",
}


def add_step(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the options for the workflow's present step."""
    for name in ADDRESS:
        parser.add_argument(f"--{name}", required=required, help=_ADDRESS_HELP[name])
    parser.add_argument("--goal", default="", help="what the step has to achieve")
    parser.add_argument(
        "--constraint", action="append", default=[], help="in words; may be repeated"
    )
    parser.add_argument(
        "--allow", action="append", help="policy of this step: a pattern it may have at most"
    )
    parser.add_argument(
        "--deny", action="append", default=[], help="policy of this step: a pattern it may not have"
    )
    parser.add_argument(
        "--trust",
        choices=get_args(Trust),
        help="policy of this step: the lowest trust of its tools' servers",
    )
    parser.add_argument("--max-bundles", type=int, help="bundles shown at most (default: no limit)")
    parser.add_argument(
        "--max-tools", type=int, help="tools in the array at most (default: no limit)"
    )
    parser.add_argument(
        "--max-tokens", type=int, help="tokens of the array at most (default: no limit)"
    )


def step_from(arguments: argparse.Namespace, run_id: str, **fields: Any) -> Step:
    """Return the step that the options describe. Raises InvalidStep, which names the errors."""
    policy = None
    if arguments.allow is not None or arguments.deny or arguments.trust is not None:
        policy = StepPolicy(allow=arguments.allow, deny=arguments.deny, trust=arguments.trust)
    options = (*ADDRESS, "goal", "max_bundles", "max_tools", "max_tokens")
    values = {name: getattr(arguments, name) for name in options}
    return Step(run_id=run_id, constraints=arguments.constraint, policy=policy, **values, **fields)


def json_object(text: str) -> dict[str, Any]:
    """Return a JSON object given on the command line. Raises RequestError."""
    advice = 'write e.g. \'{"path": "README.md"}\''
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise RequestError(f"the arguments are not JSON: {wrong}", advice=advice) from None
    if not isinstance(value, dict):
        raise RequestError("the arguments must be a JSON object", advice=advice)
    return value
