"""The eras of a prefix cache: which salt is used, and when it changes."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.eras import Era, Eras


def eras(number: int = 0, salt: str = "") -> Eras:
    numbers = count(1)
    return Eras(lambda: f"salt{next(numbers)}", number, salt)


def test_the_first_era_has_no_salt() -> None:
    assert (eras().current.salt, eras().current.number) == ("", 0)


def test_while_a_leg_is_looked_into_the_next_are_sent_under_another_salt() -> None:
    one = eras()
    first = one.current
    one.doubt(first)
    assert not first.sound
    assert one.current.salt == "salt1"
    assert one.base is first


def test_if_all_was_well_the_old_salt_goes_on() -> None:
    one = eras()
    first = one.current
    one.doubt(first)
    provisional = one.current
    assert not one.settle(first, kept=True)
    assert one.current is first
    assert first.sound and provisional.sound


def test_if_not_the_provisional_salt_stays_and_is_news() -> None:
    one = eras()
    first = one.current
    one.doubt(first)
    provisional = one.current
    assert one.settle(first, kept=False)
    assert one.current is one.base is provisional
    assert (provisional.number, first.sound) == (1, False)


def test_legs_that_were_late_together_change_the_salt_once() -> None:
    one = eras()
    first = one.current
    one.doubt(first)
    one.doubt(first)
    assert one.settle(first, kept=False)
    assert not one.settle(first, kept=False)
    assert not one.lose(first)
    assert one.base.number == 1


def test_what_another_router_found_out_is_taken_over_if_it_is_newer() -> None:
    one = eras()
    first = one.current
    assert one.adopt(1, "b")
    assert not first.sound
    assert (one.current.number, one.current.salt) == (1, "b")
    assert not one.adopt(1, "a")
    assert not one.adopt(1, "b")
    one.lose(one.current)
    assert (one.base.number, one.base.salt) == (2, "salt1")


STEPS = st.lists(
    st.one_of(
        st.just(("doubt",)),
        st.tuples(st.just("settle"), st.booleans(), st.integers(0, 20)),
        st.tuples(st.just("lose"), st.integers(0, 20)),
        st.tuples(st.just("adopt"), st.integers(0, 4)),
    ),
    max_size=30,
)


@given(STEPS)
def test_nothing_is_ever_sent_under_a_salt_that_was_lost_or_is_looked_into(steps: list[tuple[object, ...]]) -> None:
    one = eras()
    seen, open_doubts, lost, before = [one.current], list[Era](), set[str](), one.base
    for name, *values in steps:
        if name == "doubt":
            open_doubts.append(one.current)
            one.doubt(one.current)
        elif name == "settle" and open_doubts:
            era = open_doubts.pop(int(values[1]) % len(open_doubts))  # type: ignore[call-overload]
            one.settle(era, bool(values[0]))
            lost |= set() if values[0] else {era.salt}
        elif name == "lose":
            era = seen[int(values[0]) % len(seen)]  # type: ignore[call-overload]
            one.lose(era)
            lost.add(era.salt)
        elif name == "adopt" and one.adopt(int(values[0]), f"zz{values[0]}"):  # type: ignore[call-overload]
            lost.add(before.salt)
        assert one.current.sound and one.current.salt not in lost
        assert one.base.salt not in lost
        assert (one.base.number, one.base.salt) >= (before.number, before.salt)
        before = one.base
        seen.append(one.current)
