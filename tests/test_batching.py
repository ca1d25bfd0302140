"""Lesson 09's drawings show what happened, and its laws agree with what is simulated."""

from __future__ import annotations

import itertools
import random
from html import escape

import pytest

from lessons import batching, step_drawings
from lessons.batching import FEW, FEW_LIMITS, NEW, OLD, PATTERNS
from lessons.draw import FREE
from lessons.reasons import STOPPED, WAITS, Limits
from lessons.stepping import Ask, run
from lessons.svg import figure


def some_run(seed):
    rng = random.Random(seed)
    asks = [Ask(name, rng.randint(1, 6), rng.randint(1, 9), rng.randint(1, 9)) for name in "abcdef"]
    limits = Limits(
        rng.randint(1, 4), rng.randint(2, 12), rng.choice((5, 7, 30)), policy=rng.choice((OLD, NEW))
    )
    return run(asks, limits)


def rows_of(picture):
    """By label: the texts of a row's cells."""
    return {row.label: [cell.text for cell in row.cells] for row in picture.rows}


@pytest.mark.parametrize("seed", range(20))
def test_a_request_sits_in_one_place_from_its_first_step_to_its_last(seed):
    made = some_run(seed)
    rows = rows_of(step_drawings.by_place(made, len(made.steps)))
    places = [rows[f"place {n + 1}"] for n in range(made.limits.places)]
    for number, step in enumerate(made.steps):
        column = [line[number] for line in places]
        seated = {did.name for did in step.did if did.num_tokens}
        assert sorted(set(column) - {"-"}) == sorted(seated)
        assert len(column) - column.count("-") == len(seated)
    for ask in made.asks:
        stopped = any(d.name == ask.name and d.state == STOPPED for s in made.steps for d in s.did)
        assert stopped or sum(ask.name in line for line in places) == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_requests_row_adds_up_to_its_tokens(seed):
    made = some_run(seed)
    rows = rows_of(step_drawings.by_request(made, len(made.steps)))
    for ask in made.asks:
        line = rows[ask.name]
        computed = sum(int(text) for text in line if text.isdigit())
        if "x" in line:
            assert computed >= ask.num_prompt + ask.num_answer - 1
        else:  # the last token of an answer is never computed
            assert computed == ask.num_prompt + ask.num_answer - 1
        waited = sum(d.name == ask.name and d.state == WAITS for s in made.steps for d in s.did)
        assert line.count("w") == waited


def test_what_comes_later_is_not_shown():
    made = run(FEW, FEW_LIMITS)
    for draw in (step_drawings.by_place, step_drawings.by_request):
        label, *rows = draw(made, 3).rows
        assert all(not cell.text for row in rows for cell in row.cells[3:])
        assert len(label.cells) == len(made.steps)


def test_inside_a_step_every_token_and_every_block_has_its_cell():
    made = run(FEW, FEW_LIMITS)
    for step in made.steps:
        tokens, memory = step_drawings.inside(made, step).rows
        assert len(tokens.cells) == FEW_LIMITS.budget and len(memory.cells) == FEW_LIMITS.blocks
        for did in step.did:
            own = [cell.kind for cell in tokens.cells if cell.text == did.name]
            assert own == [did.state] * did.num_tokens
            assert sum(cell.text == did.name for cell in memory.cells) == did.num_blocks
        assert sum(cell.kind == FREE for cell in memory.cells) == step.num_free


def test_reasons_name_every_request_and_are_safe_html():
    (step, *_) = run([Ask("<b>", 1, 3, 1)], Limits()).steps
    said = step_drawings.reasons(step)
    assert "&lt;b&gt;" in said and "<b><b>" not in said and "prefill, 3 tokens" in said
    (step, *_) = run([Ask("a", 1, 1, 1)], Limits()).steps
    assert "prefill, 1 token<" in step_drawings.reasons(step)


def test_the_five_by_hand_meet_every_reason():
    steps = run(FEW, FEW_LIMITS).steps
    said = " ".join(did.why for step in steps for did in step.did)
    for reason in ("Admitted", "Comes back", "Chunked", "Stopped", "places are taken",
                   "of this step are spent", "tokens need", "nobody overtakes",
                   "nobody is admitted", "it leaves"):  # fmt: skip
        assert reason in said
    assert any(
        step.num_rows < FEW_LIMITS.places
        and step.num_tokens < FEW_LIMITS.budget
        and step.num_free * FEW_LIMITS.block_size >= did.num_had
        and "nobody overtakes" in did.why
        for step in steps
        for did in step.did
    )


def test_the_patterns_teach_what_the_text_says():
    def steps(name, policy, places=4):
        return len(run(PATTERNS[name], Limits(places, 32, policy=policy)).steps)

    mixed, _, alike = PATTERNS
    assert steps(mixed, OLD) > 1.5 * steps(mixed, NEW)
    assert steps(alike, OLD) == steps(alike, NEW)
    for name, places in itertools.product(PATTERNS, range(2, 7)):
        assert steps(name, NEW, places) <= steps(name, OLD, places)


def test_the_mean_longest_is_that_of_all_draws():
    lengths = [3, 1, 4, 1, 5]
    for n in (1, 2, 4):
        draws = list(itertools.product(lengths, repeat=n))
        assert batching.mean_longest(lengths, n) == pytest.approx(sum(map(max, draws)) / len(draws))


@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_the_law_of_places_agrees_with_the_simulation(n):
    used = batching.places_used(n)
    assert used.static == pytest.approx(used.law, rel=0.1)
    assert used.anew > 0.7 and used.times_faster > 1.8


def test_the_law_of_gaps_agrees_with_the_simulation():
    found = batching.gaps()
    for gap in found:
        assert gap.worst_ms == pytest.approx(gap.law_ms, rel=0.05)
    assert [gap.worst_ms for gap in found] == sorted(gap.worst_ms for gap in found)
    assert [gap.first_ms for gap in found] == sorted((g.first_ms for g in found), reverse=True)
    whole = batching.gaps([batching.ALL_PROMPTS], prompt=8000)[0]
    assert whole.worst_ms > 10 * batching.decode_ms(32)


@pytest.mark.parametrize("policy", [OLD, NEW])
def test_idle_places_are_those_that_no_answer_filled(policy):
    simulation = batching.crowd(policy)
    busy = sum(record.token_times[-1] - record.admitted_time for record in simulation.records)
    idle = 1 - busy / (32 * simulation.makespan_s)
    assert batching.idle_share(simulation) == pytest.approx(idle, abs=0.01)


def test_figures_have_a_table_of_the_same_facts():
    bars = step_drawings.gap_bars([batching.Gap(256, 10.2, 10.4, 300.0)])
    for drawing in (*bars, step_drawings.used_bars(8, batching.Used(0.4, 0.41, 0.96, 2.4))):
        assert escape(drawing.title) in figure(drawing) and len(drawing.twin()[1]) == len(
            drawing.bars
        )


def test_a_package_is_compared_with_the_reference_by_example():
    lines = batching.beside_reference("minivllm").splitlines()
    assert len(lines) == 2 + len(PATTERNS) + 1
    assert all(line.endswith("| nowhere |") for line in lines[2:])


def test_a_real_model_takes_the_steps_that_the_picture_shows():
    asks, *_ = PATTERNS.values()
    for policy in (OLD, NEW):
        num_steps, seconds = batching.timed("plain Python", policy)
        assert num_steps == len(run(asks, Limits(4, 32, policy=policy)).steps)
        assert seconds > 0
