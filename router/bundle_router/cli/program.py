"""Runs one command of the command line: streams, signals, and the exit status of every error.

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
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bundle_router.errors import RouterError


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. Handled like an interrupt, so that runs are closed and children ended."""


class Parser(argparse.ArgumentParser):
    """A parser for which a wrong option is a bad request: status 3, since 2 means an invalid
    config.
    """

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(3, f"{self.prog}: {message}\n")


def run_program(name: str, act: Callable[[], int]) -> int:
    """Run a command and return its exit status; `name` begins each line about an error.

    Raises SystemExit where `act` parses the words of the command line and they are wrong.
    """
    signal.signal(signal.SIGTERM, _handle_terminate)
    _have_streams()
    _print_in_any_encoding()
    try:
        status = act()
        sys.stdout.flush()
    except RouterError as error:
        print(f"{name}: {error.message}", file=sys.stderr)
        if error.advice:
            print(f"  {error.advice}", file=sys.stderr)
        return error.exit_code
    except (
        UnicodeEncodeError
    ) as error:  # records, databases and headers are UTF-8; a word may be any bytes
        print(f"{name}: {ascii(error.object)[:200]} is not UTF-8", file=sys.stderr)
        return 3
    except Terminated:
        print(f"{name}: terminated", file=sys.stderr)
        return 143
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()  # the reader has closed the pipe (`| head`)
        return 141
    except OSError as error:
        if error.filename is None:  # standard output
            _drop_output()
        if error.filename is None:
            sentence = "what it prints can't be written"
        else:
            sentence = f"can't use {error.filename!r}"
        print(f"{name}: {sentence}: {error.strerror}", file=sys.stderr)
        return RouterError.exit_code
    return status


def _handle_terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


def _have_streams() -> None:
    """Open streams that were closed before the start (None) to /dev/null, so that printing is no
    error.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good


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
