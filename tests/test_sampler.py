"""From scores to tokens: judged by plain Python, by counting draws, and row by row."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minivllm import philox
from minivllm.sample import philox as torch_philox
from minivllm.sample.rules import SamplerRow
from minivllm.sample.sampler import candidates, draw, keep_mask, likeliest, sample
from minivllm.sampling_params import SamplingParams

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
GREEDY = SamplingParams(temperature=0)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def choose(logits: torch.Tensor, params: list[SamplingParams], position: int = 3) -> list[int]:
    output = sample(logits, [SamplerRow(p, position=position) for p in params])
    assert not output.errors
    return output.token_ids


def test_uniform_in_torch_is_uniform_in_python_bit_for_bit():
    source = random.Random(0)
    extremes = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**70, -1]
    seeds = [a for a in extremes for _ in extremes for _ in extremes]
    samples = [b for _ in extremes for b in extremes for _ in extremes]
    positions = [c for _ in extremes for _ in extremes for c in extremes]
    for numbers in (seeds, samples, positions):
        numbers += [source.getrandbits(64) >> source.randrange(64) for _ in range(3000)]
    for kind in (philox.TOKEN, philox.ACCEPT, philox.RESAMPLE):
        got = torch_philox.uniform(seeds, samples, positions, kind).tolist()
        want = [philox.uniform(*of, kind) for of in zip(seeds, samples, positions, strict=True)]
        assert got == want


def test_philox_gives_the_published_numbers():
    """The known answers that come with Random123, the authors' own library."""
    for counter, key, answer in (
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ):
        assert philox.philox(counter, key) == answer
        in_torch = torch_philox.philox(
            tuple(torch.tensor([c]) for c in counter), tuple(torch.tensor([k]) for k in key)
        )
        assert tuple(int(x) for x in in_torch) == answer


def chi_square_limit(num_free: int) -> float:
    """The value that a chi-square passes with probability 0.001 (Wilson and Hilferty, 1931)."""
    return num_free * (1 - 2 / (9 * num_free) + 3.0902 * math.sqrt(2 / (9 * num_free))) ** 3


def assert_drawn_from(probs: list[float], ids: list[int]) -> None:
    counts = [ids.count(i) for i in range(len(probs))]
    assert sum(counts) == len(ids)
    for p, count in zip(probs, counts, strict=True):
        assert p > 0 or count == 0
    expected = [(p * len(ids), c) for p, c in zip(probs, counts, strict=True) if p > 0]
    statistic = sum((c - e) ** 2 / e for e, c in expected)
    assert statistic < chi_square_limit(len(expected) - 1), (statistic, counts)


@pytest.mark.parametrize(
    "options, probs",
    [
        ({}, [0.5, 0.2, 0.2, 0.1, 0.0]),
        ({"temperature": 2.0}, [0.36873, 0.23321, 0.23321, 0.16485, 0.0]),
        ({"top_k": 2}, [5 / 7, 2 / 7, 0, 0, 0]),
        ({"top_p": 0.6}, [5 / 7, 2 / 7, 0, 0, 0]),
        ({"min_p": 0.3}, [5 / 9, 2 / 9, 2 / 9, 0, 0]),
        ({"top_k": 3, "top_p": 0.7}, [5 / 7, 2 / 7, 0, 0, 0]),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(options, probs):
    """20,000 draws, one a position, in batches of 500; chi-square at p = 0.001."""
    logits = torch.tensor([0.5, 0.2, 0.2, 0.1, 0.0]).log().expand(500, -1)
    params = SamplingParams(**{"temperature": 1.0, **options}, seed=17)
    ids = []
    for start in range(0, 20_000, 500):
        rows = [SamplerRow(params, position=start + i) for i in range(500)]
        ids += sample(logits, rows).token_ids
    assert_drawn_from(probs, ids)


def test_draw_takes_the_first_id_whose_sum_exceeds_the_target():
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]])
    below_1 = 1 - 2**-53
    for uniform, want in ((0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (below_1, 4)):
        assert draw(probs, torch.tensor([uniform], dtype=torch.float64)).tolist() == [want]
        assert draw(probs * 0.3, torch.tensor([uniform], dtype=torch.float64)).tolist() == [want]


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9), st.integers(0, 2**53 - 1))
def test_an_id_of_probability_0_is_never_drawn(probs, bits):
    if sum(probs) == 0:
        return
    uniform = torch.tensor([bits / 2**53], dtype=torch.float64)
    assert probs[draw(torch.tensor([probs]), uniform).item()] > 0


