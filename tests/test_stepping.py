"""The stepper of lesson 09: what it says of a step is what happened, and its reasons are true."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from labs.browser import importable
from labs.compose import answers_of, compose
from labs.manifest import all_labs, find_lab
from lessons.reasons import DECODE, PAUSED, PREFILL, STOPPED, WAITS, Limits
from lessons.stepping import Ask, Stepper, first_difference, run, table

# The example of lab 09's README: a of 3 tokens, b of 5, at most 4 tokens a step.
README = [Ask("a", 1, 3, 3), Ask("b", 1, 5, 2)]


def states(step):
    return {did.name: did.state for did in step.did}


def why(step, name):
    (did,) = (did for did in step.did if did.name == name)
    return did.why


def some_asks(rng, num):
    """Requests a, b, c, ... in the order in which they come."""
    steps = sorted(rng.randint(1, 9) for _ in range(num))
    return [
        Ask(chr(97 + index), step, rng.randint(1, 14), rng.randint(1, 9))
        for index, step in enumerate(steps)
    ]


def some_limits(rng):
    return Limits(
        places=rng.randint(1, 5),
        budget=rng.randint(1, 14),
        blocks=rng.choice((6, 7, 9, 40)),  # the longest request has 22 tokens, six blocks
        policy=rng.choice(("fcfs", "fcfs", "static")),
        max_chunk=rng.choice((0, 0, 3)),
    )


def plainest(asks, places, budget):
    """In which step each request ends, with memory for all: continuous batching counted on
    fingers, without the engine."""
    queue, running, ends, step = list(asks), [], {}, 0
    while queue or running:
        step, left = step + 1, budget
        for entry in running:
            left -= take(entry, left)
        while queue and queue[0].step <= step and left and len(running) < places:
            ask = queue.pop(0)
            entry = {"name": ask.name, "todo": ask.num_prompt, "write": ask.num_answer}
            left -= take(entry, left)
            running.append(entry)
        for entry in list(running):
            entry["todo"] -= entry["now"]
            if entry["todo"] == 0:
                entry["todo"], entry["write"] = 1, entry["write"] - 1
            if entry["write"] == 0:
                running.remove(entry)
                ends[entry["name"]] = step
    return ends


def take(entry, left):
    entry["now"] = min(entry["todo"], left)
    return entry["now"]


def test_the_labs_example_by_hand():
    first, second, third, _ = run(README, Limits(budget=4)).steps
    assert [(d.name, d.state, d.num_tokens, d.gains) for d in first.did] == [
        ("a", PREFILL, 3, True), ("b", PREFILL, 1, False),
    ]  # fmt: skip
    assert [(d.name, d.state, d.num_tokens, d.gains) for d in second.did] == [
        ("a", DECODE, 1, True), ("b", PREFILL, 3, False),
    ]  # fmt: skip
    assert [(d.name, d.num_computed, d.num_tokens, d.is_cut) for d in third.did] == [
        ("a", 4, 1, False), ("b", 4, 1, False),
    ]  # fmt: skip
    assert "1 of 3 places were taken, 1 of 4 tokens left" in why(first, "b")
    assert "Chunked: 1 of 5 tokens now; the step has no more left." in why(first, "b")
    assert "it leaves, and 2 blocks will be free" in why(third, "a")


@pytest.mark.parametrize("seed", range(40))
def test_every_step_accounts_for_every_request_token_and_block(seed):
    rng = random.Random(seed)
    asks, limits = some_asks(rng, 7), some_limits(rng)
    result = run(asks, limits, max_steps=400)
    assert not result.failure
    computed, written, ended = Counter(), Counter(), set()
    for number, step in enumerate(result.steps, 1):
        assert step.number == number
        here = {ask.name for ask in asks if ask.step <= number} - ended
        assert sorted(did.name for did in step.did) == sorted(here)
        assert sum(did.num_tokens for did in step.did) == step.num_tokens <= limits.budget
        assert step.num_rows <= limits.places
        assert sum(did.num_blocks for did in step.did) + step.num_free == limits.blocks
        for did in step.did:
            assert did.num_computed == computed[did.name]
            assert bool(did.num_tokens) == (did.state in (PREFILL, DECODE))
            computed[did.name] = 0 if did.state == STOPPED else did.num_computed + did.num_tokens
            assert did.gains == (bool(did.num_tokens) and computed[did.name] == did.num_had)
            written[did.name] += did.gains
            if did.ends:
                ended.add(did.name)
    assert written == {ask.name: ask.num_answer for ask in asks}
    assert ended == set(written)


@pytest.mark.parametrize("seed", range(20))
def test_requests_end_when_a_count_on_fingers_says_so(seed):
    rng = random.Random(seed)
    asks = some_asks(rng, 8)
    limits = Limits(places=rng.randint(1, 5), budget=rng.randint(5, 20), blocks=60)
    result = run(asks, limits)
    due = plainest(asks, limits.places, limits.budget)
    assert {ask.name: result.last_step(ask.name) for ask in asks} == due


def test_whoever_waits_is_told_what_is_short():
    asks = [Ask("a", 1, 4, 9), Ask("b", 1, 4, 9), Ask("c", 1, 4, 9)]
    (step, *_) = run(asks, Limits(places=1)).steps
    assert why(step, "b") == "Waits: 1 of 1 places are taken."
    assert why(step, "c") == "Waits behind b: nobody overtakes."
    (step, *_) = run(asks, Limits(budget=8)).steps
    assert why(step, "c") == "Waits: the 8 tokens of this step are spent."
    steps = run([Ask("a", 1, 7, 5), Ask("b", 3, 5, 1)], Limits(blocks=4)).steps
    assert states(steps[2])["b"] == WAITS
    assert why(steps[2], "b") == "Waits: its 5 tokens need 2 blocks; 1 is free."


def test_a_block_that_a_running_request_needs_next_is_not_given_away():
    steps = run([Ask("a", 1, 4, 6), Ask("b", 1, 8, 1)], Limits(blocks=3, budget=4)).steps
    assert why(steps[0], "b") == "Waits: the 4 tokens of this step are spent."
    steps = run([Ask("a", 1, 3, 6), Ask("b", 2, 8, 1)], Limits(blocks=3)).steps
    assert why(steps[1], "b") == (
        "Waits: its 8 tokens need 2 blocks; 2 are free, 1 of them kept for those who run."
    )


def test_in_a_static_batch_newcomers_wait_for_the_last_answer():
    asks = [Ask("a", 1, 2, 5), Ask("b", 1, 2, 2), Ask("c", 2, 2, 2)]
    result = run(asks, Limits(places=2, policy="static"))
    assert why(result.steps[2], "c") == "Waits: the batch before has not ended."
    assert [step.num_rows for step in result.steps] == [2, 2, 1, 1, 1, 1, 1]
    assert result.idle_share == pytest.approx(5 / 14)
    assert result.last_step("c") == 7
    assert run(asks, Limits(places=2)).last_step("c") == 4


def test_memory_that_runs_out_stops_whoever_came_last_and_says_for_whom():
    steps = run([Ask("a", 1, 3, 6), Ask("b", 1, 4, 4)], Limits(blocks=3)).steps
    assert [states(step)["b"] for step in steps] == [
        PREFILL, DECODE, STOPPED, WAITS, WAITS, WAITS, PREFILL, DECODE,
    ]  # fmt: skip
    assert why(steps[2], "b").startswith("Stopped: a needed a block and none was free.")
    assert why(steps[6], "b") == (
        "Comes back: 0 of 3 places were taken, 16 of 16 tokens left, and it needs 2 blocks of the "
        "3 free. All 6 of its tokens fit in, from its start again: it also gets a new one."
    )


def test_a_request_that_is_itself_the_last_gives_way_itself():
    steps = run([Ask("a", 1, 4, 9), Ask("b", 1, 4, 9)], Limits(blocks=3)).steps
    stop = next(step for step in steps if STOPPED in states(step).values())
    assert "and that is itself" in why(stop, "b")


def test_nobody_is_admitted_in_a_step_that_stopped_somebody():
    asks = [Ask("a", 1, 3, 6), Ask("b", 1, 4, 4), Ask("c", 3, 1, 1)]
    steps = run(asks, Limits(blocks=3)).steps
    stop = next(step for step in steps if STOPPED in states(step).values())
    assert why(stop, "c").startswith("Waits: memory is so short that b had to stop")


def test_a_chunk_is_cut_by_the_step_or_by_the_limit_of_one_request():
    (step, *_) = run([Ask("a", 1, 9, 1)], Limits(budget=4)).steps
    assert "Chunked: 4 of 9 tokens now; the step has no more left." in why(step, "a")
    (step, *_) = run([Ask("a", 1, 9, 1)], Limits(budget=8, max_chunk=4)).steps
    assert "Chunked: 4 of 9 tokens now; one request may take no more of a step." in why(step, "a")


def test_a_running_request_that_the_budget_does_not_reach_is_paused():
    asks = [Ask("a", 1, 1, 5), Ask("b", 1, 1, 5), Ask("c", 3, 1, 1)]
    stepper = Stepper(asks, Limits(budget=2))
    stepper.step()
    stepper.scheduler.max_num_batched_tokens = 1
    assert states(stepper.step()) == {"a": DECODE, "b": PAUSED}


def test_the_table_has_a_row_for_each_request():
    heading, *rows = table(run(README, Limits(budget=4)).steps[0])
    assert len(heading) == len(rows[0]) and [row[0] for row in rows] == ["a", "b"]
    assert rows[1][:5] == ("b", "prefill", "0 of 5", "1", "2")


@pytest.fixture
def lab():
    return find_lab("continuous_batching", all_labs())


@pytest.fixture
def package(lab, tmp_path):
    """Composes the engine with an answer's text and runs the README's example and a longer one on
    it."""

    def runs(text, asks=README, limits=None):
        composed = compose(tmp_path / "engine", answers_of(lab, text, "answer.py"))
        with importable(composed.root):
            return run(asks, limits or Limits(budget=4), composed.package, max_steps=50)

    return runs


def answer(lab, name):
    return (lab.folder / name).read_text(encoding="utf-8")


def test_a_right_answer_steps_as_the_reference_does(lab, package):
    asks, limits = some_asks(random.Random(3), 7), Limits(budget=9, blocks=7)
    own = package(answer(lab, "right/while_loops_and_a_dict.py"), asks, limits)
    reference = run(asks, limits)
    assert any(STOPPED in states(step).values() for step in reference.steps)
    assert own.steps == reference.steps and first_difference(reference, own) == ""


def test_a_wrong_answer_is_told_from_the_reference_by_step_and_request(lab, package):
    asks, limits = [Ask("a", 1, 2, 3), Ask("b", 1, 2, 3)], Limits()
    own = package(answer(lab, "wrong/one_newcomer_a_step.py"), asks, limits)
    assert first_difference(run(asks, limits), own) == (
        "Step 1, request b: prefill of 2 in one, waits in the other."
    )
    assert "nothing stands in its way" in why(own.steps[0], "b")


@pytest.mark.parametrize(
    "body, says",
    [
        ("raise KeyError('a')", "Step 1 ended in KeyError: 'a'"),
        ("while True: pass", "Step 1 did not come to an end: is there an endless loop?"),
        ("return budget", "After 50 steps these had not ended: a, b."),
    ],
)
def test_a_scheduler_that_fails_ends_in_a_sentence(package, body, says):
    text = f"class Scheduler:\n    def _plan_waiting(self, plan, budget):\n        {body}\n"
    assert package(text).failure == says
