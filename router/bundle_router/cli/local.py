"""`--local NAME=module:TOOLS`: an engine's own local tools, for the verbs that read its config.

A config file names a local server but never code. This option names code, and is on the operator's
command line, which may run anything anyway. Rules:

1. The module is imported as the engine imports it. Installed modules come first and the current
   folder last, so that a file there can't replace a library.
2. An error is a bad request, in one line; a defect in the module is named with its kind, not
   swallowed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from bundle_router.core.values import SERVER_NAME, LocalServer, LocalTool
from bundle_router.errors import RequestError

_FORM: Final = "write --local NAME=module:TOOLS, such as --local tickets=our_engine.tools:TOOLS"


def add_local(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--local",
        action="append",
        default=[],
        metavar="NAME=module:TOOLS",
        help=(
            "your own tools, as in Router.open(local=...): TOOLS is a LocalServer or a list of"
            " tools; the module is imported; may be repeated"
        ),
    )


def local_servers(arguments: argparse.Namespace) -> dict[str, Sequence[LocalTool] | LocalServer]:
    """Import the options' modules, and return their local servers. Raises RequestError."""
    servers: dict[str, Sequence[LocalTool] | LocalServer] = {}
    for option in arguments.local:
        name, module, attribute = _parts(option)
        if name in servers:
            raise RequestError(
                f"--local {name}=... is given twice",
                advice="give a server all of its tools at once",
            )
        servers[name] = _tools(option, _import(option, module), attribute)
    return servers


def _parts(option: str) -> tuple[str, str, str]:
    name, equals, place = option.partition("=")
    module, colon, attribute = place.partition(":")
    if not (equals and colon and module and attribute):
        raise RequestError(f"--local {option!r} does not say which tools", advice=_FORM)
    if not SERVER_NAME.fullmatch(name):
        raise RequestError(
            f"--local {option!r}: {name!r} is not a server name",
            advice="lower case letters, digits, '-' and '_', as in servers.toml",
        )
    return name, module, attribute


def _import(option: str, module: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (
            module == missing.name or module.startswith(f"{missing.name}.")
        ):
            raise RequestError(
                f"--local {option!r}: there is no module {missing.name!r}",
                advice=(
                    "looked among the installed ones and in this folder; is its environment active?"
                ),
            ) from None
        raise _defect(option, module, missing) from missing
    except (Exception, SystemExit) as defect:
        raise _defect(option, module, defect) from defect


def _defect(option: str, module: str, defect: BaseException) -> RequestError:
    reason = f"{type(defect).__name__}: {defect}" if str(defect) else type(defect).__name__
    return RequestError(
        f"--local {option!r}: module {module!r} can't be imported: {reason}",
        advice=f"`python -c 'import {module}'` shows where",
    )


def _tools(option: str, module: ModuleType, attribute: str) -> Sequence[LocalTool] | LocalServer:
    from bundle_router.adapters.local import cards_of, tools_of

    declared: Any = getattr(module, attribute, None)
    if declared is None:
        lists = sorted(name for name, value in vars(module).items() if _is_tools(value))
        if lists:
            has = f"it has {', '.join(lists)}"
        else:
            has = "it holds no LocalServer and no list of tools"
        raise RequestError(
            f"--local {option!r}: module {module.__name__!r} has no {attribute!r}", advice=has
        )
    name = option.partition("=")[0]
    try:
        tools = tools_of(name, declared.tools if isinstance(declared, LocalServer) else declared)
        cards_of({name: tools})
    except RequestError as wrong:
        raise RequestError(f"--local {option!r}: {wrong.message}", advice=wrong.advice) from None
    return declared if isinstance(declared, LocalServer) else tools


def _is_tools(value: Any) -> bool:
    has_tools = isinstance(value, list | tuple) and all(
        isinstance(item, LocalTool | FunctionType) for item in value
    )
    return isinstance(value, LocalServer) or (has_tools and len(value) > 0)
