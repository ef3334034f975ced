"""Every answer of the web process, of every address there is, tells browsers what they must not do with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import URLPattern, URLResolver, get_resolver, include, path

from controlplane import urls
from controlplane.core import names
from controlplane.fleet import models
from controlplane.stack.ports import free_port, is_free
from tests.integration.test_console_changes import model, ops

__all__ = ["model", "ops"]  # fixtures

EXAMPLES = {"int": "1", "uuid": "0b0e5d3c-6f0e-4f5e-9a53-6f9d1b2f7d11", "number": "1"}
"""Of converters; any other takes a word."""


def broken(_request: HttpRequest) -> HttpResponse:
    raise RuntimeError("a defect")


urlpatterns = [path("broken", broken), path("", include("controlplane.urls"))]
handler500 = urls.handler500


def addresses(resolver: URLResolver, prefix: str = "/") -> Iterator[str]:
    for each in resolver.url_patterns:
        at = prefix + re.sub(r"<(?:(\w+):)?\w+>", lambda found: EXAMPLES.get(found[1] or "", "m"), str(each.pattern))
        if isinstance(each, URLPattern):
            yield at
        else:
            yield from addresses(each, at)


ADDRESSES = sorted(set(addresses(get_resolver("controlplane.urls"))))


def lacking(headers: Any) -> list[str]:
    """What is missing or wrong in the headers of an answer."""
    policy = {part.split()[0]: part.split()[1:] for part in headers.get("Content-Security-Policy", "").split("; ") if part}
    wrong = [
        name
        for name, value in (
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
        )
        if headers.get(name) != value
    ]
    if policy.get("default-src") != ["'none'"] or policy.get("frame-ancestors") != ["'none'"]:
        wrong.append("default-src or frame-ancestors")
    if policy.get("script-src") != ["'self'"] or policy.get("style-src") != ["'self'"]:
        wrong.append("script-src or style-src")
    if any(word.startswith(("'unsafe", "http", "*")) for words in policy.values() for word in words):
        wrong.append("a source that is not this server")
    return wrong


def test_there_are_addresses_to_ask() -> None:
    assert len(ADDRESSES) > 90 and "/login" in ADDRESSES and "/api/v1/models/m/mode" in ADDRESSES, ADDRESSES


@pytest.mark.django_db
def test_every_answer_says_what_browsers_must_not_do(ops: Client, model: models.Model) -> None:
    stranger, statuses = Client(), set()
    for client in (ops, stranger):
        for address in ADDRESSES:
            if address.endswith("/events"):
                continue  # it does not end
            for method in (client.get, client.post):
                answer = method(address)
                statuses.add(answer.status_code)
                assert lacking(answer.headers) == [], (
                    f"{method.__name__} {address}: {answer.status_code} {dict(answer.headers)}"
                )
                if answer.streaming:
                    answer.close()
    assert {200, 302, 401, 404, 405} <= statuses, statuses


@pytest.mark.django_db
def test_so_do_files_errors_and_refused_forms(ops: Client) -> None:
    found = ops.get("/static/console/base.css")
    files = [found] if found.status_code == 200 else []
    page = ops.get("/").content.decode()
    files += [ops.get(address) for address in sorted(set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page)))]
    assert files and all(answer.status_code == 200 for answer in files)
    strict = Client(enforce_csrf_checks=True)
    answers = [*files, strict.post("/login", {"username": "a", "password": "b"}), ops.get("/no/such/page"), ops.get("/%00")]
    broken_client = Client(raise_request_exception=False)
    with override_settings(ROOT_URLCONF=__name__):
        answers.append(broken_client.get("/broken"))
    assert [answer.status_code for answer in answers[-4:]] == [403, 404, 404, 500]
    for answer in answers:
        assert lacking(answer.headers) == [], dict(answer.headers)
        if answer.streaming:
            answer.close()


@pytest.mark.django_db
def test_pages_of_signed_in_people_are_kept_by_nobody(ops: Client, model: models.Model) -> None:
    for address in ADDRESSES:
        if address.startswith(("/api", "/strings", "/healthz", "/language")) or address.endswith("/events"):
            continue
        answer = ops.get(address)
        if answer.status_code == 200:
            kept = answer.headers.get("Cache-Control", "")
            assert "no-store" in kept or "private" in kept, f"{address}: {kept!r}"


@pytest.mark.django_db
def test_no_page_has_inline_code_or_style(ops: Client, model: models.Model) -> None:
    """The policy forbids it to run; a page that had some would be broken, not only unsafe."""
    pages = 0
    for address in ADDRESSES:
        answer = ops.get(address) if not address.endswith("/events") else None
        if answer is None or answer.status_code != 200 or not answer.headers["Content-Type"].startswith("text/html"):
            continue
        pages += 1
        text = re.sub(r'<script id="first".*?</script>', "", answer.content.decode(), flags=re.DOTALL)
        assert not re.search(r"<[^>]*\s(style|on\w+)=", text), address
        assert re.findall(r"<script(?![^>]*(?:\bsrc=|application/json))", text) == [], address
        assert "<style" not in text, address
    assert pages > 6


def test_behind_tls_alone_cookies_and_browsers_stay_there(postgres: Any, valkey_url: str) -> None:
    port = free_port()
    origins = {names.ENV_CONSOLE_ORIGINS: "https://twinpool.example"}
    command = [sys.executable, "-m", "controlplane.live.server", "--port", str(port), "--proxies", "127.0.0.1"]
    web = subprocess.Popen(command, env={**os.environ, **origins})
    try:
        deadline = time.monotonic() + 60
        while is_free(port):
            assert web.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            plain = client.get("/login")
            secure = client.get("/login", headers={"X-Forwarded-Proto": "https", "Host": "twinpool.example"})
    finally:
        web.kill()
        web.wait()
    assert "Strict-Transport-Security" not in plain.headers
    assert secure.headers["Strict-Transport-Security"] == "max-age=31536000"
    assert "csrftoken" in secure.headers["Set-Cookie"] and "Secure" in secure.headers["Set-Cookie"]
    assert lacking(secure.headers) == lacking(plain.headers) == []
