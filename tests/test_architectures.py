"""Every architecture against transformers' own: the same scores from folders and GGUF files,
however the tokens are cut up; a window of exactly W keys; the rest refused by name."""

from __future__ import annotations

import importlib
import random
from dataclasses import replace

import pytest
import tables
import torch
from by_hand import OPS, Forced, assert_exact_in_company, in_chunks, load_model
from tiny_models import as_gguf, oracle, random_model

from minivllm import LLM, SamplingParams
from minivllm.checkpoint.gguf_config import ARCHITECTURES
from minivllm.checkpoint.hf_config import MODEL_TYPES
from minivllm.checkpoint.model_config import read_model_config
from minivllm.checkpoint.unsupported import MISSING
from minivllm.kernels import AttentionMetadata

NUM_TOKENS = 200
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
VARIANTS = {
    "llama": ("llama", {}),
    "llama, linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}},
    ),
    "llama, llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", **YARN}}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 12}),
    "mistral, window of 17": ("mistral", {"sliding_window": 17, "num_hidden_layers": 3}),
    "qwen2": ("qwen2", {"hidden_size": 36, "head_dim": 6}),
    "qwen2, window of 9 from layer 1": (
        "qwen2",
        {
            "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1,
            "num_hidden_layers": 3,
        },
    ),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3, yarn, biases, window of 33 in layers 0 and 2": (
        "qwen3",
        {
            "use_sliding_window": True, "sliding_window": 33, "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "attention_bias": True, "rope_parameters": {"rope_type": "yarn", **YARN},
        },
    ),
    "phi3": ("phi3", {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 40}),
    "phi3, window of 50": ("phi3", {"sliding_window": 50}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}),
    "smollm3, biases, window where nothing turns": (
        "smollm3",
        {
            "no_rope_layer_interval": 2, "num_hidden_layers": 3, "attention_bias": True,
            "mlp_bias": True, "use_sliding_window": True, "sliding_window": 7,
        },
    ),
}  # fmt: skip
# What a GGUF file cannot say (which layers have the window, an interval of its own) is left out.
IN_GGUF = [name for name in VARIANTS if "window of 9" not in name and "layers 0" not in name]
IN_GGUF.remove("smollm3, biases, window where nothing turns")


def bound(scores: torch.Tensor) -> float:
    """32 roundings of the largest score in float32, as in test_models.py; seen: 4 to 26. There
    are up to 21 products in a row of 5 layers, each over at most 200 numbers, rounded on both
    sides; the errors add up like a random walk."""
    return 32 * torch.finfo(torch.float32).eps * scores.abs().max().item()


