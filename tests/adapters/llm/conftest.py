"""The selector and its questions, as its own tests have them."""

from tests.engine.asking.conftest import ask as ask
from tests.engine.asking.conftest import diagnostics as diagnostics
from tests.engine.asking.conftest import opened as opened
from tests.engine.asking.conftest import question as question
