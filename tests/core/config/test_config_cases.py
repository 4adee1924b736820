"""Golden cases: each folder of tests/data/config is a config folder, `problems.txt` what `check`
says of it, and `catalog.json` the canonical form of its catalog, where it has one: the bytes that
revisions are made of.

To add one, write the config files and run this test with BUNDLE_ROUTER_WRITE_CASES=1; then read
what it wrote. A folder `shipped` inside a case lies under it; one called `bundles` holds its
reviewed content.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from bundle_router.core.catalog import Card
from bundle_router.core.config import ConfigFile, from_bytes, load
from bundle_router.core.records.replayed import catalog_from
from bundle_router.errors import ConfigError
from bundle_router.review.lint import check

CASES = Path(__file__).parents[2] / "data" / "config"


def read_case(case: Path) -> list[ConfigFile]:
    shipped = [
        from_bytes(path.name, f"shipped/{path.name}", path.read_bytes(), "shipped")
        for path in sorted((case / "shipped").glob("*.toml"))
    ]
    own = [
        from_bytes(path.name, f"config/{path.name}", path.read_bytes(), "project")
        for path in sorted(case.glob("*.toml"))
    ]
    return [*shipped, *own]


def content_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.iterdir() if path.is_dir()))
def test_check_says_exactly_what_the_case_expects(name: str, cards: Mapping[str, Card]) -> None:
    files = read_case(CASES / name)
    said = [
        f"{problem.level} {problem}"
        for problem in check(
            files,
            cards=cards,
            read_content=lambda path: content_of(CASES / name / "bundles" / path),
        )
    ]
    expected = CASES / name / "problems.txt"
    if os.environ.get("BUNDLE_ROUTER_WRITE_CASES") and not expected.exists():
        expected.write_text("".join(f"{line}\n" for line in said), encoding="utf-8")
    assert said == expected.read_text(encoding="utf-8").splitlines()

    errors = [line.removeprefix("error ") for line in said if line.startswith("error ")]
    if errors:
        with pytest.raises(ConfigError) as caught:
            load(files, cards=cards)
        assert [str(problem) for problem in caught.value.problems] == errors
    else:
        canonical = (
            json.dumps(
                load(files, cards=cards).to_json(), indent=1, sort_keys=True, ensure_ascii=True
            )
            + "\n"
        )
        kept = CASES / name / "catalog.json"
        if os.environ.get("BUNDLE_ROUTER_WRITE_CASES") and not kept.exists():
            kept.write_text(canonical, encoding="utf-8")
        assert canonical == kept.read_text(encoding="utf-8")
        assert catalog_from(json.loads(canonical)) == load(files, cards=cards)
