"""A DBOS workflow of routed steps and keyed calls, whose process kills itself at a point:
`FOLDER POINT` (0: none).

Points are before and behind each step and each effect; `route` and `call` are as in
`dbos_workflow.py`, without a loop.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path

from bundle_router import Router, Step
from dbos import DBOS, DBOSConfig, SetWorkflowID

FOLDER = Path(sys.argv[1])
CONFIG = {
    "servers": '[servers.s]\ntransport = "local"\ntrust = "trusted"\nidempotent = ["again"]\n',
    "bundles": (
        '[bundles.both]\ndescription = "Both."\ntools = ["s.once", "s.again"]\neffects ='
        ' ["write"]\n'
    ),
    "routes": '[[routes]]\nname = "all"\nbundles = ["both"]\n',
    "policy": '[[policies]]\nname = "all"\nallow = ["bundle:*"]\n',
}


points = count(1)


def point() -> None:
    if next(points) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)


def once(key: str) -> str:
    """Do it once."""
    point()
    with open(FOLDER / "effects", "ab", buffering=0) as file:  # noqa: PTH123 - one write
        file.write(f"{key}\n".encode())
    point()
    return f"did {key}"


def again(key: str) -> str:
    """Do it, once more if need be."""
    return once(key)


for name, text in CONFIG.items():
    (FOLDER / "config").mkdir(exist_ok=True)
    (FOLDER / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
router = Router.open(
    FOLDER / "config", runs=FOLDER / "runs", local={"s": [once, again]}, workspace=FOLDER / "config"
)


def place() -> str:
    return f"{DBOS.workflow_id}-{DBOS.step_id}"


@DBOS.step()
def route(number: int) -> str:
    point()
    decision = router.route_sync(
        Step(run_id="r", workflow="w", role="r", step=f"s{number}", key=place())
    )
    point()
    return decision.decision_id


@DBOS.step()
def call(decision: str, tool: str, number: int) -> str:
    point()
    result = router.call_sync(
        "r", tool, {"key": f"{tool}-{number}"}, decision=decision, key=place()
    )
    point()
    return result.outcome


@DBOS.workflow()
def work() -> list[str]:
    heard = []
    for number in range(4):
        decision = route(number)
        heard += [call(decision, tool, number) for tool in ("s.once", "s.again")]
    return heard


if __name__ == "__main__":
    config: DBOSConfig = {
        "name": "killed",
        "system_database_url": f"sqlite:///{FOLDER}/dbos.sqlite",
    }
    DBOS(config=config)
    DBOS.launch()  # goes on with what a process before this one left
    with SetWorkflowID("w"):
        print(*work(), flush=True)
    router.close_sync()
    DBOS.destroy()
    os._exit(0)
