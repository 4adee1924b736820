"""Heads of runs, written beside them after each record, so that a cut-off end or a missing run is
found.

Rules:
1. A head says that a run had at least `count` records, the last of which had `hash`. It is written
   before the append is acknowledged. A crash between the two leaves a run that is longer than its
   head, which is no fault.
2. With a key, a head is signed (HMAC-SHA256): without the key nobody can rewrite the head or the
   records under it. Without a key it protects only if whoever changes the runs can't reach the
   heads: keep them in a second place.
3. Heads are numbered in the order in which runs begin. A missing number is a run that was removed
   together with its head. Removing the newest ones, or restoring an older state of everything, is
   found only by heads in a second place.
4. A pruned run leaves its head behind, marked. A run that begins anew under its id goes on with
   that head's number.
5. Nothing signs over a head that was not signed with the key, so a forged one stays recognizable.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, replace
from itertools import islice
from typing import Final

from bundle_router.core.values.canonical import encode

NO_HEAD: Final = (
    "no head was kept for it, although heads are kept: it was taken away, or is older than that"
)
_TYPES: Final = [str, int, int, str, bool, str]


@dataclass(frozen=True, slots=True)
class StoredHead:
    """The kept head of one run."""

    run_id: str
    """The run's id."""
    number: int
    """Its number among the runs of the store, in the order in which they began."""
    count: int
    """How many records the run had at least."""
    hash: str
    """The hash of the last of them."""
    pruned: bool = False
    """Whether the run was deleted by `runs prune`."""
    signature: str = ""
    """The HMAC-SHA256 of the rest by the key; empty where there is no key."""

    def sign(self, key: bytes | None) -> StoredHead:
        """Return the head with its signature by the key."""
        return replace(self, signature=self._signature(key) if key else "")

    def is_signed_by(self, key: bytes) -> bool:
        stated = self.signature.encode("utf-8", "surrogatepass")
        return hmac.compare_digest(stated, self._signature(key).encode("ascii"))

    def _signature(self, key: bytes) -> str:
        signed_text = encode(asdict(replace(self, signature="")))
        mac = hmac.new(key, b"bundle-router.head/1\n" + signed_text.encode("ascii"), hashlib.sha256)
        return f"hmac-sha256:{mac.hexdigest()}"

    def to_line(self) -> bytes:
        return encode(asdict(self)).encode("ascii") + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> StoredHead:
        """Return the head in a line.

        Raises ValueError, KeyError, TypeError or RecursionError for another line.
        """
        row = json.loads(line)
        names = ("run_id", "number", "count", "hash", "pruned", "signature")
        head = cls(**{name: row[name] for name in names})
        if [type(value) for value in astuple(head)] != _TYPES:
            raise TypeError("a value of another type")
        return head


def missing_runs(heads: Mapping[str, StoredHead], run_ids: Iterable[str]) -> list[str]:
    """Return which of the begun runs are missing, one sentence each."""
    present = set(run_ids)
    in_order = sorted(heads.values(), key=lambda head: head.number)
    missing = []
    for head in in_order:
        if not head.pruned and head.run_id not in present:
            statement = f"its head says that it held {head.count} records"
            missing.append(f"run {head.run_id!r} is gone: {statement}")

    numbers = {head.number for head in in_order}
    expected = range(1, max(numbers, default=0) + 1)
    holes = (number for number in expected if number not in numbers)
    for number in islice(holes, 100):
        missing.append(
            f"the run that was begun as number {number} is gone, and its head with it, or that head"
            " was changed"
        )
    return missing


def faults_of_head(head: StoredHead, run_id: str, key: bytes | None) -> list[str]:
    """Return what is wrong with the kept head of a run in itself, one sentence each."""
    if head.run_id != run_id:
        return [f"the head that is kept for it is that of run {head.run_id!r}"]
    if key is not None and not head.is_signed_by(key):
        return [
            "its kept head does not bear the key's signature: it was changed, or written with"
            " another key"
        ]
    return []
