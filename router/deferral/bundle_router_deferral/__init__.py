"""Deferral of tool definitions in other agents: audit, apply, undo, report, probe and proxy.

An agent "defers" a tool if its definition stays out of the prompt until a search has found it. The
modules with rules are pure (no disk, network, clock or randomness); `files`, `journal`, `store`,
`probe`, `upstream`, `proxy` and `agents` have the effects. Only the command line imports this
package.
"""
