"""A routing table from a file: read again when it changes, kept when the change is no good."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from controlplane.core.protocol import RoutingTable
from controlplane.router.tables import Tables, check_file
from tests.integration.router_kit import TEXT, fakes, running, until, whole_model, write_table


async def test_a_changed_file_is_used_without_a_restart(tmp_path: Path) -> None:
    async with fakes("e1", "e2") as (one, other), running(tmp_path, whole_model(one)) as kit:
        await kit.post(TEXT)
        await kit.apply(whole_model(other))
        await kit.post(TEXT)
        assert [len(one.legs), len(other.legs)] == [1, 1]


async def test_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    async with fakes("e1") as (engine,), running(tmp_path, whole_model(engine)) as kit:
        kit.table.write_text('{"version": 1, "generation": "two"}')
        await until(lambda: kit.router.directory.table)
        assert (await kit.post(TEXT)).status_code == 200
        await kit.apply(whole_model(engine, aliases=("x",)))
        assert (await kit.post({**TEXT, "model": "x"})).status_code == 200


def test_refusals_are_told_once_and_a_lower_generation_is_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    applied: list[RoutingTable] = []
    tables = Tables(applied.append)
    path = tmp_path / "t.json"
    write_table(path, (), 5)
    seen = check_file(path, tables, None)
    assert check_file(path, tables, seen) == seen
    write_table(path, (), 4)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            seen = check_file(path, tables, None)
    assert [table.generation for table in applied] == [5]
    assert len(caplog.records) == 1
    assert "older" in caplog.text


def test_a_file_that_everybody_may_write_is_not_trusted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    applied: list[RoutingTable] = []
    path = tmp_path / "t.json"
    write_table(path, ())
    os.chmod(path, 0o666)
    check_file(path, Tables(applied.append), None)
    assert applied == []
    assert "chmod o-w" in caplog.text
