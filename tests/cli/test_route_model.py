"""A model that is asked about a step on the command line: the process waits until one can be."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from bundle_router.testing.upstream import ScriptedServer, choice, says

needs_model = pytest.mark.skipif(
    find_spec("litellm") is None or find_spec("instructor") is None,
    reason="needs the extra bundle-router[model]",
)
STEP = ("--workflow", "ops", "--role", "researcher", "--step", "q")


@needs_model
def test_a_model_answers_the_first_step_of_a_process(shell: Any) -> None:
    with ScriptedServer([says(choice("docs.fetch"))]) as server:
        shell.write(
            router=(
                f'[model]\nnames = ["openai/scripted"]\nbase_url = "{server.base_url}"\ndeadline_s'
                " = 60\n"
            )
        )
        decision = shell.json("route", *STEP, "--goal", "why is the sky blue")["decision"]
        assert (decision["source"], decision["bundles"][0]["id"]) == ("model", "docs.fetch")
        mapped = ("--workflow", "feature", "--role", "planner", "--step", "plan")
        assert shell.json("route", *mapped)["decision"]["source"] == "mapping"
        assert len(server.requests) == 1