def test_c20_a_draw_depends_on_seed_sample_and_position_and_not_on_company():
    logits = randn(40, 331)
    source = random.Random(0)
    rows = [
        SamplerRow(
            SamplingParams(
                temperature=source.choice((0.0, 0.3, 1.0, 2.0)), seed=source.randrange(3),
                top_k=source.choice((0, 5)), top_p=source.choice((1.0, 0.8)),
                min_p=source.choice((0.0, 0.05)), logprobs=source.choice((None, 2)),
            ),
            position=source.randrange(3),
            sample_index=source.randrange(2),
        )
        for _ in range(40)
    ]  # fmt: skip
    solo = [sample(logits[r : r + 1], [row]).token_ids[0] for r, row in enumerate(rows)]
    for _ in range(20):
        company = source.sample(range(40), source.randrange(2, 41))
        output = sample(logits[company], [rows[r] for r in company])
        assert output.token_ids == [solo[r] for r in company]


def test_other_seeds_samples_and_positions_draw_other_ids():
    logits = torch.zeros(1, 100_000)
    drawn = set()
    for seed, sample_index, position in ((1, 0, 5), (2, 0, 5), (1, 1, 5), (1, 0, 6)):
        params = SamplingParams(temperature=1.0, seed=seed)
        drawn.add(sample(logits, [SamplerRow(params, position, sample_index)]).token_ids[0])
    assert len(drawn) == 4


