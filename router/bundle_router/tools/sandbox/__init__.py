"""Runs one program confined: its own root and namespaces, Landlock, seccomp, bounds, and an end for all it started.

`launcher` is started as a process of its own (`python -I -S`), because what it does to itself can't be undone and
must not happen in a process with threads. It and the modules it imports (`linux`, `landlock`, `namespaces`,
`supervisor`, `target`) use the standard library only, so this package must stay importable without site-packages.
"""
