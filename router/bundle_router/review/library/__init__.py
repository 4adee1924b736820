"""The library of bundles: reviewed readings of what real servers' tools can do.

Pure: the files of `bundles/library/` come in as text. Nothing here grants anything: a bundle of the
library is written into `bundles.toml`, and policy rows say who may have it.
"""

from bundle_router.review.library.library_form import (
    KINDS,
    Kind,
    LibraryBundle,
    LibraryProblem,
    LibraryServer,
    LibraryTool,
    library_server,
)

__all__ = [
    "KINDS",
    "Kind",
    "LibraryBundle",
    "LibraryProblem",
    "LibraryServer",
    "LibraryTool",
    "library_server",
]
