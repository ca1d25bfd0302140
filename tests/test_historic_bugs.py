"""Faults that schedulers have had, each as a law, and a scheduler that breaks it.

The first six were reported of a small engine by its users (the number is the issue's there); the
last three are in a published scheduling loop. That the laws can fail is part of the test: each
fault is written out as a subclass and must be found.
"""

import pytest
from toy_executor import make_core, solo

from minivllm.outputs import EngineCoreRequest
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler.scheduler import RUNNING, Scheduler


def greedy(max_tokens=6):
    return SamplingParams(temperature=0, max_tokens=max_tokens, seed=0)


def add(core, request_id, prompt, max_tokens=6):
    core.add_request(EngineCoreRequest(request_id, tuple(prompt), greedy(max_tokens)))


def run(core, limit=400):
    tokens = {}
    for _ in range(limit):
        for output in core.step():
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        core.scheduler.check()
        if not core.has_unfinished_requests:
            return tokens
    raise AssertionError("this takes for ever")


def rows(core, request_id):
    return [r for p in core.executor.plans for r in p.rows if r.request_id == request_id]


@pytest.mark.parametrize("prompt_len", range(1, 10))
def test_66_a_block_is_added_when_the_next_token_needs_one_and_not_before(prompt_len):
    core = make_core(block_size=4)
    add(core, "a", range(prompt_len), max_tokens=9)
    while core.has_unfinished_requests:
        core.step()
        for request in core.scheduler.running:
            owned = len(core.scheduler.kv.tables["a"])
            assert owned == -(-request.num_computed_tokens // 4)


def test_144_what_was_written_before_a_preemption_is_computed_again_with_the_prompt():
    core = make_core(num_blocks=1 + 4, budget=64)
    for name in "ab":
        add(core, name, range(7), max_tokens=8)
    tokens = run(core)
    again = [r for r in rows(core, "b") if r.start == 0][1]
    assert len(again.token_ids) > 7 and again.num_to_sample == 1
    assert tokens["b"] == solo(range(7), greedy(8))[0]


@pytest.mark.parametrize("cache", ["hash", "radix"])
@pytest.mark.parametrize("prompt_len", [4, 8, 9])
def test_199_a_prompt_that_is_cached_whole_still_computes_a_token(cache, prompt_len):
    core = make_core(block_size=4, prefix_cache=cache)
    for name in "ab":
        add(core, name, range(prompt_len))
        tokens = run(core)
        assert tokens[name] == solo(range(prompt_len), greedy())[0]
    first = rows(core, "b")[0]
    assert first.start == (prompt_len - 1) // 4 * 4 and len(first.token_ids) >= 1


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_208_blocks_still_being_computed_are_no_hits(cache):
    """Twins in one step: the toy model would read slots that nobody has written yet."""
    core = make_core(block_size=4, prefix_cache=cache, budget=64)
    for name in "ab":
        add(core, name, range(9))
    core.step()
    assert [r.start for r in core.executor.plans[0].rows] == [0, 0]
    tokens = run(core)
    assert len(tokens["a"]) == len(tokens["b"]) == 5


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_211_a_hit_cannot_change_between_planning_and_allocation(cache):
    """The pool is so small that admitting evicts, perhaps the very blocks that were matched."""
    core = make_core(num_blocks=1 + 4, block_size=4, prefix_cache=cache, budget=64)
    add(core, "a", range(9), max_tokens=2)
    run(core)
    add(core, "b", [*range(8), 40, 41, 42, 43, 44], max_tokens=2)
    tokens = run(core)
    first = rows(core, "b")[0]
    assert first.start == 8 and len(first.token_ids) == 5
    assert tokens["b"] == solo([*range(8), 40, 41, 42, 43, 44], greedy(2))[0]


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7])
def test_217_the_piece_that_completes_a_prompt_gives_its_token(budget):
    core = make_core(budget=budget)
    add(core, "a", range(7))
    assert run(core)["a"] == solo(range(7), greedy())[0]
    assert sum(r.num_to_sample for r in rows(core, "a")) == 6


def admissions_are_kept(core):
    """Whoever is admitted runs at least one more step before anybody takes its blocks."""
    for plan, following in zip(core.executor.plans, core.executor.plans[1:], strict=False):
        new = {n.request_id for n in plan.new_requests}
        assert not new & set(following.preempted_ids), "admitted with a running request's block"


def budget_is_kept(core):
    for plan in core.executor.plans:
        assert plan.num_tokens <= core.scheduler.max_num_batched_tokens, "over the budget"


def nothing_is_computed_in_vain(core):
    """The last token of an answer has no KV: nobody will ever read it."""
    for request_id in "abc":
        last = rows(core, request_id)[-1]
        assert last.start + len(last.token_ids) == 7 + 9 - 1, "computed past the end"


class TakesTheLastBlock(Scheduler):
    def _start_table(self, request, num_tokens, num_spare):
        return super()._start_table(request, num_tokens, 0)


class HasNoBudget(Scheduler):
    def _num_tokens_now(self, request, budget):
        return min(request.num_uncomputed_tokens, self.max_chunk)


class LooksForTheEndTooLate(Scheduler):
    """Ends a request when it is planned, one step after its last token."""

    def _plan_running(self, plan, budget):
        budget = super()._plan_running(plan, budget)
        for request in list(self.running):
            if request.num_output_tokens >= 9 and not request.num_in_flight_tokens:
                request.finish("length")
                self._leave(request)
        return budget

    def _accept(self, request, sampled):
        if request.num_output_tokens < 9:
            request.token_ids.extend(sampled)
        return sampled


def company(kind, budget=8):
    """Three requests that together outgrow the memory, under a scheduler of this kind."""
    core = make_core(num_blocks=1 + 8, budget=budget)
    core.scheduler.__class__ = kind
    for name in "abc":
        add(core, name, range(7), max_tokens=9)
    for _ in range(300):
        core.step()
        if not core.has_unfinished_requests:
            break
    return core


@pytest.mark.parametrize("law", [admissions_are_kept, budget_is_kept, nothing_is_computed_in_vain])
def test_this_scheduler_keeps_the_laws(law):
    law(company(Scheduler))


def test_a_scheduler_that_takes_the_last_block_is_found():
    core = make_core(num_blocks=1 + 4, budget=64)
    core.scheduler.__class__ = TakesTheLastBlock
    add(core, "a", range(12), max_tokens=3)  # three blocks, full
    add(core, "b", [1], max_tokens=3)
    for _ in range(3):
        core.step()
    with pytest.raises(AssertionError, match="admitted with a running request's block"):
        admissions_are_kept(core)


def test_a_scheduler_without_a_budget_is_found():
    with pytest.raises(AssertionError, match="over the budget"):
        budget_is_kept(company(HasNoBudget))


def test_a_scheduler_that_looks_for_the_end_too_late_is_found():
    with pytest.raises(AssertionError, match="computed past the end"):
        nothing_is_computed_in_vain(company(LooksForTheEndTooLate))


def test_the_faulty_ones_are_schedulers_like_any_other():
    core = company(Scheduler)
    assert core.scheduler.stats.num_finished == 3
    assert all(r.status is not RUNNING for r in core.scheduler.requests.values())
