"""First-party tools and reviewed content, one package per bundle family.

A local server named `x` in `servers.toml` is the package `bundles.x`, whose `TOOLS` lists its `LocalTool`s.
Modules here may import `router.errors` and `router.core.models` and nothing else of `router`.
"""
