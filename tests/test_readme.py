"""The README can't lie: its snippets run, and what it lists is what there is."""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path

import pytest
from bundle_router.cli import VERBS
from bundle_router.core.models import CODES, REASONS
from bundle_router.errors import ConfigError, CorruptRun, RequestError, RouterError

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_first_code_stands_before_line_thirty() -> None:
    assert README.index("```python") < len("\n".join(README.splitlines()[:30]))


def test_the_asynchronous_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("# x\n", encoding="utf-8")
    code = blocks("python")[0].replace('Router.open("config", runs="runs")', f"Router.open({str(ROOT / 'config')!r})")
    code = code.replace("decision.bundle_ids  ", "assert decision.bundle_ids == ['repo.readonly', 'workspace.exec']  ")
    code = code.replace("result.text  ", "assert result.text  ")
    scope: dict[str, object] = {}
    exec("async def snippet():\n" + textwrap.indent(code, "    "), scope)
    asyncio.run(scope["snippet"]())  # type: ignore[operator]  # made one line above
    assert (tmp_path / "runs" / "r-42" / "routing.jsonl").exists()


@pytest.mark.parametrize("code", blocks("python")[1:])
def test_every_other_python_snippet_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(code.replace('runs="runs"', f"runs={str(tmp_path)!r}"), {})


def test_every_verb_is_shown() -> None:
    shown = set(re.findall(r"bundle-router (\w+)", README))
    assert set(VERBS) - shown == set()
    assert shown - set(VERBS) == set()


def test_every_reason_and_code_is_listed_in_order() -> None:
    why, why_not = README.split("**Why shown:**")[1].split("**Why not, in the order tested:**")
    assert tuple(re.findall(r"`(\w+)`", why)) == REASONS
    assert tuple(re.findall(r"`(\w+)`", why_not.split("\n\n")[0])) == CODES


def test_the_exit_codes_are_those_of_the_errors() -> None:
    listed = {int(number) for number in re.findall(r"^\| (\d) \|", README, re.MULTILINE)}
    assert listed == {0, 1, *(error.exit_code for error in (ConfigError, RequestError, RouterError, CorruptRun))}
