"""Which path and which engine, decided from tables of cases."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path as FilePath
from typing import Any

import pytest

from controlplane.core import routing
from controlplane.core.pairing import NOT_VERIFIED
from controlplane.core.protocol import Canary, EngineRoute, ModelRoute
from controlplane.core.routing import REASON_DOCS, Links, Load, Path, Rates, Reason, Request


@dataclass
class Engine:
    route: EngineRoute
    load: Load = field(default_factory=Load)
    rates: Rates = field(default_factory=Rates)
    links: Links = field(default_factory=Links)
    kv_tokens: int = 0
    usable: bool = True

    @property
    def salt(self) -> int:
        return int.from_bytes(sha256(self.route.id.encode()).digest()[:8])


def engine(id: str, role: Any, *, usable: bool = True, **fields: Any) -> Engine:
    return Engine(EngineRoute(id, "http://x", role, **fields), usable=usable)


def request(**fields: Any) -> Request:
    return Request(**{"prompt_tokens": 1000, "output_tokens": 200, "session": 1, **fields})


P, D, M = engine("p", "prefill"), engine("d", "decode"), engine("m", "mixed")
DOWN_P, DRAINING_P = engine("p", "prefill", usable=False), engine("p", "prefill", state="draining")
OTHER_P = engine("p", "prefill", compat="other")
SPLIT: dict[str, Any] = {"mode": "disaggregated"}

PATHS: list[tuple[str, dict[str, Any], list[Engine], dict[str, Any], Path, Reason]] = [
    ("monolithic", {"mode": "monolithic"}, [M], {}, Path.WHOLE, Reason.MONOLITHIC),
    ("any role serves a monolithic model", {"mode": "monolithic"}, [D], {}, Path.WHOLE, Reason.MONOLITHIC),
    ("no engine", {"mode": "monolithic"}, [], {}, Path.NONE, Reason.NO_ENGINE),
    ("disaggregated", SPLIT, [P, D], {}, Path.DISAGGREGATED, Reason.DISAGGREGATED),
    ("no prefill", SPLIT, [D], {}, Path.WHOLE, Reason.PREFILL_UNAVAILABLE),
    ("prefill set aside", SPLIT, [DOWN_P, D], {}, Path.WHOLE, Reason.PREFILL_UNAVAILABLE),
    ("prefill draining", SPLIT, [DRAINING_P, D], {}, Path.WHOLE, Reason.PREFILL_UNAVAILABLE),
    ("prefill does not fit", SPLIT, [OTHER_P, D], {}, Path.WHOLE, Reason.PREFILL_UNAVAILABLE),
    ("no decode", SPLIT, [P], {}, Path.WHOLE, Reason.DECODE_UNAVAILABLE),
    ("only mixed engines yet", SPLIT, [M], {}, Path.WHOLE, Reason.PREFILL_UNAVAILABLE),
    ("strict without prefill", {**SPLIT, "strict": True}, [D], {}, Path.NONE, Reason.NO_ENGINE),
    ("strict with both", {**SPLIT, "strict": True}, [P, D], {}, Path.DISAGGREGATED, Reason.DISAGGREGATED),
    ("unsplittable", SPLIT, [P, D], {"splittable": False}, Path.WHOLE, Reason.UNSUPPORTED_SPLIT),
    ("unsplittable, strict", {**SPLIT, "strict": True}, [P, D], {"splittable": False}, Path.WHOLE, Reason.UNSUPPORTED_SPLIT),
    ("embedding", SPLIT, [P, D], {"generates": False}, Path.WHOLE, Reason.WHOLE_ENDPOINT),
    ("conditional, long", {"mode": "conditional"}, [P, D], {}, Path.DISAGGREGATED, Reason.CONDITIONAL_REMOTE),
    ("conditional, short", {"mode": "conditional"}, [P, D], {"prompt_tokens": 9}, Path.WHOLE, Reason.CONDITIONAL_SHORT),
    ("conditional without pair", {"mode": "conditional"}, [M], {}, Path.WHOLE, Reason.CONDITIONAL_NO_PAIR),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "engines", "need", "path", "reason"), [case[1:] for case in PATHS], ids=[c[0] for c in PATHS]
)
def test_the_path_follows_mode_and_engines(model: Any, engines: Any, need: Any, path: Path, reason: Reason) -> None:
    decision = routing.decide_path(ModelRoute("m", **model), engines, request(**need))
    assert (decision.path, decision.reason) == (path, reason)


def test_every_reason_is_documented() -> None:
    assert set(REASON_DOCS) == set(Reason)
    assert all(text.endswith(".") for text in REASON_DOCS.values())
    page = (FilePath(__file__).parents[2] / "docs" / "routing.md").read_text()
    missing = [f"| `{reason}` | {text} |" for reason, text in REASON_DOCS.items() if f"| `{reason}` | {text} |" not in page]
    assert missing == [], "add these rows to docs/routing.md"


def test_the_engine_with_the_least_work_is_chosen() -> None:
    idle, busy = engine("a", "prefill"), engine("b", "prefill")
    busy.load.reserve(50_000, 0)
    for session in range(20):
        assert routing.choose("prefill", [busy, idle, D], request(session=session)).engine is idle


def test_a_faster_kind_of_gpu_takes_more_work() -> None:
    slow, fast = engine("slow", "prefill"), engine("fast", "prefill")
    slow.rates, fast.rates = Rates(prefill=5_000), Rates(prefill=15_000)
    taken: Counter[str] = Counter()
    for session in range(400):
        chosen = routing.choose("prefill", [slow, fast, D], request(session=session)).engine
        assert chosen
        chosen.load.reserve(1000, 0)
        taken[chosen.route.id] += 1
    assert 2.7 < taken["fast"] / taken["slow"] < 3.3


def test_a_low_weight_ramps_an_engine_in() -> None:
    new, old = engine("new", "mixed", weight=0.1), engine("old", "mixed")
    taken: Counter[str] = Counter()
    for session in range(220):
        chosen = routing.choose("whole", [new, old], request(session=session)).engine
        assert chosen
        chosen.load.reserve(1000, 200)
        taken[chosen.route.id] += 1
    assert 8 < taken["old"] / taken["new"] < 12


def test_a_full_engine_waits_for_a_place() -> None:
    full, free = engine("full", "decode", max_num_seqs=2), engine("free", "decode")
    for _ in range(2):
        full.load.reserve(0, 50)
        free.load.reserve(0, 80)
    assert routing.choose("decode", [full, free], request()).engine is free


def test_idle_engines_keep_their_sessions_and_share_them_evenly() -> None:
    engines = [engine(f"e{number}", "mixed") for number in range(4)]
    first = {session: routing.choose("whole", engines, request(session=session)).engine for session in range(2000)}
    again = {session: routing.choose("whole", engines[::-1], request(session=session)).engine for session in range(2000)}
    assert first == again
    assert all(400 < count < 600 for count in Counter(each.route.id for each in first.values() if each).values())
    fewer = {session: routing.choose("whole", engines[:3], request(session=session)).engine for session in range(2000)}
    moved = [session for session in first if first[session] in engines[:3] and first[session] is not fewer[session]]
    assert moved == []


def test_whole_requests_prefer_mixed_then_decode_then_prefill() -> None:
    assert routing.choose("whole", [P, D, M], request()).engine is M
    assert routing.choose("whole", [P, D], request()).engine is D
    assert routing.choose("whole", [P], request()).engine is P


def test_only_engines_that_fit_are_paired() -> None:
    one, other = engine("one", "prefill", compat="1"), engine("other", "prefill", compat="2")
    decodes = [engine("d1", "decode", compat="1"), engine("d3", "decode", compat="3")]
    for session in range(10):
        chosen = routing.choose("prefill", [one, other, *decodes], request(session=session))
        assert chosen.engine is one
        assert routing.choose("decode", decodes, request(session=session), prefill=chosen.engine.route).engine is decodes[0]


def test_pairs_that_are_not_verified_yet_are_not_chosen() -> None:
    """A new decode engine is verified with one prefill engine so far, and another prefill engine with no decode engine."""
    old_p, new_p = engine("p1", "prefill"), engine("p2", "prefill", peers=("gone",))
    old_d, new_d = engine("d1", "decode"), engine("d2", "decode", peers=("p1",))
    for session in range(20):
        need = request(session=session)
        assert routing.choose("prefill", [old_p, new_p, old_d, new_d], need).engine is old_p
        assert routing.choose("prefill", [old_p, new_p, new_d], need).engine is old_p
        assert routing.choose("decode", [old_d, new_d], need, prefill=new_p.route).engine is None
    chosen = {
        routing.choose("decode", [old_d, new_d], request(session=n), prefill=old_p.route).engine.route.id for n in range(20)
    }  # type: ignore[union-attr]
    assert chosen == {"d1", "d2"}
    unknown = routing.choose("decode", [new_d], request(), prefill=engine("p3", "prefill").route)
    assert unknown.rejected == (("d2", NOT_VERIFIED),)
    split = ModelRoute("m", "disaggregated")
    assert routing.decide_path(split, [old_p, new_d], request()).path is Path.DISAGGREGATED
    assert routing.decide_path(split, [new_p, old_d, new_d], request()).reason is Reason.PREFILL_UNAVAILABLE


LATE = EngineRoute("p", "http://x", "mixed", compat="1")
"""It has finished a prefill; then the table changed."""


def late(id: str, role: Any, **fields: Any) -> Engine:
    usable = fields.pop("usable", True)
    return engine(id, role, usable=usable, **{"compat": "1", **fields})


@pytest.mark.parametrize(
    ("what", "engines", "chosen"),
    [
        ("decode engines stay first", [late("m", "mixed"), late("d", "decode")], "d"),
        ("switched to monolithic", [late("p", "mixed"), late("m", "mixed")], "m"),
        ("only those that fit", [late("x", "mixed", compat="2"), late("m", "mixed"), late("q", "mixed", peers=("z",))], "m"),
        ("roles exchanged", [late("p", "decode"), late("d", "prefill")], "d"),
        ("mixed before prefill", [late("p", "decode"), late("d", "prefill"), late("m", "mixed")], "m"),
        ("the arm is over", [late("m", "mixed", arm="canary"), late("d", "prefill", arm="canary")], "m"),
        ("its own arm first", [late("m", "mixed", arm="canary"), late("d", "prefill")], "d"),
        ("nobody takes from itself", [late("p", "decode")], None),
        ("nor who drains", [late("m", "mixed", state="draining")], None),
        ("nor who is set aside", [late("m", "mixed", usable=False)], None),
        ("a decode engine is only set aside", [late("d", "decode", usable=False), late("m", "mixed")], None),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else None,
)  # fmt: skip
def test_a_finished_prefill_finds_who_can_still_pull_it(what: str, engines: list[Engine], chosen: str | None) -> None:
    choice = routing.choose("decode", engines, request(), prefill=LATE)
    assert (choice.engine.route.id if choice.engine else None) == chosen
    if chosen is None:
        assert all(why for _, why in choice.rejected)


def test_a_refusal_says_why_for_each_engine() -> None:
    engines = [DOWN_P, DRAINING_P, replace(OTHER_P, route=replace(OTHER_P.route, id="o")), D]
    choice = routing.choose("prefill", engines, request(), exclude={"x"})
    assert choice.engine is None
    assert [why for _, why in choice.rejected] == [
        "set aside after failures", "state is draining", routing.NO_PEER, "role is decode",
    ]  # fmt: skip
    assert routing.choose("decode", [D], request(), exclude={"d"}).rejected == (("d", "failed this request"),)


def test_a_canary_takes_its_share_of_sessions_and_keeps_them() -> None:
    model = ModelRoute("m", "disaggregated", canary=Canary("new", "monolithic", 0.25))
    arms = [routing.pick_arm(model, routing.mix(session, 9)) for session in range(4000)]
    assert arms == [routing.pick_arm(model, routing.mix(session, 9)) for session in range(4000)]
    assert 900 < arms.count(("new", "monolithic", True)) < 1100
    main, new = engine("main", "mixed"), engine("new", "mixed", arm="new")
    assert routing.choose("whole", [main, new], request(), "new").engine is new


def test_a_larger_share_moves_only_sessions_that_must_and_each_canary_draws_its_own() -> None:
    def chosen(share: float, id: int = 1) -> set[int]:
        model = ModelRoute("m", "disaggregated", canary=Canary("new", "monolithic", share, id=id))
        return {session for session in range(4000) if routing.pick_arm(model, routing.mix(session, 9)).canary}

    assert chosen(0.1) < chosen(0.25) < chosen(0.5)
    assert 60 < len(chosen(0.25, 1) & chosen(0.25, 2)) < 400
    assert chosen(0.0) == set() and len(chosen(1.0)) == 4000


TRIED: dict[str, Any] = {"mode": "disaggregated", "canary": Canary("new", "monolithic", 1.0)}
TRIED_SPLIT: dict[str, Any] = {"mode": "monolithic", "canary": Canary("new", "disaggregated", 1.0)}
TRIED_SHARED: dict[str, Any] = {"mode": "conditional", "canary": Canary("new", "disaggregated", 1.0, shared=True)}
NM, NP, ND = (engine(f"n{role[0]}", role, arm="new") for role in ("mixed", "prefill", "decode"))
DOWN_NM, DOWN_ND = engine("nm", "mixed", arm="new", usable=False), engine("nd", "decode", arm="new", usable=False)
SHORT: dict[str, Any] = {"prompt_tokens": 9}

CANARIES: list[tuple[str, dict[str, Any], list[Engine], dict[str, Any], Path, Reason, str]] = [
    ("its own engine", TRIED, [P, D, NM], {}, Path.WHOLE, Reason.MONOLITHIC, "new"),
    ("none of its own", TRIED, [P, D], {}, Path.DISAGGREGATED, Reason.CANARY_UNAVAILABLE, "main"),
    ("its own set aside", TRIED, [P, D, DOWN_NM], {}, Path.DISAGGREGATED, Reason.CANARY_UNAVAILABLE, "main"),
    ("neither", TRIED, [DOWN_NM], {}, Path.NONE, Reason.NO_ENGINE, "new"),
    ("its own alone", TRIED, [NM], {}, Path.WHOLE, Reason.MONOLITHIC, "new"),
    ("its own pair", TRIED_SPLIT, [M, NP, ND], {}, Path.DISAGGREGATED, Reason.DISAGGREGATED, "new"),
    ("half a pair", TRIED_SPLIT, [M, NP, DOWN_ND], {}, Path.WHOLE, Reason.CANARY_UNAVAILABLE, "main"),
    ("half a pair, strict", {**TRIED_SPLIT, "strict": True}, [M, NP], {}, Path.WHOLE, Reason.CANARY_UNAVAILABLE, "main"),
    ("half a pair and no main", TRIED_SPLIT, [NP], {}, Path.WHOLE, Reason.DECODE_UNAVAILABLE, "new"),
    ("half a pair, unsplittable", TRIED_SPLIT, [M, NP], {"splittable": False}, Path.WHOLE, Reason.UNSUPPORTED_SPLIT, "new"),
    ("main's engines in its mode", TRIED_SHARED, [P, D], SHORT, Path.DISAGGREGATED, Reason.DISAGGREGATED, "main"),
    ("main's engines without a pair", TRIED_SHARED, [D], SHORT, Path.WHOLE, Reason.PREFILL_UNAVAILABLE, "main"),
    ("shared and no engine", TRIED_SHARED, [], {}, Path.NONE, Reason.NO_ENGINE, "main"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "engines", "need", "path", "reason", "arm"), [case[1:] for case in CANARIES], ids=[c[0] for c in CANARIES]
)
def test_a_session_of_the_canary_is_served_by_it_or_by_main(
    model: Any, engines: Any, need: Any, path: Path, reason: Reason, arm: str
) -> None:
    decision = routing.decide_path(ModelRoute("m", **model), engines, request(**need))
    assert (decision.path, decision.reason, decision.arm, decision.canary) == (path, reason, arm, True)


def test_what_is_reserved_is_given_back_once() -> None:
    load = Load()
    one, two = load.reserve(100, 10), load.reserve(50, 5)
    one.prefill_done()
    assert (load.in_flight, load.prefill_tokens, load.decode_tokens) == (2, 50, 15)
    for _ in range(2):
        one.release()
    assert (load.in_flight, load.prefill_tokens, load.decode_tokens) == (1, 50, 5)
    two.release()
    assert (load.in_flight, load.prefill_tokens, load.decode_tokens) == (0, 0, 0)


def test_rates_follow_what_is_measured() -> None:
    rates = Rates()
    rates.saw_prefill(1000, 0.1)
    assert rates.prefill == pytest.approx(10_000)
    for _ in range(100):
        rates.saw_prefill(1000, 0.2)
    assert rates.prefill == pytest.approx(5000, rel=0.01)
    rates.saw_prefill(0, 1)
    rates.saw_prefill(10, 0)
    assert rates.prefill == pytest.approx(5000, rel=0.01)
    rates.saw_decode(4000)
    rates.saw_decode(10)
    assert 3900 < rates.decode < 4000


@pytest.mark.parametrize(("after_s", "may_start"), [(0, True), (15, True), (15.1, False), (30.1, False)])
def test_a_decode_may_start_in_the_first_half_of_the_lease(after_s: float, may_start: bool) -> None:
    assert routing.decode_may_start(100, 30, 100 + after_s) is may_start


@pytest.mark.parametrize(
    ("policy", "strict", "left", "then"),
    [
        ("retry", False, 1, "retry"), ("retry", False, 0, "local"), ("retry", True, 1, "retry"), ("retry", True, 0, "fail"),
        ("local", False, 1, "local"), ("local", True, 1, "fail"), ("fail", False, 1, "fail"),
    ],
)  # fmt: skip
def test_a_lost_prefill_is_handled_as_the_model_wants(policy: Any, strict: bool, left: int, then: str) -> None:
    assert routing.after_prefill_loss(policy, strict, left) == then
