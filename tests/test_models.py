"""The decoder against transformers' Llama: the same scores, however the tokens are cut up."""

from __future__ import annotations

import random

import pytest
import torch
from by_hand import Forced, assert_exact_in_company, in_chunks, load_model
from tiny_models import GROUPED, MULTI_QUERY, oracle, random_llama
from transformers.models.llama import modeling_llama

NUM_TOKENS = 300
SHAPES = {
    "6 query heads on 2": GROUPED,
    "6 on 2, tied, biases": {
        **GROUPED, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True
    },
    "5 on 1, tied": {**MULTI_QUERY, "tie_word_embeddings": True, "num_hidden_layers": 3},
    "5 on 1": MULTI_QUERY,
    "as many KV heads, theta and eps of their own": {
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "hidden_size": 48,
        "rope_parameters": {"rope_theta": 300.0, "rope_type": "default"}, "rms_norm_eps": 0.01,
    },
}  # fmt: skip
HALF_TYPES = [torch.bfloat16, torch.float16]


def bound(scores: torch.Tensor, dtype: torch.dtype) -> float:
    """How far two right computations in `dtype` may lie apart: 32 roundings of the largest score.
    Each of the 9 products in a row of 2 layers and a head rounds once and sums over at most 300
    numbers, both sides do, and their errors add up like a random walk; seen: 5 to 21."""
    return 32 * torch.finfo(dtype).eps * scores.abs().max().item()


def tokens(num: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(331, (num,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module", params=SHAPES)
def folder(request, tmp_path_factory):
    return random_llama(tmp_path_factory.mktemp("models"), **SHAPES[request.param])


@torch.inference_mode()
def judged(folder: str, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return oracle(folder, dtype)(ids[None]).logits[0]


@pytest.fixture
def exact_norm(monkeypatch):
    """transformers computes its norm in float32 even in a float64 model: let it be float64."""

    def forward(self, x):
        return self.weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", forward)


def test_scores_are_transformers_in_one_prefill_and_token_by_token(folder):
    ids = tokens(NUM_TOKENS)
    want = judged(folder, ids)
    forced = Forced(*load_model(folder, torch.float32), torch.float32)
    for size in (NUM_TOKENS, 1):
        (got,) = forced.logits([ids], [in_chunks(NUM_TOKENS, size)])
        assert got.dtype == torch.float32
        assert (got - want).abs().max() < bound(want, torch.float32), f"chunks of {size}"


def test_scores_are_transformers_in_chunks_of_every_size(tmp_path):
    folder = random_llama(tmp_path)
    ids = tokens(NUM_TOKENS)
    want = judged(folder, ids)
    forced = Forced(*load_model(folder, torch.float32), torch.float32)
    for size in range(1, NUM_TOKENS + 1):
        (got,) = forced.logits([ids], [in_chunks(NUM_TOKENS, size)])
        assert (got - want).abs().max() < bound(want, torch.float32), f"chunks of {size}"


def test_in_float64_scores_are_exact_in_any_company_and_cutting(folder, exact_norm):
    """20 sequences cut up at random share their steps, chunks beside single tokens."""
    draw = random.Random(0)
    sequences = [tokens(draw.randint(1, 60), seed) for seed in range(20)]
    assert_exact_in_company(folder, sequences, draw)


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
def test_half_types_lie_no_further_from_the_truth_than_transformers_do(folder, dtype):
    """The truth: transformers in float64. Twice its own error in the half type is allowed."""
    ids = tokens(100)
    truth = judged(folder, ids, torch.float64)
    theirs = (judged(folder, ids, dtype) - truth).abs()
    forced = Forced(*load_model(folder, dtype), dtype)
    for size in (100, 7):
        (got,) = forced.logits([ids], [in_chunks(100, size)])
        assert got.dtype == dtype
        ours = (got - truth).abs()
        assert ours.max() < 2 * theirs.max(), f"{ours.max()} against {theirs.max()}"
        assert ours.mean() < 1.5 * theirs.mean(), f"{ours.mean()} against {theirs.mean()}"


def test_parameters_are_named_as_the_loader_expects(tmp_path):
    model, _ = load_model(random_llama(tmp_path), torch.float32)
    names = {name.removeprefix("model.layers.0.") for name, _ in model.named_parameters()}
    assert {
        "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
        "input_layernorm.weight", "post_attention_layernorm.weight",
        "self_attn.qkv_proj.weight", "self_attn.o_proj.weight",
        "mlp.gate_up_proj.weight", "mlp.down_proj.weight",
    } <= names  # fmt: skip
    assert not any(parameter.requires_grad for parameter in model.parameters())
