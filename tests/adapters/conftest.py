"""The cards of local tools, as the tests of configs have them."""

from tests.core.config.conftest import cards as cards
