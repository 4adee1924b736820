"""A program that runs with a part `squad` of addresses, taken from a step's label, and prints what
each place made of it, as JSON.

It is started by `tests/test_address_parts.py` with a copy of the package in which the part is
declared. Argument: an empty folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bundle_router import Router, Step
from bundle_router.service.pages.application import pages
from bundle_router.workbench.run_reader import open_reader
from starlette.testclient import TestClient

from tests.command_line import json_of, run

ROUTES = """\
[[routes]]
name = "red-row"
squad = "red"
bundles = ["repo.readonly"]

[[routes]]
name = "blue-row"
squad = ["blue", "navy-*"]
bundles = ["docs.fetch"]
"""
POLICY = """\
[[policies]]
name = "reds"
squad = "red"
allow = ["bundle:repo.readonly"]

[[policies]]
name = "blues"
squad = ["blue", "navy-*"]
allow = ["bundle:docs.fetch"]

[docs]
hosts = ["docs.python.org"]
"""
HIDDEN = """
[[routes]]
name = "hidden"
squad = "red"
bundles = ["repo.readonly"]
"""
PROGRAMS = '"bundle:docs.fetch", "bundle:workspace.exec"]'
TEAMS = ("red", "blue", "navy-1", "", "red", "blue")


def step(run_id: str, squad: str, **more: Any) -> Step:
    """Return a step that differs from others by its run and its squad alone."""
    labels = {"squad": squad} if squad else {}
    return Step(run_id=run_id, workflow="w", role="r", step="s", labels=labels, **more)


def write_config(folder: Path, routes: str = ROUTES, policy: str = POLICY) -> None:
    folder.mkdir()
    (folder / "routes.toml").write_text(routes, encoding="utf-8")
    (folder / "policy.toml").write_text(policy, encoding="utf-8")


def routed(folder: Path) -> dict[str, Any]:
    """Return what steps got that were routed in turn, and a sub-agent of another squad's run."""
    with Router.open(folder / "config", runs=folder / "runs") as router:
        turns = [
            router.route_sync(step(f"run-{number}", squad)) for number, squad in enumerate(TEAMS)
        ]
        child = router.route_sync(step("child", "red", parent_run_id="run-1"))
    return {
        "turns": [[one.route, one.bundle_ids] for one in turns],
        "child": [child.route, child.bundle_ids],
    }


def matrix(folder: Path) -> list[list[Any]]:
    """Return the cells of `/matrix` that permit something."""
    reader = open_reader(folder / "runs", config=folder / "config")
    reader.refresh(now=True)
    try:
        client = TestClient(pages(reader))
        cells = client.get("/matrix.json").json()
    finally:
        reader.close()
    return [[cell["role"], cell["bundle"], cell["may"]] for cell in cells if cell["may"]]


def main() -> None:
    folder = Path(sys.argv[1])
    write_config(folder / "config")
    write_config(folder / "hidden", routes=ROUTES + HIDDEN)
    write_config(folder / "wider", policy=POLICY.replace('"bundle:docs.fetch"]', PROGRAMS))
    write_config(folder / "other", routes=ROUTES.replace('["docs.fetch"]', "[]"))
    found: dict[str, Any] = {"routed": routed(folder)}
    found["matrix"] = matrix(folder)
    found["check"] = json_of(folder, "check", "--config", "config")
    found["check hidden"] = json_of(folder, "check", "--config", "hidden")
    found["diff"] = json_of(folder, "diff", "config", "wider", code=1)
    anybody = '[[policies]]\nname = "all"\nallow = ["bundle:docs.fetch"]\n'
    write_config(folder / "all", policy=anybody)
    write_config(folder / "some", policy=anybody.replace("allow", 'squad = "?*"\nallow'))
    found["diff nameless"] = json_of(folder, "diff", "all", "some")
    found["replay"] = json_of(folder, "replay")
    found["replay other"] = json_of(folder, "replay", "--config", "other", code=1)
    found["explain"] = run(folder, "explain", "--bundle", "docs.fetch", "--run", "run-1").stdout
    found["explain red"] = run(folder, "explain", "--bundle", "docs.fetch", "--run", "run-0").stdout
    print(json.dumps(found))


if __name__ == "__main__":
    main()
