"""The local server `workspace`: runs allow-listed programs in the workspace, and writes files in
it.

`config/policy.toml` lists the binaries and their permitted arguments; `grammar` has the rules of
matching, `process` and `bundle_router.adapters.sandbox` those of running, `writing` those of
writing.
"""

from bundle_router.core.values import LocalTool
from bundle_router.local_tools.workspace.execution import BINARIES, EXEC
from bundle_router.local_tools.workspace.writing import WRITE_FILE

TOOLS: tuple[LocalTool, ...] = (EXEC, BINARIES, WRITE_FILE)

__all__ = ["TOOLS"]
