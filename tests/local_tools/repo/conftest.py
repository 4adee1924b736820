"""What the tests of reading beneath a root share."""

from __future__ import annotations

import pytest
from bundle_router.local_tools.repo.beneath import (
    Opener,
    best_opener,
    open_by_openat2,
    open_by_walk,
)


@pytest.fixture(params=["openat2", "walk"])
def opener(request: pytest.FixtureRequest) -> Opener:
    """The kernel's way to open beneath a root, and our own."""
    if request.param == "walk":
        return open_by_walk
    if best_opener() is not open_by_openat2:
        pytest.skip("this kernel has no openat2, or a filter forbids it")
    return open_by_openat2
