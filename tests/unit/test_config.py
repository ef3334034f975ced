"""Settings from the environment: what a wrong one says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane.config import BadSetting, config


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    config.cache_clear()
    yield
    config.cache_clear()


@pytest.mark.parametrize("endpoint", ["", "tcp://10.0.0.5:5557", "tcp://127.0.0.1:5557"])
def test_kv_events_go_to_a_private_address_or_nowhere(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINPOOL_KV_EVENTS", endpoint)
    assert config().kv_events == endpoint


@pytest.mark.parametrize("endpoint", ["5557", "tcp://8.8.8.8:5557", "tcp://10.0.0.5:99999"])
def test_kv_events_for_the_world_are_refused_by_name(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINPOOL_KV_EVENTS", endpoint)
    with pytest.raises(BadSetting, match=r"TWINPOOL_KV_EVENTS is wrong .*(private address|tcp://ADDRESS:PORT)"):
        config()


def test_whether_keys_are_required_is_yes_or_no(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not config().require_key
    config.cache_clear()
    monkeypatch.setenv("TWINPOOL_REQUIRE_KEY", "perhaps")
    with pytest.raises(BadSetting, match="TWINPOOL_REQUIRE_KEY is wrong"):
        config()
