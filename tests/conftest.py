"""For every test: no deadline of Hypothesis, since how long an example takes says more of the machine than of us, and
nothing of the terminal that pytest was started from."""

import os

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(name, None)
