"""Writes the files that a project begins with. It never overwrites a file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bundle_router.adapters.config_files import reason_of, shipped_folder
from bundle_router.adapters.text_files import read_bounded
from bundle_router.core.config.config_text import FILE_NAMES, MAX_BYTES
from bundle_router.core.config.init_files import ignores_runs, scaffold_texts
from bundle_router.errors import RequestError


def _refuse_way_out(root: Path, folder: Path) -> None:
    """Raise RequestError if a folder of the scaffold is a link that leads elsewhere. The uppermost
    (`config`, `bundles`) may be one: an operator may keep it elsewhere.
    """
    if folder == root:
        return
    uppermost = root / folder.relative_to(root).parts[0]
    if not folder.resolve().is_relative_to(uppermost.resolve()):
        raise RequestError(
            f"{folder} is a link that leads out of its folder",
            advice="take the link away, or choose another place",
        )


def _note_on(kept: Path) -> str:
    if kept.name != ".gitignore":
        return ""
    try:
        text = read_bounded(kept, MAX_BYTES).decode("utf-8", "replace")
    except OSError:  # a pipe, a dangling link
        text = ""
    if ignores_runs(text):
        return ""
    return "add the line '/runs/': records hold what agents asked and saw"


@dataclass(frozen=True, slots=True)
class ScaffoldedFile:
    """One file of the scaffold.

    `kept`: it existed and was not changed. `note`: what the user should do about it, if
    anything.
    """

    path: str
    state: Literal["written", "kept"]
    note: str = ""


def scaffold(target: str | os.PathLike[str]) -> list[ScaffoldedFile]:
    """Write `config/`, its schemas, `bundles/README.md` and a `.gitignore` under `target`; return
    the files.

    Raises RequestError if a file can't be written; files written before it stay.
    """
    root = Path(target)
    folder = shipped_folder()
    shipped = {name: (folder / name).read_text(encoding="utf-8") for name in FILE_NAMES}
    done = []
    for relative, text in scaffold_texts(shipped).items():
        path = root / relative
        _refuse_way_out(root, path.parent)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except FileExistsError:
            if path.parent.is_dir():
                done.append(ScaffoldedFile(str(path), "kept", _note_on(path)))
                continue
            raise RequestError(
                f"{path.parent} is not a folder", advice="move it away, or choose another place"
            ) from None
        except OSError as error:
            raise RequestError(
                f"{path} can't be written: {reason_of(error)}", advice="choose another place"
            ) from error
        done.append(ScaffoldedFile(str(path), "written"))
    return done
