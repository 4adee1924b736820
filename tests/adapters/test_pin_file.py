"""Pin files on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.pin_file import PinFiles
from bundle_router.core.catalog import Server
from bundle_router.core.servers.admission.admit import admit
from bundle_router.core.servers.pins.reviewed import Pins, approve
from bundle_router.errors import CorruptPins, RequestError, StorageError


@pytest.fixture
def pins(server: Server, definitions: list[dict[str, Any]]) -> Pins:
    return approve(server, admit(server, definitions, "Hello."))


def test_what_was_written_is_read(tmp_path: Path, pins: Pins) -> None:
    files = PinFiles(tmp_path / "bundles" / "pins")
    path = files.write(pins)
    assert path.name == "mail.json"
    assert files.read("mail") == pins
    assert files.read("other") is None
    assert files.read_all({"mail": 1, "other": 2}) == {"mail": pins}


def test_nothing_is_left_beside_the_file(tmp_path: Path, pins: Pins) -> None:
    files = PinFiles(tmp_path)
    files.write(pins)
    files.write(pins)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mail.json"]


def test_a_file_that_can_not_be_replaced_stays_and_nothing_is_left_beside_it(
    tmp_path: Path, pins: Pins
) -> None:
    (tmp_path / "mail.json").mkdir()
    with pytest.raises(StorageError, match=r"mail\.json"):
        PinFiles(tmp_path).write(pins)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mail.json"]


def test_a_link_is_not_followed(tmp_path: Path, pins: Pins) -> None:
    PinFiles(tmp_path / "a").write(pins)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mail.json").symlink_to(tmp_path / "a" / "mail.json")
    with pytest.raises(CorruptPins):
        PinFiles(tmp_path / "b").read("mail")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mail.json")
    with pytest.raises(CorruptPins, match="regular"):
        PinFiles(tmp_path).read("mail")


def test_the_pins_of_another_server_are_refused(tmp_path: Path, pins: Pins) -> None:
    files = PinFiles(tmp_path)
    files.write(pins).rename(tmp_path / "bank.json")
    with pytest.raises(CorruptPins, match="'mail'"):
        files.read("bank")


def test_a_name_that_is_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError):
        PinFiles(tmp_path).read("../mail")
