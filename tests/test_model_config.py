"""A checkpoint's shape: from config.json against transformers, from GGUF against what was asked."""

from __future__ import annotations

import json
import math

import gguf
import numpy as np
import pytest
import transformers
from tiny_models import GROUPED, MULTI_QUERY, random_llama

from minivllm.checkpoint.model_config import read_model_config

SIZES = {
    "vocab_size": 331,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
}


def folder_with(path, generation=None, **settings):
    """A folder whose config.json holds SIZES and these; a value of ... takes a key away."""
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES, **settings}
    config = {key: value for key, value in config.items() if value is not ...}
    (path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    return str(path)


def facts(config) -> dict:
    """Ours or transformers', as one dictionary."""
    if isinstance(config, transformers.LlamaConfig):
        eos = config.eos_token_id
        rope = config.rope_parameters
        return {
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_layers": config.num_hidden_layers,
            "num_heads": config.num_attention_heads,
            "num_kv_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "max_position_embeddings": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_theta": rope["rope_theta"],
            "tie_word_embeddings": config.tie_word_embeddings,
            "eos_token_ids": () if eos is None else tuple(eos if type(eos) is list else [eos]),
            "bos_token_id": config.bos_token_id,
            "qkv_bias": config.attention_bias,
            "o_bias": config.attention_bias,
            "mlp_bias": config.mlp_bias,
        }
    unread = ("path", "architecture", "dtype")
    known = {f: getattr(config, f) for f in config.__slots__ if f not in unread}
    for field, plain in NOT_OF_LLAMA.items():
        assert known.pop(field) == plain(config)
    return known


# What an ordinary Llama has none of.
NOT_OF_LLAMA = {
    "qk_norm": lambda config: False,
    "rope_scaling": lambda config: None,
    "windows": lambda config: (None,) * config.num_layers,
    "layers_without_rope": lambda config: (),
    "fused_weights": lambda config: False,
}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_key_value_heads": 2},
        {"num_key_value_heads": None, "head_dim": None},
        {"head_dim": 10, "rms_norm_eps": 1e-5, "max_position_embeddings": 512},
        {"rope_theta": 500_000},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 7e5}},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 7e5},
        {"rope_parameters": {"rope_theta": 7e5}, "rope_theta": 5e5},
        {"rope_parameters": {"rope_theta": 7e5}, "rope_scaling": {"rope_type": "default"}},
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        {"eos_token_id": [5, 9], "bos_token_id": 0},
        {"eos_token_id": None, "bos_token_id": None},
        {"hidden_act": "silu", "sliding_window": None, "quantization_config": None},
    ],
)
def test_a_config_means_what_transformers_takes_it_for(tmp_path, settings):
    """Missing keys, nulls (K16 among them), and both places of RoPE's settings."""
    folder = folder_with(tmp_path, **settings)
    judge = transformers.AutoConfig.from_pretrained(folder)
    assert facts(read_model_config(folder)) == facts(judge)


