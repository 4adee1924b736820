"""Which credentials reach a model's host: the one that the config names for it, and no other.

Every variable in which client libraries look for a credential is set, and a server on the loopback
records all that it receives.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from bundle_router import Router, Step
from bundle_router.testing.upstream import ReceivedRequest, ScriptedServer, choice, says, status

from tests.command_line import run
from tests.profiles import ALL

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("litellm") is None or importlib.util.find_spec("instructor") is None,
    reason="the extra bundle-router[model] is not installed",
)

KEY: Final = "gateway-key-7Q2m"
STRANGE: Final = "stray"
"""Begins every credential that no config names."""
FOUND_BY_LIBRARIES: Final = (
    *("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ORGANIZATION", "OPENAI_ADMIN_KEY"),
    *("ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY", "CO_API_KEY", "HF_TOKEN", "REPLICATE_API_TOKEN"),
    *("WATSONX_TOKEN", "WATSONX_PROJECT_ID", "GIGACHAT_ACCESS_TOKEN", "PREDIBASE_TENANT_ID"),
    *("DATABRICKS_CLIENT_ID", "DATABRICKS_CLIENT_SECRET", "AZURE_AD_TOKEN", "AWS_SESSION_TOKEN"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "SNOWFLAKE_JWT"),
)
"""Beside PROVIDER_API_KEY."""

# provider: whether it is asked at a base_url at all
PROVIDERS: Final = {
    "openai": True,
    "anthropic": True,
    "azure": True,
    "azure_ai": True,
    "mistral": True,
    "deepseek": True,
    "gemini": True,
    "cohere": True,
    "groq": True,
    "hosted_vllm": True,
    "litellm_proxy": True,
    "ollama": True,
    "openrouter": True,
    "huggingface": True,
    "bytez": False,  # would send the key to its own host
    "databricks": False,  # by a client of its own, with an id and secret that it finds
    "gigachat": False,  # with a token that it finds
    "maritalk": False,  # by a client of its own
    "predibase": False,  # with a tenant that it finds
    "watsonx": False,  # with a token and a project that it finds
}
# what the variable that key_env names holds (None: unset): what is sent
VALUES: Final[dict[str, tuple[str | None, str]]] = {
    "a key": (KEY, "the key"),
    "a newline at its end": (f"{KEY}\n", "the key"),
    "a carriage return, too": (f" {KEY}\r\n", "the key"),
    "unset": (None, "nothing"),
    "empty": ("", "nothing"),
    "blank": (" \n", "nothing"),
    "a newline within": ("gateway\nkey", "nothing"),
    "a byte order mark": (f"\ufeff{KEY}", "nothing"),
    "a control character": ("gateway\x00key"[:7] + "\x1b", "nothing"),
}


EVERY_VALUE: Final = ("openai", "anthropic", "azure", "gemini", "watsonx")


@pytest.fixture
def strays(tmp_path: Path) -> dict[str, str]:
    """The variables in which libraries find a credential, with a value; a login for this machine in
    the netrc file of a home folder; and a proxy that is not there.
    """
    netrc = tmp_path / ".netrc"
    netrc.write_text(f"machine 127.0.0.1 login {STRANGE}-netrc password {STRANGE}-netrc\n")
    netrc.chmod(0o600)
    usual = [f"{name.upper()}_API_KEY" for name in PROVIDERS]
    named = {name: f"{STRANGE}-{name.lower()}" for name in (*FOUND_BY_LIBRARIES, *usual)}
    places = {"HOME": str(tmp_path), "NETRC": str(netrc), "HTTP_PROXY": "http://127.0.0.1:9"}
    return named | places


def seen_in(requests: Sequence[ReceivedRequest]) -> str:
    """Return what credentials requests held: `nothing` for none sent, `no key`, `the key`, or the
    names of those that nobody named for this host.
    """
    if not requests:
        return "nothing"
    text = ""
    for request in requests:
        text += f"{request.path} {dict(request.headers)} {request.body.decode()}\n"
        for value in request.headers.values():
            if value.startswith("Basic "):
                text += base64.b64decode(value[6:]).decode()
    strange = sorted(set(re.findall(rf"{STRANGE}-\w+", text)))
    if strange:
        return f"strange: {', '.join(strange)}"
    if KEY in text:
        return "the key"
    names = {name for request in requests for name in request.headers}
    if names & {"authorization", "api-key", "x-api-key", "x-goog-api-key"}:
        return "a header for a key"
    return "no key"


Replies = list[tuple[str | None, str]]
AskAll = Callable[[Sequence[Mapping[str, Any]], Mapping[str, str]], Replies]


@pytest.fixture(scope="module")
def ask_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AskAll]:
    """Asks each model once, over one client, with these variables; returns its failure and the
    detail of that.

    In a process beside this one, which has no other variables. Loading litellm takes it three
    seconds.
    """
    command = [sys.executable, "-W", "ignore", "-m", "tests.adapters.llm.ask_models"]
    environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    told = tmp_path_factory.mktemp("asked") / "stderr"
    with (
        told.open("wb") as stderr,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environ,
            cwd=Path(__file__).parents[3],
        ) as asking,
    ):
        asked, answers = asking.stdin, asking.stdout
        assert asked is not None
        assert answers is not None

        def ask(models: Sequence[Mapping[str, Any]], variables: Mapping[str, str]) -> Replies:
            request = {"models": models, "variables": dict(variables)}
            asked.write(json.dumps(request).encode() + b"\n")
            asked.flush()
            line = answers.readline()
            assert line, told.read_text(encoding="utf-8")
            return [(failure, detail) for failure, detail in json.loads(line)]

        yield ask


def provider_names() -> list[str]:
    """Return the providers to try: all that litellm knows in the long profile."""
    if not ALL:
        return list(PROVIDERS)
    from litellm.types.utils import LlmProviders

    return [str(one.value) for one in LlmProviders]


def labels_for(provider: str, labels: list[str]) -> list[str]:
    """Return the rows of a provider. What a variable holds is read before a provider is looked at:
    each kind of value is tried with those whose keys travel in different ways.
    """
    if provider in EVERY_VALUE:
        return labels
    if provider in PROVIDERS:
        return ["a key", "unset", "no key_env"]
    return ["a key", "no key_env"]


def variable_of(label: str) -> str:
    """Return the name of the variable that holds a row's value."""
    return f"GATEWAY_KEY_{label.upper().replace(' ', '_').replace(',', '')}"


