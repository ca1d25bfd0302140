"""Compiled steps: the decoder's own answer, in float64 and from the reference."""

from __future__ import annotations

import itertools
import math
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from by_hand import kv_tensors
from tiny_models import random_model

from minivllm import LLM, SamplingParams, kernels
from minivllm.checkpoint.model_config import read_model_config
from minivllm.kernels import AttentionMetadata, reference
from minivllm.kernels.cpu import narrow, packed
from minivllm.models.loader import load_weights
from minivllm.models.transformer import Transformer

OPS = kernels.load("cpu")
MODELS = {
    "6 heads on 2": ("llama", {}),
    "5 on 1, tied, biases, one layer": (
        "llama",
        {
            "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6, "hidden_size": 20,
            "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True,
            "num_hidden_layers": 1,
        },
    ),
    "4 on 4, wide": (
        "llama",
        {
            "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64,
            "hidden_size": 200, "intermediate_size": 333,
        },
    ),
    "window": ("mistral", {"sliding_window": 7}),
    "biases of q, k and v": ("qwen2", {"hidden_size": 60}),
    "normed q and k": ("qwen3", {"attention_bias": True}),
    "stored as one": ("phi3", {"num_attention_heads": 4, "hidden_size": 40}),
    "layers that do not turn": ("smollm3", {"num_hidden_layers": 5}),
}  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16]


def load(folder: str, dtype: torch.dtype, ops=OPS) -> Transformer:
    model = Transformer(read_model_config(folder), ops, dtype=dtype)
    load_weights(model, read_model_config(folder), dtype, "cpu")
    model.pack()
    return model


