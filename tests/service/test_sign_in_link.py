"""A link that signs a browser in: by one visit, within its time, at the service that made it."""

from __future__ import annotations

from typing import Any

import pytest
from bundle_router.service.sign_in_codes import CODE_S, MAX_CODES, SignInCodes

pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")


async def page(scope: Any, _receive: Any, send: Any) -> None:
    """Pages that say who looks at them."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["user"].name.encode()})


def test_a_link_signs_in_once_and_leads_to_an_address_without_its_code(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        link = endpoint.sign_in_url()
        code = link.partition("?code=")[2]
        assert link == f"{endpoint.base}/sign-in?code={code}"
        async with site.http(endpoint, token="") as browser:
            let_in = await browser.get(link)
            assert (let_in.status_code, let_in.headers["location"]) == (303, "/")
            assert let_in.headers["referrer-policy"] == "strict-origin"
            assert let_in.headers["cache-control"] == "no-store"
            assert endpoint.key not in str(let_in.headers)
            assert code not in str(let_in.headers)
            assert (await browser.get("/")).text == "endpoint"
        async with site.http(endpoint, token="") as other:
            again = await other.get(link)
            assert (again.status_code, "used already" in again.text) == (401, True)
            assert "set-cookie" not in again.headers
            assert (await other.get("/")).status_code == 401

    site.serve_all(work, pages=page)


def test_nobody_but_a_browser_that_goes_there_uses_a_link_up(site: Any) -> None:
    strangers = {
        "host": "evil.example",
        "origin": "http://evil.example",
        "sec-fetch-site": "cross-site",
    }
    ahead = {
        "Sec-Purpose": "prefetch;prerender",
        "Purpose": "prefetch",
        "X-Purpose": "preview",
        "X-Moz": "prefetch",
    }

    async def work(_router: Any, endpoint: Any) -> None:
        link = endpoint.sign_in_url()
        async with site.http(endpoint, token="") as browser:
            for name, value in strangers.items():
                refused = await browser.get(link, headers={name: value})
                assert refused.status_code in (403, 421), name
            for name, value in ahead.items():
                early = await browser.get(link, headers={name: value})
                assert (early.status_code, "set-cookie" in early.headers) == (503, False), name
            assert "set-cookie" not in (await browser.head(link)).headers
            assert (await browser.get(link)).status_code == 303

    site.serve_all(work, pages=page)


def test_a_code_is_no_token(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        code = endpoint.sign_in_url().partition("?code=")[2]
        async with site.http(endpoint, token=code) as http:
            assert (await http.get("/v1/bundles")).status_code == 401
        async with site.http(endpoint, token="") as http:
            assert (await http.post("/sign-in", data={"token": code})).status_code == 401
            assert (await http.post("/sign-in", data={"code": code})).status_code == 401

    site.serve_all(work, pages=page)


def test_a_code_ends_after_its_time_and_the_oldest_make_room() -> None:
    now = [0.0]
    codes = SignInCodes(lambda: now[0])
    kept, late = codes.new(), codes.new()
    now[0] = CODE_S - 1
    assert codes.redeem(kept)
    now[0] = CODE_S
    assert not codes.redeem(late)

    first, *others = [codes.new() for _ in range(MAX_CODES + 1)]
    assert not codes.redeem(first)
    assert all(map(codes.redeem, others))
    assert not SignInCodes().redeem(codes.new())
