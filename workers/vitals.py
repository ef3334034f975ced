"""How a serving engine is doing, scrape by scrape. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from workers.metrics import Page

QUIET_AFTER_S = 1.0
HUNG_AFTER_S = 10.0
FRESH_S = 3.0


@dataclass(frozen=True)
class Vitals:
    """`since`: when this engine began to be scraped. Times are Unix seconds."""

    since: float
    page: Page | None = None
    scraped_at: float | None = None
    zero_since: float | None = None
    """The first of an unbroken row of scrapes that showed no request."""
    quiet_since: float | None = None
    problem: str = ""

    def fresh(self, now: float) -> Page | None:
        """The last page, if it is young enough to stand for now."""
        return self.page if self.scraped_at is not None and now - self.scraped_at <= FRESH_S else None

    def hung(self, now: float) -> bool:
        return now - (self.scraped_at or self.since) > HUNG_AFTER_S


def after_scrape(before: Vitals, page: Page, now: float) -> Vitals:
    """Quiet needs two scrapes at least a second apart that both show nothing running and nothing waiting."""
    zero_since = None if page.running + page.waiting else (before.zero_since or now)
    quiet = zero_since is not None and now - zero_since >= QUIET_AFTER_S
    return replace(
        before, page=page, scraped_at=now, zero_since=zero_since, quiet_since=zero_since if quiet else None, problem=""
    )


def after_miss(before: Vitals, problem: str) -> Vitals:
    """A failed scrape breaks the quiet: what happened in between is not known."""
    return replace(before, zero_since=None, quiet_since=None, problem=problem)
