"""Honest text stays as it is, and the same object: redaction that eats a log is switched off by
whoever reads it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.redaction import SecretRedactor

DATA = Path(__file__).parents[2] / "data"
TOOLS: list[dict[str, Any]] = json.loads(
    (DATA / "honest_text/livemcp_tools.json").read_text("utf-8")
)["tools"]
STRINGS: list[str] = json.loads((DATA / "blns/blns.json").read_text("utf-8"))

HONEST = [
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "commit 4b825dc642cb6eb9a060e54bf8d69288fbee4904 by author@example.com",
    "run 123e4567-e89b-12d3-a456-426614174000 of workflow feature, step edit",
    (
        "src/components/navigation/sidebar/index.test.tsx and"
        " router/bundle_router/adapters/redaction/__init__.py"
    ),
    "Authorization: required for all endpoints; a bearer token is needed",
    "Authorization: Bearer ${GITHUB_TOKEN}",
    "Authorization: Bearer <token>",
    "the password: must be longer than eight characters",
    "rotate the API key, then revoke the secret and the access token",
    "ssh://git@github.com/org/repo.git and https://example.com:8443/a@2x.png",
    "rename max_tokens to token_limit in settings.py",
    '{"next_page_token": "CAUQAA", "tokens": 1200, "key": "value"}',
    "curl -sS https://example.com/a?page=2&sort=asc",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "GITHUB_TOKEN=$GITHUB_TOKEN make && echo ${API_KEY}",
    "the default login page asks for a password twice; the machine learning model is sk-learn",
    "docker login --password-stdin < file; redis-cli -h cache -p 6379; sshpass -p $PASSWORD ssh db",
    "mysql -h db -u root -p app && mysqldump --port 3306; curl -b cookies.txt https://example.com",
    "document.cookie is empty; ya29 and 1//0 are prefixes, gsk_ and xai- too; ratio 12345678:AA",
    "re_sendMail_whenSomebodyHasSignedUp names a template",
    (
        "unzip -l a.zip; docker run -it -p 8080:80 web; zip -r a.zip b; az login; echo done |"
        " docker login --help"
    ),
    (
        "<password>your-password</password>, <token>string</token>; the default password is read"
        " from a file"
    ),
    (
        "machine learning password reset; cookies = {'theme': 'dark'}; curl -u user:password"
        " https://example.com"
    ),
    '{"cookies": {"type": "object"}, "sameSite": "Lax", "secure": true, "value": "string"}',
    (
        "a/1/b: ratio 4/0A; cio, pa-, aio_, llx-, secret-live- and m0- are prefixes;"
        " TESTS_PASS=all; COUNT_PASS=$N"
    ),
    "src/main.c:12:5:error:undeclared; the address *:*:*:*:0001",
    "x-api-key: ${API_KEY}; api-key: required; ENV APP_TOKEN $TOKEN",
    '{"dependencies": {"cookie": "^0.7.1", "tough-cookie": "~6.0.1", "token": "1.0.0"}}',
    (
        '{"PWD": "/home/bob/project", "GOOGLE_APPLICATION_CREDENTIALS": "/path/to/keyfile.json",'
        ' "output_token": "Marker"}'
    ),
    (
        "({username: options.username, password: options.password}); passphrase ="
        " settings.tls.passphrase"
    ),
    (
        "export GOOGLE_API_KEY=\"YOUR_GOOGLE_API_KEY\" AUTH_TOKEN='your-auth-token'; tool --api-key"
        " your_api_key"
    ),
    (
        "DB_PASSWORD_FILE=/run/secrets/db; --password /run/secrets/db;"
        " X_CREDENTIALS=/etc/x/credentials.json"
    ),
    "x.py,sha256=qaN-fw_htIgKUVXoAuAEVgKxQu3tZ9qE2eiKkWIS7LA,160\ny.py,sha256=ekMeNtvEkkMd_BSASdm-kRlCb_TEioS2rlTXEqtIcGo,3",
    (
        "password=$DB_PASSWORD_2; mysqldump --password=$DB_PASS1 x; --token $GH_TOKEN_2;"
        " Authorization: Bearer $TOKEN_12"
    ),
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg",
]


@pytest.fixture(scope="module")
def redactor() -> SecretRedactor:
    return SecretRedactor({"VENDOR_KEY": "not-in-any-of-these"})


@pytest.mark.parametrize("text", HONEST)
def test_text_that_only_talks_about_secrets_is_left_alone(
    redactor: SecretRedactor, text: str
) -> None:
    assert redactor.redact(text) is text


@pytest.mark.parametrize(
    "name", ["artifact:sha256:", "sha256:", "sha512:", "a.feature.organisationsettings", "md5:"]
)
def test_names_and_digests_that_records_are_full_of_are_passed_over_at_once(name: str) -> None:
    """A text that is looked at more closely costs its record some twenty passes."""
    assert SecretRedactor({}).are_clean(
        [name + "a588681e2dbb8585013878b900cb9121b1e1e061dbd8e950242049065a7ad2d2"]
    )


@pytest.mark.parametrize(
    "text",
    [
        "curl -sS https://example.com/a | sh",
        "zip -r a.zip b; unzip -l a.zip; mongo shell; ldapsearch help; 7z l a.7z",
        "s.addEventListener(e); !function.prototype.toString.call(x)||o.hasOwnProperty.call(x, y)",
        "globals: dictionary_of_all; AzureBlob = some_content_type",
        "the primary key: 'of_a_row'; the token: optional", "00D.5, JQQJ, AzSe, ACDb and APIM are names",
    ],
)  # fmt: skip
def test_ordinary_code_is_passed_over_at_once(text: str) -> None:
    assert SecretRedactor({}).are_clean([text])


_GROWTH = """
import sysconfig
from pathlib import Path
from bundle_router.adapters.redaction import SecretRedactor, encodings

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) // 1024

encodings.SET_MEMORY = 1 << 30
redactor, read = SecretRedactor(), 0
redactor.are_clean(["x"])
before = resident()
for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
    if read < 6_000_000 and "site-packages" not in path.parts:
        text = path.read_text("utf-8", "replace")
        redactor.are_clean([text[:200_000]])
        read += len(text)
print(read, resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_source_code_makes_few_states_of_the_automata() -> None:
    """Each new state costs time, and beyond the automata's memory all are made anew.

    Six megabytes took 86, now 14.
    """
    done = subprocess.run(
        [sys.executable, "-c", _GROWTH], check=True, capture_output=True, text=True
    )
    read, grown = map(int, done.stdout.split())
    assert read > 6_000_000
    assert grown < 32, "megabytes of states, without a bound"


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: f"{tool['server']}.{tool['tool']}")
def test_definitions_of_real_tools_are_left_alone(
    redactor: SecretRedactor, tool: dict[str, Any]
) -> None:
    text = json.dumps(tool)
    assert redactor.redact(text) is text
    assert redactor.redact_value(tool) is tool


def test_naughty_strings_are_left_alone(redactor: SecretRedactor) -> None:
    assert redactor.redact_many(STRINGS) == STRINGS
    assert redactor.redact_value({"strings": STRINGS}) == {"strings": STRINGS}
