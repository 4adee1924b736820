"""Imports other programs' MCP settings into `servers.toml` and `bundles.toml`.

Pure: text in, text out.

Supported: `.mcp.json` and Claude Code (`mcpServers`, also per project), Claude Desktop, Cursor,
Cline, Roo Code, Windsurf, Gemini CLI and others that copy its form, VS Code (`servers` and
`inputs`, with comments), Codex (`[mcp_servers.<name>]`, TOML).

Rules:
1. Every imported server is untrusted, whatever it was before. Its bundle is behind meta-tools, with
   its tools named one by one. The names come from the file (allow-lists), or from the caller, who
   may know pins. If none is known, the bundle is written as a comment, since a bundle without tools
   would be an error.
2. Nothing is overwritten: an existing server or bundle is skipped, with a note. Importing twice
   adds nothing.
3. No secret is copied. A value that looks like one becomes a `${NAME}` reference, and a note says
   where the value is now. Where references are not possible (arguments, addresses) the value is
   removed and the server is disabled.
4. Settings that can't be converted are reported, entry by entry, and never guessed.
5. The output is valid config: names are adapted, and entries that no config could hold are left out
   with a note.
"""

from bundle_router.review.imports.foreign import ForeignServer, ImportProblem, read_clients
from bundle_router.review.imports.written import ImportedServers, bundle_text, import_clients

__all__ = [
    "ForeignServer",
    "ImportProblem",
    "ImportedServers",
    "bundle_text",
    "import_clients",
    "read_clients",
]
