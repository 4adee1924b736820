"""The generated pages of `router/docs/reference`, by the names of their files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.reference import (
    codes_page,
    commands_page,
    config_page,
    errors_page,
    http_page,
    python_page,
    records_page,
    tables_page,
)

FOLDER: Final = Path(__file__).parents[2] / "router" / "docs" / "reference"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "python.md": python_page.page,
    "commands.md": commands_page.page,
    "config.md": config_page.page,
    "errors.md": errors_page.page,
    "records.md": records_page.page,
    "tables.md": tables_page.page,
    "http.md": http_page.page,
    "codes.md": codes_page.page,
}