def test_a_host_gets_the_named_key_or_none_whatever_else_the_environment_holds(
    strays: dict[str, str], ask_all: AskAll
) -> None:
    values = {variable_of(label): value for label, (value, _) in VALUES.items() if value}
    expected = {label: sent for label, (_, sent) in VALUES.items()} | {"no key_env": "no key"}
    rows = [
        (provider, label)
        for provider in provider_names()
        for label in labels_for(provider, list(expected))
    ]
    wrong = {}
    with ScriptedServer([status(404)]) as server:
        models = [
            {
                "name": f"{provider}/x",
                "base_url": f"{server.base_url}/row{number}",
                "key_env": None if label == "no key_env" else variable_of(label),
            }
            for number, (provider, label) in enumerate(rows)
        ]
        replies = ask_all(models, strays | values)
        for number, (provider, label) in enumerate(rows):
            seen = seen_in([r for r in server.requests if f"/row{number}/" in f"{r.path}/"])
            right = {expected[label]} if PROVIDERS.get(provider, True) else {"nothing"}
            if provider not in PROVIDERS:  # others may be refused
                right.add("nothing")
            failure, detail = replies[number]
            if seen not in right or (expected[label] == "nothing") != (failure == "no_key"):
                wrong[provider, label] = (seen, failure, detail)
    assert wrong == {}


