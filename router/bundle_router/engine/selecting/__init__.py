"""Who settles what the mapping can't: search, then a model, then nobody, in the order of
`[fallback]`.
"""

from bundle_router.engine.selecting.search import RankedTools, SearchSelector
from bundle_router.engine.selecting.stages import StagedSelector

__all__ = ["RankedTools", "SearchSelector", "StagedSelector"]
