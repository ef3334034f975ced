"""When an engine is quiet, and when it hangs."""

from __future__ import annotations

from workers.metrics import Page
from workers.vitals import Vitals, after_miss, after_scrape

IDLE = Page(running=0, waiting=0, kv_usage=None)
BUSY = Page(running=0, waiting=1, kv_usage=None)


def test_an_engine_is_quiet_after_two_idle_scrapes_a_second_apart() -> None:
    first = after_scrape(Vitals(0.0), IDLE, 10.0)
    assert first.quiet_since is None
    assert after_scrape(first, IDLE, 10.4).quiet_since is None
    assert after_scrape(first, IDLE, 11.0).quiet_since == 10.0


def test_a_waiting_request_breaks_the_quiet() -> None:
    quiet = after_scrape(after_scrape(Vitals(0.0), IDLE, 10.0), IDLE, 11.0)
    busy = after_scrape(quiet, BUSY, 12.0)
    assert busy.quiet_since is None
    assert after_scrape(after_scrape(busy, IDLE, 13.0), IDLE, 14.0).quiet_since == 13.0


def test_a_missed_scrape_breaks_the_quiet_because_nobody_knows() -> None:
    quiet = after_scrape(after_scrape(Vitals(0.0), IDLE, 10.0), IDLE, 11.0)
    missed = after_miss(quiet, "no answer")
    assert missed.quiet_since is None and missed.scraped_at == 11.0
    assert after_scrape(missed, IDLE, 13.0).quiet_since is None


def test_an_engine_hangs_when_it_answered_no_scrape_for_over_ten_seconds() -> None:
    assert not Vitals(100.0).hung(109.0)
    assert Vitals(100.0).hung(111.0)
    answered = after_scrape(Vitals(100.0), IDLE, 105.0)
    assert not answered.hung(114.0) and answered.hung(116.0)


def test_an_old_page_does_not_stand_for_now() -> None:
    answered = after_scrape(Vitals(100.0), IDLE, 105.0)
    assert answered.fresh(107.0) is IDLE
    assert answered.fresh(109.0) is None