FAMILIES = {
    "mistral": ({}, {"sliding_window": 5}, {"sliding_window": None}),
    "qwen2": (
        {},
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
        {"use_sliding_window": True, "max_window_layers": 0, "num_key_value_heads": None},
        {"layer_types": ["full_attention"] * 2},
        {
            "use_sliding_window": True,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen3": ({}, {"attention_bias": True}, {"use_sliding_window": True, "max_window_layers": 1}),
    "phi3": ({}, {"sliding_window": 9}, {"eos_token_id": [1, 2]}),
    "smollm3": (
        {},
        {"no_rope_layer_interval": 2, "attention_bias": True, "mlp_bias": True},
        {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 3},
        {"tie_word_embeddings": False, "rope_theta": 5e5},
    ),
}


@pytest.mark.parametrize(
    ("model_type", "settings"), [(name, s) for name, sets in FAMILIES.items() for s in sets]
)
def test_every_model_type_means_what_transformers_takes_it_for(tmp_path, model_type, settings):
    """Defaults of missing keys, and which layers have a window or no RoPE."""
    shape = {"num_attention_heads": 32, "hidden_size": 64}  # transformers' default of KV heads fits
    settings = {"model_type": model_type, "architectures": ..., **shape, **settings}
    folder = folder_with(tmp_path, **settings)
    judge = transformers.AutoConfig.from_pretrained(folder)
    ours = read_model_config(folder)
    window = judge.sliding_window
    kinds = getattr(judge, "layer_types", None) or ["sliding_attention"] * 2
    eos = judge.eos_token_id
    assert (ours.architecture, ours.num_layers) == (model_type, 2)
    assert (ours.num_heads, ours.num_kv_heads) == (32, judge.num_key_value_heads)
    assert ours.head_dim == (getattr(judge, "head_dim", None) or 2)
    assert ours.max_position_embeddings == judge.max_position_embeddings
    assert ours.rms_norm_eps == judge.rms_norm_eps
    assert ours.rope_theta == judge.rope_parameters["rope_theta"]
    assert ours.rope_scaling is None
    assert ours.tie_word_embeddings == judge.tie_word_embeddings
    assert ours.bos_token_id == judge.bos_token_id
    assert ours.eos_token_ids == (() if eos is None else tuple(eos if type(eos) is list else [eos]))
    assert ours.windows == tuple(window if kind == "sliding_attention" else None for kind in kinds)
    turned = getattr(judge, "no_rope_layers", [1, 1])
    assert ours.layers_without_rope == tuple(layer for layer in (0, 1) if not turned[layer])


@pytest.mark.parametrize(
    ("model_type", "settings", "problem"),
    [
        ("mistral", {"layer_types": ["full_attention"] * 2}, "layer_types: .*all layers are alike"),
        ("mistral", {"use_sliding_window": False}, "use_sliding_window: False .*sliding_window to"),
        ("mistral", {"sliding_window": 0}, "sliding_window: must be at least 1"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "layer_types: .*needs a sliding_win"),
        (
            "qwen2",
            {"layer_types": ["full_attention"]},
            "layer_types: must name .* each of 2 layers",
        ),
        ("qwen2", {"layer_types": ["linear_attention"] * 2}, "layer_types: must name sliding_att"),
        ("phi3", {"rope_scaling": {"type": "yarn", "factor": 2}}, "'yarn' is not supported"),
        ("phi3", {"rope_scaling": {"type": "longrope"}}, "'longrope' is not supported"),
        ("phi3", {"partial_rotary_factor": 0.75}, "partial_rotary_factor: 0.75"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers: must hold a 0 or 1 for each of 2"),
        ("smollm3", {"no_rope_layers": [1, 2]}, "no_rope_layers: must hold a 0 or 1"),
        ("qwen3", {"architectures": ["Qwen2ForCausalLM"]}, "only 'Qwen3ForCausalLM' is"),
    ],
)
def test_what_a_model_type_cannot_have_is_refused_by_name(tmp_path, model_type, settings, problem):
    settings = {"architectures": ..., "num_key_value_heads": 2, **settings}
    with pytest.raises(ValueError, match=problem):
        read_model_config(folder_with(tmp_path, model_type=model_type, **settings))


@pytest.mark.parametrize(
    ("rope", "positions"),
    [
        ({"type": "linear", "factor": 4.0}, 2048),
        ({"type": "dynamic", "factor": 2.5}, 1280),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}, 400),
        ({"type": "yarn", "factor": 4.0}, 2048),
        ({"type": "yarn", "original_max_position_embeddings": 64, "finetuned": True}, 512),
        ({"type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4}, 512),
        ({"type": "default"}, 512),
    ],
)
def test_scaled_rope_reaches_as_far_as_vllm_lets_it(tmp_path, rope, positions):
    folder = folder_with(tmp_path, max_position_embeddings=512, rope_scaling=rope)
    assert read_model_config(folder).max_position_embeddings == positions


@pytest.mark.parametrize("shape", [GROUPED, MULTI_QUERY])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_a_saved_model_is_read_as_transformers_reads_it(tmp_path, shape, tied, dtype):
    folder = random_llama(tmp_path, dtype=dtype, tie_word_embeddings=tied, **shape)
    ours = read_model_config(folder)
    assert facts(ours) == facts(transformers.AutoConfig.from_pretrained(folder))
    assert (ours.path, ours.architecture, ours.dtype) == (folder, "llama", dtype)


@pytest.mark.parametrize(
    ("own", "generation", "ids"),
    [
        (2, None, (2,)),
        (2, {}, (2,)),
        (2, {"eos_token_id": None}, (2,)),
        (2, {"eos_token_id": 7}, (2, 7)),
        ([2, 3], {"eos_token_id": [3, 9, 2]}, (2, 3, 9)),
        (None, {"eos_token_id": [9]}, (9,)),
    ],
)
def test_the_ids_that_end_a_text_come_from_both_files(tmp_path, own, generation, ids):
    folder = folder_with(tmp_path, generation, eos_token_id=own)
    assert read_model_config(folder).eos_token_ids == ids


def test_k16_a_rope_scaling_of_null_is_none(tmp_path):
    assert read_model_config(folder_with(tmp_path, rope_scaling=None)).rope_theta == 10000.0


REFUSED = [
    ({"model_type": "mixtral"}, "model_type: 'mixtral' is not supported: there are no experts"),
    ({"model_type": "seq2seq"}, "'seq2seq' is not supported: this engine does not know it .*llama"),
    ({"model_type": ...}, "model_type: this key is missing"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "architectures: .*Classification"),
    ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported"),
    ({"sliding_window": 4096}, "sliding_window: 4096 is not supported"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 is not supported"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config: .*gptq"),
    ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope_scaling: type: 'longrope'"),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor: this key is missing"),
    ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor: must be at least 1, got 0.5"),
    ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor: .*wrong type, '2'"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 3}}, "beta_fast: 3 is not"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 9}}, "alpha: 9 is not supported"),
    (
        {"rope_scaling": {"type": "default", "mrope_section": [1, 2]}},
        "mrope_section: .*no such key",
    ),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor: .*missing"),
    (
        {"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 4, "high_freq_factor": 4}},
        "high_freq_factor: must be above low_freq_factor",
    ),
    ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters: factor: this key is missing"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "full_attention: .*no such key"),
    ({"rope_scaling": "linear"}, "rope_scaling: has a value of the wrong type"),
    ({"rope_scaling": {"type": "default", "partial_rotary_factor": 0.5}}, "turns whole heads"),
    ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype: 'float8_e4m3fn' is not supported"),
    ({"hidden_size": ...}, "hidden_size: this key is missing"),
    ({"vocab_size": None}, "vocab_size: this key is missing"),
    ({"num_hidden_layers": 0}, "num_hidden_layers: must be at least 1"),
    ({"num_hidden_layers": 2.5}, "num_hidden_layers: .*wrong type, 2.5"),
    ({"num_hidden_layers": True}, "num_hidden_layers: .*wrong type, True"),
    ({"intermediate_size": "40"}, "intermediate_size: .*wrong type, '40'"),
    ({"rms_norm_eps": 0}, "rms_norm_eps: must be above 0"),
    ({"rope_theta": 10**400}, "rope_theta: must be above 0 and finite"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings: .*wrong type, 1"),
    ({"eos_token_id": [2, "x"]}, "eos_token_id: must be a token id"),
    ({"num_key_value_heads": 4}, "6 query heads cannot share 4 KV heads"),
    ({"head_dim": 5}, "head_dim 5 is odd"),
]


@pytest.mark.parametrize(("settings", "problem"), REFUSED)
def test_what_a_config_asks_for_and_nobody_has_is_refused_by_name(tmp_path, settings, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        read_model_config(folder_with(tmp_path, **settings))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "there is no such file"),
        (b"{", "no valid JSON"),
        (b"\xff", "no valid JSON"),
        (b"[" * 100_000, "no valid JSON"),
        (b"[]", "no JSON object"),
    ],
)
def test_a_config_that_cannot_be_read_is_named(tmp_path, content, problem):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"config\.json: .*{problem}"):
        read_model_config(tmp_path)


GGUF_KEYS = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.embedding_length": 24,
    "llama.feed_forward_length": 40,
    "llama.attention.head_count": 6,
    "llama.attention.layer_norm_rms_epsilon": 0.125,
    "tokenizer.ggml.tokens": [f"t{i}" for i in range(331)],
}
MATRIX = {"token_embd.weight": ("F32", (331, 32)), "output_norm.weight": ("F32", (32,))}


