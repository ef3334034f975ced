"""The page /metrics of a process without a web server, as Prometheus asks for it."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import closing

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from controlplane.common import metrics
from controlplane.common.metrics import by, counter, gauge, one, registry, serve
from controlplane.common.places import Place, read_place
from controlplane.stack.ports import free_port


def fetch(place: Place, path: str = "/metrics", within_s: float = 30.0) -> tuple[int, str]:
    """Status and text, as soon as somebody answers."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            with urllib.request.urlopen(f"http://{place.host}:{place.port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            assert time.monotonic() < deadline, "nobody answers"
            time.sleep(0.05)


def series() -> Iterable[Metric]:
    yield gauge("twinpool_engines", "By state.", by({"ready": 4, 'a"b\\c\n': 1}), ("state",))
    yield counter("twinpool_ticks_total", "Ticks.", one(7))
    yield gauge("twinpool_unknown", "Never told.", one(None))


def broken() -> Iterable[Metric]:
    raise KeyError("gone")


def test_a_page_is_read_by_prometheus_own_parser_and_leaves_out_what_is_not_known() -> None:
    place = Place("127.0.0.1", free_port())
    serve(place, registry(series))
    status, text = fetch(place)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert status == 200
    assert {sample.labels["state"]: sample.value for sample in families["twinpool_engines"].samples} == {
        "ready": 4,
        'a"b\\c\n': 1,
    }
    assert families["twinpool_ticks"].samples[0].value == 7
    assert families["twinpool_unknown"].samples == []
    assert families["process_resident_memory_bytes"].samples[0].value > 0
    assert fetch(place, "/")[0] == 404


def test_a_page_that_cannot_be_made_says_so_and_the_next_one_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    place = Place("127.0.0.1", free_port())
    serve(place, registry(broken))
    assert fetch(place)[0] == fetch(place)[0] == 500
    assert "cannot be made" in caplog.text


def test_a_port_that_is_taken_is_tried_again(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "BIND_EVERY_S", 0.05)
    with closing(socket.create_server(("127.0.0.1", 0))) as holder:
        place = Place("127.0.0.1", holder.getsockname()[1])
        serve(place, registry(series))
        deadline = time.monotonic() + 30
        while "cannot be served yet" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert fetch(place)[0] == 200
    assert caplog.text.count("cannot be served yet") == 1


@pytest.mark.parametrize("text", ["", "9100", "localhost:9100", "127.0.0.1:0", "127.0.0.1:70000", "[::1:9", "1.2.3.4:9a"])
def test_a_place_needs_an_address_and_a_port(text: str) -> None:
    with pytest.raises(ValueError, match="write an IP address and a port"):
        read_place(text)


def test_a_place_may_be_ipv6() -> None:
    assert read_place("[::1]:9100") == Place("::1", 9100)
    assert read_place("127.0.0.1:9100") == Place("127.0.0.1", 9100)
