"""A service to be a client of."""

from tests.service.conftest import site as site