YARN = {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 4.0}


def gguf_with(path, tensors=MATRIX, **settings):
    """A GGUF file of GGUF_KEYS and these (dots written as __); ... takes a key away."""
    path = path / "model.gguf"
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    keys = {key: value for key, value in (GGUF_KEYS | changes).items() if value is not ...}
    writer = gguf.GGUFWriter(path, keys.pop("general.architecture"))
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    add |= {str: writer.add_string, list: writer.add_array}
    for key, value in keys.items():
        add[type(value)](key, value)
    for name, (kind, shape) in tensors.items():
        kind = gguf.GGMLQuantizationType[kind]
        values = gguf.quants.quantize(np.ones(shape, dtype=np.float32), kind)
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def test_a_gguf_file_says_its_shape_in_its_metadata(tmp_path):
    path = gguf_with(
        tmp_path,
        MATRIX | {"output.weight": ("F32", (331, 32))},
        llama__attention__head_count_kv=2,
        llama__attention__key_length=10,
        llama__attention__value_length=10,
        llama__rope__dimension_count=10,
        llama__rope__freq_base=5e5,
        tokenizer__ggml__bos_token_id=1,
        tokenizer__ggml__eos_token_id=2,
        tokenizer__ggml__eot_token_id=7,
    )
    ours = read_model_config(path)
    assert (ours.path, ours.architecture, ours.dtype) == (path, "llama", "float32")
    assert facts(ours) == {
        "vocab_size": 331,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 10,
        "max_position_embeddings": 512,
        "rms_norm_eps": 0.125,
        "rope_theta": 5e5,
        "tie_word_embeddings": False,
        "eos_token_ids": (2, 7),
        "bos_token_id": 1,
        "qkv_bias": False,
        "o_bias": False,
        "mlp_bias": False,
    }


