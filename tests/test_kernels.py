"""Each operation of a backend against plain PyTorch in float64, at odd sizes, with everything
that it must not read full of NaN or huge numbers."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F
from tiny_models import random_llama

from minivllm import LLM, SamplingParams, kernels
from minivllm.kernels import AttentionMetadata, Ops

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
HUGE = {torch.float16: 3e4}


@pytest.fixture(params=kernels.BACKENDS)
def ops(request) -> Ops:
    return kernels.load(request.param)


def tolerance(dtype: torch.dtype, num_roundings: int) -> dict[str, float]:
    """Absolute and relative, for results of about 1 that were rounded so often on the way."""
    error = num_roundings * torch.finfo(dtype).eps
    return {"atol": error, "rtol": error}


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class PagedRows:
    """Rows of given lengths whose last tokens are new, over shuffled blocks. KV of earlier tokens
    is written, that of the new ones is not yet; all else is NaN, or huge."""

    def __init__(self, ops, lens, num_new, *, heads, kv_heads, dim, block_size, dtype, seed=0):
        self.lens, self.num_new, self.dtype = lens, num_new, dtype
        self.q = [randn(n, heads, dim, seed=seed + 1 + r) for r, n in enumerate(num_new)]
        self.k = [randn(n, kv_heads, dim, seed=seed + 100 + r) for r, n in enumerate(lens)]
        self.v = [randn(n, kv_heads, dim, seed=seed + 200 + r) for r, n in enumerate(lens)]
        for part in (self.q, self.k, self.v):  # the judge sees the same rounded numbers
            part[:] = [x.to(dtype).double() for x in part]

        counts = [max(1, -(-n // block_size)) for n in lens]
        num_blocks = 1 + sum(counts) + 3  # block 0, and three that nobody owns
        generator = torch.Generator().manual_seed(seed)
        order = 1 + torch.randperm(num_blocks - 1, generator=generator)
        owned = order[: sum(counts)].split(counts)
        self.table = torch.zeros(len(lens), max(counts), dtype=torch.int64)
        for line, blocks in zip(self.table, owned, strict=True):
            line[: len(blocks)] = blocks
        self.block_size = block_size

        shape = ops.kv_cache_shape(num_blocks, block_size, kv_heads, dim)
        self.cache = torch.full(shape, math.nan, dtype=dtype)
        self.cache[0] = HUGE.get(dtype, 1e30)
        self.cache[order[sum(counts)]] = HUGE.get(dtype, 1e30)
        old = [n - new for n, new in zip(lens, num_new, strict=True)]
        self.write(ops, [0] * len(lens), old)

    def slots(self, row: int, start: int, end: int) -> torch.Tensor:
        where = torch.arange(start, end)
        return self.table[row][where // self.block_size] * self.block_size + where % self.block_size

    def metadata(self, ops, starts: list[int], ends: list[int]) -> AttentionMetadata:
        query_start_loc = [0]
        for start, end in zip(starts, ends, strict=True):
            query_start_loc.append(query_start_loc[-1] + end - start)
        slots = [self.slots(r, s, e) for r, (s, e) in enumerate(zip(starts, ends, strict=True))]
        plain = AttentionMetadata(query_start_loc, ends, self.table, torch.cat(slots))
        return ops.prepare(plain, self.cache)

    def write(self, ops, starts: list[int], ends: list[int]) -> AttentionMetadata:
        metadata = self.metadata(ops, starts, ends)
        k, v = (
            torch.cat([x[s:e] for x, s, e in zip(part, starts, ends, strict=True)]).to(self.dtype)
            for part in (self.k, self.v)
        )
        ops.kv_write(k, v, self.cache, metadata)
        return metadata

    def attend(self, ops) -> torch.Tensor:
        starts = [n - new for n, new in zip(self.lens, self.num_new, strict=True)]
        metadata = self.write(ops, starts, self.lens)
        return ops.attention(torch.cat(self.q).to(self.dtype), self.cache, metadata)

    def judged(self) -> torch.Tensor:
        """torch's own attention, one row at a time, in float64."""
        outs = []
        for q, k, v, n, new in zip(self.q, self.k, self.v, self.lens, self.num_new, strict=True):
            mask = torch.ones(new, n, dtype=torch.bool).tril(diagonal=n - new)
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            outs.append(out[0].transpose(0, 1))
        return torch.cat(outs)


