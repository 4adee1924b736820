"""What changes with the pin files while a router is open: the cards of its catalog, and the engine over them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bundle_router.core.catalog import Catalog
from bundle_router.engine.engine import Engine
from bundle_router.wiring.catalogs import remote_servers

if TYPE_CHECKING:
    from bundle_router.adapters.pin_file import PinFiles
    from bundle_router.core.tools.pins import Pins

Make = Callable[[Catalog, "Mapping[str, Pins]", Collection[str]], Engine]
"""An engine over a catalog with the cards of these pins. Last: the servers whose pins are others than before."""


class PinnedFrom:
    """The pin files of a config that was read once. `unpinned` is the catalog as its files say; a later state of the
    pins is put on that, and everything else stays as it was when the router was opened."""

    def __init__(self, files: PinFiles, unpinned: Catalog) -> None:
        self._files = files
        self._unpinned = unpinned
        self._servers = remote_servers(unpinned)
        self._stamp = files.stamp(self._servers)
        self.pins: Mapping[str, Pins] = files.read_all(self._servers)

    def catalog(self) -> Catalog:
        """With the cards of the pins as they were read last."""
        from bundle_router.core.tools.pins import pinned

        return pinned(self._unpinned, self.pins)

    def has_changed(self) -> bool:
        """Whether there are other pins than were read last; they are read. Raises CorruptPins, once for each state of
        the files."""
        stamp = self._files.stamp(self._servers)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        before, self.pins = self.pins, self._files.read_all(self._servers)
        return before != self.pins

    def renew(self, in_force: Catalog, make: Make) -> tuple[Engine, Mapping[str, Pins]] | None:
        """See `bundle_router.engine.versions.Renew`. `in_force` is the catalog the router was opened with."""
        before = self.pins
        if not self.has_changed():
            return None
        approved = {name for name in self._servers if before.get(name) != self.pins.get(name)}
        now = replace(self.catalog(), skills=in_force.skills, settings=in_force.settings)
        return make(now, self.pins, approved), self.pins