def test_k13_a_missing_head_count_kv_means_as_many_as_heads(tmp_path):
    ours = read_model_config(gguf_with(tmp_path))
    assert (ours.num_kv_heads, ours.num_heads) == (6, 6)
    assert (ours.head_dim, ours.rope_theta, ours.tie_word_embeddings) == (4, 10000.0, True)
    assert (ours.eos_token_ids, ours.bos_token_id) == ((), None)


def test_an_eot_id_that_is_the_eos_id_counts_once(tmp_path):
    same = {"tokenizer__ggml__eos_token_id": 2, "tokenizer__ggml__eot_token_id": 2}
    assert read_model_config(gguf_with(tmp_path, **same)).eos_token_ids == (2,)


def test_biases_are_seen_in_the_table_of_tensors(tmp_path):
    extra = {"blk.0.attn_q.bias": ("F32", (24,)), "blk.0.ffn_gate.bias": ("F32", (40,))}
    ours = read_model_config(gguf_with(tmp_path, MATRIX | extra))
    assert (ours.qkv_bias, ours.o_bias, ours.mlp_bias) == (True, False, True)


@pytest.mark.parametrize(
    ("settings", "kind", "factor", "positions"),
    [
        ({"type": "linear", "factor": 4.0}, "linear", 4.0, 2048),
        ({"factor": 4.0}, "linear", 4.0, 2048),
        ({"type": "none", "factor": 4.0}, None, None, 512),
        ({"type": "linear", "factor": 1.0}, None, None, 512),
        ({"factor": 0.0, "finetuned": True}, None, None, 512),
        ({"type": "yarn", "factor": 4.0, "original_context_length": 100}, "yarn", 4.0, 400),
        ({"type": "yarn", "factor": 4.0}, "yarn", 4.0, 2048),
    ],
)
def test_rope_scaling_of_a_gguf_is_read_as_llama_cpp_reads_it(
    tmp_path, settings, kind, factor, positions
):
    named = {f"llama__rope__scaling__{name}": value for name, value in settings.items()}
    ours = read_model_config(gguf_with(tmp_path, **named))
    scaling = ours.rope_scaling
    assert (scaling and scaling.kind, scaling and scaling.factor) == (kind, factor)
    assert ours.max_position_embeddings == positions


