"""The continuous-batching scheduler: what shares a step, what waits, and where blocks go."""

from __future__ import annotations

import pytest

from controlplane.core.batching import Change, Cleared, Limits, Removed, Request, Scheduler, Step, Stored


def scheduler(**limits: int | bool) -> Scheduler:
    defaults: dict[str, int | bool] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 100,
        "block_size": 4,
        "num_blocks": 100,
    }
    return Scheduler(Limits(**(defaults | limits)))  # type: ignore[arg-type]


def run(engine: Scheduler) -> tuple[Step, list[Request]]:
    step = engine.schedule()
    assert step is not None
    return step, engine.complete(step)


def tokens_by_id(step: Step) -> dict[int, int]:
    return {work.request.id: work.tokens for work in step.work}


def test_a_prompt_within_the_budget_is_one_step_and_gives_the_first_token() -> None:
    engine = scheduler()
    engine.submit(Request(1, 10))
    step, sampled = run(engine)
    assert step.prefills() == [(10, 0)]
    assert [request.generated for request in sampled] == [1]
    step, _ = run(engine)
    assert step.decodes() == (1, 11)


def test_a_long_prefill_shares_its_steps_with_a_decode() -> None:
    """The decode gets a token in each of the prefill's chunks, each of which lasts as long as its tokens take."""
    engine = scheduler(max_num_batched_tokens=50)
    engine.submit(Request(1, 5))
    run(engine)
    engine.submit(Request(2, 120))
    chunks = []
    for _ in range(3):
        step, sampled = run(engine)
        chunks.append(tokens_by_id(step))
        assert 1 in [request.id for request in sampled]
    assert chunks == [{1: 1, 2: 49}, {1: 1, 2: 49}, {1: 1, 2: 22}]
    assert engine.running[1].generated == 1


def test_running_requests_come_before_waiting_ones() -> None:
    engine = scheduler(max_num_batched_tokens=8)
    engine.submit(Request(1, 20))
    engine.submit(Request(2, 4))
    seen = [tokens_by_id(run(engine)[0]) for _ in range(3)]
    assert seen == [{1: 8}, {1: 8}, {1: 4, 2: 4}]


def test_no_more_sequences_run_than_allowed() -> None:
    engine = scheduler(max_num_seqs=2)
    for number in range(3):
        engine.submit(Request(number, 4))
    run(engine)
    assert [request.id for request in engine.running] == [0, 1]
    assert engine.num_waiting == 1
    engine.finish(engine.running[0])
    run(engine)
    assert [request.id for request in engine.running] == [1, 2]


def test_a_repeated_prefix_is_computed_once() -> None:
    engine = scheduler()
    engine.submit(Request(1, 10, keys=[11, 12]))
    _, (first,) = run(engine)
    engine.finish(first)
    again = Request(2, 10, keys=[11, 12])
    engine.submit(again)
    step, _ = run(engine)
    assert tokens_by_id(step) == {2: 2}
    assert again.local_hit_tokens == 8


def test_at_least_one_token_is_computed_even_if_all_blocks_are_known() -> None:
    engine = scheduler()
    engine.submit(Request(1, 8, keys=[11, 12]))
    _, (first,) = run(engine)
    engine.finish(first)
    engine.submit(Request(2, 8, keys=[11, 12]))
    step, _ = run(engine)
    assert tokens_by_id(step) == {2: 4}


def test_a_prefix_hit_is_shared_while_its_first_owner_runs() -> None:
    engine = scheduler()
    engine.submit(Request(1, 9, keys=[11, 12]))
    run(engine)
    engine.submit(Request(2, 9, keys=[11, 12]))
    run(engine)
    first, second = engine.running
    assert first.blocks[:2] == second.blocks[:2]
    engine.finish(first)
    engine.finish(second)
    assert engine.pool.used == 0


def test_the_least_recently_used_blocks_are_evicted_first() -> None:
    engine = scheduler(num_blocks=6)
    for number, keys in ((1, [11, 12]), (2, [21, 22])):
        engine.submit(Request(number, 9, keys=keys))
        _, (done,) = run(engine)
        engine.finish(done)
    engine.submit(Request(3, 13, keys=[31, 32, 33]))
    _, (done,) = run(engine)
    engine.finish(done)
    assert engine.pool.hit([11, 12], 2) == []
    assert len(engine.pool.hit([21, 22], 2)) == 2


