"""What becomes of proposals when the planner looks again."""

from __future__ import annotations

from controlplane.core.planner import Decision, FleetNow, Guards, Hold, Proposal, propose
from controlplane.core.proposals import Rejection, Standing, expired, key_of, review
from tests.planner_kit import NOW, RAG, split, windows


def one() -> Proposal:
    """The decode pool has too much of the GPUs for long prompts."""
    model = split(1, 7, windows(6.0, RAG), level="approve", metrics_at_s=NOW, guards=Guards(moves_per_hour=8))
    return propose(FleetNow((model,)), NOW).proposals[0]


PROPOSED = one()
AGAIN = Decision(NOW, (PROPOSED,), ())


def standing(key: str = key_of(PROPOSED), until_s: float = NOW + 60) -> Standing:
    return Standing(7, "llama", key, until_s)


def test_the_same_change_is_not_proposed_twice() -> None:
    assert review(AGAIN, [], []).made == (PROPOSED,)
    found = review(AGAIN, [standing()], [])
    assert (found.made, found.seen, found.void) == ((), ((7, PROPOSED),), ())


def test_another_change_supersedes_the_open_one() -> None:
    found = review(AGAIN, [standing("another")], [])
    assert found.made == (PROPOSED,) and [(each.number, each.ending) for each in found.void] == [(7, "superseded")]


def test_a_need_that_is_gone_ends_a_proposal_and_a_passing_hindrance_does_not() -> None:
    good = review(Decision(NOW, (), (Hold("llama", "good", "It keeps its targets."),)), [standing()], [])
    assert [(each.number, each.why) for each in good.void] == [(7, "It keeps its targets.")]
    for code in ("stale", "operation", "cooldown", "budget", "few_samples"):
        kept = review(Decision(NOW, (), (Hold("llama", code, "…"),)), [standing()], [])  # type: ignore[arg-type]
        assert not kept.void, code


def test_what_was_rejected_is_not_proposed_again_for_a_time_and_the_hold_says_who_said_no() -> None:
    no = Rejection("llama", key_of(PROPOSED), "ann", "audit week", NOW + 1800)
    found = review(AGAIN, [], [no])
    assert not found.made
    assert found.holds[0].reason == ("ann rejected this change (audit week): it is not proposed again for 30 minutes.")
    over = Rejection("llama", key_of(PROPOSED), "ann", "audit week", NOW)
    assert review(AGAIN, [], [over]).made == (PROPOSED,)
    assert review(AGAIN, [], [Rejection("llama", "another", "ann", "", NOW + 1800)]).made == (PROPOSED,)


def test_a_proposal_expires_at_its_time() -> None:
    assert not expired([standing()], NOW)
    assert [each.ending for each in expired([standing(until_s=NOW)], NOW)] == ["expired"]
