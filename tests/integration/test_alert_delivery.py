"""Webhooks and e-mail: signed, only to where they may go, and with errors that hold no secret."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.alerts import mail, webhook
from controlplane.alerts.addresses import BadTarget, is_public, judge, parse_url
from controlplane.alerts.webhook import NotDelivered, post, shown_secret
from controlplane.common.outward import read_networks, read_smtp
from tests.integration.alert_kit import TLS, Hooks, hooks, mailbox

KEY = bytes(range(32))
HERE = read_networks("127.0.0.0/8, ::1")
BODY = json.dumps({"text": "KV transfers fail"}).encode()


@pytest.fixture
def hook() -> Iterator[Hooks]:
    with hooks() as found:
        yield found


def refused(url: str, allowed: Any = HERE) -> str:
    with pytest.raises(NotDelivered) as told:
        post(url, KEY, "m-1", BODY, allowed)
    assert "s3cret" not in str(told.value)
    return str(told.value)


def test_a_message_arrives_with_an_id_a_time_and_a_signature_that_the_receiver_can_check(hook: Hooks) -> None:
    post(hook.url, KEY, "m-1", BODY, HERE)
    (got,) = hook.received
    assert (got.path, got.body, got.headers["webhook-id"]) == ("/hook/s3cret-path", BODY, "m-1")
    assert abs(time.time() - int(got.headers["webhook-timestamp"])) < 60
    # As a receiver does it that was given the secret (Standard Webhooks 1.0).
    secret = base64.b64decode(shown_secret(KEY).removeprefix("whsec_"))
    signed = f"m-1.{got.headers['webhook-timestamp']}.".encode() + got.body
    expected = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-signature"] == f"v1,{expected}"


INSIDE = [
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1"),
    *("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.2.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "::ffff:10.0.0.1", "::ffff:7f00:1"),
    *("64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:0:0:0:0:f5ff:fffe", "fec0::1", "64:ff9b:1::1"),
]


@pytest.mark.parametrize("address", INSIDE)
def test_what_is_not_public_is_no_place_for_a_webhook(address: str) -> None:
    with pytest.raises(BadTarget, match="is not public"):
        judge([address], (), secure=True)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1"])
def test_what_is_public_is_one(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))
    assert not judge([address], (), secure=True).inside


def test_a_name_with_one_address_inside_is_refused_whole() -> None:
    with pytest.raises(BadTarget, match=r"10\.0\.0\.1 is not public"):
        judge(["1.1.1.1", "10.0.0.1"], (), secure=True)


def test_the_setting_allows_the_networks_that_it_names_and_no_others() -> None:
    allowed = read_networks("10.1.0.0/16")
    assert judge(["10.1.2.3"], allowed, secure=False).inside
    assert judge(["::ffff:10.1.2.3"], allowed, secure=False).inside
    with pytest.raises(BadTarget):
        judge(["10.2.0.1"], allowed, secure=True)


def test_without_encryption_only_what_the_setting_allows_is_told() -> None:
    with pytest.raises(BadTarget, match="use https"):
        judge(["1.1.1.1"], HERE, secure=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "[::ffff:127.0.0.1]"])
def test_this_machine_is_refused_however_it_is_written(hook: Hooks, host: str) -> None:
    port = hook.url.split(":")[2].partition("/")[0]
    assert "is not public" in refused(f"http://{host}:{port}/s3cret", ())
    assert hook.received == []


@pytest.mark.parametrize(
    "url",
    [
        *(
            "ftp://a.example/x",
            "https:///x",
            "https://u:s3cret@a.example/",
            "https://a.example:0/",
            "https://a.example:99999/",
        ),
        *("javascript:alert(1)", "https://a.example/\r\nX: s3cret", "https://a.example/ s3cret", "https://é.example/", ""),
        "https://a.example/" + "s3cret" * 200,
    ],
)
def test_what_is_no_url_for_a_webhook_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(BadTarget) as told:
        parse_url(url)
    assert "s3cret" not in str(told.value)


def test_the_address_that_was_judged_is_the_one_that_is_connected_to(hook: Hooks, monkeypatch: Any) -> None:
    """A name whose second look-up would lead elsewhere is never looked up a second time."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        if host != "rebind.test":
            return real(host, port, *more, **options)
        asked.append(host)
        return real("127.0.0.1" if len(asked) == 1 else "127.0.0.9", port, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    post(hook.url.replace("127.0.0.1", "rebind.test"), KEY, "m-1", BODY, HERE)
    assert asked == ["rebind.test"] and hook.received[0].headers["host"].startswith("rebind.test:")


def test_a_redirect_is_not_followed(hook: Hooks) -> None:
    with hooks() as inner:
        hook.answer = lambda _: (302, {"location": inner.url})
        assert "redirects are not followed" in refused(hook.url)
        assert inner.received == []


@pytest.mark.parametrize(("status", "away"), [(500, True), (503, True), (429, True), (404, False), (400, False)])
def test_an_error_says_whether_the_receiver_is_away(hook: Hooks, status: int, away: bool) -> None:
    hook.answer = lambda _: (status, {})
    with pytest.raises(NotDelivered, match=f"HTTP {status}") as told:
        post(hook.url, KEY, "m-1", BODY, HERE)
    assert told.value.away is away


def test_a_certificate_that_nobody_vouches_for_is_refused(monkeypatch: Any) -> None:
    with hooks(tls=True) as secure:
        assert "certificate is not trusted" in refused(secure.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
        post(secure.url, KEY, "m-1", BODY, HERE)
        assert "certificate is not trusted" in refused(secure.url.replace("localhost", "127.0.0.1")), "not its name"
        assert len(secure.received) == 1


def test_an_answer_that_drips_ends_in_time(monkeypatch: Any) -> None:
    """Each byte comes in time, the whole never does."""
    monkeypatch.setattr(webhook, "ANSWER_WITHIN_S", 0.5)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            client, _ = server.accept()
            with client:
                while not over.wait(0.02):
                    try:
                        client.send(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        assert "no answer within 0.5 s" in refused(f"http://127.0.0.1:{server.getsockname()[1]}/s3cret")
        over.set()
        thread.join()


def test_nobody_there_and_no_such_name_are_told_apart_from_a_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "ConnectionRefusedError" in refused(f"http://127.0.0.1:{port}/s3cret")
    assert "has no address" in refused("https://no-such-host.invalid/s3cret")


def test_a_message_that_is_too_large_is_not_sent(hook: Hooks) -> None:
    with pytest.raises(NotDelivered, match="larger than"):
        post(hook.url, KEY, "m-1", b"x" * (webhook.MAX_BODY + 1), HERE)
    assert hook.received == []


def test_nothing_of_a_webhook_is_logged(hook: Hooks, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    post(hook.url, KEY, "m-1", BODY, HERE)
    refused(hook.url, ())
    assert "s3cret" not in caplog.text and shown_secret(KEY) not in caplog.text


ALERT = {
    "remedy": "Read the logs.",
    "began_at": "2026-11-30T12:00:00Z",
    "fired_at": "2026-11-30T12:01:00Z",
    "resolved_at": None,
}
MAIL = {"event": "fired", "text": "Critical: KV transfers fail:\n llama", "url": "http://c/alerts/7", "alert": ALERT}


def test_an_e_mail_arrives_with_an_id_by_which_a_repetition_is_known(settings: Any) -> None:
    with mailbox() as box:
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", box.port
        mail.send(["a@example.com", "b@example.com"], "m-1", MAIL)
        mail.send(["a@example.com", "b@example.com"], "m-1", MAIL)
    assert box.to == [["a@example.com", "b@example.com"]] * 2
    first, again = box.messages
    assert first["message-id"] == again["message-id"] == "<m-1@twinpool>"
    assert first["subject"] == "[Twinpool] Critical: KV transfers fail: llama", "one line, whatever the names"
    assert "What to do: Read the logs." in first.get_content() and "http://c/alerts/7" in first.get_content()


def test_a_mail_server_that_refuses_or_is_away_is_said_so(settings: Any) -> None:
    with mailbox() as box:
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", box.port
        box.refuse = "451 s3cret reasons"
        with pytest.raises(NotDelivered, match="answered 451") as told:
            mail.send(["a@example.com"], "m-1", MAIL)
        assert "s3cret" not in str(told.value)
    with pytest.raises(NotDelivered, match="ConnectionRefusedError"):
        mail.send(["a@example.com"], "m-1", MAIL)
    settings.EMAIL_HOST = ""
    with pytest.raises(NotDelivered, match="TWINPOOL_SMTP_URL"):
        mail.send(["a@example.com"], "m-1", MAIL)


@pytest.mark.parametrize("text", ["", "nobody", "a@b@c", "a@example.com\r\nBcc: x@y.z", ",".join(["a@example.com"] * 21)])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="e-mail address"):
        mail.parse_addresses(text)


def test_a_mail_server_is_read_from_its_url_and_its_password_is_not_printed() -> None:
    server = read_smtp("smtp+starttls://me:p%40ss@mail.example.com")
    assert (server.host, server.port, server.password, server.starttls) == ("mail.example.com", 587, "p@ss", True)
    assert "p@ss" not in repr(server)
    for wrong in ("http://mail", "smtps://", "smtps://a:b", "smtps://a/path", "nothing"):
        with pytest.raises(ValueError, match="write smtps"):
            read_smtp(wrong)
