"""Puts every panel of a set of tabs under its label, whichever one is open.

A panel belongs to the tab that it names or that names it; else, in order, to the tabs of the
nearest set that both are in.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from bundle_router.local_tools.docs.soup import (
    Tag,
    attribute,
    classes,
    descendants,
    has_class,
    make_title,
    title_of,
    words,
)

_STRIPS: Final = words("tablist tabbed-labels CodeTabs-toolbar")
_PANELS: Final = words("tabpanel tabbed-block")
_PANELS_IN: Final = words("blocks CodeTabs-inner")
"""Classes of elements whose children are panels."""
_LEVELS: Final = 3
"""How many elements around its labels a set of tabs may be."""


def shape_tabs(main: Tag) -> int:
    """Put panels under their labels; return how many labels have none on the page."""
    sets = _TabSets()
    for tag in main.find_all(True):
        if _is_strip(tag):
            sets.add_strip(tag)
    for tag in main.find_all(True):
        if _is_panel(tag):
            sets.label(tag)
    for label in main.find_all("label"):
        if _is_title(label):
            make_title(label)
    return sets.finish()


def _is_strip(tag: Tag) -> bool:
    if attribute(tag, "role") == "tablist" or has_class(tag, _STRIPS):
        return True
    return (
        tag.parent is not None and "tabs" in classes(tag) and "vp-code-group" in classes(tag.parent)
    )


def _is_panel(tag: Tag) -> bool:
    if attribute(tag, "role") == "tabpanel" or has_class(tag, _PANELS):
        return True
    return tag.parent is not None and has_class(tag.parent, _PANELS_IN)


def _is_title(label: Tag) -> bool:
    """Return whether a label is the title of the panel behind it."""
    if has_class(label, ("sd-tab-label",)):
        return True
    return label.parent is not None and has_class(label.parent, ("tabbed-set",))


class _TabSets:
    """The sets of tabs of a page, and which of their labels are still without a panel."""

    def __init__(self) -> None:
        self._strips: list[tuple[Tag, list[Tag]]] = []
        self._by_place: dict[int, deque[Tag]] = {}
        self._by_panel: dict[str, Tag] = {}
        self._by_label: dict[str, Tag] = {}
        self._used: set[int] = set()

    def add_strip(self, strip: Tag) -> None:
        """Read the labels of a set."""
        if strip.find_parent(_is_strip) is not None:
            return
        labels = _labels_of(strip)
        self._strips.append((strip, labels))
        waiting = deque(labels)
        for place in islice(strip.parents, _LEVELS):
            self._by_place.setdefault(id(place), waiting)
        for label in labels:
            for panel in (attribute(label, "aria-controls"), attribute(label, "href")[1:]):
                self._by_panel.setdefault(panel, label)
            self._by_label.setdefault(attribute(label, "id"), label)

    def label(self, panel: Tag) -> None:
        """Put a panel's label before its content."""
        label = self._label_of(panel)
        if label is None or panel is label or any(parent is panel for parent in label.parents):
            return
        title = title_of(label.get_text())
        self._used.add(id(label))
        if panel.name == "pre":
            panel.insert_before(title)
        else:
            panel.insert(0, title)

    def _label_of(self, panel: Tag) -> Tag | None:
        for name, labels in (("id", self._by_panel), ("aria-labelledby", self._by_label)):
            value = attribute(panel, name)
            if value and value in labels:
                return labels[value]
        for place in panel.parents:
            waiting = self._by_place.get(id(place))
            while waiting:
                label = waiting.popleft()
                if id(label) not in self._used:
                    return label
        return None

    def finish(self) -> int:
        """Take out the labels that were used; return how many beside them were not."""
        missing = 0
        for strip, labels in self._strips:
            unused = [label for label in labels if id(label) not in self._used]
            if len(unused) < len(labels):
                missing += len(unused)
                _take_out(strip, [label for label in labels if id(label) in self._used])
        return missing


def _take_out(strip: Tag, labels: list[Tag]) -> None:
    """Take out the labels that stand above their panels now; the strip too, if it says no more."""
    for label in labels:
        if label.find(_is_panel) is None:
            label.extract()
    if not strip.get_text(strip=True):
        strip.extract()


def _labels_of(strip: Tag) -> list[Tag]:
    for labels in (
        [tag for tag in strip.find_all(True) if attribute(tag, "role") == "tab"],
        descendants(strip, ("label",)),
        descendants(strip, ("button",)),
        descendants(strip, ("li",)),
    ):
        if labels:
            return labels
    return []
