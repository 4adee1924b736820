"""The command line. Each verb is a module that declares its arguments and runs; this one parses and maps errors.

Exit status: 0 fine; 1 a check found something; 2 the config is invalid; 3 a bad or refused request; 4 a server, tool,
model or disk failed; 5 integrity broken. 130, 141 and 143 are an interrupt, a closed pipe and a termination, as
shells expect.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bundle_router.errors import RouterError

VERBS = (
    "init", "check", "demo", "route", "search", "explain", "tools", "call", "runs", "replay", "eval", "learn", "import",
    "login", "pin", "vendor", "serve", "deferral",
)  # fmt: skip
"""In the order a newcomer meets them. `bundle_router.cli.<verb>` holds each; a verb is here when it works."""


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. Takes the way of an interrupt, so that runs are closed and children ended."""


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


def _have_streams() -> None:
    """A stream that was closed before we were started is None: what is said there goes nowhere, and is no error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good


class _Parser(argparse.ArgumentParser):
    """A wrong option is a bad request: status 3, since 2 says that the config is invalid."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(3, f"{self.prog}: {message}\n")


def parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The argument parser. With `verb`, only that verb's module is loaded: the others are only known by name."""
    top = _Parser(
        prog="bundle-router",
        description="Decides which bundles of tools each step of a workflow may see, and says why.",
    )
    from bundle_router.wiring import package_version

    top.add_argument("--version", action="version", version=f"bundle-router {package_version()}")
    verbs = top.add_subparsers(dest="verb", metavar="verb", required=True)
    for name in VERBS:
        module = import_module(f"bundle_router.cli.{_module(name)}") if verb in (None, name) else None
        summary = module.SUMMARY if module else ""
        sub = verbs.add_parser(name, help=summary, description=summary)
        if module is not None:
            module.declare(sub)
            sub.set_defaults(handler=module.run)
    return top


def _module(verb: str) -> str:
    return {"eval": "cases", "init": "scaffold", "check": "checking", "import": "importing"}.get(verb, verb)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _terminated)
    _have_streams()
    _print_in_any_encoding()
    verb = next((word for word in words if word in VERBS), None)
    try:
        arguments = parser(verb).parse_args(words)
        status: int = arguments.handler(arguments)
        sys.stdout.flush()
    except RouterError as error:
        print(f"bundle-router: {error.message}", file=sys.stderr)
        if error.advice:
            print(f"  {error.advice}", file=sys.stderr)
        return error.exit_code
    except Terminated:
        print("bundle-router: terminated", file=sys.stderr)
        return 143
    except KeyboardInterrupt:
        print("bundle-router: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()  # the reader went away (`| head`)
        return 141
    except OSError as error:
        if error.filename is not None:  # no failure of standard output, so a fault of this program
            raise
        _drop_output()
        print(f"bundle-router: what it prints can't be written: {error.strerror}", file=sys.stderr)
        return RouterError.exit_code
    return status


def _print_in_any_encoding() -> None:
    """What a terminal's or a file's encoding can't hold is written as an escape, where it would end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What is still buffered has nowhere to go: replaces the descriptor before the interpreter flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
