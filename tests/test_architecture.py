"""The layers, kept. Imports point one way, the core is pure, and each heavy library has one owner.

Standard library only. Imports inside functions count: a cycle that is loaded late is still a cycle.
"""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.house import (
    DEFERRAL,
    NAMES,
    PACKAGE,
    ROOT,
    all_imports,
    imports_of,
    layer_of,
    measures,
    tree_of,
)

DISTRIBUTIONS = ("client", "deferral")
"""Folders of `router` beside the package, with packages of their own."""
FOLDERS_OF_NO_PACKAGE = {
    "benchmarks": "programs that measure, over the whole router",
    "cases": "what the shipped config promises, for `bundle-router eval`",
    "data": "what tests read, some of it for several packages",
    "examples": "programs for readers of the documentation, and recipes",
    "faults": "long programs that break things, and a few rounds of each",
    "reference": "what makes the generated pages and schemas, over the whole router",
}
"""Folders of `tests` that do not have their name from the package they test, and why."""

LAYERS: dict[str, set[str]] = {
    # layer: what it may import of this project (itself included where it is more than one module)
    "errors": set(),
    "core": {"errors"},
    "ports": {"core", "errors"},
    "review": {"core", "errors"},
    "local_tools": {"adapters", "core", "errors"},
    "engine": {"ports", "core", "errors"},
    "adapters": {"ports", "core", "errors"},
    "wiring": {"engine", "adapters", "ports", "core", "errors"},
    "testing": {"wiring", "engine", "ports", "core", "errors"},
    "demo": {"testing", "wiring", "engine", "core", "errors"},
    "workbench": {"wiring", "engine", "adapters", "review", "ports", "core", "errors"},
    "service": {"workbench", "wiring", "engine", "review", "core", "errors"},
    "ext": {"wiring", "engine", "core", "errors", "ports"},
    "cli": {
        "service",
        "workbench",
        "demo",
        "wiring",
        "review",
        "adapters",
        "local_tools",
        "core",
        "errors",
        "engine",
    },
    "__init__": {"wiring", "engine", "core", "errors"},
    "__main__": {"cli"},
    "tool": {"adapters", "core", "errors"},
}
REACHES_UP = ("bundle_router.wiring.shipped", "local_tools")
"""The one module that imports from a storey above its own, and which: by a table of names."""
IMPORTS_BY_NAME = {
    "bundle_router",  # its own names, loaded at their first use
    "bundle_router.cli",  # a verb's module, by its name
    "bundle_router.cli.local",  # what `--local` names
    "bundle_router.wiring.shipped",
}
"""Modules in which `import_module` gets a name that is no literal."""
SHARED_ADAPTERS = {
    *(
        "artifact_files",
        "database_file",
        "descriptors",
        "disk_cache",
        "expressions",
        "host_changes",
        "http",
        "http_listener",
        "json_schema",
        "learned_folder",
        "loop",
        "postgres",
        "private_folders",
        "processes",
        "redaction",
        "sandbox",
        "sdk_log",
        "text_files",
        "tokenizer",
        "workers",
    ),
}
"""Threads, loops, checks, files, stores and the quoting of ids that several adapters stand on.

No other adapter is imported by another.
"""
USED_BY_LOCAL_TOOLS = (
    *("descriptors", "expressions", "http", "loop", "private_folders", "processes", "sandbox"),
)
"""The adapters that first-party tools, which a tool of anybody's could be, stand on."""
VALUES_OF_LOCAL_TOOLS = ("bundle_router.core.values", "bundle_router.core.values.host_names")
"""What they import of the core; the second apart, since a router without them needs it seldom."""
CORE = (
    *("values", "catalog", "exposure", "results", "servers", "config", "decide", "search"),
    "records",
)
"""The core's inner rooms: each may import those before it."""
AGAINST_THE_ORDER = {
    ("exposure.placing", "decide"),
    ("exposure.meta_tools.descriptions", "decide"),
    ("exposure.meta_tools.artifact_pages", "results"),
    ("exposure.skills", "servers"),
    ("results.shaping.json_text", "servers"),
}
"""Modules of the core, and the later rooms that they import: they may become fewer, never more."""
DEFERRAL_RULES = (
    *(
        "causes",
        "comparison",
        "findings",
        "hiding",
        "json_spans",
        "plans",
        "rewriting",
        "settings",
        "transcript",
    ),
)
"""The modules of `bundle_router_deferral` that hold rules: as pure as the core."""
USED_BY_DEFERRAL = {
    "bundle_router.adapters.http",
    "bundle_router.adapters.database_file",
    "bundle_router.adapters.system",
    "bundle_router.adapters.tokenizer",
    "bundle_router.adapters.text_files",
    "bundle_router.cli.output",
    "bundle_router.cli.program",
    "bundle_router.cli.shared_arguments",
    "bundle_router.core.servers.transport.proxies",
    "bundle_router.errors",
    "bundle_router.adapters.http_listener",
}
"""What `bundle_router_deferral`, which pins its version of the router, stands on."""
HANDS_OVER = "bundle_router.cli.deferral"
"""The one module of the router that knows `bundle_router_deferral`, if that is installed."""
OWNERS = {
    "structlog": {"router/bundle_router/adapters/diagnostics.py"},
    "sqlmodel": {
        "router/bundle_router/adapters/index/database.py",
        "router/bundle_router/adapters/index/filling.py",
        "router/bundle_router/adapters/index/counting.py",
    },
    "sqlalchemy": {
        "router/bundle_router/adapters/index/database.py",
        "router/bundle_router/adapters/index/filling.py",
        "router/bundle_router/adapters/index/counting.py",
        "router/bundle_router/adapters/index/index_file.py",
        "router/bundle_router/adapters/index/totals.py",
    },
    "psycopg": {
        "router/bundle_router/adapters/archive/database.py",
        "router/bundle_router/adapters/postgres/connections.py",
        "router/bundle_router/adapters/postgres/pooling.py",
        "router/bundle_router/adapters/postgres/run_rows.py",
        "router/bundle_router/adapters/postgres/schema.py",
        "router/bundle_router/adapters/postgres/sessions.py",
        "router/bundle_router/adapters/postgres/store.py",
        "router/bundle_router/adapters/postgres/artifact_rows.py",
    },
    "subprocess": {
        "router/bundle_router/adapters/processes/starting.py",
        "router/bundle_router/demo/repository.py",
    },
    "jwt": {"router/bundle_router/adapters/issuer_tokens.py"},
    "obstore": {"router/bundle_router/adapters/postgres/objects.py"},
    "pyarrow": {"router/bundle_router/adapters/export.py"},
    "jinja2": {"router/bundle_router/service/pages/rendering.py"},
    "markupsafe": {
        "router/bundle_router/service/pages/charts.py",
        "router/bundle_router/service/pages/docs_views.py",
        "router/bundle_router/service/pages/trends.py",
    },
    "markdown_it": {"router/bundle_router/service/pages/documentation.py"},
    "puremagic": {"router/bundle_router/adapters/media.py"},
    "rich": {"router/bundle_router/cli/output.py"},
    "markdownify": {"router/bundle_router/local_tools/docs/markdown.py"},
    "webencodings": {"router/bundle_router/local_tools/docs/charsets.py"},
    "bs4": {"router/bundle_router/local_tools/docs/soup.py"},
    "docstring_parser": {"router/bundle_router/adapters/local/functions.py"},
    "h11": set(),
    "yaml": {"router/bundle_router/core/exposure/skills.py"},
    "re2": {"router/bundle_router/adapters/expressions.py"},
    "jsonschema_rs": {"router/bundle_router/adapters/json_schema/validators.py"},
    "litellm": {"router/bundle_router/adapters/llm/loading.py"},
    "instructor": {"router/bundle_router/adapters/llm/loading.py"},
    "aiohttp": {
        "router/bundle_router/adapters/http/client.py",
        "router/bundle_router/adapters/http/sessions.py",
        "router/bundle_router/adapters/llm/wire.py",
        "router/bundle_router/adapters/llm/client.py",
        "router/bundle_router/adapters/llm/embedding.py",
        "router/bundle_router/adapters/llm/loading.py",
    },
    "mcp": {
        "router/bundle_router/adapters/mcp/oauth.py",
        "router/bundle_router/service/mcp/protocol.py",
    },
    "mcp_types": {
        "router/bundle_router/service/mcp/protocol.py",
        "router/bundle_router/service/mcp/client.py",
        "router/bundle_router/service/mcp/methods.py",
        "router/bundle_router/service/mcp/passage.py",
        "router/bundle_router/service/mcp/result_forms.py",
    },
    "starlette": {
        "router/bundle_router/service/http.py",
        "router/bundle_router/service/api/routes.py",
        "router/bundle_router/service/mcp/mount.py",
        "router/bundle_router/service/endpoint.py",
        "router/bundle_router/service/issuer.py",
        "router/bundle_router/service/probes.py",
        "router/bundle_router/service/service.py",
        "router/bundle_router/service/pages/application.py",
        "router/bundle_router/service/pages/service_pages.py",
        "router/bundle_router/service/sign_in.py",
        "router/deferral/bundle_router_deferral/proxy.py",
    },
    "prometheus_client": {"router/bundle_router/service/metrics.py"},
    "opentelemetry": {
        "router/bundle_router/service/telemetry.py",
        "router/bundle_router/service/mcp/tracing.py",
        "router/bundle_router/adapters/mcp/tracing.py",
    },
    "uvicorn": {
        "router/bundle_router/adapters/http_listener.py",
    },
    "httpx2": {"router/bundle_router/adapters/mcp/oauth.py"},
    "uvloop": {"router/bundle_router/adapters/loop.py"},
    "httpcore2": set(),
    "bm25s": {"router/bundle_router/adapters/bm25.py"},
    "Stemmer": {"router/bundle_router/adapters/bm25.py"},
    "pydantic_ai": {"router/bundle_router/ext/pydantic_ai.py"},
    "langchain": {"router/bundle_router/ext/langchain.py"},
    "langchain_core": {"router/bundle_router/ext/langchain.py"},
    "langgraph": {"router/bundle_router/ext/langchain.py"},
    "agents": {"router/bundle_router/ext/openai_agents.py"},
    "temporalio": {"router/bundle_router/ext/temporal.py"},
    "pydantic_monty": {"router/bundle_router/adapters/monty.py"},
    "jmespath": {"router/bundle_router/adapters/json_query.py"},
    "tokenizers": {"router/bundle_router/adapters/embeddings/onnx.py"},
    "onnxruntime": {"router/bundle_router/adapters/embeddings/onnx.py"},
}
PURE = {
    "__future__",
    "ast",
    "base64",
    "binascii",
    "bisect",
    "builtins",
    "collections",
    "contextlib",
    "dataclasses",
    "datetime",  # the calendar; what reads its clock is refused below
    "difflib",
    "email.utils",  # dates of headers
    "enum",
    "errno",
    "fnmatch",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "html",
    "importlib.resources",  # files of the package, which are constants as its modules are
    "inspect",
    "ipaddress",
    "itertools",
    "json",
    "keyword",
    "math",
    "operator",
    "re",
    "statistics",
    "string",
    "struct",
    "textwrap",
    "tomllib",
    "types",
    "typing",
    "unicodedata",
    "urllib.parse",
    "pydantic",
    "pydantic_core",
    "yaml",  # of a text, with a loader that makes texts, lists and maps
}


