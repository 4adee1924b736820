"""Who settles what the mapping can't: search, then a model, then nobody, in the order of `[fallback]`."""

from router.selecting.search import SearchSelector
from router.selecting.stages import StagedSelector

__all__ = ["SearchSelector", "StagedSelector"]
