"""A routing table is refused as a whole for one value that a router could not live with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.core.codec import WrongShape, decode, encode
from controlplane.core.protocol import VERSION, EngineRoute, KeyEntry, ModelRoute, Rank, RoutingTable
from controlplane.core.table import build_table
from controlplane.core.world import EngineState
from controlplane.router.engines import Directory
from controlplane.router.limits import Limits

E1 = EngineRoute("e-1", "http://10.0.0.1:8000", "mixed")


def document(engine: dict[str, Any] | None = None, **fields: Any) -> Any:
    route = encode(E1) | (engine or {})
    model = encode(ModelRoute("m", "monolithic")) | {"engines": [route]} | fields
    return encode(RoutingTable(VERSION, 1)) | {"models": [model]}


@pytest.mark.parametrize("url", ["http://a_b.c:1", "http://[::1]:65535", "http://engine-7:8000"])
def test_good_addresses_are_taken(url: str) -> None:
    assert decode(RoutingTable, document({"url": url})).models[0].engines[0].url == url


BAD_URLS = [
    "", "http://h", "http://h:0", "http://h:65536", "http://h:abc", "http://[bad:1", "http://[::g]:1", "https://h:1",
    "http://u:p@h:1", "http://h:1/", "http://h:1?x", "http://h:1\r\nx: y", "http:// h:1", "http://:1", "http://h:1\n",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(WrongShape, match="must be http://host:port"):
        decode(RoutingTable, document({"url": url}))


BAD: list[tuple[Any, str]] = [
    (document({"id": "e; reason=x"}), "id 'e; reason=x'"),
    (document({"id": "e\r\nx: y"}), "id"),
    (document({"id": ""}), "id ''"),
    (document({"engine_key": "a\r\nx: y"}), "engine_key must"),
    (document(name="m\n"), "name"),
    (document(aliases=["a\x00"]), "name"),
    (document(kv_lease_s=0), "kv_lease_s"),
    (document(kv_lease_s=-1.5), "kv_lease_s"),
    (document(engines=[encode(E1), encode(E1)]), "listed twice"),
    (document() | {"keys": [encode(KeyEntry("é" * 64, "t"))]}, "sha256"),
]


@pytest.mark.parametrize(("table", "why"), BAD, ids=[why for _, why in BAD])
def test_a_bad_table_is_refused_with_its_fault(table: Any, why: str) -> None:
    with pytest.raises(WrongShape, match=why):
        decode(RoutingTable, table)


def test_control_leaves_out_an_engine_with_a_bad_address_and_keeps_the_others() -> None:
    good = EngineState("e-1", "m", "mixed", 1, (Rank("n1", ("g",)),), state="ready", url="http://h:1", incarnation=2)
    bad = replace(good, id="e-2", url="http://h:99999", number=2)
    table, left_out = build_table([ModelRoute("m", "monolithic")], [good, bad], {}, (0, 1))
    assert [engine.id for engine in table.models[0].engines] == ["e-1"]
    assert "http://host:port" in left_out["e-2"]


async def test_a_table_that_cannot_be_applied_leaves_no_trace() -> None:
    directory = Directory(None, Limits())
    directory.apply(RoutingTable(VERSION, 1, models=(ModelRoute("m", "monolithic", (E1,)),)))
    before = directory.engines.copy()
    bad = ModelRoute("n", "monolithic", (replace(E1, id="e-2", url="http://[bad:1"),))
    table = RoutingTable(VERSION, 2, models=(ModelRoute("m", "monolithic", (replace(E1, role="decode"),)),))
    object.__setattr__(table, "models", (*table.models, bad))  # as no check of the table lets it through
    with pytest.raises(ValueError, match="IPv6"):
        directory.apply(table)
    assert directory.engines == before
    assert directory.models["m"].engines[0].route.role == "mixed"
    assert directory.table is not None
    assert directory.table.generation == 1