SIZES = [  # heads, kv_heads, head_dim
    (6, 2, 10),
    (5, 1, 6),
    (4, 4, 8),
    (9, 3, 64),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_e13_attention_of_mixed_rows_is_plain_attention_of_each(ops, sizes, block_size, dtype):
    """Chunks and single tokens, in any order, each on its own blocks."""
    heads, kv_heads, dim = sizes
    draw = random.Random(block_size * dim)
    for trial in range(4):
        lens = [draw.choice((1, 2, block_size, block_size + 1, 31, 48, 50)) for _ in range(7)]
        num_new = [min(n, draw.choice((1, 1, 1, 2, 5, 48))) for n in lens]
        rows = PagedRows(
            ops, lens, num_new, heads=heads, kv_heads=kv_heads, dim=dim,
            block_size=block_size, dtype=dtype, seed=1000 * trial,
        )  # fmt: skip
        got = rows.attend(ops)
        assert got.dtype == dtype and got.shape == (sum(num_new), heads, dim)
        # scores, weights and result are rounded; scores reach 5, and weights feel it so often
        torch.testing.assert_close(got.double(), rows.judged(), **tolerance(dtype, 8))


@pytest.mark.parametrize("num_new", [[1] * 9, [9], [1, 3], [3, 1, 1]], ids=str)
def test_attention_takes_rows_of_every_mix(ops, num_new):
    lens = [n + 7 * r for r, n in enumerate(num_new)]
    rows = PagedRows(
        ops, lens, num_new, heads=6, kv_heads=2, dim=10, block_size=4, dtype=torch.float64
    )
    torch.testing.assert_close(rows.attend(ops), rows.judged(), **tolerance(torch.float64, 8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_g14_a_row_of_length_0_gives_zeros_and_its_neighbours_feel_nothing(ops, dtype):
    rows = PagedRows(
        ops, [5, 9], [1, 1], heads=6, kv_heads=2, dim=10, block_size=4, dtype=dtype
    )  # fmt: skip
    rows.attend(ops)
    table = torch.cat((rows.table, torch.zeros(1, rows.table.shape[1], dtype=torch.int64)))
    slots = torch.cat((rows.slots(0, 4, 5), rows.slots(1, 8, 9), torch.tensor([-1])))
    padded = ops.prepare(AttentionMetadata([0, 1, 2, 3], [5, 9, 0], table, slots), rows.cache)
    q = torch.cat((*rows.q, randn(1, 6, 10, seed=9))).to(dtype)
    got = ops.attention(q, rows.cache, padded)
    assert (got[2] == 0).all()
    torch.testing.assert_close(got[:2].double(), rows.judged(), **tolerance(dtype, 8))


def test_l2_scores_beyond_the_range_of_float16_are_weighed_all_the_same(ops):
    rows = PagedRows(
        ops, [6], [1], heads=2, kv_heads=1, dim=8, block_size=4, dtype=torch.float16
    )  # fmt: skip
    rows.q[0].fill_(200.0)
    rows.k[0].copy_(torch.linspace(100.0, 200.0, 6)[:, None, None].half().expand_as(rows.k[0]))
    rows.write(ops, [0], [5])
    got = rows.attend(ops)
    assert (rows.q[0][0, 0] * rows.k[0][5, 0]).sum() > 65504
    torch.testing.assert_close(got.double(), rows.judged(), **tolerance(torch.float16, 8))


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kv_write_changes_its_own_slots_and_no_others(ops, dtype, block_size):
    """Which slots change, and what numbers come there; that each stands where attention looks
    for it is judged above."""
    num_blocks, num = 7, 5
    cache = torch.full(ops.kv_cache_shape(num_blocks, block_size, 2, 4), 7.0, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    slots = torch.randperm((num_blocks - 1) * block_size, generator=generator)[:num] + block_size
    slots[1] = slots[3] = -1
    metadata = AttentionMetadata([0, num], [num], torch.zeros(1, 7, dtype=torch.int64), slots)
    k, v = randn(num, 2, 4, seed=1, dtype=dtype), randn(num, 2, 4, seed=2, dtype=dtype)
    ops.kv_write(k, v, cache, ops.prepare(metadata, cache))

    changed = cache != 7.0
    assert changed.sum() == 3 * 2 * 2 * 4  # 3 tokens, K and V, 2 heads of 4
    assert changed.flatten(1).any(1).nonzero().flatten().tolist() == sorted(
        {slot // block_size for slot in slots.tolist() if slot >= 0}
    )
    assert (
        cache[changed]
        .sort()
        .values.equal(torch.cat((k[[0, 2, 4]], v[[0, 2, 4]])).flatten().sort().values)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [1, 7, 576])
def test_l1_rms_norm_is_computed_in_float32_at_least(ops, dtype, hidden):
    x = 40 * randn(5, hidden, seed=1, dtype=dtype)
    x[1] *= 1e-4  # where eps matters
    weight = randn(hidden, seed=2, dtype=dtype)
    got = ops.rms_norm(x, weight, 1e-5)
    wide = x.double()
    want = wide / torch.sqrt((wide**2).mean(-1, keepdim=True) + 1e-5) * weight.double()
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, **tolerance(dtype, 4 if hidden < 576 else 6))


def test_l1_rms_norm_of_float16_does_not_overflow(ops):
    x = torch.full((1, 8), 300.0, dtype=torch.float16)  # 300^2 is more than 65504
    got = ops.rms_norm(x, torch.ones(8, dtype=torch.float16), 1e-5)
    torch.testing.assert_close(got, torch.ones_like(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rope_turns_each_pair_as_a_complex_number(ops, dtype):
    num, heads, dim = 11, 3, 10
    x = randn(num, heads, dim, seed=1, dtype=dtype)
    angles = randn(num, dim // 2, seed=2)
    cos = torch.cat((angles.cos(), angles.cos()), -1)[:, None].to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), -1)[:, None].to(dtype)
    before = x.clone()
    got = ops.rope(x, cos, sin).double()
    assert torch.equal(x, before)
    wide = x.double()
    turned = torch.complex(wide[..., : dim // 2], wide[..., dim // 2 :])
    turned = turned * torch.polar(torch.ones_like(angles), angles)[:, None]
    want = torch.cat((turned.real, turned.imag), -1)
    torch.testing.assert_close(got, want, **tolerance(dtype, 6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_l1_silu_and_mul_takes_gate_then_up(ops, dtype):
    x = 3 * randn(4, 14, seed=1, dtype=dtype)
    gate, up = x.double()[:, :7], x.double()[:, 7:]
    want = gate / (1 + torch.exp(-gate)) * up
    torch.testing.assert_close(ops.silu_and_mul(x).double(), want, **tolerance(dtype, 2))


@pytest.mark.parametrize("name", ["triton", "Reference", ""])
def test_a_backend_that_does_not_exist_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"backend='{name}'"):
        kernels.load(name)


def test_auto_says_what_it_chose(caplog):
    with caplog.at_level("INFO"):
        assert kernels.load("auto", "cuda") == kernels.load("reference")
        assert kernels.load("auto") == kernels.load("cpu")
    assert "reference" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_tokens, num_in, num_out", [(1, 7, 5), (3, 24, 331), (33, 40, 1)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_those_of_float64(ops, dtype, num_tokens, num_in, num_out, has_bias):
    """Within the rounding of the inputs' products, summed, and of the result."""
    generator = torch.Generator().manual_seed(num_in)
    x, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for shape in ((num_tokens, num_in), (num_out, num_in), (num_out,))
    )
    packed = ops.pack_linear(weight)
    got = ops.linear(x, packed, bias if has_bias else None).double()
    want = x.double() @ weight.double().T + (bias.double() if has_bias else 0)
    scale = (x.double().abs() @ weight.double().abs().T + bias.double().abs()).max()
    assert got.shape == want.shape
    assert (got - want).abs().max() <= 2 * torch.finfo(dtype).eps * scale


def test_a_packed_model_scores_as_the_reference_does(tmp_path):
    for tied in (False, True):
        folder = random_llama(tmp_path, tie_word_embeddings=tied, attention_bias=tied)
        plain, packed = (
            LLM(folder, backend=backend, dtype="float32").generate(
                [[5, 17, 330, 2, 9]], SamplingParams(max_tokens=0, prompt_logprobs=331)
            )[0]
            for backend in ("reference", "cpu")
        )
        for a, b in zip(plain.prompt_logprobs[1:], packed.prompt_logprobs[1:], strict=True):
            for token_id in range(331):
                assert a[token_id].logprob == pytest.approx(b[token_id].logprob, abs=2e-5)


def test_a_backend_that_cannot_work_here_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="the device is 'cuda'"):
        kernels.load("cpu", "cuda")