def test_the_old_name_of_a_linear_factor_and_yarns_own_numbers_are_read(tmp_path):
    old = read_model_config(gguf_with(tmp_path, llama__rope__scale_linear=2.0)).rope_scaling
    assert (old.kind, old.factor) == ("linear", 2.0)
    numbers = {"attn_factor": 0.5, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}
    named = {f"llama__rope__scaling__{name}": value for name, value in numbers.items()}
    yarn = read_model_config(gguf_with(tmp_path, **YARN, **named)).rope_scaling
    assert (yarn.beta_fast, yarn.beta_slow) == (16.0, 2.0)
    assert yarn.attention_factor == pytest.approx(0.5 * (1 + 0.1 * math.log(4)))


@pytest.mark.parametrize(
    ("window", "windows"), [(0, (None, None)), (1, (1, 1)), (4096, (4096, 4096))]
)
def test_a_window_of_a_gguf_is_every_layers_and_0_is_none(tmp_path, window, windows):
    path = gguf_with(tmp_path, llama__attention__sliding_window=window)
    assert read_model_config(path).windows == windows


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [
        ("F32 F32", "float32"),
        ("F16 F16", "float16"),
        ("BF16 BF16", "bfloat16"),
        ("F16 F32", "float32"),
        ("F16 Q8_0", "quantized"),
        ("Q4_1 Q8_0", "quantized"),
    ],
)
def test_the_stored_dtype_of_a_gguf_is_that_of_its_matrices(tmp_path, kinds, dtype):
    first, second = kinds.split()
    tensors = MATRIX | {"token_embd.weight": (first, (331, 32)), "b": (second, (2, 32))}
    assert read_model_config(gguf_with(tmp_path, tensors)).dtype == dtype


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"general__architecture": "gemma3"}, "general.architecture: 'gemma3' is not supported"),
        ({"llama__block_count": ...}, "llama.block_count: this key is missing"),
        ({"llama__embedding_length": "24"}, "llama.embedding_length: .*wrong type, '24'"),
        ({"llama__attention__head_count_kv": [2, 2]}, "llama.attention.head_count_kv: .*wrong"),
        ({"llama__expert_count": 8}, "llama.expert_count: 8 is not supported"),
        (
            {"llama__attention__sliding_window": "64"},
            "llama.attention.sliding_window: .*wrong type",
        ),
        ({"llama__attention__sliding_window_pattern": 2}, "llama.attention.sliding_window_pattern"),
        ({"llama__attention__causal": False}, "llama.attention.causal: False"),
        ({"llama__rope__scaling__type": "longrope"}, "llama.rope.scaling.type: 'longrope'"),
        ({"llama__rope__scaling__factor": 0.5}, "llama.rope.scaling.factor: must be at least 1"),
        ({**YARN, "llama__rope__scaling__yarn_ext_factor": 0.5}, "yarn_ext_factor: 0.5 is not"),
        ({**YARN, "llama__rope__scaling__yarn_log_multiplier": 0.5}, "yarn_log_multiplier: 0.5"),
        (
            {**YARN, "tensors": {"rope_freqs.weight": ("F32", (2,))}},
            "rope_freqs.weight: is not supported beside RoPE scaling of type 'yarn'",
        ),
        ({"llama__rope__dimension_count": 2}, "llama.rope.dimension_count: 2 .*head size, 4"),
        ({"llama__attention__value_length": 8}, "llama.attention.value_length: 8 .*head size, 4"),
        ({"tokenizer__ggml__tokens": ...}, "llama.vocab_size: this key is missing"),
        ({"tensors": {"rope_freqs.weight": ("F32", (3,))}}, "rope_freqs.weight must hold 2 numb"),
        ({"tensors": {"rope_freqs.weight": ("F16", (2,))}}, "rope_freqs.weight must hold 2 numb"),
    ],
)
def test_what_a_gguf_asks_for_and_nobody_has_is_refused_by_name(tmp_path, settings, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        read_model_config(gguf_with(tmp_path, **settings))
    assert "model.gguf" in str(caught.value)


def test_the_real_model_and_its_folder_agree(smollm2, smollm2_hf):
    ours, theirs = read_model_config(smollm2), read_model_config(smollm2_hf)
    assert facts(ours) == facts(theirs)
    assert (ours.dtype, theirs.dtype) == ("quantized", "float32")