# where the provider's own host is meant (here named by its usual variable): what that gets
OWN_HOST: Final[dict[str, tuple[dict[str, str], str | None, str]]] = {
    "the named key": ({"MINE": KEY}, "MINE", "the key"),
    "a named key that is unset": ({"OPENAI_API_KEY": "stray-usual"}, "MINE", "nothing"),
    "a named key that is blank": (
        {"OPENAI_API_KEY": "stray-usual", "MINE": " "},
        "MINE",
        "nothing",
    ),
    "the usual one": ({"OPENAI_API_KEY": KEY}, None, "the key"),
    "the usual one with a newline": ({"OPENAI_API_KEY": f"{KEY}\n"}, None, "the key"),
    "the usual one with a newline within": ({"OPENAI_API_KEY": "gate\nway"}, None, "nothing"),
}


def test_the_providers_own_host_gets_the_named_key_or_else_the_usual_one(ask_all: AskAll) -> None:
    wrong = {}
    with ScriptedServer([status(404)]) as server:
        models = [
            {
                "name": "openai/x",
                "base_url": None,
                "key_env": key_env,
                "variables": variables | {"OPENAI_BASE_URL": f"{server.base_url}/row{number}"},
            }
            for number, (variables, key_env, _) in enumerate(OWN_HOST.values())
        ]
        replies = ask_all(models, {})
        requests = list(server.requests)
    for number, (label, (_, key_env, expected)) in enumerate(OWN_HOST.items()):
        seen = seen_in([request for request in requests if f"/row{number}/" in request.path])
        failure, detail = replies[number]
        is_named = failure != "no_key" or (key_env or "OPENAI_API_KEY") in detail
        if seen != expected or (expected == "nothing") != (failure == "no_key") or not is_named:
            wrong[label] = (seen, failure, detail)
    assert wrong == {}


def test_azure_is_not_asked_where_its_library_would_send_a_directory_token_instead(
    ask_all: AskAll,
) -> None:
    with ScriptedServer([status(404)]) as server:
        model = {"name": "azure/x", "base_url": server.base_url, "key_env": "MINE"}
        variables = {"MINE": KEY, "AZURE_OPENAI_AD_TOKEN": "stray-token"}
        ((failure, _),) = ask_all([model], variables)
        assert (failure, server.requests) == ("not_sent", [])


def test_a_model_elsewhere_is_asked_through_the_proxy_of_the_environment_without_a_login(
    strays: dict[str, str], ask_all: AskAll
) -> None:
    with ScriptedServer([status(404)]) as server:
        model = {"name": "openai/x", "base_url": "http://models.example/v1", "key_env": None}
        place = {"HTTP_PROXY": server.base_url.removesuffix("/v1")}
        ask_all([model], strays | place)
        (request,) = server.requests
    assert request.path == "http://models.example/v1/chat/completions"
    assert seen_in([request]) == "no key"
    assert not [name for name in request.headers if "authorization" in name]


# provider: what an embedding model of it gets at a base_url, with a key_env and without
EMBEDDERS: Final = {
    "openai": ("the key", "no key"),
    "azure": ("the key", "no key"),
    "mistral": ("the key", "no key"),
    "cohere": ("the key", "no key"),
    "voyage": ("the key", "no key"),
    "ollama": ("no key", "no key"),
    "gemini": ("nothing", "nothing"),
    "watsonx": ("nothing", "nothing"),
    "databricks": ("nothing", "nothing"),
}


def test_an_embedding_models_host_gets_the_named_key_or_none(
    strays: dict[str, str], ask_all: AskAll
) -> None:
    del strays["HTTP_PROXY"]  # litellm's own client for ollama would use it
    labels = {"a key": 0, "a newline at its end": 0, "no key_env": 1, "unset": 2, "blank": 2}
    values = {variable_of(label): value for label, (value, _) in VALUES.items() if value}
    rows = [(provider, label) for provider in EMBEDDERS for label in labels]
    wrong = {}
    with ScriptedServer([status(404)]) as server:
        models = [
            {
                "embeds": True,
                "name": f"{provider}/x",
                "base_url": f"{server.base_url}/row{number}",
                "key_env": None if label == "no key_env" else variable_of(label),
            }
            for number, (provider, label) in enumerate(rows)
        ]
        replies = ask_all(models, strays | values)
        for number, (provider, label) in enumerate(rows):
            seen = seen_in([r for r in server.requests if f"/row{number}/" in f"{r.path}/"])
            expected = (*EMBEDDERS[provider], "nothing")[labels[label]]
            if seen != expected or (label in ("unset", "blank")) != (
                replies[number][0] == "no_key"
            ):
                wrong[provider, label] = (seen, *replies[number])
    assert wrong == {}


