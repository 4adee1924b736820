"""The command line.

Each verb is a module that declares its arguments and runs; this one parses and maps errors.

Exit status: 0 fine; 1 a check found something; 2 the config is invalid; 3 a bad or refused request;
4 a server, tool, model or disk failed; 5 integrity broken. 130, 141 and 143 are an interrupt, a
closed pipe and a termination, as shells expect.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from bundle_router import __version__
from bundle_router.errors import RouterError, refuse_windows

VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("scaffold", "write a commented config and its JSON Schemas; never overwrites"),
    "check": ("checking", "validate the config, and report what is legal but dead or risky"),
    "diff": (
        "diff",
        "compare two configs: what the new one newly allows at any step, and what it takes away",
    ),
    "demo": ("demo", "run a small workflow end to end and show what happened"),
    "route": ("route", "decide what a step may see, and write it to the run directory"),
    "search": ("search", "rank bundles, or tools, for a request"),
    "explain": ("explain", "say why a tool or bundle is, or is not, shown at a step"),
    "tools": ("tools", "list the tools that a run's current decision shows, and what they cost"),
    "call": ("call", "call a tool that a run's current decision shows"),
    "runs": (
        "runs",
        "list, search, show, count, verify, export, import, index, publish or prune runs",
    ),
    "replay": (
        "replay",
        "make recorded decisions again, under their own config or another, and compare",
    ),
    "eval": (
        "eval",
        "check the decisions of case files (.toml); measure routing on labelled sets (.jsonl)",
    ),
    "learn": (
        "learn",
        (
            "learn from past runs: show what they teach and what it would change; accept it, or"
            " label steps"
        ),
    ),
    "import": (
        "importing",
        "take over MCP servers from .mcp.json, Claude, Cursor, VS Code or Codex; all untrusted",
    ),
    "login": ("login", "authorize a tool server that has auth = 'oauth', in your browser"),
    "pin": ("pin", "show what tool servers list now against what was reviewed, and approve it"),
    "vendor": ("vendor", "write typed Python wrappers for a server's pinned tools"),
    "serve": ("serve", "serve engines over HTTP, agents over MCP, and pages for people"),
    "token": ("token", "make a bearer token for the service: shown once, stored as its SHA-256"),
    "deferral": (
        "deferral",
        "find where an agent's tool definitions are not deferred, and change it",
    ),
}
"""Each verb, in the order a newcomer meets them: its module in this package, and its purpose.

Only verbs that work are listed.
"""


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. Handled like an interrupt, so that runs are closed and children ended."""


def _handle_terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


def _have_streams() -> None:
    """Open streams that were closed before the start (None) to /dev/null, so that printing is no
    error.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good


class _Parser(argparse.ArgumentParser):
    """A parser for which a wrong option is a bad request: status 3, since 2 means an invalid
    config.
    """

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(3, f"{self.prog}: {message}\n")


def parser(load: Collection[str] = VERBS) -> argparse.ArgumentParser:
    """Return the argument parser.

    Only the modules of the verbs in `load` are imported, with their options.
    """
    top = _Parser(
        prog="bundle-router",
        description="Decides which bundles of tools each step of a workflow may see, and says why.",
    )
    top.add_argument(
        "--version",
        action="version",
        version=f"bundle-router {__version__}",
        help="show the version",
    )
    verbs = top.add_subparsers(dest="verb", metavar="verb", required=True)
    for name, (module_name, summary) in VERBS.items():
        sub = verbs.add_parser(name, help=summary, description=summary)
        if name in load:
            module = import_module(f"bundle_router.cli.{module_name}")
            module.declare(sub)
            sub.set_defaults(
                handler=getattr(module, "run", None)
            )  # None: each of its own verbs has one
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _handle_terminate)
    _have_streams()
    _print_in_any_encoding()
    verb = next((word for word in words if word in VERBS), "")
    try:
        refuse_windows(sys.platform if verb else "")
        arguments = parser((verb,)).parse_args(words)
        status: int = arguments.handler(arguments)
        sys.stdout.flush()
    except RouterError as error:
        print(f"bundle-router: {error.message}", file=sys.stderr)
        if error.advice:
            print(f"  {error.advice}", file=sys.stderr)
        return error.exit_code
    except (
        UnicodeEncodeError
    ) as error:  # records, databases and headers are UTF-8; a word may be any bytes
        print(f"bundle-router: {ascii(error.object)[:200]} is not UTF-8", file=sys.stderr)
        return 3
    except Terminated:
        print("bundle-router: terminated", file=sys.stderr)
        return 143
    except KeyboardInterrupt:
        print("bundle-router: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()  # the reader has closed the pipe (`| head`)
        return 141
    except OSError as error:
        if error.filename is None:  # standard output
            _drop_output()
        what = (
            "what it prints can't be written"
            if error.filename is None
            else f"can't use {error.filename!r}"
        )
        print(f"bundle-router: {what}: {error.strerror}", file=sys.stderr)
        return RouterError.exit_code
    return status


def _print_in_any_encoding() -> None:
    """Write characters that the output's encoding can't represent as escapes, instead of
    failing.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Redirect standard output to nowhere before the interpreter flushes its buffer, which would
    fail.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
