"""Advice beside the requests that ask for it: simulating takes seconds of processor time, so a web process hands a question
to a process of its own, one at a time, and is asked again for what is known by then.

Not a Celery task: the control workers' threads tick, and the advisor needs neither broker nor fleet. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from controlplane.physics.advicequestion import Question
from controlplane.physics.children import answers

MODULE = "controlplane.physics.advicequestion"
MAX_WAITING = 16
"""Questions, of up to 2 MB each."""
KEPT = 128
"""Answers, of some 5 kB each."""
ASKED_S = 60.0
"""Nobody waits for what was not asked for again for so long: it is dropped, also while it is simulated."""
WITHIN_S = 180.0
"""Of one question: about ten times what one takes."""

State = Literal["waiting", "working", "done", "refused", "failed"]


class DeskFull(Exception):
    """Too many questions wait."""


@dataclass(frozen=True)
class Seen:
    """What is known of a question. `advice`: the newest document, the closed form's while it is simulated; `share`: of the
    simulation that is done; `reason`: why there is no advice, or no better one; `ahead`: questions before it."""

    id: str
    state: State = "waiting"
    advice: dict[str, Any] | None = None
    what: str = ""
    share: float | None = None
    reason: str = ""
    ahead: int = 0

    @property
    def over(self) -> bool:
        return self.state not in ("waiting", "working")


@dataclass
class _Work:
    question: Question | None
    """None once it is answered."""
    seen: Seen
    asked_s: float = field(default_factory=time.monotonic)

    @property
    def wanted(self) -> bool:
        return time.monotonic() - self.asked_s <= ASKED_S


class Desk:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: OrderedDict[str, _Work] = OrderedDict()
        """The oldest question first."""
        self._thread: threading.Thread | None = None

    def ask(self, question: Question) -> Seen:
        """What is known of the question, which is begun if it is new or failed last time. Raises DeskFull."""
        with self._lock:
            known = self._works.get(question.id)
            if known is None or known.seen.state == "failed":
                self._begin(question)
            return self._look(question.id)

    def seen(self, id: str) -> Seen | None:
        """What is known of a question that was asked; None: it never was, or so long ago that its answer is not kept."""
        with self._lock:
            return self._look(id) if id in self._works else None

    def _begin(self, question: Question) -> None:
        self._drop_unwanted()
        waiting = sum(work.seen.state == "waiting" for work in self._works.values())
        if waiting >= MAX_WAITING:
            raise DeskFull(f"{waiting} questions wait for the advisor already: ask again in a minute")
        self._works.pop(question.id, None)
        self._works[question.id] = _Work(question, Seen(question.id))
        for id in [id for id, work in self._works.items() if work.seen.over][: max(0, len(self._works) - KEPT)]:
            del self._works[id]
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="advice", daemon=True)
            self._thread.start()

    def _look(self, id: str) -> Seen:
        work = self._works[id]
        work.asked_s = time.monotonic()
        if work.seen.state != "waiting":
            return work.seen
        before = list(self._works)[: list(self._works).index(id)]
        return replace(work.seen, ahead=sum(not self._works[other].seen.over for other in before))

    def _run(self) -> None:
        while work := self._next():
            assert work.question is not None
            with closing(answers(MODULE, work.question.to_json(), WITHIN_S)) as told:
                for kind, value in told:
                    with self._lock:
                        work.seen = _learned(work.seen, kind, value)
                    if not work.wanted:
                        break
            with self._lock:
                work.question, work.seen = None, _ended(work.seen)

    def _next(self) -> _Work | None:
        """The oldest question that waits; the thread ends with none."""
        with self._lock:
            self._drop_unwanted()
            found = next((work for work in self._works.values() if work.seen.state == "waiting"), None)
            if found is None:
                self._thread = None
            else:
                found.seen = replace(found.seen, state="working")
            return found

    def _drop_unwanted(self) -> None:
        for id in [id for id, work in self._works.items() if work.seen.state == "waiting" and not work.wanted]:
            del self._works[id]


def _learned(seen: Seen, kind: str, value: Any) -> Seen:
    match kind:
        case "progress":
            return replace(seen, what=value["what"], share=value["share"])
        case "closed":
            return replace(seen, advice=value)
        case "final":
            return replace(seen, state="done", advice=value, what="", share=None)
        case "unsimulated":
            return replace(seen, state="done", reason=value, what="", share=None)
        case _:
            return replace(seen, state="refused", reason=value, what="", share=None)


def _ended(seen: Seen) -> Seen:
    """When its process has said all it says."""
    if seen.over:
        return seen
    ended = replace(seen, state="failed", what="", share=None)
    why = f"ended early or took more than {WITHIN_S:.0f} s; the web process's log has the reason. Ask again"
    if seen.advice is None:
        return replace(ended, reason=f"The calculation {why}, or with fewer GPUs.")
    return replace(ended, reason=f"The simulation {why}; this is the closed form.")


@cache
def desk() -> Desk:
    """This process's."""
    return Desk()
