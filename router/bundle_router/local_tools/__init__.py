"""First-party tools, one package a server.

A local server named `x` in `servers.toml` is the package `bundle_router.local_tools.x`, whose
`TOOLS` lists its `LocalTool`s. Modules here may import `bundle_router.errors` and
`.core.models` and nothing else of the package.
"""
