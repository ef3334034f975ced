"""The end of an engine's log, asked of its node's agent: the engine may be on another machine, so no file is read here.

Many viewers of one log cost its agent one question a second, and an agent that does not answer holds up a few threads of
this process's own, never a page.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from celery.exceptions import TimeoutError as NoAnswer
from django.utils.translation import gettext
from kombu.exceptions import OperationalError

from controlplane.control import commands

MAX_LINES = 500
MAX_LINE_CHARS = 2000
THREADS = 4
MAX_WAITING = 16
ANSWER_WITHIN_S = 3.0
WAIT_S = 2 * ANSWER_WITHIN_S
KEEP_S = 1.0

Key = tuple[str, str, int, int]


class LogAway(Exception):
    """The log cannot be had now; the text says why and what to do."""


@dataclass(frozen=True)
class Tail:
    """`stamp` is another one whenever the lines are."""

    incarnation: int
    lines: list[str]
    stamp: str


@dataclass
class _Asked:
    at: float
    answer: Future[dict[str, Any]]


@dataclass
class LogReader:
    """`wait_s`: for a free thread and for the answer. `keep_s`: so long an answer is good for whoever asks the same."""

    ask: Callable[..., dict[str, Any]] = commands.tail_log
    wait_s: float = WAIT_S
    keep_s: float = KEEP_S
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "engine-log"))
    _asked: dict[Key, _Asked] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def tail(self, node: str, engine: str, rank: int = 0, lines: int = MAX_LINES) -> Tail:
        """The last `lines` lines of the present start. Raises LogAway."""
        try:
            answer = self._question((node, engine, rank, max(1, min(lines, MAX_LINES)))).result(self.wait_s)
        except (NoAnswer, TimeoutError, OperationalError) as error:
            words = gettext("the agent of %(node)s does not answer: see whether it runs") % {"node": node}
            raise LogAway(words) from error
        if "error" in answer:
            raise LogAway(str(answer["error"])[:MAX_LINE_CHARS])
        shown = [str(line)[:MAX_LINE_CHARS] for line in answer["lines"]]
        stamp = hashlib.sha256("\n".join(shown).encode(errors="replace")).hexdigest()[:16]
        return Tail(int(answer["incarnation"]), shown, f"{answer['incarnation']}-{stamp}")

    def _question(self, key: Key) -> Future[dict[str, Any]]:
        node, engine, rank, lines = key
        now = time.monotonic()
        with self._lock:
            self._asked = {
                each: asked for each, asked in self._asked.items() if now - asked.at < self.keep_s or not asked.answer.done()
            }
            known = self._asked.get(key)
            if known is None:
                if sum(not asked.answer.done() for asked in self._asked.values()) >= MAX_WAITING:
                    raise LogAway(gettext("too many logs are being read: try again in a moment"))
                answer = self._threads.submit(self.ask, node, engine, lines, ANSWER_WITHIN_S, rank)
                known = self._asked[key] = _Asked(now, answer)
        return known.answer


reader = LogReader()
