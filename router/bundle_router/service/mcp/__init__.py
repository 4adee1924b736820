"""Runs as MCP servers: `/mcp/runs/{id}` over Streamable HTTP, both protocol eras."""
