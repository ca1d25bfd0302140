"""Driving the data plane without a scheduler: models loaded, and run row by row, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tiny_models import oracle

from minivllm import kernels
from minivllm.checkpoint.model_config import ModelConfig, read_model_config
from minivllm.kernels import AttentionMetadata
from minivllm.kvcache.spec import KVCacheSpec
from minivllm.models.loader import load_weights
from minivllm.models.transformer import Transformer
from minivllm.sample.logits_processors import LogitsProcessor
from minivllm.worker.kv_tensors import KVTensors
from minivllm.worker.model_runner import ModelRunner

OPS = kernels.load("reference")


def load_model(path: str, dtype: torch.dtype) -> tuple[Transformer, ModelConfig]:
    config = read_model_config(path)
    model = Transformer(config, OPS, dtype=dtype)
    load_weights(model, config, dtype, "cpu")
    return model, config


def kv_tensors(
    config: ModelConfig,
    dtype: torch.dtype,
    num_blocks: int,
    block_size: int,
    num_host_blocks: int = 0,
) -> KVTensors:
    """KV memory full of NaN, the null block too."""
    spec = KVCacheSpec(
        block_size, config.num_layers, config.num_kv_heads, config.head_dim, dtype.itemsize
    )
    return KVTensors(
        spec, num_blocks, OPS,
        dtype=dtype, device="cpu", num_host_blocks=num_host_blocks, debug=True,
    )  # fmt: skip


def make_runner(
    path: str,
    dtype: torch.dtype,
    *,
    num_blocks: int,
    block_size: int = 4,
    num_host_blocks: int = 0,
    plugins: Sequence[LogitsProcessor] = (),
) -> ModelRunner:
    model, config = load_model(path, dtype)
    kv = kv_tensors(config, dtype, num_blocks, block_size, num_host_blocks)
    return ModelRunner(model, OPS, kv, block_size, config, plugins)


@dataclass
class Forced:
    """A model that is told every token; the blocks of each sequence are shuffled."""

    model: Transformer
    config: ModelConfig
    dtype: torch.dtype
    block_size: int = 4

    @torch.inference_mode()
    def logits(self, sequences: list[torch.Tensor], cuts: list[list[int]]) -> list[torch.Tensor]:
        """Scores [tokens, vocab] of each sequence. cuts: by sequence, how many tokens it gets in
        step 0, 1, ...; all sequences share the steps."""
        size = self.block_size
        counts = [-(-len(ids) // size) for ids in sequences]
        shuffled = 1 + torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0))
        tables = shuffled.split(counts)
        kv = kv_tensors(self.config, self.dtype, 1 + sum(counts), size)
        done = [0] * len(sequences)
        parts: list[list[torch.Tensor]] = [[] for _ in sequences]
        for step in range(max(map(len, cuts))):
            rows = [r for r, cut in enumerate(cuts) if step < len(cut)]
            new = {r: torch.arange(done[r], done[r] + cuts[r][step]) for r in rows}
            width = max(-(-int(new[r][-1] + 1) // size) for r in rows)
            table = torch.zeros(len(rows), width, dtype=torch.int64)
            for line, r in zip(table, rows, strict=True):
                known = tables[r][: -(-int(new[r][-1] + 1) // size)]
                line[: len(known)] = known
            slots = [tables[r][new[r] // size] * size + new[r] % size for r in rows]
            starts = [0]
            for r in rows:
                starts.append(starts[-1] + len(new[r]))
            metadata = AttentionMetadata(
                starts, [int(new[r][-1] + 1) for r in rows], table, torch.cat(slots)
            )
            hidden = self.model(
                torch.cat([sequences[r][new[r]] for r in rows]),
                torch.cat([new[r] for r in rows]),
                OPS.prepare(metadata, kv.layers[0]),
                kv.layers,
            )
            scores = self.model.compute_logits(hidden)
            for r, part in zip(rows, scores.split([len(new[r]) for r in rows]), strict=True):
                parts[r].append(part)
                done[r] += len(part)
        assert done == [len(ids) for ids in sequences]
        return [torch.cat(part) for part in parts]


def in_chunks(num: int, size: int) -> list[int]:
    return [min(size, num - start) for start in range(0, num, size)]


def assert_exact_in_company(folder, sequences, draw):
    """The sequences, cut up at random, share their steps, and each scores as transformers has it
    in float64."""
    cuts = []
    for ids in sequences:
        cut = []
        while sum(cut) < len(ids):
            cut.append(draw.choice((1, 1, 1, 2, 5, 16, 17)))
        cut[-1] -= sum(cut) - len(ids)
        cuts.append(cut)
    judge = oracle(folder, torch.float64)
    forced = Forced(*load_model(folder, torch.float64), torch.float64, block_size=3)
    for ids, got in zip(sequences, forced.logits(sequences, cuts), strict=True):
        with torch.inference_mode():
            want = judge(ids[None]).logits[0]
        # 1e-11 is 50,000 roundings of float64: room for any order of sums, and for no mistake.
        assert (got - want).abs().max() < 1e-11
