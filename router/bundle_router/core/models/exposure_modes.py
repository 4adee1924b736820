"""How agents see a bundle's tools: one row a mode. What is particular to one is asked of its row, not by its name.

A new mode is its name and row here, a field of that name in `core.tools.exposure.placements.Placement` (and whether it
is `found_by_name`), and what an answer tells the agent to do with such tools, in `core.tools.meta_tools.descriptions`.
"""

from collections.abc import Mapping
from typing import Final, Literal

from bundle_router.dataclass import dataclass

Mode = Literal["direct", "deferred", "meta", "code"]


@dataclass(frozen=True, slots=True)
class ModeTraits:
    """What is particular to a mode. `in_array`: definitions stand in the array as far as there is room; `may_join`:
    they may come to stand there; `by_program`: the tools are called by programs alone; `for_untrusted`: tools of
    untrusted servers may be shown so. `meaning` is for the reference of the config."""

    meaning: str
    in_array: bool = False
    may_join: bool = False
    by_program: bool = False
    for_untrusted: bool = False


MODES: Final[Mapping[Mode, ModeTraits]] = {
    "direct": ModeTraits("each one", in_array=True, may_join=True),
    "deferred": ModeTraits("by name only until asked for", may_join=True),
    "meta": ModeTraits("behind meta-tools, which untrusted servers need and get by default", for_untrusted=True),
    "code": ModeTraits("in programs that agents write", by_program=True),
}
"""From the most open to the least."""
