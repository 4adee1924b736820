"""The library of bundles: reviewed readings of what real servers' tools can do.

Pure: the files of `bundles/library/` come in as text. Nothing here grants anything: a bundle of the
library is written into `bundles.toml`, and policy rows say who may have it.
"""

from bundle_router.review.library.first_bundles import FirstBundles, first_bundles
from bundle_router.review.library.guesses import Guess, guess
from bundle_router.review.library.library_form import (
    KINDS,
    Kind,
    LibraryBundle,
    LibraryProblem,
    LibraryServer,
    LibraryTool,
    library_server,
)
from bundle_router.review.library.recognition import (
    RecognisedTool,
    Recognition,
    no_longer_read,
    recognise,
)

__all__ = [
    "KINDS",
    "FirstBundles",
    "Guess",
    "Kind",
    "LibraryBundle",
    "LibraryProblem",
    "LibraryServer",
    "LibraryTool",
    "RecognisedTool",
    "Recognition",
    "first_bundles",
    "guess",
    "library_server",
    "no_longer_read",
    "recognise",
]
