"""Who settles what the mapping can't: search, then a model, then nobody, in the order of `[fallback]`."""

from router.selecting.search import SearchSelector
from router.selecting.stages import StagedSelector
from router.selecting.tools import RankedTools

__all__ = ["RankedTools", "SearchSelector", "StagedSelector"]
