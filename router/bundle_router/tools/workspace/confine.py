"""What a program may see: the parts of the machine it needs, its workspace, and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bundle_router.core.models import BinaryRule
from bundle_router.tools.workspace.binary import PYTHON, Binary

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC: Final = (
    *(
        "alternatives",
        "ca-certificates.conf",
        "debian_version",
        "fonts",
        "gitconfig",
        "group",
        "host.conf",
        "hosts",
        "inputrc",
    ),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "locale.alias", "localtime", "magic"),
    *("mime.types", "nsswitch.conf", "os-release", "passwd", "pki/tls/certs", "protocols", "resolv.conf", "services"),
    *("ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone"),
)
"""Named one by one: beside them lie password hashes and host keys, which root could read."""
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_MASKED: Final = ("/run", "/var/run", "/home", "/root")


def readable(rule: BinaryRule, binary: Binary) -> tuple[str, ...]:
    """What the program may read and execute outside its workspace."""
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix) if rule.path == PYTHON else ()
    etc = (f"/etc/{name}" for name in _ETC)
    return tuple(dict.fromkeys([*_SYSTEM, *etc, binary.real_path, *prefixes, *rule.reads]))


def masked(needed: Sequence[str]) -> tuple[str, ...]:
    """Folders to hide: sockets there give power over the host, and connecting to one is not a file access.

    A folder that holds something the program or its launcher needs stays as it is.
    """
    real = [Path(os.path.realpath(path)) for path in (*needed, sys.base_prefix)]
    return tuple(folder for folder in _MASKED if not any(path.is_relative_to(folder) for path in real))