def test_sampling_leaves_the_random_state_of_the_host_program_alone():
    before = torch.get_rng_state()
    choose(randn(2, 50), [SamplingParams(temperature=1.0, seed=1)] * 2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_c1_temperature_0_is_argmax_and_the_lowest_id_wins_a_tie(dtype):
    source = random.Random(0)
    for vocab_size in (1, 2, 15, 16, 17, 331, 4097, 49152):
        logits = randn(6, vocab_size, dtype=dtype).clamp(max=2.0)
        for row in logits:
            row[source.sample(range(vocab_size), min(3, vocab_size))] = 2.0
        scores = logits.tolist()
        assert choose(logits, [GREEDY] * 6) == [row.index(max(row)) for row in scores]


def test_n7_temperature_0_is_argmax_whatever_the_filters_say():
    logits = randn(4, 331)
    params = [
        SamplingParams(temperature=0, top_p=0.01),
        SamplingParams(temperature=0, top_k=3, seed=4),
        SamplingParams(temperature=0, min_p=0.9),
        GREEDY,
    ]
    assert choose(logits, params) == logits.argmax(-1).tolist()


def test_c2_greedy_rows_and_random_rows_share_a_batch():
    logits = randn(6, 331).mul(0.1)
    warm = SamplingParams(temperature=1.0, seed=5)
    got = choose(logits, [GREEDY, warm, GREEDY, warm, GREEDY, warm])
    best = logits.argmax(-1).tolist()
    assert got[::2] == best[::2]
    assert all(g != b for g, b in zip(got[1::2], best[1::2], strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1e-10, 1e-300])
def test_h10_a_tiny_temperature_is_greedy_and_does_not_overflow(dtype, temperature):
    logits = 100 * randn(8, 331, dtype=dtype)
    params = SamplingParams(temperature=temperature, top_p=0.9, min_p=0.1, seed=3)
    assert choose(logits, [params] * 8) == logits.argmax(-1).tolist()


def kept(logits, top_k=0, top_p=1.0, min_p=0.0) -> list[int]:
    logits = torch.as_tensor(logits)[None]
    mask = keep_mask(
        logits, torch.tensor([top_k]), torch.tensor([top_p], dtype=logits.dtype),
        torch.tensor([min_p], dtype=logits.dtype),
    )  # fmt: skip
    return mask[0].nonzero().flatten().tolist()


def judged_kept(logits: list[float], top_k: int, top_p: float, min_p: float, slack: float) -> set:
    """The filters one after the other, in plain Python, in vLLM's order. slack > 0 keeps a little
    more than asked, slack < 0 a little less: where the answer turns on rounding, both are right."""
    best = max(logits)
    mass = {i: math.exp(x - best) for i, x in enumerate(logits) if x > -math.inf}
    order = sorted(mass, key=lambda i: (-logits[i], i))
    order = [i for i in order if mass[i] >= min_p - slack or i == order[0]]
    if top_k > 0:
        order = order[:top_k]
    if top_p < 1:
        whole = math.fsum(mass[i] for i in order)
        count, so_far = 0, 0.0
        while count < len(order) and so_far < (top_p + slack) * whole:
            so_far += mass[order[count]]
            count += 1
        order = order[: max(1, count)]
    return set(order)


scores = st.lists(
    st.one_of(
        st.integers(-3, 3).map(float),  # ties
        st.floats(-20, 20, width=32),
        st.just(-math.inf),
    ),
    min_size=1,
    max_size=12,
)
settings_of_filters = st.tuples(
    st.integers(-1, 14), st.floats(1e-3, 1), st.one_of(st.just(0.0), st.floats(0, 1))
)


@given(st.lists(st.tuples(scores, settings_of_filters), min_size=1, max_size=4))
def test_keep_mask_is_what_plain_python_keeps(rows):
    rows = [(s, f) for s, f in rows if max(s) > -math.inf]
    if not rows:
        return
    width = max(len(s) for s, _ in rows)
    logits = torch.tensor([s + [-math.inf] * (width - len(s)) for s, _ in rows], dtype=torch.double)
    top_k, top_p, min_p = zip(*(f for _, f in rows), strict=True)
    mask = keep_mask(
        logits, torch.tensor(top_k), torch.tensor(top_p, dtype=torch.double),
        torch.tensor(min_p, dtype=torch.double),
    )  # fmt: skip
    for row, filters, got in zip(logits.tolist(), (f for _, f in rows), mask, strict=True):
        got = set(got.nonzero().flatten().tolist())
        assert judged_kept(row, *filters, -1e-9) <= got <= judged_kept(row, *filters, 1e-9)


@pytest.mark.parametrize("width", [0.5, 2.0, 6.0])
def test_keep_mask_is_that_of_plain_python_over_many_ids_too(width):
    """From distributions so peaked that a few ids hold them to such that thousands do; bfloat16
    scores, so that hundreds are equal where top-k ends."""
    source = random.Random(width)
    logits = (width * randn(24, 3000)).bfloat16().double()
    logits[::5, 40:] = -math.inf
    top_k = [source.choice([0, 0, 1, 30, 200, 1500]) for _ in range(24)]
    top_p = [source.choice([1.0, 0.3, 0.95, 0.999]) for _ in range(24)]
    min_p = [source.choice([0.0, 0.0, 0.01]) for _ in range(24)]
    columns = torch.tensor(top_k), torch.tensor(top_p).double(), torch.tensor(min_p).double()
    mask = keep_mask(logits, *columns)
    for row, *filters, got in zip(logits.tolist(), top_k, top_p, min_p, mask, strict=True):
        got = set(got.nonzero().flatten().tolist())
        assert judged_kept(row, *filters, -1e-9) <= got <= judged_kept(row, *filters, 1e-9)


def test_drawing_for_a_few_rows_at_a_time_changes_nothing():
    logits = 3 * randn(11, 700, dtype=torch.float32)
    kinds = [{}, {"top_k": 9}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 0}]
    rows = [SamplerRow(SamplingParams(**kinds[r % 5], seed=r), r) for r in range(11)]
    want = sample(logits, rows).token_ids
    for rows_at_once in (1, 4, 11):
        assert sample(logits, rows, rows_at_once=rows_at_once).token_ids == want


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_kept_of_a_row_does_not_depend_on_company(dtype):
    """Not by a bit: rows with other filters change how many ids are put in order, and no sum."""
    source = random.Random(3)
    logits = 3 * randn(60, 700, dtype=dtype)
    top_k = torch.tensor([source.choice([0, 1, 7, 50, 400, 900]) for _ in range(60)])
    top_p = torch.tensor([source.choice([1, 0.5, 0.95, 0.999999]) for _ in range(60)], dtype=dtype)
    min_p = torch.tensor([source.choice([0, 0.01, 0.3]) for _ in range(60)], dtype=dtype)
    together = keep_mask(logits, top_k, top_p, min_p)
    for r in range(60):
        only = slice(r, r + 1)
        alone = keep_mask(logits[only], top_k[only], top_p[only], min_p[only])
        assert torch.equal(together[only], alone)


