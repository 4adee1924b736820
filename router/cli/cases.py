"""`bundle-router eval`: case files, the golden tests of a config."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

from pydantic import ValidationError

from router.cli.arguments import add_config, add_json, config_folder, sentences
from router.cli.output import print_json, say
from router.core.cases import Case, Mismatch, read_cases, run_case
from router.core.config.source import from_bytes, guard
from router.errors import RequestError

SUMMARY = "take the decisions of case files and compare them with what the cases say"


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, help="case files (TOML)")
    add_config(parser)
    add_json(parser)


def load_cases(path: Path) -> tuple[Case, ...]:
    """The cases of one file. Raises RequestError that says which file and what."""
    try:
        file = from_bytes(path.name, str(path), path.read_bytes(), "project")
        problem = file.fault or guard(file)
        if problem is not None:
            raise RequestError(str(problem))
        return read_cases(tomllib.loads(file.text))
    except OSError as error:
        raise RequestError(f"{path} can't be read: {error.strerror}") from None
    except ValidationError as error:
        raise RequestError(f"{path}: {sentences(error)}") from None
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"{path} is not TOML: {error}") from None


def run(arguments: argparse.Namespace) -> int:
    from router.wiring import load_catalog

    catalog = load_catalog(config_folder(arguments))
    results = [(path, case, run_case(case, catalog)) for path in arguments.files for case in load_cases(path)]
    failed = [(path, wrong) for path, _, wrong in results if wrong]
    if arguments.json:
        print_json({"cases": [_row(path, case, wrong) for path, case, wrong in results], "failed": len(failed)})
    else:
        for path, wrong in failed:
            for mismatch in wrong:
                say(f"{path}: {mismatch}")
        say(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def _row(path: Path, case: Case, wrong: tuple[Mismatch, ...]) -> dict[str, object]:
    return {"file": str(path), "name": case.name, "passed": not wrong, "differences": [str(m) for m in wrong]}
