"""What `doctor` makes of figures: each finding that is not ok names a remedy."""

from __future__ import annotations

import pytest

from controlplane.core import checkup
from controlplane.core.checkup import Finding


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (checkup.clock("n1", 0.1), "ok"),
        (checkup.clock("n1", -0.9), "warn"),
        (checkup.clock("n1", 7.0), "fail"),
        (checkup.disk("n1", 50e9, 100e9), "ok"),
        (checkup.disk("n1", 50e9), "ok"),
        (checkup.disk("n1", 5e9, 100e9), "warn"),
        (checkup.disk("n1", 0.5e9), "fail"),
        (checkup.postgres_version(180_003), "ok"),
        (checkup.postgres_version(130_011), "fail"),
        (checkup.valkey_version("9.1.2"), "ok"),
        (checkup.valkey_version("7.2.0"), "ok"),
        (checkup.valkey_version("6.2.7"), "fail"),
        (checkup.valkey_version(""), "fail"),
        (checkup.packages({}), "ok"),
        (checkup.packages({"django": ("5.2.1", "5.1.0")}), "warn"),
        (checkup.engine_versions("m", {"0.25"}), "ok"),
        (checkup.engine_versions("m", {"0.25", "0.26"}), "warn"),
        (checkup.migrations(set(), set()), "ok"),
        (checkup.migrations({"fleet.0099"}, set()), "fail"),
        (checkup.migrations(set(), {"fleet.0099"}), "fail"),
        (checkup.app_role(superuser=False, owns=0, changes_audit=False), "ok"),
        (checkup.app_role(superuser=True, owns=3, changes_audit=True), "fail"),
        (checkup.broker_password("v", asks=True, local=False), "ok"),
        (checkup.broker_password("v", asks=False, local=True), "warn"),
        (checkup.broker_password("v", asks=False, local=False), "fail"),
        (checkup.broker_memory("v", "noeviction", 10, 0)[0], "ok"),
        (checkup.broker_memory("v", "", 10, 0)[0], "ok"),
        (checkup.broker_memory("v", "allkeys-lru", 10, 0)[0], "fail"),
        (checkup.broker_memory("v", "noeviction", 95, 100)[0], "warn"),
        (checkup.fact("agent n1", 2.0, life_s=15), "ok"),
        (checkup.fact("agent n1", 9.0, life_s=15), "warn"),
        (checkup.fact("agent n1", None, life_s=15), "fail"),
        (checkup.table("router r1", (1, 4), (1, 4)), "ok"),
        (checkup.table("router r1", (1, 3), (1, 4)), "warn"),
        (checkup.link("to n1", 60, 100, "seen"), "ok"),
        (checkup.link("to n1", 9, 100, "seen"), "warn"),
        (checkup.connectors("n1", []), "ok"),
        (checkup.connectors("n1", ["nixl"]), "fail"),
    ],
)
def test_a_finding_has_the_level_it_deserves_and_a_remedy(finding: Finding, level: str) -> None:
    assert finding.level == level, finding
    assert bool(finding.remedy) == (level != "ok"), finding


def test_only_what_fails_makes_the_exit_code() -> None:
    assert checkup.exit_code([checkup.clock("a", 0), checkup.clock("a", 1)]) == 0
    assert checkup.exit_code([checkup.clock("a", 0), checkup.clock("a", 9)]) == 1


def test_many_names_are_cut_short() -> None:
    assert checkup.named([f"n{number}" for number in range(9)]) == "n0, n1, n2, n3, n4 and 4 more"