def test_c8_top_k_keeps_exactly_k_and_of_equals_the_lower_ids():
    assert kept([1.0, 3.0, 3.0, 2.0], top_k=1) == [1]
    assert kept([1.0, 3.0, 3.0, 2.0, 3.0], top_k=2) == [1, 2]
    assert kept(torch.zeros(1000), top_k=7) == list(range(7))
    assert kept([1.0, 2.0], top_k=5) == [0, 1]
    assert kept([1.0, 2.0], top_k=-1) == [0, 1]


def test_c7_top_p_keeps_the_likely_end():
    logits = torch.tensor([0.1, 0.5, 0.25, 0.15]).log()
    assert kept(logits, top_p=0.4) == [1]
    assert kept(logits, top_p=0.74) == [1, 2]
    assert kept(logits, top_p=0.76) == [1, 2, 3]
    assert kept(logits, top_p=1e-6) == [1]


def test_c4_filters_renormalise_and_always_leave_one():
    assert kept(torch.tensor([0.3, 0.4, 0.3]).log(), top_k=1, top_p=0.8) == [1]
    # 0.4 and 0.3 are 4/7 and 3/7 of what top-k leaves: without that, 0.6 would need both
    assert kept(torch.tensor([0.3, 0.4, 0.3]).log(), top_k=2, top_p=0.55) == [1]
    assert kept(torch.zeros(1000), top_p=1e-9) == [0]
    for options in ({"top_k": 1, "top_p": 0.8}, {"top_p": 1e-60}, {"min_p": 1.0}):
        params = SamplingParams(temperature=1e-5, seed=1, **options)
        assert choose(randn(3, 331), [params] * 3) == randn(3, 331).argmax(-1).tolist()


def test_c5_top_p_of_1_changes_nothing():
    """Not even where float32 sums of 100,000 probabilities never reach 1, or pass it."""
    for logits in (randn(100_000), torch.zeros(100_000), 3 * randn(50_257, seed=1)):
        assert len(kept(logits, top_p=1.0)) == len(logits)


def test_n10_temperature_comes_before_the_filters():
    """At temperature 1 the best has 0.8 and top_p = 0.75 keeps it alone; at temperature 4 it has
    a little over a third, and all three are needed."""
    logits = torch.tensor([[0.8, 0.1, 0.1]]).log()
    cool, warm = (SamplingParams(temperature=t, top_p=0.75, seed=2) for t in (1.0, 4.0))

    def drawn(params: SamplingParams) -> set[int]:
        rows = [SamplerRow(params, position=i) for i in range(200)]
        return set(sample(logits.expand(200, -1), rows).token_ids)

    assert drawn(cool) == {0}
    assert drawn(warm) == {0, 1, 2}


