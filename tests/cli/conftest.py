"""The command line in a folder of a test's own."""

from pathlib import Path

import pytest

from tests.command_line import Shell
from tests.service.conftest import site as site


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
