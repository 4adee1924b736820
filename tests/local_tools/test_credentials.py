"""Credentials reach no model: files that hold them are hidden by every tool, and tokens elsewhere
are taken out of what first-party tools return.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Result, Router, Step

CANARY = "Zq7canary9Wx"
PATTERN = "Zq7canary[9]Wx"
"""Finds it, without being it: patterns are recorded."""
BODY = "\n".join(
    f"MIIE{CANARY}{number:02}abcdefghijklmnopqrstuvwxyz0123456789ABCD" for number in range(9)
)
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----\n"
ACCOUNT = json.dumps({"type": "service_account", "private_key": KEY}, indent=1)
TOKEN = "ghp_" + "Zq7canary9WxA1b2C3d4E5f6G7h8I9j0K1l2M3"[:36]

HIDDEN = {
    ".env": f"STRIPE={CANARY}\n",
    ".env.production": f"STRIPE={CANARY}\n",
    ".env.local": f"STRIPE={CANARY}\n",
    "deploy/prod.env": f"STRIPE={CANARY}\n",
    ".npmrc": f"//registry.example.com/:_auth={CANARY}\n",
    ".pypirc": f"[pypi]\npassword = {CANARY}\n",
    ".netrc": f"machine example.org login me password {CANARY}\n",
    "id_rsa": KEY,
    "keys/id_ed25519": KEY.replace("RSA", "OPENSSH"),
    "server.key": KEY,
    "server.pem": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n" + KEY,
    "terraform.tfstate": f'{{"outputs": {{"password": {{"value": "{CANARY}"}}}}}}\n',
    "terraform.tfstate.backup": f'{{"value": "{CANARY}"}}\n',
    "credentials.json": f'{{"installed": {{"client": "{CANARY}"}}}}\n',
    "service-account.json": ACCOUNT,
    "prod-service-account.json": ACCOUNT,
    ".htpasswd": f"me:$apr1${CANARY}$abc\n",
    "kubeconfig": f"users:\n- user:\n    data: {CANARY}\n",
    ".kube/config": f"users:\n- user:\n    data: {CANARY}\n",
    ".docker/config.json": f'{{"auths": {{"r": {{"x": "{CANARY}"}}}}}}\n',
    ".aws/credentials": f"[default]\naws = {CANARY}\n",
    "deep/down/.ENV": f"STRIPE={CANARY}\n",
}
BY_CONTENT = {
    "notes.txt": KEY,
    "settings/firebase.json": ACCOUNT,
    "tests/fixture.py": f'KEY = """{KEY}"""\n',
    "one_line.js": "const key = " + json.dumps(KEY) + ";\n",
    "putty.txt": f"PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 14\n{BODY}\n",
    "encrypted": KEY.replace("RSA PRIVATE", "ENCRYPTED PRIVATE"),
    "secret_in_json.json": json.dumps({"config": json.dumps({"key": KEY})}) + "\n",
    "keys.h": "#define KEY \\\n" + " \\\n".join(f'"{line}\\r\\n"' for line in KEY.split("\n")),
    "keys.php": " .\n".join(f'"{line}\\n"' for line in KEY.split("\n")),
    "keys.go": "".join(f"// {line}\n" for line in KEY.split("\n")),
    "keys.ini": "".join(f"; {line}\n" for line in KEY.split("\n")),
    "page.html": KEY.replace("\n", "<br>\n") + KEY.replace("\n", "&#10;"),
    "escaped.properties": "key=" + KEY.replace("\n", "\\u000a"),
    "request.log": "POST key=" + KEY.replace("\n", "%0A"),
    "listing.txt": "".join(f"{at:4} {line}\n" for at, line in enumerate(KEY.split("\n"))),
    "secret.yaml": f"data:\n  tls.key: {base64.b64encode(KEY.encode()).decode()}\n",
    "wrapped.txt": base64.encodebytes(KEY.encode()).decode(),
    "with_headers": KEY.replace("KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\n\n", 1),
}
SHOWN = {
    ".env.example": "STRIPE=put-yours-here\n",
    ".env.production.sample": "STRIPE=put-yours-here\n",
    "id_rsa.pub": "ssh-rsa AAAA me@here\n",
    "ca.pem": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    "pattern.py": 'KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")\n',
    "check.py": "if '-----BEGIN PRIVATE KEY-----' in text:\n    return 1\n",
    "src/environment.py": "import os\n",
    "config.json": "{}\n",
}
CONFIG = {
    "routes": '[[routes]]\nname = "all"\nbundles = ["all", "code"]\n',
    "bundles": (
        '[bundles.all]\ndescription = "All."\neffects = ["read", "write", "exec"]\n'
        'tools = ["repo.read_file", "repo.list_dir", "repo.ripgrep", "repo.git_log",'
        ' "repo.git_diff", "workspace.write_file", "workspace.exec"]\n'
        '[bundles.code]\ndescription = "Code."\neffects = ["read"]\nmode = "code"\n'
        'tools = ["repo.read_file"]\n'
    ),
}
POLICY = (
    '[[policies]]\nname = "all"\nallow = ["bundle:all", "bundle:code"]\n'
    'effects = ["read", "write", "exec"]\n'
    '[[binaries]]\nname = "cat"\npath = "/bin/cat"\n'
    'forms = [{ words = [], positionals = "[A-Za-z0-9_./-]+", max_positionals = 20 }]\n'
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in (*HIDDEN, *BY_CONTENT, *SHOWN):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("first\n")
    git(folder, "init", "-q")
    git(folder, "add", "-Af")
    git(folder, "commit", "-q", "-m", "first")
    for name, text in {**HIDDEN, **BY_CONTENT, **SHOWN}.items():
        (folder / name).write_text(text)
    git(folder, "add", "-Af")
    git(folder, "commit", "-q", "-m", "second")
    return folder


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True)


class Opened:
    """A router over a workspace, with one step routed."""

    def __init__(self, base: Path, workspace: Path, repo: str = "") -> None:
        config = base / "config"
        config.mkdir(exist_ok=True)
        for name, text in {**CONFIG, "policy": POLICY + repo}.items():
            (config / f"{name}.toml").write_text(text)
        self.runs = base / "runs"
        self.router = Router.open(config, runs=self.runs, workspace=workspace)
        self.router.route_sync(Step(run_id="r", workflow="w", role="x", step="s"))

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.router.close_sync()

    def call(self, tool: str, **arguments: Any) -> Result:
        return self.router.call_sync("r", tool, arguments)


def test_files_of_credentials_are_shown_by_no_tool(tmp_path: Path, repository: Path) -> None:
    files: Mapping[str, str] = {**HIDDEN, **BY_CONTENT}
    shown: dict[str, str] = {}
    with Opened(tmp_path, repository) as opened:
        for name in files:
            asked = {
                "read_file": opened.call("repo.read_file", path=name),
                "a line in the middle": opened.call("repo.read_file", path=name, start=4, end=6),
                "ripgrep": opened.call("repo.ripgrep", pattern=PATTERN, path=name),
                "git_diff": opened.call(
                    "repo.git_diff", base="HEAD~1", target="HEAD", path=name, context=9
                ),
            }
            if name in HIDDEN:
                asked["exec"] = opened.call("workspace.exec", binary="cat", args=[name])
            for tool, result in asked.items():
                if CANARY in result.text:
                    shown[f"{name} by {tool}"] = result.text[:200]
            assert asked["read_file"].code == "credentials", name
        whole = {
            "ripgrep": opened.call("repo.ripgrep", pattern=PATTERN, context=5),
            "ripgrep by glob": opened.call("repo.ripgrep", pattern="canary", glob="**/.e*"),
            "list_dir": opened.call("repo.list_dir", depth=4),
            "git_diff of revisions": opened.call("repo.git_diff", base="HEAD~1", target="HEAD"),
            "git_log": opened.call("repo.git_log"),
        }
        for name in files:
            (repository / name).write_text("second\n")
        whole["git_diff of the working tree"] = opened.call("repo.git_diff", context=20)
        git(repository, "add", "-Af")
        whole["git_diff of what is staged"] = opened.call("repo.git_diff", staged=True)
    shown.update(
        (tool, result.text[:200]) for tool, result in whole.items() if CANARY in result.text
    )
    assert shown == {}
    assert ".env  20 bytes" in whole["list_dir"].text
    assert "files with credentials left out" in whole["git_diff of revisions"].text
    assert CANARY not in "".join(
        path.read_text("utf-8", "replace") for path in opened.runs.rglob("*") if path.is_file()
    )


def test_examples_public_keys_and_patterns_are_shown(tmp_path: Path, repository: Path) -> None:
    with Opened(tmp_path, repository) as opened:
        for name, text in SHOWN.items():
            assert text in opened.call("repo.read_file", path=name).text
            found = opened.call(
                "repo.ripgrep", pattern=text.splitlines()[0], literal=True, path=name
            )
            assert "1 matching line" in found.text
            diff = opened.call("repo.git_diff", base="HEAD~1", target="HEAD", path=name)
            assert f"+{text.splitlines()[0]}" in diff.text


def test_a_search_never_says_whether_a_file_of_credentials_would_match(
    tmp_path: Path, repository: Path
) -> None:
    with Opened(tmp_path, repository) as opened:
        right = opened.call("repo.ripgrep", pattern=f"STRIPE={CANARY}")
        wrong = opened.call("repo.ripgrep", pattern="STRIPE=something")
    assert right.text == wrong.text


def test_another_name_of_a_file_of_credentials_is_no_way_around(
    tmp_path: Path, repository: Path
) -> None:
    (repository / "link").symlink_to(".env")
    (repository / "hard").hardlink_to(repository / ".env")
    (repository / "src" / "hard").hardlink_to(repository / ".env.production")
    (repository / "deploy" / "hard").hardlink_to(repository / "deploy" / "prod.env")
    (repository / "utf16").write_bytes(KEY.encode("utf-16"))
    (repository / "ours").mkdir()
    for name in ("production.txt", "credentials"):
        (repository / "ours" / name).write_text(f"STRIPE={CANARY}\n")
    (repository / "deep" / ".env").symlink_to("../ours/production.txt")
    (repository / "deep" / ".aws").symlink_to("../ours")
    linked = ("link", "hard", "src/hard", "deploy/hard", "deep/.env")
    names = (*linked, "deep/.aws/credentials", "utf16", "./src/../.env")
    with Opened(tmp_path, repository) as opened:
        codes = {name: opened.call("repo.read_file", path=name).code for name in names}
        printed = {
            name: CANARY in opened.call("workspace.exec", binary="cat", args=[name]).text
            for name in linked
        }
    assert codes == dict.fromkeys(names, "credentials")
    assert printed == dict.fromkeys(linked, False)


TOKENS = {
    "app.py": f'TOKEN = "{TOKEN}"\nprint(1)\n',
    "db.toml": "url = 'postgres://me:Zq7canary9Wx@db/x'\n",
    "ci.yml": f"env:\n  GITHUB_TOKEN: {TOKEN}\n",
}


def test_tokens_elsewhere_are_taken_out_of_what_tools_return_and_the_result_says_so(
    tmp_path: Path,
) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    git(workspace, "init", "-q")
    for name, text in TOKENS.items():
        (workspace / name).write_text(text)
    git(workspace, "add", "-A")
    git(workspace, "commit", "-q", "-m", f"use {TOKEN}")
    with Opened(tmp_path, workspace) as opened:
        results = [opened.call("repo.read_file", path=name) for name in TOKENS]
        results += [
            opened.call("repo.ripgrep", pattern="canary"),
            opened.call("repo.git_log"),
            opened.call("repo.git_diff", base="HEAD", path="app.py"),
            opened.call("workspace.exec", binary="cat", args=["app.py", "db.toml"]),
        ]
        (workspace / "app.py").write_text("print(2)\n")
        results.append(opened.call("repo.git_diff"))
        program = "print(await repo__read_file(path='db.toml'))"
        results.append(opened.call("execute", code=program))
        clean = opened.call("repo.read_file", path="app.py")
    texts = [result.text for result in results]
    assert [text for text in texts if "canary" in text.replace("'canary'", "")] == []
    assert all("[redacted:" in text for text in texts if "none" not in text)
    assert all("Secrets were taken out" in text for text in texts if "none" not in text)
    assert "Secrets were taken out" not in clean.text
    recorded = "".join(
        path.read_text("utf-8", "replace") for path in opened.runs.rglob("*") if path.is_file()
    )
    assert TOKEN not in recorded


def test_long_results_are_kept_as_artifacts_without_their_tokens(tmp_path: Path) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    (workspace / "long.txt").write_text("line of text\n" * 5_000 + f"token = '{TOKEN}'\n")
    with Opened(tmp_path, workspace) as opened:
        result = opened.call("repo.read_file", path="long.txt", start=1, end=6_000)
        uri = next(one.uri for one in result.artifacts)
        found = opened.call("search_artifact", uri=uri, pattern="token")
    assert "[redacted:" in found.text
    assert TOKEN not in found.text


def test_write_file_refuses_a_mark_that_stands_for_a_secret(tmp_path: Path) -> None:
    workspace = tmp_path / "project"
    workspace.mkdir()
    (workspace / "app.py").write_text(TOKENS["app.py"])
    with Opened(tmp_path, workspace) as opened:
        shown = opened.call("repo.read_file", path="app.py").text
        mark = shown[shown.index("[redacted:") :].partition("]")[0] + "]"
        for path in ("app.py", "new.py"):
            refused = opened.call(
                "workspace.write_file", path=path, content=f'TOKEN = "{mark}"\nprint(2)\n'
            )
            assert (refused.ok, refused.code) == (False, "redacted")
        assert (workspace / "app.py").read_text() == TOKENS["app.py"]
        # A file about such marks can be edited, but not given one more.
        (workspace / "about.md").write_text(f"A mark is {mark}.\n")
        edited = opened.call(
            "workspace.write_file", path="about.md", content=f"A mark looks like {mark}.\n"
        )
        assert edited.ok
        more = opened.call("workspace.write_file", path="about.md", content=f"{mark} {mark}\n")
        assert more.code == "redacted"


def test_policy_can_show_both(tmp_path: Path, repository: Path) -> None:
    (repository / "app.py").write_text(TOKENS["app.py"])
    repo = '[repo]\ncredentials = "show"\ntokens = "show"\n'
    with Opened(tmp_path, repository, repo) as opened:
        assert CANARY in opened.call("repo.read_file", path=".env").text
        assert CANARY in opened.call("repo.ripgrep", pattern=CANARY, path="id_rsa").text
        assert TOKEN in opened.call("repo.read_file", path="app.py").text
        assert CANARY in opened.call("workspace.exec", binary="cat", args=[".env"]).text
        diff = opened.call("repo.git_diff", base="HEAD~1", target="HEAD", path=".env")
        assert CANARY in diff.text
        written = opened.call("workspace.write_file", path="a", content="[redacted:github-pat]")
        assert written.ok
