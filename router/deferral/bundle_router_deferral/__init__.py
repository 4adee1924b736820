"""Deferral of tool definitions in other agents: audit, apply, undo, report, probe and proxy.

An agent "defers" a tool if its definition stays out of the prompt until a search has found it. The
modules with rules are pure (no disk, network, clock or randomness); `agent_files`, `journal`,
`hidden_store`, `numbers`, `probe`, `upstream`, `proxy` and `agents` have the effects.

A distribution of its own. It stands on the router, of which it pins its own version, for errors,
output and files; tests/test_architecture.py lists the modules.
"""

__version__ = "0.1.0"
