"""The local server `workspace`: run allow-listed programs in the workspace, and write files in it.

`config/policy.toml` says which binaries and with which arguments; `grammar` has the rules of matching, `process`
and `bundles.sandbox` those of running, `writing` those of writing.
"""

from bundles.workspace.execution import BINARIES, EXEC
from bundles.workspace.writing import WRITE_FILE
from router.core.models import LocalTool

TOOLS: tuple[LocalTool, ...] = (EXEC, BINARIES, WRITE_FILE)

__all__ = ["TOOLS"]
