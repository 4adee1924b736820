"""What a program may see (the parts of the machine that it needs, and its workspace), and its
environment, without variables that make programs load or run something else.

1. The environment starts empty. `PATH`, `HOME`, the temporary folder and the language are fixed
   here. For `@python`, `PATH` begins with the programs of that Python's environment.
2. The rule's `env` may pass variables on, but never one that matches `NEVER_PASSED`, listed or not.
3. The rule's `set_env` comes last: it is the operator's own text in the config.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from bundle_router.core.values import BinaryRule
from bundle_router.local_tools.workspace.binary import PYTHON, Binary
from bundle_router.local_tools.workspace.router_code import base_interpreter

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
    ),
    *(
        "inputrc",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "ld.so.preload",
        "locale.alias",
        "localtime",
        "magic",
    ),
    *(
        "mime.types",
        "nsswitch.conf",
        "os-release",
        "passwd",
        "pki/tls/certs",
        "protocols",
        "resolv.conf",
        "services",
    ),
    *("ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone"),
)
"""Files of /etc, named one by one: others there are password hashes and host keys, which root could
read.
"""
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def readable_paths(rule: BinaryRule, binary: Binary) -> tuple[str, ...]:
    """Return the paths outside its workspace that the program may read and execute."""
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix) if rule.path == PYTHON else ()
    etc = (f"/etc/{name}" for name in _ETC)
    return tuple(dict.fromkeys([*_SYSTEM, *etc, binary.real_path, *prefixes, *rule.reads]))


def loader() -> tuple[str, ...]:
    """Return the paths that the launcher's interpreter needs; the program itself does not get
    them.
    """
    return (base_interpreter(), sys.base_prefix, sys.base_exec_prefix)


PATH: Final = "/usr/local/bin:/usr/bin:/bin"

NEVER_PASSED: Final = (
    *(
        "LD_*",
        "DYLD_*",
        "GLIBC_*",
        "MALLOC_*",
        "GCONV_PATH",
        "LOCPATH",
        "NLSPATH",
        "HOSTALIASES",
        "RES_OPTIONS",
    ),
    *(
        "PYTHON*",
        "GIT_*",
        "NODE_*",
        "NPM_*",
        "npm_*",
        "PERL*",
        "RUBY*",
        "GEM_*",
        "BUNDLE_*",
        "LUA_*",
        "PHP*",
    ),
    *(
        "JAVA_TOOL_OPTIONS",
        "*JAVA_OPTIONS",
        "JDK_*",
        "MAVEN_*",
        "GRADLE_*",
        "RUSTC_*",
        "CARGO_*",
        "GOFLAGS",
    ),
    *("BASH*", "ENV", "SHELL*", "IFS", "PS4", "CDPATH", "PROMPT_COMMAND", "ZDOTDIR", "FPATH"),
    *(
        "PATH",
        "HOME",
        "TMPDIR",
        "TMP",
        "TEMP",
        "XDG_*",
        "*PAGER",
        "*EDITOR",
        "VISUAL",
        "BROWSER",
        "LESS*",
    ),
    *(
        "SSH_*",
        "GPG_*",
        "DBUS_*",
        "DOCKER_*",
        "KUBE*",
        "MAKE*",
        "PYTEST_*",
        "PIP_*",
        "UV_*",
        "VIRTUAL_ENV",
    ),
)
"""Patterns of variables that decide what a program loads, runs, reads or talks to."""


def may_be_named(name: str) -> bool:
    """Return whether a rule's `env` may name this variable."""
    return (
        bool(name)
        and "=" not in name
        and not any(fnmatchcase(name, pattern) for pattern in NEVER_PASSED)
    )


def environment(rule: BinaryRule, *, private: str, outside: Mapping[str, str]) -> dict[str, str]:
    """Return a program's whole environment.

    `private`: its own temporary folder; `outside`: the router's environment.
    """
    path = PATH
    if rule.path == PYTHON:
        path = f"{Path(sys.executable).parent}:{PATH}"
    passed = {name: outside[name] for name in rule.env if name in outside and may_be_named(name)}
    fixed = {
        "PATH": path,
        "HOME": f"{private}/home",
        "TMPDIR": f"{private}/tmp",  # noqa: S108  # beneath a folder made for this program
        "LANG": "C.UTF-8",
    }
    of_rule = dict(pair.split("=", 1) for pair in rule.set_env)
    return {**passed, **fixed, **of_rule}
