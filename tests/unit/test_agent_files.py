"""Logs, records, ports, secrets: what an agent keeps on its machine."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from workers import logs, main, ports
from workers.engines.base import SpecRefused
from workers.launching import read_secret
from workers.main import AlreadyRunning, only_agent
from workers.processes import Marker, child_environment
from workers.records import EngineRecord, RecordStore


def test_a_tail_goes_back_into_the_rotated_part(tmp_path: Path) -> None:
    (tmp_path / "e.log.1").write_text("a\nb\n")
    (tmp_path / "e.log").write_text("c\nd")
    assert logs.tail(tmp_path / "e.log", 3) == ["b", "c", "d"]


def test_a_tail_is_bounded_in_lines_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "e.log").write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert len(logs.tail(tmp_path / "e.log", 10**9)) == logs.MAX_LINES
    assert logs.tail(tmp_path / "e.log", 2, max_bytes=12) == ["8", "line 9999"]
    assert logs.tail(tmp_path / "e.log", -3) == []
    assert logs.tail(tmp_path / "none.log", 5) == []


def test_a_tail_holds_printable_text_only(tmp_path: Path) -> None:
    (tmp_path / "e.log").write_bytes(b"\x1b[31mred\x1b[0m\r\nbad \xff\x00byte\n")
    assert logs.tail(tmp_path / "e.log", 5) == ["red", "bad \ufffdbyte"]


def test_logs_of_old_incarnations_are_pruned_and_of_other_engines_kept(tmp_path: Path) -> None:
    for name in ("e-1.0.1.log", "e-1.0.1.log.1", "e-1.0.2.log", "e-1.0.4.log", "e-1.1.1.log", "e-10.0.1.log"):
        (tmp_path / name).touch()
    logs.prune(tmp_path, "e-1", 0, keep=2, newest=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e-1.0.4.log", "e-1.1.1.log", "e-10.0.1.log"]


def test_records_survive_and_are_private(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records")
    assert store.load() == []
    record = EngineRecord("e-1", 0, 3, incarnation=2, state="ready", pid=7, process="boot:1", started_at=1.5)
    store.save(record)
    store.save(replace(record, state="failed"))
    assert store.load() == [replace(record, state="failed")]
    assert (tmp_path / "records" / "e-1.0.json").stat().st_mode & 0o777 == 0o600
    store.forget(record)
    assert store.load() == []


@pytest.mark.parametrize("damage", ["", "{", '{"id": "e-1"}', '{"id": 7, "rank": 0, "spec_generation": 1}'])
def test_a_damaged_record_is_set_aside_and_the_others_are_read(tmp_path: Path, damage: str) -> None:
    store = RecordStore(tmp_path)
    store.save(EngineRecord("e-2", 0, 1))
    (tmp_path / "e-1.0.json").write_text(damage)
    assert [record.id for record in store.load()] == ["e-2"]
    assert (tmp_path / "e-1.0.damaged").exists()


def test_a_record_never_leaves_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not an engine id"):
        RecordStore(tmp_path / "records").save(EngineRecord("../x", 0, 1))


def test_ports_come_from_the_asked_for_to_the_last_to_any() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        taken = busy.getsockname()[1]
        free = ports.choose("127.0.0.1", 0, taken, set())
        assert free != taken and ports.LOW <= free < ports.HIGH
        assert ports.choose("127.0.0.1", 0, free, set()) == free
        assert ports.choose("127.0.0.1", 0, free, {free}) != free
        with pytest.raises(ports.NoPort, match=f"port {taken} on 127.0.0.1 is in use"):
            ports.choose("127.0.0.1", taken, 0, set())


def test_an_address_of_another_machine_is_an_error_not_a_busy_port() -> None:
    with pytest.raises(OSError, match="assign"):
        ports.choose("192.0.2.1", 0, 0, set())


def test_secrets_of_a_node_are_files_and_a_missing_one_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "hub").write_text("token\n")
    assert read_secret(tmp_path, "hub") == "token"
    with pytest.raises(SpecRefused, match="write its value to"):
        read_secret(tmp_path, "other")
    with pytest.raises(SpecRefused, match="not the name of a secret"):
        read_secret(tmp_path, "../node.key")


def test_an_engine_inherits_neither_broker_nor_key_of_its_agent(tmp_path: Path) -> None:
    own = {"PATH": "/bin", "TWINPOOL_VALKEY_URL": "redis://:pw@h", "AWS_SECRET_ACCESS_KEY": "s", "NCCL_DEBUG": "INFO"}
    marker = Marker("n1", "e-1", 0, 3)
    assert child_environment(own, {"VLLM_API_KEY": "k"}, marker, tmp_path) == {
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
        "VLLM_API_KEY": "k",
        "TWINPOOL_ENGINE": "n1/e-1/0/3",
        "TWINPOOL_ENGINE_HOME": str(tmp_path),
    }


def test_a_state_folder_belongs_to_one_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "LOCK_WAIT_S", 0.0)
    with only_agent(tmp_path), pytest.raises(AlreadyRunning, match="another agent runs"), only_agent(tmp_path):
        pass
    with only_agent(tmp_path):
        pass


def test_secrets_are_hidden_by_value_by_name_and_by_look() -> None:
    key = "0123456789abcdef"
    said = {
        f"key {key}.": "key [secret].",
        "GET /v1 Authorization: Bearer abcdefgh.ijk": "GET /v1 Authorization: Bearer [secret]",
        "pull https://me:pass@host/x": "pull https://[secret]@host/x",
        "token hf_abcdefghijkl end": "token [secret] end",
        "'api_key': ['letmein'], 'seed': 1": "'api_key': ['[secret]'], 'seed': 1",
        'DB_PASSWORD="hunter22"': 'DB_PASSWORD="[secret]"',
        "HF_TOKEN=abcd1234": "HF_TOKEN=[secret]",
        "max_num_batched_tokens=8192 tokenizer='x'": "max_num_batched_tokens=8192 tokenizer='x'",
        "prompt tokens: 4096": "prompt tokens: 4096",
    }
    assert {text: logs.hide(text, [key, ""]) for text in said} == said
    assert logs.hide(f"{key[5:]} was cut\n{key}", [key]) == "[secret] was cut\n[secret]"
    assert logs.hide("def is no end of it", [key]) == "def is no end of it"
