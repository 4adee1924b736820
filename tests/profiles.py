"""How much of a property a run of the tests tries: a part of it by default, all of it where
`.ci/run` asks for that.

`BUNDLE_ROUTER_TESTS=all` asks for it. What is asserted is the same in both.
"""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import settings

ALL: Final = os.environ.get("BUNDLE_ROUTER_TESTS") == "all"
PART: Final = 5
LEAST: Final = 10


def examples(number: int, least: int = LEAST, **more: Any) -> settings:
    """Return settings for so many examples of a property; by default a tenth of them, and at least
    ten.

    `least` is lower where one example takes a third of a second.
    """
    return settings(
        max_examples=number if ALL else min(number, max(least, number // (2 * PART))),
        deadline=None,
        **more,
    )


def rounds(number: int) -> int:
    """Return how often something is tried that only chance can break: so often, by default a fifth
    of that.
    """
    return number if ALL else max(1, number // PART)


def load_profile() -> None:
    """Set what holds for every property: no deadline, since how long an example takes says more of
    the machine.
    """
    settings.register_profile("bundle-router", examples(100))
    settings.load_profile("bundle-router")
