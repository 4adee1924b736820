"""From other programs' MCP settings to `servers.toml` and `bundles.toml`. Pure: text in, text out.

Understood: `.mcp.json` and Claude Code (`mcpServers`, also per project), Claude Desktop, Cursor and those that copy its
form, VS Code (`servers` and `inputs`, with comments), Codex (`[mcp_servers.<name>]`, TOML).

Rules:
1. Everything arrives untrusted, whatever it was before, and its bundles are behind meta-tools with tools named one by
   one. Names come from the file (allow-lists), or from the caller, who may know pins; where none is known, the
   bundle stands there as a comment, since a bundle without tools would be a mistake.
2. Nothing is overwritten: a server or bundle that exists is left out, and said so. Importing twice adds nothing.
3. No secret is copied. What looks like one becomes a `${NAME}` reference, and a note says where its value stands now.
   Where a reference can't stand (arguments, addresses) the value is taken out and the server is switched off.
4. What can't be carried over is said, entry by entry, and never guessed.
5. What is written is valid config: names are made to fit, and what no config could hold is left out with a note.
"""

from bundle_router.review.imports.foreign import ForeignServer, ImportProblem, read_clients
from bundle_router.review.imports.written import ImportedServers, bundle_text, import_clients

__all__ = ["ForeignServer", "ImportProblem", "ImportedServers", "bundle_text", "import_clients", "read_clients"]
