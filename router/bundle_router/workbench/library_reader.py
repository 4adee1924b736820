"""Reads the library of bundles that comes with the router."""

from __future__ import annotations

from functools import cache

from bundle_router.review.library import LibraryServer, library_server


@cache
def read_library() -> tuple[LibraryServer, ...]:
    """Return the servers of the library, by name; read once a process (0.1 s of CPU)."""
    from bundle_router.adapters.config_files import library_texts

    return tuple(library_server(text, name) for name, text in library_texts().items())
