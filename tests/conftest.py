"""For every test: where it runs, and what of the machine and of whoever started pytest it does not
see.
"""

import asyncio
import gc
import os
import resource
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from _pytest.runner import runtestprotocol

from tests.profiles import load_profile

pytest_plugins = ("tests.definitions", "tests.schema_check")

load_profile()
for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(name, None)

# Beside the installed packages, not in the checkout: what Hypothesis remembers, also in programs
# that tests start. Where another user installed them it could not write, and its warning would be
# an error.
REMEMBERED = Path(sys.prefix, "hypothesis")
if not os.access(REMEMBERED if REMEMBERED.exists() else sys.prefix, os.W_OK):
    REMEMBERED = Path(tempfile.gettempdir(), f"hypothesis-{os.getuid()}")
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(REMEMBERED))

if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    # No compiled module in the checkout, as whoever set it wants, and yet not each of them compiled
    # by each process.
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(Path(sys.prefix, "pycache"))
    sys.dont_write_bytecode = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Files that are named run in one process, which begins sooner; folders, and the whole suite,
    in many.

    These are two a core: tests of servers, browsers and processes wait for more than half of their
    time.
    """
    named = [argument.partition("::")[0] for argument in config.args]
    if all(name.endswith(".py") for name in named):
        return 0
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return 2 * cores


FIRST = (
    "tests/examples/recipes/",
    "tests/deferral/test_real_agents.py",
    "tests/demo/test_mcp_demo.py",
    "tests/adapters/mcp/test_mcp_real_router.py",
    "tests/faults/",
    "tests/service/pages/test_in_a_browser.py",
    "tests/service/pages/test_config_pages.py",
    "tests/service/mcp/test_conformance.py",
    "tests/cli/test_serve_verb.py",
    "tests/service/mcp/test_passing_on.py",
)
"""Files that take half a minute or more, most of it waiting for programs: begun last, one would run
beside nothing.
"""


TOGETHER = {
    "litellm": (
        "tests/adapters/llm/",
        "tests/engine/asking/",
        "tests/review/test_model_comparison.py",
        "tests/engine/selecting/test_embedding_upstream.py",
        "tests/adapters/mcp/test_mcp_attacks.py",
        "tests/service/test_service_probes.py",
        "tests/cli/test_route_model.py",
        "tests/wiring/test_learned_embeddings.py",
    ),
    "public names": (
        "tests/reference/test_reference.py",
        "tests/test_public_examples.py",
        "tests/test_public_fields.py",
        "tests/test_public_types.py",
    ),
    "browser": (
        "tests/service/pages/test_hostile_text.py",
        "tests/service/pages/test_in_a_browser.py",
        "tests/service/pages/test_config_pages.py",
    ),
}
"""Files of which one worker has all, since loading litellm or all frameworks, or starting Chromium,
takes seconds.
"""


class Collected(list[str]):
    """The tests that a worker collected, which know their places."""

    @cached_property
    def places(self) -> dict[str, int]:
        return {nodeid: place for place, nodeid in enumerate(self)}

    def index(self, nodeid: str, *_: Any) -> int:
        return self.places[nodeid]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it ships no type information

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # the same
        def _split_scope(self, nodeid: str) -> str:
            own = (name for name, files in TOGETHER.items() if nodeid.startswith(files))
            return next(own, None) or str(super()._split_scope(nodeid))

        # Two that went through all tests of a worker, at each end of a test: a third of the CPU of
        # who hands tests out.

        def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
            super().add_node_collection(node, collection)
            self.registered_collections[node] = Collected(collection)

        def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
            """Count to three, beginning with the last: whether there are more nobody asks."""
            pending = (
                done
                for tests in reversed(workload.values())
                for done in reversed(tests.values())
                if not done
            )
            return len(list(islice(pending, 3)))

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slowest: what is begun last would run beside nothing."""
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


def pytest_configure(config: pytest.Config) -> None:
    """Rewrite the assertions of a share of the tests: in a fresh clone each worker would rewrite
    all, at the same time.

    pytest has no function for that; what is not there when a worker imports it, the worker rewrites
    as always.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    files = sorted(
        file for name in config.args for file in Path(name.partition("::")[0]).rglob("test_*.py")
    )
    for file in files[int(worker["workerid"][2:]) :: worker["workercount"]]:
        file = file.resolve()
        folder = rewrite.get_cache_dir(file)
        kept = folder / (file.name[:-3] + rewrite.PYC_TAIL)
        if not kept.exists() and rewrite.try_makedirs(folder):
            source_hash, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, kept)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """In a worker, report no set-up and no teardown that went well: two of three reports, which
    nobody reads.

    Sending all of them took half a millisecond of CPU a test, here and in the process that hands
    tests out.
    """
    if not hasattr(item.config, "workerinput") or item.config.getoption("durations") is not None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are imported and collected: there is none, and it took a
    fifth of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    # without a look for garbage, which takes longer than the little there is would matter
    gc.freeze()
    FROZEN.append(len(sys.modules))
    # Most tests end before there is garbage worth a look; by default the collector takes one CPU
    # second in thirteen.
    gc.set_threshold(100_000, 50, 50)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    if len(sys.modules) > FROZEN[-1] + 300:  # a test imported something heavy
        freeze()


FROZEN = [0]
"""How many modules there were at each freeze."""


def freeze() -> None:
    """Have what has been imported and collected stay: no later collection of garbage looks through
    it.
    """
    gc.collect()
    gc.freeze()
    FROZEN.append(len(sys.modules))


@pytest.fixture(autouse=True, scope="session")
def _patient_discovery() -> Iterator[None]:
    """Five seconds may be too short for a first list on a busy machine."""
    from bundle_router.engine.upstreams import Servers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Servers.discover, "__defaults__", (60.0,))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Search indexes that tests leave behind are no user's: they are shared by the tests of one
    process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A `BrowserThread`.

    Files that use one are in one worker (`TOGETHER`), which starts one Chromium.
    """
    from tests.service.pages.browsing import BrowserThread, missing

    if why := missing():
        pytest.skip(why)
    found = BrowserThread()
    yield found
    found.close()


class Leap:
    """Sets the clocks of all event loops ahead: what waits for a deadline on one waits no longer.

    So a deadline that must pass can be one that no slow machine misses, and is not waited for.
    """

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.loops: weakref.WeakSet[asyncio.BaseEventLoop] = weakref.WeakSet()

    def time(self, loop: asyncio.BaseEventLoop) -> float:
        self.loops.add(loop)
        return time.monotonic() + self.ahead_s

    def __call__(self) -> None:
        self.ahead_s += 60
        for loop in list(self.loops):
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(int)

    def after(self, event: threading.Event) -> None:
        """Leap once the event is set, such as a server's that has been asked."""

        def leap() -> None:
            if event.wait(300):
                self()

        threading.Thread(target=leap, daemon=True).start()

    async def until(self, *calls: asyncio.Future[Any]) -> None:
        """Goes on until they are done: they may not wait for their deadline yet."""
        while not all(call.done() for call in calls):
            self()
            await asyncio.sleep(0.05)


@pytest.fixture
def leap(monkeypatch: pytest.MonkeyPatch) -> Leap:
    leap = Leap()
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: leap.time(loop))
    return leap


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Leave this process no descriptor below 1,100, as in a host that has many connections:
    `select` ends at 1,023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < MANY * 2:
        pytest.skip("this process may not have that many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY * 2), hard))
    with ExitStack() as stack:
        while stack.enter_context(Path(os.devnull).open("rb")).fileno() < MANY:
            pass
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


MANY = 1_100
