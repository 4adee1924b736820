"""Code mode beside direct calls, on three tasks over real servers:
`python tests/benchmarks/programs.py FOLDER`.

FOLDER is what `.ci/servers/install` made. The same tools are asked for directly (a long result is
read to its end, page by page) and by one program. What is counted: tokens that pass through the
model (arguments that it writes and results that it reads, cl100k_base), calls that the model makes,
and the wall time of these calls, the model's own not counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bundle_router import Router, Step

FILES, ITEMS, STARTS = 2_000, 30, 20


def counter() -> Any:
    spec = find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    os.environ["TIKTOKEN_CACHE_DIR"] = str(
        Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
    )
    import tiktoken

    encoding = tiktoken.get_encoding("cl100k_base")
    return lambda text: len(encoding.encode(text, disallowed_special=()))


def project(folder: Path, servers: Path) -> None:
    """A folder of many files, a git repository, and a config with both servers in both modes."""
    work = folder / "work"
    work.mkdir()
    for number in range(FILES):
        (work / f"file-{number:04}.{'csv' if number % 40 == 7 else 'txt'}").write_text(
            "x" * (number % 100)
        )
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(work)]
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    for number in range(40):
        name = f"file-{number * 7:04}.{'csv' if number * 7 % 40 == 7 else 'txt'}"
        subprocess.run([*git, "add", name], check=True)
        subprocess.run([*git, "commit", "-q", "-m", f"touch {name}"], check=True)
    node = (
        servers
        / "node_modules"
        / "@modelcontextprotocol"
        / "server-filesystem"
        / "dist"
        / "index.js"
    )
    rows = {
        "files": ["node", str(node), str(work)],
        "git": [str(servers / "venv" / "bin" / "mcp-server-git")],
    }
    text = "".join(
        f'[servers.{name}]\ntransport = "stdio"\ntrust = "trusted"\ncommand ='
        f" {json.dumps(words[0])}\nargs = {json.dumps(words[1:])}\n"
        for name, words in rows.items()
    )
    bundles = "".join(
        f'[bundles."all.{mode}"]\ndescription = "Files and history."\ntools = ["files.*",'
        f' "git.*"]\neffects = ["read", "write"]\nmode = "{mode}"\n'
        for mode in ("direct", "code")
    )
    routes = "".join(
        f'[[routes]]\nname = "{mode}"\nrole = "{mode}"\nbundles = ["all.{mode}"]\n'
        for mode in ("direct", "code")
    )
    policy = '[[policies]]\nname = "all"\nallow = ["bundle:all.*"]\neffects = ["read", "write"]\n'
    (folder / "config").mkdir()
    for name, words in (
        ("servers", text),
        ("bundles", bundles),
        ("routes", routes),
        ("policy", policy),
    ):
        (folder / "config" / f"{name}.toml").write_text(words, encoding="utf-8")


class Model:
    """What passes through the model: every call it writes and every result it reads."""

    def __init__(self, router: Router, run: str, count: Any) -> None:
        self.router, self.run, self.count = router, run, count
        self.tokens = self.calls = 0
        self.seconds = 0.0

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        started = time.perf_counter()
        result = await self.router.call(self.run, name, arguments)
        self.seconds += time.perf_counter() - started
        assert result.ok, result.text[:500]
        self.calls += 1
        self.tokens += self.count(json.dumps({"name": name, "arguments": arguments})) + self.count(
            result.text
        )
        return result

    async def call_to_the_end(self, name: str, arguments: dict[str, Any]) -> None:
        """Call, and read what was cut: pages of 8,000 characters."""
        result = await self.call(name, arguments)
        whole = [one for one in result.artifacts if one.role == "full_result"]
        for one in whole:
            for offset in range(0, one.bytes, 8_000):
                await self.call("read_artifact", {"uri": one.uri, "offset": offset, "limit": 8_000})


async def measured(router: Router, mode: str, task: str, work: Path, count: Any) -> Model:
    run = f"{mode}-{task}"
    step = Step(run_id=run, workflow="w", role=mode, step="s")
    await router.route(step)
    await router.tools(run)
    for name, arguments in (
        ("files.get_file_info", {"path": str(work / "file-0000.txt")}),
        ("git.git_status", {"repo_path": str(work)}),
    ):  # both servers are up, and their tools known
        for _ in range(
            STARTS
        ):  # a loaded machine may take longer to start a server than a call waits for one
            warm = await router.call(run, name, arguments)
            if warm.ok:
                break
            await asyncio.sleep(2)
            await router.route(step)
        assert warm.ok, warm.text
    if mode == "code":
        await router.call(run, "execute", {"code": "print(1)"})
    model = Model(router, run, count)
    if mode == "direct":
        await DIRECT[task](model, work)
    else:
        result = await model.call("execute", {"code": PROGRAMS[task].replace("WORK", str(work))})
        print(f"    {task}: {result.text.strip()[:100]}", file=sys.stderr)
    return model


async def filter_directly(model: Model, work: Path) -> None:
    await model.call_to_the_end("files.list_directory", {"path": str(work)})


async def join_directly(model: Model, work: Path) -> None:
    await model.call_to_the_end("git.git_log", {"repo_path": str(work), "max_count": 40})
    await model.call_to_the_end("files.list_directory_with_sizes", {"path": str(work)})


async def loop_directly(model: Model, work: Path) -> None:
    for number in range(ITEMS):
        name = f"file-{number:04}.{'csv' if number % 40 == 7 else 'txt'}"
        await model.call("files.get_file_info", {"path": str(work / name)})


DIRECT = {"filter": filter_directly, "join": join_directly, "loop": loop_directly}
PROGRAMS = {
    "filter": (
        """
found = await files__list_directory(path='WORK')
text = found['content'] if isinstance(found, dict) else found
print([line for line in text.split('\\n') if line.endswith('.csv')][:60])
"""
    ),
    "join": (
        """
import asyncio
log, sizes = await asyncio.gather(
    git__git_log(repo_path='WORK', max_count=40), files__list_directory_with_sizes(path='WORK'))
names = [word for line in str(log).split() for word in line.split("'") if word.startswith('file-')]
text = sizes['content'] if isinstance(sizes, dict) else sizes
print(len([line for line in text.split('\\n') if any(name in line for name in set(names))]))
"""
    ),
    "loop": (
        """
import asyncio
names = ['file-%04d.%s' % (n, 'csv' if n % 40 == 7 else 'txt') for n in range(30)]
rows = await asyncio.gather(*[files__get_file_info(path='WORK/' + name) for name in names])
print(len(rows), str(rows[0])[:80])
"""
    ),
}


async def main(servers: Path, count: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project(folder, servers)
        where: dict[str, Any] = {"runs": folder / "runs", "workspace": folder / "work"}
        async with Router.open(folder / "config", development="unpinned", **where) as router:
            print(f"{'task':8}{'mode':8}{'tokens':>10}{'calls':>8}{'seconds':>10}")
            for task in DIRECT:
                for mode in ("direct", "code"):
                    made = await measured(router, mode, task, folder / "work", count)
                    print(f"{task:8}{mode:8}{made.tokens:10,}{made.calls:8}{made.seconds:10.2f}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).resolve(), counter()))