@pytest.mark.parametrize("module", [name for name in NAMES if layer_of(name) != DEFERRAL])
def test_imports_point_one_way(module: str) -> None:
    layer = layer_of(module)
    own = [
        name
        for name in imports_of(NAMES[module])
        if name.split(".")[0] == PACKAGE and name != PACKAGE
    ]
    for imported in own:
        if (module, layer_of(imported)) == REACHES_UP:
            continue
        assert layer_of(imported) in LAYERS[layer] | {layer}, (
            f"{module} ({layer}) imports {imported}"
        )
        if layer == "adapters" and layer_of(imported) == "adapters":
            assert imported.split(".")[2] in {module.split(".")[2], *SHARED_ADAPTERS}, (
                f"adapters never import each other: {module}, {imported}"
            )
        if layer == "local_tools" and layer_of(imported) == "adapters":
            adapter = imported.split(".")[2]
            assert adapter in USED_BY_LOCAL_TOOLS, f"{module} imports {imported}"
        if layer == "local_tools" and layer_of(imported) == "core":
            assert imported in VALUES_OF_LOCAL_TOOLS, f"{module} imports {imported}"


def imports_by_name(tree: ast.AST) -> bool:
    """Return whether a module imports another whose name does not stand in the call."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        is_literal = bool(node.args) and isinstance(node.args[0], ast.Constant)
        if name in ("import_module", "__import__") and not is_literal:
            return True
    return False


def test_few_modules_import_by_a_name_that_no_test_can_read() -> None:
    router = [name for name in NAMES if layer_of(name) != DEFERRAL]
    named = {name for name in router if imports_by_name(tree_of(NAMES[name]))}
    assert named == IMPORTS_BY_NAME


def packages_of(module: str) -> set[str]:
    """Return the first names of what a module imports."""
    return {imported.split(".")[0] for imported in imports_of(NAMES[module])}


def test_one_module_of_the_router_knows_the_distribution_that_stands_on_it() -> None:
    router = [name for name in NAMES if layer_of(name) != DEFERRAL]
    assert [name for name in router if DEFERRAL in packages_of(name)] == [HANDS_OVER]


def test_the_distribution_beside_the_router_uses_few_modules_of_it() -> None:
    beside = [name for name in NAMES if layer_of(name) == DEFERRAL]
    used = {
        imported
        for name in beside
        for imported in imports_of(NAMES[name])
        if imported.split(".")[0] == PACKAGE
    }
    assert beside
    assert used <= USED_BY_DEFERRAL


PURE_MODULES = [name for name in NAMES if layer_of(name) in ("core", "review", "errors")]
PURE_MODULES += [f"{DEFERRAL}.{name}" for name in DEFERRAL_RULES]


@pytest.mark.parametrize("module", PURE_MODULES)
def test_the_core_is_pure(module: str) -> None:
    outside = {name for name in imports_of(NAMES[module]) if not name.startswith(PACKAGE)}
    assert {n for n in outside if n not in PURE and n.split(".")[0] not in PURE} == set()
    tree = tree_of(NAMES[module])
    coroutines = [node.name for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    assert coroutines == []
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "print", "input", "exec", "eval", "__import__"}
    methods = {
        n.func.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
    }
    assert not methods & {"now", "today", "utcnow"}


def test_the_house_gets_no_worse() -> None:
    """A ceiling that is above its goal is on its way down; `python tests/house.py --names` says
    what counts.
    """
    worse = [row for row in measures() if row.value > row.ceiling]
    assert [(row.what.strip(), row.value, row.ceiling) for row in worse] == []


def test_each_folder_of_tests_has_the_path_of_the_package_it_tests() -> None:
    folders = {file.parent.relative_to(ROOT / "tests") for file in ROOT.glob("tests/**/*.py")}
    tops = {folder.parts[0] for folder in folders if folder.parts}
    lost = [
        str(folder)
        for folder in folders
        if folder.parts
        and folder.parts[0] not in FOLDERS_OF_NO_PACKAGE
        and folder.parts[0] not in DISTRIBUTIONS
        and not (ROOT / "router" / PACKAGE / folder / "__init__.py").exists()
    ]
    assert lost == []
    assert {"core", "engine", "adapters", *DISTRIBUTIONS} < tops
    assert all((ROOT / "tests" / name).is_dir() for name in FOLDERS_OF_NO_PACKAGE)


def test_there_are_no_import_cycles() -> None:
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join((*trail[trail.index(module) :], module))
        if module in done:
            return
        for imported in sorted(imports_of(NAMES[module]) & NAMES.keys() - {PACKAGE}):
            # `from package.sub import x` inside the package's own __init__ is the package, not a
            # cycle.
            if imported != module:
                visit(imported, (*trail, module))
        done.add(module)

    for module in NAMES:
        if module != PACKAGE:
            visit(module, ())


@pytest.mark.parametrize("library", OWNERS)
def test_each_heavy_library_has_its_owners(library: str) -> None:
    imports = all_imports()
    users = {
        str(NAMES[name])
        for name, imported in imports.items()
        if library in {i.split(".")[0] for i in imported}
    }
    assert users <= OWNERS[library]


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = (
        *("litellm", "instructor", "mcp", "sqlmodel", "structlog", "re2", "rich", "numpy"),
        "jsonschema_rs",
    )
    script = f"import sys, bundle_router; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_exactly_the_written_list() -> None:
    import bundle_router as router

    assert len(router.__all__) == 10
    assert sorted(router.__all__) == sorted(router._HOMES)
    for name in router.__all__:
        assert getattr(router, name) is not None
