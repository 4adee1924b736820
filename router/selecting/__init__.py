"""Who settles what the mapping can't: search, then a model, then nobody, in the order of `[fallback]`."""

from router.selecting.meaning import Meanings
from router.selecting.search import SearchSelector
from router.selecting.stages import StagedSelector
from router.selecting.tools import RankedTools

__all__ = ["Meanings", "RankedTools", "SearchSelector", "StagedSelector"]
