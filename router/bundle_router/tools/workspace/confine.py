"""What a program may see: the parts of the machine it needs, its workspace, and nothing else."""

from __future__ import annotations

import sys
from typing import Final

from bundle_router.core.models import BinaryRule
from bundle_router.tools.workspace.binary import PYTHON, Binary
from bundle_router.tools.workspace.router_code import base_interpreter

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


def readable(rule: BinaryRule, binary: Binary) -> tuple[str, ...]:
    """Return what the program may read and execute outside its workspace."""
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix) if rule.path == PYTHON else ()
    etc = (f"/etc/{name}" for name in _ETC)
    return tuple(dict.fromkeys([*_SYSTEM, *etc, binary.real_path, *prefixes, *rule.reads]))


def loader() -> tuple[str, ...]:
    """Return what the launcher's interpreter needs; the program itself is not granted it."""
    return (base_interpreter(), sys.base_prefix, sys.base_exec_prefix)
