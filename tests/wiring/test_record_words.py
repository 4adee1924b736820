"""A setting whose value is a word of the records themselves is not taken for a secret: no record
loses a field by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.core.records.own_words import is_record_word
from bundle_router.tool import LocalServer

from tests.command_line import run

CONFIG = {
    "policy": '[[policies]]\nname = "all"\nallow = ["bundle:shop"]\neffects = ["write"]\n',
    "routes": '[[routes]]\nname = "all"\nbundles = ["shop"]\n',
    "servers": (
        '[servers.db]\nurl = "https://db.example.com/mcp"\n'
        'headers = { X-Database = "${DB_NAME}" }\n'
    ),
}


@pytest.mark.parametrize(
    "value",
    [
        "workflow",
        "decision",
        "principal",
        "arguments",
        "finished",
        "call.started",
        "catalog_revision",
        "activation",
        "a-database-of-our-own",
    ],
)
def test_a_keyed_payment_is_made_once_whatever_a_setting_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    payments: list[int] = []

    def pay(amount: int) -> str:
        """Pay."""
        payments.append(amount)
        return "paid"

    (tmp_path / "config").mkdir()
    for name, text in CONFIG.items():
        (tmp_path / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("DB_NAME", value)
    step = Step(run_id="r", workflow="nightly", role="x", step="y", key="s", goal=f"use {value}")
    for _ in range(2):
        shop = LocalServer([pay], "Pay.", effects=["write"])
        with Router.open(
            tmp_path / "config", runs=tmp_path / "runs", workspace=tmp_path, local={"shop": shop}
        ) as router:
            router.route_sync(step)
            assert router.call_sync("r", "shop.pay", {"amount": 5}, key="c").ok
    assert payments == [5]

    records = [*records_in(tmp_path)]
    is_secret = not is_record_word(value)
    assert ("redacted" in json.dumps(records)) == is_secret == (value == "a-database-of-our-own")
    for name in names_in(records):
        assert len(name) < 8 or is_record_word(name), "a field that a setting could take away"
    run(tmp_path, "runs", "verify", "--runs", "runs")
    run(tmp_path, "replay", "--runs", "runs")


def records_in(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted((folder / "runs" / "r").glob("*.jsonl")):
        yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())


def names_in(value: Any) -> Iterator[str]:
    """Yield the names of all fields of a JSON value."""
    if isinstance(value, dict):
        yield from value
        for part in value.values():
            yield from names_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from names_in(part)
