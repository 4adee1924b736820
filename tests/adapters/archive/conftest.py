"""A runs directory, as the tests of its writer have it."""

from tests.adapters.run_log.conftest import runs as runs