class Step:
    """Rows of the given lengths, each with a new last token, over shuffled blocks. KV of earlier
    tokens is random and the same in every dtype; all else is NaN."""

    def __init__(
        self,
        folder: str,
        lens: list[int],
        block_size: int,
        seed: int,
        num_new: list[int] | None = None,  # one each
    ) -> None:
        num_new = num_new or [1] * len(lens)
        self.config, self.block_size = read_model_config(folder), block_size
        generator = torch.Generator().manual_seed(seed)
        counts = [max(1, -(-n // block_size)) for n in lens]
        blocks = 1 + torch.randperm(sum(counts) + 2, generator=generator)
        self.table = torch.zeros(len(lens), max(counts) + 1, dtype=torch.int64)
        for line, own in zip(self.table, blocks[: sum(counts)].split(counts), strict=True):
            line[: len(own)] = own
        new = [
            (row, at)
            for row, (n, num) in enumerate(zip(lens, num_new, strict=True))
            for at in range(n - num, n)
        ]
        slots = [self.slot(row, at) if at >= 0 else -1 for row, at in new]
        self.token_ids = torch.randint(331, (len(new),), generator=generator)
        self.positions = torch.tensor([max(0, at) for _, at in new])
        starts = [0, *itertools.accumulate(num_new)]
        self.metadata = AttentionMetadata(starts, lens, self.table, torch.tensor(slots))
        memory = kv_tensors(self.config, torch.float64, len(blocks) + 1, block_size).memory
        for row, (n, num) in enumerate(zip(lens, num_new, strict=True)):
            for position in range(n - num):
                block, offset = divmod(self.slot(row, position), block_size)
                part = memory[:, block, :, :, offset]
                part.copy_(torch.randn(part.shape, generator=generator).bfloat16())
        self.memory = memory

    def slot(self, row: int, position: int) -> int:
        block, offset = divmod(position, self.block_size)
        return int(self.table[row, block]) * self.block_size + offset

    @torch.inference_mode()
    def run(self, model: Transformer, compiled: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's answer [rows, hidden], and the KV memory after it."""
        memory = self.memory.to(model.model.embed_tokens.weight.dtype)
        layers, where = memory.unbind(0), (self.token_ids, self.positions)
        if compiled:
            return narrow.compile_decoder(model.model, layers)(*where, self.metadata), memory
        return model(*where, reference.prepare(self.metadata, layers[0]), layers), memory


def draw_steps(folder: str, num: int):
    draw = random.Random(folder.rpartition("/")[2])
    for seed in range(num):
        block_size = draw.choice([1, 3, 16])
        num_rows = draw.choice([1, 2, narrow.MAX_ROWS, narrow.MAX_ROWS + 1, 9])
        lens = [draw.choice([1, 2, 15, 16, 17, 40]) for _ in range(num_rows)]
        num_new = [1] * num_rows
        if seed % 2:  # chunks among the rows, some of them long
            sizes = [1, 2, 3, narrow.LONG - 1, narrow.LONG, narrow.LONG + 1, 40]
            num_new = [min(n, draw.choice(sizes)) for n in lens]
        yield Step(folder, lens, block_size, seed, num_new)


@pytest.fixture(params=MODELS)
def folder(request, tmp_path_factory):
    model_type, sizes = MODELS[request.param]
    return random_model(tmp_path_factory.mktemp("models"), model_type, **sizes)


def test_in_float32_a_compiled_step_is_the_decoder_in_float64(folder):
    """Within 64 roundings of the largest number; seen: 17. What it writes is what the decoder
    writes, and it touches nothing else."""
    model, judge = load(folder, torch.float32), load(folder, torch.float64, kernels.load())
    for step in draw_steps(folder, 12):
        (want, want_kv), (got, got_kv) = step.run(judge, False), step.run(model, True)
        bound = 64 * torch.finfo(torch.float32).eps * want.abs().max()
        assert (got - want).abs().max() < bound
        assert torch.equal(got_kv.isnan(), want_kv.isnan())
        assert (got_kv - want_kv).nan_to_num().abs().max() < 64 * bound


def test_in_bfloat16_it_lies_no_further_from_the_truth_than_torch_does(folder):
    plain = load(folder, torch.bfloat16, kernels.load("reference"))
    model, judge = load(folder, torch.bfloat16), load(folder, torch.float64)
    with torch.no_grad():  # the truth is that of the rounded weights
        for a, b in zip(judge.parameters(), plain.parameters(), strict=True):
            a.copy_(b)
    ours, theirs = [], []
    for step in draw_steps(folder, 12):
        truth, _ = step.run(judge, False)
        got, kv = step.run(model, True)
        ours.append((got - truth).abs().flatten())
        theirs.append((step.run(plain, False)[0] - truth).abs().flatten())
        assert torch.equal(kv.isnan(), step.run(plain, False)[1].isnan())
    ours, theirs = torch.cat(ours), torch.cat(theirs)
    assert ours.max() < 1.5 * theirs.max() and ours.mean() < 0.9 * theirs.mean()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num", [1, narrow.MAX_ROWS + 1])
def test_a_row_of_length_0_is_harmless(tmp_path, dtype, num):
    """Padding: its neighbours feel nothing, and nothing is written."""
    folder = random_model(tmp_path, "llama")
    model = load(folder, dtype)
    step = Step(folder, [20] * num, 4, seed=0)
    want, want_kv = step.run(model, True)
    slots, nothing = step.metadata.slot_mapping, torch.zeros(1, dtype=torch.int64)
    step.metadata = AttentionMetadata(
        list(range(num + 2)), [20] * num + [0],
        torch.cat((step.table, 0 * step.table[:1])), torch.cat((slots, nothing - 1)),
    )  # fmt: skip
    step.token_ids = torch.cat((step.token_ids, nothing))
    step.positions = torch.cat((step.positions, nothing))
    got, got_kv = step.run(model, True)
    assert got[num].isfinite().all() and torch.equal(got_kv.isnan(), want_kv.isnan())
    if num < narrow.MAX_ROWS:
        assert torch.equal(got[:num], want)
        assert torch.equal(got_kv.nan_to_num(), want_kv.nan_to_num())
    bound = 32 * torch.finfo(dtype).eps * want.abs().max()  # torch may sum in another order
    assert (got[:num] - want).abs().max() < bound


def test_numbers_are_rounded_to_bfloat16_as_torch_rounds_them():
    """Random bits, ties, infinities and NaN."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4096, dtype=np.uint32)
    bits[:4] = 0x3F808000, 0x3F818000, 0x7F800000, 0xFF800000  # two ties, two infinities
    bits[4:6] = 0x7FFFFFFF, 0x7F7FFFFF  # NaN that would overflow; the largest number
    numbers = bits.view(np.float32).reshape(2, 1, 1, 2048)
    kv = np.zeros((1, 2, 1, 1, 2048), dtype=np.uint16)
    narrow.compiled().write(numbers[0, 0], numbers[1, 0], kv, 0)
    got = torch.from_numpy(kv).view(torch.bfloat16).flatten()
    want = torch.from_numpy(numbers).bfloat16().flatten()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(7), want.nan_to_num(7))


def test_exp_is_that_of_float64_and_passes_nan_on():
    """Within 4e-6 over all of float32's range, 5e-7 where a softmax has its weight; beyond the
    range, the range's ends."""
    decode = narrow.compiled()

    def worst(most: float) -> float:
        x = np.linspace(-most, most, 20001).astype(np.float32)
        return max(abs(decode.exp(v) / math.exp(v) - 1) for v in x)

    assert worst(5) < 5e-7 and worst(87) < 4.1e-6
    assert 0 <= decode.exp(np.float32(-np.inf)) < 2e-38
    assert 1e38 < decode.exp(np.float32(np.inf)) < np.inf
    assert math.isnan(decode.exp(np.float32(np.nan)))


def test_a_nan_among_the_keys_is_loud(tmp_path):
    """Whoever reads a slot that nobody wrote shall see it, as with torch."""
    folder = random_model(tmp_path, "llama")
    for kind in (0, 1):  # of keys, of values
        step = Step(folder, [9], 4, seed=0)
        step.memory[0, step.table[0, 1], kind, :, 2] = torch.nan
        hidden, _ = step.run(load(folder, torch.float32), True)
        assert hidden.isnan().all()


@pytest.mark.parametrize("num", [1, 3, 7])
def test_weights_lie_together_as_large_pages_want_it(tmp_path, num):
    """One memory for all, each at a cache line of its own, nothing shared, nothing lost."""
    tensors = [torch.empty(n, 5, dtype=dtype) for n, dtype in zip(range(1, num + 1), DTYPES * 4)]
    kinds = [(tensor.shape, tensor.dtype) for tensor in tensors]
    narrow.place(tensors)
    assert [(tensor.shape, tensor.dtype) for tensor in tensors] == kinds
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    for i, tensor in enumerate(tensors):
        assert tensor.is_contiguous() and tensor.data_ptr() % narrow.ALIGNMENT == 0
        tensor.fill_(i)
    assert all((tensor == i).all() for i, tensor in enumerate(tensors))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_a_dtype_without_compiled_loops_has_no_such_step(tmp_path, dtype):
    model = load(random_model(tmp_path, "llama"), dtype)
    assert narrow.compile_decoder(model.model, []) is None


@pytest.mark.parametrize("room", [True, False])
def test_an_engine_says_in_float32_what_the_reference_says(tmp_path, monkeypatch, room):
    """From one request to more than a narrow step takes, and back, with memory for the weights
    twice and without."""
    from minivllm.worker import worker

    if not room:
        monkeypatch.setattr(worker, "free_memory", lambda: 1)
    folder = random_model(tmp_path, "llama")
    draw = random.Random(0)
    prompts = [[draw.randrange(331) for _ in range(draw.randint(1, 40))] for _ in range(12)]
    params = [
        SamplingParams(temperature=0, max_tokens=4 * n, ignore_eos=True) for n in range(1, 13)
    ]
    plain, compiled = (
        LLM(folder, backend=backend, dtype="float32", kv_cache_memory_bytes=1 << 20)
        for backend in ("reference", "cpu")
    )
    head = compiled.engine.core.executor.worker.model.lm_head.packed
    assert (head.packed is not None) is room
    for a, b in zip(
        plain.generate(prompts, params), compiled.generate(prompts, params), strict=True
    ):
        assert a.outputs[0].token_ids == b.outputs[0].token_ids


@pytest.mark.parametrize(
    "module, reason",
    [("numba", "numba does not work"), ("numba.np.ufunc.omppool", "numba finds no OpenMP")],
)
def test_without_numba_everything_is_torchs_and_the_log_says_so(
    monkeypatch, caplog, module, reason
):
    monkeypatch.setitem(sys.modules, module, None)
    with caplog.at_level("INFO"):
        ops = kernels.load("cpu")
    assert ops.linear is packed.linear and ops.compile_decoder is reference.compile_decoder
    assert reason in caplog.text


COUNT_THREADS = """
import torch
from minivllm import LLM, SamplingParams
counts = [torch.get_num_threads()]
llm = LLM("tiny", device="cpu", backend="cpu", kv_cache_memory_bytes=1 << 20)
counts.append(torch.get_num_threads())
llm.generate("Once", SamplingParams(max_tokens=3))
import numba
print(counts, torch.get_num_threads(), numba.get_num_threads())
"""


@pytest.mark.skipif(os.cpu_count() < 2, reason="one core: there is no other number of threads")
@pytest.mark.slow
def test_compiled_loops_leave_torch_the_threads_that_it_was_given():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("NUMBA_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", COUNT_THREADS], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[1, 1] 1 1", done.stderr
