"""When memory is given back after a burst of connections."""

from __future__ import annotations

from controlplane.router.memory import BURST, QUIET_S, Bursts


def told(bursts: Bursts, *seen: tuple[float, int]) -> list[bool]:
    return [bursts.over(connections, now) for now, connections in seen]


def test_a_burst_is_over_once_when_it_has_been_quiet_for_long_enough() -> None:
    ends = told(Bursts(), (0.0, 2000), (1.0, 10), (1.5, 0), (1.0 + QUIET_S, 10), (2.0 + QUIET_S, 0), (3.0 + 2 * QUIET_S, 0))
    assert ends == [False, False, False, True, False, False]


def test_a_second_burst_is_waited_for() -> None:
    ends = told(Bursts(), (0.0, 2000), (1.0, 0), (2.0, 600), (1.5 + QUIET_S, 0), (2.0 + QUIET_S, 0), (1.5 + 2 * QUIET_S, 0))
    assert ends == [False, False, False, False, False, True]


def test_few_connections_are_no_burst() -> None:
    assert not any(told(Bursts(), (0.0, BURST - 1), (1.0, 0), (60.0, 0), (120.0, 0)))