def tokens(num: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(331, (num,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module", params=VARIANTS)
def folder(request, tmp_path_factory):
    model_type, sizes = VARIANTS[request.param]
    return random_model(tmp_path_factory.mktemp("models"), model_type, **sizes)


@pytest.fixture
def exact_norm(monkeypatch):
    """transformers computes its norms in float32 even in a float64 model: let them be float64."""

    def forward(self, x):
        return self.weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    for model_type in MODEL_TYPES:
        module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
        (name,) = [name for name in vars(module) if name.endswith("RMSNorm")]
        monkeypatch.setattr(getattr(module, name), "forward", forward)


def test_scores_are_transformers_in_one_prefill_in_chunks_and_token_by_token(folder):
    ids = tokens(NUM_TOKENS)
    with torch.inference_mode():
        want = oracle(folder)(ids[None]).logits[0]
    forced = Forced(*load_model(folder, torch.float32), torch.float32)
    for size in (NUM_TOKENS, 7, 64, 1):
        (got,) = forced.logits([ids], [in_chunks(NUM_TOKENS, size)])
        assert (got - want).abs().max() < bound(want), f"chunks of {size}"


def test_in_float64_scores_are_exact_in_any_company_and_cutting(folder, exact_norm):
    """10 sequences cut up at random share their steps, chunks beside single tokens."""
    draw = random.Random(0)
    sequences = [tokens(draw.randint(1, 80), seed) for seed in range(10)]
    assert_exact_in_company(folder, sequences, draw)


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_gguf_file_scores_as_the_folder_it_was_made_from(tmp_path, name):
    """In F32 nothing is lost but what Llama 3's divisors round, so nothing else may differ."""
    model_type, sizes = VARIANTS[name]
    folder = random_model(tmp_path, model_type, **sizes)
    ids = tokens(100)
    (want,), (got,) = (
        Forced(*load_model(path, torch.float32), torch.float32).logits([ids], [[60, 39, 1]])
        for path in (folder, as_gguf(folder, tmp_path / "a.gguf"))
    )
    if "llama3" in name:
        assert (got - want).abs().max() < bound(want)
    else:
        assert torch.equal(got, want)


def test_an_engine_says_what_transformers_would_say(folder):
    """Greedy, with chunked prefill, blocks of 4 and a prefix hit for the second prompt."""
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompts = [tokens(50).tolist(), [*tokens(30).tolist(), *tokens(15, seed=1).tolist()]]
    judge = oracle(folder, torch.float64)
    llm = LLM(folder, dtype="float64", block_size=4, max_num_batched_tokens=19)
    for prompt, num_cached in zip(prompts, (0, 28), strict=True):
        (out,) = llm.generate([prompt], params)
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(12):
                ids.append(judge(torch.tensor([ids])).logits[0, -1].argmax().item())
        assert list(out.outputs[0].token_ids) == ids[len(prompt) :]
        assert out.num_cached_tokens == num_cached


@pytest.mark.parametrize("window", [1, 2, 5, 16, 30])
@pytest.mark.parametrize("size", [40, 7, 1])
def test_k17_a_token_feels_exactly_the_window_of_keys_that_ends_with_its_own(
    tmp_path, window, size
):
    """One layer, so nothing reaches further. Another token at position p changes the scores of
    p to p + W - 1 and of no others, in one prefill, in chunks and token by token."""
    folder = random_model(tmp_path, "mistral", num_hidden_layers=1, sliding_window=window)
    forced = Forced(*load_model(folder, torch.float64), torch.float64, block_size=3)
    ids, changed = tokens(40), 3
    other = ids.clone()
    other[changed] = (ids[changed] + 1) % 331
    # Each by itself: in one step the place in a product would round differently.
    (one,), (two,) = (forced.logits([each], [in_chunks(40, size)]) for each in (ids, other))
    felt = (one != two).any(1).nonzero().flatten().tolist()
    assert felt == list(range(changed, min(40, changed + window)))


def test_k17_a_window_as_long_as_the_text_changes_nothing(tmp_path):
    folder = random_model(tmp_path, "mistral", sliding_window=40)
    model, config = load_model(folder, torch.float64)
    assert config.windows == (40, 40)
    unlimited = replace(config, windows=(None, None))
    model_without, _ = load_model(folder, torch.float64)
    model_without.model.windows = unlimited.windows
    ids, cut = tokens(41), in_chunks(41, 9)
    (got,), (want,) = (
        Forced(m, c, torch.float64).logits([ids], [cut])
        for m, c in ((model, config), (model_without, unlimited))
    )
    assert torch.equal(got[:40], want[:40]) and not torch.equal(got[40], want[40])


def test_a_window_leaves_the_step_it_was_made_from_alone(tmp_path):
    """Layers with and without a window share a step's metadata."""
    cache = torch.zeros(OPS.kv_cache_shape(5, 4, 1, 2))
    step = AttentionMetadata(
        [0, 2, 3], [6, 9], torch.tensor([[1, 2, 0], [2, 3, 4]]), torch.tensor([8, 9, 16])
    )
    prepared = OPS.prepare(step, cache)
    before = [batch.hidden.clone() for batch in prepared.prepared.batches]
    narrow = OPS.within_window(prepared, 3)
    seen = [(~batch.hidden).sum(-1).flatten().tolist() for batch in narrow.prepared.batches]
    assert seen == [[3], [3, 3]], "the single token, then the chunk of two"
    for batch, hidden in zip(prepared.prepared.batches, before, strict=True):
        assert torch.equal(batch.hidden, hidden)


def test_the_table_of_architectures_is_what_read_model_config_accepts_and_refuses(tmp_path):
    """Each row is tried, as config.json and as a GGUF header."""
    rows = tables.write_architecture_table()
    supported = {row.model_type for row in rows if row.supported} - {None}
    assert supported == set(MODEL_TYPES)
    assert {row.gguf for row in rows if row.supported} == set(ARCHITECTURES)
    named = {name for row in rows if not row.supported for name in (row.model_type, row.gguf)}
    assert named - {None, "llama"} == set(MISSING), "Mixtral's files say llama"
    for row in rows:
        for path in tables.smallest_checkpoints(row, tmp_path):
            if row.supported:
                assert read_model_config(path).architecture in (row.model_type, row.gguf)
            else:
                with pytest.raises(ValueError, match="is not supported"):
                    read_model_config(path)
    text = (tables.TABLES / "architectures.md").read_text(encoding="utf-8")
    assert all(f"| {row.name} |" in text for row in rows)
    assert text.count("\n") == len(rows) + 4