def test_when_blocks_run_out_the_youngest_recomputes() -> None:
    engine = scheduler(num_blocks=5)
    engine.submit(Request(1, 8))
    engine.submit(Request(2, 8))
    run(engine)
    step, _ = run(engine)
    assert [request.id for request in step.preempted] == [2]
    assert tokens_by_id(step) == {1: 1}
    (second,) = engine.waiting
    assert (second.preemptions, second.computed, second.generated) == (1, 0, 1)
    engine.finish(engine.running[0])
    step, sampled = run(engine)
    assert tokens_by_id(step) == {2: 9}
    assert [(request.id, request.generated) for request in sampled] == [(2, 2)]


def test_a_remote_request_waits_outside_the_batch_until_its_kv_is_here() -> None:
    engine = scheduler()
    remote = Request(1, 10, remote=True)
    engine.submit(remote)
    step = engine.schedule()
    assert step is not None
    assert (step.work, step.loads) == ((), (remote,))
    assert remote.external_tokens == 10
    assert engine.schedule() is None
    engine.loaded(remote)
    step, sampled = run(engine)
    assert tokens_by_id(step) == {1: 1}
    assert step.decodes() == (1, 10)
    assert sampled == [remote]


def test_a_remote_request_pulls_only_what_the_cache_does_not_hold() -> None:
    engine = scheduler()
    engine.submit(Request(1, 10, keys=[11, 12]))
    _, (done,) = run(engine)
    engine.finish(done)
    remote = Request(2, 10, keys=[11, 12], remote=True)
    engine.submit(remote)
    engine.schedule()
    assert (remote.local_hit_tokens, remote.external_tokens) == (8, 2)


def test_a_loading_request_holds_up_no_one_behind_it() -> None:
    engine = scheduler()
    engine.submit(Request(1, 10, remote=True))
    engine.submit(Request(2, 10))
    step, _ = run(engine)
    assert tokens_by_id(step) == {2: 10}


def test_a_preempted_remote_request_computes_its_prompt_here() -> None:
    engine = scheduler(num_blocks=5)
    engine.submit(Request(1, 8))
    run(engine)
    remote = Request(2, 8, remote=True)
    engine.submit(remote)
    engine.complete(engine.schedule() or pytest.fail("nothing to run"))
    engine.loaded(remote)
    while not remote.preemptions:
        run(engine)
    engine.finish(engine.running[0])
    step, _ = run(engine)
    assert step.loads == ()
    assert tokens_by_id(step) == {2: remote.prompt_tokens + remote.generated - 1}


def test_held_blocks_stay_until_released() -> None:
    engine = scheduler()
    engine.submit(Request(1, 10))
    _, (done,) = run(engine)
    engine.finish(done, lease_until=30.0)
    assert engine.pool.used == 3
    assert engine.expire(29.9) == []
    assert engine.release(1)
    assert engine.pool.used == 0
    assert not engine.release(1)


def test_held_blocks_are_freed_when_the_lease_ends() -> None:
    engine = scheduler()
    engine.submit(Request(1, 10))
    _, (done,) = run(engine)
    engine.finish(done, lease_until=30.0)
    assert engine.expire(30.0) == [done]
    assert engine.pool.used == 0
    assert not engine.release(1)


def test_a_request_waits_while_held_blocks_fill_the_engine() -> None:
    engine = scheduler(num_blocks=4)
    engine.submit(Request(1, 12))
    _, (done,) = run(engine)
    engine.finish(done, lease_until=30.0)
    engine.submit(Request(2, 12))
    assert engine.schedule() is None
    engine.release(1)
    assert tokens_by_id(run(engine)[0]) == {2: 12}


@pytest.mark.parametrize("state", ["waiting", "loading", "arrived", "running", "held"])
def test_an_aborted_request_leaves_nothing_behind(state: str) -> None:
    engine = scheduler()
    request = Request(1, 10, remote=state in ("loading", "arrived"))
    engine.submit(request)
    if state != "waiting":
        step = engine.schedule()
        assert step is not None
        engine.complete(step)
    if state == "arrived":
        engine.loaded(request)
    if state == "held":
        engine.finish(request, lease_until=1.0)
    engine.abort(request)
    engine.abort(request)
    assert (engine.pool.used, engine.num_waiting, engine.running, engine.held) == (0, 0, [], {})
    assert engine.schedule() is None


def test_a_request_aborted_during_its_step_gets_no_token() -> None:
    engine = scheduler()
    request = Request(1, 10)
    engine.submit(request)
    step = engine.schedule()
    assert step is not None
    engine.abort(request)
    assert engine.complete(step) == []


