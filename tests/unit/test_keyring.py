"""The files of the fleet secret and of a node's keys while one secret is changed for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.common.files import BadKey
from controlplane.common.keyring import Keyring, Ring, read_ring, ring_path, write_ring
from controlplane.core import signing
from controlplane.core.signing import BadSignature, mark_of, seal, unseal
from workers.keys import MAX_KEYS, NodeKeys

ONE, TWO, THREE = bytes(32), bytes(range(32)), bytes(range(1, 33))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.key"
    path.write_bytes(ONE)
    path.chmod(0o600)
    return path


def test_a_secret_that_was_never_changed_is_its_file(file: Path) -> None:
    keys = Keyring(file)
    assert (keys.generation, keys.present, keys.newest, list(keys.accepted)) == (0, ONE, ONE, [ONE])
    assert keys.of_incarnation(7) == ONE


def test_files_that_change_are_read_again_and_a_damaged_one_changes_nothing(file: Path) -> None:
    keys = Keyring(file)
    write_ring(file, Ring(0, {0: ONE, 1: TWO}))
    keys.refresh()
    assert (keys.present, keys.newest, list(keys.accepted)) == (ONE, TWO, [ONE, TWO])
    write_ring(file, Ring(1, {0: ONE, 1: TWO}))
    keys.refresh()
    assert (keys.present, list(keys.accepted)) == (TWO, [TWO, ONE]) and file.read_bytes() == TWO
    assert keys.of_incarnation(signing.INCARNATIONS - 1) == ONE and keys.of_incarnation(signing.INCARNATIONS + 1) == TWO
    ring_path(file).write_text("{")
    with pytest.raises(BadKey, match="damaged"):
        keys.refresh()
    assert keys.present == TWO


@pytest.mark.parametrize("text", ["[]", "{}", '{"present": 1, "keys": {"0": "00"}}', '{"present": 0, "keys": {"0": "zz"}}'])
def test_a_ring_that_cannot_be_one_is_refused(file: Path, text: str) -> None:
    ring_path(file).write_text(text)
    ring_path(file).chmod(0o600)
    with pytest.raises(BadKey, match="damaged"):
        read_ring(file)


def test_a_ring_that_others_may_read_is_refused(file: Path) -> None:
    write_ring(file, Ring(0, {0: ONE}))
    ring_path(file).chmod(0o644)
    with pytest.raises(BadKey, match="chmod 600"):
        read_ring(file)


def test_what_is_derived_follows_the_keys_as_they_are(file: Path) -> None:
    keys = Keyring(file)
    table = signing.table_key(keys)
    by_one = seal(table, {"a": 1})
    assert unseal(signing.table_key(ONE), by_one) == {"a": 1}
    write_ring(file, Ring(1, {0: ONE, 1: TWO}))
    keys.refresh()
    assert unseal(table, by_one) == unseal(table, seal(table, {"a": 1})) == {"a": 1}
    assert unseal(signing.table_key(TWO), seal(table, 2)) == 2
    write_ring(file, Ring(1, {1: TWO}))
    keys.refresh()
    with pytest.raises(BadSignature):
        unseal(table, by_one)
    assert ONE.hex() not in repr(keys) and TWO.hex() not in repr(table)


def test_a_node_keeps_newer_keys_over_its_death_and_forgets_those_it_is_told_to(tmp_path: Path) -> None:
    file = tmp_path / "node.keys"
    keys = NodeKeys(file, ONE)
    keys.take(TWO, alone=False)
    keys.take(TWO, alone=False)
    again = NodeKeys(file, ONE)
    assert (again.present, list(again.accepted)) == (TWO, [TWO, ONE])
    assert again.of_mark(mark_of(ONE)) == ONE and again.of_mark("") == ONE and again.of_mark(mark_of(TWO)) == TWO
    again.take(TWO, alone=True)
    assert list(again.accepted) == list(NodeKeys(file, ONE).accepted) == [TWO]
    assert NodeKeys(file, THREE).present == THREE, "it has joined again"
    assert file.stat().st_mode & 0o077 == 0
    for number in range(10):
        again.take(bytes([number] * 32), alone=False)
    assert len(again.accepted) == MAX_KEYS


def test_damaged_keys_of_a_node_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "node.keys"
    for text in ("{", '{"keys": ["00"], "dropped": []}', '{"keys": 1}'):
        file.write_text(text)
        with pytest.raises(BadKey, match="join again"):
            NodeKeys(file, ONE)
