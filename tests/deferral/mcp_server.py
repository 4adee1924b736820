"""A tool server over standard input and output, for real agents: 24 small tools.

Run by path, standard library only.
"""

from __future__ import annotations

import json
import sys

VERBS = ("list", "get", "create", "update", "delete", "search")
KINDS = ("issue", "pull_request", "branch", "commit")
SCHEMA = {"type": "object", "properties": {"owner": {"type": "string"}, "repo": {"type": "string"}}}
TOOLS = [
    {
        "name": f"{verb}_{kind}",
        "description": f"{verb} a {kind} of a repository. {'x' * 200}",
        "inputSchema": SCHEMA,
    }
    for kind in KINDS
    for verb in VERBS
]


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result: object = {}
        if message["method"] == "initialize":
            info = {"name": "github", "version": "0.1"}
            version = message["params"]["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        elif message["method"] == "tools/list":
            result = {"tools": TOOLS}
        elif message["method"] == "tools/call":
            result = {"content": [{"type": "text", "text": "one issue: it is broken"}]}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