CONFIG: Final = {
    "routes.toml": "routes = []\n",
    "policy.toml": '[[policies]]\nname = "all"\nallow = ["files.find", "pages.read"]\n',
    "bundles.toml": """
[bundles."files.find"]
description = "Find files"
tools = ["repo.ripgrep"]
effects = ["read"]
[bundles."pages.read"]
description = "Look up"
tools = ["docs.fetch"]
effects = ["read", "network"]
""",
}


def test_a_missing_key_is_recorded_named_in_the_log_and_costs_no_other_model_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GATEWAY_KEY", raising=False)
    monkeypatch.setenv("SECOND_KEY", KEY)
    config = tmp_path / "config"
    config.mkdir()
    for name, text in CONFIG.items():
        (config / name).write_text(text)
    with ScriptedServer([says(choice("files.find"))]) as server:
        models = (
            f'names = ["openai/first", "openai/second"]\nbase_url = "{server.base_url}"\n'
            'key_env = "GATEWAY_KEY"\ndeadline_s = 60\n'
        )
        start = '[fallback]\norder = ["model", "default"]\n[model]\n'
        second = '[model.options."openai/second"]\nkey_env = "SECOND_KEY"\n'
        words = {"workflow": "w", "role": "x", "step": "y"}
        (config / "router.toml").write_text(start + models)
        with Router.open(config, runs=tmp_path / "runs", workspace=tmp_path) as router:
            router.warm_up_sync()
            alone = router.route_sync(Step(run_id="r1", goal="find it", **words))
        assert alone.model is not None
        assert (alone.model.failure, alone.model.attempts) == ("no_key", 0)
        assert server.requests == []
        assert "GATEWAY_KEY is not set" in capsys.readouterr().err

        (config / "router.toml").write_text(start + models + second)
        with Router.open(config, runs=tmp_path / "runs", workspace=tmp_path) as router:
            router.warm_up_sync()
            sources = [
                router.route_sync(Step(run_id=f"r-{n}", goal=f"find {n}", **words)).source
                for n in range(30)
            ]
        assert sources == ["model"] * 30
        assert {r.headers["authorization"] for r in server.requests} == {f"Bearer {KEY}"}


@pytest.mark.parametrize(
    ("settings", "value", "expected"),
    [
        ('base_url = "http://127.0.0.1:9/v1"\nkey_env = "GATEWAY_KEY"', None, "is not set"),
        ('base_url = "http://127.0.0.1:9/v1"\nkey_env = "GATEWAY_KEY"', " \n", "is not set"),
        ('key_env = "GATEWAY_KEY"', None, "is not set"),
        ('key_env = "GATEWAY_KEY"', "a\nb", "has characters that a header can't carry"),
        ('key_env = "GATEWAY_KEY"', f"{KEY}\n", ""),
        ('base_url = "http://127.0.0.1:9/v1"', KEY, "no key is sent to http://127.0.0.1:9/v1"),
    ],
)
@pytest.mark.parametrize("table", ["model", "search.embeddings"])
def test_check_says_which_variable_holds_no_key_and_where_none_is_sent(
    table: str,
    settings: str,
    value: str | None,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GATEWAY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("GATEWAY_KEY", value)
    for name, text in CONFIG.items():
        (tmp_path / name).write_text(text)
    named = 'names = ["openai/x"]' if table == "model" else 'model = "openai/x"'
    (tmp_path / "router.toml").write_text(f"[{table}]\n{named}\n{settings}\n")
    is_problem = "GATEWAY_KEY" in settings and expected != ""
    done = run(tmp_path, "check", "--config", tmp_path, "--strict", code=int(is_problem))
    printed = done.stdout
    if is_problem:
        assert f"warning: router.toml: {table}: 'openai/x' is not asked: " in printed
        assert f"GATEWAY_KEY {expected}" in printed
    elif expected:
        assert expected in printed
    else:
        assert "key" not in printed
