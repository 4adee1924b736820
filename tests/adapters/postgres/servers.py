"""PostgreSQL servers of a test's own, which it may kill: a primary and, where wanted, a replica of
it.
"""

from __future__ import annotations

import getpass
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

BINARIES = next(
    (str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), ""
)
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""
IS_ROOT = os.geteuid() == 0


def as_server(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs a server's program, as the user `postgres` where this is root: it refuses root."""
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if IS_ROOT else []
    words = (f"{BINARIES}/{words[0]}", *words[1:])
    return subprocess.run(
        [*user, *words], check=True, capture_output=True, text=True, cwd="/", timeout=300
    )


class Server:
    """One server on a unix socket in a folder of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        if IS_ROOT:
            shutil.chown(self.folder, "postgres")
        self.data = self.folder / "db"

    @property
    def url(self) -> str:
        return f"postgresql://{getpass.getuser() if not IS_ROOT else 'tests'}@/postgres?host={self.folder}"

    def begin(self) -> None:
        user = getpass.getuser() if not IS_ROOT else "tests"
        as_server("initdb", "-D", str(self.data), "-A", "trust", "-U", user, "--no-sync")
        self.start()

    def start(self, *settings: str) -> None:
        options = [
            "listen_addresses=''",
            f"unix_socket_directories={self.folder}",
            "max_connections=60",
            *settings,
        ]
        words = " ".join(f"-c {setting}" for setting in options)
        as_server(
            "pg_ctl",
            "-D",
            str(self.data),
            "-w",
            "-o",
            words,
            "-l",
            str(self.folder / "log"),
            "start",
        )

    def kill(self) -> None:
        """As a crash: nothing is written, no client is told."""
        as_server("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop")

    def follow(self, primary: Server) -> None:
        """Becomes a replica of the primary, which waits for it at each commit."""
        user = getpass.getuser() if not IS_ROOT else "tests"
        as_server(
            "pg_basebackup",
            "-D",
            str(self.data),
            "-h",
            str(primary.folder),
            "-U",
            user,
            "-R",
            "-c",
            "fast",
        )
        self.start("synchronous_standby_names=''")

    def promote(self) -> None:
        as_server("pg_ctl", "-D", str(self.data), "-w", "promote")

    def end(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class PgBouncer:
    """A connection pooler before a server, on a socket in a folder of its own."""

    def __init__(self, behind: Server, *settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pgb-"))
        user = getpass.getuser() if not IS_ROOT else "tests"
        lines = [
            "[databases]",
            f"* = host={behind.folder} user={user}",
            "[pgbouncer]",
            "listen_addr =",
            "listen_port = 6432",
            f"unix_socket_dir = {self.folder}",
            "auth_type = any",
            f"logfile = {self.folder}/log",
            f"pidfile = {self.folder}/pid",
            *settings,
        ]
        (self.folder / "ini").write_text("\n".join(lines) + "\n", encoding="utf-8")
        words = [PGBOUNCER, "-q", str(self.folder / "ini")]
        if IS_ROOT:
            shutil.chown(self.folder, "postgres")
            words = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", *words]
        self._process = subprocess.Popen(words, cwd="/", stderr=subprocess.DEVNULL)
        self.url = f"postgresql://{user}@/postgres?host={self.folder}&port=6432"
        deadline = time.monotonic() + 300
        while not (self.folder / ".s.PGSQL.6432").exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class CuttingProxy:
    """Passes connections to a server, and cuts one after some bytes in one direction, as a network
    does.
    """

    def __init__(self, behind: Path, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-cut-"))
        self._behind = str(behind / ".s.PGSQL.5432")
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._left = -1
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.folder / ".s.PGSQL.5432"))
        self._socket.listen(64)
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_soon(self) -> None:
        """Has the connection that is used next cut at a random byte of the next exchanges."""
        with self._lock:
            self._left = self._random.choice(
                (0, 1, 30, 200, 900, 1500, self._random.randrange(3000))
            )

    def spare(self) -> None:
        with self._lock:
            self._left = -1

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(self._behind)
            except OSError:
                near.close()
                far.close()
                continue
            self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65_536):
                with self._lock:
                    is_cut = 0 <= self._left < len(data)
                    sent = data[: self._left] if is_cut else data
                    self._left = -1 if is_cut or self._left < 0 else self._left - len(data)
                other.sendall(sent)
                if is_cut:
                    break
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
        for end in self._ends:
            end.close()
        shutil.rmtree(self.folder, ignore_errors=True)
