"""For every test: Hypothesis sets no deadline, since how long an example takes says more of the machine than of us."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