WARM = SamplingParams(temperature=0.7, top_p=0.9, min_p=0.05, seed=1, logprobs=3)


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "random"])
def test_c10_a_row_without_an_allowed_id_ends_alone(params):
    logits = randn(3, 16)
    alone = sample(logits, [SamplerRow(params, 5)] * 3)
    rows = [SamplerRow(params, 5), SamplerRow(params, 5, bitmap=bytes(2)), SamplerRow(params, 5)]
    output = sample(logits, rows)
    assert output.errors.keys() == {1} and "masked" in output.errors[1]
    for r in (0, 2):
        assert output.token_ids[r] == alone.token_ids[r]
        assert output.logprobs[r] == alone.logprobs[r]
    assert output.logprobs[1] is None


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "random"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_c11_a_row_of_broken_scores_ends_alone(params, value, dtype):
    logits = randn(4, 331, dtype=dtype)
    alone = sample(logits, [SamplerRow(params, 5)] * 4)
    logits[0, 330] = value
    logits[2] = value
    output = sample(logits, [SamplerRow(params, 5)] * 4)
    assert output.errors.keys() == {0, 2} and str(value) in output.errors[0]
    for r in (1, 3):
        assert output.token_ids[r] == alone.token_ids[r]
        assert output.logprobs[r] == alone.logprobs[r]


def judged_candidates(scores: list[float], own: int, num: int) -> list[tuple[int, float, int]]:
    best = max(scores)
    whole = math.log(math.fsum(math.exp(x - best) for x in scores)) + best
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    rank = {i: r for r, i in enumerate(order, 1)}
    return [(i, scores[i] - whole, rank[i]) for i in [own, *order[:num]]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_d4_candidates_are_the_own_token_and_then_the_likeliest(dtype):
    logits = (4 * randn(6, 331)).round() / 4  # ties
    logits = logits.to(dtype)
    own, nums = torch.tensor([0, 17, 330, 5, 5, 9]), [0, 1, 4, 400, 20, 2]
    for got, row, token, num in zip(
        candidates(logits, own, nums), logits.tolist(), own.tolist(), nums, strict=True
    ):
        want = judged_candidates(row, token, num)
        assert [(i, rank) for i, _, rank in got] == [(i, rank) for i, _, rank in want]
        for (_, value, _), (_, judged, _) in zip(got, want, strict=True):
            assert value == pytest.approx(judged, abs=1e-5)


def test_d7_no_number_depends_on_how_many_are_asked_for():
    logits = randn(3, 331, dtype=torch.bfloat16)
    own = torch.tensor([1, 2, 3])
    all_of_them = candidates(logits, own, [331] * 3)
    for num in (0, 1, 4, 10):
        for got, want in zip(candidates(logits, own, [num] * 3), all_of_them, strict=True):
            assert got == want[: num + 1]


def test_logprobs_are_of_the_models_own_distribution():
    """Before temperature, filters and masks, greedy or not."""
    logits = randn(3, 331)
    only_131 = bytes(16) + bytes([1 << 3]) + bytes(25)
    rows = [
        SamplerRow(SamplingParams(temperature=0, logprobs=2), 5, bitmap=only_131),
        SamplerRow(SamplingParams(temperature=9.0, top_k=50, seed=1, logprobs=2), 5),
        SamplerRow(GREEDY, 5),
    ]
    output = sample(logits, rows)
    assert output.token_ids[0] == 131
    for r in (0, 1):
        want = judged_candidates(logits[r].tolist(), output.token_ids[r], 2)
        assert [c[0] for c in output.logprobs[r]] == [c[0] for c in want]
        assert [c[1] for c in output.logprobs[r]] == pytest.approx([c[1] for c in want], abs=1e-5)
    assert output.logprobs[2] is None


@given(
    st.lists(st.lists(st.integers(-2, 2), min_size=7, max_size=7), min_size=1, max_size=3),
    st.integers(0, 9),
)
def test_likeliest_puts_lower_ids_first_among_equals(rows, num):
    got = likeliest(torch.tensor(rows, dtype=torch.float32), num).tolist()
    assert got == [sorted(range(7), key=lambda i: (-row[i], i))[:num] for row in rows]


@pytest.mark.parametrize("num", [1, 5, 40, 200, 900])
def test_likeliest_does_so_among_many_equals(num):
    logits = randn(3, 4000).bfloat16()
    logits[0, 7::9] = logits[0].max()  # more equals than are asked for
    got = likeliest(logits, num).tolist()
    for row, ids in zip(logits.tolist(), got, strict=True):
        assert ids == sorted(range(4000), key=lambda i: (-row[i], i))[:num]
