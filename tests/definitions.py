"""Real servers' definitions, and a made-up server whose every field can be changed.

A plugin that tests/conftest.py names: its fixtures are there for every test.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.catalog import Server
from bundle_router.core.values import LocalTool
from bundle_router.wiring.shipped import PACKAGES, shipped_tools

DATA = Path(__file__).parent / "data" / "cards"


def shipped_servers() -> dict[str, Sequence[LocalTool]]:
    """Return the first-party servers' tools."""
    return {server: shipped_tools(server) for server in PACKAGES}


@pytest.fixture(scope="session")
def real_servers() -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (DATA / "servers.jsonl").read_text(encoding="utf-8").splitlines()
    ]


@pytest.fixture
def server() -> Server:
    return Server("mail", "streamable-http", url="https://mail.example.com/mcp")


@pytest.fixture
def definitions() -> list[dict[str, Any]]:
    send = {
        "name": "send",
        "title": "Send a message",
        "description": "Sends a message to one recipient.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "to": {"type": "string", "description": "Who gets it"},
                "priority": {"enum": ["low", "high"], "default": "low"},
            },
            "required": ["to", "priority"],
        },
        "outputSchema": {"type": "object", "properties": {"id": {"type": "string"}}},
        "annotations": {"readOnlyHint": False, "destructiveHint": False},
        "icons": [{"src": "https://mail.example.com/icon.png"}],
        "_meta": {"vendor": "x"},
    }
    read = {
        "name": "read",
        "description": "Reads one message.",
        "inputSchema": {"type": "object", "properties": {}},
    }
    return [send, read]