def test_a_prompt_that_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        scheduler(num_blocks=2).submit(Request(1, 8))
    with pytest.raises(ValueError, match="at least one prompt token"):
        scheduler().submit(Request(1, 0))
    with pytest.raises(ValueError, match="max_num_seqs"):
        scheduler(max_num_seqs=0)
    with pytest.raises(ValueError, match="long_prefill_token_threshold"):
        scheduler(long_prefill_token_threshold=-1)


def test_a_prefix_is_hit_in_the_very_step_that_computes_it() -> None:
    engine = scheduler()
    engine.submit(Request(1, 10, keys=[11, 12]))
    engine.submit(Request(2, 10, keys=[11, 12]))
    step, _ = run(engine)
    assert tokens_by_id(step) == {1: 10, 2: 2}


def test_a_long_prompt_takes_no_more_than_the_threshold_while_others_are_there() -> None:
    engine = scheduler(long_prefill_token_threshold=30)
    engine.submit(Request(1, 150))
    assert tokens_by_id(run(engine)[0]) == {1: 100}
    engine.submit(Request(2, 40))
    assert tokens_by_id(run(engine)[0]) == {1: 30, 2: 30}
    assert tokens_by_id(run(engine)[0]) == {1: 20, 2: 10}


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it_whole() -> None:
    engine = scheduler(chunked_prefill=False)
    engine.submit(Request(1, 60))
    engine.submit(Request(2, 60))
    assert tokens_by_id(run(engine)[0]) == {1: 60}
    assert tokens_by_id(run(engine)[0]) == {1: 1, 2: 60}


def test_a_load_leaves_the_blocks_that_a_begun_prompt_needs() -> None:
    engine = scheduler(num_blocks=30, max_num_batched_tokens=40)
    engine.submit(Request(1, 80))
    engine.submit(Request(2, 60, remote=True))
    step, _ = run(engine)
    assert (tokens_by_id(step), step.loads) == ({1: 40}, ())
    run(engine)
    engine.finish(engine.running[0])
    step, _ = run(engine)
    assert [request.id for request in step.loads] == [2]


def changes(engine: Scheduler) -> list[Change]:
    taken, engine.changes = engine.changes or [], []
    return taken


def test_what_happens_to_the_prefix_cache_is_told() -> None:
    engine = scheduler(num_blocks=4)
    engine.changes = []
    first = Request(1, 10, keys=[11, 12])
    engine.submit(first)
    run(engine)
    assert changes(engine) == [Stored(first, 0, 2)]
    engine.finish(first)
    second = Request(2, 13, keys=[11, 22, 23])
    engine.submit(second)
    run(engine)
    assert changes(engine) == [Removed(12), Stored(second, 1, 3)]
    engine.finish(second)
    assert engine.reset_prefix_cache()
    assert changes(engine) == [Cleared()]


def test_equal_blocks_are_both_known_until_both_are_evicted() -> None:
    engine = scheduler(num_blocks=5)
    for number in (1, 2):  # the second computes its last block again
        engine.submit(Request(number, 8, keys=[11, 12]))
        _, (done,) = run(engine)
        engine.finish(done)
    engine.changes = []
    assert engine.pool.take(3) is not None
    assert changes(engine) == [Removed(12)]
    assert len(engine.pool.hit([11, 12], 2)) == 2
    assert engine.pool.take(1) is not None
    assert changes(engine) == [Removed(12)]
    assert len(engine.pool.hit([11, 12], 2)) == 1


def test_the_prefix_cache_is_reset_only_while_no_request_has_blocks() -> None:
    engine = scheduler()
    running, held = Request(1, 10, keys=[11, 12]), Request(2, 10, keys=[21, 22])
    engine.submit(running)
    engine.submit(held)
    run(engine)
    engine.finish(held, lease_until=30.0)
    assert not engine.reset_prefix_cache()
    assert not engine.reset_prefix_cache(preempt=True)
    assert (running.state, running.preemptions) == ("waiting", 1)
    engine.release(2)
    assert engine.reset_prefix_cache()
    assert tokens_by_id(run(engine)[0]) == {1: 11}


def test_a_lost_cache_hits_nothing_and_takes_nobodys_blocks() -> None:
    engine = scheduler()
    first = Request(1, 10, keys=[11, 12])
    engine.submit(first)
    run(engine)
    engine.forget_prefixes()
    engine.submit(Request(2, 10, keys=[11, 12]))
    step, _ = run(engine)
    assert tokens_by_id(step) == {1: 1, 2: 10}
    assert len(first.blocks) == 3
