"""HEAD and refs as plain values: read through the confinement, checked, and written as one
`packed-refs` text.

A ref name or value that git itself would not write is left out. Replace refs are always left out:
they make one object appear as another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.confinement import Root

MAX_REFS: Final = 200_000
_MAX_PACKED_BYTES: Final = 64 * 1024 * 1024
_HEX: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_NAME: Final = re.compile(r"refs(?:/(?!\.)[^\x00-\x20~^:?*\[\\\x7f/]+(?<!\.lock)(?<!\.))+")

REVISION: Final = re.compile(r"(?:@|[\w][\w./@+#=-]*)(?:[~^][0-9]{0,6}){0,20}")
"""Permitted revisions: a branch, tag or hash, then `~n` and `^n`.

Never an option, a path, a search or a reflog.
"""


def is_ref_name(name: str) -> bool:
    """Return whether the name is valid by git's rules (git-check-ref-format), for full names under
    `refs/`.
    """
    return (
        bool(_NAME.fullmatch(name)) and ".." not in name and "@{" not in name and len(name) <= 1024
    )


def is_revision(text: str) -> bool:
    """Return whether the text is one revision of the grammar above.

    `..` and `@{` are not part of it.
    """
    return bool(REVISION.fullmatch(text)) and ".." not in text and len(text) <= 256


def parse_head(text: str) -> str:
    """Return the content of HEAD, checked. Raises ToolFailure."""
    value = text.strip()
    if _HEX.fullmatch(value) or (value.startswith("ref: ") and is_ref_name(value[5:].strip())):
        return value + "\n"
    raise ToolFailure(
        "this git repository is not read: its HEAD is not valid", code="repository_refused"
    )


def collect_refs(root: Root, common: str) -> str:
    """Return all refs of the repository in `common` as the text of a sorted `packed-refs` file;
    loose ones win.
    """
    refs: dict[str, str] = {}
    if root.entry(f"{common}/packed-refs") is not None:
        packed = root.read(f"{common}/packed-refs", max_bytes=_MAX_PACKED_BYTES).decode(
            "utf-8", "replace"
        )
        refs.update(_packed_refs(packed))
    loose = dict(_loose_refs(root, common))
    refs.update({name: value for name, value in loose.items() if _HEX.fullmatch(value)})
    for name, value in loose.items():
        target = _resolve(value, loose, refs)
        if target:
            refs[name] = target
    names = sorted(
        (name for name in refs if is_ref_name(name) and not name.startswith("refs/replace/")),
        key=lambda name: name.encode("utf-8", "replace"),
    )
    return "# pack-refs with: sorted \n" + "".join(f"{refs[name]} {name}\n" for name in names)


def _packed_refs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.split("\n"):
        value, _, name = line.partition(" ")
        if _HEX.fullmatch(value):
            yield name, value


def _loose_refs(root: Root, common: str) -> Iterator[tuple[str, str]]:
    remaining = MAX_REFS
    folders = ["refs"] if root.entry(f"{common}/refs") is not None else []
    while folders:
        folder = folders.pop()
        entries = root.scandir(f"{common}/{folder}", limit=remaining)
        remaining -= len(entries)
        if remaining <= 0:
            raise ToolFailure(
                f"this git repository has more than {MAX_REFS:,} loose refs",
                code="repository_refused",
            )
        for entry in entries:
            name = f"{folder}/{entry.name}"
            if entry.kind == "dir" and name != "refs/replace" and name.count("/") < 20:
                folders.append(name)
            elif entry.kind == "file" and entry.size <= 1024:
                yield name, _value(root, f"{common}/{name}")


def _value(root: Root, path: str) -> str:
    try:
        return root.read(path, max_bytes=1024).decode("utf-8", "replace").strip()
    except ToolFailure:
        return ""  # a ref that is being replaced, or another kind of file


def _resolve(value: str, loose: Mapping[str, str], refs: Mapping[str, str]) -> str:
    """Return the hash of a symbolic ref, following at most five; empty if there is none."""
    for _ in range(5):
        if not value.startswith("ref: "):
            return ""
        name = value[5:].strip()
        if name in refs:
            return refs[name]
        value = loose.get(name, "")
    return ""
