"""S-17: a secret of every kind, in every place a record may carry it, leaves no trace."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from bundle_router.adapters import redaction
from bundle_router.adapters.redaction import SecretRedactor, detection
from bundle_router.adapters.redaction.shapes import TOKEN_SHAPES

ENV = {"VENDOR_KEY": "correct horse/battery+staple", "QUOTED": 'q"uo\\te\nd-välue', "SHORT": "8080"}

KINDS: dict[str, tuple[str, str]] = {
    # kind: (the secret, the text it stands in)
    "github token": ("ghp_" + "aB3dE5gH7" * 4, "{}"),
    "gitlab token": ("glpat-" + "x7Kp2Qm9Vn4Lr8Ts1Zw6", "{}"),
    "aws access key": ("AKIA" + "Z7QW3ER5TY2UIOPK", "{}"),
    "anthropic key": ("sk-ant-api03-" + "aZ9_" * 23 + "bAA", "{}"),
    "stripe key": ("sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc", "{}"),
    "slack token": ("xoxb-" + "123456789012-1234567890123-AbCdEfGhIjKl", "{}"),
    "json web token": (
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
        "{}",
    ),
    "bearer header": ("mF_9.B5f-4.1JqM", "Authorization: Bearer {}"),
    "basic header": (base64.b64encode(b"aladdin:opensesame").decode(), "Authorization: Basic {}"),
    "token header": ("9944b09199c62bcf9418ad846dd0e4bb", "authorization: token {}"),
    "proxy header": ("cHJveHk6c2VjcmV0MTIz", "Proxy-Authorization: Basic {}"),
    "schemeless header": ("k2j4h5k2j3h4k5j2", "Authorization: {}"),
    "digest header": (
        "6629fae49393a05397450978507c4ef1",
        'Authorization: Digest username="m", response="{}"',
    ),
    "curl header": (
        "mF_9.B5f-4.1JqM",
        "curl -sS -H 'Authorization: Bearer {}' https://api.example.com/v1",
    ),
    "curl user": ("s3cr3tpa55", 'curl -u "admin:{}" https://api.example.com'),
    "header as a dict": ("mF_9.B5f-4.1JqM", "{{'Authorization': 'Bearer {}'}}"),
    "bearer alone": ("2YotnFZFEjr1zCsicMWpAA", "sent Bearer {} twice"),
    "cookie": ("d41d8cd98f00b204", "Cookie: theme=dark1; sid={}; lang=en"),
    "set-cookie": ("d41d8cd98f00b204", "Set-Cookie: sid={}; Path=/; HttpOnly"),
    "url user info": ("hunter2", "https://bob:{}@example.com/path"),
    "url token": ("x1y2z3x1y2z3x1y2z3", "https://{}@git.example.com/a.git"),
    "dsn": ("p4ss", "postgresql://u:{}@db.internal:5432/app"),
    "dsn with a raw at sign": ("p@ss:w0rd", "mysql://u:{}@db/app"),
    "go dsn": ("hunter2", "root:{}@tcp(127.0.0.1:3306)/app"),
    "query parameter": ("abc123", "https://example.com/cb?state=7&access_token={}&x=1"),
    "signed url": ("Zm9vYmFyYmF6cXV4MTIzNA", "https://blob.example.com/f?sv=2024&sig={}"),
    "private key": (
        "MIIEpAIBAAKCAQEA1c7Pq9kVf3\nXo2v5u8x/A?D(G+KbPeShVm".replace("?D(", "ab"),
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n",
    ),
    "cut private key": ("MIIEpAIBAAKCAQEA1c7Pq9kVf3", "-----BEGIN PRIVATE KEY-----\n{}"),
    "password in json": ("hunter2", '{{"user": "bob", "password": "{}"}}'),
    "password in yaml": ("hunter2!x", "user: bob\npassword: {}\n"),
    "environment assignment": ("abcd1234", "export DB_PASSWORD={} && make"),
    "command line": ("hunter2x", "tool --verbose --api-key {} run"),
    "generic key": ("q7T9xV2mK4pL8nR3wZ6s", "service_api_key = '{}'"),
    "google access token": ("ya29." + "a0AfH6SMBx-9vLk2Qw_7Tz", "{}"),
    "google refresh token": ("1//0" + "gLk2Qw_7TzCgYIARAAGBASNwF", "{}"),
    "google client secret": ("GOCSPX-" + "4nT9xV2mK4pL8nR3wZ6sQ7", "{}"),
    "telegram token": ("123456789:AA" + "HdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1", "{}"),
    "telegram token in a url": (
        "123456789:AA" + "HdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1",
        "https://api.telegram.org/bot{}/getMe",
    ),
    "discord token": (
        "MTE4NjQ1Nzg5MDEyMzQ1Njc4OQ" + ".GkL2Qw." + "7TzCgYIARAAGBASNwF4nT9xV2mK4pL8",
        "{}",
    ),
    "discord webhook": (
        "kV3" + "dE5gH7aB" * 8,
        "https://discord.com/api/webhooks/123456789012345678/{}",
    ),
    "openrouter key": ("sk-or-v1-" + "0f9e8d7c6b5a4938" * 4, "{}"),
    "groq key": ("gsk_" + "4nT9xV2mK4pL8nR3" * 3, "{}"),
    "xai key": ("xai-" + "4nT9xV2mK4pL8nR3" * 5, "{}"),
    "replicate token": ("r8_" + "4nT9xV2mK4pL8nR3wZ6s4nT9xV2mK4pL8nR3w", "{}"),
    "cerebras key": ("csk-" + "4nt9xv2mk4pl8nr3" * 3, "{}"),
    "tavily key": ("tvly-" + "dev-4nT9xV2mK4pL8nR3wZ6sQ7", "{}"),
    "firecrawl key": ("fc-" + "0f9e8d7c6b5a4938" * 2, "{}"),
    "supabase token": ("sbp_" + "0f9e8d7c6b" * 4, "{}"),
    "key of a model's provider": ("sk-" + "0f9e8d7c6b5a4938" * 2, "{}"),
    "tailscale key": ("tskey-auth-" + "k4nT9xV2CNTRL-mK4pL8nR3wZ6s4nT9xV2mK4pL8", "{}"),
    "short project key": ("sk-proj-" + "4nT9xV2mK4pL8nR3", "{}"),
    "mysql password": ("hunter2x", "mysql -h db.internal -u root -p{} app < dump.sql"),
    "sshpass": ("hunter2x", "sshpass -p {} ssh db.internal"),
    "redis password": ("hunter2x", "redis-cli -h cache.internal -a {} ping"),
    "registry password": ("hunter2x", "docker login -u bob -p '{}' registry.example.com"),
    "netrc": ("hunter2x", "machine api.example.com login bob password {}"),
    "cookie file": ("d41d8cd98f00b204", ".example.com\tTRUE\t/\tTRUE\t0\tsid\t{}"),
    "curl cookie": ("d41d8cd98f00b204", "curl -s -b 'sid={}' https://example.com"),
    "cookie of a page": ("d41d8cd98f00b204", 'document.cookie = "sid={}; path=/"'),
    "environment value": (ENV["VENDOR_KEY"], "the value {} of a variable"),
    "environment value with escapes": (ENV["QUOTED"], "the value {} of a variable"),
}


HEX = "0f9e8d7c6b5a4938"
WORD = "4nT9xV2mK4pL8nR3"
UUID = "0f9e8d7c-6b5a-4938-8d7c-6b5a49380f9e"
TOKENS: dict[str, str] = {
    # the rule's label: a token of a provider, known by its shape alone
    "anthropic-token": "sk-ant-oat01-" + WORD * 4 + "_AA", "huggingface-token": "hf_" + WORD * 2 + "kL",
    "nvidia-key": "nvapi-" + WORD * 4, "together-key": "tgp_v1_" + WORD + "-" + WORD, "fireworks-key": "fw_" + WORD * 2,
    "pinecone-key": "pcsk_4nT9xV_" + WORD * 4, "langsmith-key": f"lsv2_pt_{HEX}{HEX}_0f9e8d7c6b",
    "langfuse-key": "sk-lf-" + UUID, "wandb-key": f"wandb_v1_{WORD}{WORD}_{WORD}", "runpod-key": "rpa_" + WORD * 3,
    "elevenlabs-key": "sk_" + HEX * 3, "jina-key": "jina_" + WORD * 4, "e2b-key": "e2b_" + HEX * 2 + "0f9e8d7c",
    "brave-search-key": "BSA" + WORD + "_4nT9xV2mK4p", "context7-key": "ctx7sk-" + UUID,
    "apify-token": "apify_api_" + WORD * 2 + "abcd", "google-express-key": "AQ.Ab8" + WORD * 3,
    "figma-token": "figd_" + WORD * 2 + "-_4nT9xV", "docker-token": "dckr_pat_" + WORD + "-4nT9xV2mK4",
    "github-installation-token": f"ghs_{WORD}_{WORD}.{WORD}-{WORD}", "gitlab-token": f"glwt-{WORD}{WORD}.01.0f9e8d7c6",
    "gitea-token": "gta_" + HEX * 2 + "0f9e8d7c", "bitbucket-token": f"ATCTT3xFfGN0{WORD * 8}=0F9E8D7C",
    "circleci-token": f"CCIPAT_{WORD}4nT9xV_{HEX * 2}0f9e8d7c", "buildkite-token": "bkua_" + HEX * 2 + "0f9e8d7c",
    "snyk-token": f"snyk_uat.0f9e8d7c.eyJ{WORD}.{WORD}", "sentry-token": f"sntrys_eyJpYXQiO{WORD}=_{WORD * 2}",
    "neon-key": "napi_" + WORD * 4, "supabase-key": f"sb_secret_{WORD}4nT9xV_4nT9xV2m",
    "vercel-token": "vcp_" + WORD * 3,
    "netlify-token": "nfp_" + WORD * 2 + "abcd", "render-key": "rnd_" + WORD * 2,
    "cloudflare-token": "cfut_" + WORD * 3,
    "posthog-key": "phx_" + WORD * 2 + "4nT9xV2mK4p", "resend-key": f"re_4nT9xV2m_{WORD}4nT9xV2m",
    "webhook-secret": "whsec_" + WORD * 2, "notion-token": "secret_" + WORD * 2 + "4nT9xV2mK4p",
    "clickup-token": "pk_92772440_" + "4NT9XV2MK4PL8NR3" * 2,
    "asana-token": f"2/1200000000000/1200000000001:{HEX}{HEX}",
    "airtable-token": f"pat4nT9xV2mK4pL8n.{HEX * 4}", "hubspot-token": "pat-na1-" + UUID,
    "newrelic-key": "NRAK-" + "4NT9XV2MK4PL8NR3" + "4NT9XV2MK4P", "mailgun-key": "key-" + HEX * 2,
    "dropbox-token": "sl.u." + WORD * 8, "paseto": "v4.local." + WORD * 4,
    "aws-session-token": "IQoJb3JpZ2luX2Vj" + WORD * 8 + "==", "model-provider-key": "sk-" + WORD + "_-4nT9",
    "discord-user-token": "mfa." + WORD * 5 + "4nT9", "helicone-key": "sk-helicone-4nt9xv2-mk4pl8n-r3wz6s4-nt9xv2m",
    "openai-session-key": "sess-" + WORD * 2 + "4nT9xV2m", "cursor-key": "key_" + HEX * 4,
    "modal-token": "as-" + WORD + "4nT9xV", "slack-token": "xoxe.xoxp-1-" + WORD * 10,
    "google-authorization-code": "4/0A" + WORD * 4, "fly-token": "fm2_lJPE" + WORD * 4 + "==",
    "crates-token": "cio" + WORD * 2, "bedrock-key": "bedrock-api-key-" + "4nT9/V2mK4pL+nR3" * 3,
    "voyage-key": "pa-" + WORD * 2 + "-_4nT9xV2mK", "mapbox-token": f"sk.eyJ{WORD * 2}.{WORD}4nT9",
    "facebook-token": "EAAB" + WORD * 5, "adafruit-key": "aio_" + WORD + "4nT9xV2mK4pL",
    "typeform-token": "tfp_" + WORD * 3, "mailchimp-key": HEX * 2 + "-us21",
    "yandex-token": f"t1.{WORD * 2}.{WORD * 5}", "contentful-token": "CFPAT-" + WORD * 2 + "4nT9xV2mK4p",
    "mem0-key": "m0-" + WORD * 2 + "4nT9xV2m", "zep-key": "z_1dWlkIjoi" + WORD * 2,
    "llamacloud-key": "llx-" + WORD * 3, "cartesia-key": "sk_car_" + WORD * 2,
    "anyscale-key": "esecret_" + "4nt9xv2mk4pl8nr3" * 2, "browserbase-key": "bb_live_" + WORD * 2,
    "stytch-secret": f"secret-live-{WORD}{WORD}4n-T9", "inngest-key": "signkey-prod-" + HEX * 4,
    "trigger-key": "tr_prod_" + WORD * 2, "liveblocks-key": "sk_prod_" + WORD + "-" + WORD * 2,
    "launchdarkly-key": "sdk-" + UUID, "statsig-key": "secret-" + WORD * 3,
    "sonar-token": "squ_" + HEX * 2 + "0f9e8d7c", "chromatic-token": "chpt_0f9e8d7c6b5a",
    "deno-token": "ddp_" + WORD * 2 + "4nT9", "valtown-token": "vtwn_" + WORD * 2, "xata-key": "xau_" + WORD * 2,
}  # fmt: skip
TOKENS |= {
    "azure-key": WORD * 3 + "4nT9JQQJ99BFACYeBjF" + WORD[:3] + "w3AAAALACOGz5j",
    "azure-signed-key": WORD * 2 + "4nT9xV2mK4AzSeCd5j0K",
    "linear-token": "lin_oauth_" + HEX * 4, "doppler-token": "dp.st.prd." + WORD * 2 + "4nT9xV2mK4p",
    "polar-token": "polar_oat_" + WORD * 3, "paddle-key": f"pdl_live_apikey_01{HEX}0f9e8d7c_{WORD}4nT9xV_4nT",
    "daytona-key": "dtn_" + HEX * 4, "sourcegraph-token": "sgd_" + HEX * 4, "segment-token": "sgp_" + WORD * 4,
    "prefect-bot-key": "pnb_" + WORD * 2 + "4nT9", "dbt-token": "dbtc_" + WORD * 2 + "-_4nT9",
    "appwrite-key": "standard_" + HEX * 6, "nostr-key": "nsec1" + "q9w7e4r2" * 7 + "u4",
    "cal-key": "cal_live_" + HEX * 2, "vercel-blob-token": f"vercel_blob_rw_{WORD}_{WORD}{WORD}",
    "heroku-token": "HRKU-" + UUID, "nuget-key": "oy2" + "4nt9xv2mk4pl8nr3" * 2 + "4nt9xv2mk4p",
    "socket-token": f"sktsec_{WORD}-{WORD}_api", "datadog-token": f"ddpat_{WORD}4nT9xV_{WORD}{WORD}",
    "honeycomb-key": "hcaik_01" + "4nt9xv2mk4pl8nr3" * 3, "axiom-token": "xaat-" + UUID,
    "logfire-token": "pylf_v1_us_" + WORD * 2 + "4nT9", "plaid-token": "access-production-" + UUID,
    "mailgun-new-key": HEX * 2 + "-0f9e8d7c-6b5a4938", "realtime-secret": "ek_" + HEX * 2,
    "huggingface-session": f"hf_oauth_eyJ{WORD}.{WORD}", "mongodb-secret": "mdb_sa_sk_" + WORD * 2 + "_4nT9xV2",
    "cockroach-key": f"CCDB1_{WORD}4nT9xV_{WORD}{WORD}4nT9xV2m", "elastic-key": "essu_" + WORD * 4,
    "bitwarden-token": f"0.{UUID}.{WORD}{WORD[:14]}:{WORD}4nT9xV==", "netbird-token": "nbp_" + WORD * 2 + "4nT9",
    "jetbrains-token": f"perm:4nT9xV2m.4nT9xV2m.{WORD}{WORD}", "friendli-token": "flp_" + WORD * 3,
    "siliconflow-key": "sk-" + "qwertzuiopasdfgh" * 3, "hex-sk-key": "sk_" + HEX * 2, "runway-key": "key_" + HEX * 8,
    "meshy-key": "msy_" + WORD * 2, "tripo-key": "tsk_" + WORD * 3, "luma-key": f"luma-{UUID}-{UUID}",
    "entra-refresh-token": f"1.AX{WORD * 3}.Ag{WORD * 8}", "microsoft-refresh-token": f"M.C512_BAY.0.U.-{WORD * 4}",
    "firebase-key": f"AAAA4nT9xV2:APA91b{WORD * 8}", "flutterwave-key": f"FLWSECK-{HEX * 2}-X",
    "braintree-token": f"access_token$sandbox$4nt9xv2mk4pl8nr3${HEX * 2}", "klaviyo-key": f"pk_{HEX * 2}0f",
    "brevo-smtp-key": f"xsmtpsib-{HEX * 4}-{WORD}", "mailersend-token": "mlsn." + HEX * 4,
    "onesignal-key": "os_v2_app_" + "4nt7xv2mk4pl6nr3" * 5, "pubnub-secret": "sec-c-" + WORD * 3,
    "ably-key": f"4nT9xV.2mK4pL:{WORD}{WORD}4nT9xV2mK4p", "telnyx-key": f"KEY{HEX.upper() * 2}_{WORD}4nT9xV",
    "live-key": "live_" + WORD + "4nT9xV2mK4pL8n", "salesforce-token": f"00D4nT9xV2mK4pL!{WORD * 6}",
    "x-bearer-token": f"{'A' * 21}{WORD}%3D{WORD * 3}",
    "instagram-token": "IGQV" + WORD * 7, "vk-token": "vk1.a." + WORD * 5, "yandex-oauth-token": "y0_" + WORD * 4,
    "yandex-key": "AQVN" + WORD * 2 + "4nT9", "matrix-token": "syt_Ym9i_qwertzuiopQWERTZUIOP_4nT9xV",
    "wallet-key": "xprv" + "4nT9xV2mK4pL8nR3" * 6 + "4nT9xV2mK4p", "gitpod-token": "gitpod_pat_" + WORD * 3,
    "turnstile-secret": "0x4AAAAAAA" + WORD * 2, "deepl-key": UUID + ":fx", "fal-key": f"{UUID}:{HEX * 2}",
    "dotted-model-key": f"{HEX * 2}.{WORD}",
}  # fmt: skip
KINDS |= {label: (token, "{}") for label, token in TOKENS.items()}
KINDS["notion token since 2024"] = ("ntn_" + WORD * 3, "{}")
FORMS: dict[str, tuple[str, str]] = {
    # a further form of a token: the rule's label, the token
    "key of azure devops": ("azure-key", f"{WORD * 3}4nT9JQQJ99BFAC{'A' * 14}ASAZDO4nT9"),
    "key of a hub of things": ("azure-signed-key", WORD * 2 + "4AIoTD4nT9x="),
    "key of a registry": ("azure-signed-key", WORD * 2 + "4nT9xV2mK4+ACRB4nT9x"),
    "key of a function": ("azure-signed-key", WORD * 2 + "4nT9_-2mK4pLAzFu4nT9xw=="),
    "key of a batch": ("azure-signed-key", WORD * 4 + "4nT9xV2mK4pL+ABa4nT9xw=="),
    "polar's token of a client": ("polar-token", "polar_at_" + WORD + "4nT9"),
    "sourcegraph subscription": ("sourcegraph-token", "sgs_" + HEX * 4),
    "notion refresh token": ("notion-token", "nrt_" + WORD * 3), "cal.com key": ("cal-key", "cal_live_" + WORD * 2),
    "vercel blob, to read": ("vercel-blob-token", f"vercel_blob_r_{WORD}_{WORD}{WORD}"),
    "long heroku token": ("heroku-token", f"HRKU-BB{WORD * 3}_____wgAf6"),
    "honeycomb key of any case": ("honeycomb-key", f"hcxik_{WORD * 3}4nT9xV2mK4"),
    "long sk_ key": ("hex-sk-key", "sk_" + HEX * 4), "meshy key with a dash": ("meshy-key", f"msy_{WORD}-{WORD}"),
    "token of a device": ("firebase-key", f"{WORD}4nT9xV:APA91b{WORD * 8}"),
    "klaviyo key of letters": ("klaviyo-key", "pk_" + "4nt9xv2mk4pl8nr3" * 2 + "4n"),
    "mailersend token of letters": ("mailersend-token", "mlsn." + WORD * 2 + "4nT9"),
    "yookassa key": ("live-key", f"live_{WORD}{WORD}_4nT9xV2mK4"),
    "yookassa key to test": ("live-key", f"test_{WORD}{WORD}4nT9xV2mK4p"),
    "salesforce session with a dash": ("salesforce-token", f"00D4nT9xV2mK4pL!{WORD}-{WORD}"),
    "short instagram token": ("instagram-token", "IGQVJ" + WORD * 4),
    "ona token": ("gitpod-token", "ona_pat_" + WORD * 2),
    "matrix refresh token": ("matrix-token", "syr_Ym9i_qwertzuiopQWERTZUIOP_4nT9xV"),
    "turnstile secret of other bytes": ("turnstile-secret", "0x4AAAAABdE4nT9xV2mK4pL8nR3_4nT9xV2"),
    "ollama key with an underscore": ("dotted-model-key", f"{HEX * 2}.{WORD}_4nT9xV2"),
}  # fmt: skip
ISSUERS: dict[str, tuple[str, ...]] = {
    # the label of a rule for one form of many issuers: a token of each
    "prefixed-uuid-key": tuple(prefix + UUID for prefix in (
        "isat_", "ms-", "ap2_", "ovsxat_", "ovsxp_", "xx", "waka_", "RGAPI-", "sk_", "sk_sbox_",
    )),
    "prefixed-hex-key": (
        *(prefix + HEX * 2 for prefix in ("bpk-", "dose", "doau", "ES_", "FPSX", "packagist_ack_", "live_auth_")),
        *(prefix + HEX * 4 for prefix in ("rootly_", "ws-", "zh_", "packagist_acs_")),
        "atsk_" + HEX * 4 + "0f9e8d7c", f"cr-{HEX * 3}0f9e8d7c6b", "key_" + HEX + "0f9e8d7c6b5a", "PT" + HEX * 3,
        "packagist_ort_" + HEX * 4 + "0f9e", "cs_" + HEX * 2 + "0f9e8d7c", "ck_" + HEX * 2 + "0f9e8d7c",
        "live_" + HEX * 2, f"BBFF-{HEX * 2}0f9", f"u1234567-{HEX}0f9e8d7c", f"csa_{HEX}0f9e8d7c6b5a494nT9xV",
    ),
    "prefixed-key": (
        *(prefix + WORD + "4nT9xV2mK4pL8n" for prefix in ("alcht_", "cxup_", "cxtp_", "samsara_api_")),
        *(prefix + WORD * 2 for prefix in ("odt_", "paig_", "prf_cli_", "tss_", "uk_", "unkey_", "dvc_server_",
            "lip_", "flb_live_")),
        "api_live_us." + WORD + "_4nT9", "dub_" + WORD + "4nT9xV2m", f"hop_pat_{WORD}_{WORD}", "nyk_v0_" + WORD * 4,
        f"pina_{WORD}.{WORD}", "ucat_01J9K4BNZM3RGXW7VDQFTHY5PC", f"sgamp_user_{WORD.upper()}4NT9XV2MK4_{HEX * 4}",
        f"tkn.v1_{WORD * 4}=", f"wrkaus-eyJ{WORD}.{WORD}.{WORD * 3}", f"p.eyJ1I{WORD * 6}.{WORD * 2}",
    ),
    "long-prefixed-key": (
        f"AIK_SECRET_{WORD * 4}", "AIK_CI_" + WORD * 2, f"apify_proxy_{WORD}-{WORD}4nT", f"cfxk_{WORD}_{WORD}",
        f"cnvca{WORD * 3}_-4", f"geti_pat_{WORD * 2}4nT9xV2mK4p_4nT9xV", "ion_" + WORD * 2 + "4nT9xV2mK4",
        f"mergify_application_key_{WORD * 2}_-{WORD}", f"mercury_production_wma_{WORD * 2}4nT9xV2m_yrucrem",
        f"permit_key_{WORD * 5}4nT9x", "persona_sandbox_" + WORD.lower() * 2, "ramp_sec_" + WORD * 3,
        f"salad_cloud_user_{WORD * 3}4", "tgpat_" + WORD.lower() * 3, "tgpak_" + WORD.lower() * 3,
        f"tsec_{WORD * 4}+_4nT9", f"zpka_{HEX * 2}_0f9e8d7c", "xnd_production_" + WORD * 4,
        f"gcntfy-my_key-{UUID}-{UUID}",
    ),
}  # fmt: skip
FORMS |= {
    f"{label}, {token[:14]}": (label, token) for label, tokens in ISSUERS.items() for token in tokens
}  # fmt: skip
FORMS |= {
    "recovery key": ("1password-recovery-key", "1PRK" + "-4NT9" * 13),
    "age, hybrid": ("age-hybrid-key", "AGE-SECRET-KEY-PQ-1" + "4NT9XV2MK4PL8NR3" * 3 + "4NT9XV2MK4"),
    "airtable by oauth": ("airtable-oauth-token", f"{WORD}4.v3.eyJ_4nT9xV2m.{HEX * 4}"),
    "alibaba session": ("alibaba-session-key", "STS." + WORD * 2), "alibaba key": ("alibaba-key", "LTAI" + WORD + "4"),
    "artifactory": ("artifactory-key", "AKCp" + WORD * 4 + "4nT9"),
    "bitbucket password": ("bitbucket-password", f"ATBB{WORD}4nT9xV2m0F9E8D7C"),
    "bitbucket server": ("bitbucket-server-token", "BBDC-" + WORD * 2 + "4nT9xV2mK4pL"),
    "buildkite agent": ("buildkite-agent-token", f"bkar_4nT9xV2m.{WORD * 4}4nT9xV2m"),
    "confluent": ("confluent-secret", f"cflt{WORD * 3}+/4nT9xV2mK4"),
    "configcat": ("configcat-key", f"configcat-sdk-1/{WORD}4nT9_V/{WORD}4nT9-V"),
    "coze token": ("coze-token", "pat_" + WORD * 4), "coze user": ("coze-token", f"czu_{WORD * 4}4"),
    "astra": ("datastax-token", f"AstraCS:{WORD}:{HEX * 4}"), "devin key": ("devin-key", "apk_user_" + WORD * 8),
    "devin user": ("devin-key", "cog_" + "4nt7xv2mk4pl6nr3" * 3 + "4nt7"),
    "swarm's lock": ("docker-swarm-key", "SWMKEY-1-" + WORD * 2 + "4nT9xV2mK4p"),
    "swarm's door": ("docker-swarm-key", f"SWMTKN-1-{WORD.lower() * 3}4n-{WORD.lower()}4nt9xv2mk"),
    "dynatrace platform": ("dynatrace-token", f"dt0s02.4NT9XV2M.{WORD.upper() * 4}"),
    "short grafana key": ("grafana-key", "eyJrIjoi" + WORD * 2 + "4nT9xV2m"),
    "mercado pago": ("mercadopago-token", f"APP_USR-9032451187654321-040126-{HEX * 2}-5729013384"),
    "midtrans": ("midtrans-key", "SB-Mid-server-" + WORD), "miro": ("miro-token", f"eyJtaXJv{WORD}_{WORD}-{WORD}"),
    "license": ("newrelic-license-key", HEX * 2 + "FFFFNRAL"),
    "collection": ("postman-token", "PMAT-" + WORD + "4nT9xV2mK4"),
    "pushbullet": ("pushbullet-token", "o." + WORD * 2), "recharge": ("recharge-token", f"sk_test_10x1_{HEX * 4}"),
    "slack cookie": ("slack-cookie", f"xoxd-{WORD}%2B{WORD}%2F{WORD}%3D{WORD}"),
    "slack app": ("slack-app-token", f"xapp-12-A4NT9XV2MK4-1234567890123-{HEX * 4}"),
    "square secret": ("square-secret", f"sq0csp-{WORD}_{WORD}-4nT9xV2mK"),
    "ephemeral key": ("stripe-ephemeral-key", f"ek_test_YWNjd{WORD * 3}_00Lx"),
    "tableau": ("tableau-token", f"{WORD}4nT9xV==:{WORD}{WORD}"), "tencent": ("tencent-key", "IKID" + WORD * 2),
    "trend micro": ("trendmicro-key", f"tmc1{WORD}4nT9xV2mK4pL:{WORD * 4}"),
    "unleash": ("unleash-token", f"default:production.{HEX * 3}0f9e8d7c"),
    "unleash user": ("unleash-token", f"user:{HEX * 3}0f9e8d7c"),
    "weaviate": ("weaviate-key", WORD * 5 + "PV92MjAw"), "wepay": ("wepay-token", f"stage_{WORD * 3}4nT9xV"),
    "zoho": ("zoho-token", f"1000.{HEX * 2}.{HEX * 2}"),
    "posthog refresh": ("posthog-key", "phr_" + WORD * 2 + "4nT9xV2m"),
    "val.town with a dash": ("valtown-token", f"vtwn_{WORD}-{WORD}"),
    "vercel with a dash": ("vercel-token", f"vck_{WORD}-{WORD}_{WORD}4nT9xV"),
    "atlas key": ("voyage-key", "al-" + WORD * 2 + "-_4nT9xV2mK"),
    "xai with a dash": ("xai-key", f"xai-{WORD}-{WORD}_{WORD * 3}"),
    "redirect": ("runpod-key", "rpa_" + WORD + "4nT9xV2mK4pL8n"),
    "circleci of letters": ("circleci-token", f"CCIPAT_{WORD}4nT9xV_{WORD.lower() * 2}4nt9xv2m"),
    "supabase, version 0": ("supabase-token", f"sbp_v0_{HEX * 2}0f9e8d7c"),
    "asana of old": ("asana-token", f"1/1200000000000:{HEX * 2}"),
}  # fmt: skip
KINDS |= {kind: (token, "{}") for kind, (_, token) in FORMS.items()}
PLACED: dict[str, str] = {
    # the rule's label: where a secret of any form stands
    "password-variable": "MYSQL_PWD={} mysql -u root", "variable-statement": "ENV APP_DB_PASSWORD {}",
    "pgpass-line": "db.internal:5432:app:bob:{}", "npmrc-auth": "//registry.example.com/:_authToken={}",
    "xml-secret": "<username>bob</username><password>{}</password>", "yaml-block-password": "password: >-\n  {}",
    "key-header": "x-goog-api-key: {}", "login-pipe": "echo {} | docker login -u bob --password-stdin",
    "joined-option": "openssl enc -aes-256-cbc -pass pass:{} -in f", "session-cookie": "PHPSESSID={}",
    "cookie-object": '[{{"name": "sid", "value": "{}", "domain": ".example.com", "path": "/"}}]',
    "cookie-text": "<Cookie sid={} for .example.com/>",
}  # fmt: skip
KINDS |= {label: ("hunter2x", template) for label, template in PLACED.items()}
IN_PLACE: dict[str, tuple[str, str]] = {
    "convex-key": (WORD * 3, "prod:happy-otter-123|{}"),
    "twilio-auth": ("49386b5a8d7c0f9e" * 2, f"curl AC{HEX * 2}:{{}} x"),
    "roblox-cookie": ("_|WARNING:-DO-NOT-SHARE-THIS.--Log-in-as-you.|_" + WORD * 8, "is {} today"),
    "baidu-key": (HEX * 2 + "0f9e8d7c", f"bce-v3/ALTAK-{WORD}4nT9x/{{}}"),
    "putty-key": (WORD * 4, "Private-Lines: 1\n{}\nPrivate-MAC: 1"),
    "jwk-secret": (WORD * 2, '{{"kty": "EC", "crv": "P-256", "d": "{}"}}'),
    "connect-call": ("hunter2x", "mysqli_connect('db.internal', 'bob', '{}', 'app')"),
    "connection-string-key": (WORD * 3 + "==", "Endpoint=https://a.service.signalr.net;AccessKey={};Version=1.0"),
    "asaas-key": (f"aact_prod_{WORD * 2}::{WORD}", "key ${}"),
    "gitlab-mail-token": (WORD + "4nT9", "incoming+group-project-12-{}-issue@incoming.example.com"),
    "secret-token-uri": ("x9_" + WORD, "secret-token:{} of a bank"),
    "seed-phrase": ("abandon ability able about above absent absorb abstract absurd abuse access accident",
                    "seed phrase: {}."),
    "created-user-password": ("hunter2x", "CREATE USER 'bob'@'%' IDENTIFIED BY '{}'; SELECT 1"),
    "windows-password": ("hunter2x", "$p = ConvertTo-SecureString '{}' -AsPlainText -Force"),
    "url-path-key": (WORD * 2, "see https://mcp.zapier.com/api/mcp/s/{}/mcp now"),
}  # fmt: skip
KINDS |= IN_PLACE
KINDS |= {
    "path of an rpc node": (HEX * 2, "wss://mainnet.infura.io/ws/v3/{} now"),
    "path of a chat's hook": (UUID, "https://open.feishu.cn/open-apis/bot/v2/hook/{} now"),
    "path of an old rpc node": (WORD * 2, "https://eth-mainnet.alchemyapi.io/v2/{} now"),
    "path of a chat's own hook": (
        "4nt9xv2mk4pl8nr34nt9xv2mk4",
        "https://mattermost.example.com/hooks/{} now",
    ),
    "path of an office's hook": (f"{UUID}@{UUID}/x", "https://outlook.office.com/webhook/{} now"),
    "cmdkey": ("hunter2x", "cmdkey /add:db01 /user:bob /pass:{} & ver"),
    "net use": ("hunter2x", "net use Z: //server/share /user:bob {} & ver"),
    "a task of windows": ("hunter2x", "schtasks /create /tn x /ru bob /rp {} /f"),
    "role of postgres": ("hunter2x", "ALTER ROLE bob WITH LOGIN PASSWORD '{}'; SELECT 1"),
    "symmetric jwk": (WORD * 2, '{{"k": "{}", "alg": "A256GCM", "kty": "oct"}}'),
}
KINDS["code-verifier"] = (WORD * 3, "code=1&code_verifier={}&x=1")
KINDS |= {
    "google token of a service": ("ya29.c.b0" + WORD * 2 + "." + WORD, "{}"),
    "google refresh token in a path": ("1//0" + WORD * 4, "https://example.com/{}/x"),
    "google refresh token of old": ("1/" + WORD * 2 + "4nT9xV2mK4p", "{}"),
    "telegram token of any bot": ("123456789:ABC-DEF1234ghIkl-zyx57W2v1u123ew114", "{}"),
    "openrouter provisioning key": ("sk-or-prov-v1-" + HEX * 4, "{}"),
    "mysql password among arguments": ("hunter2x", '["mysql", "-uroot", "-p{}", "app"]'),
    "mysql password on a line of its own": ("hunter2x", "mysql \\\n  -u root \\\n  -p{} \\\n  app"),
    "sqlcmd": ("hunter2x", "sqlcmd -S db -U sa -P {}"),
    "ldapsearch": ("hunter2x", "ldapsearch -D cn=a -w {} cn=b"),
    "7z": ("hunter2x", "7z x a.7z -p{}"),
    "smbclient": ("hunter2x", "smbclient //h/s -U bob%{}"),
    "httpie": ("hunter2x", "http -a bob:{} example.com"),
    "curl user with a sign": ("P@ssw0rd!x9", "curl -u bob:{} https://example.com"),
    "chpasswd": ("hunter2x", "echo root:{} | sudo chpasswd"),
    "netrc in another order": ("hunter2x", "machine api.example.com password {} login bob"),
    "cookie of selenium": (
        "d41d8cd98f00b204",
        '{{"sameSite": "Lax", "secure": true, "value": "{}"}}',
    ),
    "cookie of requests": ("d41d8cd98f00b204", "requests.get(url, cookies={{'sid': '{}'}})"),
    "second cookie of requests": (
        "d41d8cd98f00b204",
        "get(u, cookies={{'theme': 'bright', 'sid': '{}'}})",
    ),
    "cookie of a jar": ("d41d8cd98f00b204", "Cookie(version=0, name='sid', value='{}', port=None)"),
    "cookie of libwww": ("d41d8cd98f00b204", 'Set-Cookie3: sid="{}"; path="/"'),
    "property of hadoop": ("hunter2x", "<name>db.password</name>\n<value>{}</value>"),
    "gitlab's header": ("hunter2x", "PRIVATE-TOKEN: {}"),
}
KINDS["entra secret"] = ("4nT8Q~" + WORD + "4nT9xV2mK4pL8nR", "id|{}|2027")


def traceback_of(text: str) -> str:
    try:
        raise ValueError(text)
    except ValueError:
        return traceback.format_exc()


def padded_base64(lead: str) -> Callable[[str], str]:
    return lambda text: (
        "data " + base64.b64encode((lead + " " + text + " tail").encode()).decode() + " end"
    )


PLACES: dict[str, Callable[[str], str]] = {
    "plain": lambda text: f"before\n{text}\nafter",
    "json": lambda text: json.dumps({"note": text, "n": 1}),
    "json not ascii": lambda text: json.dumps({"note": text, "n": "é"}, ensure_ascii=False),
    "json in json": lambda text: json.dumps({"arguments": json.dumps({"note": text})}),
    "json, at the start of a line": lambda text: json.dumps({"note": f"before\n{text}\nafter"}),
    "json, behind a letter": lambda text: json.dumps({"note": f"\u043a\u043b\u044e\u0447{text}"}),
    "coloured": lambda text: f"\x1b[32m{text}\x1b[0m",
    "highlighted": lambda text: f"a: \x1b[01;31m\x1b[K{text[:3]}\x1b[m\x1b[K{text[3:]}",
    "shell": lambda text: f"$ run <<'EOF'\n{text}\nEOF",
    "traceback": traceback_of,
    "base64, first place": padded_base64(""),
    "base64, second place": padded_base64("x"),
    "base64, third place": padded_base64("xy"),
    "base64 url-safe": lambda text: (
        base64.urlsafe_b64encode(f"~~{text} ~~~".encode()).decode().rstrip("=")
    ),
    "base64 glued to a path": lambda text: (
        "files/v1/" + base64.b64encode(f"{text} ".encode()).decode()
    ),
    "base64 folded": (
        lambda text: base64.encodebytes(f"{'header ' * 6}{text} {'tail ' * 20}".encode()).decode()
    ),
    "url-encoded": lambda text: quote(text, safe=""),
    "url-encoded form": lambda text: "note=" + quote_plus(text) + "&n=1",
    "json, url-encoded": lambda text: quote(json.dumps({"note": text})),
    "json, base64": lambda text: base64.b64encode(json.dumps({"note": text}).encode()).decode(),
}


def traces_of(secret: str) -> set[str]:
    """The secret as it could still be read, in any spelling."""
    found = {
        secret,
        json.dumps(secret)[1:-1],
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
    }
    raw = secret.encode()
    for lead in range(3):
        encoded = base64.b64encode(b"\0" * lead + raw).decode()
        core = encoded[-(-lead * 8 // 6) : (lead + len(raw)) * 8 // 6]
        if len(core) >= 6:
            found |= {core, core.replace("+", "-").replace("/", "_")}
    return found


@pytest.fixture(scope="module")
def redactor() -> SecretRedactor:
    return SecretRedactor(ENV)


@pytest.mark.parametrize("kind", KINDS)
def test_no_trace_of_a_secret_is_left_in_any_place(redactor: SecretRedactor, kind: str) -> None:
    secret, template = KINDS[kind]
    traces, wrong = traces_of(secret), {}
    for place, put in PLACES.items():
        text = put(template.format(secret))
        redacted = redactor.redact(text)
        is_hidden = "[redacted:" in redacted and not any(trace in redacted for trace in traces)
        if not is_hidden or redactor.are_clean([text]) or redactor.redact(redacted) != redacted:
            wrong[place] = redacted
    assert wrong == {}


def test_what_stands_around_a_secret_is_kept(redactor: SecretRedactor) -> None:
    wrong = {}
    for kind, (secret, template) in KINDS.items():
        redacted = redactor.redact(f"first line\n{template.format(secret)}\n\nlast (line)")
        if not (redacted.startswith("first line\n") and redacted.endswith("(line)")):
            wrong[kind] = redacted
    assert wrong == {}


PATHS = "google refresh token of old"
"""Its shape is that of a path: what stands before it tells them apart."""
BARE = [kind for kind, (_, template) in KINDS.items() if template == "{}" and kind != PATHS]


def test_a_token_between_underscores_is_one(redactor: SecretRedactor) -> None:
    wrong = {}
    for kind in BARE:
        secret = KINDS[kind][0]
        redacted = redactor.redact(f"my_{secret}_key")
        if not redacted.startswith("my_[redacted:") or any(
            trace in redacted for trace in traces_of(secret)
        ):
            wrong[kind] = redacted
    assert wrong == {}


LABELS = {
    "github token": "github-pat", "gitlab token": "gitlab-pat", "aws access key": "aws-access-token",
    "anthropic key": "anthropic-api-key", "stripe key": "stripe-access-token", "slack token": "slack-bot-token",
    "json web token": "jwt", "bearer header": "authorization-header", "basic header": "authorization-header",
    "token header": "authorization-header", "proxy header": "authorization-header",
    "schemeless header": "authorization-header", "digest header": "authorization-header",
    "curl header": "curl-auth-header", "bearer alone": "bearer-token", "set-cookie": "cookie",
    "url user info": "url-credentials", "url token": "url-credentials", "dsn": "url-credentials",
    "dsn with a raw at sign": "url-credentials", "go dsn": "url-credentials", "query parameter": "url-parameter",
    "signed url": "url-parameter", "password in json": "named-secret",
    "environment assignment": "environment-assignment", "command line": "command-line-secret",
    "generic key": "generic-api-key", "google access token": "google-access-token",
    "google refresh token": "google-refresh-token", "google client secret": "google-client-secret",
    "telegram token": "telegram-bot-token", "telegram token in a url": "telegram-bot-token",
    "discord token": "discord-bot-token", "discord webhook": "discord-webhook", "openrouter key": "openrouter-key",
    "groq key": "groq-key", "xai key": "xai-key", "replicate token": "replicate-token",
    "cerebras key": "cerebras-key", "tavily key": "tavily-key", "firecrawl key": "firecrawl-key",
    "supabase token": "supabase-token", "key of a model's provider": "sk-key", "tailscale key": "tailscale-key",
    "short project key": "openai-key", "mysql password": "mysql-password", "sshpass": "password-option",
    "redis password": "password-option", "registry password": "password-option", "netrc": "netrc-password",
    "cookie file": "cookie-file", "curl cookie": "curl-cookie", "cookie of a page": "cookie",
    "environment value": "env:VENDOR_KEY", "environment value with escapes": "env:QUOTED",
    "entra secret": "entra-client-secret", **dict(zip(TOKENS, TOKENS, strict=True)),
    **dict(zip(PLACED, PLACED, strict=True)), "code-verifier": "code-verifier",
    **dict(zip(IN_PLACE, IN_PLACE, strict=True)), **{kind: label for kind, (label, _) in FORMS.items()},
}  # fmt: skip


def test_only_the_secret_goes_and_is_named_by_its_kind(redactor: SecretRedactor) -> None:
    wrong = {}
    for kind, label in LABELS.items():
        secret, template = KINDS[kind]
        redacted = redactor.redact(template.format(secret))
        if redacted.removesuffix("\n") != template.format(f"[redacted:{label}]").removesuffix("\n"):
            wrong[kind] = redacted
    assert wrong == {}


def test_every_shape_that_is_data_has_a_token_that_it_alone_names() -> None:
    assert {shape.id for shape in TOKEN_SHAPES} <= set(LABELS.values())


TOKEN = KINDS["github token"][0]
KEY = "brk_" + "aB3dE5g" * 6 + "-"
PAT = "[redacted:github-pat]"


def encoded(text: str, times: int = 1) -> str:
    for _ in range(times):
        text = base64.b64encode(text.encode()).decode()
    return text


EXACT: list[tuple[str, str]] = [
    ('curl -u "admin:s3cr3tpa55" https://x.example', 'curl -u "[redacted:curl-auth-user]" https://x.example'),
    ("{'Authorization': 'Bearer mF_9.B5f-4.1JqM'}", "{'Authorization': '[redacted:authorization-header]'}"),
    ("Cookie: sid=abc[redacted:github-pat]def1; x=2",
     "Cookie: sid=[redacted:cookie][redacted:github-pat][redacted:cookie]; x=[redacted:cookie]"),
    ("Cookie: sid=ab\ud800cd", "Cookie: sid=[redacted:cookie]"),
    (f"{TOKEN} [redacted:cookie] {TOKEN} [redacted:cookie] [redacted:cookie] {TOKEN}",
     f"{PAT} [redacted:cookie] {PAT} [redacted:cookie] [redacted:cookie] {PAT}"),
    ("service_api_key = 'qTxVmKpLnRwZsabcdefg'", "service_api_key = 'qTxVmKpLnRwZsabcdefg'"),
    ("service_api_key = 'qTxV0mKpLnRwZsabcdef'", "service_api_key = '[redacted:generic-api-key]'"),
    ("service_api_key = 'qTxV9mKpLnRwZsabcdef'", "service_api_key = '[redacted:generic-api-key]'"),
    (json.dumps({"note": f"a\tb {TOKEN}\nc \u00e9"}), json.dumps({"note": f"a\tb {PAT}\nc \u00e9"})),
    (quote(f"\u00e9: {TOKEN} \u00e9/"), f"%C3%A9%3A%20{PAT}%20%C3%A9/"),
    (f'"\\u0067{TOKEN[1:]}" x', f'"{PAT}" x'),
    (f'{TOKEN[:-1]}\\u0037 "y\\"', f'{PAT} "y\\"'),
    (f"%67{TOKEN[1:]}%21", f"{PAT}%21"),
    (f"x%41 {TOKEN} %42%43 y", f"x%41 {PAT} %42%43 y"),
    (f"data {encoded(f'{TOKEN} tail')} end", f"data {PAT}B0YWls end"),
    (f"data {encoded(f'x{TOKEN} tail')} end", f"data e{PAT}gdGFpbA== end"),
    (f"data {encoded(f'xy{TOKEN} tail')} end", f"data eH{PAT}IHRhaWw= end"),
    (f"data {encoded(f'xyz{TOKEN} tail')} end", f"data eHl6{PAT}B0YWls end"),
    (f"data {encoded(f'x {TOKEN}')} end", f"data eC{PAT} end"),
    (f"data {encoded(f'x {TOKEN}y')} end", f"data eC{PAT}eQ== end"),
    (f"v {base64.urlsafe_b64encode(f'~~{TOKEN} ~~~'.encode()).decode().rstrip('=')} w", f"v fn{PAT}IH5-fg w"),
    (f"files/v1/{encoded(f'{TOKEN} ')} x", f"files/v1/{PAT}A= x"),
    (f"x{encoded(f'{TOKEN} a')}Z end", f"x{PAT}BhZ end"),
    (f"files/v1/{encoded('password: hunter2!')} x", "files/v1/cGFzc3dvcmQ6I[redacted:password-assignment] x"),
    (encoded(TOKEN, 2), f"{PAT}PT0="),
    (encoded(TOKEN, 3), f"{PAT}UFQwPQ=="),
    (encoded(TOKEN, 4), encoded(TOKEN, 4)),
    (f"\x1b[1m{TOKEN}\x1b[0m x", f"\x1b[1m{PAT}\x1b[0m x"),
    *((json.dumps(f"x{before}{KEY}"), json.dumps(f"x{before}[redacted:router-token]"))
      for before in "\b\f\n\r\té\ud800"),
    (f"{TOKEN} 100%25", f"{PAT} 100%25"),
    ("https://bob:hunter2%40example.com", "https://bob:[redacted:url-credentials]%40example.com"),
    *((text, text) for text in (
        "sk-proj-words-that-are-no-key",
        "DB_PASSWORD=changeme", "DB_PASSWORD=Required", "password: abcdef", "password: Abcdef", "password: default",
        "password: abcdefghijklmno", "password: abc-def_ghi.j/k", "bearer abcdefghijklmnopqr",
        "https://x.example/?code=abcdefghijk:", "https://x.example/?code=${TOKEN_1_OF_JOB}", "basic abcdefgh",
        "basic abcdefghi",
    )),
    *((f"{before}{secret}", f"{before}[redacted:{label}]") for before, secret, label in (
        ("password: ", "abcDef", "password-assignment"), ("password: ", "ABCDEF", "password-assignment"),
        ("password: ", "abcdefghijklmnop", "password-assignment"), ("bearer ", "abcdefghijklmno0", "bearer-token"),
        ("bearer ", "abcdefghijklmno9", "bearer-token"), ("basic ", "dXNlcjpwYXNz", "basic-credentials"),
        ("basic ", "dXNlcjpwYXNzdw", "basic-credentials"), ("basic ", "dXNlcjpwYXNzdw==", "basic-credentials"),
    )),
    ("{'password': 'hunter2'}", "{'password': '[redacted:named-secret]'}"),
    *((json.dumps({"x": f'"A_TOKEN=abcd1234{end}next"'}),
       json.dumps({"x": f'"A_TOKEN=[redacted:environment-assignment]{end}next"'})) for end in "\f\n\r\t"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "redacted"), EXACT)
def test_what_is_cut_out_is_the_secret_in_its_own_spelling_and_nothing_else(
    text: str, redacted: str
) -> None:
    assert SecretRedactor().redact(text) == redacted


@pytest.mark.parametrize("name", ["VENDOR_KEY", "QUOTED"])
@pytest.mark.parametrize(
    "written",
    [
        bytes.hex,
        lambda value: value.hex().upper(),
        repr,
        lambda value: "".join(f"\\x{byte:02x}" for byte in value),
    ],
)
def test_a_known_value_is_found_as_programs_print_bytes(
    name: str, written: Callable[[bytes], str]
) -> None:
    text = written(ENV[name].encode())
    redacted = SecretRedactor(ENV).redact(f"sent <{text}> twice")
    assert f"[redacted:env:{name}]" in redacted
    assert text.strip("b'\"") not in redacted


def test_values_that_overlap_a_rule_or_touch_each_other_are_named_by_their_variables() -> None:
    for part in (TOKEN[:20], TOKEN[5:20], TOKEN[-20:]):
        assert SecretRedactor({"PART": part}).redact(f"x {TOKEN} y") == "x [redacted:env:PART] y"
    key = "A3-ASWWYB-798JRY-LJVD4-23DC2-86TVM-H43EB"
    assert SecretRedactor().redact(key) == "[redacted:1password-secret-key]"
    assert SecretRedactor({"OP": key}).redact(key) == "[redacted:env:OP]"
    both = SecretRedactor({"ONE": "abcdefgh", "TWO": "ABCDEFGH"})
    assert both.redact("abcdefghABCDEFGH") == "[redacted:env:ONE][redacted:env:TWO]"
    odd = SecretRedactor({"ODD": "\ud800abcdefgh", "PADDED": " 12345abc \n"})
    assert (
        SecretRedactor({"N" * 101: "abcdefgh"}).redact("abcdefgh") == f"[redacted:env:{'N' * 100}]"
    )
    assert odd.redact("x \ud800abcdefgh 12345abc") == "x [redacted:env:ODD] [redacted:env:PADDED]"


def test_an_automaton_that_does_not_find_a_known_token_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(detection, "PROOF", b"nothing that is a token")
    with pytest.raises(RuntimeError, match="does not find a known token"):
        SecretRedactor({"VENDOR_KEY": "a value whose rules no other test has made"})


def test_what_one_text_may_be_decoded_to_is_bounded() -> None:
    assert PAT in SecretRedactor().redact(encoded("word " * 14_000 + TOKEN)), (
        "but not for a long text"
    )
    budget = detection._Budget(10)
    assert [budget.spend(size) for size in (4, 6, 1)] == [True, True, False]


def test_a_hit_within_a_character_takes_the_whole_of_it() -> None:
    data = "a\u00e9\u20ac\U0001f511b".encode()
    for inside, whole in (((2, 3), (1, 3)), ((1, 2), (1, 3)), ((4, 5), (3, 6)), ((3, 4), (3, 6)), ((8, 9), (6, 10)),
                          ((2, 7), (1, 10)), ((0, 1), (0, 1)), ((10, 11), (10, 11))):  # fmt: skip
        (hit,) = redaction._merge_hits([detection.SecretHit(*inside, 1, "x")], data)
        assert (hit.start, hit.end) == whole


def test_a_value_of_the_environment_is_named_after_its_variable(redactor: SecretRedactor) -> None:
    assert redactor.redact(f"<{ENV['VENDOR_KEY']}>") == "<[redacted:env:VENDOR_KEY]>"


def test_of_a_value_beyond_ascii_all_goes_that_depends_on_it_alone() -> None:
    value, label = (
        "\u043a\u043b\u044e\u0447-\u043e\u0442-\u0434\u0432\u0435\u0440\u0438",
        "[redacted:env:KEY]",
    )
    redactor = SecretRedactor({"KEY": value})
    for lead, first, last in ((0, 0, 32), (1, 2, 33), (2, 3, 34)):
        text = base64.b64encode(b"\0" * lead + value.encode() + b"\0\0\0").decode()
        assert redactor.redact(text) == text[:first] + label + text[last:]
    assert redactor.redact(json.dumps([value])) == json.dumps([label])
    assert redactor.redact(json.dumps([value]).replace("a", "A")) == json.dumps([label])
    assert redactor.redact(quote_plus(f"<{value} >")) == f"%3C{label}+%3E"


def test_values_under_eight_characters_are_left_alone(redactor: SecretRedactor) -> None:
    assert redactor.redact("listening on 8080") == "listening on 8080"


def test_the_longer_of_two_values_that_overlap_is_named() -> None:
    redactor = SecretRedactor({"PART": "abcdefgh", "WHOLE": "abcdefgh-ijkl"})
    assert redactor.redact("abcdefgh-ijkl abcdefgh") == "[redacted:env:WHOLE] [redacted:env:PART]"


def test_redacted_json_is_still_json(redactor: SecretRedactor) -> None:
    for secret, template in KINDS.values():
        text = json.dumps({"note": template.format(secret), "after": [1, "é"]})
        assert json.loads(redactor.redact(text))["after"] == [1, "é"]


def test_a_token_inside_something_that_looks_like_a_placeholder_is_found(
    redactor: SecretRedactor,
) -> None:
    token = KINDS["github token"][0]
    assert token not in redactor.redact(f"[redacted:{token}] [redacted:env:{token}]")
