"""Reviewers' labels: `labels.jsonl` in the run directory, one JSON object a line (schema
`bundle-router.label/1`).

Rules:
1. A label is appended with one `write()` that ends in a newline. None is ever removed: a later line
   overrides earlier ones for the bundles it names.
2. The file is not part of the records' chain: a run may be labelled long after it was closed.
3. Reading is as strict as writing. An incomplete last line was never acknowledged, and is ignored.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from bundle_router.adapters.descriptors import Opened, refuse_links
from bundle_router.adapters.text_files import read_bounded
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.core.values.canonical import encode
from bundle_router.errors import CorruptRun, StorageError, storage_error

FILE: Final = "labels.jsonl"
MAX_BYTES: Final = 16 * 1024 * 1024


def read_labels(run_dir: Path) -> list[StepLabel]:
    """Return the reviewers' labels of a run, in the order they were given. Raises CorruptRun."""
    path = run_dir / FILE
    try:
        data = read_bounded(path, MAX_BYTES, follow=False)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CorruptRun(f"{path} can't be read: {error.strerror}", advice="remove it") from error
    if len(data) > MAX_BYTES:
        raise CorruptRun(f"{path} has more than {MAX_BYTES:,} bytes", advice="remove it")
    lines = data.split(b"\n")[:-1]
    return [
        correction_from(f"{path}:{number}", line)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def append_label(run_dir: Path, correction: StepLabel) -> Path:
    """Add one label to a run. Raises StorageError."""
    path = run_dir / FILE
    line = (label_line(correction) + "\n").encode("ascii")
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with Opened(os.open(path, flags, 0o600)) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StorageError(
                    f"{path} is not a regular file", kind="io_error", advice="remove it"
                )
            refuse_links(FILE, os.fstat(descriptor))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _cut_torn_end(descriptor)
            if os.write(descriptor, line) != len(line):
                raise StorageError(
                    f"{path} could not be written whole",
                    kind="short_write",
                    advice="label it again",
                )
            os.fsync(descriptor)
    except OSError as error:
        raise storage_error(f"{path} can't be written", error) from error
    return path


def _cut_torn_end(descriptor: int) -> None:
    """Terminate an incomplete last line, so that it does not merge with the next one.

    The caller holds the lock.
    """
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.ftruncate(descriptor, os.pread(descriptor, size, 0).rfind(b"\n") + 1)


def label_line(correction: StepLabel) -> str:
    """Serialize a label as one line, without a newline."""
    return encode(correction.model_dump(mode="json", by_alias=True))


def correction_from(where: str, line: str | bytes) -> StepLabel:
    """Parse a label's line. Raises CorruptRun, which names `where`."""
    try:
        return StepLabel.model_validate(json.loads(line))
    except (ValidationError, ValueError, RecursionError) as wrong:
        if isinstance(wrong, ValidationError):
            reasons = "; ".join(error["msg"] for error in wrong.errors())
        else:
            reasons = str(wrong)
        raise CorruptRun(
            f"{where}: is not a label: {reasons}", advice="correct or remove the line"
        ) from None
