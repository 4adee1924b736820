"""`bundle-router` for tests: a command in this process, on a terminal, or, where the process is
what is tested, cold.

A command in this process is `bundle_router.cli.main` in a folder, with streams, environment, signal
handlers and imported modules of its own: what it changes of these is as it was afterwards. It says
and returns what a process would, and costs no start of Python and no import.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from bundle_router.cli import main

ROOT = Path(__file__).parents[1]
CODE = os.pathsep.join((str(ROOT / "router"), str(ROOT / "router" / "deferral")))
"""Where the two packages are imported from: `PYTHONPATH` of a process of its own."""
Finished = subprocess.CompletedProcess[str]


def run(
    folder: Path, *words: str | Path, code: int = 0, env: Mapping[str, str] | None = None
) -> Finished:
    """Run a command in a folder, through pipes and without input, and check its exit status."""
    done = run_any(folder, *words, env=env)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def run_any(folder: Path, *words: str | Path, env: Mapping[str, str] | None = None) -> Finished:
    """Run a command as `run` does, whatever its exit status is."""
    out, err = Printed(), Printed(errors="backslashreplace")
    status = _status_of(words, folder, env or {}, out, err)
    return subprocess.CompletedProcess(list(map(str, words)), status, out.text, err.text)


def json_of(folder: Path, *words: str | Path, code: int = 0) -> Any:
    """Return what a command says with `--json`."""
    return json.loads(run(folder, *words, "--json", code=code).stdout)


def on_a_terminal(folder: Path, *words: str | Path, columns: int, **env: str) -> str:
    """Return what a command that succeeds prints on a terminal of so many columns."""
    parent, child = os.openpty()
    shown = bytearray()
    reader = threading.Thread(target=_read_all, args=(parent, shown.extend))
    reader.start()
    with open(child, "w", encoding="utf-8") as terminal:  # noqa: PTH123 - a descriptor
        environment = {"TERM": "xterm-256color", "COLUMNS": str(columns), **env}
        status = _status_of(words, folder, environment, terminal, terminal)
    reader.join()
    os.close(parent)
    assert status == 0, shown.decode()
    return shown.decode()


def watch(
    folder: Path, *words: str | Path, on_line: Callable[[str], None], before: tuple[str, ...] = ()
) -> tuple[int, str, str]:
    """Return status, output and standard error of a command; each line of the latter is handed over
    as it comes.

    With `before`, a program that is to start the command, it is a process of its own.
    """
    if before:
        process, said = begin(folder, *words, before=before), list[str]()
        assert process.stderr is not None
        try:
            _hand_over(process.stderr, said, on_line)
            out, _ = process.communicate(timeout=300)
        finally:
            process.kill()
        return process.returncode, out, "".join(said)
    read, write = os.pipe()
    printed, said = Printed(), []
    with ThreadPoolExecutor(1) as listeners, open(read, encoding="utf-8") as lines:  # noqa: PTH123 - a descriptor
        listening = listeners.submit(_hand_over, lines, said, on_line)
        with open(write, "w", encoding="utf-8", buffering=1) as err:  # noqa: PTH123 - a descriptor
            status = _status_of(words, folder, {}, printed, err)
        listening.result()
    return status, printed.text, "".join(said)


def _hand_over(lines: Iterable[str], said: list[str], on_line: Callable[[str], None]) -> None:
    for line in lines:
        said.append(line)
        on_line(line)


def begin(
    folder: Path, *words: str | Path, before: tuple[str, ...] = (), **options: Any
) -> subprocess.Popen[str]:
    """Start a command as a process of its own, for what only a process shows: signals, closed
    streams, a cold start.
    """
    env = {
        **os.environ,
        "PYTHONPATH": CODE,
        "PYTHONSAFEPATH": "1",
        **options.pop("env", {}),
    }
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(
        [*before, sys.executable, "-m", "bundle_router", *map(str, words)],
        cwd=folder,
        env=env,
        **options,
    )


class Printed(io.TextIOWrapper):
    """A stream that keeps what is written, and refuses what has no bytes in UTF-8, as `sys.stdout`
    does.
    """

    def __init__(self, errors: str = "strict") -> None:
        self._bytes = io.BytesIO()
        super().__init__(
            self._bytes, encoding="utf-8", errors=errors, newline="\n", write_through=True
        )

    @property
    def text(self) -> str:
        return self._bytes.getvalue().decode()


class Shell:
    """Runs `bundle-router` in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str | Path, code: int = 0) -> Finished:
        return run(self.folder, *words, code=code)

    def json(self, *words: str | Path, code: int = 0) -> Any:
        return json_of(self.folder, *words, code=code)

    def write(self, **files: str) -> None:
        """Write `config/<name>.toml` for each."""
        (self.folder / "config").mkdir(exist_ok=True)
        for name, text in files.items():
            (self.folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")


def _status_of(
    words: tuple[str | Path, ...], folder: Path, env: Mapping[str, str], out: TextIO, err: TextIO
) -> int:
    with (
        _process_state(folder, env),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            return main(list(map(str, words)))
        except SystemExit as end:  # of argparse
            return int(end.code or 0)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def _read_all(descriptor: int, take: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone with its last user
        while block := os.read(descriptor, 65536):
            take(block)


@contextlib.contextmanager
def _process_state(folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Be in the folder with this environment; afterwards folder, environment, input, modules and
    signals are back.
    """
    before, environment, path, modules = (
        Path.cwd(),
        dict(os.environ),
        list(sys.path),
        set(sys.modules),
    )
    terminate, stdin = signal.getsignal(signal.SIGTERM), sys.stdin
    os.chdir(folder)
    os.environ.update({"COLUMNS": "120", **env})
    sys.stdin = io.StringIO()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, terminate)
        sys.stdin, sys.path[:] = stdin, path
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(before)
        for name in (
            set(sys.modules) - modules
        ):  # what the folder itself has of modules is another's in the next test
            if str(getattr(sys.modules[name], "__file__", None)).startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
