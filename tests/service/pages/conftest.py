"""Sample runs, the reader over them, and their pages: each made once for the tests of this
folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bundle_router.workbench.run_reader import RunReader, open_reader

from tests.service.pages.browsing import served
from tests.service.pages.sample_runs import team, write

CONFIG = Path(__file__).parents[3] / "config"


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(team(days=6).runs, tmp_path_factory.mktemp("sample") / "runs")


@pytest.fixture(scope="session")
def reader(sample: Path) -> Iterator[RunReader]:
    found = open_reader(sample, config=CONFIG)
    found.refresh(now=True)
    yield found
    found.close()


@pytest.fixture(scope="session")
def address(reader: RunReader) -> Iterator[str]:
    with served(reader, reviewer=lambda _: "rita") as at:
        yield at
