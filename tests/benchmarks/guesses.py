"""Guesses of what tools do, against the library's readings: `python tests/benchmarks/guesses.py DATA`.

DATA (or the variable BUNDLE_ROUTER_DATA) is a folder with `catalog/servers.jsonl` (a server a line:
`server`, `tools`, `instructions`), the definitions that the library was read from.

The words of `review/library/verbs.toml` were chosen over every other server of that file, the first
among them. Over the rest, before anything of them was read, 7 of 308 tools that were guessed to
read did more: six with a mode `fix`, a word that was added then, and `test_lds_graphql_query`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

from bundle_router.core.catalog import Server
from bundle_router.core.servers.admission.admit import admit
from bundle_router.review.library import KINDS, guess
from bundle_router.workbench.library_reader import read_library


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("BUNDLE_ROUTER_DATA", ""))
    catalog = root / "catalog" / "servers.jsonl"
    if not catalog.is_file():
        print(f"skipped: {root} holds no catalog/servers.jsonl; give the folder that does")
        return 0

    kinds = {(s.server, tool.name): kind for s in read_library() for kind, tool in s.tools()}
    cells: Counter[tuple[str, str]] = Counter()
    dangerous = []
    for line in catalog.read_text(encoding="utf-8").splitlines():
        listed = json.loads(line)
        server = Server(listed["server"], "stdio", command="x")
        for tool in admit(server, listed["tools"], listed["instructions"]).tools:
            kind = kinds[server.name, tool.card.tool]
            guessed = guess(tool, trusted=False)
            cells[guessed.kind, kind] += 1
            if guessed.kind == "read" and kind != "read":
                dangerous.append(f"  {tool.card.name}: {kind}; {guessed.reason}")

    print(f"{'guessed':<9}" + "".join(f"{kind:>7}" for kind in KINDS) + "   (columns: as read)")
    for guessed_kind in KINDS:
        print(f"{guessed_kind:<9}" + "".join(f"{cells[guessed_kind, kind]:>7}" for kind in KINDS))
    print(f"guessed to read, and do more: {len(dangerous)}")
    print("\n".join(dangerous))
    return 0


if __name__ == "__main__":
    sys.exit(main())
