"""Several machines: each worker opens the same database. Large artifacts may go to an object store.

    python tests/examples/stores/several_machines.py \\
        "postgresql://user@host/db?objects=s3://bucket/runs"

Run it from the repository's folder. It starts two workers as two machines would: all they share is
the database.
"""

from __future__ import annotations

import json
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any


def main(store: str) -> list[dict[str, str]]:
    several_workers: dict[str, Any] = runpy.run_path(
        str(Path(__file__).with_name("several_workers.py"))
    )
    decided: list[dict[str, str]] = several_workers["workers"](tempfile.mkdtemp(), store)
    return decided


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
